"""Fresh initial values of a model."""

from __future__ import annotations

from sparsona.core.layout import Vector
from sparsona.core.rng import Rng
from sparsona.core.task import Task


def redrawn(task: Task, theta0: Vector, rng: Rng) -> Vector:
    """Another initial vector of the model, drawn by key: layers that cannot draw keep theta0's values."""
    task.load(theta0)
    with rng.everywhere(task.device):
        for module in task.model.modules():
            if callable(draw := getattr(module, "reset_parameters", None)):  # what PyTorch's layers call it
                draw()
    task.settle()
    return task.flat.clone()
