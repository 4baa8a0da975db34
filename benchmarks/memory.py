"""Whether memory grows with the number of clients: ``SPARSONA_DATA=DIR python benchmarks/memory.py [--json]``.

Merging: a fresh process takes in 10 or 100 updates of a ResNet-18, made one by one, and says how far its peak of
resident memory rose above what it was before; once through the mean alone, once through FedAvg's merge of messages
that were encoded and decoded. A fleet: 2,000 clients train a personal LeNet each (Ditto, two rounds with everybody,
then a test of everybody) in the pool engine with two workers; the memory of all its processes is looked at every 50 ms,
and what they share is counted once. Peers: 100 clients with a ResNet-18 each at density 1/2 (a round of DA-DPFL with
ten neighbours and waits, on four CIFAR-10 pictures each), likewise. Without the data the fleets are left out.
"""

from __future__ import annotations

import contextlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import torch
from torch import Tensor

from common import Figure, main
from sparsona.core.aggregate import Mean
from sparsona.core.wire import Message, Values, decode, encode
from sparsona.data import DataError, load
from sparsona.experiment.recipe import Recipe, check
from sparsona.experiment.runner import run
from sparsona.methods.fedavg import FedAvg

RESNET18 = 11_220_132  # parameters, for 100 classes
LENET = 44_426
CLIENTS, EVERY = 2000, 0.05
FLEET = f"memory: {CLIENTS:,} clients with a personal LeNet each"
PEERS = "memory: 100 peers with a ResNet-18 each at density 0.5"


def peak() -> int:
    """The most memory this process ever had, in bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def updates(count: int, dim: int) -> Iterator[Tensor]:
    """Random updates, made when they are asked for."""
    for k in range(count):
        yield torch.rand(dim, generator=torch.Generator().manual_seed(k))


def messages(count: int, dim: int) -> Iterator[tuple[int, Message]]:
    """The same as clients' answers that came over a network."""
    for k, update in enumerate(updates(count, dim)):
        yield k, decode(encode(Message(theta=Values(update), samples=600)))


def merge(way: str, count: int, dim: int) -> None:
    """Take in so many updates, through the mean or through FedAvg."""
    if way == "mean":
        mean = Mean(dim)
        for update in updates(count, dim):
            mean.add(update)
        mean.value()
    else:
        ctx: Any = SimpleNamespace(layout=SimpleNamespace(dim=dim))  # all that the merge asks for
        server, method = torch.zeros(dim), FedAvg()
        method.merge(server, ((k, method.read(server, k, m, ctx)) for k, m in messages(count, dim)), ctx)


def serve_merge(way: str, count: int) -> None:
    """In a process of its own: print by how many bytes the peak rose."""
    torch.set_num_threads(1)
    merge(way, 2, 1000)  # whatever is set up at the first use is not the merge's
    before = peak()
    merge(way, count, RESNET18)
    print(peak() - before)


def rise(way: str, count: int) -> int:
    """By how many bytes a merge raises the peak of a fresh process."""
    command = [sys.executable, __file__, "--merge", way, str(count)]
    return int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def recipe(which: str) -> Recipe:
    """A fleet in which everybody keeps a model: with a server, or peers."""
    if which == "peers":
        return check(
            {
                "name": "memory",
                "rounds": 1,
                "data": {
                    "source": "cifar10",
                    "clients": 100,
                    "partition": "iid",
                    "samples_per_client": 4,
                    "split": "label_mix",
                    "train_share": 1.0,
                    "validation_share": 0.0,
                    "test_samples": 1,
                },
                "model": {"name": "resnet18-gn"},
                "method": {"name": "dadpfl"},
                "topology": {"neighbours": 10, "max_wait": 10},
                "engine": {"name": "pool", "workers": 2},
                "results": {"figures": False},
            }
        )
    return check(
        {
            "name": "memory",
            "rounds": 2,
            "data": {"source": "fashion-mnist", "clients": CLIENTS, "partition": "iid"},
            "model": {"name": "lenet"},
            "method": {"name": "ditto", "lr": 0.05, "batch": 32},
            "evaluate": {"every": 2},
            "engine": {"name": "pool", "workers": 2},
            "results": {"figures": False},
        }
    )


def in_use(root: psutil.Process) -> int:
    """Bytes of memory of a process and its children: shared pages once where the system tells, else not at all."""
    total = 0
    for process in (root, *root.children(recursive=True)):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            memory = process.memory_full_info()
            total += getattr(memory, "pss", memory.uss)
    return total


def fleet(which: str, folder: Path) -> int:
    """Run the fleet in a process of its own and give the most memory that was in use at a time."""
    most = 0
    with subprocess.Popen(
        [sys.executable, __file__, "--fleet", which, str(folder)], stdout=subprocess.DEVNULL
    ) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                most = max(most, in_use(root))
            time.sleep(EVERY)
    if process.returncode:
        raise RuntimeError(f"the fleet {which!r} failed")
    return most


def kept(folder: Path) -> float:
    """Bytes on disk per client; an error if one has no state."""
    sizes = [path.stat().st_size for path in (folder / "state").glob("client-*.safetensors")]
    assert len(sizes) == CLIENTS
    assert json.loads((folder / "run.json").read_text())["parameters"] == LENET
    return sum(sizes) / CLIENTS


def figures() -> Iterator[Figure]:
    """Everything measured here."""
    for way, what in (("mean", "mean"), ("fedavg", "FedAvg's merge")):
        few, many = rise(way, 10), rise(way, 100)
        name = f"memory: {what} of 100 updates of {RESNET18:,} entries"
        yield Figure(f"{name}, peak over that of 10", many / few, "x", 1.05, "lower")
        yield Figure(f"{name}, peak", many / 1e9, "GB", 0.5, "lower")
    try:
        load("fashion-mnist")
    except DataError as error:
        print(f"{FLEET}: not measured: {error}", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        yield Figure(f"{FLEET}, peak of all processes", fleet("server", path) / 1e9, "GB", 1.5, "lower")
        yield Figure(f"{FLEET}, state on disk over the bare values", kept(path) / (4 * LENET), "x", 1.1, "lower")
    try:
        load("cifar10")
    except DataError as error:
        print(f"{PEERS}: not measured: {error}", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        yield Figure(f"{PEERS}, peak of all processes", fleet("peers", path) / 1e9, "GB", 4, "lower")
        size = sum(file.stat().st_size for file in (path / "state").iterdir())
        yield Figure(f"{PEERS}, weights and masks on disk", size / 1e9, "GB", 4, "lower")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--merge", way, count]:
            serve_merge(way, int(count))
        case ["--fleet", which, folder]:
            run(recipe(which), folder)
        case _:
            main(figures)
