"""What FedSpa's mask search takes in time and bytes: ``SPARSONA_DATA=DIR python benchmarks/fedspa.py [--json]``.

The search is measured on one device with one thread, on pictures of noise (values do not matter to its time): LeNet5
with 1,248 samples as in the paper's EMNIST, ResNet18 with 500 as in its CIFAR-100; five epochs of batches of 128.
Whole rounds run in the pool engine on Fashion-MNIST.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from common import Figure, main, round_ratio
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.task import Task
from sparsona.core.training import Ctx, train
from sparsona.data import DataError, load
from sparsona.experiment.recipe import check
from sparsona.methods.fedavg import FedAvg
from sparsona.methods.fedspa import FedSpa
from sparsona.models import build

HOW: dict[str, Any] = {"epochs": 5, "batch": 128, "lr": 0.1, "weight_decay": 5e-4, "clip": 10.0}


def search_share(name: str, classes: int, shape: tuple[int, int, int], samples: int, tries: int) -> float:
    """Per cent that the search takes of the time of local training; an epoch is timed and taken five times."""
    torch.set_num_threads(1)
    task, theta0 = Task.of(build(name, classes, shape), torch.zeros(1, *shape))
    x = torch.rand(samples, *shape).contiguous(memory_format=torch.channels_last)
    data = Samples(x, torch.randint(0, classes, (samples,)), torch.arange(samples))
    method = FedSpa(**HOW)
    ctx = Ctx(1, 1000, task, theta0, Rng(1, "local"), Rng(1, "common"))
    mask = method.first(0, ctx)
    trained, searched = [], []
    for i in range(tries + 1):
        began = time.perf_counter()
        theta = train(method, theta0 * mask, data, replace(ctx, rng=Rng(1, i)), epochs=1, mask=mask)
        middle = time.perf_counter()
        batch = data.batch(Rng(2, i), method.batch)
        method.searcher()(method, mask, theta, lambda theta=theta, batch=batch: task.gradient_at(theta, batch), ctx)
        trained.append(middle - began)
        searched.append(time.perf_counter() - middle)
    return 100 * statistics.median(searched[1:]) / (method.epochs * statistics.median(trained[1:]))


def recipe(model: str, method: str, rounds: int) -> Any:
    """Ten of 100 clients a round, 600 Fashion-MNIST samples each."""
    return check(
        {
            "name": "round",
            "rounds": rounds,
            "data": {
                "source": "fashion-mnist",
                "clients": 100,
                "partition": "iid",
                "samples_per_client": 600,
                "split": "label_mix",
                "train_share": 1.0,
                "validation_share": 0.0,
            },
            "model": {"name": model},
            "method": {"name": method, **HOW},
            "fleet": {"per_round": 10},
            "evaluate": {"every": rounds},
            "results": {"figures": False},
        }
    )


def wire_ratio(rounds: int = 9) -> float:
    """FedSpa's bytes over FedAvg's on ResNet18 at density 1/2: one client that trains a little, a whole cosine long."""
    torch.set_num_threads(1)
    task, theta0 = Task.of(build("resnet18-gn", 100, (3, 32, 32)), torch.zeros(1, 3, 32, 32))
    ctx = Ctx(0, rounds, task, theta0, Rng(1, "local"), Rng(1, "common"))
    x = torch.rand(8, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    samples = Samples(x, torch.arange(8), torch.arange(8))
    data = LocalData(samples, samples)
    sent: dict[str, int] = {}
    for name, method in (("fedspa", FedSpa(lr=1e-3, batch=8)), ("fedavg", FedAvg(lr=1e-3, batch=8))):
        client, server = method.join(0, ctx), method.start(1, ctx)
        for t in range(rounds):
            now = replace(ctx, t=t, rng=Rng(1, "local", t))
            down = method.down(server, 0, now)
            client, up, _ = method.local(client, {"server": down}, data, now)
            sent[name] = sent.get(name, 0) + down.nbytes + up.nbytes
            server = method.merge(server, [(0, method.read(server, 0, up, now))], now)
    return sent["fedspa"] / sent["fedavg"]


def figures() -> Iterator[Figure]:
    """Everything measured here."""
    yield Figure("fedspa: wire bytes over FedAvg's, ResNet18, DST, density 0.5", wire_ratio(), "x", 0.53, "lower")
    for name, what, bar in (
        ("lenet5", (26, (1, 28, 28), 1248, 7), 9.0),
        ("resnet18-gn", (100, (3, 32, 32), 500, 3), 13.0),
    ):
        yield Figure(f"fedspa: mask search over local training, {name}", search_share(name, *what), "%", bar, "lower")
    try:
        load("fashion-mnist")
    except DataError as error:
        print(f"rounds: not measured: {error}", file=sys.stderr)
        return
    for name, rounds in (("lenet5", 22), ("lenet", 42)):
        ratio = round_ratio("fedspa", lambda method, name=name, rounds=rounds: recipe(name, method, rounds))
        yield Figure(f"fedspa: a round over FedAvg's, {name}", ratio, "x", 1.10, "lower")


if __name__ == "__main__":
    main(figures)
