"""The figures of all metrics that some runs have besides their headline: by round, and by client."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparsona.experiment.results import Run
from sparsona.reports import drawing
from sparsona.reports.run_rows import evaluated, other_metrics


def draw_metrics(runs: Sequence[Run], names: Sequence[str], path: Path) -> Path | None:
    """Draw the means over clients, one panel for each metric, if there are any."""
    metrics = other_metrics(runs)
    if not metrics:
        return None
    with drawing.figure(path, 8, 0.6 + 2.2 * len(metrics)) as figure:
        handles: dict[int, Any] = {}
        for ax, metric in zip(figure.subplots(len(metrics), 1, sharex=True, squeeze=False).flat, metrics, strict=True):
            for i, run in enumerate(runs):
                rows = [r for r in evaluated(run, run.point) if r[run.point].get(metric.key) is not None]
                if rows:
                    x, y = [r["round"] for r in rows], [metric.scaled(r[run.point][metric.key]) for r in rows]
                    handles[i] = ax.plot(x, y, **drawing.look(i, len(rows)))[0]
            ax.set_title(f"{metric.title_case}, mean over clients", parse_math=False)
            ax.set_ylabel(metric.label)
            drawing.metric_axis(ax, metric)
            drawing.round_axis(ax)
        ax.set_xlabel("round")
        drawing.legend(figure, [handles[i] for i in sorted(handles)], [names[i] for i in sorted(handles)])
    return path


def draw_client_metrics(runs: Sequence[Run], names: Sequence[str], path: Path) -> Path | None:
    """Draw every client's own value, one panel for each metric, if there are any; clients in the first run's order."""
    metrics = other_metrics(runs)
    if not metrics:
        return None
    with drawing.figure(path, 8, 0.6 + 2.2 * len(metrics)) as figure:
        handles: dict[int, Any] = {}
        for ax, metric in zip(figure.subplots(len(metrics), 1, squeeze=False).flat, metrics, strict=True):
            each = [run.client_scores(metric) for run in runs]
            known = {k for clients in each for k in clients}
            order = sorted(known, key=lambda k: (metric.rank(each[0].get(k)), k))
            places = {k: place for place, k in enumerate(order)}
            for i, clients in enumerate(each):
                x = [places[k] for k in clients]
                look = drawing.look(i, 1) | {"linestyle": "none", "markersize": 5, "alpha": 0.85}
                handles[i] = ax.plot(x, [metric.scaled(value) for value in clients.values()], **look)[0]
            ax.set_title(f"{metric.title_case} of every client", parse_math=False)
            ax.set_ylabel(metric.label)
            drawing.metric_axis(ax, metric)
            drawing.client_axis(ax, order, f"sorted by {metric.title} in {drawing.shortened(names[0])}")
            ax.xaxis.label.set_parse_math(False)
        drawing.legend(figure, [handles[i] for i in sorted(handles)], [names[i] for i in sorted(handles)])
    return path


__all__ = ["draw_client_metrics", "draw_metrics"]
