"""Layer masks: the fields that they are designed by, and what PerFedMask and its combinations do with them."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from fractions import Fraction as Ratio
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Doc

from sparsona.core import budgets
from sparsona.core.budgets import Shares
from sparsona.core.fields import Count, Fraction, NonNegative, Share
from sparsona.core.layout import Layout, Mask, Vector
from sparsona.core.rng import Rng
from sparsona.core.star import FineTuning, WeakClients, Weighting
from sparsona.core.training import Ctx, MaskedClip, SgdTraining
from sparsona.core.wire import Bits, WireError
from sparsona.method import Report
from sparsona.methods.fedbabu import needs_head
from sparsona.methods.perfedmask.cpsat import refined
from sparsona.methods.perfedmask.lighter import lightened
from sparsona.methods.perfedmask.problem import Problem, Solution
from sparsona.methods.perfedmask.solver import solve

Sizes = tuple[int, ...]  # parameters of the layers that masks are made of


@dataclass(frozen=True)
class Server:
    """What the server keeps between rounds."""

    theta: Vector
    layers: Tensor  # [devices, layers] bool: who trains what


@dataclass(frozen=True, kw_only=True)
class LayerMasks(FineTuning, WeakClients, Weighting, MaskedClip, SgdTraining):
    """Budgets of weak devices and the layer masks designed within them."""

    strong: Annotated[
        Share, Doc("fraction of clients that train all layers, the last ones (nu); unused if budget is a list")
    ] = 0.5
    budget: Annotated[
        Shares,
        Doc(
            "fraction of the body a weak client may train: a number, one per client, {low, high}, or {values, weights}"
        ),
    ] = 0.125
    solver: Annotated[
        Literal["optimised", "sca", "sequential", "random", "random_best_of"],
        Doc("algorithm that designs the layer masks"),
    ] = "optimised"
    draws: Annotated[Count, Doc("random_best_of: number of random masks to choose from; sca: number to start from")] = (
        1000
    )
    allow_idle: Annotated[bool, Doc("allow masks in which a client trains no layer")] = False
    refine: Annotated[
        NonNegative, Doc("refinement of the masks by CP-SAT, in seconds of its deterministic time; 0: none")
    ] = 0.0
    spare: Annotated[
        Fraction, Doc("fraction of its budget that a weak client may leave unused for cheaper training steps")
    ] = 0.0
    freeze_head: Annotated[bool, Doc("freeze the head until fine-tuning; false: treat it as one more layer")] = True

    def layers(self, layout: Layout) -> Sizes:
        """Sizes of the layers that masks are made of."""
        head = () if self.freeze_head else (int(torch.count_nonzero(layout.head)),)
        return tuple(n for n in (*layout.groups, *head) if n)

    def weak_of(self, clients: int) -> int:
        """How many of so many clients are weak: the first ones."""
        return clients - round(self.strong * clients)

    def design(self, clients: int, layout: Layout, common: Rng) -> Solution:
        """The layer masks of so many clients."""
        sizes = self.layers(layout)
        if not sizes:
            raise ValueError("freeze_head: true is not allowed; expected false, as the model consists of its head only")
        budgets.least("budget", self.budget, clients)
        weak = clients if isinstance(self.budget, tuple) else self.weak_of(clients)
        shares = [budgets.share(self.budget, k, common) if k < weak else 1.0 for k in range(clients)]
        problem = Problem(sizes, tuple(within(share, sum(sizes)) for share in shares), self.allow_idle)
        solution = _solved(problem, self.solver, self.draws, self.refine, common("layer masks"))
        _warn_of_idle(solution, self.solver)
        cheap = self.spare > 0 or self.solver == "optimised"  # of equally good masks those whose steps cost least
        return replace(solution, masks=lightened(problem, solution.masks, self.spare)) if cheap else solution

    def body(self, layout: Layout) -> Mask:
        """What is federated."""
        return ~layout.head if self.freeze_head else torch.ones(layout.dim, dtype=torch.bool, device=layout.device)

    def moving(self, layout: Layout, layers: Mask) -> Mask:
        """What a device with these layers trains; running statistics go with any of them."""
        if len(layers) != len(self.layers(layout)):
            raise WireError(f"a mask of {len(layers)} layers does not fit a model of {len(self.layers(layout))}")
        move = layout.grouped(layers.tolist()) | (layout.select("buffer") & bool(layers.any()))
        return move if self.freeze_head or not layers[-1] else move | layout.head

    def tuning(self, layout: Layout, layers: Mask) -> Mask:
        """What a newcomer with these layers tunes: they, and the head where all clients tune it at the end."""
        return self.moving(layout, layers) | layout.head if self.freeze_head else self.moving(layout, layers)


def within(share: float, body: int) -> int:
    """The most parameters that do not exceed a share of the body; 0.29 of 100 is 29, though 0.29 * 100 is below."""
    return math.floor(Ratio(str(float(share))) * body)


def first_layers(layer_masks: LayerMasks, clients: int, ctx: Ctx) -> Tensor:
    """Who trains which layers [devices, layers]; ValueError if there is no head to freeze."""
    if layer_masks.freeze_head:
        needs_head(ctx.layout)
    return torch.from_numpy(layer_masks.design(clients, ctx.layout, ctx.common).masks)


def layers_for(server: Server, k: int) -> Bits:
    """The layers that device k trains: its mask, or all layers if it joined after masks were designed."""
    return Bits(server.layers[k] if k < len(server.layers) else torch.ones_like(server.layers[0]))


@lru_cache(maxsize=8)  # a run asks more than once
def _solved(problem: Problem, solver: str, draws: int, refine: float, key: Rng) -> Solution:
    solution = solve(problem, solver, key.numpy(), draws=draws)
    return refined(solution, refine) if refine else solution


def _warn_of_idle(solution: Solution, solver: str) -> None:
    """Name the devices that train nothing, unless they could and were free not to."""
    problem = solution.problem
    could = [n for n in np.flatnonzero(~solution.masks.any(1)).tolist() if n not in problem.idle]
    small = f"method.budget: smaller than the smallest layer, {min(problem.sizes):,} parameters,"
    left = f'method.solver: "{solver}" selects no layer, although one fits,'
    for why, idle in ((small, problem.idle), (left, [] if problem.allow_idle else could)):
        if idle:
            few = ", ".join(map(str, idle[:5])) + (", ..." if len(idle) > 5 else "")
            text = f"{why} for {len(idle)} of {len(problem.budgets)} clients ({few}), which train nothing"
            warnings.warn(text, stacklevel=3)
    if never := np.flatnonzero(~solution.masks.any(0)).tolist():
        places = ", ".join(map(str, never))
        text = f"method.budget: no client trains layers {places} (counted from 0); they keep their initial values"
        warnings.warn(text, stacklevel=3)


def report_layers(server: Server | None, k: int) -> Report:
    """How many layers device k trains, as far as the server knows."""
    return Report() if server is None else Report({"layers": float(server.layers[k].sum())})
