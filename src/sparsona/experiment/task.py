"""What models are trained for: the section ``[task]`` of a recipe, and what is known of each metric by its name."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, get_args

from typing_extensions import Doc

from sparsona.core.fields import Fraction
from sparsona.core.objective import LossName
from sparsona.experiment.checking import alternatives, shown

LOSSES = get_args(LossName)
_OWN = re.compile(r"-?[\w.]+:[\w.]+")
_KEYS = {"correct", "samples", "loss", "clients", "worst", "spread", "bottom_decile", "accuracy_by_sample", "undefined"}


@dataclass(frozen=True)
class Metric:
    """A figure of merit: what it is called in records and in figures, and which way is better."""

    key: str
    title: str
    share: bool = True  # from 0 to 1, shown in percent
    lower: bool = False  # whether lower is better
    source: str = ""  # package.module:function of a metric that is not ours

    @property
    def label(self) -> str:
        """The metric with its unit, for axes."""
        return f"{self.title} (%)" if self.share else self.title

    @property
    def title_case(self) -> str:
        """The title as the first word of a heading."""
        return self.title[:1].upper() + self.title[1:]

    @property
    def heading(self) -> str:
        """The metric with its unit, for columns."""
        return f"{self.title}{self.unit}"

    @property
    def unit(self) -> str:
        """What follows a value or a title: a percent sign, or nothing."""
        return " %" if self.share else ""

    @property
    def scale(self) -> float:
        """What a value is multiplied by before it is shown."""
        return 100.0 if self.share else 1.0

    def scaled(self, value: float | None) -> float:
        """A value as it is drawn; NaN, which is not drawn, where there is none."""
        return math.nan if value is None else self.scale * value

    def cell(self, value: float) -> str:
        """A value as it is shown in a table, whose heading has the unit."""
        return f"{100 * value:.2f}" if self.share else f"{value:.4g}"

    def text(self, value: float | None, digits: int = 1) -> str:
        """A value with its unit."""
        if value is None:
            return "undefined"
        return f"{100 * value:.{digits}f} %" if self.share else f"{value:.4g}"

    def rank(self, value: float | None) -> float:
        """The higher, the better, whichever way the metric goes; what is undefined is worst."""
        if value is None or math.isnan(value):
            return -math.inf
        return -value if self.lower else value

    def reached(self, value: float | None, target: float) -> bool:
        """Whether a value is at least as good as a target."""
        return self.rank(value) >= self.rank(target)

    def check_target(self, field: str, target: float | None) -> None:
        """Raise ValueError if a value of this metric cannot be so."""
        if target is not None and not (0 < target <= 1 if self.share else math.isfinite(target)):
            bounds = "a float in (0, 1]" if self.share else "a finite float"
            raise ValueError(f"{field}: {target:g} is not allowed; expected {bounds}")


ACCURACY = Metric("accuracy", "accuracy")
METRICS = {
    metric.key: metric
    for metric in (
        ACCURACY,
        Metric("balanced_accuracy", "balanced accuracy"),
        Metric("macro_f1", "macro F1"),
        Metric("auc", "AUC"),
        Metric("mae", "MAE", share=False, lower=True),
        Metric("rmse", "RMSE", share=False, lower=True),
        Metric("r2", "R2", share=False),
        Metric("perplexity", "perplexity", share=False, lower=True),
    )
}


def metric_of(name: str) -> Metric:
    """A metric by its name; one that is not ours is never imported here."""
    if name in METRICS:
        return METRICS[name]
    key = name.rpartition(":")[2].rpartition(".")[2]
    return Metric(key, key.replace("_", " "), share=False, lower=name.startswith("-"), source=name.removeprefix("-"))


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The training loss and the metrics."""

    loss: Annotated[
        str, Doc('loss: cross_entropy, bce (labels), mse, huber (numbers), or "package.module:function"')
    ] = "cross_entropy"
    label_smoothing: Annotated[Fraction, Doc("label smoothing; only for cross_entropy and bce")] = 0.0
    metrics: Annotated[
        tuple[str, ...],
        Doc('metrics: accuracy, auc, rmse, ... or "package.module:function"; start with "-" if lower is better'),
    ] = ()
    headline: Annotated[
        str, Doc("metric that selects the best round; default: the first of metrics, else accuracy or RMSE")
    ] = ""

    def __post_init__(self) -> None:
        if self.loss not in LOSSES and (not _OWN.fullmatch(self.loss) or self.loss[0] == "-"):
            raise ValueError(f"loss: {shown(self.loss)} not found{alternatives(self.loss, LOSSES, 'function')}")
        if self.label_smoothing and self.loss not in ("cross_entropy", "bce"):
            raise ValueError(
                f"label_smoothing: {self.label_smoothing} is not allowed; expected 0 with loss = {shown(self.loss)}"
            )
        for name in (*self.metrics, *([self.headline] if self.headline else [])):
            if name not in METRICS and not _OWN.fullmatch(name):
                raise ValueError(f"metrics: {shown(name)} not found{alternatives(name, METRICS, 'function')}")
        keys = [metric.key for metric in map(metric_of, dict.fromkeys((*self.metrics, self.headline or "accuracy")))]
        for name, key in zip(self.metrics, keys, strict=False):
            if keys.count(key) > 1 or (name not in METRICS and key in (*METRICS, *_KEYS)):
                raise ValueError(f"metrics: {shown(name)} is not allowed; the name {key} is taken, rename the function")
        if len(set(self.metrics)) < len(self.metrics):
            raise ValueError(f"metrics: {shown(list(self.metrics))} is not allowed; expected each metric at most once")

    @cached_property
    def main(self) -> Metric:
        """The headline: the metric that decides what is best."""
        if self.headline or self.metrics:
            return metric_of(self.headline or self.metrics[0])
        return METRICS["rmse"] if self.loss in ("mse", "huber") else ACCURACY

    @cached_property
    def measured(self) -> tuple[Metric, ...]:
        """The metrics that scores hold beside accuracy and loss, which they always have."""
        chosen = dict.fromkeys((*map(metric_of, self.metrics), self.main))
        return tuple(metric for metric in chosen if metric != ACCURACY)


__all__ = ["ACCURACY", "LOSSES", "METRICS", "Metric", "TaskConfig", "metric_of"]
