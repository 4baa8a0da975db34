"""The best layer masks found: by enumeration where there are few, else by annealing, descent and coverage."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sparsona.methods.perfedmask.baselines import random, random_best_of, repaired, sequential
from sparsona.methods.perfedmask.bound import bound, fits_of, reach_of, relaxed_problem
from sparsona.methods.perfedmask.coverage import best_by_coverage
from sparsona.methods.perfedmask.enumeration import enumerated
from sparsona.methods.perfedmask.problem import Ints, Layers, Problem, Solution, objective
from sparsona.methods.perfedmask.subset_sum import fullest


def optimised(problem: Problem, rng: np.random.Generator, effort: float = 1.0) -> Solution:
    """The best masks found, and how good they may at most be: by enumeration where there are few, else by search.

    Of small problems the masks are the best there are. The search depends only on the generator and the effort, never
    on the clock.
    """
    if (best := enumerated(problem)) is not None:
        return Solution(problem, best, float(objective(problem, best)))
    solution = searched(problem, rng, effort)
    return solution if solution.proven else best_by_coverage(solution)


def searched(problem: Problem, rng: np.random.Generator, effort: float = 1.0) -> Solution:
    """The best masks that the search finds, for problems of any size."""
    floor = bound(problem)
    best = problem.fullest
    for start in _starts(problem, rng, effort):
        if objective(problem, start) < objective(problem, best):
            best = start
        if Solution(problem, best, floor).proven:
            return Solution(problem, best, floor)
    return Solution(problem, _with_fewer_layers(problem, best, rng), floor)


def _starts(problem: Problem, rng: np.random.Generator, effort: float) -> Iterator[Layers]:
    """Masks worth a look, better and better."""
    yield repaired(problem, sequential(problem))
    drawn = random_best_of(problem, rng, 50)
    yield drawn
    alike = [_alike(problem, least) for least in sorted(set(problem.budgets))[:: 1 + len(set(problem.budgets)) // 10]]
    yield from alike
    if problem.allow_idle:
        yield np.zeros_like(drawn)  # what nobody trains has no bias
        yield from (_idled(problem, masks) for masks in (problem.fullest, drawn, *alike))
    devices, layers = len(problem.budgets), len(problem.sizes)
    sweeps = max(10, int(effort * min(150, 30_000 / devices)))
    plans = list(_plans(problem))
    best = min((problem.fullest, drawn), key=lambda masks: float(objective(problem, masks)))
    for goal, allowed in plans:
        masks = _annealed(problem, _dealt(problem, goal, allowed), goal, allowed, rng, sweeps)
        masks = _idled(problem, masks) if problem.allow_idle else masks
        yield masks
        best = min((best, masks), key=lambda each: float(objective(problem, each)))
    if devices * devices * layers**3 <= 2e8 * effort:
        for start in (best, problem.fullest, drawn, *alike, *(random(problem, rng) for _ in range(int(20 * effort)))):
            yield _polished(problem, start, rng)


def _alike(problem: Problem, least: int) -> Layers:
    """The same layers for all devices of at least this budget, who do with so much; the others take what they can."""
    rows = {budget: fullest(problem.layer_sizes, min(budget, least)) for budget in set(problem.budgets)}
    return repaired(problem, np.array([rows[budget] for budget in problem.budgets]))


def _idled(problem: Problem, masks: Layers) -> Layers:
    """The masks with those devices idle who train least, as many as is best: also all of them, or none."""
    order = np.argsort(masks @ problem.layer_sizes, kind="stable")
    best = masks
    for count in np.unique(np.linspace(0, len(order), min(len(order), 64) + 1).astype(int)):
        fewer = masks.copy()
        fewer[order[:count]] = False
        best = min((best, fewer), key=lambda each: float(objective(problem, each)))
    return best


def _plans(problem: Problem) -> Iterator[tuple[Ints, Layers]]:
    """How often each layer should be covered, and by whom: as the relaxed problem has it, and evenly."""
    reach = reach_of(problem)
    fits = fits_of(problem)
    relaxed = relaxed_problem(problem, reach)
    if relaxed is None:
        return
    profile = relaxed.best()[1]
    allowed = np.array(problem.budgets)[:, None] >= problem.layer_sizes
    classes = np.searchsorted(relaxed.sizes * problem.body, reach - 0.5)  # of each device
    order = np.lexsort((-problem.layer_sizes, -fits))  # what fits few is covered least
    if len(profile) > 1:
        level = np.full(len(order), len(profile) - 1)
        upto = np.cumsum(problem.layer_sizes[order]) - problem.layer_sizes[order] / 2
        for place, (t, _) in reversed(list(enumerate(profile))):
            level[order[upto <= relaxed.sizes[t] * problem.body]] = place
        own = np.maximum(np.searchsorted([t for t, _ in profile], classes, side="right") - 1, 0)
        for less in (0, 1, 2):
            goal = np.clip(np.array([q for _, q in profile])[level] - less, 1, np.maximum(fits, 1))
            yield goal, allowed & (level <= own[:, None])
    even = int(reach.sum() / problem.body)
    for each in (even, even - 1, even - 2):
        yield np.clip(np.full(len(order), each), 1, np.maximum(fits, 1)), allowed


def _dealt(problem: Problem, goal: Ints, allowed: Layers) -> Layers:
    """Layers from the largest to the smallest, each dealt to as many devices as it needs, who have most left."""
    left = np.array(problem.budgets)
    masks = np.zeros_like(allowed)
    for j in np.argsort(-problem.layer_sizes, kind="stable"):
        takers = [n for n in np.argsort(-left, kind="stable") if allowed[n, j] and left[n] >= problem.sizes[j]]
        masks[takers[: goal[j]], j] = True
        left[takers[: goal[j]]] -= problem.sizes[j]
    return repaired(problem, masks)


def _annealed(
    problem: Problem, masks: Layers, goal: Ints, allowed: Layers, rng: np.random.Generator, sweeps: int
) -> Layers:
    """Simulated annealing of slack and of what layers lack to their goals, device by device.

    All exchanges of one layer for another, or for none, are weighed at once, and one is drawn by its Boltzmann weight:
    the least of the costs over the temperature, less Gumbel noise.
    """
    sizes = np.append(problem.layer_sizes, 0).astype(np.float64)
    none = len(problem.sizes)
    masks, covered = masks.copy(), masks.sum(0)
    left = np.array(problem.budgets) - masks @ problem.layer_sizes
    price = problem.body * len(masks) / max(1.0, float(goal.mean())) ** 2  # about what a layer less in the cover costs
    noise = rng.gumbel(size=max(1 << 18, 4 * (none + 1) ** 2))
    best, least = masks.copy(), float(objective(problem, masks))
    for hot in np.geomspace(3e-3 * problem.body, 1e-6 * problem.body, sweeps):
        for n in rng.permutation(len(masks)):
            row = masks[n]
            short, short_without, short_with = (np.maximum(goal - covered + step, 0) ** 2 for step in (0, 1, -1))
            out, into = np.flatnonzero(row), np.flatnonzero(~row & allowed[n])
            give, take = np.append(out, none), np.append(into, none)
            lost = np.append(price * (short_without - short)[out], 0.0)
            won = np.append(price * (short_with - short)[into], 0.0)
            grown = sizes[take] - sizes[give][:, None]  # [give, take]
            cost = lost[:, None] + won - grown
            cost[grown > left[n]] = np.inf
            if len(out) == 1 and not problem.allow_idle:
                cost[0, -1] = np.inf  # the last layer stays
            first = int(rng.integers(len(noise) - cost.size))
            a, b = divmod(int((cost.ravel() / hot - noise[first : first + cost.size]).argmin()), len(take))
            left[n] -= int(grown[a, b])
            if give[a] != none:
                masks[n, give[a]] = False
                covered[give[a]] -= 1
            if take[b] != none:
                masks[n, take[b]] = True
                covered[take[b]] += 1
        if (value := float(objective(problem, masks))) < least:
            best, least = masks.copy(), value
    return best


def _polished(problem: Problem, masks: Layers, rng: np.random.Generator) -> Layers:
    """Descent on the objective itself: device by device the best of all subsets if few, else of all exchanges."""
    layers = len(problem.sizes)
    masks, least = masks.copy(), float(objective(problem, masks))
    every = (np.arange(2**layers)[:, None] >> np.arange(layers)) & 1 == 1 if layers <= 8 else None
    better = True
    while better:
        better = False
        for n in rng.permutation(len(masks)):
            rows = _exchanges(masks[n]) if every is None else every
            used = rows @ problem.layer_sizes
            rows = rows[(used <= problem.budgets[n]) & ((used > 0) | problem.allow_idle)]
            if not len(rows):
                continue
            sets = np.repeat(masks[None], len(rows), axis=0)
            sets[:, n] = rows
            values = objective(problem, sets)
            if values.min() < least - 1e-9 * problem.body:
                least, better = float(values.min()), True
                masks[n] = rows[values.argmin()]
    return masks


def _with_fewer_layers(problem: Problem, masks: Layers, rng: np.random.Generator) -> Layers:
    """The masks, or better ones: layers are dropped by all devices together, which no device would do first.

    What few devices train has a large share. While one of them trains it, the others gain nothing by dropping it.
    """
    devices, layers = masks.shape
    small = devices**2 * layers**4 <= 2e7
    least, better = float(objective(problem, masks)), True
    while better:
        better = False
        for j in np.flatnonzero(masks.any(0)):
            fewer = _without(problem, masks, int(j))
            fewer = _polished(problem, fewer, rng) if small else fewer
            if (value := float(objective(problem, fewer))) < least - 1e-9 * problem.body:
                masks, least, better = fewer, value, True
    return masks


def _without(problem: Problem, masks: Layers, layer: int) -> Layers:
    """The masks without a layer; who trained nothing else gets the fullest of the others, or keeps it if it must."""
    fewer = masks.copy()
    fewer[:, layer] = False
    others = np.where(np.arange(masks.shape[1]) == layer, problem.body + 1, problem.layer_sizes)
    for n in np.flatnonzero(masks.any(1) & ~fewer.any(1)):
        fewer[n] = fullest(others, problem.budgets[n])
    return repaired(problem, fewer)


def _exchanges(row: NDArray[np.bool_]) -> Layers:
    """The row with a layer more, a layer less, or one for another, and the empty row."""
    give, take = np.append(np.flatnonzero(row), -1), np.append(np.flatnonzero(~row), -1)
    rows = np.repeat(np.append(row, False)[None], len(give) * len(take), axis=0)
    at = np.arange(len(rows))
    rows[at, np.repeat(give, len(take))] = False
    rows[at, np.tile(take, len(give))] = True
    rows[-1] = False  # in the place of the row as it is
    return rows[:, :-1]
