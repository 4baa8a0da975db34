"""Workers of a Ray cluster, on this machine or others: like the pool, and bit-equal to ``local``.

A client is always given to the same worker. Its value and its message stay in the memory of the machine that made
them; whoever needs them next, the worker itself or one that reads a neighbour, fetches them from there. But the engine
gets a copy of each after every job, for the round loops and the store are the same for all engines: what all clients of
a round keep and say passes its network link once, and only what it sends is spared.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import os
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
from ray.exceptions import GetTimeoutError, RayError

from sparsona.core.arithmetic import arithmetic
from sparsona.core.wire import Message, encode
from sparsona.engines.device import Job, Raw, Result, Sent
from sparsona.engines.frames import read_result, result_parts
from sparsona.engines.local import ClientFailed
from sparsona.engines.pool import WorkerDied

_AHEAD = 4  # jobs per worker that may be under way or done but waiting for an earlier one: bounds memory
_STARTS_WITHIN = 300.0  # seconds for a worker to be given a processor and to build its device
_PINNED = 1 << 30  # bytes that are kept in Ray's memory for whoever may need them next
_LEAST = 1 << 10  # what each counts at least, for there may be very many
_Key = tuple[int, bytes]  # length and digest of bytes


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
            return told, result.client, message
        except Exception as error:  # whatever it is, the engine must hear of it
            return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}, None, None


class Cluster:
    """Runs jobs on workers that build their device from ``build`` ("module:function") and its arguments."""

    def __init__(self, workers: int, build: str, arguments: dict[str, Any], address: str = "") -> None:
        self._ours = not ray.is_initialized()
        if self._ours:
            where: dict[str, Any] = (
                {"address": address} if address else {"num_cpus": workers, "include_dashboard": False}
            )
            try:
                ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ValueError(
                    f"engine.address = {address!r}: no Ray cluster can be reached there: {error}"
                ) from error
        actor: Any = ray.remote(num_cpus=1, max_restarts=0)(_Worker)
        path = [p for p in sys.path if Path(p).is_dir()]
        self._workers: list[Any] = [actor.remote(build, arguments, path) for _ in range(workers)]
        self._refs: dict[_Key, Any] = {}  # where bytes lie that were sent or came lately
        self._order: deque[_Key] = deque()
        self._pinned = 0  # bytes of them
        self._files: dict[tuple[Path, int, int], _Key] = {}  # by path, size and time: what was read already
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
                raise WorkerDied(f"worker {i} could not start: {error}") from error

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The results in the order of the jobs."""
        out: deque[tuple[Job, list[Any]]] = deque()
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
        self._workers, self._refs, self._files, self._last = [], {}, {}, None
        self._order.clear()
        self._pinned = 0
        if self._ours:
            ray.shutdown()

    def _give(self, job: Job) -> list[Any]:
        head = {"kind": job.kind, "t": job.t, "k": job.k, "wants": list(job.wants), "senders": list(job.inbox)}
        client = None if job.client is None else self._ref(job.client)
        letters = [self._letter(raw) for raw in job.inbox.values()]
        worker = self._workers[job.k % len(self._workers)]
        answer: list[Any] = worker.do.options(num_returns=3).remote(head, client, *letters)
        return answer

    def _take(self, job: Job, answer: list[Any]) -> Result:
        try:
            head, client, message = ray.get(answer)
        except RayError as error:
            what = f"while client {job.k} ran in round {job.t + 1} ({job.kind})"
            raise WorkerDied(f"worker {job.k % len(self._workers)} died {what}: {error}") from error
        if "error" in head:
            raise ClientFailed(job, head["error"], head["trace"])
        if client is not None:
            self._know(client, answer[1])
        if head["sent"] is not None:
            self._know(message, answer[2])
            result = read_result(head | {"kept": False, "sent": None}, [])
            return replace(result, client=client, sent=Sent(message, head["sent"]))
        blobs = [memoryview(b) for b in (client, message) if b is not None]
        return read_result(head, blobs)

    def _letter(self, raw: Raw) -> Any:
        """Where an encoded message lies, for workers to fetch."""
        if isinstance(raw, Message):
            if self._last is None or self._last[0] is not raw:
                self._last = (raw, ray.put(encode(raw)))
            return self._last[1]
        if not isinstance(raw, Path):
            return self._ref(bytes(raw))
        name = (raw, raw.stat().st_size, raw.stat().st_mtime_ns)
        known = self._refs.get(self._files[name]) if name in self._files else None
        if known is not None:
            return known  # a large one has many readers, and is read and hashed once
        data = raw.read_bytes()
        if len(self._files) >= 4096:
            self._files.clear()
        self._files[name] = _key(data)
        return self._ref(data)

    def _ref(self, data: bytes) -> Any:
        key = _key(data)
        return self._refs[key] if key in self._refs else self._know(data, ray.put(data))

    def _know(self, data: bytes, ref: Any) -> Any:
        """Remember where bytes lie; the oldest are forgotten, and put there again if somebody needs them after all."""
        key = _key(data)
        if key not in self._refs:
            self._order.append(key)
            self._pinned += max(key[0], _LEAST)
        self._refs[key] = ref
        while self._pinned > _PINNED and len(self._order) > 1:
            old = self._order.popleft()
            del self._refs[old]
            self._pinned -= max(old[0], _LEAST)
        return ref


def _key(data: bytes) -> _Key:
    return len(data), hashlib.blake2b(data, digest_size=16).digest()
