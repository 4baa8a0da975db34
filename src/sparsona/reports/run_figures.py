"""The figures of one run: its headline by round and by client, what its method notes, and who took part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparsona.experiment.results import Run
from sparsona.reports import drawing, participation
from sparsona.reports.metric_figures import draw_client_metrics, draw_metrics
from sparsona.reports.note_figures import draw_histograms, draw_notes, note_names
from sparsona.reports.run_rows import POINTS, evaluated
from sparsona.reports.sheet import Row


def run_figures(run: Run, folder: Path) -> list[Path]:
    """Draw all figures that a run has the records for into ``folder``."""
    points = {p: rows for p in run.recipe.evaluate.points if (rows := evaluated(run, p))}
    clients = run.client_scores()
    files = []
    if points:
        folder.mkdir(exist_ok=True)
        files.append(_draw_headline(run, points, folder / f"{run.headline.key}.png"))
    if run.point in points and clients:
        files.append(_draw_clients(run, clients, points[run.point][-1][run.point], folder / "clients.png"))
    if files and (file := draw_metrics([run], [run.recipe.name], folder / "metrics.png")):
        files.append(file)
    if files and (file := draw_client_metrics([run], [run.recipe.name], folder / "client-metrics.png")):
        files.append(file)
    if files and (notes := note_names([run])):
        files.append(draw_notes([run], [run.recipe.name], notes, folder / "notes.png"))
    if files and (file := draw_histograms(run, folder / "histograms.png")):
        files.append(file)
    if files and (file := participation.picture(run, folder / "participation.png")):
        files.append(file)
    return files


def _draw_headline(run: Run, points: Mapping[Any, list[Row]], path: Path) -> Path:
    main = run.headline
    with drawing.figure(path, 8, 4) as figure:
        ax = figure.add_subplot()
        handles: list[Any] = []
        labels = []
        for i, (point, rows) in enumerate(points.items()):
            look = drawing.look(i, len(rows))
            x = [r["round"] for r in rows]
            mean = [main.scaled(r[point][main.key]) for r in rows]
            low = [main.scaled(r[point]["bottom_decile"]) for r in rows]
            handles += ax.plot(x, mean, **look)
            if len(rows) > 1:
                handles.append(ax.fill_between(x, low, mean, color=look["color"], alpha=0.12, linewidth=0))
                ax.plot(x, low, color=look["color"], alpha=0.6, linewidth=0.8)
            else:
                handles.append(ax.vlines(x, low, mean, color=look["color"], alpha=0.3, linewidth=6))
            when = f"\n{POINTS[point]}" if len(points) > 1 else ""
            labels += [f"mean over clients{when}", f"bottom decile{when}"]
        drawing.draw_goal(ax, run.recipe.evaluate.target, handles, labels, main)
        ax.set_title(run.recipe.name, parse_math=False)
        ax.set_xlabel("round")
        ax.set_ylabel(main.label)
        drawing.round_axis(ax)
        drawing.metric_axis(ax, main)
        legend = figure.legend(handles, labels, loc="outside right upper", labelspacing=0.9)
        if len(points) == 1:
            legend.set_title(POINTS[next(iter(points))])
    return path


def _draw_clients(run: Run, clients: Mapping[int, float], score: Mapping[str, float], path: Path) -> Path:
    main = run.headline
    order = sorted(clients, key=lambda k: (main.rank(clients[k]), k))
    values = [main.scaled(clients[k]) for k in order]
    mean, low = score[main.key], score["bottom_decile"]
    with drawing.figure(path, 8, 4) as figure:
        ax = figure.add_subplot()
        drawing.bars(ax, values, [drawing.BLUE] * len(values))
        handles = [
            ax.axhline(main.scaled(mean), color="#000000", linewidth=1.2),
            ax.axhline(main.scaled(low), color=drawing.ORANGE, linewidth=1.2, linestyle="--"),
        ]
        drawing.client_axis(ax, order, f"sorted by {main.title}")
        if main.share:
            ax.set_ylim(0, 102)
        ax.set_title(f"{run.recipe.name}: {main.title} of every client", parse_math=False)
        ax.set_ylabel(main.label)
        drawing.legend(figure, handles, [f"mean {main.text(mean)}", f"bottom decile {main.text(low)}"])
    return path


__all__ = ["run_figures"]
