"""Cuts by share and test sets by label mix."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsona.core.rng import Rng
from sparsona.data.split import cut, label_mix, whole


@settings(max_examples=100, deadline=None)
@given(total=st.integers(0, 10_000), shares=st.lists(st.floats(0, 1000), min_size=1, max_size=12).filter(any))
def test_whole_numbers_are_within_one_of_the_share(total: int, shares: list[float]) -> None:
    if sum(shares) < 1e-300:
        return
    numbers = whole(total, shares)
    assert numbers.sum() == total
    assert (np.abs(numbers - np.array(shares) / sum(shares) * total) < 1 + 1e-6).all()


def test_whole_numbers_by_hand() -> None:
    assert whole(600, (450, 50, 100)).tolist() == [450, 50, 100]
    assert whole(10, (0.6, 0.2, 0.2)).tolist() == [6, 2, 2]
    assert whole(10, (1, 1, 1)).tolist() == [4, 3, 3]
    assert whole(3, (0.7, 0.1, 0.2)).tolist() == [2, 0, 1]


@settings(max_examples=60, deadline=None)
@given(size=st.integers(2, 300), test=st.floats(1e-6, 10), seed=st.integers(0, 9))
def test_a_cut_uses_every_sample_once(size: int, test: float, seed: int) -> None:
    samples = np.arange(size) * 3
    pieces = cut(samples, (6, 2, test), Rng(seed), needed=(0, 2))
    assert np.array_equal(np.sort(np.concatenate(pieces)), samples)
    assert len(pieces[0])
    assert len(pieces[2])


def test_a_cut_needs_enough_samples() -> None:
    assert [p.tolist() for p in cut(np.array([7]), (1, 9), Rng(0))] == [[7], []]
    with pytest.raises(
        ValueError, match=r"data\.split: 1 samples of a client are too few for 2 parts with at least one " r"each"
    ):
        cut(np.array([7]), (6, 2, 2), Rng(0), needed=(0, 2))


def test_label_mix_without_need_of_overlap() -> None:
    labels = np.arange(1000) % 10
    mixes = np.eye(10, dtype=int) * 300 + 20  # 320 of 500 own, 20 of each other: 64 and 4 of 100
    tests = label_mix(mixes, labels, 100, Rng(0))
    for k, mine in enumerate(tests):
        assert np.bincount(labels[mine], minlength=10).tolist() == [64 if c == k else 4 for c in range(10)]
    assert len(np.unique(np.concatenate(tests))) == 1000


def test_label_mix_shares_a_class_evenly_where_it_runs_out() -> None:
    labels = np.repeat([0, 1], [10, 50])
    mixes = np.array([[1, 0], [1, 0], [1, 0], [1, 3]])
    tests = label_mix(mixes, labels, 8, Rng(0))
    assert [np.bincount(labels[t], minlength=2).tolist() for t in tests] == [[8, 0], [8, 0], [8, 0], [2, 6]]
    assert all(len(np.unique(t)) == len(t) for t in tests)
    uses = np.bincount(np.concatenate(tests), minlength=60)[:10]
    assert (uses.min(), uses.max()) == (2, 3)  # 26 wanted of 10


def test_label_mix_without_overlap_gives_less() -> None:
    labels = np.repeat([0, 1], [10, 50])
    mixes = np.array([[1, 0], [1, 0], [1, 0], [1, 3]])
    tests = label_mix(mixes, labels, 8, Rng(0), overlap=False)
    together = np.concatenate(tests)
    assert len(np.unique(together)) == len(together) == 16
    assert [len(t) for t in tests] == [3, 3, 3, 7]
    with pytest.raises(
        ValueError, match=r"data\.test_samples: the test set has too few samples of the classes of client " r"10"
    ):
        label_mix(np.tile([1, 0], (11, 1)), labels, 8, Rng(0), overlap=False)


def test_label_mix_takes_all_of_a_class_that_is_too_small() -> None:
    tests = label_mix(np.array([[1, 1]]), np.repeat([0, 1], [3, 50]), 20, Rng(0))
    assert len(tests[0]) == 13
    with pytest.raises(ValueError, match="classes of client 0"):
        label_mix(np.array([[0, 1]]), np.zeros(5, int), 20, Rng(0))
    with pytest.raises(ValueError, match=r"data\.test_samples: 0 is not allowed; expected an int >= 1"):
        label_mix(np.array([[1, 1]]), np.zeros(5, int), 0, Rng(0))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), overlap=st.booleans(), wanted=st.integers(1, 40))
def test_label_mix_never_repeats_within_a_client(data: st.DataObject, overlap: bool, wanted: int) -> None:
    mixes = np.array(data.draw(st.lists(st.lists(st.integers(1, 50), min_size=4, max_size=4), min_size=1, max_size=6)))
    labels = np.arange(200) % 4
    tests = label_mix(mixes, labels, wanted, Rng(0), overlap=overlap)
    for mix, mine in zip(mixes, tests, strict=True):
        assert len(np.unique(mine)) == len(mine) <= wanted
        if overlap:
            assert np.array_equal(np.bincount(labels[mine], minlength=4), whole(wanted, mix))
    if not overlap:
        assert len(np.unique(np.concatenate(tests))) == sum(map(len, tests))
