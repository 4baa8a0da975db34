"""The model that a device predicts with: an interface, the forms that most methods use, and standalone modules."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from sparsona.core.layout import Vector
from sparsona.core.task import Task


class Model(Protocol):
    """A model that predicts."""

    def logits(self, x: Tensor) -> Tensor:
        """Outputs for a batch [b, classes], in evaluation mode."""

    def module(self) -> nn.Module:
        """The same model as a standalone module that does not need this process's task."""

    def vectors(self) -> Tensor:
        """The vectors [n, d] whose mean logits are this model's logits; [0, d] if it is not made of such vectors."""


# What a method may give where a model is asked for: a vector [d], several as rows [n, d], which predict by the mean of
# their logits, or a Model.
Predictor = Tensor | Model


@dataclass(frozen=True)
class VectorModel:
    """The task's model with the weights of one vector."""

    task: Task
    theta: Vector

    def logits(self, x: Tensor) -> Tensor:
        """Outputs for a batch."""
        return self.task.logits(self.theta, x)

    def module(self) -> nn.Module:
        """A copy of the task's model with these weights."""
        return plain(self.task, self.theta)

    def vectors(self) -> Tensor:
        """The one vector."""
        return self.theta[None]


@dataclass(frozen=True)
class Ensemble:
    """Several models of one task that predict by the mean of their logits."""

    task: Task
    rows: Tensor  # [n, d]

    def logits(self, x: Tensor) -> Tensor:
        """Outputs for a batch."""
        return torch.stack([self.task.logits(row, x) for row in self.rows]).mean(0)

    def module(self) -> nn.Module:
        """Copies of the task's model, averaged."""
        return MeanLogits([plain(self.task, row) for row in self.rows])

    def vectors(self) -> Tensor:
        """One vector per model."""
        return self.rows


def as_model(task: Task, model: Predictor) -> Model:
    """The Model for what a method returned."""
    if not isinstance(model, Tensor):
        return model
    return VectorModel(task, model) if model.dim() == 1 else Ensemble(task, model)


def plain(task: Task, theta: Vector) -> nn.Module:
    """A separate copy of the task's model with these weights."""
    model = copy.deepcopy(task.model).eval()
    model.load_state_dict({name: t.contiguous() for name, t in task.layout.unflatten(theta).items()}, strict=False)
    return model


class MeanLogits(nn.Module):
    """Models whose logits are averaged."""

    def __init__(self, models: list[nn.Module]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch."""
        return torch.stack([model(x) for model in self.models]).mean(0)
