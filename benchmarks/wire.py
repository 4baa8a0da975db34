"""How near to the entropy bound masks are coded, and how fast: ``python benchmarks/wire.py [--json]``."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sparsona.core.wire import Bits, Message, decode, encode, mask_nbytes

Figure = tuple[str, float, str, float, str]  # name, value, unit, bar, "lower" or "higher" is better

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


def figures() -> list[Figure]:
    """Everything measured here."""
    out: list[Figure] = []
    worst = max(excess(1_000_000, percent / 100) for percent in range(1, 100))
    out.append(("wire: worst excess of a mask over its entropy, densities 0.01 to 0.99", worst, "%", 5.0, "lower"))
    for density in (0.5, 0.3, 0.1):
        message = Message(mask=Bits(mask(RESNET18, density)))
        data = encode(message)
        assert decode(data) == message
        what = f"a mask of {RESNET18:,} entries, density {density}"
        out.append((f"wire: encode {what}", best_of(lambda m=message: encode(m)), "s", 1.0, "lower"))
        out.append((f"wire: decode {what}", best_of(lambda d=data: decode(d)), "s", 1.0, "lower"))
    return out


def main(argv: list[str]) -> int:
    """Print every figure with its bar; 1 where one falls short."""
    rows = [
        {
            "name": name,
            "value": value,
            "unit": unit,
            "bar": bar,
            "holds": value <= bar if way == "lower" else value >= bar,
        }
        for name, value, unit, bar, way in figures()
    ]
    if "--json" in argv:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            verdict = "holds" if row["holds"] else "falls short"
            print(f"{row['name']}: {row['value']:.3g} {row['unit']}, bar {row['bar']:g} {row['unit']}, {verdict}")
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
