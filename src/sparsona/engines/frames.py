"""Jobs and results between processes: a JSON head over a connection, encoded messages in shared memory."""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sparsona.core.wire import Message, Values, decode, encode
from sparsona.engines.device import Job, Raw, Result, Score, Sent, encoded
from sparsona.engines.store import here

_MAX = 1 << 40  # both ends are our own processes: models of any size may pass
IN_FLIGHT = 2  # jobs that a worker holds at a time, and so slots of shared memory in each direction


def shared_file() -> int:
    """A file descriptor for memory that two processes can map."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("sparsona")
    with tempfile.TemporaryFile() as f:
        return os.dup(f.fileno())


class Slot:
    """A piece of shared memory that grows with what is put in; its two ends take turns."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map: mmap.mmap | None = None

    def view(self, size: int) -> memoryview:
        """Its first ``size`` bytes."""
        if self._map is None or len(self._map) < size:
            if os.fstat(self.fd).st_size < size:
                os.ftruncate(self.fd, size)
            self._map = mmap.mmap(self.fd, os.fstat(self.fd).st_size)  # an older map lives as long as views of it
        return memoryview(self._map)[:size]


class Channel:
    """One end of the way between the engine and a worker.

    Blobs lie in slots that are used in turn. A slot is free again once the frame after next is due, which holds
    because a worker has at most two jobs and the engine reads an answer before it gives the next job.
    """

    def __init__(self, link: Connection, ours: Sequence[int], theirs: Sequence[int]) -> None:
        self.link = link
        self._ours = [Slot(fd) for fd in ours]
        self._theirs = [Slot(fd) for fd in theirs]
        self._sent = self._received = 0
        self._last: _Mail = {}  # the inbox that went through last

    def send(self, head: dict[str, Any], blobs: Sequence[bytes | memoryview] = ()) -> None:
        """Send a head and its blobs."""
        sizes = [len(b) for b in blobs]
        if sizes:
            view = self._ours[self._sent % IN_FLIGHT].view(sum(sizes))
            start = 0
            for blob, size in zip(blobs, sizes, strict=True):
                view[start : start + size] = blob
                start += size
        self._sent += 1
        self.link.send_bytes(json.dumps(head | {"sizes": sizes}).encode())

    def receive(self) -> tuple[dict[str, Any], list[memoryview]]:
        """Receive a head and views of its blobs."""
        head = json.loads(self.link.recv_bytes())
        slot = self._theirs[self._received % IN_FLIGHT]
        self._received += 1
        blobs, start = [], 0
        if head["sizes"]:
            view = slot.view(sum(head["sizes"]))
            for size in head["sizes"]:
                blobs.append(view[start : start + size])
                start += size
        return head, blobs

    def close(self) -> None:
        """Close this end."""
        self.link.close()
        for slot in (*self._ours, *self._theirs):
            os.close(slot.fd)

    def send_job(self, job: Job) -> None:
        """Send a job; an inbox made of the same parts as the last one, as in a broadcast, is not sent again."""
        again = _identical(job.inbox, self._last)
        self._last = job.inbox if all(isinstance(m, Message) for m in job.inbox.values()) else {}
        sent: Iterable[Raw] = () if again else job.inbox.values()
        blobs = [encoded(m) for m in sent if not isinstance(m, Path)]
        head = {
            "kind": job.kind,
            "t": job.t,
            "k": job.k,
            "wants": job.wants,
            "joined": job.client is not None,
            "again": again,
            "senders": [(j, str(m) if isinstance(m, Path) else None) for j, m in job.inbox.items()],
            "decode": bool(self._last),
        }
        self.send(head, blobs if job.client is None else [here(job.client), *blobs])

    def read_job(self, head: dict[str, Any], blobs: Sequence[memoryview]) -> Job:
        """A job that was received."""
        client = bytes(blobs[0]) if head["joined"] else None
        if not head["again"]:
            self._last = {}  # before others are made
            mail = iter(blobs[1:] if head["joined"] else blobs)
            self._last = {
                j: _taken(mail, head["decode"]) if path is None else Path(path) for j, path in head["senders"]
            }
        return Job(head["kind"], head["t"], head["k"], client, self._last, tuple(head["wants"]))

    def send_result(self, result: Result) -> None:
        """Send a result."""
        self.send(*result_parts(result))


def result_parts(result: Result) -> tuple[dict[str, Any], list[bytes]]:
    """A result as a head and its blobs; ``read_result`` takes them back."""
    head = {
        "k": result.k,
        "flops": result.flops,
        "forward": result.forward,
        "finite": result.finite,
        "seconds": result.seconds,
        "score": None if result.score is None else asdict(result.score),
        "kept": result.client is not None,
        "vote": result.vote,
        "notes": result.notes,
        "spoke": result.message is not None,
        "sent": None if result.sent is None else result.sent.value_nbytes,
    }
    blobs = [] if result.client is None else [here(result.client)]
    if result.message is not None:
        blobs.append(encode(result.message))
    elif result.sent is not None:
        blobs.append(here(result.sent.data))
    return head, blobs


def _taken(mail: Iterator[memoryview], decoded: bool) -> Raw:
    blob = next(mail)
    return decode(blob, max_bytes=_MAX) if decoded else blob


_Mail = Mapping[str | int, Raw]


def _identical(a: _Mail, b: _Mail) -> bool:
    """Whether two inboxes hold the very same tensors, so that one need not be compared nor encoded."""
    return a.keys() == b.keys() and all(same_message(a[j], b[j]) for j in a)


def same_message(a: object, b: object) -> bool:
    """Whether two messages are made of the very same tensors."""
    if not isinstance(a, Message) or not isinstance(b, Message):
        return False
    return a.names == b.names and all(_same_part(a[n], b[n]) for n in a)


def _same_part(a: object, b: object) -> bool:
    return a is b or (isinstance(a, Values) and isinstance(b, Values) and a.values is b.values)


def read_result(head: dict[str, Any], blobs: Sequence[memoryview]) -> Result:
    """A result that was received."""
    return Result(
        head["k"],
        bytes(blobs[0]) if head["kept"] else None,
        decode(blobs[-1], max_bytes=_MAX) if head["spoke"] else None,
        None if head["sent"] is None else Sent(bytes(blobs[-1]), head["sent"]),
        head["vote"],
        head["notes"],
        None if head["score"] is None else Score(**head["score"]),
        head["flops"],
        head["forward"],
        head["finite"],
        head["seconds"],
    )
