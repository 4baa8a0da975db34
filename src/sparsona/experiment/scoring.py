"""From ``[task]`` to what computes it: the loss and the metrics, checked against the kind of targets that data have.

Metrics are scikit-learn's. Plug-ins are imported here, so only where models are trained or tested.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from numbers import Real
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sparsona.core.imports import imported
from sparsona.core.objective import IGNORED, LossFunction, LossName, Objective, Target, predicted
from sparsona.core.text import one_line
from sparsona.engines.measure import Measure
from sparsona.experiment.checking import RecipeError, shown
from sparsona.experiment.task import LOSSES, Metric, TaskConfig

_WORDS = {"class": "classes", "labels": "labels", "number": "numbers", "tokens": "tokens"}
_FITS: dict[str, tuple[Target, ...]] = {  # what each loss and metric is for
    "cross_entropy": ("class", "tokens"),
    "bce": ("class", "labels"),
    "mse": ("number",),
    "huber": ("number",),
    "accuracy": ("class", "labels", "tokens"),
    "balanced_accuracy": ("class",),
    "macro_f1": ("class", "labels"),
    "auc": ("class", "labels"),
    "mae": ("number",),
    "rmse": ("number",),
    "r2": ("number",),
    "perplexity": ("class", "tokens"),
}


def objective_of(task: TaskConfig, target: Target = "class") -> Objective:
    """What a recipe's models are trained by; RecipeError if that does not fit the targets."""
    if task.loss not in LOSSES:
        loss = cast(LossFunction, _imported("task.loss", task.loss))
        return Objective(target, loss)
    _check("loss", task.loss, target, [name for name in LOSSES if target in _FITS[name]])
    return Objective(target, cast(LossName, task.loss), task.label_smoothing)


def measures_of(task: TaskConfig, target: Target = "class") -> dict[str, Measure]:
    """What a recipe's models are scored by, beside accuracy and loss; RecipeError if that does not fit the targets."""
    for metric in dict.fromkeys((*task.measured, task.main)):
        if not metric.source:
            _check("metrics", metric.key, target, [m for m in _FITS if m not in LOSSES and target in _FITS[m]])
    return {metric.key: _measure(metric, target) for metric in task.measured}


def _check(field: str, name: str, target: Target, fitting: list[str]) -> None:
    if target not in _FITS[name]:
        wanted = " or ".join(_WORDS[each] for each in _FITS[name])
        use = ", ".join(shown(each) for each in fitting)
        numbers = target == "class" and "number" in _FITS[name]
        own = ', or data.target = "number" if your whole numbers are amounts' if numbers else ""
        raise RecipeError(
            f"task.{field}: {shown(name)} is not allowed; it needs targets that are {wanted}, and the data has "
            f"{_WORDS[target]}; use {use}{own}"
        )


def _imported(field: str, name: str) -> Callable[..., Any]:
    try:
        return imported(field, name, {})
    except ValueError as error:
        raise RecipeError(str(error)) from error


def _measure(metric: Metric, target: Target) -> Measure:
    if metric.source:
        own = _imported("task.metrics", metric.source)
        return Measure(_outputs, lambda y, outputs: _own_value(metric.source, own, y.numpy(), outputs.numpy()))
    keep = {"auc": _outputs, "perplexity": _likelihood}.get(metric.key, _predictions)
    if target == "number":
        keep = _numbers
    elif target == "labels" and metric.key != "auc":
        keep = _labels
    return Measure(keep, _VALUES[metric.key])


# -- what is kept of a batch -----------------------------------------------------------------------------------------


def _outputs(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return y, outputs


def _numbers(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return y, outputs.reshape(y.shape)


def _predictions(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return y, predicted(outputs, y)


def _labels(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return y > 0.5, outputs > 0


def _likelihood(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    if outputs.dim() == 2 and outputs.shape[1] == 1:
        total = F.binary_cross_entropy_with_logits(outputs[:, 0], y.to(outputs.dtype), reduction="sum")
    else:
        total = F.cross_entropy(outputs.flatten(0, -2), y.flatten(), reduction="sum")
    return total.double()[None], (y != IGNORED).sum()[None]


# -- what the figure is ----------------------------------------------------------------------------------------------


def _own_value(name: str, function: Callable[..., Any], y: np.ndarray, outputs: np.ndarray) -> float | None:
    try:
        value = function(y, outputs)
    except Exception as error:  # whatever a stranger's function raises
        what = f"{type(error).__name__}: {one_line(error)}"
        raise RecipeError(f"task.metrics: {shown(name)} failed: {what}") from error
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0:
        value = value.item()
    if value is None or isinstance(value, (Real, np.bool_)):
        return None if value is None else float(value)
    form = f"an array of shape {list(value.shape)}" if hasattr(value, "shape") else f"{type(value).__name__}"
    raise RecipeError(f"task.metrics: {shown(name)} returned {form}; expected a number, or None where it is undefined")


def _balanced_accuracy(y: Tensor, guess: Tensor) -> float | None:
    from sklearn.metrics import balanced_accuracy_score

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a guess is no class of this client's
        return float(balanced_accuracy_score(y.numpy(), guess.numpy()))


def _macro_f1(y: Tensor, guess: Tensor) -> float | None:
    from sklearn.metrics import f1_score

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(f1_score(y.numpy(), guess.numpy(), average="macro", zero_division=np.nan))


def _auc(y: Tensor, outputs: Tensor) -> float | None:
    """The area under the ROC curve, of several classes or labels the mean of one against the rest.

    Classes of which a client has no samples, or nothing else, do not count.
    """
    from sklearn.metrics import roc_auc_score

    if y.dim() == 1:
        if outputs.shape[1] <= 2:
            scores = outputs if outputs.shape[1] == 1 else outputs[:, 1:] - outputs[:, :1]
            truth = y[:, None] == 1
        else:
            scores, truth = outputs.double().softmax(1), F.one_hot(y, outputs.shape[1]) > 0
    else:
        scores, truth = outputs, y > 0.5
    both = truth.any(0) & ~truth.all(0)
    areas = [float(roc_auc_score(truth[:, c].numpy(), scores[:, c].numpy())) for c in both.nonzero()[:, 0].tolist()]
    return sum(areas) / len(areas) if areas else None


def _mae(y: Tensor, outputs: Tensor) -> float | None:
    from sklearn.metrics import mean_absolute_error

    return float(mean_absolute_error(y.double().numpy(), outputs.double().numpy()))


def _rmse(y: Tensor, outputs: Tensor) -> float | None:
    from sklearn.metrics import root_mean_squared_error

    return float(root_mean_squared_error(y.double().numpy(), outputs.double().numpy()))


def _r2(y: Tensor, outputs: Tensor) -> float | None:
    from sklearn.metrics import r2_score

    if len(y) < 2:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(r2_score(y.double().numpy(), outputs.double().numpy(), force_finite=False))
    return value if math.isfinite(value) else None  # not of numbers that are all the same


def _perplexity(totals: Tensor, counts: Tensor) -> float | None:
    tokens = int(counts.sum())
    return float(torch.exp(totals.sum() / tokens)) if tokens else None


_VALUES: dict[str, Callable[..., float | None]] = {
    "balanced_accuracy": _balanced_accuracy,
    "macro_f1": _macro_f1,
    "auc": _auc,
    "mae": _mae,
    "rmse": _rmse,
    "r2": _r2,
    "perplexity": _perplexity,
}


__all__ = ["measures_of", "objective_of"]
