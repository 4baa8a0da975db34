"""The figures of a sweep: the headline by round, by each numeric value that is swept, and by bytes sent."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from sparsona.experiment.results import Run
from sparsona.experiment.sweep import setting_title
from sparsona.reports import drawing
from sparsona.reports.run_rows import evaluated
from sparsona.reports.sweep_groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LINES = 8  # in one panel: the colours there are, and grey
_PANELS = 9


@dataclass(frozen=True)
class _Series:
    """What is drawn as one line."""

    places: Mapping[str, str]  # what sets it apart from the other lines, by label
    groups: tuple[Group, ...]

    @property
    def rank(self) -> float:
        return max(g.main.rank(g.row[f"{g.main.key}_mean"]) for g in self.groups)


@dataclass(frozen=True)
class _Panel:
    title: str
    lines: tuple[tuple[str, _Series], ...]  # with the text of the legend


def draw_sweep(groups: Sequence[Group], numeric: Sequence[str], labels: Mapping[str, str], out: Path) -> list[Path]:
    """Draw the figures of a sweep into a folder; ``numeric`` are the keys with several numbers."""
    goals = {g.row["target"] for g in groups}
    goal = goals.pop() if len(goals) == 1 else None
    figures = [_draw_rounds(groups, goal, out / "sweep-rounds.png")]
    for key in numeric:
        name = re.sub(r"[^\w.-]", "-", labels[key])
        figures.append(_draw_axis(groups, key, labels[key], goal, out / f"sweep-{groups[0].main.key}-{name}.png"))
    if not _close(min(map(_sent, groups)), max(map(_sent, groups)), 1.02):  # else all would stand at one place
        along = numeric[0] if numeric else None
        figures.append(_draw_bytes(groups, along, labels, goal, out / "sweep-bytes.png"))
    return figures


def _along(groups: Sequence[Group], key: str | None, label: str | None) -> list[_Series]:
    """One series for all groups that differ in one key only, in the order of its values."""
    series: dict[tuple[tuple[str, str], ...], list[Group]] = {}
    for g in groups:
        series.setdefault(tuple((k, v) for k, v in g.places.items() if k != label), []).append(g)
    return [
        _Series(dict(rest), tuple(sorted(gs, key=lambda g: g.values.get(key or "", 0)))) for rest, gs in series.items()
    ]


def _panels(series: Sequence[_Series]) -> list[_Panel]:
    """Lines over as few panels as let each be read; if there are too many even so, the best of them in one."""
    names = list(dict.fromkeys(label for s in series for label in s.places))
    for split in range(max(1, len(names))):
        choices = []
        for apart in combinations(names, split):
            panels: dict[str, list[tuple[str, _Series]]] = {}
            for s in series:
                title = setting_title({k: v for k, v in s.places.items() if k in apart})
                panels.setdefault(title, []).append(
                    (setting_title({k: v for k, v in s.places.items() if k not in apart}), s)
                )
            if len(panels) <= _PANELS and max(map(len, panels.values())) <= _LINES:
                choices.append([_Panel(title, tuple(lines)) for title, lines in panels.items()])
        if choices:
            return min(choices, key=len)
    best = sorted(series, key=lambda s: -s.rank)[:_LINES]
    title = f"best {_LINES} of {len(series)}"
    return [_Panel(title, tuple((setting_title(s.places), s) for s in series if s in best))]


def _draw(
    path: Path,
    title: str,
    note: str,
    label: str,
    panels: Sequence[_Panel],
    goal: float | None,
    plot: Callable[[Axes, _Series, dict[str, Any]], Any],
    scale: Callable[[Axes], None],
) -> Path:
    """A figure of one or more panels with the same axes and one legend."""
    main = panels[0].lines[0][1].groups[0].main
    wide = 1 if len(panels) == 1 else 2 if len(panels) in (2, 4) else 3
    high = -(-len(panels) // wide)
    order = list(dict.fromkeys(text for panel in panels for text, _ in panel.lines))
    with drawing.figure(path, *((8, 4) if len(panels) == 1 else (11, 0.8 + 2.8 * high))) as figure:
        grid = list(figure.subplots(high, wide, sharex=True, sharey=True, squeeze=False).flat)
        handles: dict[str, Any] = {}
        for ax, panel in zip(grid, panels, strict=False):
            for text, line in panel.lines:
                i = order.index(text)
                look = drawing.look(i, 1) | ({"color": drawing.GREY, "linestyle": "-"} if i == _LINES - 1 else {})
                handle = plot(ax, line, look)
                handles.setdefault(text, handle)
            goals: list[Any] = []
            names: list[str] = []
            drawing.draw_goal(ax, goal, goals, names, main)
            heading = (
                drawing.shortened(panel.title, 34)
                if len(panels) > 1
                else ", ".join(filter(None, [title, panel.title])) + note
            )
            ax.set_title(heading, parse_math=False)
            ax.set_xlabel(label)
            ax.tick_params(labelleft=True, labelbottom=True)
        for ax in grid[::wide]:
            ax.set_ylabel(main.label)
        for ax in grid[len(panels) :]:
            ax.set_visible(False)
        if len(panels) > 1:
            figure.suptitle(title + note, x=0.01, ha="left", size=11, weight="bold")
        scale(grid[0])
        drawing.metric_axis(grid[0], main)
        shown = {text: handle for text, handle in handles.items() if text} | dict(zip(names, goals, strict=True))
        if shown:
            drawing.legend(figure, list(shown.values()), list(shown))
    return path


def _over_seeds(groups: Sequence[Group], spread: str) -> str:
    several = any(len(g.runs) > 1 for g in groups)
    return f"; {spread}: ± std over seeds" if several else ""


def _draw_rounds(groups: Sequence[Group], goal: float | None, path: Path) -> Path:
    def plot(ax: Axes, series: _Series, look: dict[str, Any]) -> Any:
        x, mean, std = _curve(series.groups[0].runs)
        look["markevery"] = max(1, len(x) // 15)
        if std and len(x) > 1:
            low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
            ax.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
        elif std:
            ax.errorbar(x, mean, std, color=look["color"], capsize=3, linewidth=1)
        return ax.plot(x, mean, **look)[0]

    note = _over_seeds(groups, "band")
    panels = _panels([_Series(g.places, (g,)) for g in groups])
    return _draw(path, f"{groups[0].main.title_case} by round", note, "round", panels, goal, plot, drawing.round_axis)


def _curve(runs: Sequence[Run]) -> tuple[list[int], list[float], list[float]]:
    """Rounds at which all runs were evaluated, and mean and deviation of their headline there, shares in percent."""
    main = runs[0].headline
    each = [{r["round"]: main.scaled(r[run.point][main.key]) for r in evaluated(run, run.point)} for run in runs]
    x = [t for t in each[0] if all(t in other for other in each)]
    at = [[curve[t] for curve in each] for t in x]
    return x, [fmean(values) for values in at], [stdev(values) for values in at] if len(runs) > 1 else []


def _points(groups: Sequence[Group]) -> tuple[list[float], list[float]]:
    """Mean and deviation of the headline of each group, shares in percent; no deviation is drawn as none."""
    main = groups[0].main
    mean = [main.scaled(g.row[f"{main.key}_mean"]) for g in groups]
    return mean, [main.scale * (g.row[f"{main.key}_std"] or 0) for g in groups]


def _draw_axis(groups: Sequence[Group], key: str, label: str, goal: float | None, path: Path) -> Path:
    values = sorted({g.values[key] for g in groups if key in g.values})
    panels = _panels(_along(groups, key, label))
    where = _Beside.of(values)
    steps = _steps(panels, lambda g: g.values.get(key))

    def plot(ax: Axes, series: _Series, look: dict[str, Any]) -> Any:
        mean, std = _points(series.groups)
        if key not in series.groups[0].values:  # a variant without this key: a level to compare with
            ax.axhspan(mean[0] - std[0], mean[0] + std[0], color=look["color"], alpha=0.1, linewidth=0)
            return ax.axhline(mean[0], color=look["color"], linestyle="--", linewidth=1.4)
        return _bars(ax, [where(g.values[key], steps[id(g)]) for g in series.groups], mean, std, look)

    def scale(ax: Axes) -> None:
        if where.log:
            _log(ax)
        at = [math.log(v) if where.log else v for v in values]
        if min(b - a for a, b in pairwise(at)) >= (at[-1] - at[0]) / 12:  # room for its numbers
            ax.set_xticks(values, [f"{v:g}" for v in values])

    note = _over_seeds(groups, "bars")
    name = f"{key}, log scale" if where.log else key
    return _draw(path, f"{groups[0].main.title_case} by {label}", note, name, panels, goal, plot, scale)


def _draw_bytes(
    groups: Sequence[Group], key: str | None, labels: Mapping[str, str], goal: float | None, path: Path
) -> Path:
    from matplotlib.patheffects import withStroke

    panels = _panels(_along(groups, key, None if key is None else labels[key]))
    where = _Beside.of([_sent(g) for g in groups])
    steps = _steps(panels, _sent)
    lines = [series.groups for panel in panels for _, series in panel.lines]
    # where the key changes how much is sent, a line leads from value to value
    along = key if any(not _close(min(map(_sent, gs)), max(map(_sent, gs)), 1.1) for gs in lines) else None
    written = along if max(sum(len(s.groups) for _, s in panel.lines) for panel in panels) <= 12 else None

    def plot(ax: Axes, series: _Series, look: dict[str, Any]) -> Any:
        mean, std = _points(series.groups)
        x = [where(_sent(g), steps[id(g)]) for g in series.groups]
        if not along or len(x) == 1:
            look["linestyle"] = "none"
        elif written:
            for g, across, up in zip(series.groups, x, mean, strict=True):
                value = f"{g.values[written]:g}"
                text = ax.annotate(value, (across, up), (4, -9), textcoords="offset points", size=7.5)
                text.set(color=look["color"], path_effects=[withStroke(linewidth=2, foreground="white")])
        return _bars(ax, x, mean, std, look)

    def scale(ax: Axes) -> None:
        if where.log:
            _log(ax)
        else:
            ax.set_xlim(0, 1.06 * where.high)

    numbers = f"; numbers: {labels[written]}" if written else ""
    note = f"{numbers}{_over_seeds(groups, 'bars')}"
    name = f"total traffic (MB){', log scale' if where.log else ''}"
    return _draw(path, f"{groups[0].main.title_case} by traffic", note, name, panels, goal, plot, scale)


def _sent(g: Group) -> float:
    """MB on the wire, both directions."""
    return float(g.row["wire_bytes_mean"]) / 1e6


def _close(a: float, b: float, factor: float) -> bool:
    return a == b or max(a, b) <= factor * min(a, b)


def _steps(panels: Iterable[_Panel], at: Callable[[Group], float | None]) -> dict[int, float]:
    """By identity, how far a group is drawn beside those of its panel at about the same place, to hide none of them."""
    steps: dict[int, float] = {}
    for panel in panels:
        left = [(g, x) for _, series in panel.lines for g in series.groups if (x := at(g)) is not None]
        while left:
            near = [g for g, x in left if _close(x, left[0][1], 1.02)]
            steps |= {id(g): (i - (len(near) - 1) / 2) * min(1, 12 / len(near)) for i, g in enumerate(near)}
            left = [(g, x) for g, x in left if id(g) not in steps]
    return steps


@dataclass(frozen=True)
class _Beside:
    """Where a value is drawn on an axis that is logarithmic for a wide range, some small steps to the side."""

    low: float
    high: float
    log: bool

    @staticmethod
    def of(values: Sequence[float]) -> _Beside:
        low, high = min(values), max(values)
        return _Beside(low, high, low > 0 and high > 10 * low)

    def __call__(self, value: float, step: float) -> float:
        if self.log:
            return value * (self.high / self.low) ** (0.008 * step)
        return value + 0.008 * step * ((self.high - self.low) or abs(self.high) or 1)


def _bars(ax: Axes, x: Sequence[float], mean: Sequence[float], std: Sequence[float], look: dict[str, Any]) -> Any:
    return ax.errorbar(x, mean, std if any(std) else None, **look | {"capsize": 2.5, "elinewidth": 1})


def _log(ax: Axes) -> None:
    from matplotlib.ticker import LogLocator

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    if high < 1000 * low:
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.xaxis.set_minor_formatter("")


__all__ = ["draw_sweep"]
