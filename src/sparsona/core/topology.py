"""Who reads whom in a round of peers, and who waits for whom: plain data that engines carry out.

Graphs say which clients each client reads; a plan adds which of those must be fresh. The ordered waits are those of
DA-DPFL ("Decentralized Personalized Federated Learning based on a Conditional 'Sparse-to-Sparser' Scheme").
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval

from sparsona.core.budgets import Shares, least, share
from sparsona.core.fields import Count, Natural
from sparsona.core.rng import Rng

Reads = Mapping[int, tuple[int, ...]]  # client -> the others whose models it aggregates, ascending


@dataclass(frozen=True)
class Plan:
    """One round of a topology: whom each client reads, and which of these it waits for.

    A fresh message is this round's; the others are taken as they were when the round began.
    """

    reads: dict[int, tuple[int, ...]]
    fresh: dict[int, frozenset[int]]

    def __post_init__(self) -> None:
        if self.reads.keys() != self.fresh.keys():
            raise ValueError(f"fresh: clients {sorted(self.fresh)}; those of reads, {sorted(self.reads)}, are needed")
        for k, waits in self.fresh.items():
            if k in self.reads[k]:
                raise ValueError(f"reads: client {k} reads itself; only others are allowed")
            if not waits <= set(self.reads[k]) & self.reads.keys():
                raise ValueError(
                    f"fresh: client {k} waits for {sorted(waits)}; only clients it reads that run are allowed"
                )

    def waves(self) -> list[list[int]]:
        """The clients in groups that may run one after the other, each as early as it can, its members at once."""
        out: list[list[int]] = []
        done: set[int] = set()
        left = sorted(self.reads)
        while left:
            wave = [k for k in left if self.fresh[k] <= done]
            if not wave:
                raise ValueError(f"fresh: clients {left} wait for each other in a circle")
            out.append(wave)
            done.update(wave)
            left = [k for k in left if k not in done]
        return out

    def clock(self, times: Mapping[int, float] | None = None) -> dict[int, tuple[float, float]]:
        """When each client starts and finishes, if all set out at 0 and training takes ``times``, or 1."""
        out: dict[int, tuple[float, float]] = {}
        for wave in self.waves():
            for k in wave:
                start = max((out[j][1] for j in self.fresh[k]), default=0.0)
                out[k] = (start, start + _time(times, k))
        return out


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Who talks to whom without a server, round by round."""

    name: Literal["random", "mutual", "ring", "full", "groups", "edges"] = "random"  # who reads whom
    neighbours: Count = 10  # random, mutual: how many each one reads, M; groups: their size less one
    fixed: bool = False  # random, mutual, groups: drawn once, not every round
    edges: str = ""  # edges: a file of pairs "a b", one a line
    pairs: tuple[tuple[Natural, Natural], ...] = ()  # edges: the pairs themselves
    directed: bool = False  # edges: b reads a, but not the other way round
    max_wait: Natural = 0  # N: wait for so many of the earlier neighbours at most, and read them fresh
    wait_schedule: Literal["constant", "stepwise"] = "constant"  # stepwise: down to 0 in equal stretches of rounds
    order: Literal["random", "id"] = "random"  # who is earlier: drawn every round, or by number
    pick: Literal["fastest", "smallest id"] = "fastest"  # which of them are waited for
    absent: Annotated[float, Interval(ge=0, lt=1)] = 0.0  # probability that a client is away in a round
    speed: Shares = 1.0  # of each client, relative to the fastest: training takes 1 / speed

    def reads(self, fleet: int, t: int, rng: Rng) -> dict[int, tuple[int, ...]]:
        """Whom each client reads in round t."""
        key = rng("graph") if self.fixed else rng("graph", t)
        match self.name:
            case "ring":
                return ring(fleet)
            case "full":
                return full(fleet)
            case "groups":
                return groups(fleet, self.neighbours + 1, key)
            case "edges":
                return edges(self.pairs, fleet, self.directed)
            case "mutual":
                return mutual(fleet, self.neighbours, key)
            case _:
                return random(fleet, self.neighbours, key)

    def times(self, fleet: int, rng: Rng) -> dict[int, float]:
        """How long each client trains, the fastest possible taking 1."""
        return {k: 1 / share(self.speed, k, rng("speed")) for k in range(fleet)}

    def plan(self, fleet: int, t: int, rounds: int, rng: Rng) -> Plan:
        """Round t as data."""
        reads = self.reads(fleet, t, rng)
        away = absent(fleet, self.absent, rng("absent", t)) if self.absent else frozenset[int]()
        wait = self.max_wait if self.wait_schedule == "constant" else stepwise(self.max_wait, t, rounds)
        most = max(len(js) for js in reads.values())
        times = self.times(fleet, rng)
        return ordered(
            reads, rng("order", t), min(wait, most), times=times, order=self.order, pick=self.pick, absent=away
        )

    def check(self, fleet: int) -> None:
        """Raise ValueError if this does not fit a fleet of so many clients."""
        if self.name in ("random", "mutual", "groups") and self.neighbours >= fleet:
            raise ValueError(f"neighbours: {self.neighbours}; fewer than the {fleet} clients are needed")
        if self.name == "mutual" and self.neighbours % 2:
            raise ValueError(f"neighbours: {self.neighbours}; an even number is needed where neighbours are mutual")
        if self.name != "edges" and (self.edges or self.pairs):
            raise ValueError(f'name: "{self.name}"; with a list of edges only "edges" is allowed')
        if self.name == "edges":
            if not self.pairs:
                raise ValueError("pairs: none; an edge list needs a file (edges) or pairs")
            lost = _unconnected(edges(self.pairs, fleet, self.directed))
            if lost:
                how = " in both directions" if self.directed else ""
                raise ValueError(
                    f"pairs: client {min(lost)} is not connected with client 0{how}; one connected graph is needed"
                )
        most = max(len(js) for js in self.reads(fleet, 0, Rng(0)).values())
        if self.max_wait > most:
            raise ValueError(f"max_wait: {self.max_wait}; at most {most}, the number of neighbours, is allowed")
        least("speed", self.speed, fleet)


def cohort(fleet: int, per_round: int, rng: Rng) -> list[int]:
    """``per_round`` clients of 0 to fleet - 1, uniformly, ascending."""
    _within("per_round", per_round, 1, fleet)
    return rng.choice(fleet, per_round)


def absent(fleet: int, probability: float, rng: Rng) -> frozenset[int]:
    """The clients that drop out of a round, each with the same probability."""
    _within("probability", probability, 0, 1)
    return frozenset(k for k, u in enumerate(rng.uniform(fleet).tolist()) if u < probability)


def ring(n: int) -> dict[int, tuple[int, ...]]:
    """Everyone reads the one before and the one after."""
    _within("n", n, 1)
    return {k: tuple(sorted({(k - 1) % n, (k + 1) % n} - {k})) for k in range(n)}


def full(n: int) -> dict[int, tuple[int, ...]]:
    """Everyone reads everyone else."""
    _within("n", n, 1)
    return {k: tuple(j for j in range(n) if j != k) for k in range(n)}


def random(n: int, neighbours: int, rng: Rng) -> dict[int, tuple[int, ...]]:
    """Everyone reads ``neighbours`` others, uniformly and not mutually; varies over time if the key does."""
    _within("n", n, 1)
    _within("neighbours", neighbours, 0, n - 1)
    draws = rng.numpy()
    out = {}
    for k in range(n):
        others = sorted(int(j) for j in draws.choice(n - 1, size=neighbours, replace=False))
        out[k] = tuple(j + (j >= k) for j in others)
    return out


def mutual(n: int, neighbours: int, rng: Rng) -> dict[int, tuple[int, ...]]:
    """Everyone reads ``neighbours`` others, an even number, and is read by them: a random ring, and random strides."""
    _within("neighbours", neighbours, 2, n - 1)
    if neighbours % 2:
        raise ValueError(f"neighbours: {neighbours}; an even number is needed")
    line = rng("order").permutation(n).tolist()
    longest = (n - 1) // 2
    more = rng("strides").numpy().choice(longest - 1, size=neighbours // 2 - 1, replace=False) if longest > 1 else ()
    strides = [1, *(int(s) + 2 for s in more)]  # with the ring itself all are connected
    return {k: tuple(sorted(line[(i + s * way) % n] for s in strides for way in (1, -1))) for i, k in enumerate(line)}


def groups(n: int, size: int, rng: Rng) -> dict[int, tuple[int, ...]]:
    """Everyone reads the rest of its random group of ``size``; clients left over join groups at random."""
    _within("size", size, 1, n)
    order = rng("order").permutation(n).tolist()
    whole = n // size
    members = [order[i * size : (i + 1) * size] for i in range(whole)]
    hosts = rng("hosts").numpy().integers(whole, size=n % size)
    for k, host in zip(order[whole * size :], hosts, strict=True):
        members[host].append(k)
    return {k: tuple(sorted(j for j in group if j != k)) for group in members for k in group}


def edges(pairs: Iterable[tuple[int, int]], n: int, directed: bool = False) -> dict[int, tuple[int, ...]]:
    """Both ends of a pair read each other; if directed, its second reads its first."""
    _within("n", n, 1)
    out: dict[int, list[int]] = {k: [] for k in range(n)}
    for a, b in pairs:
        if not (0 <= a < n and 0 <= b < n):
            raise ValueError(f"pairs: {a} {b} in the edge list; clients are 0 to {n - 1}")
        if a == b or a in out[b] or (not directed and b in out[a]):
            raise ValueError(f"pairs: {(a, b)}; two different clients are needed, once")
        out[b].append(a)
        if not directed:
            out[a].append(b)
    return {k: tuple(sorted(js)) for k, js in out.items()}


def at_once(reads: Reads, absent: Collection[int] = ()) -> Plan:
    """Nobody waits."""
    here = _without(reads, absent)
    return Plan(here, dict.fromkeys(here, frozenset()))


def ordered(
    reads: Reads,
    rng: Rng,
    max_wait: int,
    *,
    times: Mapping[int, float] | None = None,
    order: Literal["random", "id"] = "random",
    pick: Literal["fastest", "smallest id"] = "fastest",
    absent: Collection[int] = (),
) -> Plan:
    """Put the clients in order; each waits for at most ``max_wait`` of the earlier ones it reads.

    "fastest" are those that finish first if training takes ``times``, or 1; ties go to the earlier in order. Clients
    ``absent`` neither run nor are read.
    """
    _within("max_wait", max_wait, 0, max((len(js) for js in reads.values()), default=0))
    for field, value, allowed in (("order", order, ("random", "id")), ("pick", pick, ("fastest", "smallest id"))):
        if value not in allowed:
            raise ValueError(f"{field}: {value!r}; one of {', '.join(allowed)} is allowed")
    here = _without(reads, absent)
    line = sorted(here)
    if order == "random":
        line = [line[i] for i in rng.permutation(len(line)).tolist()]
    fresh: dict[int, frozenset[int]] = {}
    rank: dict[int, tuple[float, int]] = {}  # when a client finishes, its place in the order
    for place, k in enumerate(line):
        prior = [j for j in here[k] if j in rank]
        waits = sorted(prior, key=rank.__getitem__ if pick == "fastest" else None)[:max_wait]
        fresh[k] = frozenset(waits)
        rank[k] = (max((rank[j][0] for j in waits), default=0.0) + _time(times, k), place)
    return Plan(here, {k: fresh[k] for k in here})


def prior_probability(k: int, fleet: int, neighbours: int, m: int) -> float:
    """Proposition 1: how likely the k-th in order, from 1, reads m earlier ones among its random neighbours."""
    _within("k", k, 1, fleet)
    _within("neighbours", neighbours, 0, fleet - 1)
    _within("m", m, 0, neighbours)
    return math.comb(k - 1, m) * math.comb(fleet - k, neighbours - m) / math.comb(fleet - 1, neighbours)


def stepwise(max_wait: int, t: int, rounds: int) -> int:
    """A wait that falls from ``max_wait`` to 0 in equal stretches of rounds, the remainder without waiting."""
    _within("max_wait", max_wait, 0)
    _within("t", t, 0, rounds - 1)
    stretch = rounds // (max_wait + 1)
    return max(max_wait - t // stretch, 0) if stretch else 0


def _unconnected(reads: Reads) -> set[int]:
    """The clients from which no news reach client 0, or which no news of client 0 reach."""
    back: dict[int, set[int]] = {k: set() for k in reads}
    for k, js in reads.items():
        for j in js:
            back[j].add(k)
    lost: set[int] = set()
    for ways in (reads, back):
        found, new = {0}, {0}
        while new:
            new = {j for k in new for j in ways[k]} - found
            found |= new
        lost |= set(reads) - found
    return lost


def _without(reads: Reads, absent: Collection[int]) -> dict[int, tuple[int, ...]]:
    return {k: tuple(j for j in js if j not in absent) for k, js in reads.items() if k not in absent}


def _time(times: Mapping[int, float] | None, k: int) -> float:
    return 1.0 if times is None else times[k]


def _within(field: str, value: float, low: float, high: float = float("inf")) -> None:
    if not low <= value <= high:
        raise ValueError(f"{field}: {value}; {low} to {high} is allowed")
