"""Two AlexNets, after Krizhevsky, One weird trick for parallelizing convolutional networks, arXiv:1404.5997, 2014."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from sparsona.models.norms import BatchNorm
from sparsona.models.pooling import average_to
from sparsona.models.width import narrow

WIDTHS = (64, 192, 384, 256, 256)
POOLED = (True, True, False, False, True)


class AlexNet(nn.Module):
    """The plain variant for small pictures: 3 x 3 convolutions, and dropout before both hidden layers."""

    def __init__(self, classes: int, shape: tuple[int, int, int]) -> None:
        super().__init__()
        sizes = (shape[0], *WIDTHS)
        strides = (2, 1, 1, 1, 1)
        self.layers = nn.ModuleList(
            nn.Conv2d(i, o, 3, s, padding=1) for i, o, s in zip(sizes, WIDTHS, strides, strict=False)
        )
        self.dropout = nn.Dropout()
        self.hidden = nn.ModuleList([nn.Linear(WIDTHS[-1] * 2 * 2, 4096), nn.Linear(4096, 4096)])
        self.head = nn.Linear(4096, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of pictures."""
        for layer, pooled in zip(self.layers, POOLED, strict=True):
            x = layer(x)
            x = (F.max_pool2d(x, 2) if pooled else x).relu()
        x = average_to(x, 2).flatten(1)
        for layer in self.hidden:
            x = layer(self.dropout(x)).relu()
        logits: Tensor = self.head(x)
        return logits


class AlexNetBN(nn.Module):
    """The variant for large pictures, with batch normalisation without running statistics in every layer."""

    # the layers of PerFedMask's masks, as beginnings of tensor names
    layer_groups = (*((f"layers.{i}.",) for i in range(len(WIDTHS))), ("hidden.0.",), ("hidden.1.",))

    def __init__(self, classes: int, shape: tuple[int, int, int], *, width: float = 1.0) -> None:
        super().__init__()
        a, b, c, d, e, hidden = (narrow(n, width) for n in (*WIDTHS, 4096))
        convs = (
            nn.Conv2d(shape[0], a, 11, 4, padding=2),
            nn.Conv2d(a, b, 5, padding=2),
            nn.Conv2d(b, c, 3, padding=1),
            nn.Conv2d(c, d, 3, padding=1),
            nn.Conv2d(d, e, 3, padding=1),
        )
        self.layers = nn.ModuleList(nn.Sequential(conv, BatchNorm(conv.out_channels)) for conv in convs)
        dense = (nn.Linear(e * 6 * 6, hidden), nn.Linear(hidden, hidden))
        self.hidden = nn.ModuleList(nn.Sequential(linear, BatchNorm(linear.out_features)) for linear in dense)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of pictures."""
        for layer, pooled in zip(self.layers, POOLED, strict=True):
            x = layer(x)
            x = (F.max_pool2d(x, 3, 2) if pooled else x).relu()
        x = average_to(x, 6).flatten(1)
        for layer in self.hidden:
            x = layer(x).relu()
        logits: Tensor = self.head(x)
        return logits
