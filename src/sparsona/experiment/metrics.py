"""From scores of single clients to the figures that people compare."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsona.engines.jobs import Score
from sparsona.experiment.task import ACCURACY, Metric, TaskConfig

_DEFAULT = TaskConfig()


def metrics(scores: Mapping[int, Score], task: TaskConfig = _DEFAULT) -> dict[str, Any]:
    """Mean of each metric over clients; bottom decile, worst client and spread of the headline; mean loss.

    The bottom decile is the headline of the floor(n/10)-th worst of n clients, at least the first. A client for which
    a metric is not defined is left out of its mean, and counted in ``undefined``.
    """
    scores = dict(sorted(scores.items()))  # sums of floats depend on their order, which must not be that of arrival
    tested = [s for s in scores.values() if s.samples]
    if not tested:
        return {}
    samples = sum(s.samples for s in tested)
    row: dict[str, Any] = {}
    if all(s.correct is not None for s in tested):
        row["accuracy"] = _mean(_ranked(tested, ACCURACY))
        row["accuracy_by_sample"] = sum(s.correct or 0 for s in tested) / samples
    row |= {metric.key: _mean(_ranked(tested, metric)) for metric in task.measured}
    each, mean = _ranked(tested, task.main), row.get(task.main.key)
    row |= {
        "bottom_decile": each[max(len(each) // 10, 1) - 1] if each else None,
        "worst": each[0] if each else None,
        "spread": None if mean is None else (sum((a - mean) ** 2 for a in each) / len(each)) ** 0.5,
        "loss": sum(s.loss for s in tested) / samples,
        "clients": len(tested),
    }
    undefined = {m.key: sum(metric_value(s, m) is None for s in tested) for m in task.measured}
    return row | ({"undefined": undefined} if any(undefined.values()) else {})


def metric_value(score: Score, metric: Metric) -> float | None:
    """One metric of a client; None if it is not defined for its samples."""
    if metric == ACCURACY:
        return None if score.correct is None or not score.samples else score.correct / score.samples
    return score.metrics.get(metric.key)


def _ranked(scores: list[Score], metric: Metric) -> list[float]:
    """The values of the clients that have one, the worst first."""
    values = [value for s in scores if (value := metric_value(s, metric)) is not None]
    return sorted(values, key=metric.rank)


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
