"""Figures that the FedSpa paper prints, from the shipped models through ERK to operations."""

import pytest
import torch

from sparsona.core import masks
from sparsona.core.layout import Layout
from sparsona.core.rng import Rng
from sparsona.models import build, example


@pytest.mark.parametrize(
    ("name", "classes", "shape", "ones", "sparse_flops"),
    [
        ("lenet5", 26, (1, 28, 28), 219_547, 2_528_808),
        ("vgg11-gn", 10, (3, 32, 32), 4_615_554, 214_893_978),
        ("resnet18-gn", 100, (3, 32, 32), 5_610_061, 883_165_924),
    ],
)
def test_erk_at_density_one_half(name, classes, shape, ones, sparse_flops):
    model = build(name, classes, shape)
    layout = Layout.of(model, example(model, shape))
    mask = masks.random(layout, masks.erk_counts(layout, 0.5), Rng(1))
    assert int(torch.count_nonzero(mask)) == ones
    assert layout.flops(mask) == sparse_flops


def test_uniform_at_density_one_half():
    model = build("resnet18-gn", 100, (3, 32, 32))
    layout = Layout.of(model, example(model, (3, 32, 32)))
    mask = masks.random(layout, masks.uniform_counts(layout, 0.5), Rng(1))
    assert layout.flops(mask) == 555_468_900
