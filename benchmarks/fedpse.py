"""What FedPSE adds to FedAvg: bytes on the wire, and the time of a round.

SPARSONA_DATA=DIR python benchmarks/fedpse.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from common import Figure, main, round_ratio
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.task import Task
from sparsona.core.training import Ctx
from sparsona.data import DataError, load
from sparsona.experiment.recipe import check
from sparsona.methods.fedavg import FedAvg
from sparsona.methods.fedpse.fedpse import FedPSE
from sparsona.methods.fedscr import FedSCR
from sparsona.methods.fedstc import FedSTC
from sparsona.models import build


def recipe(method: str, rounds: int) -> Any:
    """The paper's Fashion-MNIST with ten clients: 6,000 samples each, an epoch of Adam."""
    return check(
        {
            "name": "round",
            "rounds": rounds,
            "data": {
                "source": "fashion-mnist",
                "clients": 10,
                "partition": "lambda",
                "samples_per_client": 6000,
                "split": "same",
                "train_share": 1.0,
                "validation_share": 0.0,
            },
            "model": {"name": "convnet2"},
            "method": {"name": method, "batch": 64, "optimiser": "adam", "lr": 1e-3},
            "evaluate": {"every": rounds},
            "results": {"figures": False},
        }
    )


def wire_bytes(method: Any, rounds: int = 4, clients: int = 3) -> int:
    """Bytes both ways of a few clients with ConvNet2 that train a little, after the first round."""
    torch.set_num_threads(1)
    task, theta0 = Task.of(build("convnet2", 10, (1, 28, 28)), torch.zeros(1, 1, 28, 28))
    ctx = Ctx(0, rounds, task, theta0, Rng(1, "local"), Rng(1, "common"))
    pictures = Samples(torch.rand(96, 1, 28, 28), torch.arange(96) % 10, torch.arange(96))
    server, kept, sent = method.start(clients, ctx), {k: method.join(k, ctx) for k in range(clients)}, 0
    for t in range(rounds):
        now, answers = replace(ctx, t=t), []
        for k in kept:
            part = replace(pictures, index=torch.arange(32 * k, 32 * k + 32))
            down = method.down(server, k, now)
            here = replace(now, rng=Rng(1, "local", t, k))
            kept[k], up, _ = method.local(kept[k], {"server": down}, LocalData(part, part), here)
            answers.append((k, method.read(server, k, up, now)))
            sent += (down.nbytes + up.nbytes) * (t > 0)
        server = method.merge(server, iter(answers), now)
    return sent


def figures() -> Iterator[Figure]:
    """Everything measured here."""
    how: dict[str, Any] = {"batch": 16, "optimiser": "adam", "lr": 1e-3}
    dense = wire_bytes(FedAvg(**how))
    for name, method, bar in (("fedpse", FedPSE, 0.125), ("fedscr", FedSCR, 0.125), ("fedstc", FedSTC, 0.025)):
        ratio = wire_bytes(method(**how)) / dense
        yield Figure(f"fedpse: wire bytes of {name} over FedAvg's, ConvNet2, p = 0.9", ratio, "x", bar, "lower")
    try:
        load("fashion-mnist")
    except DataError as error:
        print(f"rounds: not measured: {error}", file=sys.stderr)
        return
    ratio = round_ratio("fedpse", lambda method: recipe(method, 6))
    yield Figure("fedpse: a round over FedAvg's, convnet2, 10 clients", ratio, "x", 1.15, "lower")


if __name__ == "__main__":
    main(figures)
