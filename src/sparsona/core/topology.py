"""Communication graphs without a server: who reads whom in a round and who waits for whom, as plain data.

Graphs say which clients each client reads; a plan adds which of those must be fresh. The ordered waits are those of
DA-DPFL ("Decentralized Personalized Federated Learning based on a Conditional 'Sparse-to-Sparser' Scheme").
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval
from typing_extensions import Doc

from sparsona.core.budgets import Shares, least, share
from sparsona.core.fields import Count, Natural
from sparsona.core.rng import Rng

Reads = Mapping[int, tuple[int, ...]]  # client -> the others whose models it aggregates, ascending


@dataclass(frozen=True)
class RoundPlan:
    """One round of a topology: whom each client reads, and which of these it waits for.

    A fresh message is this round's; the others are taken as they were when the round began.
    """

    reads: dict[int, tuple[int, ...]]
    fresh: dict[int, frozenset[int]]

    def __post_init__(self) -> None:
        if self.reads.keys() != self.fresh.keys():
            raise ValueError(
                f"fresh: clients {sorted(self.fresh)} are not allowed; expected those of reads, {sorted(self.reads)}"
            )
        for k, waits in self.fresh.items():
            if k in self.reads[k]:
                raise ValueError(f"reads: client {k} reads itself; expected only other clients")
            if not waits <= set(self.reads[k]) & self.reads.keys():
                raise ValueError(
                    f"fresh: client {k} waits for {sorted(waits)}; expected only active clients that it reads"
                )

    def waves(self) -> list[list[int]]:
        """The clients in groups that run one after the other, each client in the earliest possible group."""
        out: list[list[int]] = []
        finished: set[int] = set()
        left = sorted(self.reads)
        while left:
            wave = [k for k in left if self.fresh[k] <= finished]
            if not wave:
                raise ValueError(f"fresh: clients {left} wait for each other in a cycle")
            out.append(wave)
            finished.update(wave)
            left = [k for k in left if k not in finished]
        return out

    def clock(self, times: Mapping[int, float] | None = None) -> dict[int, tuple[float, float]]:
        """When each client starts and finishes, if the round starts at 0 and training takes ``times`` (default 1)."""
        out: dict[int, tuple[float, float]] = {}
        for wave in self.waves():
            for k in wave:
                start = max((out[j][1] for j in self.fresh[k]), default=0.0)
                out[k] = (start, start + _time(times, k))
        return out


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Communication between clients without a server, by round."""

    name: Annotated[
        Literal["random", "mutual", "ring", "full", "groups", "edges"],
        Doc("communication graph: which clients receive whose models"),
    ] = "random"
    neighbours: Annotated[
        Count, Doc("random, mutual: neighbours per client (M in DA-DPFL); groups: group size minus 1")
    ] = 10
    fixed: Annotated[bool, Doc("random, mutual, groups: draw the graph once instead of every round")] = False
    edges: Annotated[str, Doc('edges: path of an edge-list file, one pair of client numbers "a b" per line')] = ""
    pairs: Annotated[
        tuple[tuple[Natural, Natural], ...], Doc("edges: the pairs of client numbers, instead of a file")
    ] = ()
    directed: Annotated[bool, Doc('edges: in a pair "a b", b receives from a but not the reverse')] = False
    max_wait: Annotated[
        Natural, Doc("maximum number of earlier neighbours whose new models a client waits for (N in DA-DPFL)")
    ] = 0
    wait_schedule: Annotated[
        Literal["constant", "stepwise"], Doc("max_wait over the rounds: constant, or falling to 0 in equal steps")
    ] = "constant"
    order: Annotated[
        Literal["random", "id"], Doc("training order of the clients: random in every round, or by client number")
    ] = "random"
    pick: Annotated[
        Literal["fastest", "smallest id"], Doc("which earlier neighbours to wait for if there are more than max_wait")
    ] = "fastest"
    absent: Annotated[
        Annotated[float, Interval(ge=0, lt=1)], Doc("probability that a client is absent from a round")
    ] = 0.0
    speed: Annotated[Shares, Doc("client speed relative to the fastest; training takes time 1 / speed")] = 1.0

    def reads(self, clients: int, t: int, rng: Rng) -> dict[int, tuple[int, ...]]:
        """Whom each client reads in round t."""
        key = rng("graph") if self.fixed else rng("graph", t)
        match self.name:
            case "ring":
                return ring(clients)
            case "full":
                return full(clients)
            case "groups":
                return groups(clients, self.neighbours + 1, key)
            case "edges":
                return edges(self.pairs, clients, self.directed)
            case "mutual":
                return mutual(clients, self.neighbours, key)
            case _:
                return random(clients, self.neighbours, key)

    def times(self, clients: int, rng: Rng) -> dict[int, float]:
        """The training time of each client, relative to a client of speed 1."""
        return {k: 1 / share(self.speed, k, rng("speed")) for k in range(clients)}

    def plan(self, clients: int, t: int, rounds: int, rng: Rng, away: frozenset[int] = frozenset()) -> RoundPlan:
        """The plan of round t, without the clients ``away`` and without randomly absent ones."""
        reads = self.reads(clients, t, rng)
        if self.absent:
            away |= absent(clients, self.absent, rng("absent", t))
        wait = self.max_wait if self.wait_schedule == "constant" else stepwise(self.max_wait, t, rounds)
        most = max(len(js) for js in reads.values())
        times = self.times(clients, rng)
        return ordered(
            reads, rng("order", t), min(wait, most), times=times, order=self.order, pick=self.pick, absent=away
        )

    def check(self, clients: int) -> None:
        """Raise ValueError if the topology does not fit this number of clients."""
        if self.name in ("random", "mutual", "groups") and self.neighbours >= clients:
            raise ValueError(
                f"neighbours: {self.neighbours} is not allowed; expected an int < {clients}, the number of clients"
            )
        if self.name == "mutual" and self.neighbours % 2:
            raise ValueError(
                f'neighbours: {self.neighbours} is not allowed; expected an even int with name = "{self.name}"'
            )
        if self.name != "edges" and (self.edges or self.pairs):
            raise ValueError(f'name: "{self.name}" is not allowed with an edge list; expected "edges"')
        if self.name == "edges":
            if not self.pairs:
                raise ValueError('pairs: missing; name = "edges" needs a file (edges) or pairs')
            lost = _unconnected(edges(self.pairs, clients, self.directed))
            if lost:
                direction = " in both directions" if self.directed else ""
                raise ValueError(
                    f"pairs: client {min(lost)} is not connected to client 0{direction}; expected a connected graph"
                )
        most = max(len(js) for js in self.reads(clients, 0, Rng(0)).values())
        if self.max_wait > most:
            raise ValueError(
                f"max_wait: {self.max_wait} is not allowed; expected an int <= {most}, the number of neighbours"
            )
        least("speed", self.speed, clients)


def cohort(clients: int, per_round: int, rng: Rng) -> list[int]:
    """``per_round`` clients from 0 to clients - 1, uniformly, ascending."""
    _within("per_round", per_round, 1, clients)
    return rng.choice(clients, per_round)


def absent(clients: int, probability: float, rng: Rng) -> frozenset[int]:
    """The clients that drop out of a round, each with the same probability."""
    _within("probability", probability, 0, 1)
    return frozenset(k for k, u in enumerate(rng.uniform(clients).tolist()) if u < probability)


def ring(n: int) -> dict[int, tuple[int, ...]]:
    """Each client reads the clients before and after it."""
    _within("n", n, 1)
    return {k: tuple(sorted({(k - 1) % n, (k + 1) % n} - {k})) for k in range(n)}


def full(n: int) -> dict[int, tuple[int, ...]]:
    """Each client reads all others."""
    _within("n", n, 1)
    return {k: tuple(j for j in range(n) if j != k) for k in range(n)}


def random(n: int, neighbours: int, rng: Rng) -> dict[int, tuple[int, ...]]:
    """Each client reads ``neighbours`` others, drawn uniformly and not mutually."""
    _within("n", n, 1)
    _within("neighbours", neighbours, 0, n - 1)
    draws = rng.numpy()
    out = {}
    for k in range(n):
        others = sorted(int(j) for j in draws.choice(n - 1, size=neighbours, replace=False))
        out[k] = tuple(j + (j >= k) for j in others)
    return out


def mutual(n: int, neighbours: int, rng: Rng) -> dict[int, tuple[int, ...]]:
    """Each client exchanges models with ``neighbours`` others (an even number): a random ring plus random strides."""
    _within("neighbours", neighbours, 2, n - 1)
    if neighbours % 2:
        raise ValueError(f"neighbours: {neighbours} is not allowed; expected an even int")
    line = rng("order").permutation(n).tolist()
    longest = (n - 1) // 2
    extra = rng("strides").numpy().choice(longest - 1, size=neighbours // 2 - 1, replace=False) if longest > 1 else ()
    strides = [1, *(int(s) + 2 for s in extra)]  # with the ring itself all are connected
    return {k: tuple(sorted(line[(i + s * way) % n] for s in strides for way in (1, -1))) for i, k in enumerate(line)}


def groups(n: int, size: int, rng: Rng) -> dict[int, tuple[int, ...]]:
    """Each client reads the rest of its random group of ``size``; remaining clients join random groups."""
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
            raise ValueError(f"pairs: {[a, b]} is not allowed; expected clients in [0, {n - 1}]")
        if a == b or a in out[b] or (not directed and b in out[a]):
            raise ValueError(f"pairs: {[a, b]} is not allowed; expected two different clients, and each pair once")
        out[b].append(a)
        if not directed:
            out[a].append(b)
    return {k: tuple(sorted(js)) for k, js in out.items()}


def at_once(reads: Reads, absent: Collection[int] = ()) -> RoundPlan:
    """The plan of a round in which no client waits."""
    here = _without(reads, absent)
    return RoundPlan(here, dict.fromkeys(here, frozenset()))


def ordered(
    reads: Reads,
    rng: Rng,
    max_wait: int,
    *,
    times: Mapping[int, float] | None = None,
    order: Literal["random", "id"] = "random",
    pick: Literal["fastest", "smallest id"] = "fastest",
    absent: Collection[int] = (),
) -> RoundPlan:
    """Put the clients in order; each waits for at most ``max_wait`` of the earlier ones it reads.

    "fastest" are those that finish first if training takes ``times``, or 1; ties go to the earlier in order. Clients
    ``absent`` neither run nor are read.
    """
    _within("max_wait", max_wait, 0, max((len(js) for js in reads.values()), default=0))
    for field, value, allowed in (("order", order, ("random", "id")), ("pick", pick, ("fastest", "smallest id"))):
        if value not in allowed:
            raise ValueError(f'{field}: "{value}" is not allowed; expected one of {", ".join(allowed)}')
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
    return RoundPlan(here, {k: fresh[k] for k in here})


def prior_probability(k: int, clients: int, neighbours: int, m: int) -> float:
    """Proposition 1: how likely the k-th in order, from 1, reads m earlier ones among its random neighbours."""
    _within("k", k, 1, clients)
    _within("neighbours", neighbours, 0, clients - 1)
    _within("m", m, 0, neighbours)
    return math.comb(k - 1, m) * math.comb(clients - k, neighbours - m) / math.comb(clients - 1, neighbours)


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
        reached, new = {0}, {0}
        while new:
            new = {j for k in new for j in ways[k]} - reached
            reached |= new
        lost |= set(reads) - reached
    return lost


def _without(reads: Reads, absent: Collection[int]) -> dict[int, tuple[int, ...]]:
    return {k: tuple(j for j in js if j not in absent) for k, js in reads.items() if k not in absent}


def _time(times: Mapping[int, float] | None, k: int) -> float:
    return 1.0 if times is None else times[k]


def _within(field: str, value: float, low: float, high: float = float("inf")) -> None:
    if not low <= value <= high:
        raise ValueError(f"{field}: {value} is not allowed; expected a number in [{low}, {high}]")
