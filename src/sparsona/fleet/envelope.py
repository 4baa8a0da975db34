"""Envelopes: a head and its blobs as one byte string between machines, bounded and checked when opened."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from sparsona.engines.codec import CodecError, is_count

MAX_BYTES = 1 << 30  # of an envelope by default: a model of 250 million weights
_HEAD = struct.Struct("<4sI")
_MAGIC = b"SPF1"
_MAX_HEAD = 1 << 22
_MAX_BLOBS = 100_000


class EnvelopeError(CodecError):
    """Bytes that are no envelope of ours."""


class Envelope(NamedTuple):
    """What an envelope holds."""

    head: dict[str, Any]
    blobs: list[memoryview]


def pack(head: dict[str, Any], blobs: Sequence[bytes | memoryview] = ()) -> bytes:
    """A head and its blobs as one byte string."""
    raw = json.dumps(head | {"sizes": [len(b) for b in blobs]}, separators=(",", ":")).encode()
    if len(raw) > _MAX_HEAD:
        raise EnvelopeError(f"the head has {len(raw):,} bytes; expected at most {_MAX_HEAD:,}")
    return b"".join([_HEAD.pack(_MAGIC, len(raw)), raw, *blobs])


def unpack(data: bytes | memoryview, max_bytes: int = MAX_BYTES) -> Envelope:
    """The head and views of its blobs; raises EnvelopeError for whatever is not right."""
    view = memoryview(data)
    if len(view) > max_bytes:
        raise EnvelopeError(f"the envelope has {len(view):,} bytes; expected at most {max_bytes:,}")
    if len(view) < _HEAD.size:
        raise EnvelopeError(f"{len(view)} bytes are too few for an envelope")
    magic, size = _HEAD.unpack_from(view)
    if magic != _MAGIC:
        raise EnvelopeError("not an envelope of this version of Sparsona")
    if size > min(_MAX_HEAD, len(view) - _HEAD.size):
        raise EnvelopeError(f"a head of {size:,} bytes does not fit into {len(view):,}")
    try:
        head = json.loads(bytes(view[_HEAD.size : _HEAD.size + size]))
    except (ValueError, RecursionError) as error:
        raise EnvelopeError(f"the head is not JSON: {error}") from error
    sizes = head.pop("sizes", None) if isinstance(head, dict) else None
    if not isinstance(sizes, list) or len(sizes) > _MAX_BLOBS or not all(is_count(s) for s in sizes):
        raise EnvelopeError("the head lacks valid sizes of the blobs")
    if sum(sizes) != len(view) - _HEAD.size - size:
        raise EnvelopeError(f"{len(view) - _HEAD.size - size:,} bytes follow the head, which announces {sum(sizes):,}")
    blobs, start = [], _HEAD.size + size
    for length in sizes:
        blobs.append(view[start : start + length])
        start += length
    return Envelope(head, blobs)


def decoded_bound(nbytes: int, dim: int, max_bytes: int) -> int:
    """How many bytes a message of so many may take when decoded: a short one may stand for masks as long as a model."""
    return min(max_bytes, nbytes + 64 * dim + (1 << 20))
