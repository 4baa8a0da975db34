"""Worker processes on this machine, one thread each: bit-equal to ``local`` for any number of workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing.connection import Pipe, wait
from typing import Any

from sparsona.engines.channel import IN_FLIGHT, Channel, Frame, SharedBuffer, shared_file
from sparsona.engines.codec import batch_parts, read_results
from sparsona.engines.jobs import Job, Result
from sparsona.engines.local import ClientFailed

# Freed memory stays with a worker, up to 1 GiB, instead of going back to the system after every batch, which would hand
# it out again page by page, zeroed: a tenth or more of the time of a CNN. A user's own settings come first.
ALLOCATOR = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
# Jobs go out in batches: small ones many at a time, so that neither side waits for the other more often than for its
# own work, and large ones singly. A batch may be at most so long, in seconds of a worker and in bytes both ways.
MOST = 32
TRAINING, OTHERS = 0.008, 0.03  # a round waits for its last batch, and has fewer clients than a test
_BYTES = 4 << 20
_AHEAD = 8  # jobs per worker, or 3 batches, that may be running, or finished but waiting for an earlier one
_LOOK = 0.001  # seconds after which whoever takes results lets us look after the workers


class WorkerDied(RuntimeError):
    """A worker process exited or was killed."""


@dataclass
class _PoolWorker:
    """A process, its connection, and the batches that it has not answered yet."""

    process: subprocess.Popen[bytes]
    channel: Channel
    at: SharedBuffer  # which job of its batch it is at
    queue: deque[_JobBatch] = field(default_factory=deque)


@dataclass(frozen=True)
class _JobBatch:
    """Jobs that went out together, without what they carried."""

    first: int  # place of the first of them
    jobs: list[Job]
    nbytes: int


class PoolEngine:
    """Runs jobs in worker processes that build their device from ``build`` ("module:function") and its arguments.

    Workers take the ``devices``, which are arguments too, in turn.
    """

    kind = ""

    def __init__(self, workers: int, build: str, arguments: dict[str, Any], devices: Sequence[str] = ("cpu",)) -> None:
        self._workers: list[_PoolWorker] = []
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        for i in range(workers):
            ours, theirs = Pipe()
            at, *buffers = (shared_file() for _ in range(1 + 2 * IN_FLIGHT))
            fds = [theirs.fileno(), at, *buffers]
            command = [sys.executable, "-P", "-m", "sparsona.engines.worker", str(os.getpid()), *map(str, fds)]
            # its own process group: Ctrl-C in the terminal reaches only the parent
            process = subprocess.Popen(command, pass_fds=fds, env=ALLOCATOR | os.environ | threads, process_group=0)
            theirs.close()
            channel = Channel(ours, ours=buffers[:IN_FLIGHT], theirs=buffers[IN_FLIGHT:])
            self._workers.append(_PoolWorker(process, channel, SharedBuffer(at)))
            own = arguments | {"device": devices[i % len(devices)]}
            channel.send({"build": build, "arguments": own, "path": sys.path})

    def ready(self) -> None:
        """Wait until all workers have built their device."""
        for i in range(len(self._workers)):
            head = self._receive(i).head
            if "error" in head:
                self.close()
                raise WorkerDied(f"worker {i} could not start: {head['error']}\n{head['trace']}")

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The results in the order of the jobs; each worker has its next jobs at hand when it ends some."""
        for i, worker in enumerate(self._workers):
            while worker.queue:  # what nobody waits for any more
                self._receive(i)
                worker.queue.popleft()
        source = iter(jobs)
        ready: dict[int, Result] = {}
        drawn, given, size, jobs_left = 0, 0, 1, True
        while jobs_left or ready or any(worker.queue for worker in self._workers):
            while jobs_left and drawn - given < max(_AHEAD, 3 * size) * len(self._workers):
                i = min(range(len(self._workers)), key=lambda w: len(self._workers[w].queue))
                if len(self._workers[i].queue) == IN_FLIGHT:
                    break
                some = list(islice(source, size))
                jobs_left = len(some) == size
                if some:
                    self._give(i, drawn, some)
                    drawn += len(some)
                del some  # they have gone out, and mail may be large
            looked = time.perf_counter()
            while given in ready and time.perf_counter() - looked < _LOOK:
                yield ready.pop(given)
                given += 1
            busy = {worker.channel.link: i for i, worker in enumerate(self._workers) if worker.queue}
            for link in wait(list(busy), 0 if given in ready else None) if busy else ():  # nobody would never end
                i = busy[link]  # type: ignore[index]
                batch, results, size = self._take(i)
                ready |= zip(range(batch.first, batch.first + len(results)), results, strict=True)

    def close(self) -> None:
        """Stop the workers at once; nothing in them is worth keeping."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
            worker.channel.close()
            os.close(worker.at.fd)
        self._workers = []

    def _give(self, i: int, first: int, jobs: list[Job]) -> None:
        worker = self._workers[i]
        heads, blobs = batch_parts(jobs)
        try:
            nbytes = worker.channel.send({"jobs": heads}, blobs)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._death(i, f"before client {jobs[0].k} started in round {jobs[0].t + 1}") from error
        worker.queue.append(_JobBatch(first, [replace(job, client=None, inbox={}) for job in jobs], nbytes))

    def _take(self, i: int) -> tuple[_JobBatch, list[Result], int]:
        """A worker's next batch, its results, and how many jobs should go out together after these."""
        worker = self._workers[i]
        frame = self._receive(i)
        batch = worker.queue.popleft()
        if "error" in frame.head:
            raise ClientFailed(batch.jobs[frame.head["at"]], frame.head["error"], frame.head["trace"])
        results = list(read_results(frame.head["results"], worker.channel.read(frame)))
        seconds = sum(result.seconds for result in results)
        within = TRAINING if batch.jobs[0].kind == "local" else OTHERS
        return batch, results, batch_size(len(results), seconds, batch.nbytes + len(frame.memory), within)

    def _receive(self, i: int) -> Frame:
        try:
            return self._workers[i].channel.receive()
        except (EOFError, ConnectionResetError) as error:
            raise self._death(i) from error

    def _death(self, i: int, otherwise: str = "while starting") -> WorkerDied:
        worker = self._workers[i]
        code = worker.process.wait()
        ending = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        what = otherwise
        if worker.queue:
            job = worker.queue[0].jobs[min(worker.at.view(1)[0], len(worker.queue[0].jobs) - 1)]
            what = f"while client {job.k} ran in round {job.t + 1} ({job.kind})"
        hint = "; the machine may be out of memory, try a smaller engine.workers" if code == -signal.SIGKILL else ""
        self.close()
        return WorkerDied(f"worker {i} {ending} {what}{hint}")


def batch_size(jobs: int, seconds: float, nbytes: int, within: float) -> int:
    """How many jobs should go out ``within`` so many seconds, after some that took so long and carried so much."""
    fitting = jobs * min(within / max(seconds, 1e-9), _BYTES / max(nbytes, 1))
    return int(min(max(fitting, 1), 2 * jobs, MOST))
