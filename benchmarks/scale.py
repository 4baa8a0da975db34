"""What many clients cost beside their training: ``SPARSONA_DATA=DIR python benchmarks/scale.py [--json]``.

Clients hold 60 Fashion-MNIST samples each, 12 of them for tests, and train a LeNet in batches of 32; the pool engine
has two workers. A test of all 10,000 clients is timed as a round with one less a round without. 100,000 clients are
registered, and read when they are needed.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import psutil

from common import Figure, main
from memory import EVERY, in_use
from sparsona.data import DataError, load
from sparsona.data.dataset import Dataset
from sparsona.experiment.loop import Progress
from sparsona.experiment.recipe import Recipe, check
from sparsona.experiment.runner import resume, run
from throughput import Bare

MANY, REGISTERED, FEW = 10_000, 100_000, 1000
PER_ROUND, SAMPLES = 100, 60
WORKERS = 2


class Registered:
    """Clients with pictures of Fashion-MNIST, each of which is drawn when the client is needed."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.classes = 10

    @cached_property
    def _pictures(self) -> Dataset:
        return load("fashion-mnist")

    def client(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Client k's samples."""
        rows = np.random.default_rng(k).choice(self._pictures.train, SAMPLES, replace=False)
        return self._pictures.x.numpy()[rows, :, :, 0], self._pictures.y.numpy()[rows]


def everybody_first(t: int, clients: Sequence[int], per_round: int, rng: np.random.Generator) -> list[int]:
    """A sampler: all clients in the first round, so that each has a model of its own, and a cohort in the others."""
    if t == 0:
        return list(clients)
    return [clients[place] for place in rng.choice(len(clients), PER_ROUND, replace=False)]


def recipe(method: str, clients: int, rounds: int, *, test: bool = True, sampler: str = "uniform") -> Recipe:
    """Rounds of clients that are in memory, or registered ones if there are more of them."""
    in_memory = {
        "source": "fashion-mnist",
        "partition": "iid",
        "copies": [10] * 10,
        "samples_per_client": SAMPLES,
        "split": "label_mix",
        "train_share": 1.0,
        "validation_share": 0.0,
        "test_samples": 12,
    }
    on_demand = {"source": "scale:Registered", "args": {"clients": clients}}
    return check(
        {
            "name": "scale",
            "rounds": rounds,
            "data": {"clients": clients} | (in_memory if clients == MANY else on_demand),
            "model": {"name": "lenet"},
            "method": {"name": method, "lr": 0.05, "batch": 32},
            "fleet": {"per_round": PER_ROUND, "sampler": sampler},
            "evaluate": {"every": 2 if test else rounds, "points": ["before"], "clients": "all" if test else PER_ROUND},
            "engine": {"name": "pool", "workers": WORKERS},
            "results": {"figures": False},
        }
    )


def seconds_of_test(method: str, sampler: str = "uniform") -> float:
    """Seconds that a test of all of 10,000 clients adds to a round."""
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        run(
            recipe(method, MANY, 6, sampler=sampler),
            Path(folder) / "run",
            on_round=lambda step: times.append(step.seconds),
        )
    return statistics.median(times[1::2]) - statistics.median(times[2::2])


def overhead() -> tuple[float, float]:
    """What a round of 100 clients takes beyond their jobs, and beyond the same steps in a bare loop; in percent.

    The jobs' seconds are spread over the workers. The bare loop takes turns with our rounds.
    """
    bare = Bare("lenet", WORKERS, PER_ROUND, SAMPLES)
    pairs: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        run(
            recipe("fedavg", MANY, 40, test=False),
            path,
            on_round=lambda step: pairs.append((step.seconds, bare.round())),
        )
        rows = [json.loads(line) for line in (path / "timing.jsonl").read_text().splitlines()][1:-1]
    bare.close()
    jobs = statistics.median(WORKERS * row["seconds"] / row["device_seconds"] for row in rows)
    return 100 * (jobs - 1), 100 * (statistics.median(a / b for a, b in pairs[1:-1]) - 1)


def rounds_of(clients: int, folder: Path) -> list[float]:
    """Seconds of rounds of 100 of so many clients with a model of their own."""
    times: list[float] = []
    run(recipe("ditto", clients, 20, test=False), folder, on_round=lambda step: times.append(step.seconds))
    return times[1:-1]


class Stopped(Exception):
    """The run was long enough."""


def serve(what: str, folder: Path) -> None:
    """In a process of its own: a run of all registered clients that stops in the middle, or its rest."""
    began = psutil.Process().create_time()

    def listen(step: Progress) -> None:
        print(json.dumps([time.time() - began, step.seconds]), flush=True)
        if what == "run" and step.round == 10:
            raise Stopped

    if what == "resume":
        resume(folder, on_round=listen)
    else:
        with contextlib.suppress(Stopped):
            run(recipe("ditto", REGISTERED, 20, test=False), folder, on_round=listen)


def served(what: str, folder: Path) -> tuple[float, int]:
    """Seconds from the start of the process until it trains, and the most memory that was in use at a time.

    It trains from the end of its first round on, less the time of a usual round.
    """
    most = 0
    with subprocess.Popen(
        [sys.executable, __file__, f"--{what}", str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                most = max(most, in_use(root))
            time.sleep(EVERY)
        assert process.stdout is not None
        lines = [json.loads(line) for line in process.stdout]
    if process.returncode or not lines:
        raise RuntimeError(f"{what} of registered clients failed")
    return lines[0][0] - statistics.median(seconds for _, seconds in lines[1:-1]), most


def figures() -> Iterator[Figure]:
    """Everything measured here."""
    try:
        load("fashion-mnist")
    except DataError as error:
        print(f"scale: not measured: {error}", file=sys.stderr)
        return
    many, registered = f"scale: {MANY:,} clients", f"scale: {REGISTERED:,} registered clients"
    seconds = seconds_of_test("local", "scale:everybody_first")
    yield Figure(f"{many}, test of all, a model each", seconds, "s", 10, "lower")
    yield Figure(f"{many}, test of all, a shared model", seconds_of_test("fedavg"), "s", 3, "lower")
    beyond_jobs, beyond_bare = overhead()
    yield Figure(f"{many}, 100 per round, time beyond the clients' jobs", beyond_jobs, "%", 5, "lower")
    yield Figure(f"{many}, 100 per round, time beyond a bare loop", beyond_bare, "%", 5, "lower")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        start, most = served("run", path)
        yield Figure(f"{registered}, ready to train", start, "s", 20, "lower")
        again, later = served("resume", path)
        yield Figure(f"{registered}, resumed", again, "s", 20, "lower")
        yield Figure(f"{registered}, peak of all processes", max(most, later) / 1e9, "GB", 1, "lower")
    pairs = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            all_of_them = statistics.median(rounds_of(REGISTERED, Path(folder) / "many"))
            pairs.append(all_of_them / statistics.median(rounds_of(FEW, Path(folder) / "few")))
    yield Figure(f"{registered}, a round over one with {FEW:,}", statistics.median(pairs), "x", 1.03, "lower")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--run" | "--resume" as what, folder]:
            serve(what[2:], Path(folder))
        case _:
            main(figures)
