"""pFedGate (Chen et al., 2023): a private gate on each client selects blocks of a shared model for every batch.

For every batch a client's gate predicts an importance G and a weight M for each block of the dense model. A knapsack
keeps the most important blocks that fit the client's budget, M scales them, and one backward pass trains model and
gate. What was never kept in a round is not sent; the server averages each block over those who sent it. Gates stay
where they are. Line numbers are those of the paper's Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Annotated, Literal

import torch
from torch import Tensor
from typing_extensions import Doc

from sparsona.core import budgets
from sparsona.core.aggregate import Mean, OverlapMean
from sparsona.core.budgets import Shares
from sparsona.core.fields import Positive
from sparsona.core.layout import replaced
from sparsona.core.optimiser import Steps, velocity
from sparsona.core.training import Ctx, batches_of, lr_at, sgd_of
from sparsona.core.wire import Bits, Message, Values, WireError
from sparsona.method import Inbox, LocalData, Mask, Report, Vector
from sparsona.methods.pfedgate.portable import GatedModel
from sparsona.methods.pfedgate.sparse_adaptation import LEVELS, Gating, levels

Answer = tuple[Vector, Mask, int]  # trained weights of the blocks sent, their mask, the number of samples


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

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

    clip: Annotated[Positive, Doc("maximum gradient norm, separately for the model and the gate")] = 10.0
    keep: Annotated[
        Shares, Doc("maximum fraction of weights kept (s): a number, one per client, {low, high}, or {values, weights}")
    ] = 0.5
    lr_gate: Annotated[Positive, Doc("learning rate of the gate in the first round")] = 0.1
    velocity: Annotated[
        Literal["client", "round"], Doc("momentum of model and gate: kept by the client, or reset every round")
    ] = "client"
    momentum_on: Annotated[
        Literal["kept", "all"],
        Doc("weights that momentum and weight decay move in a step: kept blocks, or all, as in the authors' code"),
    ] = "kept"
    aggregation: Annotated[
        Literal["senders", "dense"],
        Doc("average each block over the clients that sent it, or over all clients of the round"),
    ] = "senders"

    def start(self, clients: int, ctx: Ctx) -> Vector:
        least = budgets.least("keep", self.keep, clients)
        self.check_budget(least, ctx)
        return ctx.theta0

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values(server))

    def join(self, k: int, ctx: Ctx) -> Client:
        keep = budgets.share(self.keep, k, ctx.common)
        return Client(keep, self.first_gate(keep, ctx))

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, GatedModel]:
        new, theta, sent = self.trained(client, inbox["server"]["theta"].values, data, self.epochs, ctx)
        gated = self.gated(client.keep, ctx, data)
        values = Values.of(theta, gated.blocks.spread(sent.to(theta.device), ctx.layout.dim))
        return (
            new,
            Message(blocks=Bits(sent), theta=values, samples=len(data)),
            GatedModel(gated, theta, new.gate, data),
        )

    def welcome(
        self, client: Client, inbox: Inbox, data: LocalData, epochs: int, ctx: Ctx
    ) -> tuple[Client, GatedModel]:
        theta, begun = inbox["server"]["theta"].values, replace(ctx, t=0)  # a new gate learns as all gates began
        new, _, _ = self.trained(client, theta, data, epochs, begun, both=False)
        return new, GatedModel(self.gated(client.keep, ctx, data), theta, new.gate, data)

    def trained(
        self, client: Client, theta: Vector, data: LocalData, epochs: int, ctx: Ctx, *, both: bool = True
    ) -> tuple[Client, Vector, Mask]:
        """Gate and model, or only the gate, after training from theta; and the blocks kept at least once."""
        gated, lr = self.gated(client.keep, ctx, data), lr_at(self, ctx.t, ctx.rounds)
        gated.load(theta, client.gate, train=True)
        kept, moves = self.velocity == "client", self.momentum > 0 or self.weight_decay > 0  # without gradient, too
        free = moves and self.momentum_on == "all" and both  # then a step changes every block
        old = (client.model_velocity, client.gate_velocity) if kept else (None, None)
        model = Steps(sgd_of(self, lr, fused=True), gated.task.flat[: ctx.layout.params], state=old[0])
        gate_sgd = sgd_of(self, lr * self.lr_gate / self.lr, fused=True)
        gate = Steps(gate_sgd, gated.gate.flat[: gated.gate.layout.params], state=old[1])
        kept_blocks, scales = list[Mask](), list[Tensor]()
        batches = batches_of(self, data.train, ctx, epochs=epochs)
        with gated.task.training(batches):
            for batch in batches:
                if len(batch[1]) < 2:
                    continue  # one sample has no batch statistics
                of_model, of_gate, chosen, weights = gated.gradients(batch)  # line 6
                if both:
                    model.step(of_model, gated.blocks.spread(chosen.to(of_model.dtype)) if moves and not free else None)
                gate.step(of_gate)  # line 7
                kept_blocks.append(chosen)
                scales.append(weights)
        theta, phi = gated.taken()
        moving = (velocity(model), velocity(gate)) if kept else (None, None)
        if not scales:
            return Client(client.keep, phi, *moving, client.kept), theta, torch.zeros_like(gated.blocks.first)
        each, share = torch.stack(kept_blocks).cpu(), gated.blocks.share
        sent = torch.ones_like(gated.blocks.first) if free else each.any(0)
        used = levels(torch.stack(scales).cpu(), each)
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

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> GatedModel:
        theta = inbox["server"]["theta"].values
        return GatedModel(self.gated(client.keep, ctx, data), theta, client.gate, data)

    def report(self, client: Client | None, server: Vector | None, k: int, ctx: Ctx) -> Report:
        if client is None:
            return Report()
        trained = client.gate[: self.gated(client.keep, ctx).gate.layout.params]
        if not client.levels.any():
            return Report({"sent": client.sent}, trained)  # no step was made, so nothing is known of what it keeps
        used = {f"gate weights: {level}": share for level, share in zip(LEVELS, client.levels.tolist(), strict=True)}
        return Report({"sparsity": 1 - client.kept, "sent": client.sent, **used}, trained)

    def shared(self, server: Vector) -> Vector:
        return server
