"""Normalisation layers that carry no running statistics, so that a model is nothing but its parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def group_norm(channels: int) -> nn.Module:
    """Group normalisation with 32 groups."""
    return nn.GroupNorm(32, channels)


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation of [batch, channels, ...] by the statistics of the batch, in training and in evaluation.

    A value that is alone in its channel is its own mean, and so becomes the bias: PyTorch's own layers refuse it, but
    a device may hold a single sample.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        """The batch, normalised."""
        fast = torch.backends.cudnn.enabled
        return torch.batch_norm(x, self.weight, self.bias, None, None, True, 0.0, self.eps, fast)
