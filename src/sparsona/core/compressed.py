"""Rounds in which only compressed updates of one shared model travel, with error feedback at both ends.

What compression leaves out is added to the next update, on the client as on the server. A client that was away receives
the weights that have changed meanwhile instead. Running statistics are never compressed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch

from sparsona.core import masks
from sparsona.core.aggregate import Mean
from sparsona.core.layout import Layout, Vector, added, replaced
from sparsona.core.optimiser import State
from sparsona.core.samples import LocalData
from sparsona.core.star import Weighting, weight
from sparsona.core.training import Ctx, SgdTraining, train_on
from sparsona.core.wire import Message, Part, Sparse, Values

Answer = tuple[Sparse, Vector, int]  # an update, running statistics, and the number of samples they are of


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    theta: Vector  # the shared model as it was last received
    residual: Vector
    moments: State | None


@dataclass(frozen=True)
class Server:
    """What the server keeps between rounds."""

    theta: Vector
    residual: Vector
    version: int  # rounds after which the model is what it is; 0 is the common initial model
    before: int  # the version that the news are an update of
    moved: Vector  # [params] int32, the version that each weight is of
    seen: dict[int, int] = field(default_factory=dict)  # the version that each client has
    news: dict[str, Part] = field(default_factory=dict)  # the last update, as it travels


class Compressor(Protocol):
    """The compression of updates."""

    def compress(self, layout: Layout, update: Vector) -> dict[str, Part]:
        """The compressed update, as message parts."""

    def expand(self, layout: Layout, message: Message) -> Sparse:
        """The decompressed update; WireError if it is invalid."""


def entries_kept(layout: Layout, sparsity: float, rounding: Literal["nearest", "up"]) -> list[int]:
    """The number of entries of each tensor that a compressed update holds."""
    if rounding == "nearest":
        return [masks.kept(n, sparsity) for n in layout.sizes]
    return [masks.at_least(n, 1 - sparsity) for n in layout.sizes]


def first_server(ctx: Ctx) -> Server:
    """The server before the first round."""
    n = ctx.layout.params
    return Server(ctx.theta0, torch.zeros(n), 0, 0, torch.zeros(n, dtype=torch.int32))


def first_client(ctx: Ctx) -> Client:
    """A client that has not trained yet."""
    return Client(ctx.theta0, ctx.theta0.new_zeros(ctx.layout.params), None)


def news_for(server: Server, k: int, ctx: Ctx) -> Message:
    """What client k does not know: nothing, the last update, or all weights that have moved since it was here."""
    seen, running = server.seen.get(k, 0), _running(server.theta, ctx)
    if seen == server.version:
        return Message()
    if seen == server.before:
        return Message(**server.news, **running)
    trained = server.theta[: ctx.layout.params]
    return Message(weights=Sparse.of(trained, server.moved > seen), **running)


def received(by: Compressor, client: Client, message: Message, ctx: Ctx) -> Vector:
    """The shared model, from what the client had and what came."""
    theta = client.theta
    if "weights" in message:
        theta = replaced(theta, message["weights"].mask, message["weights"].values)
    elif len(message):
        sent = by.expand(ctx.layout.trained, message)
        theta = added(theta, sent.mask, sent.values)
    if "running" in message:
        theta[ctx.layout.params :] = message["running"].values
    return theta


def trained_update(
    training: SgdTraining, by: Compressor, client: Client, theta: Vector, data: LocalData, ctx: Ctx
) -> tuple[Client, Message, Vector]:
    """Local training from theta; the update and what was left out before are compressed and sent."""
    n, layout = ctx.layout.params, ctx.layout.trained
    trained, moments = train_on(training, theta, data.train, ctx, client.moments)
    update = (trained - theta)[:n] + client.residual
    parts = by.compress(layout, update)
    residual = update - by.expand(layout, Message(**parts)).dense()
    message = Message(**parts, **_running(trained, ctx), samples=len(data))
    return Client(theta, residual, moments), message, trained


def read_update(by: Compressor, message: Message, ctx: Ctx) -> Answer:
    """What a client sent, checked."""
    rest = ctx.layout.dim - ctx.layout.params
    running = message.floats("running", rest) if rest else torch.zeros(0)
    return by.expand(ctx.layout.trained, message), running, message.whole("samples", 1)


def merged(
    weighting: Weighting, by: Compressor, server: Server, inbox: Iterable[tuple[int, Answer]], ctx: Ctx
) -> Server:
    """The server after it moved by the mean of the updates, compressed by ``by``."""
    layout, seen, version = ctx.layout.trained, dict[int, int](), server.version + 1
    mean, running = Mean(layout.dim), Mean(ctx.layout.dim - layout.dim)
    for k, (sent, statistics, samples) in inbox:
        share = weight(samples, weighting)
        mean.add(sent.values, share, sent.mask)
        running.add(statistics, share)
        seen[k] = server.version
    if not seen:
        return server
    update = mean.value() + server.residual
    news = by.compress(layout, update)
    sent = by.expand(layout, Message(**news))
    theta = torch.cat([added(server.theta[: layout.dim], sent.mask, sent.values), running.value()])
    moved = server.moved.masked_fill(sent.mask, version)
    return Server(theta, update - sent.dense(), version, server.version, moved, server.seen | seen, news)


def _running(theta: Vector, ctx: Ctx) -> dict[str, Part]:
    """The running statistics of a model that has any."""
    return {"running": Values(theta[ctx.layout.params :])} if ctx.layout.dim > ctx.layout.params else {}
