"""Layer masks by the name of a solver."""

from __future__ import annotations

import numpy as np

from sparsona.methods.perfedmask.baselines import random, random_best_of, sequential
from sparsona.methods.perfedmask.bound import bound
from sparsona.methods.perfedmask.local_search import optimised
from sparsona.methods.perfedmask.problem import Problem, Solution
from sparsona.methods.perfedmask.sca import sca

SOLVERS = ("optimised", "sca", "sequential", "random", "random_best_of")


def solve(
    problem: Problem, solver: str, rng: np.random.Generator, *, draws: int = 1000, effort: float = 1.0
) -> Solution:
    """Masks by the solver of this name; ``draws`` are those of ``random_best_of``."""
    match solver:
        case "optimised":
            return optimised(problem, rng, effort)
        case "sca":
            masks = sca(problem, rng, draws=draws)
        case "sequential":
            masks = sequential(problem)
        case "random":
            masks = random(problem, rng)
        case "random_best_of":
            masks = random_best_of(problem, rng, draws)
        case _:
            raise ValueError(f'solver: "{solver}" is not allowed; expected one of {", ".join(SOLVERS)}')
    return Solution(problem, masks, bound(problem))
