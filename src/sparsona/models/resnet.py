"""ResNet-18 for small pictures: a 3 x 3 stem without pooling, and eight blocks of two convolutions.

After He et al., Deep residual learning, CVPR 2016, and Identity mappings in deep residual networks, ECCV 2016.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from sparsona.models.norms import BatchNorm, group_norm
from sparsona.models.width import narrow

Norm = Callable[[int], nn.Module]

WIDTHS = (64, 64, 128, 128, 256, 256, 512, 512)
STRIDES = (1, 1, 2, 1, 2, 1, 2, 1)


def _conv(inputs: int, outputs: int, stride: int = 1, kernel: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


def _blocks(block: Callable[[int, int, int], nn.Module], widths: Sequence[int] = WIDTHS) -> nn.Sequential:
    inputs = (widths[0], *widths[:-1])
    return nn.Sequential(*(block(*size) for size in zip(inputs, widths, STRIDES, strict=True)))


class Block(nn.Module):
    """Convolution, normalisation, ReLU, twice, with the input added before the last ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, stride)
        self.norm1 = norm(outputs)
        self.conv2 = _conv(outputs, outputs)
        self.norm2 = norm(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Sequential() if same else nn.Sequential(_conv(inputs, outputs, stride, 1), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """One residual step."""
        out: Tensor = self.norm1(self.conv1(x)).relu()
        out = self.norm2(self.conv2(out)) + self.shortcut(x)
        return out.relu()


class ResNet18(nn.Module):
    """ResNet-18 with the given normalisation."""

    def __init__(self, classes: int, shape: tuple[int, int, int], *, norm: Norm = group_norm) -> None:
        super().__init__()
        self.stem = nn.Sequential(_conv(shape[0], WIDTHS[0]), norm(WIDTHS[0]))
        self.layers = _blocks(lambda i, o, stride: Block(i, o, stride, norm))
        self.head = nn.Linear(WIDTHS[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of pictures."""
        logits: Tensor = self.head(self.layers(self.stem(x).relu()).mean((2, 3)))
        return logits


class PreBlock(nn.Module):
    """Normalisation, ReLU, convolution, twice; a change of shape passes a 1 x 1 convolution of the activated input."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = BatchNorm(inputs)
        self.conv1 = _conv(inputs, outputs, stride)
        self.norm2 = BatchNorm(outputs)
        self.conv2 = _conv(outputs, outputs)
        self.shortcut = None if stride == 1 and inputs == outputs else _conv(inputs, outputs, stride, 1)

    def forward(self, x: Tensor) -> Tensor:
        """One residual step."""
        active = self.norm1(x).relu()
        out: Tensor = self.conv2(self.norm2(self.conv1(active)).relu())
        return out + (x if self.shortcut is None else self.shortcut(active))


class PreResNet18(nn.Module):
    """ResNet-18 with pre-activation blocks and batch normalisation without running statistics."""

    # the layers of PerFedMask's masks, as beginnings of tensor names
    layer_groups = (("stem.",), *((f"layers.{i}.",) for i in range(len(WIDTHS))), ("norm.",))

    def __init__(self, classes: int, shape: tuple[int, int, int], *, width: float = 1.0) -> None:
        super().__init__()
        widths = [narrow(n, width) for n in WIDTHS]
        self.stem = _conv(shape[0], widths[0])
        self.layers = _blocks(PreBlock, widths)
        self.norm = BatchNorm(widths[-1])
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of pictures."""
        logits: Tensor = self.head(self.norm(self.layers(self.stem(x))).relu().mean((2, 3)))
        return logits
