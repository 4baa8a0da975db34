"""A worker process of the pool: ``python -m sparsona.engines.worker FD`` serves jobs until its parent goes away."""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

from sparsona.engines import frames

_PR_SET_PDEATHSIG = 1


def serve(link: Connection) -> None:
    """Build a device as told, then do jobs until the connection ends."""
    torch.set_num_threads(1)
    try:
        order, _ = frames.receive(link)
        sys.path[:] = order["path"]
        module, _, name = order["build"].partition(":")
        device = getattr(importlib.import_module(module), name)(**order["arguments"])
        frames.send(link, {"ready": True}, [])
    except Exception as error:  # whatever it is, the parent must hear of it
        frames.send(link, {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}, [])
        return
    jobs: SimpleQueue[tuple[dict[str, Any], list[bytes]] | None] = SimpleQueue()
    Thread(target=_fetch, args=(link, jobs), daemon=True).start()
    while (next_job := jobs.get()) is not None:
        head, blobs = next_job
        try:
            result = device.handle(frames.read_job(head, blobs))
        except Exception as error:
            frames.send(link, {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}, [])
        else:
            frames.send_result(link, result)


def _fetch(link: Connection, jobs: SimpleQueue[tuple[dict[str, Any], list[bytes]] | None]) -> None:
    """Read the next job while one is under way; the parent never gives more than two."""
    try:
        while True:
            jobs.put(frames.receive(link))
    except (EOFError, OSError):
        jobs.put(None)


def main() -> None:
    """Serve on the connection whose file descriptor is the first argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    if sys.platform == "linux":  # a parent that is killed takes its workers along, even in the middle of a job
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(sys.argv[2]):
            return
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass


if __name__ == "__main__":
    main()
