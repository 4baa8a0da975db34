"""Means over clients against the papers' examples and a stacked float64 reference."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsona.core import aggregate
from sparsona.core.aggregate import Mean, OverlapMean, mean, overlap_mean, weighted_mean


def vec(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def bits(*values: int) -> torch.Tensor:
    return torch.tensor(values).bool()


def test_fedspa_divides_by_the_participants() -> None:
    u = Mean(2)
    u.add(vec(6.0), mask=bits(0, 1))
    u.add(vec(2.0), mask=bits(1, 0))
    assert u.value().tolist() == [1.0, 3.0]  # a coordinate in one mask of two moves by half of its update


@pytest.mark.parametrize(
    ("dense", "sparse", "whole", "naive", "elementwise"),
    [
        ([(1, 1), (2, 2), (3, 3)], [(0, 1), (2, 0), (0, 3)], (2, 2), (2 / 3, 4 / 3), (2, 2)),
        ([(1, 2), (3, 2), (3, 4)], [(0, 2), (3, 0), (0, 4)], (7 / 3, 8 / 3), (1, 2), (3, 3)),
    ],
    ids=["alike", "apart"],
)
def test_fedpse_appendix(dense, sparse, whole, naive, elementwise) -> None:
    vectors = [vec(*map(float, v)) for v in sparse]
    sent = [v != 0 for v in vectors]
    full = mean(vec(*map(float, v)) for v in dense)
    assert full.tolist() == pytest.approx(whole)
    plain = mean(vectors)
    assert plain.tolist() == pytest.approx(naive)
    ewa = overlap_mean(vectors, sent)
    assert ewa.tolist() == pytest.approx(elementwise)
    assert torch.dist(ewa, full) < torch.dist(plain, full)


def test_elementwise_counts_samples_of_senders_and_never_looks_at_zeros() -> None:
    vectors = [vec(0.0, 4.0, 7.0), vec(3.0, 8.0, 7.0)]
    out = overlap_mean(vectors, [bits(1, 1, 0), bits(1, 0, 0)], weights=[1, 2])
    assert out.tolist() == [2.0, 4.0, 0.0]  # a 0 that was sent counts; what was not sent does not


def test_pfedgate_blocks() -> None:
    sizes = torch.tensor([2, 1, 3])
    senders = [(0, 2), (1, 2), (0, 1), (0, 1, 2)]
    samples = [1.0, 2.0, 3.0, 4.0]
    updates = [torch.full((6,), float(10**i)) for i in range(4)]
    held = [torch.repeat_interleave(torch.tensor([b in s for b in range(3)]), sizes) for s in senders]
    out = overlap_mean(updates, held, samples)
    first = (1 * 1 + 100 * 3 + 1000 * 4) / 8
    second = (10 * 2 + 100 * 3 + 1000 * 4) / 9
    third = (1 * 1 + 10 * 2 + 1000 * 4) / 7
    assert out.tolist() == pytest.approx([first, first, second, third, third, third])


def test_perfedmask_keeps_the_old_value_where_nobody_trains() -> None:
    old = vec(7.0, 7.0, 7.0)
    out = overlap_mean([vec(1.0, 2.0), vec(5.0)], [bits(1, 1, 0), bits(1, 0, 0)], otherwise=old)
    assert out.tolist() == [3.0, 2.0, 7.0]
    assert old.tolist() == [7.0, 7.0, 7.0]
    everyone = torch.ones(3).bool()
    vectors = [vec(1.0, 2.0, 3.0), vec(5.0, 5.0, 5.0)]
    assert overlap_mean(vectors, [everyone] * 2).equal(mean(vectors))


def test_the_mean_of_equal_vectors_is_that_vector() -> None:
    v = torch.randn(1000)
    assert mean([v] * 7).equal(v)
    assert weighted_mean([v] * 3, [0.1, 0.2, 0.7]).equal(v)
    assert overlap_mean([v] * 3, [torch.ones(1000).bool()] * 3, [3, 5, 11]).equal(v)


def test_a_weight_of_zero_holds_nothing() -> None:
    out = overlap_mean([vec(5.0), vec(3.0, 3.0)], [bits(1, 0), bits(0, 1)], [0, 1], otherwise=vec(9.0, 9.0))
    assert out.tolist() == [9.0, 3.0]


@given(st.integers(0, 2**32), st.integers(1, 6), st.booleans(), st.sampled_from([5, 64, 100]))
@settings(deadline=None, max_examples=60)
def test_streaming_is_the_stacked_mean(seed: int, clients: int, packed: bool, dim: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    vectors = torch.randn(clients, dim, generator=draws)
    held = torch.rand(clients, dim, generator=draws) < 0.5
    weights = torch.randint(1, 50, (clients,), generator=draws).double()
    kept = vectors.clone(), held.clone()
    star, overlap = Mean(dim), OverlapMean(dim)
    before = aggregate._CHUNK
    aggregate._CHUNK = 16  # so that small vectors cross many borders
    try:
        for v, m, w in zip(vectors, held, weights.tolist(), strict=True):
            star.add(v[m] if packed else v, w, m)
            overlap.add(v[m] if packed else v, m, w)
    finally:
        aggregate._CHUNK = before
    total = (vectors.double() * held * weights[:, None]).sum(0)
    count = (held * weights[:, None]).sum(0)
    torch.testing.assert_close(star.value(), (total / weights.sum()).float())
    expected = torch.where(count > 0, total / count, -1.0).float()
    torch.testing.assert_close(overlap.value(torch.full((dim,), -1.0)), expected)
    assert star.value().dtype == torch.float32
    assert vectors.equal(kept[0])
    assert held.equal(kept[1])


def test_packed_and_dense_agree_to_the_bit() -> None:
    dim = 200_000  # several chunks, the last one short
    draws = torch.Generator().manual_seed(0)
    a, b = OverlapMean(dim), OverlapMean(dim)
    for n in range(1, 5):
        v = torch.randn(dim, generator=draws)
        m = torch.rand(dim, generator=draws) < 0.3
        a.add(v, m, n)
        b.add(v[m], m, n)
    assert a.value().equal(b.value())


def test_values_outside_the_mask_do_not_matter() -> None:
    star = Mean(2)
    star.add(vec(1.0, float("nan")), mask=bits(1, 0))
    assert star.value().tolist() == [1.0, 0.0]


def test_half_precision_and_generators_are_taken() -> None:
    assert mean(torch.full((2,), x, dtype=torch.float16) for x in (1.0, 2.0)).tolist() == [1.5, 1.5]
    assert weighted_mean(iter([vec(1.0), vec(4.0)]), iter([2, 1])).tolist() == [2.0]


def test_of_nothing_the_old_vector_stays() -> None:
    old = vec(1.0, 2.0)
    assert Mean(2).value(otherwise=old).equal(old)
    assert OverlapMean(2).value(otherwise=old).equal(old)
    assert overlap_mean([], [], otherwise=old).equal(old)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: mean([]), "mean: no contributions; expected at least one"),
        (lambda: overlap_mean([], []), "mean: no contributions; expected at least one"),
        (lambda: Mean(3).value(), "mean: no contributions; expected at least one"),
        (lambda: mean([vec(1.0), vec(1.0, 2.0)]), r"values: shape \(2,\) is not allowed; expected \(1,\)"),
        (
            lambda: Mean(3).add(vec(1.0), mask=bits(1, 1, 0)),
            r"values: shape \(1,\) is not allowed; expected \(3,\), or \(2,\) with",
        ),
        (
            lambda: Mean(3).add(vec(1.0), mask=bits(1, 1)),
            r"mask: torch\.bool \(2,\) is not allowed; expected torch\.bool " r"\(3,\)",
        ),
        (lambda: Mean(1).add(vec(1.0), mask=vec(1.0)), "mask: torch.float32"),
        (lambda: Mean(1).add(vec(1.0), -1.0), "weight: -1.0"),
        (lambda: Mean(1).add(vec(1.0), float("nan")), "weight: nan"),
        (lambda: weighted_mean([vec(1.0)], [0.0]), r"weight: a total of 0\.0 is not allowed; expected a float > 0"),
        (lambda: weighted_mean([vec(1.0)], [1.0, 2.0]), "argument"),
        (lambda: overlap_mean([vec(1.0)], [bits(1)], [1.0, 2.0]), "argument"),
        (
            lambda: overlap_mean([vec(1.0)], [bits(1)], otherwise=vec(1.0, 2.0)),
            r"otherwise: shape \(2,\) is not allowed; expected " r"\(1,\)",
        ),
    ],
)
def test_errors_name_the_field(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
