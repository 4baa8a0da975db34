"""How good layer masks are, and how long their design takes: ``python benchmarks/masks.py``."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from common import Figure, main
from sparsona.core.rng import Rng
from sparsona.methods.perfedmask.baselines import random_best_of
from sparsona.methods.perfedmask.local_search import optimised
from sparsona.methods.perfedmask.problem import Problem, objective

MODELS = {
    "MobileNet": (928, 2528, 9152, 18048, 34688, 68864, 134912, *(268800,) * 5, 531968, 1061888),
    "PreResNet18": (1728, 73984, 73984, 229760, 295424, 918272, 1180672, 3671552, 4720640, 1024),
    "AlexNet": (23424, 307776, 664704, 885504, 590592, 37761024, 16789504),
}


def different(devices: int = 100, layers: int = 60, seed: int = 1) -> Problem:
    """Devices that all have another budget, from 0.3 of the body to all of it; sizes of layers over two decades."""
    draw = np.random.default_rng(seed)
    sizes = np.exp(draw.normal(9, 1.5, layers)).astype(int) + 1
    budgets = (draw.uniform(0.3, 1, devices) * sizes.sum()).astype(int)
    return Problem(tuple(map(int, sizes)), tuple(map(int, budgets)))


def even(devices: int = 100, layers: int = 60, seed: int = 0) -> Problem:
    """Devices that all have another budget, from 0.4 of the body to all of it; sizes of layers drawn evenly.

    The best of 200 random masks is between 0.73 and 0.79 of the body, by the draw: an easier kind than ``different``.
    """
    draw = np.random.default_rng(seed)
    sizes = draw.integers(1_000, 1_000_000, layers)
    budgets = (draw.uniform(0.4, 1, devices) * sizes.sum()).astype(int)
    return Problem(tuple(map(int, sizes)), tuple(map(int, budgets)))


def figures() -> Iterator[Figure]:
    """Everything measured here."""
    for kind, problem in (("", different()), (" of even sizes", even())):
        began = time.process_time()
        found = optimised(problem, Rng(1).numpy())
        spent = time.process_time() - began
        drawn = float(objective(problem, random_best_of(problem, Rng(1).numpy(), 200)))
        name = f"masks: 100 different devices, 60 layers{kind}"
        yield Figure(f"{name}, objective over d_w", found.objective / problem.body, "x", 0.66, "lower")
        yield Figure(f"{name}, objective over the best of 200 random", found.objective / drawn, "x", 0.87, "lower")
        yield Figure(f"{name}, gap to the bound", 100 * found.gap, "%", 10, "lower")
        yield Figure(f"{name}, time", spent, "s", 20, "lower")
    for model, sizes in MODELS.items():
        body = sum(sizes)
        began = time.process_time()
        found = optimised(Problem(sizes, (body // 8,) * 50 + (body,) * 50), Rng(1).numpy())
        spent = time.process_time() - began if found.proven else float("inf")
        yield Figure(f"masks: {model}, 100 devices, time to a proven optimum", spent, "s", 10, "lower")


if __name__ == "__main__":
    main(figures)
