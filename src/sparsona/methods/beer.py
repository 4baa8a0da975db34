"""BEER (Zhao et al., 2022): decentralised learning with gradient tracking and compressed messages, on a fixed graph.

Everybody holds a model x, a surrogate h of it that the neighbours know, a tracker v of the fleet's gradient and a
surrogate g of that. Only the compressed steps of the surrogates travel. W mixes a client and its neighbours equally:

    x <- x + gamma (mean of h - h) - eta v        h <- h + C(x - h)
    v <- v + gamma (mean of g - g) + grad(x) - grad(x before)        g <- g + C(v - g)

As in the DA-DPFL paper's comparison, local epochs come before each exchange (``epochs``; ``tune = false`` is BEER as
published). It needs a graph that does not change, of neighbours that read each other: ring, full, edges, or mutual with
fixed = true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Interval

from sparsona.core.fields import Positive, PositiveShare
from sparsona.core.quantise import quantise
from sparsona.core.training import Ctx, Training, train
from sparsona.core.wire import Message
from sparsona.method import Inbox, LocalData, Topology, Vector, of_last_round


@dataclass(frozen=True)
class Client:
    x: Vector
    v: Vector
    h: Vector  # what the others know of x
    g: Vector  # and of v
    heard_h: Vector  # the mean of the h of the neighbours and its own
    heard_g: Vector
    gradient: Vector  # at x


@dataclass(frozen=True, kw_only=True)
class Beer(Training):
    """Compressed gradient tracking among peers."""

    gamma: PositiveShare = 0.01  # how far to go towards the neighbours
    step: Positive = 0.05  # eta, along the tracked gradient
    bits: Annotated[int, Interval(ge=1, le=8)] = 8  # of each entry's level, besides its sign
    tune: bool = True  # local epochs before each exchange

    def suits(self, topology: Topology) -> None:
        if topology.name == "random" or topology.directed:
            raise ValueError('name: neighbours do not read each other; BEER needs "mutual", "ring", "full" or "edges"')
        if topology.name in ("mutual", "groups") and not topology.fixed:
            raise ValueError("fixed: false; BEER needs a graph that does not change, fixed = true")
        if topology.max_wait or topology.absent:
            field = "max_wait" if topology.max_wait else "absent"
            raise ValueError(f"{field}: not 0; BEER needs everybody's step of every round, each once")

    def check(self, fleet: int, ctx: Ctx) -> None:
        return None

    def join(self, k: int, ctx: Ctx) -> Client | None:
        return None  # all begin alike: the common model, known to all, and nothing tracked

    def post(self, client: Client | None, ctx: Ctx) -> Message:
        return Message()

    def local(self, client: Client | None, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        batch = data.train.batch(ctx.rng("gradient"), self.batch)
        if client is None:
            x, zero = ctx.theta0, torch.zeros_like(ctx.theta0)
            gradient = ctx.task.grad(x, batch)
            client = Client(x, gradient, x, zero, x, zero, gradient)
        heard_h, heard_g = self.mixed(inbox, client.heard_h, "h", ctx), self.mixed(inbox, client.heard_g, "g", ctx)
        x = train(self, client.x, data.train, ctx) if self.tune else client.x
        x = x + self.gamma * (heard_h - client.h) - self.step * client.v
        gradient = ctx.task.grad(x, batch)
        v = client.v + self.gamma * (heard_g - client.g) + gradient - client.gradient
        step_h = quantise(x - client.h, self.bits, ctx.rng("h"))
        step_g = quantise(v - client.g, self.bits, ctx.rng("g"))
        h, g = client.h + step_h.values, client.g + step_g.values
        return Client(x, v, h, g, heard_h, heard_g, gradient), Message(h=step_h, g=step_g, round=ctx.t), x

    def mixed(self, inbox: Inbox, known: Vector, part: str, ctx: Ctx) -> Vector:
        """The mean of surrogates, from what was known and the steps since then, one's own among them."""
        steps = [inbox[j][part].values for j in of_last_round(inbox, ctx) if part in inbox[j]]
        return known + torch.stack(steps).sum(0) / len(inbox.keys() - {"all"}) if steps else known

    def personal(self, client: Client | None, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        return ctx.theta0 if client is None else client.x
