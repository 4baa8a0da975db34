"""The parts that a message is made of, checked when they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass

import numpy as np
import torch
from torch import Tensor

from sparsona.core.layout import Mask, ones_in, picked, places
from sparsona.core.wire.checks import WireError, need
from sparsona.core.wire.format import DTYPES, F64, FLOATS, MAX_DIMS, MAX_LENGTH, MAX_NAME, bytes_of, raw_bytes


def same(a: object, b: object) -> bool:
    """Whether two parts are equal to the bit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(raw_bytes(a), raw_bytes(b))
    if type(a) is not type(b):
        return False
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return F64.pack(a) == F64.pack(b) if isinstance(a, float) else a == b


@dataclass(frozen=True, eq=False)
class Values:
    """Floating-point values whose positions the receiver knows; a dense vector is ``Values(theta)``."""

    values: Tensor  # [m] float32 or float16
    __eq__ = same

    def __post_init__(self) -> None:
        _check_values(self.values)

    @staticmethod
    def of(vec: Tensor, mask: Mask) -> Values:
        """The entries of a vector where the mask is one."""
        return Values(_select(vec, mask))

    def at(self, mask: Mask) -> Tensor:
        """A new dense vector with these values where the mask is one, and zero elsewhere."""
        return _scatter(self.values, mask)


@dataclass(frozen=True, eq=False)
class Sparse:
    """Floating-point values together with their positions."""

    mask: Mask  # [n] bool
    values: Tensor  # [number of ones] float32 or float16
    __eq__ = same

    def __post_init__(self) -> None:
        _check_values(self.values)
        check_mask(self.mask, len(self.values))

    @staticmethod
    def of(vec: Tensor, mask: Mask) -> Sparse:
        """The entries of a vector where the mask is one, and the mask."""
        return Sparse(mask, _select(vec, mask))

    def dense(self) -> Tensor:
        """A new dense vector, zero off the mask."""
        return _scatter(self.values, self.mask)


@dataclass(frozen=True, eq=False)
class Bits:
    """A mask that the receiver does not know."""

    mask: Mask  # [n] bool
    __eq__ = same

    def __post_init__(self) -> None:
        check_mask(self.mask)


@dataclass(frozen=True, eq=False)
class MaskChange:
    """The change from a mask that the receiver knows to a new one."""

    dropped: Mask  # over the ones of the old mask
    grown: Mask  # over the zeros of the old mask
    __eq__ = same

    def __post_init__(self) -> None:
        check_mask(self.dropped)
        check_mask(self.grown)

    @staticmethod
    def between(old: Mask, new: Mask) -> MaskChange:
        """The change from the old mask to the new one."""
        check_mask(old)
        return MaskChange(~_select(new, old), _select(new, ~old))

    def apply(self, old: Mask) -> Mask:
        """The new mask."""
        check_mask(old)
        there = ones_in(old)
        known, meant = (there, len(old) - there), (len(self.dropped), len(self.grown))
        need(known == meant, f"the change of a mask of {meant} ones and zeros does not fit one of {known}")
        new = old.index_fill(0, picked(places(old), self.dropped), False)
        return new.index_fill_(0, picked(places(~old), self.grown), True)


@dataclass(frozen=True, eq=False)
class Quantised:
    """Multiples of one scale: each a sign and a level of ``bits`` bits; with 0 bits, plus or minus the scale."""

    negative: Mask  # [n] bool
    levels: Tensor  # [n] uint8, below 2 ** bits; ones where bits are 0
    scale: float
    bits: int
    __eq__ = same

    def __post_init__(self) -> None:
        check_mask(self.negative)
        levels = self.levels
        if not (isinstance(levels, Tensor) and levels.dtype == torch.uint8 and levels.shape == self.negative.shape):
            raise ValueError(
                f"levels: {_describe(levels)} is not allowed; expected {len(self.negative)} values of torch.uint8"
            )
        if not 0 <= self.bits <= 8:
            raise ValueError(f"bits: {self.bits} is not allowed; expected an int in [0, 8]")
        highest = int(levels.max()) if len(levels) else 0
        if highest >= 2 ** max(self.bits, 1) or (self.bits == 0 and not bool((levels == 1).all())):
            raise ValueError(f"levels: {highest} does not fit into {self.bits} bits")

    @property
    def values(self) -> Tensor:
        """The represented values, in single precision."""
        sizes = self.levels.to(torch.float32) * self.scale
        return torch.where(self.negative, -sizes, sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of signs, levels and scale."""
        return 8 + bytes_of(len(self.negative)) + bytes_of(self.bits * len(self.negative))


Part = Values | Sparse | Bits | MaskChange | Quantised | Tensor | int | float | bool | str


def is_finite(values: Tensor) -> bool:
    """Whether no entry is NaN or infinite."""
    # a finite sum proves it at a fraction of the cost; a sum that is not may be an overflow, so look closer
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def moved(part: Part, device: torch.device) -> Part:
    """A part with its tensors on a device."""
    match part:
        case Values(values):
            return Values(values.to(device))
        case Sparse(mask, values):
            return Sparse(mask.to(device), values.to(device))
        case Bits(mask):
            return Bits(mask.to(device))
        case MaskChange(dropped, grown):
            return MaskChange(dropped.to(device), grown.to(device))
        case Quantised(negative, levels, scale, bits):
            return Quantised(negative.to(device), levels.to(device), scale, bits)
        case Tensor():
            return part.to(device)
    return part


def check_mask(mask: Mask, ones: int | None = None) -> None:
    """ValueError unless this is a mask, WireError unless it has so many ones."""
    if not (isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.dim() == 1 and len(mask) <= MAX_LENGTH):
        raise ValueError(f"mask: {_describe(mask)} is not allowed; expected a vector of at most {MAX_LENGTH} bools")
    if ones is not None and (there := ones_in(mask)) != ones:
        raise WireError(f"values: {ones} values do not fit a mask with {there} ones")


def check_part(name: str, part: object) -> None:
    """ValueError unless a part of this name and value can travel."""
    try:
        fits = 1 <= len(name.encode()) <= MAX_NAME and (not isinstance(part, str) or len(part.encode()) <= MAX_LENGTH)
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise ValueError(f"part {name!r}: expected names of 1 to {MAX_NAME} bytes, and names and texts in valid UTF-8")
    if isinstance(part, Tensor):
        fits = part.dtype in DTYPES and part.dim() <= MAX_DIMS and max(part.shape, default=0) <= MAX_LENGTH
    elif isinstance(part, int):
        fits = -(2**63) <= part < 2**63
    else:
        fits = isinstance(part, (Values, Sparse, Bits, MaskChange, Quantised, float, str))
    if not fits:
        raise ValueError(
            f"part {name!r}: {_describe(part)} is not allowed; expected Values, Sparse, Bits, MaskChange, Quantised, "
            f"a 64-bit int, float, bool, str, or a tensor of {', '.join(map(str, DTYPES))} with at most {MAX_DIMS} "
            f"dimensions"
        )


def _select(vec: Tensor, mask: Mask) -> Tensor:
    check_mask(mask)
    if vec.shape != mask.shape:
        raise ValueError(f"values: {_describe(vec)} does not fit a mask of {len(mask)} entries")
    return picked(vec, mask)


def _scatter(values: Tensor, mask: Mask) -> Tensor:
    check_mask(mask, len(values))
    if len(values) == len(mask):
        return values.clone()
    return values.new_zeros(len(mask)).index_copy_(0, places(mask), values)


def _check_values(values: Tensor) -> None:
    if not (isinstance(values, Tensor) and values.dtype in FLOATS and values.dim() == 1):
        raise ValueError(f"values: {_describe(values)} is not allowed; expected a float32 or float16 vector")


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
    return f"{type(value).__name__} {value!r:.40}"
