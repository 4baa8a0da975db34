"""The simulator of waits against the plans of real rounds, and against what is known exactly."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsona.core import topology
from sparsona.core.rng import Rng
from sparsona.papers.waiting import Pick, at_once, finishes, graph, waiting


@given(st.integers(2, 30), st.integers(0, 2**32), st.sampled_from(["fastest", "smallest id"]), st.data())
@settings(deadline=None, max_examples=60)
def test_every_client_finishes_when_the_clock_of_a_run_says(n: int, seed: int, pick: Pick, data: st.DataObject) -> None:
    neighbours = data.draw(st.integers(1, n - 1))
    wait = data.draw(st.integers(0, neighbours))
    reads = np.stack([graph(n, neighbours, Rng(seed, i)) for i in range(3)])
    found = finishes(reads, wait, pick)
    for one, done in zip(reads, found, strict=True):
        named = {k: tuple(sorted(int(j) for j in row)) for k, row in enumerate(one)}
        clock = topology.ordered(named, Rng(0), wait, order="id", pick=pick).clock()
        assert done.tolist() == [clock[k][1] for k in range(n)]


def test_graphs_are_uniform_and_nested() -> None:
    few, many = graph(20, 3, Rng(1)), graph(20, 19, Rng(1))
    assert (many[:, :3] == few).all()
    assert all(sorted(row) == [j for j in range(20) if j != k] for k, row in enumerate(many))
    hits = np.bincount(np.concatenate([graph(5, 2, Rng(i))[2] for i in range(2000)]), minlength=5)
    assert hits[2] == 0
    assert all(abs(h / 2000 - 0.5) < 0.05 for h in hits[[0, 1, 3, 4]])


def test_an_order_drawn_at_random_gives_the_same_delay() -> None:
    """Numbering clients by their places loses nothing."""
    lengths = []
    for i in range(300):
        plan = topology.ordered(topology.random(40, 5, Rng(i)), Rng(i, "order"), 2)
        lengths.append(max(finish for _, finish in plan.clock().values()))
    found = waiting(40, [5], [2], 2000).delay[5, 2]
    assert found.error is not None
    assert float(np.mean(lengths)) == pytest.approx(found.mean, rel=0.04)


def test_what_is_known_exactly() -> None:
    found = waiting(12, [1, 4, 11], [0, 1, 3], 400)
    for m, share in found.parallelism.items():
        assert share.error is not None
        assert share.mean == pytest.approx(at_once(m), abs=4 * share.error + 1e-12)
    assert (at_once(1), at_once(4)) == (0.5, 0.2)
    assert list(found.delay) == [(1, 0), (1, 1), (4, 0), (4, 1), (4, 3), (4, 4), (11, 0), (11, 1), (11, 3), (11, 11)]
    assert [found.delay[11, n].mean for n in (0, 1, 3, 11)] == [1, 2, 4, 12]
    assert {found.delay[11, n].error for n in (0, 1, 3, 11)} == {0.0}
    assert found.delay[4, 0].mean == 1


def test_draws_depend_on_their_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    one = waiting(15, [2, 5], [1], 250, listen=heard.append)
    assert heard == [100, 200, 250]
    monkeypatch.setattr("sparsona.papers.waiting._BATCH", 15 * 5 * 7)
    assert waiting(15, [2, 5], [1], 250) == one
    assert waiting(15, [2], [1], 250).delay[2, 1] == one.delay[2, 1]
    assert waiting(15, [2, 5], [1], 250, seed=2) != one


def test_the_error_is_that_of_the_mean() -> None:
    found = waiting(10, [3], [1], 50)
    reads = np.stack([graph(10, 3, Rng(1, "waiting", i)) for i in range(50)])
    lengths = finishes(reads, 1).max(axis=1)
    assert found.delay[3, 1].mean == pytest.approx(lengths.mean())
    assert found.delay[3, 1].error == pytest.approx(lengths.std(ddof=1) / 50**0.5)
    assert waiting(10, [3], [1], 1).delay[3, 1].error is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": 1}, r"clients: 1 is not allowed; expected an int in \[2, 5000\]"),
        ({"clients": 5001}, r"clients: 5001 is not allowed; expected an int in \[2, 5000\]"),
        ({"neighbours": [2, 10]}, r"neighbours: 10 is not allowed; expected an int in \[1, 9\]"),
        ({"neighbours": [0]}, r"neighbours: 0 is not allowed; expected an int in \[1, 9\]"),
        ({"waits": [-1]}, "waits: -1 is not allowed; expected an int >= 0"),
        ({"draws": 0}, "draws: 0 is not allowed; expected an int >= 1"),
        ({"pick": "best"}, 'pick: "best" is not allowed; expected one of fastest, smallest id'),
    ],
)
def test_errors_name_the_field(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        waiting(**({"clients": 10, "neighbours": [2], "waits": [1], "draws": 3} | change))  # type: ignore[arg-type]
