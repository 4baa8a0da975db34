"""Keyed random numbers: the key alone decides."""

import pytest
import torch

from pretended import BACKEND, DEVICE
from sparsona.core.rng import Rng


def test_same_key_same_numbers() -> None:
    a, b = Rng(1, "mask", 3), Rng(1)("mask")(3)
    assert a.key == b.key
    assert a.seed == b.seed
    assert a.uniform(5).equal(b.uniform(5))
    assert a.permutation(9).equal(b.permutation(9))
    assert a.choice(100, 7) == b.choice(100, 7)
    assert a.numpy().integers(1000, size=4).tolist() == b.numpy().integers(1000, size=4).tolist()


def test_draws_do_not_depend_on_earlier_draws() -> None:
    rng = Rng(5)
    first = rng.uniform(3)
    torch.rand(10)
    rng.permutation(4)
    Rng(6).uniform(3)
    assert rng.uniform(3).equal(first)
    forth = [rng(k).seed for k in range(10)]
    back = [rng(k).seed for k in reversed(range(10))]
    assert forth == back[::-1]


def test_different_keys_differ() -> None:
    keys = [Rng(1), Rng("1"), Rng(1, 1), Rng(11), Rng("1", "1"), Rng("11"), Rng(1, ""), Rng(), Rng(-1)]
    assert len({k.seed for k in keys}) == len(keys)
    assert not Rng(1).uniform(4).equal(Rng("1").uniform(4))


def test_the_seed_of_a_key_never_changes() -> None:
    assert Rng(0, "batch", 7).seed == 1_240_751_070_127_364_463  # other numbers would break every stored result
    assert 0 <= Rng(0).seed < 2**63


def test_draws_have_their_form() -> None:
    rng = Rng(0)
    assert sorted(rng.permutation(6).tolist()) == list(range(6))
    u = rng.uniform(2, 3)
    assert u.shape == (2, 3)
    assert bool(((u >= 0) & (u < 1)).all())
    chosen = rng.choice(10, 4)
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(10))
    assert rng.choice(3, 3) == [0, 1, 2]


def test_everywhere_keys_the_global_generator_and_gives_it_back() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with Rng(3).everywhere():
        inside = torch.rand(4)
    assert torch.get_rng_state().equal(before)
    assert inside.equal(torch.rand(4, generator=Rng(3).torch()))
    with pytest.raises(RuntimeError), Rng(3).everywhere():
        torch.rand(-1)
    assert torch.get_rng_state().equal(before)


def test_keys_are_numbers_and_words() -> None:
    with pytest.raises(TypeError, match=r"key: 1\.5 is not allowed; expected an int or a str"):
        Rng(1.5)
    assert repr(Rng(1, "a")) == "Rng(1, 'a')"


def test_an_accelerators_generator_is_keyed_within_the_block_and_restored():
    BACKEND.seeded[:] = [5]
    with Rng("layers", 1).everywhere(DEVICE):
        assert BACKEND.seeded == [5, Rng("layers", 1).seed]
    assert BACKEND.seeded == [5]


def test_draws_are_the_same_on_every_device():
    for draw in (lambda where: Rng(1).permutation(9, where), lambda where: Rng(2).uniform(2, 3, device=where)):
        assert draw(DEVICE).device == DEVICE
        assert draw(DEVICE).tolist() == draw(None).tolist()
