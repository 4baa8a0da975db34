"""The figure of waiting: who starts at once, and how long a round takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsona.papers.waiting import Estimate, Waiting, at_once
from sparsona.reports import drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def waiting_figure(simulation: Waiting, path: Path) -> Path:
    """Draw who starts at once and how long a round takes, by how many others each client reads."""
    from matplotlib.ticker import MaxNLocator

    neighbours = list(simulation.parallelism)
    waits = sorted({n for m, n in simulation.delay if n < m})  # others appear only on the line N = M
    with drawing.figure(path, 11, 4) as figure:
        left, right = figure.subplots(1, 2)
        low, high = neighbours[0], neighbours[-1]
        every = range(low, high + 1) if low < high else range(max(1, low - 1), high + 2)
        (line,) = left.plot(every, [100 * at_once(m) for m in every], color=drawing.GREY, linewidth=1.2)
        points = _estimates(left, simulation.parallelism, drawing.look(0, 1) | {"linestyle": "none"}, scale=100)
        left.legend([points, line], ["simulated", "expected: 1 / (M + 1)"])
        left.set_ylim(bottom=0)
        left.set_title("Clients that start at once, if clients wait")
        left.set_ylabel("clients (%)")
        handles, labels = [], []
        whole = {m: simulation.delay[m, m] for m in neighbours}
        handles.append(_estimates(right, whole, drawing.look(len(drawing.COLOURS) - 1, 1)))
        labels.append("all, N = M")
        for i, n in enumerate(reversed(waits)):
            handles.append(
                _estimates(right, {m: e for (m, w), e in simulation.delay.items() if w == n}, drawing.look(i, 1))
            )
            labels.append(f"at most N = {n}")
        right.set_ylim(bottom=0)
        right.set_title(f"Length of a round with {simulation.clients} clients")
        right.set_ylabel("round length (training times)")
        legend = figure.legend(handles, labels, loc="outside right upper")
        legend.set_title(f"wait for the {simulation.pick}")
        for ax in (left, right):
            ax.set_xlabel("neighbours per client (M)")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    return path


def _estimates(ax: Axes, at: Mapping[int, Estimate], look: Mapping[str, Any], scale: float = 1) -> Any:
    """Means, with bars of a standard error."""
    means, errors = zip(*((scale * e.mean, scale * (e.error or 0)) for e in at.values()), strict=True)
    return ax.errorbar(list(at), means, errors, **look).lines[0]
