"""Blocks of a model, which are kept or dropped as a whole: how tensors are cut, and a door for a cut of your own.

Every tensor, or layer, gives up to B blocks. Its first one is always kept and holds the share ``least`` of it; the
others share the rest equally.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from sparsona.core.layout import Layout, Mask, Slot

_SLIP = 1e-9  # what a product of a share and a whole number may lie off


@dataclass(frozen=True, eq=False)
class Blocks:
    """A model cut into L blocks."""

    layout: Layout  # of what is trained
    index: Tensor  # [params] int64: which block an entry is of
    first: Mask  # [L] always kept
    units: bool = False  # whether a block is output units of one layer, with their weights and biases

    def __post_init__(self) -> None:
        if self.index.shape != (self.layout.dim,) or self.index.dtype != torch.int64:
            raise ValueError(
                f"blocks: an index of {self.index.dtype} {tuple(self.index.shape)} is not allowed; "
                "expected one int64 per entry"
            )
        if len(self.sizes) != len(self.first) or not bool((self.sizes > 0).all()):
            raise ValueError(f"blocks: the index lacks some of {len(self.first)} blocks; expected each number from 0")

    def __len__(self) -> int:
        return len(self.first)

    @cached_property
    def sizes(self) -> Tensor:
        """[L] entries of each block, W."""
        return torch.bincount(self.index)

    @cached_property
    def counts(self) -> Tensor:
        """[L, tensors] how many entries of each tensor are in a block."""
        tensor = torch.repeat_interleave(torch.arange(len(self.layout.slots)), torch.tensor(self.layout.sizes))
        width = len(self.layout.slots)
        return torch.bincount(self.index * width + tensor, minlength=len(self) * width).view(-1, width)

    @cached_property
    def linear(self) -> Mask:
        """[L] which blocks begin in a linear layer."""
        layers = {s.layer for s in self.layout.slots if s.kind == "weight" and len(s.shape) == 2}
        return torch.tensor([s.layer in layers for s in self.layout.slots])[(self.counts > 0).int().argmax(1)]

    @cached_property
    def layers(self) -> list[Mask]:
        """For each layer [L] which blocks begin in it."""
        names = list(dict.fromkeys(s.layer for s in self.layout.slots))
        of_tensor = torch.tensor([names.index(s.layer) for s in self.layout.slots])
        layer = of_tensor[(self.counts > 0).int().argmax(1)]
        return [layer == i for i in range(len(names))]

    @cached_property
    def outputs(self) -> list[int]:
        """Rows of each tensor."""
        return [slot.shape[0] for slot in self.layout.slots]

    @cached_property
    def rows(self) -> Tensor:
        """[all rows] which block a row is of, where blocks are output units."""
        return torch.cat([self.index[slot.where].view(slot.shape[0], -1)[:, 0] for slot in self.layout.slots])

    @cached_property
    def flops(self) -> Tensor:
        """[L] operations of a forward pass of one sample that each block's weights take."""
        return self.counts @ torch.tensor([2 * s.uses if len(s.shape) > 1 else 0 for s in self.layout.slots])

    def flops_of(self, chosen: Mask) -> int:
        """Operations of a forward pass of one sample with only these blocks; all biases are added."""
        return int(self.flops[chosen].sum()) + self._biases_flops

    @cached_property
    def _biases_flops(self) -> int:
        return self.layout.flops_of([0] * len(self.layout.slots))

    def spread(self, chosen: Tensor, dim: int | None = None) -> Tensor:
        """Flags of blocks as those of entries [params], or [dim] with buffers, which are always in it."""
        if not self.units:
            spread = chosen.index_select(0, _there(self.index, chosen.device))
            return spread if dim is None else torch.cat([spread, spread.new_ones(dim - self.layout.dim)])
        out = chosen.new_empty(self.layout.dim if dim is None else dim)
        out[self.layout.dim :] = 1
        each = chosen.index_select(0, _there(self.rows, chosen.device)).split(self.outputs)
        for slot, flags in zip(self.layout.slots, each, strict=True):  # thrice as fast as entry by entry
            out[slot.where].view(slot.shape[0], -1).copy_(flags[:, None])
        return out

    def share(self, chosen: Mask) -> float:
        """How much of all entries these blocks hold."""
        return int(self.sizes[chosen].sum()) / self.layout.dim


@lru_cache(maxsize=32)
def _there(index: Tensor, device: torch.device) -> Tensor:
    """An index on a device, copied once."""
    return index.to(device)


Splitter = Callable[[Layout, int, float], Blocks]  # a layout without buffers, B, the share of first blocks


def sizes(n: int, blocks: int, least: float) -> list[int]:
    """n entries: a first block of the share ``least``, at least one entry, and up to B - 1 equal ones."""
    first = min(n, max(1, math.floor(n * least + _SLIP))) if blocks > 1 else n
    return [first, *equal(n - first, blocks - 1)]


def equal(n: int, blocks: int) -> list[int]:
    """n entries in blocks of ceil(n / B), which may be fewer than B; the last may be shorter."""
    if n == 0:
        return []
    each = -(-n // blocks)
    return [each] * (n // each) + ([n % each] if n % each else [])


def flat(layout: Layout, blocks: int, least: float) -> Blocks:
    """Each tensor in the order of its entries, as the paper has it."""
    return _cut(layout, [(slot, sizes(slot.size, blocks, least)) for slot in layout.slots])


def even(layout: Layout, blocks: int, least: float) -> Blocks:
    """Each tensor in blocks of one size, the first included, as the paper's code has it."""
    return _cut(layout, [(slot, equal(slot.size, blocks)) for slot in layout.slots])


def channels(layout: Layout, blocks: int, least: float) -> Blocks:
    """Weights by their inputs (columns, input channels), and what has one dimension by its entries."""
    ways = [(slot, sizes(slot.shape[1] if len(slot.shape) > 1 else slot.size, blocks, least)) for slot in layout.slots]
    return _cut(layout, ways, way=1)


def rows(layout: Layout, blocks: int, least: float) -> Blocks:
    """Layers by their outputs (rows, filters), a unit's weights together with its bias: a dropped unit gives zero.

    The head is one block: its outputs are classes, and who drops a class can never predict it.
    """
    layers: dict[str, list[Slot]] = {}
    for slot in layout.slots:
        layers.setdefault(slot.layer, []).append(slot)
    index, first = torch.empty(layout.dim, dtype=torch.int64), list[bool]()
    for name, slots in layers.items():
        units = {slot.shape[0] if slot.shape else 0 for slot in slots}
        if len(units) > 1 or 0 in units:
            raise ValueError(
                f'split: "rows" cannot split layer {name!r}, whose tensors differ in their number of outputs'
            )
        parts = [units.pop()] if slots[0].head else sizes(units.pop(), blocks, least)
        for slot in slots:
            _number(index, slot, parts, len(first), 0)
        first += [True] + [False] * (len(parts) - 1)
    return Blocks(layout, index, torch.tensor(first), units=True)


def _cut(layout: Layout, parts: Sequence[tuple[Slot, list[int]]], way: int | None = None) -> Blocks:
    index, first = torch.empty(layout.dim, dtype=torch.int64), list[bool]()
    for slot, each in parts:
        _number(index, slot, each, len(first), way)
        first += [True] + [False] * (len(each) - 1)
    return Blocks(layout, index, torch.tensor(first))


def _number(index: Tensor, slot: Slot, parts: list[int], begin: int, way: int | None) -> None:
    """Write the numbers of a tensor's blocks, along one of its dimensions or along all its entries."""
    numbers = begin + torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(parts))
    if way is None or len(slot.shape) <= way:
        index[slot.where] = numbers
    else:
        slot.view(index[slot.where]).copy_(numbers.view(*(-1 if d == way else 1 for d in range(len(slot.shape)))))


@lru_cache(maxsize=16)
def cut(splitter: Splitter, layout: Layout, blocks: int, least: float) -> Blocks:
    """What a splitter makes of a layout, made once: all clients of one budget share it."""
    name = getattr(splitter, "__name__", repr(splitter))
    try:
        blocks_cut = splitter(layout, blocks, least)
    except ValueError:
        raise
    except Exception as error:  # whatever a stranger's function raises
        raise ValueError(f"split: {name} failed: {type(error).__name__}: {error}") from error
    if not isinstance(blocks_cut, Blocks):
        raise ValueError(f"split: {name} returned {type(blocks_cut).__name__}; expected Blocks")
    return blocks_cut


SPLITTERS: dict[str, Splitter] = {"flat": flat, "even": even, "rows": rows, "channels": channels}
