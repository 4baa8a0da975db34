"""A message: named parts, with accessors that check received parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from sparsona.core.wire.checks import need
from sparsona.core.wire.format import FRAME, HEAD, MAX_PARTS, U32
from sparsona.core.wire.parts import Part, Quantised, Sparse, Values, check_part, is_finite, moved, same
from sparsona.core.wire.payload import pieces_of, size_of

_P = TypeVar("_P")


class Message(Mapping[str, Any]):
    """An immutable message of named parts."""

    __slots__ = ("_parts",)

    def __init__(self, /, **parts: Part) -> None:
        if len(parts) > MAX_PARTS:
            raise ValueError(f"message: {len(parts)} parts are too many; expected at most {MAX_PARTS}")
        for name, part in parts.items():
            check_part(name, part)
        self._parts = parts

    def __getitem__(self, name: str) -> Any:
        if name not in self._parts:
            raise KeyError(f"message: no part {name!r}; the parts are {', '.join(self._parts) or 'none'}")
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def to(self, device: torch.device) -> Message:
        """The same message with its tensors on a device."""
        return Message(**{name: moved(part, device) for name, part in self._parts.items()})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self._parts.keys() == other._parts.keys() and all(same(self[n], other[n]) for n in self)

    def __repr__(self) -> str:
        return f"Message({', '.join(f'{n}: {type(p).__name__}' for n, p in self.items())})"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts, in order."""
        return tuple(self._parts)

    def part(self, name: str, kind: type[_P]) -> _P:
        """The part of this name; WireError if it is missing or of another kind."""
        part = self._parts.get(name)
        need(type(part) is kind, f"part {name!r} is {type(part).__name__}, not {kind.__name__}")
        return cast(_P, part)

    def floats(self, name: str, size: int) -> Tensor:
        """The values of a part; WireError unless they are ``size`` single-precision floats."""
        values = self.part(name, Values).values
        need(
            values.shape == (size,) and values.dtype == torch.float32,
            f"part {name!r} holds {len(values)} values of {values.dtype}, not {size} of torch.float32",
        )
        return values

    def sparse(self, name: str, size: int) -> Sparse:
        """A sparse part; WireError unless it is a single-precision vector of ``size`` entries."""
        part = self.part(name, Sparse)
        need(
            part.mask.shape == (size,) and part.values.dtype == torch.float32,
            f"part {name!r} is of {len(part.mask)} entries of {part.values.dtype}, not {size} of torch.float32",
        )
        return part

    def whole(self, name: str, low: int, high: int = 2**53) -> int:
        """An integer part; WireError unless it is within these bounds."""
        number = self.part(name, int)
        need(low <= number <= high, f"part {name!r} is {number}, not {low} to {high}")
        return number

    @property
    def nbytes(self) -> int:
        """Length of the encoded message in bytes; nothing is encoded."""
        frames = sum(1 + len(n.encode()) + FRAME.size + size_of(pieces_of(p)[1]) for n, p in self.items())
        return HEAD.size + frames + U32.size

    @property
    def value_nbytes(self) -> int:
        """Bytes of floating-point and quantised values only, as papers count: no masks, scalars or framing."""
        quantised = sum(p.nbytes for p in self.values() if isinstance(p, Quantised))
        return quantised + sum(v.nbytes for v in self._floats())

    def finite(self) -> bool:
        """Whether no float in it is NaN or infinite."""
        numbers = (p.scale if isinstance(p, Quantised) else p for p in self.values())
        scalars = all(math.isfinite(p) for p in numbers if isinstance(p, float))
        return scalars and all(is_finite(v) for v in self._floats())

    def _floats(self) -> Iterator[Tensor]:
        for part in self.values():
            if isinstance(part, (Values, Sparse)):
                yield part.values
            elif isinstance(part, Tensor) and part.is_floating_point():
                yield part
