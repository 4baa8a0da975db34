"""What freezing layers saves: an epoch of a weak device over that of a full one: ``python benchmarks/freeze.py``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch

from common import Figure, main
from sparsona.core.arithmetic import arithmetic
from sparsona.core.descent import descend
from sparsona.core.optimiser import SGD
from sparsona.core.rng import Rng
from sparsona.core.samples import Samples
from sparsona.core.task import Task
from sparsona.methods.perfedmask.perfedmask import PerFedMask
from sparsona.models import build

SAMPLES, BATCH, TIMES = 200, 50, 3


def ratio(name: str, classes: int, spare: float) -> float:
    """Seconds of a weak device's epoch over those of a full one's next to it: the median of a few."""
    torch.set_num_threads(1)
    task, theta = Task.of(build(name, classes, (3, 32, 32)), torch.zeros(1, 3, 32, 32))
    method = PerFedMask(spare=spare)
    masks = torch.from_numpy(method.design(100, task.layout, Rng(1)).masks)
    pictures = Samples(torch.rand(SAMPLES, 3, 32, 32), torch.arange(SAMPLES) % classes, torch.arange(SAMPLES))
    found, sgd = [], SGD(lr=0.1, momentum=0.9, weight_decay=5e-4)
    with arithmetic():  # as engines compute
        for i in range(TIMES + 1):
            spent = []
            for k in (0, 99):
                began = time.process_time()
                move = method.moving(task.layout, masks[k])
                descend(task, theta, pictures.epochs(Rng(i), 1, BATCH), sgd, move=move)
                spent.append(time.process_time() - began)
            found.append(spent[0] / spent[1])
    return statistics.median(found[1:])  # without warming up


def figures() -> Iterator[Figure]:
    """Everything measured here."""
    # least masks reach down to the first layer: 0.80 and 0.84 of a full step's operations remain, so 0.75 is out of
    # reach for them; their bar only guards against gradients that nobody needs
    for title, name, classes in (("MobileNet", "mobilenet", 100), ("PreResNet18", "preresnet18", 10)):
        what = f"freeze: {title}, an epoch at a budget of 1/8 over a full one"
        yield Figure(f"{what}, a fifth of it to spare", ratio(name, classes, 0.2), "x", 0.75, "lower")
        yield Figure(f"{what}, masks of least bias and slack", ratio(name, classes, 0.0), "x", 0.95, "lower")


if __name__ == "__main__":
    main(figures)
