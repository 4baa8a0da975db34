"""MobileNet for small pictures, after Howard et al., MobileNets, arXiv:1704.04861, 2017."""

from __future__ import annotations

from torch import Tensor, nn

from sparsona.models.norms import BatchNorm
from sparsona.models.width import narrow

WIDTHS = (64, 128, 128, 256, 256, 512, 512, 512, 512, 512, 512, 1024, 1024)
STRIDES = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)


def _separable(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """A convolution per channel, then one across channels, each normalised."""
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, stride, padding=1, groups=inputs, bias=False),
        BatchNorm(inputs),
        nn.ReLU(),
        nn.Conv2d(inputs, outputs, 1, bias=False),
        BatchNorm(outputs),
        nn.ReLU(),
    )


class MobileNet(nn.Module):
    """MobileNet with batch normalisation without running statistics."""

    # the layers of PerFedMask's masks, as beginnings of tensor names
    layer_groups = (("stem.",), *((f"layers.{i}.",) for i in range(len(WIDTHS))))

    def __init__(self, classes: int, shape: tuple[int, int, int], *, width: float = 1.0) -> None:
        super().__init__()
        first, *widths = (narrow(n, width) for n in (32, *WIDTHS))
        inputs = (first, *widths[:-1])
        self.stem = nn.Sequential(nn.Conv2d(shape[0], first, 3, padding=1, bias=False), BatchNorm(first), nn.ReLU())
        self.layers = nn.Sequential(*(_separable(*size) for size in zip(inputs, widths, STRIDES, strict=True)))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of pictures."""
        logits: Tensor = self.head(self.layers(self.stem(x)).mean((2, 3)))
        return logits
