"""Structures of weight tensors: their output and input units (filters and channels, rows and columns).

The units of a tensor are its output units, then its input units; those of a model come tensor by tensor. Tensors with
one dimension have none and are always kept whole.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from sparsona.core.layout import Layout, Mask, Vector
from sparsona.core.wire import WireError


def scores(layout: Layout, vec: Vector) -> list[Tensor]:
    """For output and input units of each weight tensor in turn, the sum of magnitudes, by the largest of its kind."""
    found = []
    for slot in layout.slots:
        if len(slot.shape) > 1:
            size = slot.view(vec[slot.where]).abs()
            for way in (0, 1):
                each = size.sum([d for d in range(size.dim()) if d != way], dtype=torch.float64)
                found.append(each / each.max().clamp(min=torch.finfo(torch.float64).tiny))  # all zero: scores of zero
    return found


def spread(layout: Layout, kept: Mask) -> Mask:
    """One flag per unit, as a mask over coordinates: an entry is kept if both its units are."""
    units = [n for slot in layout.slots if len(slot.shape) > 1 for n in slot.shape[:2]]
    if kept.shape != (sum(units),):
        raise WireError(f"{len(kept)} flags do not fit {sum(units)} units")
    flags = iter(torch.split(kept, units))
    out = torch.ones(layout.dim, dtype=torch.bool)
    for slot in layout.slots:
        if len(slot.shape) > 1:
            rest = (1,) * (len(slot.shape) - 2)
            outputs, inputs = next(flags).view(-1, 1, *rest), next(flags).view(1, -1, *rest)
            slot.view(out[slot.where]).copy_(outputs & inputs)
    return out


def calibrated(layout: Layout, found: list[Tensor], budget: int) -> float:
    """The least threshold above which units hold, with the tensors kept whole, at most ``budget`` entries.

    It stays below 1, so that the largest unit of each tensor is kept even where that is more.
    """
    bars = torch.from_numpy(np.unique(np.concatenate([[-1.0], *(units.numpy() for units in found)])))
    bars = bars[bars < 1]
    held = torch.full_like(bars, sum(s.size for s in layout.slots if len(s.shape) < 2))
    each = iter(found)
    for slot in layout.slots:
        if len(slot.shape) > 1:
            above = [len(u) - torch.searchsorted(u.sort().values, bars, right=True) for u in (next(each), next(each))]
            held += above[0] * above[1] * math.prod(slot.shape[2:])
    fits = torch.nonzero(held <= budget)
    return float(bars[fits[0, 0]] if len(fits) else bars[-1])
