"""The best of all layer masks, where there are few."""

from __future__ import annotations

import itertools
import math

import numpy as np

from sparsona.methods.perfedmask.problem import Layers, Problem, objective

_MAX_ENTRIES = 3_000_000  # entries of masks that are looked at one by one, all of them


def enumerated(problem: Problem, most: int = _MAX_ENTRIES) -> Layers | None:
    """The best of all masks, or None if there are too many; devices of one budget are exchangeable."""
    layers = len(problem.sizes)
    if layers > 16:
        return None
    subsets = (np.arange(2**layers)[:, None] >> np.arange(layers)) & 1 == 1  # [subsets, layers]
    used = subsets @ problem.layer_sizes
    classes = {b: [n for n, budget in enumerate(problem.budgets) if budget == b] for b in set(problem.budgets)}
    choices, count = [], layers * len(problem.budgets)
    for budget, devices in classes.items():
        fits = np.flatnonzero((used <= budget) & ((used > 0) | problem.allow_idle))
        fits = fits if len(fits) else np.array([0])
        count *= math.comb(len(fits) + len(devices) - 1, len(devices))
        choices.append((fits, len(devices)))
    if count > most:
        return None
    order = np.argsort([n for devices in classes.values() for n in devices])
    ways = itertools.product(*(itertools.combinations_with_replacement(fits, size) for fits, size in choices))
    best, least = None, math.inf
    while part := list(itertools.islice(ways, 4096)):
        sets = subsets[np.array([[s for group in way for s in group] for way in part])]
        values = objective(problem, sets)
        values -= 1e-9 * (sets @ problem.layer_sizes).sum(-1)  # of equals, the one that trains more
        if values.min() < least:
            least, best = float(values.min()), sets[values.argmin()][order]
    return best
