"""Who trains which layers: PerFedMask's masks as a table and a picture, and the budget that suits this device."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsona.core.arithmetic import arithmetic
from sparsona.core.layout import Layout
from sparsona.core.rng import Rng
from sparsona.core.samples import Samples
from sparsona.core.task import Task, sgd
from sparsona.drawing import BLUE, GREY, ORANGE, figure, round_axis
from sparsona.methods.perfedmask import PerFedMask
from sparsona.solvers.masks import Problem, Solution

SHARES = (1.0, 0.75, 0.5, 0.375, 0.25, 0.125, 0.0625)  # budgets that are tried on a device


@dataclass(frozen=True)
class Kind:
    """Devices of one budget and one mask."""

    devices: list[int]
    budget: int
    trained: int
    slack: int
    layers: list[bool]

    def json(self) -> dict[str, Any]:
        """As plain values, the layers by number from 0."""
        return vars(self) | {"layers": [j for j, trains in enumerate(self.layers) if trains]}


def kinds(found: Solution) -> list[Kind]:
    """The devices of a design, those alike together, in the order of their first ones."""
    alike: dict[tuple[int, bytes], list[int]] = {}
    for n, budget in enumerate(found.problem.budgets):
        alike.setdefault((budget, found.masks[n].tobytes()), []).append(n)
    return [
        Kind(of, budget, found.trained[of[0]], found.slack[of[0]], found.masks[of[0]].tolist())
        for (budget, _), of in alike.items()
    ]


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers in short: 0-2, 5."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][-1] == n - 1:
            parts[-1] = [parts[-1][0], n]
        else:
            parts.append([n])
    return ", ".join("-".join(map(str, part)) for part in parts)


def layer_names(layout: Layout, count: int) -> list[str]:
    """Layers by their first module; one more than the body has is the head."""
    names = ["head"] * count
    for slot in reversed(layout.slots):
        if slot.group >= 0:
            names[slot.group] = slot.layer
    return names


def mask_picture(found: Solution, names: Sequence[str], path: Path) -> None:
    """Write a PNG of layers by devices, with budgets and what is trained of them below."""
    devices, layers = found.masks.shape
    body = found.problem.body
    width, height = min(16.0, max(6.5, 3 + 0.08 * devices)), min(14.0, 3.2 + 0.24 * layers)
    with figure(path, width, height) as made:
        top, below = made.subplots(2, 1, sharex=True, height_ratios=[max(1.5, 0.24 * layers), 1.2])
        from matplotlib.colors import ListedColormap

        colours = ListedColormap(["#eeeeee", BLUE])
        top.imshow(found.masks.T, aspect="auto", interpolation="nearest", cmap=colours, vmin=0, vmax=1)
        labels = [f"{name}  {size:,}" for name, size in zip(names, found.problem.sizes, strict=True)]
        top.set_yticks(np.arange(layers), labels, fontsize=7)
        top.grid(visible=False)
        top.hlines(np.arange(0.5, layers - 1), -0.5, devices - 0.5, color="white", linewidth=1)
        if found.gap is None:
            gap = "some device trains nothing that could"
        else:
            gap = "the least there is" if found.proven else f"at most {100 * found.gap:.1f} % less possible"
        top.set_title(
            f"Layers trained (blue) by {devices} devices\n"
            f"bias {found.bias / body:.3f}, slack {sum(found.slack) / body:.3f} of the body: {gap}"
        )
        at = np.arange(devices)
        below.bar(at, np.array(found.trained) / body, width=1.0, color=BLUE)
        below.step(at, np.array(found.problem.budgets) / body, where="mid", color=ORANGE, linewidth=1.2)
        below.set(xlabel="device", ylabel="share of the body", ylim=(0, 1.05), xlim=(-0.5, devices - 0.5))
        round_axis(below)
        below.text(0.01, 0.9, "trained (bars), budget (line)", transform=below.transAxes, fontsize=7, color=GREY)


@dataclass(frozen=True)
class Timed:
    """What a step costs at a budget."""

    budget: float  # share of the body
    trained: int  # parameters
    milliseconds: float


def timed(method: PerFedMask, task: Task, theta: torch.Tensor, samples: Samples, times: int = 7) -> list[Timed]:
    """Least time of a training step of one batch on one thread, at budgets from all of the body down.

    Budgets take turns, so that other work on the device falls on all of them alike. A budget holds all masks of a
    smaller one, so that no step is told to take longer than those of larger budgets.
    """
    sizes = method.layers(task.layout)
    budgets = [round(share * sum(sizes)) for share in SHARES]
    rows = Problem(sizes, tuple(budgets)).fullest
    batch = replace(samples, index=samples.index[: method.batch])
    spent: list[list[float]] = [[] for _ in SHARES]
    with arithmetic():
        for i in range(times + 1):  # the first warms up
            for row, found in zip(rows, spent, strict=True):
                move = method.moving(task.layout, torch.from_numpy(row))
                began = time.perf_counter()
                batches = batch.epochs(Rng(i), 1, method.batch)
                sgd(task, theta, batches, lr=0.0, momentum=0.9, weight_decay=1e-4, move=move)
                found.append(time.perf_counter() - began)
    trained = rows @ np.array(sizes)
    least = accumulate((1000 * min(found[1:]) for found in spent), min)
    return [Timed(share, int(n), took) for share, n, took in zip(SHARES, trained, least, strict=True)]


def proposed(steps: Sequence[Timed], milliseconds: float) -> Timed | None:
    """The largest budget at which something is trained and a step takes no longer, or None."""
    return next((step for step in steps if step.trained and step.milliseconds <= milliseconds), None)
