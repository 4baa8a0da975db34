"""How near to the entropy bound masks are coded, and how fast: ``python benchmarks/wire.py [--json]``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from common import Figure, main
from sparsona.core.wire import Bits, Message, decode, encode, mask_nbytes

RESNET18 = 11_220_132  # parameters, for 100 classes


def mask(n: int, density: float) -> Tensor:
    """A random mask, the same in every run."""
    return torch.rand(n, generator=torch.Generator().manual_seed(round(density * 1000))) < density


def excess(n: int, density: float) -> float:
    """Per cent by which a random mask's code is longer than its entropy bound."""
    bits = mask(n, density)
    p = bits.double().mean().item()
    bound = -n * (p * math.log2(p) + (1 - p) * math.log2(1 - p)) / 8
    return 100 * (mask_nbytes(bits) / bound - 1)


def best_of(run: Callable[[], Any], times: int = 3) -> float:
    """Seconds of the fastest of a few runs."""
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def figures() -> Iterator[Figure]:
    """Everything measured here."""
    worst = max(excess(1_000_000, percent / 100) for percent in range(1, 100))
    yield Figure("wire: worst excess of a mask over its entropy, densities 0.01 to 0.99", worst, "%", 5.0, "lower")
    for density in (0.5, 0.3, 0.1):
        message = Message(mask=Bits(mask(RESNET18, density)))
        data = encode(message)
        assert decode(data) == message
        what = f"a mask of {RESNET18:,} entries, density {density}"
        yield Figure(f"wire: encode {what}", best_of(partial(encode, message)), "s", 1.0, "lower")
        yield Figure(f"wire: decode {what}", best_of(partial(decode, data)), "s", 1.0, "lower")


if __name__ == "__main__":
    main(figures)
