"""The arithmetic that engines agree on."""

from __future__ import annotations

import pytest
import torch

from sparsona.core.arithmetic import arithmetic

TINY = 1e-40  # below what single floats hold in full precision


def halved() -> float:
    return float(torch.tensor(TINY).mul(0.5))


def test_tiny_numbers_are_zero_inside_and_back_afterwards() -> None:
    assert halved() > 0
    with arithmetic():
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor cannot flush")
        assert halved() == 0
        with arithmetic():
            assert halved() == 0
        assert halved() == 0  # the inner one leaves the outer one as it was
    assert halved() > 0


def test_threads_are_put_back_also_after_an_error() -> None:
    def fail() -> None:
        assert torch.get_num_threads() == 1
        raise KeyError

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(KeyError), arithmetic():
            fail()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
