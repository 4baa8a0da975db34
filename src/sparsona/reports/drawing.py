"""How our figures look: one style, the same bytes each time; matplotlib is imported where it is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsona.experiment.results import write
from sparsona.experiment.task import ACCURACY, Metric
from sparsona.reports.sheet import goal_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#767676"
COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")  # Okabe and Ito, without yellow
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_LINES = ("-", "--", ":", "-.")
_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.edgecolor": "#8c8c8c",
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": "#333333",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlepad": 10,
    "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.w_pad": 0.1,
    "grid.color": "#e4e4e4",
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.title_fontsize": 8.5,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
}


@contextmanager
def figure(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure in our style whatever the user's settings are, saved as the same bytes each time."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        canvas = Figure(figsize=(width, height), dpi=120, layout="constrained")
        FigureCanvasAgg(canvas)
        yield canvas
        png = BytesIO()
        canvas.savefig(png, format="png", metadata={"Software": None})
    write(path, png.getvalue())


def legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend right of the data, with names as they are: matplotlib would skip a leading _ and read $ as maths."""
    numbers = [str(i) for i in range(len(labels))]
    box = figure.legend(handles, numbers, loc="outside right upper", handlelength=3)  # so long that dashes show
    for text, label in zip(box.get_texts(), labels, strict=True):
        text.set_parse_math(False)
        text.set_text(shortened(label))


def shortened(name: str, most: int = 30) -> str:
    """A name cut in its middle, where names of variants differ least."""
    return name if len(name) <= most else f"{name[: most // 2]}…{name[-(most - most // 2 - 1) :]}"


def look(i: int, evaluations: int) -> dict[str, Any]:
    """Colour, marker and line of the i-th run: no two alike among the first 28."""
    return {
        "color": COLOURS[i % len(COLOURS)],
        "linestyle": _LINES[i // len(COLOURS) % len(_LINES)],
        "linewidth": 1.8,
        "marker": _MARKERS[i % len(_MARKERS)],
        "markersize": 4.5,
        "markevery": max(1, evaluations // 15),
    }


def percent_axis(ax: Axes) -> None:
    """The accuracies there are with some room, at least ten points, and no more than a margin past 0 and 100 %."""
    ax.margins(y=0.08)
    low, high = ax.get_ylim()
    room = max(0.0, 10 - (high - low)) / 2
    ax.set_ylim(max(low - room, -2), min(high + room, 102))


def metric_axis(ax: Axes, metric: Metric) -> None:
    """The values there are with some room; shares in percent."""
    if metric.share:
        percent_axis(ax)
    else:
        ax.margins(y=0.08)


def round_axis(ax: Axes) -> None:
    """Ticks at whole rounds."""
    whole_numbers(ax.xaxis)


def whole_numbers(axis: Axis) -> None:
    """Ticks at whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def draw_goal(ax: Axes, goal: float | None, handles: list[Any], labels: list[str], metric: Metric = ACCURACY) -> None:
    """A line at a target if there is one, added to what the legend shows."""
    if goal is not None:
        handles.append(ax.axhline(metric.scale * goal, color=GREY, linestyle=(0, (4, 3)), linewidth=1, zorder=1))
        labels.append(f"target {goal_text(goal, metric)}")


def bars(ax: Axes, values: Sequence[float], colours: Sequence[str]) -> None:
    """One bar per value at 0, 1, ...; many of them as one filled shape per colour, which draws fast."""
    if len(values) <= 120:
        ax.bar(range(len(values)), values, width=0.8, color=list(colours))
        return
    edges = [i - 0.5 for i in range(len(values) + 1)]
    for colour in dict.fromkeys(colours):
        here = [v if c == colour else 0.0 for v, c in zip(values, colours, strict=True)]
        ax.stairs(here, edges, fill=True, color=colour, linewidth=0)


def client_axis(ax: Axes, order: Sequence[int], order_name: str) -> None:
    """Clients along x; numbered if there is room for the numbers."""
    client_room(ax, len(order))
    named = len(order) <= 30
    ax.set_xticks(range(len(order)) if named else [], [str(k) for k in order] if named else [])
    noun = "client" if named else f"{len(order)} clients"
    ax.set_xlabel(f"{noun}, {order_name}" if len(order) > 1 else "client")


def client_room(ax: Axes, clients: int) -> None:
    """Limits along x for a bar per client."""
    room = max(0.0, (6 - clients) / 2)  # a single bar does not fill the picture
    ax.set_xlim(-0.7 - room, clients - 0.3 + room)


__all__ = [
    "BLUE",
    "COLOURS",
    "GREY",
    "ORANGE",
    "bars",
    "client_axis",
    "client_room",
    "draw_goal",
    "figure",
    "legend",
    "look",
    "metric_axis",
    "percent_axis",
    "round_axis",
    "shortened",
    "whole_numbers",
]
