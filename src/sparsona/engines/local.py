"""The specification of an engine: one client after the other, in this process."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator

import torch

from sparsona.core.text import one_line
from sparsona.engines.device import Device
from sparsona.engines.jobs import Job, Result

# what PyTorch says where it has no class for it, and what cuBLAS and cuDNN say
_FULL = re.compile(r"(CUDA|HIP|MPS)( backend| error:)? out of memory|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED")
_LOWER = "lower engine.workers or engine.device_cache when you resume, or method.batch or evaluate.batch in a new run"


class ClientFailed(RuntimeError):
    """A method's code raised on a device."""

    def __init__(self, job: Job, reason: str, trace: str) -> None:
        super().__init__(f"client {job.k} failed in round {job.t + 1} ({job.kind}): {one_line(reason)}")
        self.trace = trace  # where it happened, for whoever mends the method


def out_of_memory(error: Exception) -> bool:
    """Whether a GPU had too little memory."""
    full = isinstance(error, torch.OutOfMemoryError)
    return full or (isinstance(error, RuntimeError) and bool(_FULL.search(str(error))))


def reason(error: Exception, memory: str = _LOWER) -> str:
    """Why a job failed; of what a user can mend on a GPU, how: ``memory`` says it if its memory is full."""
    if out_of_memory(error):
        return f"the GPU is out of memory; {memory}"
    if operation := re.match(r"(\S+) does not have a deterministic implementation", str(error)):
        return (
            f"{operation[1]} has no deterministic kernel on this device; use another layer in the model, or "
            "engine.device=cpu"
        )
    return f"{type(error).__name__}: {error}"


class LocalEngine:
    """Runs jobs one by one."""

    kind = ""

    def __init__(self, device: Device) -> None:
        self.device = device

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The results, in the order of the jobs."""
        for job in jobs:
            try:
                yield self.device.handle(job)
            except Exception as error:  # whatever a method or a model raises
                raise ClientFailed(job, reason(error), traceback.format_exc()) from error

    def close(self) -> None:
        """Nothing to leave behind."""
