"""Means over clients, one client at a time: memory does not grow with their number, and sums are in double precision.

A contribution is a whole vector, or only the values at the ones of a mask, as they travel; it is added in the order of
the calls. ``Mean`` divides by the clients (FedAvg, FedSpa), ``OverlapMean`` by those that hold a coordinate (DA-DPFL,
FedPSE's element-wise aggregation, pFedGate's blocks, PerFedMask's trained layers). Sums lie where the
first contribution does, if there is double precision.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Literal

import torch
from torch import Tensor

from sparsona.core.arithmetic import precise
from sparsona.core.layout import CPU, Layout, Mask, Vector, ones_in, places
from sparsona.core.wire import Sparse

_CHUNK = 1 << 16  # entries worked on at a time: they stay in cache, and temporaries stay small


class Mean:
    """The mean, weighted if weights are given; outside its mask a contribution counts as 0."""

    def __init__(self, dim: int) -> None:
        self._device = CPU  # where the mean is wanted
        self._sum = torch.zeros(dim, dtype=torch.float64)
        self._weight = 0.0
        self._added = 0

    def add(self, values: Tensor, weight: float = 1.0, mask: Mask | None = None) -> None:
        """Add a vector [d] where the mask is one (everywhere without a mask); or pass only the values at those ones."""
        if not self._added:
            self._device, self._sum = values.device, self._sum.to(precise(values).device)
        _add(self._sum, precise(values), weight, None if mask is None else precise(mask))
        self._weight += weight
        self._added += 1

    def value(self, otherwise: Vector | None = None) -> Vector:
        """The mean of the contributions so far; ``otherwise`` if there are none."""
        if otherwise is not None and not self._added:
            return otherwise
        _not_empty(self._added)
        if self._weight <= 0:
            raise ValueError(f"weight: a total of {self._weight} is not allowed; expected a float > 0")
        return (self._sum / self._weight).float().to(self._device)


class OverlapMean:
    """The mean at each coordinate, weighted if weights are given, over the contributions whose mask holds it."""

    def __init__(self, dim: int) -> None:
        self._device = CPU  # where the mean is wanted
        self._sum = torch.zeros(dim, dtype=torch.float64)
        self._ones = torch.zeros(dim, dtype=torch.uint8)  # contributions of weight 1, which are counted fast
        self._pending = 0  # how many of them, so that no count runs over
        self._weight: Tensor | None = None  # what the others weigh
        self._added = 0

    def add(self, values: Tensor, mask: Mask, weight: float = 1.0) -> None:
        """Add a vector [d] where the mask is one; or pass only the values at those ones."""
        if not self._added:
            self._device, here = values.device, precise(values).device
            self._sum, self._ones = self._sum.to(here), self._ones.to(here)
        mask = precise(mask)
        _add(self._sum, precise(values), weight, mask)
        if weight == 1:
            self._ones.add_(mask.view(torch.uint8))
            self._pending += 1
        else:
            self._weigh(mask, weight)
        if self._pending == 255:
            self._weigh(self._ones, 1.0)
            self._ones.zero_()
            self._pending = 0
        self._added += 1

    def value(self, otherwise: Vector | None = None) -> Vector:
        """The mean of the contributions so far; the value of ``otherwise``, or 0, at coordinates that no mask holds."""
        if otherwise is not None and not self._added:
            return otherwise
        _not_empty(self._added)
        if otherwise is not None and otherwise.shape != self._sum.shape:
            raise ValueError(
                f"otherwise: shape {tuple(otherwise.shape)} is not allowed; expected {tuple(self._sum.shape)}"
            )
        out = torch.empty(len(self._sum), device=self._sum.device)
        for here in _chunks(len(out)):
            weight = self._ones[here].double()
            if self._weight is not None:
                weight += self._weight[here]
            rest = out.new_zeros(()) if otherwise is None else precise(otherwise[here])
            out[here] = torch.where(weight > 0, (self._sum[here] / weight).float(), rest)
        return out.to(self._device)

    def _weigh(self, held: Tensor, weight: float) -> None:
        if self._weight is None:
            self._weight = torch.zeros_like(self._sum)
        for here in _chunks(len(held)):
            self._weight[here].add_(held[here].double(), alpha=weight)


def mean(vectors: Iterable[Vector]) -> Vector:
    """The plain mean of vectors."""
    return weighted_mean(vectors, repeat(1.0))


def weighted_mean(vectors: Iterable[Vector], weights: Iterable[float]) -> Vector:
    """The mean of vectors, each with its weight."""
    out = Mean(0)
    for vector, weight in zip(vectors, weights, strict=not isinstance(weights, repeat)):
        if not out._added:
            out = Mean(vector.numel())
        out.add(vector, weight)
    return out.value()


def overlap_mean(
    values: Iterable[Tensor],
    masks: Iterable[Mask],
    weights: Iterable[float] | None = None,
    otherwise: Vector | None = None,
) -> Vector:
    """The mean at each coordinate over the vectors whose mask holds it; ``otherwise``, or 0, where none does."""
    out = OverlapMean(0)
    pairs = zip(values, masks, strict=True)
    for (value, mask), weight in zip(pairs, repeat(1.0) if weights is None else weights, strict=weights is not None):
        if not out._added:
            out = OverlapMean(mask.numel())
        out.add(value, mask, weight)
    return out.value(otherwise)


def elementwise_mean(
    layout: Layout, updates: Iterable[tuple[Sparse, float]], each: Literal["layer", "model"] = "layer"
) -> Vector:
    """The mean at each coordinate over the sparse updates that hold it, each with its weight; 0 where none does.

    A zero that is sent only because its piece (tensor, or the model) has too few other entries does not count; one of
    a piece that travels whole, such as a tensor of one weight, does.
    """
    out = OverlapMean(layout.dim)
    for update, weight in updates:
        if bool(update.values.all()):  # no zeros, as nearly always
            out.add(update.values, update.mask, weight)
            continue
        dense = update.dense()
        if each == "layer":
            counts = zip(layout.counts(update.mask), layout.sizes, strict=True)
            whole = layout.spread([n == size for n, size in counts])
        else:
            whole = update.mask.all()
        out.add(dense, update.mask & ((dense != 0) | whole), weight)
    return out.value()


def _add(total: Tensor, values: Tensor, weight: float, mask: Mask | None) -> None:
    """Add weighted values to a running sum, in place."""
    packed = _check(total.numel(), values, weight, mask)
    spread = total.new_zeros(min(_CHUNK, total.numel())) if packed else total
    taken = 0
    for here in _chunks(total.numel()):
        part = total[here]
        if mask is None:
            part.add_(values[here].double(), alpha=weight)  # faster than adding mixed types
        elif packed:  # spread out, then added: faster than adding place by place
            at, room = places(mask[here]), spread[: len(part)]
            room.zero_().index_copy_(0, at, values[taken : taken + len(at)].double())
            part.add_(room, alpha=weight)
            taken += len(at)
        else:
            part.add_(torch.where(mask[here], values[here], 0), alpha=weight)


def _chunks(size: int) -> Iterator[slice]:
    return (slice(start, start + _CHUNK) for start in range(0, size, _CHUNK))


def _check(dim: int, values: Tensor, weight: float, mask: Mask | None) -> bool:
    """Whether the values are only those at the ones of the mask; an error if they do not fit."""
    if not 0 <= weight < math.inf:
        raise ValueError(f"weight: {weight} is not allowed; expected a finite float >= 0")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (dim,)):
        raise ValueError(f"mask: {mask.dtype} {tuple(mask.shape)} is not allowed; expected torch.bool {(dim,)}")
    if values.shape == (dim,):
        return False
    ones = dim if mask is None else ones_in(mask)
    if values.shape != (ones,):
        raise ValueError(
            f"values: shape {tuple(values.shape)} is not allowed; expected {(dim,)}, or {(ones,)} with a mask"
        )
    return True


def _not_empty(added: int) -> None:
    if not added:
        raise ValueError("mean: no contributions; expected at least one")
