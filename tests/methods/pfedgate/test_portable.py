"""Tensors in pieces: the numbers of the dense tensor times its blocks' weights, stored without what was dropped."""

import pytest
import torch
from torch import nn

from sparsona.core.rng import Rng
from sparsona.core.task import Task
from sparsona.methods.pfedgate.blocks import Blocks, channels, even, flat
from sparsona.methods.pfedgate.gate import fresh, gate_task
from sparsona.methods.pfedgate.portable import Pieces, SparseModule, gated_module
from sparsona.methods.pfedgate.scaled_model import Masked
from sparsona.methods.pfedgate.sparse_adaptation import Gated
from sparsona.models import build


def in_turn(layout, blocks, least):
    """Neighbours are never of one block."""
    return Blocks(layout, torch.arange(layout.dim) % blocks, torch.tensor([True] + [False] * (blocks - 1)))


def whole_tensors(layout, blocks, least):
    """One block for each tensor."""
    index = torch.repeat_interleave(torch.arange(len(layout.slots)), torch.tensor(layout.sizes))
    return Blocks(layout, index, torch.tensor([True] + [False] * (len(layout.slots) - 1)))


def cut(split):
    task, theta = Task.of(build("digits-cnn", classes=10, shape=(1, 8, 8)), torch.zeros(2, 1, 8, 8))
    blocks = split(task.layout.trained, 5, 0.2)
    chosen = blocks.first | (torch.arange(len(blocks)) % 3 == 1)
    return task, theta, blocks, chosen


@pytest.mark.parametrize("split", [flat, even, channels, in_turn, whole_tensors])
def test_pieces_give_the_tensor_times_its_weights(split):
    _, theta, blocks, chosen = cut(split)
    weights = Rng(1, "weights").uniform(int(chosen.sum()))
    numbers = torch.where(chosen, chosen.cumsum(0) - 1, -1)[blocks.index]
    whole = theta * torch.where(numbers < 0, 0.0, weights[numbers])
    kept, told = 0, 0
    for slot in blocks.layout.slots:
        pieces = Pieces(slot, theta, numbers)
        with torch.no_grad():
            assert torch.equal(pieces(weights), slot.view(whole[slot.where]))
        kept += pieces.values.numel()
        told += sum(t.numel() * t.element_size() for t in (pieces.blocks, pieces.lengths, pieces.way))
    if split is in_turn:
        assert told < 1.2 * blocks.layout.dim  # a byte for each entry of large tensors
    else:
        assert kept == int(blocks.sizes[chosen].sum())
        assert told <= 6 * len(blocks) + len(blocks.layout.slots)


def test_many_weights_take_more_than_a_byte():
    _, theta, blocks, _ = cut(lambda layout, *_: in_turn(layout, 300, 0))
    slot = max(blocks.layout.slots, key=lambda s: s.size)
    weights = Rng(1, "weights").uniform(300)
    pieces = Pieces(slot, theta, blocks.index)
    assert pieces.blocks.dtype == torch.int16
    assert torch.equal(pieces(weights), slot.view((theta * weights[blocks.index])[slot.where]))


def test_what_is_in_no_block_stays():
    """Running statistics, and tensors that are not trained."""
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
    model[1].running_mean.fill_(0.3)
    model[4].bias.data.fill_(0.7)
    model[4].bias.requires_grad_(False)
    task, theta = Task.of(model, torch.zeros(2, 1, 6, 6))
    blocks = flat(task.layout.trained, 5, 0.2)
    chosen = torch.arange(len(blocks)) % 2 == 0
    gate = gate_task((1, 6, 6), len(blocks), True, True, True, False)
    gated = Gated(task, gate, blocks, 0.2, lambda _: chosen)
    phi, x = fresh(gate, Rng(1, "gate")), Rng(1, "x").uniform(7, 1, 6, 6)
    module = gated_module(gated, theta, phi, x)
    assert isinstance(module, SparseModule)
    with torch.no_grad():
        gated.load(theta, phi, train=False)
        want = Masked(task, blocks)(x, gated.theta, gate.model(x)[1] * chosen, chosen)
        assert torch.allclose(module(x), want, atol=1e-6)
        assert torch.equal(gated.logits(theta, phi, x), want)
    state = {name: t for name, t in module.state_dict().items() if t.numel()}
    assert {name for name in state if name.startswith("model.")} == {
        *("model.1.running_mean", "model.1.running_var", "model.1.num_batches_tracked", "model.4.bias")
    }
