"""The specification of an engine: one client after the other, in this process."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator

from sparsona.engines.device import Device, Job, Result


class ClientFailed(RuntimeError):
    """A method's code raised on a device."""

    def __init__(self, job: Job, reason: str, trace: str) -> None:
        super().__init__(f"client {job.k} failed in round {job.t + 1} ({job.kind}): {reason}")
        self.trace = trace  # where it happened, for whoever mends the method


class Local:
    """Runs jobs one by one."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The results, in the order of the jobs."""
        for job in jobs:
            try:
                yield self.device.handle(job)
            except Exception as error:  # whatever a method or a model raises
                raise ClientFailed(job, f"{type(error).__name__}: {error}", traceback.format_exc()) from error

    def close(self) -> None:
        """Nothing to leave behind."""
