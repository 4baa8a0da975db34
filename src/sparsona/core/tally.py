"""Training loss and correct predictions, added up on the device while a client trains, and read once at the end.

A device without double precision leaves the sums to the host, some hundred batches at a time.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparsona.core.arithmetic import precise
from sparsona.core.objective import IGNORED, Objective

_BATCHES, _OUTPUTS = 256, 1 << 20  # batches and entries that wait to be added up, because then steps cost little more


class Tally:
    """Sums over the batches that gradients were computed for, each with the weights before its step."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start at zero."""
        self._waiting = list[tuple[Objective, Tensor, Tensor, Tensor]]()
        self._outputs = 0  # entries of the batches that wait
        self._sums: Tensor | None = None  # [3] loss, predictions, correct ones
        self._scored = True  # whether predictions are right or wrong

    def add(self, objective: Objective, loss: Tensor, outputs: Tensor, y: Tensor) -> None:
        """Add a batch by its mean loss and its outputs."""
        self._waiting.append((objective, loss.detach(), outputs.detach(), y))
        self._outputs += outputs.numel()
        if len(self._waiting) >= _BATCHES or self._outputs >= _OUTPUTS:
            self._add_up()

    def totals(self) -> tuple[int | None, int, float] | None:
        """Correct predictions (None for numbers), predictions and their summed loss; None if nothing is known."""
        self._add_up()
        loss, count, correct = (math.nan, 0.0, 0.0) if self._sums is None else self._sums.tolist()
        if not math.isfinite(loss) or round(count) < 1:  # nothing was added, or the model has diverged
            return None
        return round(correct) if self._scored else None, round(count), loss

    def _add_up(self) -> None:
        for objective, *tensors in self._waiting:
            sums = torch.stack(_sums(objective, *map(precise, tensors)))
            self._sums = sums if self._sums is None else self._sums + sums
            self._scored = objective.target != "number"
        self._waiting, self._outputs = [], 0


def _sums(objective: Objective, loss: Tensor, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Summed loss, predictions and correct ones of a batch; a weighted sample counts by its weight."""
    exact = torch.float64
    targets, weights = objective.unweighted(y)
    each = torch.ones(len(y), dtype=exact, device=y.device) if weights is None else weights.to(exact)  # [n]
    right = objective.matches(outputs, targets)
    right = torch.zeros(len(y), device=y.device) if right is None else right
    if objective.target == "tokens":
        scored = targets != IGNORED
        right, tokens = (right & scored).sum(1), scored.sum(1)
        if weights is None:  # every token counts, as in the mean of the loss
            each, right = tokens.to(exact), right / tokens.clamp(min=1)
        else:
            right = right / tokens.clamp(min=1)
    whole = each.sum() if weights is None else torch.full((), len(y), dtype=exact, device=y.device)
    return loss.to(exact) * whole, each.sum(), (each * right).sum()
