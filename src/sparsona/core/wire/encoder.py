"""A message as bytes."""

from __future__ import annotations

import zlib

from torch import Tensor

from sparsona.core.wire.format import FRAME, HEAD, MAGIC, MAX_LENGTH, U32, VERSION, raw_bytes
from sparsona.core.wire.message import Message
from sparsona.core.wire.payload import pieces_of, size_of


def encode(message: Message) -> bytes:
    """The message as bytes."""
    chunks: list[bytes | memoryview] = [HEAD.pack(MAGIC, VERSION, len(message))]
    for name, part in message.items():
        kind, pieces = pieces_of(part)
        if (size := size_of(pieces)) > MAX_LENGTH:
            raise ValueError(f"part {name!r}: {size} bytes are too large; expected at most {MAX_LENGTH}")
        chunks.append(bytes([len(name.encode())]) + name.encode() + FRAME.pack(kind, size))
        for piece in pieces:
            if isinstance(piece, bytes):
                chunks.append(piece)
            else:
                chunks += [raw_bytes(piece).data] if isinstance(piece, Tensor) else piece.chunks()
    crc = 0
    for chunk in chunks:
        crc = zlib.crc32(chunk, crc)
    return b"".join([*chunks, U32.pack(crc)])
