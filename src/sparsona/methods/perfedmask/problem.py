"""Which layers each device trains, within its budget, so that training is biased least (PerFedMask's P_mask).

A set of layer masks is an array of bools [devices, layers]. With c_j devices training layer j, a device's share of an
entry of that layer is 1/c_j, and its largest share gamma_n is 1 over the smallest coverage among its layers. The bias
is the sum over devices of d_w gamma_n less the layers that anybody trains; the objective adds the slack, which is what
devices leave of their budgets.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sparsona.methods.perfedmask.subset_sum import fullest

Layers = NDArray[np.bool_]  # [devices, layers], or more dimensions before these for several sets at once
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """Layers of these sizes, devices of these budgets; every device that can trains something, unless it may idle."""

    sizes: tuple[int, ...]
    budgets: tuple[int, ...]
    allow_idle: bool = False

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(
                f"sizes: {list(self.sizes)} is not allowed; expected at least one layer, each with at least 1 parameter"
            )
        if not self.budgets or min(self.budgets) < 0:
            raise ValueError(
                f"budgets: {list(self.budgets)} is not allowed; expected at least one device, each with a budget >= 0"
            )
        if max(self.budgets) > self.body:
            raise ValueError(
                f"budgets: {max(self.budgets):,} is not allowed; expected an int <= {self.body:,}, "
                "the parameters of the body"
            )

    @cached_property
    def body(self) -> int:
        """Parameters of all layers, d_w."""
        return sum(self.sizes)

    @cached_property
    def layer_sizes(self) -> Ints:
        """The sizes as an array."""
        return np.array(self.sizes, dtype=np.int64)

    @cached_property
    def idle(self) -> list[int]:
        """The devices that can train no layer at all."""
        return [n for n, budget in enumerate(self.budgets) if budget < min(self.sizes)]

    @cached_property
    def fullest(self) -> Layers:
        """For each device a subset of layers that leaves least of its budget: exactly so where ``fullest`` is exact."""
        rows = {budget: fullest(self.layer_sizes, budget) for budget in set(self.budgets)}
        return np.array([rows[budget] for budget in self.budgets])

    def feasible(self, masks: Layers) -> bool:
        """Whether no budget is exceeded, and every device trains something if it can and must."""
        used = masks @ self.layer_sizes
        must = np.array([n not in self.idle and not self.allow_idle for n in range(len(self.budgets))])
        return bool((used <= self.budgets).all() and (masks.any(1) | ~must).all())


@dataclass(frozen=True)
class Solution:
    """Layer masks with what they are worth, and a bound that no masks can go below."""

    problem: Problem
    masks: Layers
    bound: float  # of the objective

    @property
    def trained(self) -> list[int]:
        """Parameters that each device trains."""
        return [int(n) for n in self.masks @ self.problem.layer_sizes]

    @property
    def slack(self) -> list[int]:
        """What each device leaves of its budget."""
        return [budget - used for budget, used in zip(self.problem.budgets, self.trained, strict=True)]

    @property
    def bias(self) -> float:
        """The bias of the masks."""
        return float(bias(self.problem, self.masks))

    @property
    def objective(self) -> float:
        """Bias and slack."""
        return float(objective(self.problem, self.masks))

    @property
    def gap(self) -> float | None:
        """The most by which other masks could be better, as a share of the objective; None if masks are not allowed.

        Masks by which an able device trains nothing may be below what allowed ones can reach.
        """
        if not self.problem.feasible(self.masks):
            return None
        over = self.objective - self.bound
        return 0.0 if over <= 1e-9 * self.problem.body else over / self.objective

    @property
    def proven(self) -> bool:
        """Whether no masks are better."""
        return self.gap == 0


def shares(masks: Layers) -> Floats:
    """Each device's largest share of an entry, gamma; 0 if it trains nothing."""
    covered = masks.sum(-2)[..., None, :]  # [..., 1, layers]
    least = np.where(masks, covered, np.iinfo(np.int64).max).min(-1)
    largest: Floats = np.where(masks.any(-1), 1 / least, 0.0)
    return largest


def bias(problem: Problem, masks: Layers) -> Floats:
    """The bias of layer masks, or of several sets at once."""
    total: Floats = problem.body * shares(masks).sum(-1) - masks.any(-2) @ problem.layer_sizes
    return total


def objective(problem: Problem, masks: Layers) -> Floats:
    """Bias and slack of layer masks, or of several sets at once."""
    return bias(problem, masks) + sum(problem.budgets) - (masks @ problem.layer_sizes).sum(-1)
