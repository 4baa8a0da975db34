"""The training loss, and which predictions are correct."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsona.core.text import one_line

Target = Literal["class", "labels", "number", "tokens"]
LossName = Literal["cross_entropy", "bce", "mse", "huber"]
LossFunction = Callable[[Tensor, Tensor], Tensor]  # from outputs and targets of n samples to the loss of each [n]
Blend = Literal["softmax", "sigmoid", "mean"]
Reduction = Literal["mean", "sum", "none"]
IGNORED = -100  # the target of a token that is not predicted


@dataclass(frozen=True)
class Objective:
    """A loss for one kind of target: classes [n], labels [n, c], numbers [n] or [n, d], or tokens [n, length].

    By default it is cross entropy, and binary cross entropy for a model with a single output.
    """

    target: Target = "class"
    loss: LossName | LossFunction = "cross_entropy"
    label_smoothing: float = 0.0
    packed: int = 0  # targets that carry weights in a last column: how many dimensions they have without them

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss that a step of training follows: the mean over samples, or over all tokens."""
        if self.packed:
            y, weights = self._unpacked(y)
            return (self.each(outputs, y) * weights).mean()
        if self.target != "tokens":
            return self._loss(outputs, y, "mean")
        if callable(self.loss):
            return self.each(outputs, y).mean()
        return self._loss(outputs, y, "sum") / (y != IGNORED).sum().clamp(min=1)

    def each(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample [n]; of a text, the mean over its tokens."""
        losses = self._loss(outputs, y, "none")
        if callable(self.loss):
            return losses
        if self.target == "tokens":
            return losses.view(y.shape).sum(1) / (y != IGNORED).sum(1).clamp(min=1)
        return losses if losses.dim() == 1 else losses.flatten(1).mean(1)

    def total(self, outputs: Tensor, y: Tensor) -> float:
        """The loss, summed over all scored predictions."""
        if callable(self.loss) or self.loss != "cross_entropy":
            losses = self.each(outputs, y)
            return float((losses * (y != IGNORED).sum(1)).sum() if self.target == "tokens" else losses.sum())
        return float(self._loss(outputs, y, "sum"))

    def count(self, y: Tensor) -> int:
        """The number of predictions that are scored: one for each sample, or for each token that is not ignored."""
        return int((y != IGNORED).sum()) if self.target == "tokens" else len(y)

    def correct(self, outputs: Tensor, y: Tensor) -> int | None:
        """The number of correct predictions (all labels of a sample); NaN is never correct. None for numbers."""
        right = self.matches(outputs, y)
        return None if right is None else int((right & ~outputs.isnan().any(-1)).sum())

    def matches(self, outputs: Tensor, y: Tensor) -> Tensor | None:
        """Whether each prediction equals its target; None for numbers. Outputs of NaN may match by chance."""
        match self.target:
            case "number":
                return None
            case "labels":
                return ((outputs > 0) == (y > 0.5)).all(1)
            case _:
                return predicted(outputs, y) == y

    def unweighted(self, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """Targets, and the weights [n] that ``weigh`` gave them, if it did."""
        if self.packed:
            return self._unpacked(y)
        return (y.argmax(1), y.sum(1)) if self.target == "class" and y.dim() == 2 else (y, None)

    def weighted(self, y: Tensor) -> Objective:
        """The objective for targets like y that ``weigh`` gave weights."""
        return self if self._linear else replace(self, packed=y.dim())

    def weigh(self, y: Tensor, weights: Tensor, classes: int) -> Tensor:
        """Targets that carry a weight for each sample [n]; cross entropy is linear in its target, so it needs no more.

        ``classes`` is the number of the model's outputs.
        """
        if self._linear:
            return F.one_hot(y, classes) * weights[:, None]
        columns = y.reshape(len(y), -1).to(torch.float32)  # exact for numbers, and for token ids below 2 ** 24
        return torch.cat([columns, weights[:, None]], 1)

    @property
    def blend(self) -> Blend:
        """How predictions of several models are mixed: as probabilities of classes or of labels, or as numbers."""
        if self.target == "number":
            return "mean"
        return "sigmoid" if self.target == "labels" or self.loss == "bce" else "softmax"

    @property
    def _linear(self) -> bool:
        return self.target == "class" and self.loss == "cross_entropy" and not self.label_smoothing

    def _unpacked(self, y: Tensor) -> tuple[Tensor, Tensor]:
        targets = y[:, :-1] if self.packed > 1 else y[:, 0]
        return targets.to(torch.int64 if self.target in ("class", "tokens") else torch.float32), y[:, -1].float()

    def _loss(self, outputs: Tensor, y: Tensor, reduction: Reduction) -> Tensor:
        smoothing = self.label_smoothing
        if self.loss == "cross_entropy":
            if self.target == "tokens":
                outputs, y = outputs.flatten(0, 1), y.flatten()
            elif outputs.shape[1] == 1:
                truth = y.to(outputs.dtype)
                return F.binary_cross_entropy_with_logits(
                    outputs[:, 0], _smooth(truth, smoothing) if smoothing else truth, reduction=reduction
                )
            return F.cross_entropy(outputs, y, reduction=reduction, label_smoothing=smoothing)
        if self.loss == "bce":
            truth = y.reshape(outputs.shape) if y.numel() == outputs.numel() else F.one_hot(y, outputs.shape[1])
            truth = _smooth(truth.to(outputs.dtype), smoothing)
            return F.binary_cross_entropy_with_logits(outputs, truth, reduction=reduction)
        if self.loss == "mse":
            return F.mse_loss(outputs.reshape(y.shape), y, reduction=reduction)
        if self.loss == "huber":
            return F.huber_loss(outputs.reshape(y.shape), y, reduction=reduction)
        try:
            losses = self.loss(outputs, y)
        except Exception as error:  # whatever a stranger's function raises
            raise ValueError(f"task.loss: the function failed: {type(error).__name__}: {one_line(error)}") from error
        if not isinstance(losses, Tensor) or losses.shape != (len(y),):
            form = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise ValueError(
                f"task.loss: the function returned {form}; expected a tensor of shape [{len(y)}], one loss per sample"
            )
        if outputs.requires_grad and not losses.requires_grad:
            raise ValueError("task.loss: the function's losses have no gradient; compute them from outputs, in PyTorch")
        return losses if reduction == "none" else losses.mean() if reduction == "mean" else losses.sum()


def predicted(outputs: Tensor, y: Tensor) -> Tensor:
    """The predicted class or token; a single output is the logit of class 1."""
    if outputs.dim() == 2 and outputs.shape[1] == 1:
        return (outputs[:, 0] > 0).to(y.dtype)
    return outputs.argmax(-1)


def mixed(outputs: Tensor, shares: Tensor, blend: Blend) -> Tensor:
    """Outputs of several models [m, n, ...] mixed in these shares [m]: logits of the mixture, or the mean number."""
    weights = shares.view(-1, *[1] * (outputs.dim() - 1))
    match blend:
        case "softmax":
            return (outputs.log_softmax(-1) + weights.log()).logsumexp(0)
        case "sigmoid":
            yes, no = ((F.logsigmoid(way) + weights.log()).logsumexp(0) for way in (outputs, -outputs))
            return yes - no
        case "mean":
            return (outputs * weights).sum(0)


def _smooth(truth: Tensor, smoothing: float) -> Tensor:
    return truth * (1 - smoothing) + smoothing / 2
