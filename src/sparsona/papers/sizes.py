"""What models and messages take, through the code that runs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsona.core.layout import Layout
from sparsona.core.rng import Rng
from sparsona.core.task import Task
from sparsona.core.training import Ctx
from sparsona.core.wire import Message, Values
from sparsona.models import build, example


def layout_of(name: str, classes: int, shape: tuple[int, ...], width: float = 1.0) -> Layout:
    """The tensors of one of our models."""
    model = build(name, classes, shape, width=width)
    return Layout.of(model, example(model, shape))


def context(model: nn.Module, x: Tensor) -> Ctx:
    """What a method is given in the only round of a run with this model."""
    task, theta0 = Task.of(model, x)
    return Ctx(0, 1, task, theta0, Rng(1), Rng(1))


def value_bytes(n: int) -> int:
    """What a message of n values costs by the papers' accounting."""
    return Message(theta=Values(torch.zeros(n))).value_nbytes
