"""The subset of layers that fills a budget best."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

_EXACT_LAYERS = 24  # layers up to which the fullest subset of a budget is found by halves
_MAX_BITS = 1 << 30  # of memory, up to which it is found for more layers, by sets of all sums there are


def fullest(sizes: NDArray[np.int64], budget: int) -> NDArray[np.bool_]:
    """The subset of layers with the largest sum within the budget; nearly, where too many are too large to be sure."""
    if budget >= sizes.sum():
        return np.ones(len(sizes), dtype=bool)
    if len(sizes) > _EXACT_LAYERS and (known := subset_sums(tuple(map(int, sizes)))) is not None:
        return _chosen(sizes, budget, known)
    order = np.argsort(-sizes, kind="stable")
    taken = np.zeros(len(sizes), dtype=bool)
    left = budget
    for j in order[: max(0, len(sizes) - _EXACT_LAYERS)]:  # the largest are taken as they fit
        if sizes[j] <= left:
            taken[j] = True
            left -= int(sizes[j])
    rest = order[max(0, len(sizes) - _EXACT_LAYERS) :]
    halves = [rest[::2], rest[1::2]]
    sums = [((np.arange(2 ** len(h))[:, None] >> np.arange(len(h))) & 1) @ sizes[h] for h in halves]
    ranks = np.argsort(sums[1], kind="stable")
    ordered = sums[1][ranks]
    place = np.searchsorted(ordered, left - sums[0], side="right") - 1
    total = np.where(place >= 0, sums[0] + ordered[place], -1)
    first = int(total.argmax())
    for half, code in zip(halves, (first, int(ranks[place[first]])), strict=True):
        taken[half[(code >> np.arange(len(half))) & 1 == 1]] = True
    return taken


def is_exact(sizes: tuple[int, ...]) -> bool:
    """Whether ``fullest`` is sure to find the largest sum."""
    return len(sizes) <= _EXACT_LAYERS or subset_sums(sizes) is not None


@lru_cache(maxsize=2)  # devices differ only in budgets
def subset_sums(sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """Which sums the first 0, 1, ... layers have, as bits of whole numbers, in units of the sizes' common divisor."""
    unit = math.gcd(*sizes)
    if len(sizes) * (sum(sizes) // unit) > _MAX_BITS:
        return None
    sums = [1]
    for size in sizes:
        sums.append(sums[-1] | sums[-1] << size // unit)
    return tuple(sums)


def _chosen(sizes: NDArray[np.int64], budget: int, sums: tuple[int, ...]) -> NDArray[np.bool_]:
    """The layers whose sum is the largest within the budget, from the last to the first: each only where it must be."""
    unit = math.gcd(*map(int, sizes))
    left = (sums[-1] & ((1 << budget // unit + 1) - 1)).bit_length() - 1
    taken = np.zeros(len(sizes), dtype=bool)
    for j in reversed(range(len(sizes))):
        if not sums[j] >> left & 1:
            taken[j] = True
            left -= int(sizes[j]) // unit
    return taken
