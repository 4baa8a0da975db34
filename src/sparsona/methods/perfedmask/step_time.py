"""What a training step costs on this device at each budget, and the largest budget that keeps within a time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import torch

from sparsona.core.arithmetic import arithmetic
from sparsona.core.descent import descend
from sparsona.core.optimiser import SGD
from sparsona.core.rng import Rng
from sparsona.core.samples import Samples
from sparsona.core.task import Task
from sparsona.methods.perfedmask.layers import LayerMasks, within
from sparsona.methods.perfedmask.problem import Problem

SHARES = (1.0, 0.75, 0.5, 0.375, 0.25, 0.125, 0.0625)  # budgets that are tried on a device


@dataclass(frozen=True)
class StepTime:
    """What a step costs at a budget."""

    budget: float  # share of the body
    trained: int  # parameters
    milliseconds: float


def time_steps(method: LayerMasks, task: Task, theta: torch.Tensor, samples: Samples, times: int = 7) -> list[StepTime]:
    """Least time of a training step of one batch on one thread, at budgets from all of the body down.

    Budgets take turns, so that other work on the device falls on all of them alike. A budget holds all masks of a
    smaller one, so no step is reported to take longer than those of larger budgets.
    """
    sizes = method.layers(task.layout)
    budgets = [within(share, sum(sizes)) for share in SHARES]
    rows = Problem(sizes, tuple(budgets)).fullest
    batch = replace(samples, index=samples.index[: method.batch])
    spent: list[list[float]] = [[] for _ in SHARES]
    with arithmetic():
        for i in range(times + 1):  # the first warms up
            for row, seconds in zip(rows, spent, strict=True):
                move = method.moving(task.layout, torch.from_numpy(row))
                began = time.perf_counter()
                batches = batch.epochs(Rng(i), 1, method.batch)
                descend(task, theta, batches, SGD(lr=0.0, momentum=0.9, weight_decay=1e-4), move=move)
                seconds.append(time.perf_counter() - began)
    trained = rows @ np.array(sizes)
    least = accumulate((1000 * min(seconds[1:]) for seconds in spent), min)
    return [StepTime(share, int(n), took) for share, n, took in zip(SHARES, trained, least, strict=True)]


def propose_budget(steps: Sequence[StepTime], milliseconds: float) -> StepTime | None:
    """The largest budget at which something is trained and a step takes no longer, or None."""
    return next((step for step in steps if step.trained and step.milliseconds <= milliseconds), None)
