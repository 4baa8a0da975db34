"""Values of clients and servers survive as they are, and only as what the method declares."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pretended import DEVICE
from sparsona.core.layout import CPU
from sparsona.core.wire import Sparse
from sparsona.engines.values import dumps, loads, split, to, types_of
from sparsona.methods import METHODS
from sparsona.methods.ditto import Client as DittoClient


@dataclass(frozen=True)
class Toy:
    mask: Tensor
    values: Tensor
    history: tuple[float, ...]
    by_client: dict[int, Tensor]
    note: str | None = None


TYPES = {"Toy": Toy, "Sparse": Sparse}


def test_round_trip_of_everything():
    mask = torch.tensor([True, False, True, True, False, False, True, False, True])
    toy = Toy(mask, torch.tensor([1.5, -0.0, 3.0]), (0.1, float("inf"), -1e-300), {3: torch.arange(4), 1: mask}, "é")
    back = loads(dumps(toy), TYPES)
    assert torch.equal(back.mask, mask)
    assert back.mask.dtype == torch.bool
    assert torch.equal(back.values, toy.values)
    assert back.history == toy.history
    assert back.by_client.keys() == {1, 3}
    assert list(back.by_client) == [3, 1]  # order is part of a value
    assert torch.equal(back.by_client[3], torch.arange(4))
    assert back.note == "é"
    assert dumps(back) == dumps(toy)


def test_what_lies_in_a_dict_can_be_kept_apart():
    mask, each = torch.tensor([True, False, True]), {3: torch.arange(4), 1: torch.tensor([False, True])}
    toy = Toy(mask, torch.tensor([1.5]), (), each)
    kept, apart = split(toy)
    assert len(apart) == 2
    assert {id(t) for t in apart.values()} == {id(t) for t in each.values()}  # the very tensors: not copied
    stored = {name: dumps(tensor) for name, tensor in apart.items()}
    back = loads(kept, TYPES, lambda name: loads(stored[name], {}))
    assert dumps(back) == dumps(toy)
    with pytest.raises(ValueError, match="is stored separately"):
        loads(kept, TYPES)


def test_every_tensor_of_a_value_is_moved_and_comes_back_as_it_was():
    mask, model = torch.tensor([True, False, True]), Sparse(torch.tensor([False, True]), torch.tensor([2.5]))
    value = (Toy(mask, torch.tensor([1.5, -0.0]), (0.1,), {3: torch.arange(4)}, "é"), None, {"model": model})
    there = to(value, DEVICE)
    assert {t.device for t in (there[0].mask, there[0].values, there[0].by_client[3])} == {DEVICE}
    assert {there[2]["model"].mask.device, there[2]["model"].values.device} == {DEVICE}
    assert dumps(there) == dumps(value) == dumps(to(there, CPU))


def test_masks_cost_a_bit_each():
    mask = torch.rand(80_000) < 0.5
    assert len(dumps(mask)) < 80_000 / 8 + 400


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.tuples))
def test_plain_values(value):
    assert loads(dumps(value), {}) == value


def test_unknown_classes_are_not_built():
    with pytest.raises(ValueError, match="not a stored value, or a damaged one"):
        loads(dumps(Toy(torch.ones(1), torch.ones(1), (), {})), {})


@pytest.mark.parametrize("cut", [0, 3, 8, 20, -1])
def test_damage_is_told(cut):
    data = dumps(Toy(torch.ones(9) > 0, torch.ones(5), (1.0,), {}))
    with pytest.raises(ValueError, match="not a stored value, or a damaged one"):
        loads(data[:cut], TYPES)


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(TypeError, match=r"a stored value cannot contain set: \{1, 2\}"):
        dumps({1, 2})


def test_a_methods_types_are_found_in_its_modules():
    assert types_of(METHODS["ditto"]())["Client"] is DittoClient
