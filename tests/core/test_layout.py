"""The map between models and vectors, checked on a net small enough to count by hand."""

import pytest
import torch
from torch import nn

from sparsona.core.layout import Layout


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)  # 8 x 8 becomes 4 x 4
        self.group = nn.GroupNorm(2, 4)
        self.batch = nn.BatchNorm2d(4)
        self.grouped = nn.Conv2d(4, 6, 2, groups=2, bias=False)  # 4 x 4 becomes 3 x 3
        self.hidden = nn.Linear(54, 5)
        self.out = nn.Linear(5, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.grouped(self.batch(self.group(self.conv(x))))
        return self.out(self.hidden(x.flatten(1)))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 3)
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.embed(x))  # every position of the sequence


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.fixture
def layout(net: Net) -> Layout:
    return Layout.of(net, torch.zeros(2, 3, 8, 8))


def test_kinds_places_and_uses(layout: Layout) -> None:
    rows = [(s.name, s.shape, s.kind, s.layer, s.offset, s.uses) for s in layout.slots]
    assert rows == [
        ("conv.weight", (4, 3, 3, 3), "weight", "conv", 0, 16),
        ("conv.bias", (4,), "bias", "conv", 108, 16),
        ("group.weight", (4,), "norm", "group", 112, 0),
        ("group.bias", (4,), "norm", "group", 116, 0),
        ("batch.weight", (4,), "norm", "batch", 120, 0),
        ("batch.bias", (4,), "norm", "batch", 124, 0),
        ("grouped.weight", (6, 2, 2, 2), "weight", "grouped", 128, 9),
        ("hidden.weight", (5, 54), "weight", "hidden", 176, 1),
        ("hidden.bias", (5,), "bias", "hidden", 446, 1),
        ("out.weight", (2, 5), "weight", "out", 451, 1),
        ("out.bias", (2,), "bias", "out", 461, 1),
        ("batch.running_mean", (4,), "buffer", "batch", 463, 0),
        ("batch.running_var", (4,), "buffer", "batch", 467, 0),
    ]
    assert layout.dim == 471
    assert layout.params == 463
    assert sum(layout.sizes) == 471


def test_flops_by_hand(layout: Layout) -> None:
    dense = 2 * (16 * 108 + 9 * 48 + 270 + 10) + 16 * 4 + 5 + 2
    assert layout.flops() == dense == 4951
    mask = torch.ones(layout.dim).bool()
    assert layout.flops(mask) == dense
    mask[:8] = False  # eight weights of the first convolution
    mask[108:112] = False  # biases count whatever the mask says
    mask[451] = False
    assert layout.flops(mask) == dense - 2 * 16 * 8 - 2
    assert layout.counts(mask)[:2] == [100, 0]


def test_measuring_leaves_the_model_alone(net: Net) -> None:
    net.train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    Layout.of(net, torch.randn(2, 3, 8, 8))
    assert net.training
    assert all(v.equal(before[k]) for k, v in net.state_dict().items())
    assert not net.conv._forward_hooks


def test_uses_count_positions_of_sequences_and_layers_used_twice() -> None:
    slots = {s.name: s for s in Layout.of(Words(), torch.zeros(4, 5, dtype=torch.long)).slots}
    assert (slots["embed.weight"].kind, slots["embed.weight"].uses) == ("weight", 0)
    assert (slots["linear.weight"].uses, slots["linear.bias"].uses) == (5, 5)
    shared = nn.Linear(3, 3)
    assert [s.uses for s in Layout.of(nn.Sequential(shared, shared), torch.zeros(2, 3)).slots] == [2, 2]


def test_flatten_and_unflatten_are_inverse(net: Net, layout: Layout) -> None:
    v = torch.randn(layout.dim)
    tensors = layout.unflatten(v)
    assert {k: tuple(t.shape) for k, t in tensors.items()} == {s.name: s.shape for s in layout.slots}
    assert layout.flatten(tensors).equal(v)
    state = net.state_dict()
    back = layout.unflatten(layout.flatten(state))
    assert all(t.equal(state[k]) for k, t in back.items())


def test_unflatten_gives_views(layout: Layout) -> None:
    v = torch.zeros(layout.dim)
    for tensor in layout.unflatten(v).values():
        tensor += 1
    assert bool((v == 1).all())
    layout.split(v)[1].zero_()
    assert v.nonzero().numel() == layout.dim - 4


def test_convolutions_are_channels_last_views(net: Net, layout: Layout) -> None:
    v = layout.flatten(net.state_dict())
    weight = layout.unflatten(v)["conv.weight"]
    assert weight.equal(net.conv.weight)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert weight.data_ptr() == v.data_ptr()
    unit = net.conv.weight[2].permute(1, 2, 0).flatten()  # row, column, input
    assert v[54:81].equal(unit)  # the third output unit's run


def test_head(net: Net, layout: Layout) -> None:
    assert layout.head.nonzero().flatten().tolist() == list(range(451, 463))
    net.head_name = "hidden"
    named = Layout.of(net, torch.zeros(1, 3, 8, 8))
    assert named.head.nonzero().flatten().tolist() == list(range(176, 451))
    assert not Layout.of(nn.Sequential(nn.Conv2d(1, 1, 1)), torch.zeros(1, 1, 2, 2)).head.any()


def test_select_and_spread(layout: Layout) -> None:
    assert int(layout.select("weight").sum()) == 108 + 48 + 270 + 10
    assert int(layout.select("bias", "norm").sum()) == 4 + 16 + 5 + 2
    assert layout.select("buffer").nonzero().flatten().tolist() == list(range(463, 471))
    assert layout.select("weight", "bias", "norm", "buffer").all()


def test_runs_are_the_fewest_slices() -> None:
    """Tensors of 6, 2, 4, 2 and 2 entries."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 1, bias=False))
    layout = Layout.of(model, torch.zeros(1, 3))
    assert layout.runs([True] * 5) == [slice(0, 16)]
    assert layout.runs([True, True, False, True, True]) == [slice(0, 8), slice(12, 16)]
    assert layout.runs([False, True, False, True, False]) == [slice(6, 8), slice(12, 14)]
    assert layout.runs([False] * 5) == []


def test_errors() -> None:
    with pytest.raises(ValueError, match="ReLU has no trainable"):
        Layout.of(nn.ReLU(), torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"model: parameter weight is torch\.float64; expected torch\.float32"):
        Layout.of(nn.Linear(2, 2).double(), torch.zeros(1, 2).double())


def test_a_group_of_nothing_is_refused():
    class Grouped(Net):
        layer_groups = (("conv.", "group.", "batch.", "grouped."), ("out.",), ("hidden.",))  # the second is the head's

    with pytest.raises(
        ValueError, match=r"layer_groups of Grouped: group 1, \['out\.'\], " r"has no trained tensor of the body"
    ):
        Layout.of(Grouped(), torch.zeros(1, 3, 8, 8))
