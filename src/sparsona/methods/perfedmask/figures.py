"""The picture of PerFedMask's layer masks: which device trains which layers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sparsona.methods.perfedmask.problem import Solution
from sparsona.reports.drawing import BLUE, GREY, ORANGE, figure, round_axis


def mask_picture(solution: Solution, names: Sequence[str], path: Path) -> None:
    """Write a PNG of layers by devices, with budgets and what is trained of them below."""
    from matplotlib.colors import ListedColormap

    devices, layers = solution.masks.shape
    body = solution.problem.body
    width, height = min(16.0, max(6.5, 3 + 0.08 * devices)), min(14.0, 3.2 + 0.24 * layers)
    with figure(path, width, height) as picture:
        top, below = picture.subplots(2, 1, sharex=True, height_ratios=[max(1.5, 0.24 * layers), 1.2])
        colours = ListedColormap(["#eeeeee", BLUE])
        top.imshow(solution.masks.T, aspect="auto", interpolation="nearest", cmap=colours, vmin=0, vmax=1)
        labels = [f"{name}  {size:,}" for name, size in zip(names, solution.problem.sizes, strict=True)]
        top.set_yticks(np.arange(layers), labels, fontsize=7)
        top.grid(visible=False)
        top.hlines(np.arange(0.5, layers - 1), -0.5, devices - 0.5, color="white", linewidth=1)
        if solution.gap is None:
            gap = "some device trains nothing although it could"
        else:
            gap = "optimal" if solution.proven else f"optimality gap at most {100 * solution.gap:.1f} %"
        top.set_title(
            f"Layers trained (blue) by {devices} devices\n"
            f"bias {solution.bias / body:.3f}, slack {sum(solution.slack) / body:.3f} of the body: {gap}"
        )
        at = np.arange(devices)
        below.bar(at, np.array(solution.trained) / body, width=1.0, color=BLUE)
        below.step(at, np.array(solution.problem.budgets) / body, where="mid", color=ORANGE, linewidth=1.2)
        below.set(xlabel="device", ylabel="fraction of the body", ylim=(0, 1.05), xlim=(-0.5, devices - 0.5))
        round_axis(below)
        below.text(0.01, 0.9, "trained (bars), budget (line)", transform=below.transAxes, fontsize=7, color=GREY)
