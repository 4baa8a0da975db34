"""Narrower models: the same layers with a share of the channels."""

from __future__ import annotations

import math


def narrow(channels: int, width: float) -> int:
    """A share of channels, rounded up."""
    return math.ceil(channels * width - 1e-9)
