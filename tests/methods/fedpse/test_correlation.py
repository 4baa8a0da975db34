"""Correlations against hand-worked numbers."""

import math

import pytest
import torch

from sparsona.methods.fedpse.correlation import CORRELATIONS, cosine, distance, pearson, signs


def vec(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def test_cosines_one_zero_and_minus_one_are_distances_zero_a_half_and_one() -> None:
    a = vec(3.0, 0.0, -4.0)
    assert distance(cosine, a, 2 * a) == pytest.approx(0, abs=1e-12)
    assert distance(cosine, a, vec(4.0, 7.0, 3.0)) == 0.5
    assert distance(cosine, a, -a) == pytest.approx(1, abs=1e-12)
    assert cosine(a, vec(1.0, 0.0, 0.0)) == pytest.approx(0.6)


def test_nothing_can_be_told_of_zeros() -> None:
    for correlation in CORRELATIONS.values():
        assert distance(correlation, vec(0.0, 0.0), vec(0.0, 0.0)) == 0.5
    assert distance(cosine, vec(0.0, 0.0), vec(1.0, 2.0)) == 0.5
    assert distance(pearson, vec(2.0, 2.0), vec(1.0, 2.0)) == 0.5  # constant


def test_tiny_and_huge_entries_do_not_vanish_or_overflow() -> None:
    a = vec(1e-30, 2e-30)
    assert cosine(a, a) == pytest.approx(1)
    assert cosine(vec(3e38, 0.0), vec(3e38, 3e38)) == pytest.approx(math.sqrt(0.5))


def test_pearson_takes_the_means_off() -> None:
    # (1, 2, 6) less 3, (4, 4, 1) less 3: (-2, -1, 3) and (1, 1, -2); -9 / sqrt(14 * 6)
    assert pearson(vec(1.0, 2.0, 6.0), vec(4.0, 4.0, 1.0)) == pytest.approx(-9 / math.sqrt(84))


def test_signs_count_agreement() -> None:
    # two agree, one is opposed, one is only in the second, one in neither
    assert signs(vec(1.0, -2.0, 3.0, 0.0, 0.0), vec(9.0, -1.0, -1.0, 4.0, 0.0)) == 1 / 4


def test_a_measure_out_of_range_is_refused_and_rounding_is_not() -> None:
    def slipping(a: torch.Tensor, b: torch.Tensor) -> float:
        return 1 + 1e-7

    def wild(a: torch.Tensor, b: torch.Tensor) -> float:
        return math.nan

    assert distance(slipping, vec(1.0), vec(1.0)) == 0.0
    with pytest.raises(ValueError, match=r"correlation: wild returned nan; expected a float in \[-1, 1\]"):
        distance(wild, vec(1.0), vec(1.0))
