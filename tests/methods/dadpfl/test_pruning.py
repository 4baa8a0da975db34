"""The compressibility index and the rounds of pruning, against hand-worked values."""

import math

import pytest
import torch

from sparsona.core import masks
from sparsona.core.layout import Kind, Layout, Slot
from sparsona.methods.dadpfl.pruning import PQ, pq_prune, prune_rounds


def layout_of(*rows: tuple[str, tuple[int, ...], Kind]) -> Layout:
    slots, offset = [], 0
    for name, shape, kind in rows:
        slots.append(Slot(name, shape, kind, name.rpartition(".")[0], offset, 1))
        offset += math.prod(shape)
    return Layout(tuple(slots))


def test_pq_index_and_spare() -> None:
    pq = PQ()
    powers = torch.tensor([8, 4, 2, 1, 0.5, 0.25, 0.125, 0.0625])
    assert pq.index(torch.ones(4)) == 0
    assert pq.spare(torch.ones(4)) == 0
    assert pq.index(powers) == pytest.approx(0.35716, abs=5e-6)
    assert pq.spare(powers) == 2
    assert pq.index(torch.tensor([4.0, 3, 2, 1])) == pytest.approx(0.05559, abs=5e-6)
    assert pq.spare(torch.tensor([4.0, 3, 2, 1])) == 0
    assert pq.index(torch.tensor([1.0, 0, 0, 0])) == 0.75
    assert PQ(gamma=0.9, eta=1).spare(torch.ones(4)) == 2
    draws = torch.Generator().manual_seed(0)
    assert pq.index(torch.randn(400_000, generator=draws)) == pytest.approx(0.15279, abs=2e-3)
    assert pq.index(torch.rand(400_000, generator=draws) * 2 - 1) == pytest.approx(1 / 9, abs=2e-3)


def test_pq_is_scale_free_capped_and_exact() -> None:
    assert PQ().spare(torch.full((7,), 0.1)) == 0
    assert PQ().index(torch.zeros(3)) == 0
    assert PQ().index(torch.zeros(0)) == 0
    assert PQ().spare(torch.zeros(0)) == 0
    one_hot = torch.zeros(100)
    one_hot[3] = 1e-30
    assert PQ().spare(one_hot) == 90  # 1 is to be kept; the cap says 10
    assert PQ(beta=1).spare(one_hot) == 99
    for d in range(1, 60):  # half of the entries carry all the weight, so half is spare
        halves = torch.cat([torch.full((d,), 0.3), torch.zeros(d)])
        assert PQ().spare(halves) == d


def test_pq_prune_by_layer_and_by_neuron() -> None:
    layout = layout_of(("a.weight", (2, 4), "weight"), ("a.bias", (2,), "bias"))
    theta = torch.tensor([1.0, 1, 1, 1, 9, 9, 0, 0, 5, 0])
    mask = torch.ones(10, dtype=torch.bool)
    neuron = pq_prune(layout, mask, theta, PQ(), masks.weights(layout), each="neuron")
    assert neuron.int().tolist() == [1, 1, 1, 1, 1, 1, 0, 0, 1, 1]
    layer = pq_prune(layout, mask, theta, PQ(), masks.weights(layout))
    assert layer.int().tolist() == [1, 1, 1, 0, 1, 1, 0, 0, 1, 1]  # 1.25 ** 2 / 2.75 of 8 is 4.5: 5 are kept
    assert layout.counts(pq_prune(layout, mask, theta, PQ())) == [5, 1]  # the bias as well


def test_pq_counts_active_entries_only() -> None:
    layout = layout_of(("a.weight", (12, 1), "weight"))
    mask = torch.tensor([1] * 8 + [0] * 4).bool()
    theta = torch.tensor([8, 4, 2, 1, 0.5, 0.25, 0.125, 0.0625, 50, 50, 50, 50])
    assert pq_prune(layout, mask, theta, PQ()).int().tolist() == [1] * 6 + [0] * 6


def test_a_neuron_of_a_convolution_is_a_run_of_the_vector() -> None:
    conv = torch.nn.Conv2d(3, 2, 2, bias=False)
    layout = Layout.of(conv, torch.zeros(1, 3, 2, 2))
    weight = torch.ones(2, 3, 2, 2)
    weight[1] = 0
    weight[1, :, 0, 0] = 7.0  # one of four positions of the second unit
    vector = layout.flatten({"weight": weight})
    mask = pq_prune(layout, torch.ones(24, dtype=torch.bool), vector, PQ(), each="neuron")
    assert mask.equal(vector != 0)


def test_prune_rounds() -> None:
    assert prune_rounds(150, 0, 1.3, 500) == [150, 266, 355, 424, 477]
    assert prune_rounds(100, 0, 1.4, 300) == [100, 172, 224, 261, 288]
    assert prune_rounds(175, 0, 1.3, 500) == [175, 310, 414, 494]
    assert prune_rounds(150, 0, 1.3, 500, "reference") == [150, 265, 353, 421, 473]
    assert prune_rounds(4, 4, 2, 100) == [8, 12, 14, *range(15, 100)]
    assert prune_rounds(4, 4, 2, 100, "reference") == [8, 12, 14, 15]  # the next gap rounds to 0
    assert prune_rounds(1, 0, 1, 100, "reference") == list(range(1, 21))
    assert prune_rounds(2, 0, 1e200, 6) == [2, 3, 4, 5]
    assert prune_rounds(9, 0, 1.3, 9) == []


def test_a_model_that_diverged_is_not_pruned() -> None:
    mask = torch.tensor([1, 0, 1, 0, 1, 0, 1, 0]).bool()
    assert pq_prune(layout_of(("a.weight", (8, 1), "weight")), mask, torch.full((8,), math.nan), PQ()).equal(mask)


def test_buffers_are_never_pruned() -> None:
    layout = layout_of(("a.weight", (40, 5), "weight"), ("b.weight", (5,), "norm"), ("b.mean", (5,), "buffer"))
    theta = torch.ones(layout.dim)
    theta[-1] = 100
    after = pq_prune(layout, torch.ones(layout.dim, dtype=torch.bool), theta, PQ(eta=1), [True] * 3)
    assert bool(after[-5:].all())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: PQ(p=1, q=1), "p, q: 1, 1"),
        (lambda: PQ(beta=2), "beta: 2"),
        (lambda: prune_rounds(0, 0, 1.3, 10), r"first \+ delay: 0 is not allowed; expected a float in \[1, inf\]"),
        (lambda: prune_rounds(5, 0, 0.9, 10), "factor: 0.9"),
        (
            lambda: prune_rounds(5, 0, 2, 10, "floor"),
            'rounding: "floor" is not allowed; expected one of ceil, reference',
        ),
    ],
)
def test_errors_name_the_field(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
