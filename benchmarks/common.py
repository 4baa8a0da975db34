"""What benchmarks share: a figure, its bar, and how it is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal


@dataclass(frozen=True)
class Figure:
    """A measured value and what it is held against."""

    name: str
    value: float
    unit: str
    bar: float
    better: Literal["lower", "higher"]

    @property
    def holds(self) -> bool:
        """Whether the value meets its bar."""
        return self.value <= self.bar if self.better == "lower" else self.value >= self.bar

    @property
    def line(self) -> str:
        """The figure in one line."""
        sign, verdict = "<=" if self.better == "lower" else ">=", "holds" if self.holds else "falls short"
        return f"{self.name}: {self.value:.3g} {self.unit} (bar {sign} {self.bar:g}): {verdict}"


def main(figures: Callable[[], Iterator[Figure]]) -> None:
    """Print every figure as soon as it is measured, or with --json all at the end; exit 1 where one falls short."""
    done = []
    for figure in figures():
        done.append(figure)
        if "--json" not in sys.argv:
            print(figure.line, flush=True)
    if "--json" in sys.argv:
        print(json.dumps([asdict(f) | {"holds": f.holds} for f in done], indent=1))
    sys.exit(0 if all(f.holds for f in done) else 1)
