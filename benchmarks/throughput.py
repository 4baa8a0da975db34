"""Speed of whole rounds, as ratios: ``SPARSONA_DATA=DIR python benchmarks/throughput.py [--json]``.

100 clients, 10 per round, 600 Fashion-MNIST samples each, batch 32, one epoch, two cores. Ours: the pool engine with
real encoding, byte counts and a checkpoint every round. Bare: plain PyTorch in two single-threaded processes that do
the same SGD steps on data in memory, with channels-last weights, and nothing else: no server, no messages. The two
take turns round by round, so that whatever else the machine does hits both.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from common import Figure, main
from sparsona.experiment.recipe import Recipe, check
from sparsona.experiment.runner import run
from sparsona.models import build

PER_ROUND, SAMPLES, BATCH = 10, 600, 32
ROUNDS = {"lenet": 30, "cnn": 14}
FLOWER = (  # form, what it is, bar (None: the model's own)
    ("usual", "as documented", None),
    ("paired", "as documented, two clients at a time", 1.0),
    ("tuned", "tuned by hand to a bare loop", 1.0),
)


def recipe(model: str, rounds: int, workers: int = 2) -> Recipe:
    """The benchmark as a recipe; without the real data, pictures of the same size are not to be had: it stops there."""
    return check(
        {
            "name": "throughput",
            "rounds": rounds,
            "data": {
                "source": "fashion-mnist",
                "clients": 100,
                "partition": "iid",
                "samples_per_client": SAMPLES,
                "split": "label_mix",
                "train_share": 1.0,
                "validation_share": 0.0,
            },
            "model": {"name": model},
            "method": {"name": "fedavg", "lr": 0.05, "batch": BATCH},
            "fleet": {"per_round": PER_ROUND},
            "evaluate": {"every": rounds},
            "engine": {"name": "pool", "workers": workers},
            "results": {"figures": False},
        }
    )


class Bare:
    """Two processes that train so many clients on command."""

    def __init__(self, model: str, workers: int = 2, per_round: int = PER_ROUND, samples: int = SAMPLES) -> None:
        command = [sys.executable, __file__, "--bare", model, str(per_round // workers), str(samples)]
        env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
            for _ in range(workers)
        ]
        self.round()  # warm up

    def round(self) -> float:
        """Seconds of one round: every process trains its share of the clients."""
        began = time.perf_counter()
        for p in self.processes:
            assert p.stdin
            p.stdin.write("go\n")
            p.stdin.flush()
        for p in self.processes:
            assert p.stdout
            p.stdout.readline()
        return time.perf_counter() - began

    def close(self) -> None:
        """Stop the processes."""
        for p in self.processes:
            p.kill()
            p.wait()


def serve_bare(model: str, clients: int, samples: int) -> None:
    """The bare loop: what anyone would write for speed, on random pictures (values do not matter to its time)."""
    torch.set_num_threads(1)
    net = build(model, 10, (1, 28, 28)).to(memory_format=torch.channels_last)
    x, y = torch.rand(100 * samples, 1, 28, 28), torch.randint(0, 10, (100 * samples,))
    optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
    turn = 0
    for _ in sys.stdin:
        for _ in range(clients):
            mine = slice(turn % 100 * samples, (turn % 100 + 1) * samples)
            turn += 1
            for places in torch.randperm(samples).split(BATCH):
                optimiser.zero_grad()
                F.cross_entropy(net(x[mine][places]), y[mine][places]).backward()
                optimiser.step()
        print("done", flush=True)


def against_bare(model: str) -> tuple[float, float]:
    """Our speed over the bare loop's, and our samples per second."""
    bare = Bare(model)
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        run(
            recipe(model, ROUNDS[model]),
            Path(folder) / "run",
            on_round=lambda s: pairs.append((s.seconds, bare.round())),
        )
    bare.close()
    pairs = pairs[1:-1]  # the first round warms up, the last one evaluates
    ours = statistics.median(a for a, _ in pairs)
    return statistics.median(b / a for a, b in pairs), PER_ROUND * SAMPLES / ours


def seconds(model: str, rounds: int, workers: int) -> list[float]:
    """Seconds of our rounds with so many workers."""
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        run(recipe(model, rounds, workers), Path(folder) / "run", on_round=lambda s: times.append(s.seconds))
    return times[1:-1]


def scaling(model: str) -> float:
    """Two workers over one, in turns."""
    one, two = [], []
    for _ in range(3):
        one += seconds(model, 6, 1)
        two += seconds(model, 8, 2)
    return statistics.median(one) / statistics.median(two)


def flower(model: str, form: str, rounds: int = 6) -> float:
    """Samples per second of Flower's simulator on the same work, in one of the forms of flower_baseline.py."""
    script = Path(__file__).with_name("flower_baseline.py")
    done = subprocess.run(
        [sys.executable, str(script), model, str(rounds), form],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"Flower's simulator failed:\n{done.stderr[-2000:]}")
    times: dict[str, Any] = json.loads(lines[-1])
    return PER_ROUND * SAMPLES / statistics.median(times["seconds"])


def figures() -> Iterator[Figure]:
    """Everything measured here."""
    for model, bar, over_flower in (("cnn", 0.95, 2.5), ("lenet", 0.90, 5.0)):
        tries = [against_bare(model) for _ in range(3)]  # new processes each time: where memory lies makes a difference
        ratio, speed = (statistics.median(values) for values in zip(*tries, strict=True))
        yield Figure(f"throughput: {model}, pool engine over a bare PyTorch loop", ratio, "x", bar, "higher")
        if importlib.util.find_spec("flwr") is not None and importlib.util.find_spec("ray") is not None:
            for form, what, least in FLOWER:
                ratio = speed / flower(model, form)
                yield Figure(
                    f"throughput: {model}, pool over Flower's simulator {what}",
                    ratio,
                    "x",
                    least or over_flower,
                    "higher",
                )
        yield Figure(f"throughput: {model}, two workers over one", scaling(model), "x", 1.8, "higher")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        serve_bare(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main(figures)
