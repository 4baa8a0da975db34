"""What travels between devices, as bytes: named parts, each in a short honest form, and a decoder that trusts nobody.

The format, version 1. Numbers are little endian, bit i of a bit stream is bit i % 8 of byte i // 8, padding bits are 0.

    message  "SPNA", u8 version, u16 number of parts, the parts, u32 crc32 of all bytes before it
    part     u8 length of the name (at least 1), the name in utf-8, u8 kind, u32 length of the payload, the payload
    dtype    u8: 0 float32, 1 float16, 2 int32, 3 int64, 4 uint8, 5 bool (a byte that is 0 or 1)

    kind        payload
    0 bool      u8, 0 or 1
    1 int       i64
    2 float     f64
    3 str       utf-8
    4 tensor    dtype, u8 number of dimensions (at most 8), u32 each dimension, the entries in row-major order
    5 values    dtype (0 or 1), the entries
    6 sparse    dtype (0 or 1), u32 length of the mask, the mask, the entries where it is one
    7 bits      a mask
    8 change    u32 length of the first mask, a mask over the old ones: 1 if dropped, one over the old zeros: 1 if grown
    9 quantised u8 bits (at most 8), f64 scale, u32 n, n bits: 1 if negative; then bit 0 of all levels, bit 1, ...

    mask        u32 n, u8 code, then
      code 0              bitmap: n bits
      code 1 + 2 k + s    gaps: u32 count of the rarer symbol s (1 if equal), a unary stream, a remainder stream;
                          k is at most 31; used only where this is shorter than the bitmap

Gaps are Golomb-Rice coded (Golomb 1966, Rice 1979): the number g of other symbols before each symbol s is split into a
quotient g >> k, in the unary stream as that many 0s and a 1, and its k low bits. The remainder stream holds bit 0 of
all of them, then bit 1 of all, and so on. Each stream is padded to whole bytes; the unary one ends with its last 1.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparsona.core.layout import Mask, ones_in, picked, places

_MAGIC, _VERSION = b"SPNA", 1
_U32, _I64, _F64 = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<d")
_HEAD, _FRAME = struct.Struct("<4sBH"), struct.Struct("<BI")
_BITMAP, _GAPS = struct.Struct("<IB"), struct.Struct("<IBI")
_BOOL, _INT, _FLOAT, _STR, _TENSOR, _VALUES, _SPARSE, _BITS, _CHANGE, _QUANTISED = range(10)
_SCALED = struct.Struct("<BdI")
_DTYPES = (torch.float32, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool)
_FORMATS = tuple(np.dtype(f) for f in ("<f4", "<f2", "<i4", "<i8", "u1", "?"))
_FLOATS = _DTYPES[:2]
_MAX = 2**32 - 1  # of every length and dimension
_MAX_DIMS, _MAX_NAME, _MAX_PARTS, _MAX_SHIFT = 8, 255, 2**16 - 1, 31
_CHUNK = 1 << 17  # bytes of a unary stream decoded at a time: bounds working memory, and stays in cache


class WireError(ValueError):
    """Bytes or a part that do not fit what the receiver knows or allows."""


def same(a: object, b: object) -> bool:
    """Whether two parts are equal to the bit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(_raw(a), _raw(b))
    if type(a) is not type(b):
        return False
    if is_dataclass(a):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    return _F64.pack(a) == _F64.pack(b) if isinstance(a, float) else a == b


@dataclass(frozen=True, eq=False)
class Values:
    """Floating-point values whose places the receiver knows; a whole dense vector is ``Values(theta)``."""

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
    """Floating-point values together with their places."""

    mask: Mask  # [n] bool
    values: Tensor  # [number of ones] float32 or float16
    __eq__ = same

    def __post_init__(self) -> None:
        _check_values(self.values)
        _check_mask(self.mask, len(self.values))

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
        _check_mask(self.mask)


@dataclass(frozen=True, eq=False)
class MaskChange:
    """The way from a mask that the receiver knows to a new one."""

    dropped: Mask  # over the ones of the old mask
    grown: Mask  # over the zeros of the old mask
    __eq__ = same

    def __post_init__(self) -> None:
        _check_mask(self.dropped)
        _check_mask(self.grown)

    @staticmethod
    def between(old: Mask, new: Mask) -> MaskChange:
        """What turns the old mask into the new one."""
        _check_mask(old)
        return MaskChange(~_select(new, old), _select(new, ~old))

    def apply(self, old: Mask) -> Mask:
        """The new mask."""
        _check_mask(old)
        there = ones_in(old)
        known, meant = (there, len(old) - there), (len(self.dropped), len(self.grown))
        _need(known == meant, f"the change of a mask of {meant} ones and zeros does not fit one of {known}")
        new = old.index_fill(0, picked(places(old), self.dropped), False)
        return new.index_fill_(0, picked(places(~old), self.grown), True)


@dataclass(frozen=True, eq=False)
class Quantised:
    """Multiples of one scale: a sign and a level of so many bits each; without any bits, plus or minus the scale."""

    negative: Mask  # [n] bool
    levels: Tensor  # [n] uint8, below 2 ** bits; ones where bits are 0
    scale: float
    bits: int
    __eq__ = same

    def __post_init__(self) -> None:
        _check_mask(self.negative)
        levels = self.levels
        if not (isinstance(levels, Tensor) and levels.dtype == torch.uint8 and levels.shape == self.negative.shape):
            raise ValueError(f"levels must be {len(self.negative)} of torch.uint8, not {_describe(levels)}")
        if not 0 <= self.bits <= 8:
            raise ValueError(f"bits = {self.bits}: must be 0 to 8")
        highest = int(levels.max()) if len(levels) else 0
        if highest >= 2 ** max(self.bits, 1) or (self.bits == 0 and not bool((levels == 1).all())):
            raise ValueError(f"a level of {highest} does not fit {self.bits} bits")

    @property
    def values(self) -> Tensor:
        """What they stand for, in single precision."""
        sizes = self.levels.to(torch.float32) * self.scale
        return torch.where(self.negative, -sizes, sizes)

    @property
    def nbytes(self) -> int:
        """Bytes of signs, levels and scale."""
        return 8 + _bytes(len(self.negative)) + _bytes(self.bits * len(self.negative))


_P = TypeVar("_P")
Part = Values | Sparse | Bits | MaskChange | Quantised | Tensor | int | float | bool | str


class Message(Mapping[str, Any]):
    """Named parts that travel together; it cannot be changed once made."""

    __slots__ = ("_parts",)

    def __init__(self, /, **parts: Part) -> None:
        if len(parts) > _MAX_PARTS:
            raise ValueError(f"a message holds at most {_MAX_PARTS} parts, not {len(parts)}")
        for name, part in parts.items():
            _check_part(name, part)
        self._parts = parts

    def __getitem__(self, name: str) -> Any:
        if name not in self._parts:
            raise KeyError(f"the message has no part {name!r}, only {', '.join(self._parts) or 'none'}")
        return self._parts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

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
        """A part that a stranger sent; WireError unless it is there and of this kind."""
        found = self._parts.get(name)
        _need(type(found) is kind, f"part {name!r} is {type(found).__name__}, not {kind.__name__}")
        return cast(_P, found)

    def floats(self, name: str, size: int) -> Tensor:
        """The values of a part; WireError unless there are ``size`` of them, in single precision."""
        values = self.part(name, Values).values
        _need(
            values.shape == (size,) and values.dtype == torch.float32,
            f"part {name!r} holds {len(values)} values of {values.dtype}, not {size} of torch.float32",
        )
        return values

    def sparse(self, name: str, size: int) -> Sparse:
        """A sparse part; WireError unless it is of a vector of ``size`` entries, in single precision."""
        part = self.part(name, Sparse)
        _need(
            part.mask.shape == (size,) and part.values.dtype == torch.float32,
            f"part {name!r} is of {len(part.mask)} entries of {part.values.dtype}, not {size} of torch.float32",
        )
        return part

    def whole(self, name: str, low: int, high: int = 2**53) -> int:
        """A number; WireError unless it is whole and within these bounds."""
        number = self.part(name, int)
        _need(low <= number <= high, f"part {name!r} is {number}, not {low} to {high}")
        return number

    @property
    def nbytes(self) -> int:
        """Length of the encoding, without encoding."""
        frames = sum(1 + len(n.encode()) + _FRAME.size + _size(_pieces(p)[1]) for n, p in self.items())
        return _HEAD.size + frames + _U32.size

    @property
    def value_nbytes(self) -> int:
        """Bytes of floating-point and quantised values alone, as papers count: no masks, scalars or framing."""
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


def encode(message: Message) -> bytes:
    """The message as bytes."""
    chunks: list[bytes | memoryview] = [_HEAD.pack(_MAGIC, _VERSION, len(message))]
    for name, part in message.items():
        kind, pieces = _pieces(part)
        if (size := _size(pieces)) > _MAX:
            raise ValueError(f"part {name!r} takes {size} bytes; at most {_MAX} can travel")
        chunks.append(bytes([len(name.encode())]) + name.encode() + _FRAME.pack(kind, size))
        for piece in pieces:
            if isinstance(piece, bytes):
                chunks.append(piece)
            else:
                chunks += [_raw(piece).data] if isinstance(piece, Tensor) else piece.chunks()
    crc = 0
    for chunk in chunks:
        crc = zlib.crc32(chunk, crc)
    return b"".join([*chunks, _U32.pack(crc)])


def decode(data: bytes | bytearray | memoryview, *, max_bytes: int = 1 << 30) -> Message:
    """The message in the bytes, its tensors owning their memory; WireError if it is none or exceeds ``max_bytes``."""
    try:
        view = memoryview(data).cast("B")
    except TypeError as error:
        raise WireError(f"not contiguous bytes: {error}") from None
    _need(len(view) >= _HEAD.size + _U32.size, f"{len(view)} bytes are too few for a message")
    magic, version, count = _HEAD.unpack_from(view)
    _need(magic == _MAGIC, "these bytes do not start like a message")
    _need(version == _VERSION, f"message version {version} is not {_VERSION}, the one read here")
    body = view[: -_U32.size]
    _need(_U32.unpack_from(view, len(body))[0] == zlib.crc32(body), "the checksum does not match")
    reader = _Reader(body[_HEAD.size :], _Budget(max_bytes))
    parts: dict[str, Part] = {}
    for _ in range(count):
        name = reader.sub(reader.u8()).text()
        _need(name != "" and name not in parts, f"part name {name!r} is empty or occurs twice")
        kind, size = reader.unpack(_FRAME)
        payload = reader.sub(size)
        parts[name] = _decode_part(kind, payload)
        payload.finish()
    reader.finish()
    return Message(**parts)


def mask_nbytes(mask: Mask) -> int:
    """Length of an encoded mask, without encoding."""
    _check_mask(mask)
    return _MaskCode.of(mask).nbytes


@dataclass(frozen=True)
class _MaskCode:
    """How a mask is best coded: as a bitmap, or as the gaps of its rarer symbol."""

    bits: NDArray[np.bool_]
    gaps: NDArray[Any] | None = None
    symbol: int = 1
    shift: int = 0  # k
    unary: int = 0  # bits in the unary stream

    @property
    def nbytes(self) -> int:
        if self.gaps is None:
            return _BITMAP.size + _bytes(len(self.bits))
        return _GAPS.size + _bytes(self.unary) + _bytes(self.shift * len(self.gaps))

    @staticmethod
    def of(mask: Mask) -> _MaskCode:
        bits = _numpy(mask)
        n, ones = len(bits), int(np.count_nonzero(bits))
        symbol = int(ones <= n - ones)
        count = ones if symbol else n - ones
        places = np.flatnonzero(bits if symbol else ~bits)
        gaps: NDArray[Any] = np.empty(count, np.int32 if n < 2**31 else np.int64)  # narrow is faster
        gaps[:1] = places[:1]
        gaps[1:] = places[1:] - places[:-1] - 1

        def cost(k: int) -> int:  # in bits; convex, as sum(g >> k) falls by ever less, so that descent finds the best
            return count * (1 + k) + int((gaps >> k).sum(dtype=np.int64))

        k = max(0, (int(gaps.sum(dtype=np.int64)) // max(count, 1)).bit_length() - 1)
        best = cost(k)
        for step in (1, -1):
            while 0 <= k + step <= _MAX_SHIFT and (other := cost(k + step)) < best:
                k, best = k + step, other
        bitmap, rice = _MaskCode(bits), _MaskCode(bits, gaps, symbol, k, best - k * count)
        return rice if rice.nbytes < bitmap.nbytes else bitmap

    def chunks(self) -> list[bytes | memoryview]:
        if self.gaps is None:
            return [_BITMAP.pack(len(self.bits), 0), np.packbits(self.bits, bitorder="little").data]
        unary = np.zeros(self.unary, np.uint8)
        unary[np.cumsum((self.gaps >> self.shift) + 1, dtype=np.int64) - 1] = 1
        low = np.empty((self.shift, len(self.gaps)), np.uint8)
        for j, plane in enumerate(low):
            np.bitwise_and(self.gaps >> j, 1, out=plane, casting="unsafe")
        head = _GAPS.pack(len(self.bits), 1 + 2 * self.shift + self.symbol, len(self.gaps))
        return [head, *(np.packbits(s, bitorder="little").data for s in (unary, low.reshape(-1)))]


@dataclass(frozen=True)
class _LevelCode:
    """Signs and levels of quantised values, as streams of bits."""

    part: Quantised

    @property
    def nbytes(self) -> int:
        return self.part.nbytes - 8  # less the scale, which lies in the head

    def chunks(self) -> list[bytes | memoryview]:
        levels = _numpy(self.part.levels)
        planes = np.empty((self.part.bits, len(levels)), np.uint8)
        for j, plane in enumerate(planes):
            np.bitwise_and(levels >> j, 1, out=plane)
        return [np.packbits(s, bitorder="little").data for s in (_numpy(self.part.negative), planes.reshape(-1))]


def _decode_mask(block: memoryview, budget: _Budget) -> Mask:
    _need(len(block) >= _BITMAP.size, f"a mask of {len(block)} bytes is cut short")
    n, code = _BITMAP.unpack_from(block)
    budget.spend(n)
    bitmap = _BITMAP.size + _bytes(n)
    if code == 0:
        _need(len(block) == bitmap, f"a bitmap of {n} bits does not take {len(block)} bytes")
        return torch.from_numpy(_unpack(block[_BITMAP.size :], n).view(np.bool_))
    k, symbol = divmod(code - 1, 2)
    _need(k <= _MAX_SHIFT, f"mask code {code} is unknown")
    # With these bounds neither stream, unpacked, is much larger than the mask itself.
    _need(_GAPS.size <= len(block) < bitmap, f"the gaps of a mask of {n} bits do not take {len(block)} bytes")
    count = int(_GAPS.unpack_from(block)[2])
    split = len(block) - _bytes(k * count)
    _need(2 * count <= n and split >= _GAPS.size + _bytes(count), f"{count} gaps do not fit {len(block)} bytes")
    unary = np.frombuffer(block[_GAPS.size : split], np.uint8)
    _need(unary[-1] > 0 if count else len(unary) == 0, "the unary stream of a mask does not end with a 1")
    low = _unpack(block[split:], k * count).reshape(k, count)
    out = np.full(n, 1 - symbol, np.uint8)
    done = remainders = 0  # symbols placed so far, and the sum of their remainders
    for start in range(0, len(unary), _CHUNK):
        ends = np.flatnonzero(np.unpackbits(unary[start : start + _CHUNK], bitorder="little")) + 8 * start
        if len(ends) == 0:
            continue
        here = slice(done, done + len(ends))
        _need(here.stop <= count, f"the unary stream of a mask holds more than {count} ends")
        index = np.arange(here.start, here.stop)
        places = ends - index  # the sum of the quotients up to each symbol
        _need(int(places[-1]) << k <= n, f"the gaps of a mask run past its {n} entries")
        places = (places << k) + index
        if k:
            rest = sum(low[j, here].astype(np.int64) << j for j in range(k))
            sums = np.cumsum(rest) + remainders
            places += sums
            remainders = int(sums[-1])
        _need(int(places[-1]) < n, f"the gaps of a mask run past its {n} entries")
        out[places] = symbol
        done = here.stop
    _need(done == count, f"the unary stream of a mask holds {done} ends, not {count}")
    return torch.from_numpy(out.view(np.bool_))


def _unpack(block: memoryview, n: int) -> NDArray[np.uint8]:
    """The first n bits, one per byte; those that follow must be zero."""
    _need(n % 8 == 0 or block[-1] >> n % 8 == 0, "padding bits are not zero")
    return np.unpackbits(np.frombuffer(block, np.uint8), count=n, bitorder="little")


def _bytes(bits: int) -> int:
    return (bits + 7) // 8


def _pieces(part: Part) -> tuple[int, list[bytes | Tensor | _MaskCode | _LevelCode]]:
    """A part's kind and what its payload is made of; masks are planned but not yet coded."""
    match part:
        case bool():
            return _BOOL, [bytes([part])]
        case int():
            return _INT, [_I64.pack(part)]
        case float():
            return _FLOAT, [_F64.pack(part)]
        case str():
            return _STR, [part.encode()]
        case Tensor():
            return _TENSOR, [struct.pack(f"<2B{part.dim()}I", _dtype(part), part.dim(), *part.shape), part]
        case Values():
            return _VALUES, [bytes([_dtype(part.values)]), part.values]
        case Sparse():
            mask = _MaskCode.of(part.mask)
            return _SPARSE, [bytes([_dtype(part.values)]), _U32.pack(mask.nbytes), mask, part.values]
        case Bits():
            return _BITS, [_MaskCode.of(part.mask)]
        case MaskChange():
            dropped = _MaskCode.of(part.dropped)
            return _CHANGE, [_U32.pack(dropped.nbytes), dropped, _MaskCode.of(part.grown)]
        case Quantised():
            return _QUANTISED, [_SCALED.pack(part.bits, part.scale, len(part.levels)), _LevelCode(part)]


def _size(pieces: list[bytes | Tensor | _MaskCode | _LevelCode]) -> int:
    return sum(len(p) if isinstance(p, bytes) else p.nbytes for p in pieces)


def _decode_part(kind: int, reader: _Reader) -> Part:
    if kind == _BOOL:
        flag = reader.u8()
        _need(flag <= 1, f"a bool is {flag}, not 0 or 1")
        return bool(flag)
    if kind == _INT:
        return int(reader.unpack(_I64)[0])
    if kind == _FLOAT:
        return float(reader.unpack(_F64)[0])
    if kind == _STR:
        reader.budget.spend(len(reader.view))
        return reader.text()
    if kind == _TENSOR:
        code, dims = reader.u8(), reader.u8()
        _need(dims <= _MAX_DIMS, f"a tensor has {dims} dimensions, more than {_MAX_DIMS}")
        return reader.tensor(code, tuple(reader.unpack(_U32)[0] for _ in range(dims)))
    if kind == _VALUES:
        return Values(reader.floats(reader.u8()))
    if kind == _SPARSE:
        code, size = reader.u8(), reader.unpack(_U32)[0]
        mask = reader.sub(size).mask()
        return Sparse(mask, reader.floats(code))
    if kind == _BITS:
        return Bits(reader.mask())
    if kind == _QUANTISED:
        return reader.quantised()
    _need(kind == _CHANGE, f"part kind {kind} is unknown")
    dropped = reader.sub(reader.unpack(_U32)[0]).mask()
    return MaskChange(dropped, reader.mask())


@dataclass
class _Budget:
    """What the decoded parts may still take, asked before anything is allocated."""

    left: int

    def spend(self, nbytes: int) -> None:
        _need(nbytes <= self.left, f"a part takes {nbytes} bytes, the limit leaves {self.left}")
        self.left -= nbytes


@dataclass
class _Reader:
    """Takes what it is asked for from the front of a view, never beyond its end."""

    view: memoryview
    budget: _Budget

    def take(self, size: int) -> memoryview:
        _need(size <= len(self.view), f"{size} bytes are announced, {len(self.view)} are left")
        taken, self.view = self.view[:size], self.view[size:]
        return taken

    def sub(self, size: int) -> _Reader:
        return _Reader(self.take(size), self.budget)

    def finish(self) -> None:
        _need(len(self.view) == 0, f"{len(self.view)} bytes are left over")

    def unpack(self, form: struct.Struct) -> tuple[Any, ...]:
        return form.unpack(self.take(form.size))

    def u8(self) -> int:
        return self.take(1)[0]

    def text(self) -> str:
        """All that is left, as text."""
        try:
            return str(self.take(len(self.view)), "utf-8")
        except UnicodeDecodeError:
            raise WireError("a name or text is not valid utf-8") from None

    def mask(self) -> Mask:
        """All that is left, as a mask."""
        return _decode_mask(self.take(len(self.view)), self.budget)

    def quantised(self) -> Quantised:
        """All that is left, as quantised values."""
        bits, scale, n = self.unpack(_SCALED)
        _need(bits <= 8, f"a level of {bits} bits is more than 8")
        planes = _bytes(bits * n)
        _need(len(self.view) == _bytes(n) + planes, f"{len(self.view)} bytes are no {n} values of {bits} bits")
        self.budget.spend(n * (2 + bits))
        negative = _unpack(self.take(_bytes(n)), n).view(np.bool_)
        each = _unpack(self.take(planes), bits * n).reshape(bits, n)
        levels = np.zeros(n, np.uint8) if bits else np.ones(n, np.uint8)
        for j, plane in enumerate(each):
            levels |= plane << j
        return Quantised(torch.from_numpy(negative), torch.from_numpy(levels), float(scale), int(bits))

    def floats(self, code: int) -> Tensor:
        """All that is left, as a vector."""
        _need(code < len(_FLOATS), f"dtype {code} is not a floating-point one")
        return self.tensor(code, (len(self.view) // _FORMATS[code].itemsize,))

    def tensor(self, code: int, shape: tuple[int, ...]) -> Tensor:
        """All that is left, as a tensor of this shape."""
        _need(code < len(_FORMATS), f"dtype {code} is unknown")
        form = _FORMATS[code]
        self.budget.spend(math.prod(max(d, 1) for d in shape) * form.itemsize)  # of an empty one, bounds the strides
        _need(len(self.view) == math.prod(shape) * form.itemsize, f"{len(self.view)} bytes are no tensor of {shape}")
        raw = np.frombuffer(self.take(len(self.view)), np.uint8)
        _need(form.kind != "b" or raw.max(initial=0) <= 1, "a byte of a bool tensor is not 0 or 1")
        return torch.from_numpy(raw.view(form).astype(form.newbyteorder("="))).reshape(shape)


def is_finite(values: Tensor) -> bool:
    """Whether no entry is NaN or infinite."""
    # a finite sum proves it at a fraction of the cost; a sum that is not may be an overflow, so look closer
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def _need(ok: bool | np.bool_, problem: str) -> None:
    if not ok:
        raise WireError(problem)


def _dtype(tensor: Tensor) -> int:
    return _DTYPES.index(tensor.dtype)


def _numpy(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().contiguous().numpy()
    return array


def _raw(tensor: Tensor) -> NDArray[np.uint8]:
    """The entries as little-endian bytes, without a copy where they lie that way already."""
    array = _numpy(tensor).reshape(-1)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).view(np.uint8)


def _select(vec: Tensor, mask: Mask) -> Tensor:
    _check_mask(mask)
    if vec.shape != mask.shape:
        raise ValueError(f"{_describe(vec)} does not fit a mask of {len(mask)} entries")
    return picked(vec, mask)


def _scatter(values: Tensor, mask: Mask) -> Tensor:
    _check_mask(mask, len(values))
    if len(values) == len(mask):
        return values.clone()
    return values.new_zeros(len(mask)).index_copy_(0, places(mask), values)


def _check_mask(mask: Mask, ones: int | None = None) -> None:
    if not (isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.dim() == 1 and len(mask) <= _MAX):
        raise ValueError(f"a mask must be a vector of at most {_MAX} bools, not {_describe(mask)}")
    if ones is not None and (there := ones_in(mask)) != ones:
        raise WireError(f"{ones} values do not fit a mask of {there} ones")


def _check_values(values: Tensor) -> None:
    if not (isinstance(values, Tensor) and values.dtype in _FLOATS and values.dim() == 1):
        raise ValueError(f"values must be a float32 or float16 vector, not {_describe(values)}")


def _check_part(name: str, part: object) -> None:
    try:
        fits = 1 <= len(name.encode()) <= _MAX_NAME and (not isinstance(part, str) or len(part.encode()) <= _MAX)
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise ValueError(f"part {name!r}: names (of 1 to {_MAX_NAME} bytes) and texts must be valid utf-8")
    if isinstance(part, Tensor):
        fits = part.dtype in _DTYPES and part.dim() <= _MAX_DIMS and max(part.shape, default=0) <= _MAX
    elif isinstance(part, int):
        fits = -(2**63) <= part < 2**63
    else:
        fits = isinstance(part, (Values, Sparse, Bits, MaskChange, Quantised, float, str))
    if not fits:
        raise ValueError(
            f"part {name!r} is {_describe(part)}; what can travel: Values, Sparse, Bits, MaskChange, Quantised, "
            f"64-bit int, float, bool, str, and tensors of {', '.join(map(str, _DTYPES))} with at most {_MAX_DIMS} "
            f"dimensions"
        )


def _describe(thing: object) -> str:
    if isinstance(thing, Tensor):
        return f"a tensor of {thing.dtype} and shape {tuple(thing.shape)}"
    return f"{type(thing).__name__} {thing!r:.40}"
