"""Random subsampling (Konecny et al., 2016): FedAvg whose clients send back a random part of their update.

The part is drawn anew each round from a number that travels with it, so that no mask does. There is no error feedback
and no rescaling: where a client sends nothing, its update counts as zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparsona.core import masks
from sparsona.core.fields import PositiveShare
from sparsona.core.layout import ones_in, replaced
from sparsona.core.rng import Rng
from sparsona.core.training import Ctx
from sparsona.core.wire import Message, Values
from sparsona.method import Client, Inbox, Layout, LocalData, Mask, Vector
from sparsona.methods.fedavg import Answer, FedAvg


@dataclass(frozen=True, kw_only=True)
class Subsampling(FedAvg):
    """One shared model; the way down is dense, the way up a random share of it."""

    density: PositiveShare = 0.5  # share of the entries sent back

    def part(self, layout: Layout, key: Rng) -> Mask:
        """The entries that a key stands for; buffers are always among them."""
        chosen = torch.ones(layout.dim, dtype=torch.bool)
        trained = chosen[: layout.params]
        trained.copy_(masks.draw(trained, masks.kept(layout.params, 1 - self.density), key))
        return chosen

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        theta, client = self.step(client, inbox["server"]["theta"].values, data, ctx)
        seed = ctx.rng("part").seed
        part = self.part(ctx.layout, Rng(seed))
        return client, Message(theta=Values.of(theta, part), seed=seed, samples=len(data)), theta

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:
        part = self.part(ctx.layout, Rng(message.part("seed", int)))
        values = message.floats("theta", ones_in(part))
        # the received model with the part replaced by trained weights: the received model plus the part of the update
        return replaced(server, part, values), message.whole("samples", 1)
