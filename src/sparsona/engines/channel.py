"""Heads and blobs between two processes of one machine: JSON over a connection, blobs in shared memory."""

from __future__ import annotations

import json
import mmap
import os
import tempfile
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from sparsona.core.wire import Message, Values, decode
from sparsona.engines.jobs import ANY_SIZE, Raw, encoded

IN_FLIGHT = 2  # frames of jobs that a worker holds at a time, and so buffers of shared memory in each direction

_Key = tuple[tuple[str, int], ...]  # the names of a message's parts, and which objects they are


def shared_file() -> int:
    """A file descriptor for memory that two processes can map."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("sparsona")
    with tempfile.TemporaryFile() as f:
        return os.dup(f.fileno())


class SharedBuffer:
    """Shared memory that grows with what is put in; its two ends take turns."""

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


class Frame(NamedTuple):
    """What was received and is not read yet: a head, where each blob lies, and the shared memory."""

    head: dict[str, Any]
    places: list[tuple[str, Any]]  # ("bytes" or "message", size), ("file", path), ("same" or "last", which message)
    memory: memoryview


class Channel:
    """One end of the connection between an engine and a worker.

    Blobs lie in buffers that are used in turn. A buffer is free again once the frame after next is due, which holds
    because a worker has at most two frames and the engine reads an answer before it gives the next one. A message that
    is in the frame already, or was in the one before, as in a broadcast, is not sent again.
    """

    def __init__(self, link: Connection, ours: Sequence[int], theirs: Sequence[int]) -> None:
        self.link = link
        self._ours = [SharedBuffer(fd) for fd in ours]
        self._theirs = [SharedBuffer(fd) for fd in theirs]
        self._sent = self._received = 0
        self._last_sent: dict[_Key, tuple[int, Message]] = {}  # the different messages of the last frame, numbered
        self._last_read: list[Message] = []

    def send(self, head: dict[str, Any], blobs: Sequence[Raw] = ()) -> int:
        """Send a head and its blobs; gives the number of bytes of the blobs that had to be written."""
        places: list[tuple[str, Any]] = []
        parts: list[bytes | memoryview] = []
        messages: dict[_Key, tuple[int, Message]] = {}
        for blob in blobs:
            if isinstance(blob, Path):
                places.append(("file", str(blob)))
                continue
            if isinstance(blob, Message):
                key = _key(blob)
                if key in messages:
                    places.append(("same", messages[key][0]))
                    continue
                messages[key] = len(messages), blob  # held, so that no other object is taken for it
                if key in self._last_sent:
                    places.append(("last", self._last_sent[key][0]))
                    continue
            parts.append(blob if isinstance(blob, bytes) else encoded(blob))
            places.append(("message" if isinstance(blob, Message) else "bytes", len(parts[-1])))
        self._last_sent = messages
        if size := sum(map(len, parts)):
            view = self._ours[self._sent % IN_FLIGHT].view(size)
            start = 0
            for part in parts:
                view[start : start + len(part)] = part
                start += len(part)
        self._sent += 1
        self.link.send_bytes(json.dumps([head, places], separators=(",", ":")).encode())
        return size

    def receive(self) -> Frame:
        """The next frame; those of jobs must be read in the order in which they came."""
        head, places = json.loads(self.link.recv_bytes())
        buffer = self._theirs[self._received % IN_FLIGHT]
        self._received += 1
        size = sum([value for kind, value in places if kind in ("bytes", "message")])
        return Frame(head, places, buffer.view(size) if size else memoryview(b""))

    def read(self, frame: Frame) -> list[Raw]:
        """The blobs of a frame: messages decoded, others as views of shared memory."""
        blobs: list[Raw] = []
        messages: list[Message] = []
        start = 0
        for kind, value in frame.places:
            match kind:
                case "file":
                    blobs.append(Path(value))
                    continue
                case "same":
                    blobs.append(messages[value])
                    continue
                case "last":
                    message = self._last_read[value]
                case _:
                    blob = frame.memory[start : start + value]
                    start += value
                    if kind == "bytes":
                        blobs.append(blob)
                        continue
                    message = decode(blob, max_bytes=ANY_SIZE)
            messages.append(message)
            blobs.append(message)
        self._last_read = messages
        return blobs

    def close(self) -> None:
        """Close this end."""
        self.link.close()
        for buffer in (*self._ours, *self._theirs):
            os.close(buffer.fd)


def same_message(a: object, b: object) -> bool:
    """Whether two messages are made of the very same tensors, so that neither need be compared nor encoded."""
    if not isinstance(a, Message) or not isinstance(b, Message):
        return False
    return a.names == b.names and all(_same_part(a[n], b[n]) for n in a)


def _key(message: Message) -> _Key:
    """What two messages have in common if they are the same for ``same_message``, as long as both exist."""
    return tuple((name, id(part.values if isinstance(part, Values) else part)) for name, part in message.items())


def _same_part(a: object, b: object) -> bool:
    return a is b or (isinstance(a, Values) and isinstance(b, Values) and a.values is b.values)
