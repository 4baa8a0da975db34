"""Random subsampling (Konecny et al., 2016): FedAvg where each client sends a random part of its update.

A new part is drawn each round from a number that is sent instead of the mask. There is no error feedback
and no rescaling: where a client sends nothing, its update counts as zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from typing_extensions import Doc

from sparsona.core import masks
from sparsona.core.fields import PositiveShare
from sparsona.core.layout import ones_in, replaced
from sparsona.core.rng import Rng
from sparsona.core.star import Answer, FineTuning, Weighting, fine_tuned, mean_model
from sparsona.core.training import Ctx, State, StatefulTraining, train_on
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, Layout, LocalData, Mask, Vector

Client = State | None  # what its optimiser keeps


@dataclass(frozen=True, kw_only=True)
class Subsampling(FineTuning, Weighting, StatefulTraining):
    """One shared model; the way down is dense, the way up a random share of it."""

    density: Annotated[PositiveShare, Doc("fraction of the update that a client sends")] = 0.5

    def start(self, clients: int, ctx: Ctx) -> Vector:
        return ctx.theta0

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values(server))

    def join(self, k: int, ctx: Ctx) -> Client:
        return None

    def part(self, layout: Layout, key: Rng) -> Mask:
        """The entries that a key stands for; buffers are always among them."""
        chosen = torch.ones(layout.dim, dtype=torch.bool, device=layout.device)
        trained = chosen[: layout.params]
        trained.copy_(masks.draw(trained, masks.kept(layout.params, 1 - self.density), key))
        return chosen

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        theta, client = train_on(self, inbox["server"]["theta"].values, data.train, ctx, client)
        seed = ctx.rng("part").seed
        part = self.part(ctx.layout, Rng(seed))
        return client, Message(theta=Values.of(theta, part), seed=seed, samples=len(data)), theta

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:
        part = self.part(ctx.layout, Rng(message.part("seed", int)))
        values = message.floats("theta", ones_in(part))
        # the received model with the part replaced by trained weights: the received model plus the part of the update
        return replaced(server, part, values), message.whole("samples", 1)

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:
        return mean_model(server, inbox, self)

    def shared(self, server: Vector) -> Vector:
        return server

    def finish(self, shared: Vector, data: LocalData, ctx: Ctx) -> Vector:
        return fine_tuned(self, self.finish_epochs, shared, data, ctx)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        theta: Vector = inbox["server"]["theta"].values
        return theta
