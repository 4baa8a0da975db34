"""VGG-11 for small pictures, after Simonyan and Zisserman, Very deep convolutional networks, ICLR 2015."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from sparsona.models.norms import group_norm

WIDTHS = (64, 128, 256, 256, 512, 512, 512, 512)
POOLED = (True, True, False, True, False, True, False, True)


class VGG11(nn.Module):
    """VGG-11 with group normalisation after every convolution and a single linear layer."""

    def __init__(self, classes: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        sizes = (shape[0], *WIDTHS)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(i, o, 3, padding=1), group_norm(o)) for i, o in pairwise(sizes)
        )
        self.head = nn.Linear(WIDTHS[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of pictures of at least 32 x 32."""
        for layer, pooled in zip(self.layers, POOLED, strict=True):
            x = layer(x)
            x = (F.max_pool2d(x, 2) if pooled else x).relu()
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits
