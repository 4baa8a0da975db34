"""First values of a model, drawn anew."""

from __future__ import annotations

from sparsona.core.layout import Vector
from sparsona.core.rng import Rng
from sparsona.core.task import Task


def redrawn(task: Task, theta0: Vector, rng: Rng) -> Vector:
    """Another first vector of the model, by its key: every layer that can draws anew, theta0's values elsewhere."""
    task.load(theta0)
    with rng.everywhere():
        for module in task.model.modules():
            if callable(draw := getattr(module, "reset_parameters", None)):  # what PyTorch's layers call it
                draw()
    task.settle()
    return task.flat.clone()
