"""The map between a model and its flat vector: where each tensor lives, what it is, and what each weight costs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from sparsona.core.operations import operations

Vector = Tensor  # [d] float32, a whole model
Mask = Tensor  # [d] bool
Kind = Literal["weight", "bias", "norm", "buffer"]

CPU = torch.device("cpu")
_NO_HEAD = "<none>"  # no module has this name
_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Slot:
    """One tensor of the model: its place in the vector, its role and how often a sample uses each entry."""

    name: str
    shape: tuple[int, ...]
    kind: Kind
    layer: str  # the module that owns it
    offset: int
    uses: int  # output positions per sample at which an entry takes part; 0 for norms, embeddings and buffers
    head: bool = False
    lookup: bool = False  # a table that is looked up, not multiplied
    group: int = -1  # the layer of the body that is trained or frozen as a whole; -1 for head and buffers

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def where(self) -> slice:
        """Its part of the flat vector."""
        return slice(self.offset, self.offset + self.size)

    def view(self, part: Tensor) -> Tensor:
        """The tensor as a view of its part of a vector.

        Weights of 2-D convolutions lie in the vector as output, row, column, input: seen as a tensor that is
        channels-last, which the convolution kernels want, so that no copy is made on the way in or out.
        """
        if len(self.shape) == 4:
            o, i, h, w = self.shape
            return part.view(o, h, w, i).permute(0, 3, 1, 2)
        return part.view(self.shape)


@dataclass(frozen=True)
class Layout:
    """A frozen description of all tensors of a model, trainable ones first, then floating-point buffers."""

    slots: tuple[Slot, ...]
    other_flops: int = 0  # of a sample's forward pass, beyond what entries are used for: attention, for example
    uncounted: tuple[str, ...] = ()  # parameters and operations whose cost is not known
    device: torch.device = CPU  # where the vectors and masks lie that it makes

    @cached_property
    def dim(self) -> int:
        """Length of the flat vector."""
        return sum(s.size for s in self.slots)

    @cached_property
    def params(self) -> int:
        """Number of trainable entries: the vector's first part; what follows are buffers."""
        return sum(s.size for s in self.slots if s.kind != "buffer")

    @cached_property
    def trained(self) -> Layout:
        """The same without buffers: only the first part of the vector."""
        return replace(self, slots=tuple(s for s in self.slots if s.kind != "buffer"))

    @cached_property
    def sizes(self) -> list[int]:
        """Entries of each tensor, in order."""
        return [s.size for s in self.slots]

    def split(self, v: Tensor) -> tuple[Tensor, ...]:
        """The vector cut into one flat view per tensor."""
        return torch.split(v, self.sizes)

    def unflatten(self, v: Tensor) -> dict[str, Tensor]:
        """The vector as named tensors: views, never copies."""
        return {s.name: s.view(p) for s, p in zip(self.slots, self.split(v), strict=True)}

    def flatten(self, tensors: Mapping[str, Tensor]) -> Vector:
        """Named tensors, e.g. a state dict, as a new flat vector."""
        out = torch.empty(self.dim, device=self.device)
        for name, view in self.unflatten(out).items():
            view.copy_(tensors[name].detach())
        return out

    def select(self, *kinds: Kind) -> Mask:
        """A mask of the coordinates that belong to tensors of these kinds."""
        return self.spread([s.kind in kinds for s in self.slots])

    @cached_property
    def head(self) -> Mask:
        """A mask of the coordinates that belong to the classifier."""
        return self.spread([s.head for s in self.slots])

    @cached_property
    def groups(self) -> tuple[int, ...]:
        """Entries of each layer of the body, in order; those of a model without a head are all its layers."""
        sizes = [0] * (1 + max((s.group for s in self.slots), default=-1))
        for s in self.slots:
            if s.group >= 0:
                sizes[s.group] += s.size
        return tuple(sizes)

    def grouped(self, flags: Sequence[bool]) -> Mask:
        """One flag per layer of the body, as a mask over coordinates; head and buffers have zeros."""
        return self.spread([s.group >= 0 and bool(flags[s.group]) for s in self.slots])

    def spread(self, flags: list[bool]) -> Mask:
        """One flag per tensor, as a mask over coordinates."""
        out = torch.zeros(self.dim, dtype=torch.bool, device=self.device)
        for part, flag in zip(self.split(out), flags, strict=True):  # many times as fast as repeating flags
            if flag:
                part.fill_(True)
        return out

    def runs(self, flags: Sequence[bool]) -> list[slice]:
        """One flag per tensor, as the fewest slices of the vector that hold those flagged and no others."""
        out: list[slice] = []
        for s, flag in zip(self.slots, flags, strict=True):
            if flag and out and out[-1].stop == s.offset:
                out[-1] = slice(out[-1].start, s.where.stop)
            elif flag:
                out.append(s.where)
        return out

    def counts(self, mask: Mask) -> list[int]:
        """Number of ones of the mask in each tensor."""
        if mask.is_cpu:
            return [ones_in(p) for p in self.split(mask)]
        return [int(n) for n in torch.stack([torch.count_nonzero(p) for p in self.split(mask)]).tolist()]

    def flops(self, mask: Mask | None = None) -> int:
        """Operations of one forward pass of one sample: 2 per multiply-add on kept weights, 1 per bias and position.

        Biases are counted whole whatever the mask says, which is the convention behind the papers' printed columns. So
        is what computes with no weight of its own, such as the products of attention.
        """
        return self.flops_of(self.sizes if mask is None else self.counts(mask))

    def flops_of(self, kept: Sequence[int]) -> int:
        """Operations of one forward pass of one sample, from the number of ones of each tensor."""
        pairs = list(zip(self.slots, kept, strict=True))
        weights = sum(2 * s.uses * n for s, n in pairs if len(s.shape) > 1)
        return weights + sum(s.uses * s.size for s, _ in pairs if len(s.shape) == 1) + self.other_flops

    def training_flops(self, mask: Mask | None = None, still: Sequence[bool] = ()) -> int:
        """Operations of training on one sample: gradients of inputs and of weights cost as much each as going forward.

        With flags of the trained tensors that stay still, theirs have no gradient of weights, and those below the
        lowest that moves none of inputs either.
        """
        if not any(still):
            return 3 * self.flops(mask)
        kept = self.sizes if mask is None else self.counts(mask)
        lowest = list(still).index(False)
        inputs = [n if i >= lowest else None for i, n in enumerate(kept)]
        moving = [n if i < len(still) and not still[i] else None for i, n in enumerate(kept)]
        return self.flops_of(kept) + self._flops_some(inputs) + self._flops_some(moving) + 2 * self.other_flops

    def _flops_some(self, kept: Sequence[int | None]) -> int:
        pairs = [(s, n) for s, n in zip(self.slots, kept, strict=True) if n is not None]
        return sum(2 * s.uses * n if len(s.shape) > 1 else s.uses * s.size for s, n in pairs)

    @staticmethod
    def of(model: nn.Module, example: Tensor) -> Layout:
        """Describe a model; ``example`` is a batch of inputs that one forward pass is measured with."""
        counted = operations(model, example)
        head = _head(model)
        tables = {n for n, m in model.named_modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))}
        groups = _groups(model, head)
        slots: list[Slot] = []
        offset = 0
        for name, tensor, kind, owner in _tensors(model):
            times = counted.uses.get(id(tensor), 0)
            at = groups.get(name, -1)
            slot = Slot(name, tuple(tensor.shape), kind, owner, offset, times, owner == head, owner in tables, at)
            slots.append(slot)
            offset += slot.size
        if not any(s.kind != "buffer" for s in slots):
            raise ValueError(f"model: {type(model).__name__} has no trainable parameters")
        return Layout(tuple(slots), counted.other, tuple(_uncounted(slots, counted.unknown)))


def ones_in(mask: Mask) -> int:
    """The number of ones of a mask."""
    if mask.is_cpu:
        return int(np.count_nonzero(mask.numpy()))  # four times as fast as torch's
    return int(torch.count_nonzero(mask))


def places(mask: Mask) -> Tensor:
    """The indices of a mask's ones, in order."""
    if mask.is_cpu:
        return torch.from_numpy(np.flatnonzero(mask.numpy()))  # four times as fast as torch's nonzero
    return mask.nonzero().flatten()


def picked(vec: Tensor, mask: Mask) -> Tensor:
    """The entries of a vector where the mask is one."""
    return vec.index_select(0, places(mask))


def replaced(vec: Tensor, mask: Mask, values: Tensor) -> Tensor:
    """A vector with other values where the mask is one; the mask may cover only its first part."""
    return vec.index_copy(0, places(mask), values)


def added(vec: Tensor, mask: Mask, values: Tensor) -> Tensor:
    """A vector with values added where the mask is one; the mask may cover only its first part."""
    return vec.index_add(0, places(mask), values)


def _uncounted(slots: Sequence[Slot], unknown: Sequence[str]) -> Iterator[str]:
    """The weights whose operations are not known, and operations that are not PyTorch's."""
    for s in slots:
        if s.name in unknown and s.kind == "weight" and not s.uses and len(s.shape) > 1 and not s.lookup:
            yield s.name
    yield from (name for name in unknown if name not in {s.name for s in slots})


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor, Kind, str]]:
    modules = dict(model.named_modules())
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        owner, _, leaf = name.rpartition(".")
        if p.dtype != torch.float32:
            raise ValueError(f"model: parameter {name} is {p.dtype}; expected torch.float32")
        kind: Kind = "weight" if p.dim() > 1 else "bias"
        if isinstance(modules[owner], _NORMS):
            kind = "norm"
        elif leaf == "weight":
            kind = "weight"
        yield name, p, kind, owner
    for name, p in model.named_parameters():
        if not p.requires_grad:  # frozen: part of the model, but not trained
            yield name, p, "buffer", name.rpartition(".")[0]
    for name, b in model.named_buffers():
        if b.dtype == torch.float32:
            yield name, b, "buffer", name.rpartition(".")[0]
        elif b.is_floating_point():
            raise ValueError(f"model: buffer {name} is {b.dtype}; expected torch.float32")


def _head(model: nn.Module) -> str:
    """The classifier: what the model names as its ``head``, else its last linear layer."""
    named = getattr(model, "head_name", None)
    if isinstance(named, str):
        return named
    linears = [name for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    return linears[-1] if linears else _NO_HEAD


def _groups(model: nn.Module, head: str) -> dict[str, int]:
    """The layer of each trained tensor of the body: as the model's ``layer_groups`` say, else a module each.

    A normalisation belongs to the module before it.
    """
    body = [(name, kind, owner) for name, _, kind, owner in _tensors(model) if kind != "buffer" and owner != head]
    beginnings = getattr(model, "layer_groups", None)
    if beginnings is not None:
        groups_of = {
            name: [i for i, group in enumerate(beginnings) if name.startswith(tuple(group))] for name, _, _ in body
        }
        if wrong := [name for name, at in groups_of.items() if len(at) != 1]:
            raise ValueError(
                f"layer_groups of {type(model).__name__}: {wrong[0]} is in none or several; expected exactly one"
            )
        held = {at[0] for at in groups_of.values()}
        if empty := [i for i in range(len(beginnings)) if i not in held]:
            given = f"{empty[0]}, {list(beginnings[empty[0]])},"
            raise ValueError(f"layer_groups of {type(model).__name__}: group {given} has no trained tensor of the body")
        return {name: at[0] for name, at in groups_of.items()}
    owners: list[str] = []
    out: dict[str, int] = {}
    for name, kind, owner in body:
        if not owners or (owner != owners[-1] and (kind != "norm" or len(out) == 0)):
            owners.append(owner)
        out[name] = len(owners) - 1
    return out
