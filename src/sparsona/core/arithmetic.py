"""How everything that engines must agree on is computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

SINGLE = {"mps"}  # kinds of devices without double precision


def precise(t: Tensor) -> Tensor:
    """The tensor where there is double precision: on the host, if its device has none."""
    return t.cpu() if t.device.type in SINGLE else t


@contextmanager
def arithmetic() -> Iterator[None]:
    """On one thread, the calling one, so that sums have one order; and what single floats hold below 1e-38 is zero.

    A processor takes up to a hundred times as long for such tiny numbers, and the gradients of a personal model that
    fits its data are full of them: a fifth of the time of FedPSE's rounds went there.
    """
    threads, flushed = torch.get_num_threads(), not torch.tensor(1e-40).mul(0.5)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # where the processor can
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)
        torch.set_num_threads(threads)
