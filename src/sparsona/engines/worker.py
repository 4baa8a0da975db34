"""A worker process of the pool: ``python -m sparsona.engines.worker PARENT FD...`` does jobs until it is ended."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any

from sparsona.core.arithmetic import arithmetic
from sparsona.engines.channel import IN_FLIGHT, Channel, Frame, SharedBuffer
from sparsona.engines.codec import read_batch, result_parts
from sparsona.engines.device import Device
from sparsona.engines.local import reason
from sparsona.engines.store import Blob

_PR_SET_PDEATHSIG = 1
_Jobs = SimpleQueue[Frame | None]


def serve(engine: Channel, at: memoryview) -> None:
    """Build the device that the engine asks for, then do jobs until the connection ends."""
    try:
        order = engine.receive().head
        sys.path[:] = order["path"]
        module, _, name = order["build"].partition(":")
        device = getattr(importlib.import_module(module), name)(**order["arguments"])
        engine.send({"ready": True})
    except Exception as error:  # whatever it is, the engine must know
        engine.send(_failure(error))
        return
    jobs: _Jobs = SimpleQueue()
    Thread(target=_fetch, args=(engine, jobs), daemon=True).start()
    while (frame := jobs.get()) is not None:
        engine.send(*_answers(device, engine, frame, at))


def _answers(device: Device, engine: Channel, frame: Frame, at: memoryview) -> tuple[dict[str, Any], list[Blob]]:
    """The results of a frame's jobs, one after the other, or why one failed; ``at`` shows how many are done."""
    heads, blobs = [], list[Blob]()
    try:
        for place, job in enumerate(read_batch(frame.head["jobs"], engine.read(frame))):
            at[0] = place
            head, own = result_parts(device.handle(job))
            heads.append(head)
            blobs += own
    except Exception as error:  # whatever a method or a model raises
        return _failure(error) | {"at": len(heads)}, []
    return {"results": heads}, blobs


def _failure(error: Exception) -> dict[str, Any]:
    return {"error": reason(error), "trace": traceback.format_exc()}


def _fetch(engine: Channel, jobs: _Jobs) -> None:
    """Read the next jobs while some are under way."""
    try:
        while True:
            jobs.put(engine.receive())
    except (EOFError, OSError):
        jobs.put(None)


def main() -> None:
    """Serve on the connection and the shared memory whose file descriptors are given."""
    parent, link, at, *buffers = (int(a) for a in sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    if sys.platform == "linux":  # a parent that is killed takes its workers along, even in the middle of a job
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
    with arithmetic(), suppress(EOFError, BrokenPipeError, ConnectionResetError):
        channel = Channel(Connection(link), ours=buffers[IN_FLIGHT:], theirs=buffers[:IN_FLIGHT])
        serve(channel, SharedBuffer(at).view(1))


if __name__ == "__main__":
    main()
