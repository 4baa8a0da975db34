"""Which layers each device trains, within its budget, so that training is biased least (PerFedMask's P_mask).

A set of layer masks is an array of bools [devices, layers]. With c_j devices training layer j, a device's share of an
entry of that layer is 1/c_j, and its largest share gamma_n is 1 over the smallest coverage among its layers. The bias
is the sum over devices of d_w gamma_n less the layers that anybody trains; the objective adds the slack, which is what
devices leave of their budgets.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

Layers = NDArray[np.bool_]  # [devices, layers], or more dimensions before these for several sets at once
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_WHOLE = 24  # layers up to which the fullest subset of a budget is found by halves
_BITS = 1 << 30  # of memory, up to which it is found for more layers, by sets of all sums there are
_SMALL = 3_000_000  # entries of masks that are looked at one by one, all of them


@dataclass(frozen=True)
class Problem:
    """Layers of these sizes, devices of these budgets; every device that can trains something, unless it may idle."""

    sizes: tuple[int, ...]
    budgets: tuple[int, ...]
    allow_idle: bool = False

    def __post_init__(self) -> None:
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"sizes: {list(self.sizes)}; at least one layer, each of at least 1 parameter, is needed")
        if not self.budgets or min(self.budgets) < 0:
            raise ValueError("budgets: at least one device, each with a budget of at least 0, is needed")
        if max(self.budgets) > self.body:
            raise ValueError(
                f"budgets: {max(self.budgets):,} is above the body's {self.body:,} parameters; that is the most allowed"
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
        found = {budget: fullest(self.layer_sizes, budget) for budget in set(self.budgets)}
        return np.array([found[budget] for budget in self.budgets])

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
    found: Floats = np.where(masks.any(-1), 1 / least, 0.0)
    return found


def bias(problem: Problem, masks: Layers) -> Floats:
    """The bias of layer masks, or of several sets at once."""
    found: Floats = problem.body * shares(masks).sum(-1) - masks.any(-2) @ problem.layer_sizes
    return found


def objective(problem: Problem, masks: Layers) -> Floats:
    """Bias and slack of layer masks, or of several sets at once."""
    return bias(problem, masks) + sum(problem.budgets) - (masks @ problem.layer_sizes).sum(-1)


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


def optimised(problem: Problem, rng: np.random.Generator, effort: float = 1.0) -> Solution:
    """The best masks found, and how good they may at most be: by enumeration where there are few, else by search.

    The search depends on the generator and the effort alone, never on the clock.
    """
    if (best := enumerated(problem)) is not None:
        return Solution(problem, best, float(objective(problem, best)))
    floor = bound(problem)
    best = problem.fullest
    for start in _starts(problem, rng, effort):
        if objective(problem, start) < objective(problem, best):
            best = start
        if Solution(problem, best, floor).proven:
            break
    return Solution(problem, best, floor)


SOLVERS = ("optimised", "sca", "sequential", "random", "random_best_of")


def solve(
    problem: Problem, solver: str, rng: np.random.Generator, *, draws: int = 1000, effort: float = 1.0
) -> Solution:
    """Masks by the solver of this name; ``draws`` are those of ``random_best_of``."""
    match solver:
        case "optimised":
            return optimised(problem, rng, effort)
        case "sca":
            from sparsona.solvers.sca import sca  # which needs this module

            masks = sca(problem, rng, draws=draws)
        case "sequential":
            masks = sequential(problem)
        case "random":
            masks = random(problem, rng)
        case "random_best_of":
            masks = random_best_of(problem, rng, draws)
        case _:
            raise ValueError(f"solver: {solver!r}; {', '.join(SOLVERS)} is allowed")
    return Solution(problem, masks, bound(problem))


def enumerated(problem: Problem, most: int = _SMALL) -> Layers | None:
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


def bound(problem: Problem) -> float:
    """A number that no objective is below.

    Only how much of the model is covered how often is decided here, as if layers could be cut anywhere. A device of
    size z has a share of at least 1 over the coverage Q(z) of the z entries that are covered most, and sizes sum up to
    what is covered. That sum is priced at mu an entry (Lagrange), which leaves a problem that dynamic programming over
    sizes and coverages solves; every mu gives a bound, and the best is sought.
    """
    reach = _reach(problem)
    lost = sum(problem.budgets) - int(reach.sum())
    relaxed = _relaxed(problem, reach)
    return float(lost) if relaxed is None else problem.body * relaxed.best()[0] + lost


def _reach(problem: Problem) -> Ints:
    """What each device can train at most."""
    if len(problem.sizes) <= _WHOLE or _sums(problem.sizes) is not None:
        return problem.fullest @ problem.layer_sizes
    reach = np.array(problem.budgets)
    reach[problem.idle] = 0
    return reach


def _fits(problem: Problem) -> Ints:
    """How many devices could train each layer."""
    return len(problem.budgets) - np.searchsorted(np.sort(problem.budgets), problem.layer_sizes)


def _relaxed(problem: Problem, reach: Ints) -> _Relaxed | None:
    """The relaxed problem, or None if nobody can train anything."""
    able = int((reach > 0).sum())
    if not able:
        return None
    fit = _fits(problem)
    room = np.array([problem.layer_sizes[fit >= q].sum() for q in range(1, able + 1)])
    # a coverage may also end where the layers end that can be covered so often: classes of nobody
    sizes = np.unique(np.concatenate([reach[reach > 0], room[room > 0]]))
    counts = (reach[:, None] == sizes).sum(0).astype(np.float64)
    return _Relaxed(sizes / problem.body, counts, room / problem.body, problem.allow_idle)


@dataclass(frozen=True)
class _Relaxed:
    """The relaxed problem, in shares of the body."""

    sizes: Floats  # [classes] different sizes, ascending
    counts: Floats  # [classes] devices of each, or none
    room: Floats  # [coverages] how much of the model can be covered at least 1, 2, ... times
    allow_idle: bool

    def best(self) -> tuple[float, list[tuple[int, int]]]:
        """The best bound over mu, with the classes that set a coverage of their own, and these, by size."""
        low, high, golden = math.log(1e-5), math.log(2.0), (5**0.5 - 1) / 2
        found = [self.at(0.0)]
        for _ in range(20):  # the value is concave in mu
            a, b = high - golden * (high - low), low + golden * (high - low)
            found += [self.at(math.exp(a)), self.at(math.exp(b))]
            low, high = (low, b) if found[-2][0] > found[-1][0] else (a, high)
        return max(found, key=lambda each: each[0])

    def at(self, mu: float) -> tuple[float, list[tuple[int, int]]]:
        """The least of the objective and mu times what coverage exceeds sizes by."""
        devices = len(self.room)
        q = np.arange(1, devices + 1)
        ends = np.concatenate([[0.0], self.sizes])  # class t is [t + 1]; 0 is for what trains next to nothing
        # cost of a device that trains what class t trains, at coverage q; sizes are paid back at 1 + mu
        each = 1 / q - (1 + mu) * ends[:, None]  # [classes + 1, coverages]
        each[0] = 0.0 if self.allow_idle else 1 / devices
        done = np.cumsum(np.concatenate([[0.0], self.counts]))
        cost = np.full((len(ends), devices), np.inf)
        cost[0, -1] = 0.0

        def before(t: int) -> Floats:  # devices after a class and before this one do as that class
            return cost[:t] + (done[t - 1] - done[:t, None]) * each[:t]

        def step(t: int) -> Floats:
            falling = np.minimum.accumulate(before(t)[:, ::-1], axis=1)[:, ::-1]  # coverage falls with size
            return falling + mu * q * (ends[t] - ends[:t, None])

        for t in range(1, len(ends)):
            fits = self.room >= ends[t] - 1e-12
            cost[t] = np.where(fits, step(t).min(0) + self.counts[t - 1] * each[t], np.inf)
        after = cost + (done[-1] - done[:, None]) * each
        after += (1 - self.room[0]) + np.maximum(self.room[0] - ends[:, None], 0) * min(1.0, mu)
        t, i = divmod(int(after.argmin()), devices)
        profile = []
        while t:
            profile.append((t - 1, i + 1))
            last = int(step(t)[:, i].argmin())
            t, i = last, i + int(before(t)[last, i:].argmin())
        return float(after.min() + (self.counts * self.sizes).sum() - 1), profile[::-1]


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
        found = _annealed(problem, _dealt(problem, goal, allowed), goal, allowed, rng, sweeps)
        found = _idled(problem, found) if problem.allow_idle else found
        yield found
        best = min((best, found), key=lambda masks: float(objective(problem, masks)))
    if devices * devices * layers**3 <= 2e8 * effort:
        for start in (best, problem.fullest, drawn, *alike, *(random(problem, rng) for _ in range(int(20 * effort)))):
            yield _polished(problem, start, rng)


def _alike(problem: Problem, least: int) -> Layers:
    """The same layers for all devices of at least this budget, who do with so much; the others take what they can."""
    found = {budget: fullest(problem.layer_sizes, min(budget, least)) for budget in set(problem.budgets)}
    return repaired(problem, np.array([found[budget] for budget in problem.budgets]))


def _idled(problem: Problem, masks: Layers) -> Layers:
    """The masks with those devices idle who train least, as many as is best: also all of them, or none."""
    order = np.argsort(masks @ problem.layer_sizes, kind="stable")
    best = masks
    for many in np.unique(np.linspace(0, len(order), min(len(order), 64) + 1).astype(int)):
        fewer = masks.copy()
        fewer[order[:many]] = False
        best = min((best, fewer), key=lambda each: float(objective(problem, each)))
    return best


def _plans(problem: Problem) -> Iterator[tuple[Ints, Layers]]:
    """How often each layer should be covered, and by whom: as the relaxed problem has it, and evenly."""
    reach = _reach(problem)
    fits = _fits(problem)
    relaxed = _relaxed(problem, reach)
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
            short, more, less = (np.maximum(goal - covered + step, 0) ** 2 for step in (0, 1, -1))
            out, into = np.flatnonzero(row), np.flatnonzero(~row & allowed[n])
            give, take = np.append(out, none), np.append(into, none)
            lost = np.append(price * (more - short)[out], 0.0)
            won = np.append(price * (less - short)[into], 0.0)
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


def _exchanges(row: NDArray[np.bool_]) -> Layers:
    """The row with a layer more, a layer less, or one for another, and the empty row."""
    give, take = np.append(np.flatnonzero(row), -1), np.append(np.flatnonzero(~row), -1)
    rows = np.repeat(np.append(row, False)[None], len(give) * len(take), axis=0)
    at = np.arange(len(rows))
    rows[at, np.repeat(give, len(take))] = False
    rows[at, np.tile(take, len(give))] = True
    rows[-1] = False  # in the place of the row as it is
    return rows[:, :-1]


def fullest(sizes: Ints, budget: int) -> NDArray[np.bool_]:
    """The subset of layers with the largest sum within the budget; nearly, where too many are too large to be sure."""
    if budget >= sizes.sum():
        return np.ones(len(sizes), dtype=bool)
    if len(sizes) > _WHOLE and (known := _sums(tuple(map(int, sizes)))) is not None:
        return _chosen(sizes, budget, known)
    order = np.argsort(-sizes, kind="stable")
    taken = np.zeros(len(sizes), dtype=bool)
    left = budget
    for j in order[: max(0, len(sizes) - _WHOLE)]:  # the largest are taken as they fit
        if sizes[j] <= left:
            taken[j] = True
            left -= int(sizes[j])
    rest = order[max(0, len(sizes) - _WHOLE) :]
    halves = [rest[::2], rest[1::2]]
    sums = [((np.arange(2 ** len(h))[:, None] >> np.arange(len(h))) & 1) @ sizes[h] for h in halves]
    ranks = np.argsort(sums[1], kind="stable")
    ordered = sums[1][ranks]
    place = np.searchsorted(ordered, left - sums[0], side="right") - 1
    total = np.where(place >= 0, sums[0] + ordered[place], -1)
    first = int(total.argmax())
    for half, code in zip(halves, (first, int(ranks[place[first]])), strict=True):
        taken[half[(code >> np.arange(len(half))) & 1 == 1]] = True
    return taken


@lru_cache(maxsize=2)  # devices differ in budgets alone
def _sums(sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Which sums the first 0, 1, ... layers have, as bits of whole numbers, in units of the sizes' common divisor."""
    unit = math.gcd(*sizes)
    if len(sizes) * (sum(sizes) // unit) > _BITS:
        return None
    found = [1]
    for size in sizes:
        found.append(found[-1] | found[-1] << size // unit)
    return tuple(found)


def _chosen(sizes: Ints, budget: int, sums: tuple[int, ...]) -> NDArray[np.bool_]:
    """The layers whose sum is the largest within the budget, from the last to the first: each only where it must be."""
    unit = math.gcd(*map(int, sizes))
    left = (sums[-1] & ((1 << budget // unit + 1) - 1)).bit_length() - 1
    taken = np.zeros(len(sizes), dtype=bool)
    for j in reversed(range(len(sizes))):
        if not sums[j] >> left & 1:
            taken[j] = True
            left -= int(sizes[j]) // unit
    return taken


def _filled(sizes: Ints, budget: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    taken = np.zeros(len(sizes), dtype=bool)
    for j in rng.permutation(len(sizes)):
        if sizes[j] <= budget:
            taken[j] = True
            budget -= int(sizes[j])
    return taken
