"""What benchmarks share: a figure, its bar, and how it is told."""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from sparsona.experiment.loop import Progress
from sparsona.experiment.recipe import Recipe
from sparsona.experiment.runner import run


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


def round_ratio(ours: str, recipe: Callable[[str], Recipe]) -> float:
    """Seconds of a method's round over the FedAvg round next to it, which take turns: the median over the rounds."""
    times: dict[str, list[float]] = {ours: [], "fedavg": []}
    turns = {method: threading.Semaphore(0) for method in times}

    def go(method: str, other: str) -> None:
        def listen(progress: Progress) -> None:
            times[method].append(progress.seconds)
            turns[other].release()
            turns[method].acquire()

        turns[method].acquire()
        with tempfile.TemporaryDirectory() as folder:
            run(recipe(method), Path(folder) / "run", on_round=listen)
        turns[other].release()

    both = [threading.Thread(target=go, args=pair) for pair in ((ours, "fedavg"), ("fedavg", ours))]
    for thread in both:
        thread.start()
    turns[ours].release()
    for thread in both:
        thread.join()
    pairs = list(zip(times[ours], times["fedavg"], strict=True))[1:-1]  # without warming up and evaluation
    return statistics.median(our / their for our, their in pairs)
