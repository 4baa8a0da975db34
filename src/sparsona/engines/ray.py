"""Workers of a Ray cluster, on this machine or others: like the pool, and bit-equal to ``local``.

A client is always given to the same worker. What it keeps, and what it tells its peers, stays in Ray's memory on the
machine where it was made, and whoever needs it next, the worker itself or one that reads a neighbour, fetches it from
there. The engine has only a reference, and gets the bytes of the last of each for a checkpoint; what a server merges
comes to it, of course, and so does what is too small to be worth a reference.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told; it is read on import
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or it warns at every start

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayError

from sparsona.core.arithmetic import arithmetic
from sparsona.core.wire import Message, decode, encode
from sparsona.engines.device import Job, Raw, Result, Sent, encoded
from sparsona.engines.frames import read_result, result_parts, same_message
from sparsona.engines.local import ClientFailed
from sparsona.engines.parcels import one_line
from sparsona.engines.pool import WorkerDied
from sparsona.engines.store import Blob, Elsewhere, here

_AHEAD = 4  # jobs per worker that may be under way or done but waiting for an earlier one: bounds memory
_STARTS_WITHIN = 300.0  # seconds for a worker to be given a processor and to build its device
_SMALL = 100 << 10  # bytes up to which Ray sends something along with a call or its answer


class _Held(Elsewhere):
    """What a client keeps or said, in Ray's memory; it goes when nobody refers to it any more."""

    def __init__(self, ref: Any, nbytes: int, k: int) -> None:
        self.ref, self.nbytes, self.k = ref, nbytes, k

    def fetch(self) -> bytes:
        """The bytes."""
        try:
            data: bytes = ray.get(self.ref)
        except RayError as error:
            raise WorkerDied(
                f"what client {self.k} kept or said is lost with the machine that had it: {one_line(error)}"
            ) from error
        return data

    def settled(self) -> Blob:
        """Itself, or its bytes if they are here already."""
        return self if self.nbytes > _SMALL else self.fetch()


def _look_for(address: str) -> None:
    """Raise ValueError if no cluster can be at an address: Ray itself would try for minutes."""
    if address in ("", "auto"):
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    what = 'must be host:port of a Ray cluster (ray start --head tells it), or "auto" for one on this machine'
    if not colon or not host or not port.isdigit():
        raise ValueError(f"engine.address = {address!r}: {what}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"engine.address = {address!r}: nobody listens there ({error}); it {what}") from error


class _Worker:
    """What runs on the cluster: a device, and nothing that outlives a job."""

    def __init__(self, build: str, arguments: dict[str, Any], path: list[str]) -> None:
        sys.path[:] = [*path, *(p for p in sys.path if p not in path)]
        module, _, name = build.partition(":")
        self.device = getattr(importlib.import_module(module), name)(**arguments)

    def ready(self) -> bool:
        """Whether it is built."""
        return True

    def do(self, head: dict[str, Any], client: bytes | None, *letters: bytes) -> tuple[dict[str, Any], Any, Any]:
        """A job: the head of its result, the client's value and the message, each to be fetched by itself."""
        try:
            inbox: dict[str | int, Raw] = dict(zip(head["senders"], letters, strict=True))
            job = Job(head["kind"], head["t"], head["k"], client, inbox, tuple(head["wants"]))
            with arithmetic():
                result = self.device.handle(job)
            told, blobs = result_parts(result)
            message = blobs[-1] if told["spoke"] or told["sent"] is not None else None
            kept = None if result.client is None else here(result.client)
            told["sizes"] = [None if blob is None else len(blob) for blob in (kept, message)]
            return told, kept, message
        except Exception as error:  # whatever it is, the engine must hear of it
            return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}, None, None


class Cluster:
    """Runs jobs on workers that build their device from ``build`` ("module:function") and its arguments."""

    def __init__(self, workers: int, build: str, arguments: dict[str, Any], address: str = "") -> None:
        self._ours = not ray.is_initialized()
        if self._ours:
            _look_for(address)
            where: dict[str, Any] = (
                {"address": address} if address else {"num_cpus": workers, "include_dashboard": False}
            )
            try:
                ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ValueError(
                    f"engine.address = {address!r}: no Ray cluster can be reached there: {one_line(error)}"
                ) from error
        actor: Any = ray.remote(num_cpus=1, max_restarts=0)(_Worker)
        path = [p for p in sys.path if Path(p).is_dir()]
        self._workers: list[Any] = [actor.remote(build, arguments, path) for _ in range(workers)]
        self._files: dict[Path, Any] = {}  # where those lie that were read for these jobs already
        self._last: tuple[Message, Any] | None = None  # a broadcast lies there once

    def ready(self) -> None:
        """Wait until all workers have built their device."""
        have = int(ray.cluster_resources().get("CPU", 0))
        if have < len(self._workers):
            wanted = len(self._workers)
            self.close()
            raise ValueError(f"engine.workers = {wanted}: the Ray cluster has {have} processors, and each takes one")
        for i, worker in enumerate(self._workers):
            try:
                ray.get(worker.ready.remote(), timeout=_STARTS_WITHIN)
            except GetTimeoutError as error:
                self.close()
                free = "the cluster's processors may be in use by others"
                raise WorkerDied(f"worker {i} did not start within {_STARTS_WITHIN:g} seconds; {free}") from error
            except RayError as error:
                self.close()
                raise WorkerDied(f"worker {i} could not start: {one_line(error)}") from error

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The results in the order of the jobs."""
        out: deque[tuple[Job, list[Any]]] = deque()
        self._files.clear()
        for job in jobs:
            out.append((replace(job, client=None, inbox={}), self._give(job)))
            if len(out) >= _AHEAD * len(self._workers):
                yield self._take(*out.popleft())
        while out:
            yield self._take(*out.popleft())

    def close(self) -> None:
        """Stop the workers, and Ray itself if it was started here."""
        for worker in self._workers:
            ray.kill(worker)
        self._workers, self._files, self._last = [], {}, None
        if self._ours:
            ray.shutdown()

    def _give(self, job: Job) -> list[Any]:
        head = {"kind": job.kind, "t": job.t, "k": job.k, "wants": list(job.wants), "senders": list(job.inbox)}
        client = None if job.client is None else self._letter(job.client)
        letters = [self._letter(raw) for raw in job.inbox.values()]
        worker = self._workers[job.k % len(self._workers)]
        answer: list[Any] = worker.do.options(num_returns=3).remote(head, client, *letters)
        return answer

    def _take(self, job: Job, answer: list[Any]) -> Result:
        try:
            head = ray.get(answer[0])
            if "error" in head:
                raise ClientFailed(job, head["error"], head["trace"])
            client, message = (
                None if size is None else _Held(ref, size, job.k)
                for ref, size in zip(answer[1:], head["sizes"], strict=True)
            )
            result = read_result(head | {"kept": False, "spoke": False, "sent": None}, [])
            if head["spoke"] and message is not None:
                result = replace(result, message=decode(message.fetch(), max_bytes=sys.maxsize))
            elif message is not None:
                result = replace(result, sent=Sent(message.settled(), head["sent"]))
            return result if client is None else replace(result, client=client.settled())
        except ObjectLostError as error:
            raise WorkerDied(
                f"what client {job.k} needs is lost with the machine it was on: {one_line(error)}"
            ) from error
        except RayError as error:
            what = f"while client {job.k} ran in round {job.t + 1} ({job.kind})"
            raise WorkerDied(f"worker {job.k % len(self._workers)} died {what}: {one_line(error)}") from error

    def _letter(self, raw: Raw) -> Any:
        """An encoded message or a value, or where it lies, for workers to fetch."""
        if isinstance(raw, _Held):
            return raw.ref
        if isinstance(raw, Message):
            if self._last is None or not same_message(self._last[0], raw):
                self._last = (raw, ray.put(encode(raw)))
            return self._last[1]
        if isinstance(raw, Path):
            if raw not in self._files:  # a large one has many readers, and is read once
                self._files[raw] = ray.put(raw.read_bytes())
            return self._files[raw]
        data = bytes(encoded(raw))
        return ray.put(data) if len(data) > _SMALL else data
