"""The paper's own way to layer masks: successive convex approximation, rounded and repaired to feasibility.

Masks are relaxed to [0, 1], shares are bounded from both sides by convex constraints around the last iterate, and a
penalty, which rises from step to step, drives masks to 0 or 1. Needs cvxpy and Clarabel:
``pip install 'sparsona[sca]'``.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import numpy as np

from sparsona.methods.perfedmask.baselines import random_best_of, repaired, sequential
from sparsona.methods.perfedmask.problem import Floats, Layers, Problem, objective

_FIRST, _LAST = 1e-5, 0.1  # the penalty's, in units of the body
_SOFT = 0.6  # how far the second start is from the first towards what all layers could have alike


def sca(problem: Problem, rng: np.random.Generator, *, draws: int = 999, steps: int = 100) -> Layers:
    """Masks by successive convex approximation, from the best of sequential and some random ones."""
    firsts = (repaired(problem, sequential(problem)), repaired(problem, random_best_of(problem, rng, draws)))
    return improved(problem, min(firsts, key=lambda masks: float(objective(problem, masks))), steps)


def improved(problem: Problem, start: Layers, steps: int = 100) -> Layers:
    """The best of all masks on the way from these, by successive convex approximation; never worse ones.

    The penalty rises from next to nothing: at the paper's 100 no mask that is 0 or 1 ever leaves its place, since the
    way to another leads between them.
    """
    try:
        with _quiet():  # cvxpy warns of each solver that it cannot load; only Clarabel is needed
            with suppress(ImportError):  # it loads HiGHS, and so does OR-tools, which fails unless it comes first
                importlib.import_module("ortools.sat.python.cp_model")
            import cvxpy as cp
    except ImportError as error:
        fix = "pip install 'sparsona[sca]', or set solver to \"optimised\""
        raise ValueError(f'solver: "sca" needs cvxpy and Clarabel, which are not installed: {fix}') from error
    devices, layers = start.shape
    sizes, room = problem.layer_sizes / problem.body, np.array(problem.budgets) / problem.body
    must = np.array([float(not problem.allow_idle and n not in problem.idle) for n in range(devices)])
    m, k = cp.Variable((devices, layers)), cp.Variable((devices, layers))
    slack, over = cp.Variable(devices), cp.Variable()
    penalty = cp.Parameter(nonneg=True)
    m0, k0 = cp.Parameter((devices, layers)), cp.Parameter((devices, layers))
    total0, square0 = cp.Parameter((devices, layers)), cp.Parameter((devices, layers))
    total = np.ones((devices, devices)) @ m  # how often each layer is covered, in every row
    wide = cp.vstack([2 * cp.vec(m, order="C"), cp.vec(k - total, order="C")])
    product = cp.square(k + total) / 2 - cp.multiply(k0, k) - cp.multiply(total0, total) + square0
    constraints = [
        m @ sizes == room - slack,
        slack >= 0,
        m >= 0,
        m <= 1,
        k >= 0,
        over >= 0,
        cp.sum(m, axis=1) >= must,
        cp.SOC(cp.vec(k + total, order="C"), wide, axis=0),  # k >= m^2 / total, (32)
        product <= m,  # k total <= m, with the squares that are taken away made linear, (34)
        cp.sum(m) - 2 * cp.sum(cp.multiply(m0, m)) + cp.sum(cp.square(m0)) <= over,  # m is 0 or 1, (35a)
    ]
    goal = cp.sum(cp.max(k, axis=1)) - cp.sum(k @ sizes) + cp.sum(slack) + penalty * cp.square(over)
    task = cp.Problem(cp.Minimize(goal), constraints)
    best = start
    for soft in (0.0, _SOFT):  # masks of 0 and 1 leave little room around them, so that a second way begins inside
        now = (1 - soft) * start + soft * room[:, None]
        for each in np.geomspace(_FIRST, _LAST, steps):
            penalty.value = float(each)
            covered = np.tile(now.sum(0), (devices, 1))
            m0.value, total0.value = now, covered
            k0.value = np.divide(now, covered, out=np.zeros_like(now), where=covered > 0)
            square0.value = (k0.value**2 + covered**2) / 2
            try:
                with _quiet():  # what is inaccurate is repaired, and compared by what it is worth
                    task.solve(solver=cp.CLARABEL)
            except cp.SolverError:
                break
            if m.value is None:
                break
            moved, now = float(np.abs(m.value - now).max()), np.clip(m.value, 0, 1)
            for candidate in (repaired(problem, now >= 0.5), _packed(problem, now)):
                best = min((best, candidate), key=lambda masks: float(objective(problem, masks)))
            if moved <= 1e-3 and bool((np.minimum(now, 1 - now) <= 1e-2).all()):
                break
    return best


@contextmanager
def _quiet() -> Iterator[None]:
    """Neither warnings nor log lines within the block."""
    before = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def _packed(problem: Problem, shares: Floats) -> Layers:
    """For each device its layers by falling share, each taken that fits."""
    masks = np.zeros(shares.shape, dtype=bool)
    for n, left in enumerate(problem.budgets):
        for j in np.argsort(-shares[n], kind="stable"):
            if problem.sizes[j] <= left:
                masks[n, j] = True
                left -= problem.sizes[j]
    return masks
