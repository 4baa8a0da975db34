"""pFedGate (Chen et al., 2023): a private gate on each client picks, batch by batch, the blocks of a shared model.

For every batch a client's gate predicts an importance G and a weight M for each block of the dense model. A knapsack
keeps the most important blocks that fit the client's budget, M scales them, and one backward pass trains model and
gate. What was never kept in a round is not sent; the server averages each block over those who sent it. Gates stay
where they are. Line numbers are those of the paper's Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean
from typing import Literal

import torch
from torch import Tensor, nn

from sparsona.core import budgets
from sparsona.core.aggregate import Mean, OverlapMean
from sparsona.core.budgets import Shares
from sparsona.core.fields import Positive
from sparsona.core.gate import fresh
from sparsona.core.gated import LEVELS, Gating, levels
from sparsona.core.layout import replaced
from sparsona.core.portable import gated_module
from sparsona.core.task import Sgd
from sparsona.core.training import Ctx, lr_at
from sparsona.core.wire import Bits, Message, Values, WireError
from sparsona.method import Inbox, LocalData, Mask, Model, Vector

Answer = tuple[Vector, Mask, int]  # trained weights of the blocks sent, their mask, the number of samples


@dataclass(frozen=True)
class Client:
    keep: float  # s_i
    gate: Vector  # phi_i, with its running statistics
    model_velocity: Vector | None = None
    gate_velocity: Vector | None = None
    kept: float = 0.0  # s'_i, the mean share kept in its last round
    sent: float = 0.0  # q_i, the share sent in it
    levels: Tensor = field(default_factory=lambda: torch.zeros(len(LEVELS)))  # how strongly it used blocks in it


@dataclass(frozen=True, kw_only=True)
class PFedGate(Gating):
    """A dense model on the server, a private gate on each client that keeps some of its blocks."""

    clip: Positive = 10.0  # bound on the gradient's norm, of the model and of the gate apart
    keep: Shares = 0.5  # s, the most kept of all weights: a number, one per client, {low, high}, or {values, weights}
    lr_gate: Positive = 0.1  # learning rate of the gate, of the first round
    velocity: Literal["client", "round"] = "client"  # momentum of model and gate: the client keeps it, or begins anew
    aggregation: Literal["senders", "dense"] = "senders"  # a block's mean over who sent it, or over all

    def start(self, fleet: int, ctx: Ctx) -> Vector:
        least = budgets.least("keep", self.keep, fleet)
        self.check(least, ctx)
        return ctx.theta0

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values(server))

    def join(self, k: int, ctx: Ctx) -> Client:
        keep = budgets.share(self.keep, k, ctx.common)
        return Client(keep, fresh(self.gated(keep, ctx).gate, ctx.rng("gate")))

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Model]:
        new, theta, sent = self.trained(client, inbox["server"]["theta"].values, data, self.epochs, ctx)
        gated = self.gated(client.keep, ctx, data)
        values = Values.of(theta, gated.blocks.spread(sent, ctx.layout.dim))
        return new, Message(blocks=Bits(sent), theta=values, samples=len(data)), partial(gated.logits, theta, new.gate)

    def welcome(self, client: Client, inbox: Inbox, data: LocalData, epochs: int, ctx: Ctx) -> tuple[Client, Model]:
        theta, begun = inbox["server"]["theta"].values, replace(ctx, t=0)  # a new gate learns as all gates began
        new, _, _ = self.trained(client, theta, data, epochs, begun, both=False)
        return new, partial(self.gated(client.keep, ctx, data).logits, theta, new.gate)

    def trained(
        self, client: Client, theta: Vector, data: LocalData, epochs: int, ctx: Ctx, *, both: bool = True
    ) -> tuple[Client, Vector, Mask]:
        """Gate and model, or the gate alone, after training from theta; and the blocks kept at least once."""
        gated, lr = self.gated(client.keep, ctx, data), lr_at(self, ctx.t, ctx.rounds)
        gated.load(theta, client.gate, train=True)
        how = {"momentum": self.momentum, "weight_decay": self.weight_decay, "clip": self.clip}
        kept, moves = self.velocity == "client", self.momentum > 0 or self.weight_decay > 0  # without gradient, too
        model = Sgd(gated.task.flat[: ctx.layout.params], **how, velocity=client.model_velocity if kept else None)
        gate = Sgd(gated.gate.flat[: gated.gate.layout.params], **how, velocity=client.gate_velocity if kept else None)
        kept_blocks, scales = list[Mask](), list[Tensor]()
        batches = data.train.epochs(ctx.rng("train"), epochs, self.batch, drop_last=self.drop_last)
        with batches.rng("layers").everywhere():
            for batch in batches:
                if len(batch[1]) < 2:
                    continue  # one sample has no batch statistics
                of_model, of_gate, chosen, weights = gated.gradients(batch)  # line 6
                if both:
                    model.step(of_model, lr, gated.blocks.spread(chosen.float()) if moves else None)
                gate.step(of_gate, lr * self.lr_gate / self.lr)  # line 7
                kept_blocks.append(chosen)
                scales.append(weights)
        theta, phi = gated.taken()
        moving = (model.velocity, gate.velocity) if kept else (None, None)
        if not scales:
            return Client(client.keep, phi, *moving, client.kept), theta, torch.zeros_like(gated.blocks.first)
        each, share = torch.stack(kept_blocks), gated.blocks.share
        sent = each.any(0)
        used = levels(torch.stack(scales), each)
        return Client(client.keep, phi, *moving, fmean(map(share, each)), share(sent), used), theta, sent

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:
        blocks = self.gated(budgets.share(self.keep, k, ctx.common), ctx).blocks
        sent = message.part("blocks", Bits).mask
        if len(sent) != len(blocks):
            raise WireError(f"flags of {len(sent)} blocks, not of {len(blocks)}")
        mask = blocks.spread(sent, ctx.layout.dim)
        return message.floats("theta", int(mask.count_nonzero())), mask, message.whole("samples", 1)

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:
        some, every = OverlapMean(ctx.layout.dim), Mean(ctx.layout.dim)
        for _, (values, mask, samples) in inbox:  # line 11: a mean of trained weights is theta and the mean update
            if self.aggregation == "senders":
                some.add(values, mask, samples)
            else:
                every.add(replaced(server, mask, values), samples)
        return (some if self.aggregation == "senders" else every).value(otherwise=server)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Model:
        theta = inbox["server"]["theta"].values
        return partial(self.gated(client.keep, ctx, data).logits, theta, client.gate)

    def module(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> nn.Module:
        x, _ = data.train.at(torch.arange(len(data)))  # blocks are chosen once, by what the client has seen
        return gated_module(self.gated(client.keep, ctx, data), inbox["server"]["theta"].values, client.gate, x)

    def notes(self, client: Client, ctx: Ctx) -> dict[str, float]:
        if not client.levels.any():
            return {"sent": client.sent}  # no step was made, so nothing is known of what it keeps
        told = {f"gate weights: {level}": share for level, share in zip(LEVELS, client.levels.tolist(), strict=True)}
        return {"sparsity": 1 - client.kept, "sent": client.sent, **told}

    def learnt(self, client: Client, k: int, ctx: Ctx) -> Vector:
        return (client.gate - self.join(k, ctx).gate)[: self.gated(client.keep, ctx).gate.layout.params]

    def shared(self, server: Vector) -> Vector:
        return server
