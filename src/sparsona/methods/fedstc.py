"""FedSTC (Sattler et al., "Robust and Communication-Efficient Federated Learning from Non-i.i.d. Data", 2020).

One shared model, of which only compressed updates travel, both ways: the largest entries of each tensor, replaced by
their sign times their mean magnitude. What compression loses is added to the next update, on the client as on the
server. A client that was away receives the weights that have changed meanwhile instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch

from sparsona.core import masks
from sparsona.core.aggregate import Mean
from sparsona.core.fields import Fraction
from sparsona.core.layout import added, replaced
from sparsona.core.quantise import of_ternary, ternary
from sparsona.core.training import Ctx, State, Training, train_on
from sparsona.core.wire import Bits, Message, Part, Quantised, Sparse, Values, WireError
from sparsona.method import Inbox, Layout, LocalData, Vector

Answer = tuple[Sparse, Vector, int]  # an update, running statistics, and the number of samples they are of


@dataclass(frozen=True)
class Client:
    theta: Vector  # the shared model as it was last received
    residual: Vector
    moments: State | None


@dataclass(frozen=True)
class Server:
    theta: Vector
    residual: Vector
    version: int  # rounds after which the model is what it is; 0 is the common initial model
    before: int  # the version that the news are an update of
    moved: Vector  # [params] int32, the version that each weight is of
    seen: dict[int, int] = field(default_factory=dict)  # the version that each client has
    news: dict[str, Part] = field(default_factory=dict)  # the last update, as it travels


@dataclass(frozen=True, kw_only=True)
class FedSTC(Training):
    """A shared model by sparse ternary updates."""

    keeps_moments: ClassVar[bool] = True
    sparsity: Fraction = 0.9  # p, the share of each tensor's entries left out, up and down
    rounding: Literal["nearest", "up"] = "nearest"  # kept of n: n less p n rounded; or (1 - p) n rounded up
    weighting: Literal["samples", "uniform"] = "samples"  # a client counts by its samples, or as any other

    def counts(self, layout: Layout) -> list[int]:
        """How many entries of each tensor are kept."""
        if self.rounding == "nearest":
            return [masks.kept(n, self.sparsity) for n in layout.sizes]
        return [masks.at_least(n, 1 - self.sparsity) for n in layout.sizes]

    def compress(self, layout: Layout, update: Vector) -> dict[str, Part]:
        """An update as it travels."""
        mask = masks.top_each(layout, update.abs(), self.counts(layout)) & (update != 0)
        signs, sizes = ternary(layout, update, mask)
        return {"places": Bits(mask), "signs": signs, "sizes": Values(sizes)}

    def expand(self, layout: Layout, message: Message) -> Sparse:
        """An update that travelled; WireError if it is none that could have been sent."""
        mask, signs = message.part("places", Bits).mask, message.part("signs", Quantised)
        if mask.shape != (layout.dim,) or (signs.bits, signs.scale) != (0, 1.0):
            raise WireError(f"the update is of {len(mask)} entries with {signs.bits} bits, not {layout.dim} with 0")
        ones, sizes = layout.counts(mask), message.floats("sizes", len(layout.slots))
        if any(n > due for n, due in zip(ones, self.counts(layout), strict=True)) or sum(ones) != len(signs.negative):
            raise WireError(f"the update holds {ones} entries of its tensors, or not as many signs")
        return Sparse(mask, of_ternary(layout, signs, sizes, mask))

    def broadcast(self, layout: Layout, update: Vector) -> dict[str, Part]:
        """The server's update as it travels."""
        return self.compress(layout, update)

    def start(self, fleet: int, ctx: Ctx) -> Server:
        n = ctx.layout.params
        return Server(ctx.theta0, torch.zeros(n), 0, 0, torch.zeros(n, dtype=torch.int32))

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(ctx.theta0, torch.zeros(ctx.layout.params), None)

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:
        seen, more = server.seen.get(k, 0), self.running(server.theta, ctx)
        if seen == server.version:
            return Message()
        if seen == server.before:
            return Message(**server.news, **more)
        trained = server.theta[: ctx.layout.params]
        return Message(weights=Sparse.of(trained, server.moved > seen), **more)

    def running(self, theta: Vector, ctx: Ctx) -> dict[str, Part]:
        """The running statistics of a model that has any: they are never compressed."""
        return {"running": Values(theta[ctx.layout.params :])} if ctx.layout.dim > ctx.layout.params else {}

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        message, theta = inbox["server"], client.theta
        if "weights" in message:
            theta = replaced(theta, message["weights"].mask, message["weights"].values)
        elif len(message):
            sent = self.expand(ctx.layout.trained, message)
            theta = added(theta, sent.mask, sent.values)
        if "running" in message:
            theta[ctx.layout.params :] = message["running"].values
        return theta

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        theta, n = self.personal(client, inbox, data, ctx), ctx.layout.params
        trained, moments = train_on(self, theta, data.train, ctx, client.moments)
        update = (trained - theta)[:n] + client.residual
        parts = self.compress(ctx.layout.trained, update)
        residual = update - self.expand(ctx.layout.trained, Message(**parts)).dense()
        message = Message(**parts, **self.running(trained, ctx), samples=len(data))
        return Client(theta, residual, moments), message, trained

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> Answer:
        layout, rest = ctx.layout.trained, ctx.layout.dim - ctx.layout.params
        running = message.floats("running", rest) if rest else torch.zeros(0)
        return self.expand(layout, message), running, message.whole("samples", 1)

    def merge(self, server: Server, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Server:
        layout, seen, version = ctx.layout.trained, dict[int, int](), server.version + 1
        mean, running = Mean(layout.dim), Mean(ctx.layout.dim - layout.dim)
        for k, (sent, statistics, samples) in inbox:
            weight = samples if self.weighting == "samples" else 1
            mean.add(sent.values, weight, sent.mask)
            running.add(statistics, weight)
            seen[k] = server.version
        if not seen:
            return server
        update = mean.value() + server.residual
        news = self.broadcast(layout, update)
        sent = self.expand(layout, Message(**news))
        theta = torch.cat([added(server.theta[: layout.dim], sent.mask, sent.values), running.value()])
        moved = server.moved.masked_fill(sent.mask, version)
        return Server(theta, update - sent.dense(), version, server.version, moved, server.seen | seen, news)

    def shared(self, server: Server) -> Vector:
        return server.theta
