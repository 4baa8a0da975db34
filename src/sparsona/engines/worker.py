"""A worker process of the pool: ``python -m sparsona.engines.worker PARENT FD...`` serves jobs until told."""

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
from sparsona.engines.frames import IN_FLIGHT, Channel

_PR_SET_PDEATHSIG = 1
_Jobs = SimpleQueue[tuple[dict[str, Any], list[memoryview]] | None]


def serve(engine: Channel) -> None:
    """Build a device as told, then do jobs until the connection ends."""
    try:
        order, _ = engine.receive()
        sys.path[:] = order["path"]
        module, _, name = order["build"].partition(":")
        device = getattr(importlib.import_module(module), name)(**order["arguments"])
        engine.send({"ready": True})
    except Exception as error:  # whatever it is, the engine must hear of it
        engine.send(_told(error))
        return
    jobs: _Jobs = SimpleQueue()
    Thread(target=_fetch, args=(engine, jobs), daemon=True).start()
    while (job := jobs.get()) is not None:
        try:
            result = device.handle(engine.read_job(*job))
        except Exception as error:
            engine.send(_told(error))
        else:
            engine.send_result(result)


def _told(error: Exception) -> dict[str, Any]:
    return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def _fetch(engine: Channel, jobs: _Jobs) -> None:
    """Read the next job while one is under way."""
    try:
        while True:
            jobs.put(engine.receive())
    except (EOFError, OSError):
        jobs.put(None)


def main() -> None:
    """Serve on the connection and the shared memory whose file descriptors are given."""
    parent, link, *slots = (int(a) for a in sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    if sys.platform == "linux":  # a parent that is killed takes its workers along, even in the middle of a job
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
    with arithmetic(), suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(Channel(Connection(link), ours=slots[IN_FLIGHT:], theirs=slots[:IN_FLIGHT]))


if __name__ == "__main__":
    main()
