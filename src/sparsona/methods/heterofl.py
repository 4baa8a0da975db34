"""HeteroFL (Diao et al., 2021): weaker clients train only the first channels of each layer of a shared model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from typing_extensions import Doc

from sparsona.core import budgets
from sparsona.core.budgets import Shares
from sparsona.core.star import FineTuning, adapted, fine_tuned, mean_of_parts
from sparsona.core.training import Ctx, MaskedClip, State, StatefulTraining, train_on
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, Layout, LocalData, Mask, Report, Vector

Answer = tuple[Vector, Mask, int]  # trained weights, where they belong, the number of samples


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    keep: float
    state: State | None = None  # what its optimiser keeps


def leading(layout: Layout, keep: float) -> Mask:
    """The leading sqrt(keep) of channels, so that about ``keep`` of the weights stays; inputs and classes all stay."""
    out, width, before = torch.zeros(layout.dim, dtype=torch.bool, device=layout.device), math.sqrt(keep), 0

    def kept(n: int) -> int:
        return math.ceil(n * width - 1e-9)

    for slot in layout.slots:
        view, outputs = slot.view(out[slot.where]), slot.shape[0] if slot.shape else 1
        rows = outputs if slot.head or not slot.shape else kept(outputs)
        if len(slot.shape) < 2:
            view[:rows] = True
            continue
        inputs = slot.shape[1]
        columns = kept(inputs) if before else inputs
        if before and len(slot.shape) == 2 and inputs % before == 0:  # each channel before it became its positions
            columns = inputs // before * kept(before)
        view[:rows, :columns] = True
        before = outputs
    return out


@dataclass(frozen=True, kw_only=True)
class HeteroFL(FineTuning, MaskedClip, StatefulTraining):
    """One model in several widths; each weight is averaged over those who have it."""

    keep: Annotated[
        Shares, Doc("fraction of all weights kept: a number, one per client, {low, high}, or {values, weights}")
    ] = 0.5
    scaler: Annotated[
        bool, Doc("divide the outputs of narrowed layers by their width in training; not needed with normalisation")
    ] = True

    def mask(self, k: int, ctx: Ctx) -> Mask:
        """Client k's part of the model."""
        return leading(ctx.layout, budgets.share(self.keep, k, ctx.common))

    def start(self, clients: int, ctx: Ctx) -> Vector:
        budgets.least("keep", self.keep, clients)
        return ctx.theta0

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values.of(server, self.mask(k, ctx)))

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(budgets.share(self.keep, k, ctx.common))

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        mask = leading(ctx.layout, client.keep)
        with ctx.task.scaled(math.sqrt(client.keep) if self.scaler else 1.0):
            theta = self.personal(client, inbox, data, ctx)
            theta, state = train_on(self, theta, data.train, ctx, client.state, mask=mask)
        return Client(client.keep, state), Message(theta=Values.of(theta, mask), samples=len(data)), theta

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:
        mask = self.mask(k, ctx)
        return message.floats("theta", int(mask.count_nonzero())), mask, message.whole("samples", 1)

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:
        return mean_of_parts(server, inbox)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        theta: Vector = inbox["server"]["theta"].at(leading(ctx.layout, client.keep))
        return theta

    def welcome(self, client: Client, inbox: Inbox, data: LocalData, epochs: int, ctx: Ctx) -> tuple[Client, Vector]:
        theta, mask = self.personal(client, inbox, data, ctx), leading(ctx.layout, client.keep)
        with ctx.task.scaled(math.sqrt(client.keep) if self.scaler else 1.0):
            return client, adapted(self, epochs, theta, data, ctx, mask=mask)

    def finish(self, shared: Vector, data: LocalData, ctx: Ctx) -> Vector:
        return fine_tuned(self, self.finish_epochs, shared, data, ctx)

    def report(self, client: Client | None, server: Vector | None, k: int, ctx: Ctx) -> Report:
        if client is None:
            return Report()
        return Report({"sparsity": 1 - float(leading(ctx.layout, client.keep).float().mean())})

    def shared(self, server: Vector) -> Vector:
        return server
