"""What a forward pass costs beyond linear and convolution layers, against counts by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparsona.core.layout import Layout
from sparsona.core.rng import Rng
from sparsona.core.samples import Samples
from sparsona.core.task import Task


def uses(layout: Layout) -> dict[str, int]:
    return {slot.name: slot.uses for slot in layout.slots if slot.uses and len(slot.shape) > 1}


class Attention(nn.Module):
    """A transformer layer over 6 words, of width 8 with 2 heads and 16 hidden units, that ignores padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.places = nn.Parameter(torch.zeros(6, 8))
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layer(self.embed(x) + self.places, src_key_padding_mask=x == 0)
        return self.head(h.mean(1))


@pytest.mark.parametrize("samples", [1, 3])
def test_attention_is_counted(samples):
    layout = Layout.of(Attention(), torch.ones(samples, 6, dtype=torch.int64))
    projections, inner = 2 * 6 * (3 * 8 * 8 + 8 * 8), 2 * 6 * (2 * 8 * 16) + 6 * (16 + 8)
    products = 2 * (2 * 6 * 6 * 8)  # queries by keys, and weights by values
    assert layout.other_flops == products
    assert layout.flops() == projections + inner + products + 2 * 24 + 3
    assert layout.uncounted == ()
    names = ("in_proj_weight", "out_proj.weight")
    assert {name: uses(layout)[f"layer.self_attn.{name}"] for name in names} == dict.fromkeys(names, 6)


def test_masks_make_attention_cheaper_by_its_weights_only():
    layout = Layout.of(Attention(), torch.ones(1, 6, dtype=torch.int64))
    mask = torch.ones(layout.dim, dtype=torch.bool)
    mask[next(s for s in layout.slots if s.name.endswith("in_proj_weight")).where] = False
    assert layout.flops() - layout.flops(mask) == 2 * 6 * 3 * 8 * 8
    assert layout.flops(torch.zeros_like(mask)) == layout.other_flops + 6 * (16 + 8) + 3
    assert layout.training_flops() == 3 * layout.flops()


@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)])
def test_recurrent_layers_are_counted(kind, gates):
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.recurrent = kind(4, 5, batch_first=True)
            self.head = nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.recurrent(self.embed(x))[0][:, -1])

    layout = Layout.of(Recurrent(), torch.ones(1, 7, dtype=torch.int64))
    assert layout.flops() == 2 * 7 * gates * (4 * 5 + 5 * 5) + 2 * 10 + 2
    assert layout.uncounted == ()


class ByHand(nn.Module):
    """A matrix used twice, a tied table, one that is not used, and one whose operation PyTorch does not count."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 4))
        self.table = nn.Embedding(3, 4)
        self.waves = nn.Parameter(torch.randn(4, 4))
        self.idle = nn.Parameter(torch.randn(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.einsum("nd,dk->nk", x @ self.matrix, self.matrix)
        return F.linear(x + torch.fft.fft(self.waves).real.sum(), self.table.weight)


def test_parameters_used_by_hand_are_counted_or_named():
    layout = Layout.of(ByHand(), torch.ones(2, 4))
    assert uses(layout) == {"matrix": 2, "table.weight": 1}
    assert layout.flops() == 2 * (2 * 16) + 2 * 12
    assert sorted(layout.uncounted) == ["idle", "waves"]


class InNumpy(torch.autograd.Function):
    """A product that PyTorch does not see."""

    @staticmethod
    def forward(ctx, x, w):
        return torch.from_numpy(x.detach().numpy() @ w.detach().numpy())


def test_products_entry_by_entry_are_named():
    class Pointwise(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 3))
            self.places = nn.Parameter(torch.randn(7, 5))
            self.table = nn.Embedding(3, 4)
            self.added = nn.Parameter(torch.randn(1, 4))
            self.head = nn.Linear(5, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.added + self.table.weight[0] + self.table(torch.tensor([1]))
            return (
                self.head(self.places.mean(0).sin().expand(len(x), 5)) + (x[:, :, None] * self.w).sum((1, 2))[:, None]
            )

    layout = Layout.of(Pointwise(), torch.ones(2, 4))
    assert (uses(layout), layout.uncounted) == ({"head.weight": 1}, ("w", "places"))


def test_products_outside_pytorch_are_named():
    class Outside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return InNumpy.apply(x, self.w)

    layout = Layout.of(Outside(), torch.ones(2, 4))
    assert (layout.flops(), layout.uncounted) == (0, ("w",))


def test_a_model_that_cannot_be_looked_into_names_its_matrices(monkeypatch):
    monkeypatch.setattr("sparsona.core.operations.flop_registry", None)
    layout = Layout.of(ByHand(), torch.ones(2, 4))
    assert set(layout.uncounted) >= {"matrix", "waves", "idle"}


def test_layers_need_no_counter(monkeypatch):
    monkeypatch.setattr("sparsona.core.operations._counted", None)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 4))
    layout = Layout.of(model, torch.zeros(1, 2, 5, 5))
    assert layout.flops() == 9 * (2 * 54 + 3) + 2 * 108 + 4
    assert layout.other_flops == 0


def test_a_transformer_trains_and_is_charged():
    torch.manual_seed(0)
    x = torch.randint(1, 20, (8, 6))
    task, theta = Task.of(Attention(), x[:1])
    samples = Samples(x, torch.arange(8) % 3, torch.arange(8))
    task.load(theta)
    task.gradients(samples.batch(Rng(1), 8))
    assert task.flops == 8 * 3 * task.layout.flops()
    with task.scaled(0.5):  # a layer of several parts is not divided
        task.gradients(samples.batch(Rng(1), 8))
