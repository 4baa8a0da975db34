"""Which blocks to keep: the 0-1 knapsack of pFedGate, with whole values and sizes; a selector of your own plugs in."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsona.core.layout import Mask
from sparsona.methods.pfedgate.blocks import Blocks

Whole = NDArray[np.int64]
Selector = Callable[[Whole, Whole, int], NDArray[np.bool_]]  # values and sizes [n], capacity: which to take [n]
Budget = Literal["reference", "exact", "layers"]


def greedy_value(values: Whole, sizes: Whole, capacity: int) -> NDArray[np.bool_]:
    """By falling value, the first of equals first; what does not fit is passed over."""
    return _scan(np.argsort(-values, kind="stable"), sizes, capacity)


def greedy_ratio(values: Whole, sizes: Whole, capacity: int) -> NDArray[np.bool_]:
    """By falling value per entry, the first of equals first; what does not fit is passed over."""
    return _scan(np.argsort(-values / sizes, kind="stable"), sizes, capacity)


def exact(values: Whole, sizes: Whole, capacity: int) -> NDArray[np.bool_]:
    """The best there is, and of equally good ones the smallest: least size by value, a dynamic programme."""
    values = np.maximum(values, 0)
    total = int(values.sum())
    size = np.full(total + 1, capacity + 1, dtype=np.int64)  # the least entries that give this value
    size[0] = 0
    taken = np.zeros((len(values), total + 1), dtype=np.bool_)
    for i, (value, entries) in enumerate(zip(values.tolist(), sizes.tolist(), strict=True)):
        if value == 0:
            continue
        other = size[: total + 1 - value] + entries
        taken[i, value:] = other < size[value:]
        size[value:] = np.minimum(size[value:], other)
    left = int(np.flatnonzero(size <= capacity)[-1])
    out = np.zeros(len(values), dtype=np.bool_)
    for i in range(len(values) - 1, -1, -1):
        if taken[i, left]:
            out[i], left = True, left - int(values[i])
    return out


def _scan(order: NDArray[Any], sizes: Whole, capacity: int) -> NDArray[np.bool_]:
    out, entries = np.zeros(len(sizes), dtype=np.bool_), sizes.tolist()
    for i in order.tolist():
        if entries[i] <= capacity:
            out[i], capacity = True, capacity - entries[i]
    return out


def select(
    importance: Tensor, blocks: Blocks, keep: float, least: float, selector: Selector, budget: Budget = "reference"
) -> Mask:
    """The blocks kept [L]: first ones always, of the others those that the selector takes; at most keep of all entries.

    Values are round(10 importance). The reference budget is (keep - least) of what is not in first blocks, in linear
    layers and in all others apart; the exact one is all that the first blocks leave, at once; that of layers is keep of
    each layer, less its first blocks.
    """
    if keep == 1:
        return torch.ones(len(blocks), dtype=torch.bool)
    values = np.rint(10 * np.array(importance.tolist())).astype(np.int64)  # the host chooses: one copy of L numbers
    chosen = blocks.first.numpy().copy()
    left, groups = _groups(blocks, keep, least, budget)
    for where, sizes, capacity in groups:
        most = min(left, capacity)
        taken = _taken(selector, values[where], sizes, most)
        spent = int(sizes[taken].sum())
        if spent > most:
            raise ValueError(f"selector: {_name(selector)} selected {spent:,} entries; expected at most {most:,}")
        left -= spent
        chosen[where[taken]] = True
    return torch.from_numpy(chosen)


def _taken(selector: Selector, values: Whole, sizes: Whole, capacity: int) -> NDArray[np.bool_]:
    try:
        picks = selector(values, sizes, capacity)
    except Exception as error:  # whatever a stranger's function raises
        raise ValueError(f"selector: {_name(selector)} failed: {type(error).__name__}: {error}") from error
    if not isinstance(picks, np.ndarray) or picks.dtype != np.bool_ or picks.shape != sizes.shape:
        raise ValueError(
            f"selector: {_name(selector)} returned another value; "
            f"expected an array of {len(sizes)} bools, one per block"
        )
    return picks


def _name(selector: Selector) -> str:
    return getattr(selector, "__name__", repr(selector))


@lru_cache(maxsize=32)
def _groups(blocks: Blocks, keep: float, least: float, budget: Budget) -> tuple[int, list[tuple[Whole, Whole, int]]]:
    """What may be kept beside the first blocks; by group the blocks to choose from, their sizes and the capacity."""
    left, sizes, first = room(blocks, keep), blocks.sizes.numpy(), blocks.first.numpy()
    whole, linear = np.ones(len(blocks), dtype=np.bool_), blocks.linear.numpy()
    groups = {"exact": [whole], "reference": [linear, ~linear], "layers": [own.numpy() for own in blocks.layers]}
    pools = []
    for group in groups[budget]:
        where, total = np.flatnonzero(group & ~first), int(sizes[group].sum())
        capacity = left
        if budget == "reference":
            capacity = round((keep - least) * int(sizes[where].sum()))
        elif budget == "layers":
            capacity = max(0, int(keep * total + 1e-6) - int(sizes[group & first].sum()))
        pools.append((where, sizes[where], capacity))
    return left, pools


def room(blocks: Blocks, keep: float) -> int:
    """Entries that may be kept beside the first blocks; ValueError if those are already too many."""
    allowed, first = int(keep * blocks.layout.dim + 1e-6), int(blocks.sizes[blocks.first].sum())
    if first > allowed:
        raise ValueError(
            f"keep: {keep:g} of {blocks.layout.dim:,} entries is {allowed:,}, but the first blocks have {first:,} "
            "and are always kept"
        )
    return allowed - first


SELECTORS: dict[str, Selector] = {"greedy_value": greedy_value, "greedy_ratio": greedy_ratio, "exact": exact}
