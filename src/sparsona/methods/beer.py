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

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Interval
from typing_extensions import Doc

from sparsona.core.arithmetic import precise
from sparsona.core.fields import Positive, PositiveShare
from sparsona.core.training import Ctx, Training, train
from sparsona.core.wire import Message, Quantised
from sparsona.method import Inbox, LocalData, Rng, Topology, Vector, of_last_round


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

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

    gamma: Annotated[PositiveShare, Doc("mixing step size towards the neighbours")] = 0.01
    step: Annotated[Positive, Doc("step size along the tracked gradient (eta in the paper)")] = 0.05
    bits: Annotated[Annotated[int, Interval(ge=1, le=8)], Doc("bits per quantised entry, plus one sign bit")] = 8
    tune: Annotated[bool, Doc("train locally before each exchange; false: BEER as published")] = True

    def check(self, clients: int, topology: Topology, ctx: Ctx | None) -> None:
        if topology.name == "random" or topology.directed:
            raise ValueError(
                f'topology.name: "{topology.name}" is not allowed; expected "mutual", "ring", "full" or undirected '
                '"edges", as BEER needs neighbours that read each other'
            )
        if topology.name in ("mutual", "groups") and not topology.fixed:
            raise ValueError("topology.fixed: false is not allowed; expected true, as BEER needs a constant graph")
        if topology.max_wait or topology.absent:
            field = "max_wait" if topology.max_wait else "absent"
            value, needs = getattr(topology, field), "BEER needs every client's step in every round"
            raise ValueError(f"topology.{field}: {value} is not allowed; expected 0, as {needs}")

    def join(self, k: int, ctx: Ctx) -> Client | None:
        return None  # all begin alike: the common model, known to all, and nothing tracked

    def post(self, client: Client | None, ctx: Ctx) -> Message:
        return Message()

    def local(self, client: Client | None, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        batch = data.train.batch(ctx.rng("gradient"), self.batch)
        if client is None:
            x, zero = ctx.theta0, torch.zeros_like(ctx.theta0)
            gradient = ctx.task.gradient_at(x, batch)
            client = Client(x, gradient, x, zero, x, zero, gradient)
        messages, of = [inbox[j] for j in of_last_round(inbox, ctx)], len(inbox.keys() - {"all"})
        heard_h, heard_g = mixed(client.heard_h, messages, "h", of), mixed(client.heard_g, messages, "g", of)
        x = train(self, client.x, data.train, ctx) if self.tune else client.x
        x = x + self.gamma * (heard_h - client.h) - self.step * client.v
        gradient = ctx.task.gradient_at(x, batch)
        v = client.v + self.gamma * (heard_g - client.g) + gradient - client.gradient
        step_h = quantise(x - client.h, self.bits, ctx.rng("h"))
        step_g = quantise(v - client.g, self.bits, ctx.rng("g"))
        h, g = client.h + step_h.values, client.g + step_g.values
        return Client(x, v, h, g, heard_h, heard_g, gradient), Message(h=step_h, g=step_g, round=ctx.t), x

    def personal(self, client: Client | None, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        return ctx.theta0 if client is None else client.x


def mixed(known: Vector, messages: list[Message], part: str, of: int) -> Vector:
    """The mean of so many surrogates, from the known value and the steps since then, the client's own included."""
    steps = [message[part].values for message in messages if part in message]
    return known + torch.stack(steps).sum(0) / of if steps else known


def quantise(x: Vector, bits: int, rng: Rng) -> Quantised:
    """Each entry as a sign and a level of ``bits`` bits, rounded at random so that the mean is right (QSGD, 2017).

    With s = 2 ** bits levels the entries become |x| sign(x_i) floor(s |x_i| / |x| + u) / (s tau), u uniform in [0, 1);
    tau = 1 + min(d / s^2, sqrt(d) / s) makes x - Q(x) shorter than x on average (Koloskova et al., 2019).
    """
    levels, d = 2**bits, x.numel()
    norm = float(precise(x).double().norm())
    if norm == 0 or not math.isfinite(norm):
        nothing = torch.zeros_like(x, dtype=torch.uint8)
        return Quantised(nothing.bool(), nothing, norm, bits)
    tau = 1 + min(d / levels**2, math.sqrt(d) / levels)
    steps = (x.abs() * (levels / norm) + rng.uniform(d, device=x.device)).floor().clamp_(max=levels - 1)
    return Quantised(x < 0, steps.to(torch.uint8), norm / (levels * tau), bits)
