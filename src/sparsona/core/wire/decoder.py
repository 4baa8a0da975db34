"""Bytes of a stranger as a message, or a WireError; nothing is allocated beyond the limit."""

from __future__ import annotations

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsona.core.layout import Mask
from sparsona.core.wire.checks import Budget, WireError, need
from sparsona.core.wire.format import (
    BITS,
    BOOL,
    CHANGE,
    F64,
    FLOAT,
    FLOATS,
    FORMATS,
    FRAME,
    HEAD,
    I64,
    INT,
    MAGIC,
    MAX_DIMS,
    QUANTISED,
    SCALED,
    SPARSE,
    STR,
    TENSOR,
    U32,
    VALUES,
    VERSION,
    bytes_of,
)
from sparsona.core.wire.golomb import decode_mask, unpack_bits
from sparsona.core.wire.message import Message
from sparsona.core.wire.parts import Bits, MaskChange, Part, Quantised, Sparse, Values


def decode(data: bytes | bytearray | memoryview, *, max_bytes: int = 1 << 30) -> Message:
    """Decode a message; its tensors own their memory. WireError if it is invalid or exceeds ``max_bytes``."""
    try:
        view = memoryview(data).cast("B")
    except TypeError as error:
        raise WireError(f"message: the bytes are not contiguous: {error}") from None
    need(len(view) >= HEAD.size + U32.size, f"{len(view)} bytes are too few for a message")
    magic, version, count = HEAD.unpack_from(view)
    need(magic == MAGIC, "the bytes do not start with a message header")
    need(version == VERSION, f"message version {version} is not supported; expected {VERSION}")
    body = view[: -U32.size]
    need(U32.unpack_from(view, len(body))[0] == zlib.crc32(body), "the checksum does not match")
    reader = _Reader(body[HEAD.size :], Budget(max_bytes))
    parts: dict[str, Part] = {}
    for _ in range(count):
        name = reader.sub(reader.u8()).text()
        need(name != "" and name not in parts, f"part name {name!r} is empty or occurs twice")
        kind, size = reader.unpack(FRAME)
        payload = reader.sub(size)
        parts[name] = _decode_part(kind, payload)
        payload.finish()
    reader.finish()
    return Message(**parts)


def _decode_part(kind: int, reader: _Reader) -> Part:
    if kind == BOOL:
        flag = reader.u8()
        need(flag <= 1, f"a bool is {flag}, not 0 or 1")
        return bool(flag)
    if kind == INT:
        return int(reader.unpack(I64)[0])
    if kind == FLOAT:
        return float(reader.unpack(F64)[0])
    if kind == STR:
        reader.budget.spend(len(reader.view))
        return reader.text()
    if kind == TENSOR:
        code, dims = reader.u8(), reader.u8()
        need(dims <= MAX_DIMS, f"a tensor has {dims} dimensions, more than {MAX_DIMS}")
        return reader.tensor(code, tuple(reader.unpack(U32)[0] for _ in range(dims)))
    if kind == VALUES:
        return Values(reader.floats(reader.u8()))
    if kind == SPARSE:
        code, size = reader.u8(), reader.unpack(U32)[0]
        mask = reader.sub(size).mask()
        return Sparse(mask, reader.floats(code))
    if kind == BITS:
        return Bits(reader.mask())
    if kind == QUANTISED:
        return reader.quantised()
    need(kind == CHANGE, f"part kind {kind} is unknown")
    dropped = reader.sub(reader.unpack(U32)[0]).mask()
    return MaskChange(dropped, reader.mask())


@dataclass
class _Reader:
    """Takes what it is asked for from the front of a view, never beyond its end."""

    view: memoryview
    budget: Budget

    def take(self, size: int) -> memoryview:
        need(size <= len(self.view), f"{size} bytes are announced, {len(self.view)} are left")
        taken, self.view = self.view[:size], self.view[size:]
        return taken

    def sub(self, size: int) -> _Reader:
        return _Reader(self.take(size), self.budget)

    def finish(self) -> None:
        need(len(self.view) == 0, f"{len(self.view)} bytes are left over")

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.take(form.size))

    def u8(self) -> int:
        return self.take(1)[0]

    def text(self) -> str:
        """All that is left, as text."""
        try:
            return str(self.take(len(self.view)), "utf-8")
        except UnicodeDecodeError:
            raise WireError("a name or text is not valid UTF-8") from None

    def mask(self) -> Mask:
        """All that is left, as a mask."""
        return decode_mask(self.take(len(self.view)), self.budget)

    def quantised(self) -> Quantised:
        """All that is left, as quantised values."""
        bits, scale, n = self.unpack(SCALED)
        need(bits <= 8, f"a level of {bits} bits is more than 8")
        planes = bytes_of(bits * n)
        need(len(self.view) == bytes_of(n) + planes, f"{len(self.view)} bytes are no {n} values of {bits} bits")
        self.budget.spend(n * (2 + bits))
        negative = unpack_bits(self.take(bytes_of(n)), n).view(np.bool_)
        each = unpack_bits(self.take(planes), bits * n).reshape(bits, n)
        levels = np.zeros(n, np.uint8) if bits else np.ones(n, np.uint8)
        for j, plane in enumerate(each):
            levels |= plane << j
        return Quantised(torch.from_numpy(negative), torch.from_numpy(levels), float(scale), int(bits))

    def floats(self, code: int) -> Tensor:
        """All that is left, as a vector."""
        need(code < len(FLOATS), f"dtype {code} is not a floating-point one")
        return self.tensor(code, (len(self.view) // FORMATS[code].itemsize,))

    def tensor(self, code: int, shape: tuple[int, ...]) -> Tensor:
        """All that is left, as a tensor of this shape."""
        need(code < len(FORMATS), f"dtype {code} is unknown")
        form = FORMATS[code]
        self.budget.spend(math.prod(max(d, 1) for d in shape) * form.itemsize)  # of an empty one, bounds the strides
        need(len(self.view) == math.prod(shape) * form.itemsize, f"{len(self.view)} bytes are no tensor of {shape}")
        raw = np.frombuffer(self.take(len(self.view)), np.uint8)
        need(form.kind != "b" or raw.max(initial=0) <= 1, "a byte of a bool tensor is not 0 or 1")
        return torch.from_numpy(raw.view(form).astype(form.newbyteorder("="))).reshape(shape)
