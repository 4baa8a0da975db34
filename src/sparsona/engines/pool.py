"""Worker processes on this machine, one thread each: bit-equal to ``local`` for any number of workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from multiprocessing.connection import Pipe, wait
from typing import Any

from sparsona.engines.device import Job, Result
from sparsona.engines.frames import IN_FLIGHT, Channel, read_result, shared_file
from sparsona.engines.local import ClientFailed

# Freed memory stays with a worker, up to 1 GiB, instead of going back to the system after every batch, which would hand
# it out again page by page, zeroed: a tenth or more of the time of a CNN. A user's own settings come first.
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
_AHEAD = 8  # jobs per worker that may be under way or done but waiting for an earlier one: bounds memory


class WorkerDied(RuntimeError):
    """A worker process ended by itself or was killed."""


class Pool:
    """Runs jobs in worker processes that build their device from ``build`` ("module:function") and its arguments."""

    def __init__(self, workers: int, build: str, arguments: dict[str, Any]) -> None:
        self._workers: list[tuple[subprocess.Popen[bytes], Channel]] = []
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        for _ in range(workers):
            ours, theirs = Pipe()
            slots = [shared_file() for _ in range(2 * IN_FLIGHT)]
            fds = [theirs.fileno(), *slots]
            command = [sys.executable, "-P", "-m", "sparsona.engines.worker", str(os.getpid()), *map(str, fds)]
            # a group of its own: Ctrl-C in the terminal is for us alone
            process = subprocess.Popen(command, pass_fds=fds, env=ALLOCATOR | os.environ | threads, process_group=0)
            theirs.close()
            channel = Channel(ours, ours=slots[:IN_FLIGHT], theirs=slots[IN_FLIGHT:])
            self._workers.append((process, channel))
            channel.send({"build": build, "arguments": arguments, "path": sys.path})

    def ready(self) -> None:
        """Wait until all workers have built their device."""
        for i in range(len(self._workers)):
            head, _ = self._receive(i, None)
            if "error" in head:
                self.close()
                raise WorkerDied(f"worker {i} could not start: {head['error']}\n{head['trace']}")

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The results in the order of the jobs; each worker has its next job at hand when it ends one."""
        source = enumerate(jobs)
        queues: list[deque[tuple[int, Job]]] = [deque() for _ in self._workers]
        ready: dict[int, Result] = {}
        drawn, given, more = 0, 0, True
        while more or any(queues) or ready:
            while more and drawn - given < _AHEAD * len(queues):
                worker = min(range(len(queues)), key=lambda w: len(queues[w]))
                if len(queues[worker]) == IN_FLIGHT:
                    break
                place, job = next(source, (0, None))
                if job is None:
                    more = False
                    break
                drawn += 1
                self._give(worker, job, queues[worker][0][1] if queues[worker] else None)
                queues[worker].append((place, replace(job, client=None, inbox={})))
                del job  # it has gone out, and mail may be large
            while given in ready:
                yield ready.pop(given)
                given += 1
            busy = {channel.link: w for w, (_, channel) in enumerate(self._workers) if queues[w]}
            for link in wait(list(busy)) if busy else ():  # waiting for nobody would never end
                worker = busy[link]  # type: ignore[index]
                place, job = queues[worker][0]
                head, blobs = self._receive(worker, job)
                if "error" in head:
                    raise ClientFailed(job, head["error"], head["trace"])
                queues[worker].popleft()
                ready[place] = read_result(head, blobs)

    def close(self) -> None:
        """Stop the workers at once; nothing in them is worth keeping."""
        for process, _ in self._workers:
            process.kill()
        for process, channel in self._workers:
            process.wait()
            channel.close()
        self._workers = []

    def _give(self, worker: int, job: Job, running: Job | None) -> None:
        try:
            self._workers[worker][1].send_job(job)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._death(worker, running, f"before client {job.k} began in round {job.t + 1}") from error

    def _receive(self, worker: int, job: Job | None) -> tuple[dict[str, Any], list[memoryview]]:
        try:
            return self._workers[worker][1].receive()
        except (EOFError, ConnectionResetError) as error:
            raise self._death(worker, job) from error

    def _death(self, worker: int, job: Job | None, otherwise: str = "while starting") -> WorkerDied:
        code = self._workers[worker][0].wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        what = otherwise if job is None else f"while client {job.k} ran in round {job.t + 1} ({job.kind})"
        hint = "; the machine may be out of memory: try fewer workers" if code == -signal.SIGKILL else ""
        self.close()
        return WorkerDied(f"worker {worker} {how} {what}{hint}")
