"""Simple ways to layer masks, and how masks are made feasible."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sparsona.methods.perfedmask.problem import Ints, Layers, Problem, objective


def sequential(problem: Problem) -> Layers:
    """Layers in the order of the network, up to the first that does not fit."""
    return np.array([np.cumsum(problem.layer_sizes) <= budget for budget in problem.budgets])


def random(problem: Problem, rng: np.random.Generator) -> Layers:
    """For each device layers in random order, each taken that fits."""
    return np.array([_filled(problem.layer_sizes, budget, rng) for budget in problem.budgets])


def random_best_of(problem: Problem, rng: np.random.Generator, draws: int) -> Layers:
    """The best of some random masks."""
    return min((random(problem, rng) for _ in range(draws)), key=lambda masks: float(objective(problem, masks)))


def repaired(problem: Problem, masks: Layers) -> Layers:
    """Masks without the layers that exceed a budget, largest first; what must train but does not gets its fullest."""
    fixed = masks.copy()
    for n, budget in enumerate(problem.budgets):
        for j in np.argsort(-problem.layer_sizes, kind="stable"):
            if fixed[n] @ problem.layer_sizes <= budget:
                break
            fixed[n, j] = False
        if not fixed[n].any() and not problem.allow_idle:
            fixed[n] = problem.fullest[n]
    return fixed


def _filled(sizes: Ints, budget: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    taken = np.zeros(len(sizes), dtype=bool)
    for j in rng.permutation(len(sizes)):
        if sizes[j] <= budget:
            taken[j] = True
            budget -= int(sizes[j])
    return taken
