"""A bound of the objective, and the relaxed problem that gives it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sparsona.methods.perfedmask.problem import Floats, Ints, Problem
from sparsona.methods.perfedmask.subset_sum import is_exact


def bound(problem: Problem) -> float:
    """A number that no objective is below.

    Only how much of the model is covered how often is decided here, as if layers could be cut anywhere. A device of
    size z has a share of at least 1 over the coverage Q(z) of the z entries that are covered most, and sizes sum up to
    what is covered. That sum is priced at mu an entry (Lagrange), which leaves a problem that dynamic programming over
    sizes and coverages solves; every mu gives a bound, and the best is sought.
    """
    reach = reach_of(problem)
    lost = sum(problem.budgets) - int(reach.sum())
    relaxed = relaxed_problem(problem, reach)
    return float(lost) if relaxed is None else problem.body * relaxed.best()[0] + lost


def reach_of(problem: Problem) -> Ints:
    """What each device can train at most."""
    if is_exact(problem.sizes):
        return problem.fullest @ problem.layer_sizes
    reach = np.array(problem.budgets)
    reach[problem.idle] = 0
    return reach


def fits_of(problem: Problem) -> Ints:
    """How many devices could train each layer."""
    return len(problem.budgets) - np.searchsorted(np.sort(problem.budgets), problem.layer_sizes)


def relaxed_problem(problem: Problem, reach: Ints) -> RelaxedProblem | None:
    """The relaxed problem, or None if nobody can train anything."""
    able = int((reach > 0).sum())
    if not able:
        return None
    fit = fits_of(problem)
    room = np.array([problem.layer_sizes[fit >= q].sum() for q in range(1, able + 1)])
    # a coverage may also end where the layers end that can be covered so often: classes of nobody
    sizes = np.unique(np.concatenate([reach[reach > 0], room[room > 0]]))
    counts = (reach[:, None] == sizes).sum(0).astype(np.float64)
    return RelaxedProblem(sizes / problem.body, counts, room / problem.body, problem.allow_idle)


@dataclass(frozen=True)
class RelaxedProblem:
    """The relaxed problem, in shares of the body."""

    sizes: Floats  # [classes] different sizes, ascending
    counts: Floats  # [classes] devices of each, or none
    room: Floats  # [coverages] how much of the model can be covered at least 1, 2, ... times
    allow_idle: bool

    def best(self) -> tuple[float, list[tuple[int, int]]]:
        """The best bound over mu, with the classes that set their own coverage, and these, by size."""
        low, high, golden = math.log(1e-5), math.log(2.0), (5**0.5 - 1) / 2
        bounds = [self.at(0.0)]
        for _ in range(20):  # the value is concave in mu
            a, b = high - golden * (high - low), low + golden * (high - low)
            bounds += [self.at(math.exp(a)), self.at(math.exp(b))]
            low, high = (low, b) if bounds[-2][0] > bounds[-1][0] else (a, high)
        return max(bounds, key=lambda each: each[0])

    def at(self, mu: float) -> tuple[float, list[tuple[int, int]]]:
        """The least of the objective and mu times what coverage exceeds sizes by."""
        devices = len(self.room)
        q = np.arange(1, devices + 1)
        ends = np.concatenate([[0.0], self.sizes])  # class t is [t + 1]; 0 is for what trains next to nothing
        # cost of a device that trains what class t trains, at coverage q; sizes are paid back at 1 + mu
        each = 1 / q - (1 + mu) * ends[:, None]  # [classes + 1, coverages]
        each[0] = 0.0 if self.allow_idle else 1 / devices
        upto = np.cumsum(np.concatenate([[0.0], self.counts]))
        cost = np.full((len(ends), devices), np.inf)
        cost[0, -1] = 0.0

        def before(t: int) -> Floats:  # devices after a class and before this one do as that class
            return cost[:t] + (upto[t - 1] - upto[:t, None]) * each[:t]

        def step(t: int) -> Floats:
            falling = np.minimum.accumulate(before(t)[:, ::-1], axis=1)[:, ::-1]  # coverage falls with size
            return falling + mu * q * (ends[t] - ends[:t, None])

        for t in range(1, len(ends)):
            fits = self.room >= ends[t] - 1e-12
            cost[t] = np.where(fits, step(t).min(0) + self.counts[t - 1] * each[t], np.inf)
        after = cost + (upto[-1] - upto[:, None]) * each
        after += (1 - self.room[0]) + np.maximum(self.room[0] - ends[:, None], 0) * min(1.0, mu)
        t, i = divmod(int(after.argmin()), devices)
        profile = []
        while t:
            profile.append((t - 1, i + 1))
            last = int(step(t)[:, i].argmin())
            t, i = last, i + int(before(t)[last, i:].argmin())
        return float(after.min() + (self.counts * self.sizes).sum() - 1), profile[::-1]
