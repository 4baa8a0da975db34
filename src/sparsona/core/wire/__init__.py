"""Messages between devices as bytes: named parts in a compact form, and a decoder that trusts no sender.

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

from sparsona.core.wire.checks import WireError
from sparsona.core.wire.decoder import decode
from sparsona.core.wire.encoder import encode
from sparsona.core.wire.golomb import mask_nbytes
from sparsona.core.wire.message import Message
from sparsona.core.wire.parts import Bits, MaskChange, Part, Quantised, Sparse, Values, is_finite, same

__all__ = [
    "Bits",
    "MaskChange",
    "Message",
    "Part",
    "Quantised",
    "Sparse",
    "Values",
    "WireError",
    "decode",
    "encode",
    "is_finite",
    "mask_nbytes",
    "same",
]
