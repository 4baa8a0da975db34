"""Jobs and results as single byte strings between machines; what arrives is checked before it is believed."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from typing import Any, TypeGuard

from sparsona.core.wire import WireError, decode
from sparsona.engines.device import Job, Result, Score, Sent, encoded

MOST = 1 << 30  # bytes of a parcel, unless told otherwise: a model of 250 million weights
_HEAD = struct.Struct("<4sI")
_MAGIC = b"SPF1"
_MOST_HEAD = 1 << 22
_MOST_BLOBS = 100_000
_KINDS = ("local", "evaluate", "shared", "validate", "finish", "post", "adapt")
_WANTS = ("score", "model", "bytes")


class ParcelError(ValueError):
    """Bytes that are no parcel of ours, or one that says what cannot be."""


def pack(head: dict[str, Any], blobs: Sequence[bytes | memoryview] = ()) -> bytes:
    """A head and its blobs as one byte string."""
    raw = json.dumps(head | {"sizes": [len(b) for b in blobs]}, separators=(",", ":")).encode()
    if len(raw) > _MOST_HEAD:
        raise ParcelError(f"the head has {len(raw):,} bytes; at most {_MOST_HEAD:,} are allowed")
    return b"".join([_HEAD.pack(_MAGIC, len(raw)), raw, *blobs])


def unpack(data: bytes | memoryview, most: int = MOST) -> tuple[dict[str, Any], list[memoryview]]:
    """The head and views of its blobs; raises ParcelError for whatever is not right."""
    view = memoryview(data)
    if len(view) > most:
        raise ParcelError(f"a parcel of {len(view):,} bytes; at most {most:,} are allowed")
    if len(view) < _HEAD.size:
        raise ParcelError(f"{len(view)} bytes are no parcel")
    magic, size = _HEAD.unpack_from(view)
    if magic != _MAGIC:
        raise ParcelError("not a parcel of this version of Sparsona")
    if size > min(_MOST_HEAD, len(view) - _HEAD.size):
        raise ParcelError(f"a head of {size:,} bytes cannot be in {len(view):,}")
    try:
        head = json.loads(bytes(view[_HEAD.size : _HEAD.size + size]))
    except (ValueError, RecursionError) as error:
        raise ParcelError(f"the head is not JSON: {error}") from error
    sizes = head.pop("sizes", None) if isinstance(head, dict) else None
    if not isinstance(sizes, list) or len(sizes) > _MOST_BLOBS or not all(_count(s) for s in sizes):
        raise ParcelError("the head does not say what follows")
    if sum(sizes) != len(view) - _HEAD.size - size:
        raise ParcelError(f"{len(view) - _HEAD.size - size:,} bytes follow the head, which speaks of {sum(sizes):,}")
    blobs, start = [], _HEAD.size + size
    for length in sizes:
        blobs.append(view[start : start + length])
        start += length
    return head, blobs


def bound(nbytes: int, dim: int, most: int) -> int:
    """How many bytes a message of so many may take when decoded: a short one may stand for masks as long as a model."""
    return min(most, nbytes + 64 * dim + (1 << 20))


def job_parts(job: Job) -> tuple[dict[str, Any], list[bytes | memoryview]]:
    """A job without its client's value, which stays on the device, as a head and blobs."""
    head = {"kind": job.kind, "t": job.t, "k": job.k, "wants": list(job.wants), "senders": list(job.inbox)}
    return head, [encoded(message) for message in job.inbox.values()]


def read_job(head: dict[str, Any], blobs: Sequence[memoryview]) -> Job:
    """A job that a device received; its client's value is still to be put in."""
    kind, t, k, wants, senders = (head.get(key) for key in ("kind", "t", "k", "wants", "senders"))
    if kind not in _KINDS or not _count(t) or not _count(k):
        raise ParcelError(f"no such job: kind {kind!r}, round {t!r}, client {k!r}")
    if not isinstance(wants, list) or any(w not in _WANTS for w in wants):
        raise ParcelError(f"wants = {wants!r}: must be some of {', '.join(_WANTS)}")
    if not isinstance(senders, list) or len(senders) != len(blobs):
        raise ParcelError(f"{len(blobs)} messages, but the senders are {senders!r}")
    if any(not (_count(j) or j in ("server", "self", "all")) for j in senders) or len(set(senders)) < len(senders):
        raise ParcelError(f"senders = {senders!r}: must be different clients, server, self or all")
    return Job(kind, t, k, None, dict(zip(senders, blobs, strict=True)), tuple(wants))


def read_result(head: dict[str, Any], blobs: Sequence[memoryview], most: int = MOST) -> Result:
    """A result that came from a device, every field checked: a device may say anything."""
    k, flops, forward, finite, seconds = (head.get(key) for key in ("k", "flops", "forward", "finite", "seconds"))
    if not _count(k) or not _count(flops) or not _count(forward) or forward > flops:
        raise ParcelError(f"client {k!r}, flops {flops!r}, forward {forward!r} cannot be")
    if not isinstance(finite, bool) or not _number(seconds) or seconds < 0:
        raise ParcelError(f"finite {finite!r}, seconds {seconds!r} cannot be")
    score, vote, notes = head.get("score"), head.get("vote"), head.get("notes")
    if not (vote is None or isinstance(vote, bool)):
        raise ParcelError(f"vote = {vote!r}: must be true or false")
    if notes is not None and not (
        isinstance(notes, dict) and len(notes) <= 100 and all(len(n) <= 100 and _number(v) for n, v in notes.items())
    ):
        raise ParcelError("notes must be at most 100 numbers by name")
    sent, spoke = head.get("sent"), head.get("spoke")
    if not isinstance(spoke, bool) or not (sent is None or _count(sent)) or (spoke and sent is not None):
        raise ParcelError(f"spoke {spoke!r}, sent {sent!r} cannot be")
    if len(blobs) != (spoke or sent is not None):
        raise ParcelError(f"{len(blobs)} messages came with the answer")
    try:
        message = decode(blobs[0], max_bytes=most) if spoke else None
    except WireError as error:
        raise ParcelError(str(error)) from error
    letter = None if sent is None else Sent(bytes(blobs[0]), min(sent, len(blobs[0])))
    return Result(k, None, message, letter, vote, notes, _score(score), flops, forward, finite, float(seconds))


def _score(score: Any) -> Score | None:
    if score is None:
        return None
    if not isinstance(score, dict) or score.keys() != {"correct", "samples", "loss"}:
        raise ParcelError("a score must be of correct, samples and loss")
    right, samples, loss = score["correct"], score["samples"], score["loss"]
    if not _count(right) or not _count(samples) or right > samples or not isinstance(loss, float) or not _sane(loss):
        raise ParcelError(f"a score of {right!r} correct of {samples!r} with loss {loss!r} cannot be")
    return Score(right, samples, loss)


def _count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _number(value: Any) -> TypeGuard[float]:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < 1 << 63  # more may not even be a float
    return isinstance(value, float) and math.isfinite(value)


def _sane(loss: float) -> bool:
    return abs(loss) < 1e100  # not NaN, and no single client's makes a mean or a spread infinite


def one_line(text: object) -> str:
    """What the other end says, fit for a log or a terminal: one line, nothing that a terminal would obey."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())[:500]
