"""Workers of a Ray cluster, on this machine or others: like the pool, and bit-equal to ``local``.

A client is always given to the same worker. Its state and its messages to peers stay in Ray's memory on the
machine where it was made, and whoever needs it next, the worker itself or one that reads a neighbour, fetches it from
there. The engine has only a reference, and gets the bytes of the last of each for a checkpoint; what a server merges
comes to it, of course, and so does what is too small to be worth a reference.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import socket
import sys
import traceback
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports; Ray reads this on import
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or it warns at every start

import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayError

from sparsona.core.arithmetic import arithmetic
from sparsona.core.text import one_line
from sparsona.core.wire import Message, encode
from sparsona.engines.channel import same_message
from sparsona.engines.codec import job_parts, read_job, read_result, result_parts
from sparsona.engines.hardware import AUTO_PER_GPU, device_kind
from sparsona.engines.jobs import Job, Raw, Result, encoded
from sparsona.engines.local import ClientFailed, reason
from sparsona.engines.pool import WorkerDied
from sparsona.engines.store import Blob, Elsewhere, here

_SEES_GPUS = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}  # or Ray hides GPUs from workers that ask for none
_AHEAD = 4  # jobs per worker that may be running, or finished but waiting for an earlier one: bounds memory
_STARTS_WITHIN = 300.0  # seconds for a worker to be given a processor and to build its device
_SMALL = 100 << 10  # bytes up to which Ray sends something along with a call or its answer


class _RayBlob(Elsewhere):
    """A client's state or message in Ray's memory, freed when the last reference is gone."""

    def __init__(self, ref: Any, nbytes: int, k: int) -> None:
        self.ref, self.nbytes, self.k = ref, nbytes, k

    def fetch(self) -> bytes:
        """The bytes."""
        try:
            data: bytes = ray.get(self.ref)
        except RayError as error:
            raise WorkerDied(
                f"the state or message of client {self.k} is lost, as its machine left the cluster: {one_line(error)}"
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
    what = 'expected host:port of a Ray cluster, as printed by ray start --head, or "auto" for one on this machine'
    if not colon or not host or not port.isdigit():
        raise ValueError(f'engine.address: "{address}" is not allowed; {what}')
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f'engine.address: "{address}" cannot be reached ({error}); {what}') from error


def _gpus(devices: Sequence[str]) -> int:
    """How many GPUs the cluster has for workers on these devices."""
    return 0 if devices[0] == "cpu" else int(ray.cluster_resources().get("GPU", 0))


def _fitting(workers: int, devices: Sequence[str]) -> int:
    """So many workers, or as many as the cluster has room for: one for each processor, two for each GPU."""
    gpus = _gpus(devices)
    return max(1, min(workers, int(ray.cluster_resources().get("CPU", 1)), *([AUTO_PER_GPU * gpus] if gpus else [])))


def _needs(workers: int, devices: Sequence[str]) -> tuple[dict[str, Any], int]:
    """What each of so many workers asks of the cluster, and how many share a GPU.

    Who may have any GPU asks for a share of one, and sees no other. GPUs with numbers are not Ray's to give.
    """
    if devices[0] == "cpu":
        return {"num_cpus": 1}, 1
    options: dict[str, Any] = {"num_cpus": 1, "runtime_env": {"env_vars": _SEES_GPUS}}
    gpus = _gpus(devices)
    if tuple(devices) not in (("auto",), ("cuda",)) or not gpus:
        return options, math.ceil(workers / len(devices))
    sharing = math.ceil(workers / gpus)
    return options | {"num_gpus": math.floor(10_000 / sharing) / 10_000}, sharing  # Ray counts in such parts


def _one_kind(kinds: Sequence[str], devices: Sequence[str]) -> str:
    """The kind of device that all workers have; ValueError if there are several."""
    if len(set(kinds)) == 1:
        return kinds[0]
    by_kind = {kind: ", ".join(str(i) for i, other in enumerate(kinds) if other == kind) for kind in sorted(set(kinds))}
    listed = "; ".join(f"{kind} (workers {which})" for kind, which in by_kind.items())
    raise ValueError(
        f'engine.device: "{", ".join(devices)}" is of several kinds on this cluster, which give different results: '
        f'{listed}; use machines of one kind, or engine.device = "cpu"'
    )


class _Worker:
    """What runs on the cluster: a device, and nothing that outlives a job."""

    def __init__(self, build: str, arguments: dict[str, Any], path: list[str]) -> None:
        sys.path[:] = [*path, *(p for p in sys.path if p not in path)]
        module, _, name = build.partition(":")
        self.device = getattr(importlib.import_module(module), name)(**arguments)

    def ready(self) -> str:
        """The kind of its device, as soon as that is built."""
        return device_kind((str(self.device.task.device),))

    def do(self, head: dict[str, Any], *blobs: bytes) -> tuple[dict[str, Any], Any, Any]:
        """Run a job: the head of its result and up to two blobs, each fetched separately."""
        try:
            with arithmetic():
                result = self.device.handle(read_job(head, blobs, trusted=True))
            answer, parts = result_parts(result)
            data = [here(part) for part in parts]
            first, second, *_ = [*data, None, None]
            return answer | {"sizes": [len(part) for part in data]}, first, second
        except Exception as error:  # whatever it is, the engine must know
            return {"error": reason(error), "trace": traceback.format_exc()}, None, None


class RayEngine:
    """Runs jobs on workers that build their device from ``build`` ("module:function") and its arguments.

    Workers take the ``devices``, which are arguments too, in turn; so is how many of them share one. With ``fewer``,
    there are no more workers than the cluster has processors, or two for each of its GPUs.
    """

    kind = ""  # of the workers' devices, known when they are ready

    def __init__(
        self,
        workers: int,
        build: str,
        arguments: dict[str, Any],
        address: str = "",
        devices: Sequence[str] = ("cpu",),
        *,
        fewer: bool = False,
    ) -> None:
        self._ours = not ray.is_initialized()
        if self._ours:
            _look_for(address)
            # "local": without it Ray joins a cluster that somebody else has on this machine
            own_cluster = {"address": "local", "num_cpus": workers, "include_dashboard": False}
            where: dict[str, Any] = {"address": address} if address else own_cluster
            try:
                ray.init(log_to_driver=False, logging_level=logging.ERROR, **where)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ValueError(
                    f'engine.address: no Ray cluster can be reached at "{address}": {one_line(error)}'
                ) from error
        count = _fitting(workers, devices) if fewer else workers
        options, sharing = _needs(count, devices)
        actor: Any = ray.remote(max_restarts=0, **options)(_Worker)
        path = [str(Path(p).absolute()) for p in sys.path if Path(p).is_dir()]  # "" is where we are, not a worker
        own = [arguments | {"device": devices[i % len(devices)], "sharing": sharing} for i in range(count)]
        self._devices = devices
        self._workers: list[Any] = [actor.remote(build, each, path) for each in own]
        self._files: dict[Path, Any] = {}  # where those lie that were read for these jobs already
        self._last: tuple[Message, Any] | None = None  # a broadcast lies there once

    def ready(self) -> None:
        """Wait until all workers have built their device, and see that these are of one kind."""
        have = int(ray.cluster_resources().get("CPU", 0))
        if have < len(self._workers):
            wanted = len(self._workers)
            self.close()
            raise ValueError(
                f"engine.workers: {wanted} is not allowed; expected an int <= {have}, the processors of the Ray cluster"
            )
        kinds = []
        for i, worker in enumerate(self._workers):
            try:
                kinds.append(ray.get(worker.ready.remote(), timeout=_STARTS_WITHIN))
            except GetTimeoutError as error:
                self.close()
                free = "other programs may use the cluster's processors or GPUs"
                raise WorkerDied(f"worker {i} did not start within {_STARTS_WITHIN:g} seconds; {free}") from error
            except RayError as error:
                self.close()
                raise WorkerDied(f"worker {i} could not start: {one_line(error)}") from error
        try:
            self.kind = _one_kind(kinds, self._devices)
        except ValueError:
            self.close()
            raise

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
        head, blobs = job_parts(job)
        worker = self._workers[job.k % len(self._workers)]
        answer: list[Any] = worker.do.options(num_returns=3).remote(head, *map(self._reference, blobs))
        return answer

    def _take(self, job: Job, answer: list[Any]) -> Result:
        try:
            head = ray.get(answer[0])
            if "error" in head:
                raise ClientFailed(job, head["error"], head["trace"])
            blobs = [_RayBlob(ref, size, job.k).settled() for ref, size in zip(answer[1:], head["sizes"], strict=False)]
            return read_result(head, blobs, trusted=True)
        except ObjectLostError as error:
            raise WorkerDied(
                f"the data for client {job.k} is lost, as its machine left the cluster: {one_line(error)}"
            ) from error
        except RayError as error:
            what = f"while client {job.k} ran in round {job.t + 1} ({job.kind})"
            raise WorkerDied(f"worker {job.k % len(self._workers)} died {what}: {one_line(error)}") from error

    def _reference(self, raw: Raw) -> Any:
        """An encoded message or a value, or where it lies, for workers to fetch."""
        if isinstance(raw, _RayBlob):
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
