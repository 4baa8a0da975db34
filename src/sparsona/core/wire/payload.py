"""The payload of a part, planned before it is coded: its size is known without encoding."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from sparsona.core.wire.format import (
    BITS,
    BOOL,
    CHANGE,
    F64,
    FLOAT,
    I64,
    INT,
    QUANTISED,
    SCALED,
    SPARSE,
    STR,
    TENSOR,
    U32,
    VALUES,
    as_numpy,
    dtype_code,
)
from sparsona.core.wire.golomb import MaskCode
from sparsona.core.wire.parts import Bits, MaskChange, Part, Quantised, Sparse, Values


@dataclass(frozen=True)
class LevelCode:
    """Signs and levels of quantised values, as streams of bits."""

    part: Quantised

    @property
    def nbytes(self) -> int:
        """Bytes of both streams."""
        return self.part.nbytes - 8  # less the scale, which lies in the head

    def chunks(self) -> list[bytes | memoryview]:
        """Both streams, in pieces to be joined."""
        levels = as_numpy(self.part.levels)
        planes = np.empty((self.part.bits, len(levels)), np.uint8)
        for j, plane in enumerate(planes):
            np.bitwise_and(levels >> j, 1, out=plane)
        return [np.packbits(s, bitorder="little").data for s in (as_numpy(self.part.negative), planes.reshape(-1))]


Piece = bytes | Tensor | MaskCode | LevelCode


def pieces_of(part: Part) -> tuple[int, list[Piece]]:
    """A part's kind and what its payload is made of; masks are planned but not yet coded."""
    match part:
        case bool():
            return BOOL, [bytes([part])]
        case int():
            return INT, [I64.pack(part)]
        case float():
            return FLOAT, [F64.pack(part)]
        case str():
            return STR, [part.encode()]
        case Tensor():
            return TENSOR, [struct.pack(f"<2B{part.dim()}I", dtype_code(part), part.dim(), *part.shape), part]
        case Values():
            return VALUES, [bytes([dtype_code(part.values)]), part.values]
        case Sparse():
            mask = MaskCode.of(part.mask)
            return SPARSE, [bytes([dtype_code(part.values)]), U32.pack(mask.nbytes), mask, part.values]
        case Bits():
            return BITS, [MaskCode.of(part.mask)]
        case MaskChange():
            dropped = MaskCode.of(part.dropped)
            return CHANGE, [U32.pack(dropped.nbytes), dropped, MaskCode.of(part.grown)]
        case Quantised():
            return QUANTISED, [SCALED.pack(part.bits, part.scale, len(part.levels)), LevelCode(part)]


def size_of(pieces: list[Piece]) -> int:
    """Length of a payload."""
    return sum(len(p) if isinstance(p, bytes) else p.nbytes for p in pieces)
