"""The best layer masks of small problems, sought by coverage: how many devices train each layer.

Masks of one coverage train the same number of parameters, so they differ only in the shares of their devices. There are
far fewer coverages than masks, each has a lower bound, and dynamic programming finds the best masks of one.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from sparsona.methods.perfedmask.problem import Floats, Ints, Layers, Problem, Solution, objective

_MAX_LAYERS = 16
_MAX_COVERAGES = 1 << 21
_MAX_STEPS = 400_000_000  # additions, about a second; counted, so that no result depends on the clock


def best_by_coverage(start: Solution, most: int = _MAX_STEPS) -> Solution:
    """A solution that is no worse, and proven unless the steps run out; the same one if the problem is too large."""
    problem = start.problem
    if len(problem.sizes) > _MAX_LAYERS:
        return start
    options = _options(problem)
    limits = np.sum([rows.any(0) for rows in options], axis=0)  # how often each layer can be covered
    width = sum(map(len, options))
    if (coverages := prod(map(int, limits + 1))) > _MAX_COVERAGES or (left := most - coverages * width) < 0:
        return start
    reached = np.argwhere(np.isfinite(_tables(options, limits, lambda row: 0.0)[-1]))  # [coverages, layers]
    floors = _floors(problem, options, reached)
    masks, least, tolerance = start.masks, start.objective, 1e-9 * problem.body
    for i in np.argsort(floors, kind="stable"):
        if floors[i] >= least - tolerance:
            break
        if (left := left - prod(map(int, reached[i] + 1)) * width) < 0:
            return Solution(problem, masks, max(start.bound, float(floors[i])))
        candidate = _best_of(options, reached[i])
        if (value := float(objective(problem, candidate))) < least - tolerance:
            masks, least = candidate, value
    return Solution(problem, masks, least)


def _options(problem: Problem) -> list[Layers]:
    """The subsets of layers that each device may train."""
    layers = len(problem.sizes)
    every = (np.arange(2**layers)[:, None] >> np.arange(layers)) & 1 == 1
    used = every @ problem.layer_sizes
    fits = [every[(used <= budget) & ((used > 0) | problem.allow_idle)] for budget in problem.budgets]
    return [rows if len(rows) else every[:1] for rows in fits]


def _floors(problem: Problem, options: list[Layers], coverages: Ints) -> Floats:
    """A number for each coverage that no objective of its masks is below.

    Whoever trains a layer of coverage q has a share of at least 1/q. So have at least q devices, and as many as can
    hold all layers that are covered at most so often; no device that trains has less than 1 over the largest coverage.
    """
    order = np.argsort(coverages, axis=1, kind="stable")
    covered = np.take_along_axis(coverages, order, axis=1)
    trained = covered * problem.layer_sizes[order]
    reach = np.cumsum(sorted((int((rows @ problem.layer_sizes).max()) for rows in options), reverse=True))
    held = trained.cumsum(1)
    devices = np.maximum(covered, np.where(held > 0, np.searchsorted(reach, held) + 1, 0))
    must = sum(bool(rows.any(1).all()) for rows in options)
    devices = np.concatenate([devices, np.maximum(devices[:, -1:], must)], axis=1)
    each = 1 / np.maximum(np.concatenate([covered, covered[:, -1:]], axis=1), 1)
    shares = (np.diff(devices, axis=1, prepend=0) * each).sum(1)
    alive = (coverages > 0) @ problem.layer_sizes
    floors: Floats = problem.body * shares - alive + sum(problem.budgets) - trained.sum(1)
    return floors


def _best_of(options: list[Layers], coverage: Ints) -> Layers:
    """Masks of exactly this coverage, which some have, whose shares sum up to least."""

    def share(row: Layers) -> float:
        return 1 / int(coverage[row].min()) if row.any() else 0.0

    fitting = [rows[~rows[:, coverage == 0].any(1)] for rows in options]
    tables = _tables(fitting, coverage, share)
    masks, at = [], coverage
    for rows, table in zip(reversed(fitting), reversed(tables[:-1]), strict=True):
        below = [row for row in rows if (row <= at).all()]
        row = min(below, key=lambda row: float(table[tuple(at - row)]) + share(row))
        masks.append(row)
        at = at - row
    return np.array(masks[::-1])


def _tables(options: list[Layers], limits: Ints, cost: Callable[[Layers], float]) -> list[Floats]:
    """The least costs at which the first 0, 1, ... devices make each coverage within the limits; inf if they cannot."""
    table = np.full(limits + 1, np.inf)
    table[(0,) * len(limits)] = 0.0
    tables = [table]
    for rows in options:
        after = np.full_like(table, np.inf)
        for row in rows:
            to = after[tuple(slice(1, None) if on else slice(None) for on in row)]
            fro = table[tuple(slice(None, -1) if on else slice(None) for on in row)]
            np.minimum(to, fro + cost(row), out=to)
        tables.append(table := after)
    return tables
