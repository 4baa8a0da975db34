"""Topologies against DA-DPFL's propositions, its first figure and its table of delays."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsona.core import topology
from sparsona.core.rng import Rng
from sparsona.core.topology import RoundPlan, Topology


class Fixed(Rng):
    """A key whose permutation is given."""

    def __init__(self, order: tuple[int, ...]) -> None:
        super().__init__("fixed")
        self.order = order

    def permutation(self, n: int) -> torch.Tensor:
        assert n == len(self.order)
        return torch.tensor(self.order)


def prior_chance(clients: int, neighbours: int, place: int, m: int) -> Fraction:
    """Proposition 1: the chance that the client at this place, from 1, reads m earlier ones."""
    ways = math.comb(place - 1, m) * math.comb(clients - place, neighbours - m) if m <= neighbours else 0
    return Fraction(ways, math.comb(clients - 1, neighbours))


def test_proposition_1_printed() -> None:
    assert prior_chance(100, 10, 1, 0) == prior_chance(100, 10, 100, 10) == 1
    assert [float(prior_chance(100, 10, 2, m)) for m in (0, 1)] == pytest.approx([0.89899, 0.10101], abs=5e-6)
    middle = [float(prior_chance(100, 10, 50, m)) for m in range(6)]
    assert middle == pytest.approx([0.000659, 0.00788, 0.040526, 0.118123, 0.216111, 0.259334], abs=5e-7)


def test_prior_probability_is_proposition_1() -> None:
    for k, m in itertools.product(range(1, 13), range(5)):
        assert topology.prior_probability(k, 12, 4, m) == pytest.approx(float(prior_chance(12, 4, k, m)), abs=1e-15)
    assert sum(topology.prior_probability(50, 100, 10, m) for m in range(11)) == pytest.approx(1)


@pytest.mark.parametrize("k", range(6))
def test_proposition_1_by_enumeration(k: int) -> None:
    others = [j for j in range(6) if j != k]
    seen: Counter[int] = Counter()
    for chosen in itertools.combinations(others, 2):
        plan = topology.ordered({**topology.ring(6), k: chosen}, Rng(0), 2, order="id")
        seen[len(plan.fresh[k])] += 1
    assert {m: Fraction(n, 10) for m, n in seen.items()} == {
        m: chance for m in range(3) if (chance := prior_chance(6, 2, k + 1, m))
    }


def test_parallelism_is_one_in_m_plus_one() -> None:
    reads = topology.random(5, 2, Rng(3))
    starters = 0
    for order in itertools.permutations(range(5)):
        plan = topology.ordered(reads, Fixed(order), 1)
        starters += sum(not waits for waits in plan.fresh.values())
    assert Fraction(starters, 5 * 120) == Fraction(1, 3)
    assert all(not waits for waits in topology.ordered(reads, Rng(0), 0).fresh.values())


@pytest.mark.parametrize(("neighbours", "share"), [(1, 0.5), (5, 0.1667), (20, 0.0476)])
def test_parallelism_by_simulation(neighbours: int, share: float) -> None:
    starts = [
        start
        for i in range(60)
        for start, _ in topology.ordered(topology.random(100, neighbours, Rng(i)), Rng(i, "order"), 1).clock().values()
    ]
    assert sum(s == 0 for s in starts) / len(starts) == pytest.approx(share, abs=0.015)


def delay(neighbours: int, max_wait: int, draws: int = 250, **how: str) -> float:
    total = 0.0
    for i in range(draws):
        reads = topology.random(100, neighbours, Rng(i, "reads"))
        plan = topology.ordered(reads, Rng(i, "order"), max_wait, **how)
        total += max(finish for _, finish in plan.clock().values())
    return total / draws


@pytest.mark.parametrize(
    ("neighbours", "max_wait", "expected"),
    [(1, 1, 4.47), (2, 2, 6.19), (5, 2, 5.77), (10, 1, 3.76), (10, 5, 10.21), (10, 10, 18.27), (20, 5, 9.08)],
)
def test_delay_table(neighbours: int, max_wait: int, expected: float) -> None:
    assert delay(neighbours, max_wait) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("max_wait", "expected"), [(1, 4.77), (5, 11.35)])
def test_delay_of_the_smallest_id_variant(max_wait: int, expected: float) -> None:
    assert delay(10, max_wait, 800, order="id", pick="smallest id") == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(("max_wait", "expected"), [(0, 1), (1, 2), (2, 3), (5, 6), (19, 20)])
def test_delay_of_a_full_graph_is_exact(max_wait: int, expected: int) -> None:
    plan = topology.ordered(topology.full(20), Rng(0), max_wait)
    assert max(finish for _, finish in plan.clock().values()) == expected


def test_figure_1() -> None:
    reads = {1: (5, 6), 2: (3, 4), 3: (2, 6), 4: (5, 6), 5: (1, 6), 6: (1, 5)}

    def waits(max_wait: int) -> dict[int, set[int]]:
        return {k: set(js) for k, js in topology.ordered(reads, Rng(0), max_wait, order="id").fresh.items() if js}

    assert waits(0) == {}
    assert waits(1) == {3: {2}, 5: {1}, 6: {1}}
    assert waits(2) == {3: {2}, 5: {1}, 6: {1, 5}}
    plan = topology.ordered(reads, Rng(0), 2, order="id")
    assert plan.waves() == [[1, 2, 4], [3, 5], [6]]
    assert plan.clock() == {1: (0, 1), 2: (0, 1), 4: (0, 1), 3: (1, 2), 5: (1, 2), 6: (2, 3)}


def test_the_fastest_depend_on_training_times() -> None:
    reads = {0: (), 1: (), 2: (), 3: (0, 1, 2)}
    times = {0: 5.0, 1: 3.0, 2: 3.0, 3: 1.0}
    fresh = [topology.ordered(reads, Rng(0), n, times=times, order="id").fresh[3] for n in range(4)]
    assert fresh == [set(), {1}, {1, 2}, {0, 1, 2}]
    by_id = topology.ordered(reads, Rng(0), 2, times=times, order="id", pick="smallest id")
    assert by_id.fresh[3] == {0, 1}
    assert by_id.clock(times)[3] == (5.0, 6.0)
    swapped = topology.ordered(reads, Fixed((2, 1, 0, 3)), 1, times=times)
    assert swapped.fresh[3] == {2}  # a tie in time goes to the earlier in order


def test_finish_times_in_ordered_are_those_of_the_clock() -> None:
    reads = topology.random(30, 6, Rng(1))
    times = {k: 1.0 + (k % 7) / 3 for k in range(30)}
    for max_wait in (1, 3, 6):
        plan = topology.ordered(reads, Rng(2), max_wait, times=times)
        clock = plan.clock(times)
        for k, waits in plan.fresh.items():
            start = max((clock[j][1] for j in waits), default=0.0)
            assert clock[k] == (start, start + times[k])


@given(st.integers(1, 25), st.integers(0, 2**32), st.data())
@settings(deadline=None, max_examples=60)
def test_waves_cover_everyone_once_and_respect_waits(n: int, seed: int, data: st.DataObject) -> None:
    neighbours = data.draw(st.integers(0, n - 1))
    max_wait = data.draw(st.integers(0, neighbours))
    gone = topology.absent(n, data.draw(st.sampled_from([0.0, 0.3])), Rng(seed, "absent"))
    reads = topology.random(n, neighbours, Rng(seed))
    plan = topology.ordered(reads, Rng(seed, "order"), max_wait, absent=gone)
    assert set(plan.reads) == set(range(n)) - gone
    waves = plan.waves()
    assert sorted(k for wave in waves for k in wave) == sorted(plan.reads)
    level = {k: i for i, wave in enumerate(waves) for k in wave}
    for k, waits in plan.fresh.items():
        assert len(waits) <= max_wait
        assert waits <= set(plan.reads[k])
        assert not gone & set(plan.reads[k])
        assert all(level[j] < level[k] for j in waits)
        assert level[k] == 0 or any(level[j] == level[k] - 1 for j in waits)


def test_everyone_sequential_or_at_once() -> None:
    sequential = topology.ordered(topology.full(6), Rng(4), 5)
    assert [len(wave) for wave in sequential.waves()] == [1] * 6
    assert topology.at_once(topology.ring(4)).waves() == [[0, 1, 2, 3]]
    assert topology.ordered(topology.ring(4), Rng(0), 0) == topology.at_once(topology.ring(4))
    assert topology.at_once(topology.full(3), absent={1}).reads == {0: (2,), 2: (0,)}
    assert topology.at_once(topology.full(2), absent={0, 1}).waves() == []


def test_graphs() -> None:
    assert topology.ring(4) == {0: (1, 3), 1: (0, 2), 2: (1, 3), 3: (0, 2)}
    assert topology.ring(2) == {0: (1,), 1: (0,)}
    assert topology.ring(1) == topology.full(1) == {0: ()}
    assert topology.full(3) == {0: (1, 2), 1: (0, 2), 2: (0, 1)}
    assert topology.edges([(0, 1), (2, 1)], 4) == {0: (1,), 1: (0, 2), 2: (1,), 3: ()}
    assert topology.edges([(0, 1), (1, 0)], 2, directed=True) == {0: (1,), 1: (0,)}
    assert topology.edges([(2, 1)], 3, directed=True) == {0: (), 1: (2,), 2: ()}


def test_random_graphs_vary_with_the_key_and_are_uniform() -> None:
    graph = topology.random(20, 5, Rng(0, 1))
    assert graph == topology.random(20, 5, Rng(0, 1))
    assert graph != topology.random(20, 5, Rng(0, 2))
    assert all(len(set(js)) == 5 and k not in js and list(js) == sorted(js) for k, js in graph.items())
    assert topology.random(4, 3, Rng(0)) == topology.full(4)
    hits = Counter(j for i in range(2000) for j in topology.random(5, 2, Rng(i))[2])
    assert set(hits) == {0, 1, 3, 4}
    assert all(abs(n / 2000 - 0.5) < 0.05 for n in hits.values())


def test_groups_hold_everyone_and_read_each_other() -> None:
    graph = topology.groups(23, 5, Rng(0))
    assert sorted(graph) == list(range(23))
    for k, mates in graph.items():
        assert len(mates) >= 4
        assert all(set(graph[j]) | {j} == set(mates) | {k} for j in mates)
    assert len({frozenset({k, *mates}) for k, mates in graph.items()}) == 4
    assert topology.groups(3, 1, Rng(0)) == {0: (), 1: (), 2: ()}


def test_cohort_and_absent() -> None:
    chosen = topology.cohort(100, 10, Rng(0, "cohort", 3))
    assert chosen == sorted(set(chosen))
    assert len(chosen) == 10
    assert chosen == topology.cohort(100, 10, Rng(0, "cohort", 3))
    assert topology.cohort(5, 5, Rng(0)) == [0, 1, 2, 3, 4]
    assert topology.absent(50, 0.0, Rng(0)) == frozenset()
    assert topology.absent(50, 1.0, Rng(0)) == frozenset(range(50))
    assert len(topology.absent(10_000, 0.2, Rng(0))) == pytest.approx(2000, abs=150)


def test_a_wait_that_falls_in_steps() -> None:
    assert [topology.stepwise(2, t, 10) for t in range(10)] == [2, 2, 2, 1, 1, 1, 0, 0, 0, 0]
    assert [topology.stepwise(0, t, 3) for t in range(3)] == [0, 0, 0]
    assert topology.stepwise(10, 0, 5) == 0


def plans(rounds: int, **how) -> list[RoundPlan]:
    """Rounds of a topology of six clients."""
    return [Topology(**how).plan(6, t, rounds, Rng(5, "topology")) for t in range(rounds)]


def longest(plan: RoundPlan) -> int:
    return max(len(waits) for waits in plan.fresh.values())


def test_a_plan_waits_as_scheduled() -> None:
    """In a full graph the last in order has five earlier neighbours, so that all may be waited for."""
    assert [longest(plan) for plan in plans(7, name="full", max_wait=2)] == [2] * 7
    falling = plans(7, name="full", max_wait=2, wait_schedule="stepwise")  # three stretches of two rounds, and the rest
    assert [longest(plan) for plan in falling] == [2, 2, 1, 1, 0, 0, 0]
    assert [longest(plan) for plan in plans(7, name="full", max_wait=2, wait_schedule="constant")] == [2] * 7


@pytest.mark.parametrize("name", ["random", "mutual", "groups"])
def test_a_plan_draws_its_graph_once_or_every_round(name: str) -> None:
    def different(found: list[RoundPlan]) -> int:
        return len({tuple(sorted(plan.reads.items())) for plan in found})

    assert different(plans(8, name=name, neighbours=2)) > 3
    assert different(plans(8, name=name, neighbours=2, fixed=True, max_wait=1)) == 1
    fixed = Topology(name=name, neighbours=2, fixed=True)
    assert different([fixed.plan(6, 0, 8, Rng(seed, "topology")) for seed in range(8)]) > 3  # it is drawn all the same


def test_a_plan_draws_its_order_every_round() -> None:
    """Waiting for all earlier ones of a full graph shows the order: the waves are single clients."""
    orders = [[k for (k,) in plan.waves()] for plan in plans(6, name="full", max_wait=5, fixed=True)]
    assert all(sorted(order) == list(range(6)) for order in orders)
    assert orders[0] != orders[1]
    assert len(set(map(tuple, orders))) >= 5
    by_id = plans(6, name="full", max_wait=5, order="id")
    assert [[k for (k,) in plan.waves()] for plan in by_id] == [list(range(6))] * 6


def test_a_plan_does_not_wait_for_the_slow() -> None:
    """Client 3 reads 0, 1 and 2, who read nobody: they end after 4, 1 and 2."""
    pairs = ((0, 3), (1, 3), (2, 3))
    how = {"name": "edges", "pairs": pairs, "directed": True, "order": "id"}

    def waits(max_wait: int, **more) -> set[int]:
        return set(Topology(max_wait=max_wait, **how, **more).plan(4, 0, 3, Rng(5)).fresh[3])

    speed = (0.25, 1.0, 0.5, 1.0)
    assert [waits(n, speed=speed) for n in range(4)] == [set(), {1}, {1, 2}, {0, 1, 2}]
    assert [waits(n) for n in range(4)] == [set(), {0}, {0, 1}, {0, 1, 2}]  # all alike: the earlier in order
    assert [waits(n, speed=speed, pick="smallest id") for n in range(4)] == [set(), {0}, {0, 1}, {0, 1, 2}]
    assert Topology(speed=speed).times(4, Rng(5)) == {0: 4.0, 1: 1.0, 2: 2.0, 3: 1.0}


def test_a_plan_leaves_out_who_is_away() -> None:
    there = [frozenset(plan.reads) for plan in plans(8, name="full", max_wait=2, absent=0.5)]
    assert len(set(there)) > 4  # drawn every round
    assert all(set(plan.reads) == set(range(6)) for plan in plans(8, name="full", max_wait=2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: RoundPlan({0: (1,), 1: (0,)}, {0: frozenset({1}), 1: frozenset({0})}).waves(),
            r"\[0, 1\] wait for each other",
        ),
        (lambda: RoundPlan({0: (0,)}, {0: frozenset()}), "reads: client 0 reads itself"),
        (lambda: RoundPlan({0: (), 1: ()}, {0: frozenset({1}), 1: frozenset()}), r"fresh: client 0 waits for \[1\]"),
        (lambda: RoundPlan({0: (7,)}, {0: frozenset({7})}), r"fresh: client 0 waits for \[7\]"),
        (lambda: RoundPlan({0: ()}, {}), "fresh: clients"),
        (lambda: topology.random(10, 10, Rng(0)), r"neighbours: 10 is not allowed; expected a number in \[0, 9\]"),
        (
            lambda: topology.ordered(topology.ring(5), Rng(0), 3),
            r"max_wait: 3 is not allowed; expected a number in \[0, " r"2\]",
        ),
        (lambda: topology.ordered(topology.ring(5), Rng(0), -1), "max_wait: -1"),
        (
            lambda: topology.ordered(topology.ring(5), Rng(0), 1, order="name"),
            'order: "name" is not allowed; expected one of random, id',
        ),
        (
            lambda: topology.ordered(topology.ring(5), Rng(0), 1, pick="best"),
            'pick: "best" is not allowed; expected one of fastest, smallest id',
        ),
        (lambda: topology.cohort(5, 6, Rng(0)), r"per_round: 6 is not allowed; expected a number in \[1, 5\]"),
        (lambda: topology.cohort(5, 0, Rng(0)), "per_round: 0"),
        (lambda: topology.absent(5, 1.5, Rng(0)), "probability: 1.5"),
        (lambda: topology.edges([(0, 3)], 3), r"pairs: \[0, 3\] is not allowed; expected clients in \[0, 2\]"),
        (
            lambda: topology.edges([(1, 1)], 3),
            r"pairs: \[1, 1\] is not allowed; expected two different clients, " r"and each pair once",
        ),
        (
            lambda: topology.edges([(0, 1), (1, 0)], 3),
            r"pairs: \[1, 0\] is not allowed; expected two different clients, " r"and each pair once",
        ),
        (
            lambda: topology.edges([(0, 1), (0, 1)], 3, directed=True),
            r"pairs: \[0, 1\] is not allowed; expected two different clients, " r"and each pair once",
        ),
        (lambda: topology.ring(0), "n: 0"),
        (lambda: topology.groups(3, 4, Rng(0)), r"size: 4 is not allowed; expected a number in \[1, 3\]"),
        (lambda: topology.stepwise(2, 10, 10), r"t: 10 is not allowed; expected a number in \[0, 9\]"),
        (lambda: topology.prior_probability(0, 10, 2, 1), r"k: 0 is not allowed; expected a number in \[1, 10\]"),
        (
            lambda: topology.prior_probability(1, 10, 10, 1),
            r"neighbours: 10 is not allowed; expected a number in \[0, " r"9\]",
        ),
        (lambda: topology.prior_probability(1, 10, 2, 3), r"m: 3 is not allowed; expected a number in \[0, 2\]"),
    ],
)
def test_errors_name_the_field(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


@settings(deadline=None)
@given(n=st.integers(3, 40), half=st.integers(1, 19), seed=st.integers(0, 99))
def test_mutual_neighbours_read_each_other(n: int, half: int, seed: int) -> None:
    half = min(half, (n - 1) // 2)
    reads = topology.mutual(n, 2 * half, Rng(seed))
    assert sorted(reads) == list(range(n))
    for k, js in reads.items():
        assert len(set(js)) == 2 * half
        assert k not in js
        assert all(k in reads[j] for j in js)
    Topology(name="mutual", neighbours=2 * half, fixed=True).check(n)


def test_mutual_neighbours_come_in_pairs() -> None:
    with pytest.raises(ValueError, match="neighbours: 3 is not allowed; expected an even int"):
        topology.mutual(8, 3, Rng(1))
    with pytest.raises(ValueError, match='neighbours: 3 is not allowed; expected an even int with name = "mutual"'):
        Topology(name="mutual", neighbours=3).check(8)


def test_news_must_get_everywhere_along_directed_edges() -> None:
    path = ((0, 1), (1, 2))
    Topology(name="edges", pairs=path).check(3)
    Topology(name="edges", pairs=(*path, (2, 0)), directed=True).check(3)
    with pytest.raises(
        ValueError, match="pairs: client 1 is not connected to client 0 in both directions; expected a connected graph"
    ):
        Topology(name="edges", pairs=path, directed=True).check(3)


def test_edges_beside_another_graph_are_refused() -> None:
    for more in ({"edges": "square.txt"}, {"pairs": ((0, 1), (1, 2))}):
        with pytest.raises(ValueError, match='name: "ring" is not allowed with an edge list; expected "edges"'):
            Topology(name="ring", **more).check(3)
