"""First values of a model, drawn anew."""

from __future__ import annotations

from torch import nn

from sparsona.core.layout import Vector
from sparsona.core.rng import Rng
from sparsona.core.task import Task

_DRAWN = (nn.Linear, nn.modules.conv._ConvNd, nn.Embedding, nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


def redrawn(task: Task, theta0: Vector, rng: Rng) -> Vector:
    """Another first vector of the model, by its key: PyTorch's usual values, and theta0's elsewhere."""
    task.load(theta0)
    with rng.everywhere():
        for module in task.model.modules():
            if isinstance(module, _DRAWN):
                module.reset_parameters()
    task.settle()
    return task.flat.clone()
