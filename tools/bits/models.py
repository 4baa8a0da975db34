"""Models for the cases of `same_bits`."""

import math

from torch import Tensor, nn


class Normed(nn.Module):
    """A convolution with batch normalisation and dropout, and a head; 8x8 digits."""

    def __init__(self, classes: int, width: float = 1.0) -> None:
        super().__init__()
        channels = math.ceil(4 * width)
        self.conv, self.norm = nn.Conv2d(1, channels, 3), nn.BatchNorm2d(channels)
        self.dropout, self.head = nn.Dropout(0.2), nn.Linear(36 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.dropout(self.norm(self.conv(x)).relu().flatten(1)))
        return logits
