"""PerFedMask (Setayesh et al., 2023): weak devices freeze layers, chosen once so that training is biased least.

The head stays as it was drawn (FedBABU). Of the body each device trains whole layers, within its budget of parameters;
which ones, an optimiser decides before the first round. The server averages each entry over the participants that
train it. At the end each device tunes the whole model for itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sparsona.core import budgets
from sparsona.core.aggregate import OverlapMean
from sparsona.core.budgets import Shares
from sparsona.core.fields import Count, Fraction, NonNegative, Share
from sparsona.core.layout import Layout
from sparsona.core.rng import Rng
from sparsona.core.training import Ctx, train_on
from sparsona.core.wire import Bits, Message, Values, WireError
from sparsona.method import Client, Inbox, LocalData, Mask, Vector
from sparsona.methods.fedbabu import FedBABU
from sparsona.solvers.cpsat import refined
from sparsona.solvers.lighter import lightened
from sparsona.solvers.masks import Problem, Solution, solve

Answer = tuple[Vector, Mask, int]  # trained values, where they belong, and the samples they were trained on


@dataclass(frozen=True)
class Server:
    theta: Vector
    layers: Tensor  # [devices, layers] bool: who trains what


@dataclass(frozen=True, kw_only=True)
class PerFedMask(FedBABU):
    """Layer masks within budgets, designed once; a common random head; tuning at the end."""

    strong: Share = 0.5  # nu: the share of devices that train everything, the last ones; a list of budgets is for all
    budget: Shares = 0.125  # of the others: share of the body that each may train, or one per client, or drawn
    solver: Literal["optimised", "sca", "sequential", "random", "random_best_of"] = "optimised"  # who designs the masks
    draws: Count = 1000  # random_best_of: random masks to choose from; sca: those it starts from
    allow_idle: bool = False  # a device may train nothing where that is better
    refine: NonNegative = 0.0  # seconds, by its own deterministic clock, that CP-SAT improves the masks; 0: none
    spare: Fraction = 0.0  # share of its budget that a weak device may give up to make its steps cheaper
    freeze_head: bool = True  # false: the head is one more layer that is trained or frozen

    def start(self, fleet: int, ctx: Ctx) -> Server:  # type: ignore[override]
        if self.freeze_head:
            super().start(fleet, ctx)
        return Server(ctx.theta0, torch.from_numpy(self.design(fleet, ctx.layout, ctx.common).masks))

    def design(self, fleet: int, layout: Layout, common: Rng) -> Solution:
        """The layer masks of a fleet."""
        sizes = self.layers(layout)
        if not sizes:
            raise ValueError("freeze_head: the model is all head, so that nothing is left to train; false is needed")
        budgets.least("budget", self.budget, fleet)
        weak = fleet if isinstance(self.budget, tuple) else self.weak_of(fleet)
        shares = [budgets.share(self.budget, k, common) if k < weak else 1.0 for k in range(fleet)]
        problem = Problem(sizes, tuple(round(share * sum(sizes)) for share in shares), self.allow_idle)
        found = _designed(problem, self.solver, self.draws, self.refine, common("layer masks"))
        _warn_of_idle(found, self.solver)
        cheap = self.spare > 0 or self.solver == "optimised"  # of equally good masks those whose steps cost least
        return replace(found, masks=lightened(problem, found.masks, self.spare)) if cheap else found

    def weak_of(self, fleet: int) -> int:
        """How many of a fleet are weak: the first ones."""
        return fleet - round(self.strong * fleet)

    def layers(self, layout: Layout) -> tuple[int, ...]:
        """Sizes of the layers that masks are made of."""
        head = () if self.freeze_head else (int(torch.count_nonzero(layout.head)),)
        return tuple(n for n in (*layout.groups, *head) if n)

    def body(self, layout: Layout) -> Mask:
        return ~layout.head if self.freeze_head else torch.ones(layout.dim, dtype=torch.bool)

    def moving(self, layout: Layout, layers: Mask) -> Mask:
        """What a device with these layers trains; running statistics go with any of them."""
        if len(layers) != len(self.layers(layout)):
            raise WireError(f"a mask of {len(layers)} layers does not fit a model of {len(self.layers(layout))}")
        move = layout.grouped(layers.tolist()) | (layout.select("buffer") & bool(layers.any()))
        return move if self.freeze_head or not layers[-1] else move | layout.head

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:  # type: ignore[override]
        body = Values.of(server.theta, self.body(ctx.layout))
        return Message(theta=body, layers=self.told_layers(server, k), **self.pace(k))

    def told_layers(self, server: Server, k: int) -> Bits:
        """What device k is told to train: its mask, or all layers if it has come after masks were designed."""
        return Bits(server.layers[k] if k < len(server.layers) else torch.ones_like(server.layers[0]))

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        move = self.moving(ctx.layout, inbox["server"].part("layers", Bits).mask)
        theta = self.personal(client, inbox, data, ctx)
        theta, client = train_on(self.paced(inbox), theta, data.train, ctx, client, move=move)
        return client, Message(theta=Values.of(theta, move), samples=len(data)), theta

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> Answer:  # type: ignore[override]
        move = self.moving(ctx.layout, server.layers[k])
        return message.floats("theta", int(torch.count_nonzero(move))), move, message.whole("samples", 1)

    def merge(self, server: Server, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Server:  # type: ignore[override]
        mean = OverlapMean(ctx.layout.dim)
        for _, (values, move, samples) in inbox:
            mean.add(values, move, samples if self.weighting == "samples" else 1)
        return Server(mean.value(otherwise=server.theta), server.layers)

    def shared(self, server: Server) -> Vector:  # type: ignore[override]
        return server.theta

    def remarks(self, server: Server, k: int) -> dict[str, float]:
        return {"layers": float(server.layers[k].sum())}


@lru_cache(maxsize=8)  # a run asks more than once
def _designed(problem: Problem, solver: str, draws: int, refine: float, key: Rng) -> Solution:
    found = solve(problem, solver, key.numpy(), draws=draws)
    return refined(found, refine) if refine else found


def _warn_of_idle(found: Solution, solver: str) -> None:
    """Name the devices that train nothing, unless they could and were free not to."""
    problem = found.problem
    could = [n for n in np.flatnonzero(~found.masks.any(1)).tolist() if n not in problem.idle]
    small = f"method.budget: below the smallest layer, {min(problem.sizes):,} parameters,"
    left = f'method.solver: "{solver}" finds no layer, though there is one,'
    for why, idle in ((small, problem.idle), (left, [] if problem.allow_idle else could)):
        if idle:
            few = ", ".join(map(str, idle[:5])) + (", ..." if len(idle) > 5 else "")
            told = f"{why} for {len(idle)} of {len(problem.budgets)} clients ({few}): they train nothing"
            warnings.warn(told, stacklevel=3)
    if never := np.flatnonzero(~found.masks.any(0)).tolist():
        places = ", ".join(map(str, never))
        told = (
            f"method.budget: layers {places} (from 0) are trained by nobody and keep their first values until the end"
        )
        warnings.warn(told, stacklevel=3)
