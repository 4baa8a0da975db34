"""Training loss and correct predictions, added up while a client trains; nothing waits for the device until the end."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsona.core.objective import Objective


@dataclass
class Tally:
    """Sums over the batches that gradients were computed for, each with the weights before its step."""

    _losses: list[Tensor] = field(default_factory=list)  # a mean per batch
    _correct: list[Tensor] = field(default_factory=list)  # a number per batch
    _counts: list[int] = field(default_factory=list)  # predictions per batch

    def clear(self) -> None:
        """Start at zero."""
        self._losses, self._correct, self._counts = [], [], []

    def add(self, objective: Objective, loss: Tensor, outputs: Tensor, y: Tensor) -> None:
        """Add a batch by its mean loss and its outputs."""
        self._losses.append(loss.detach())
        self._counts.append(y.numel() if objective.target == "tokens" and not objective.packed else len(y))
        with torch.no_grad():
            if (right := objective.right(outputs, objective.plain(y))) is not None:
                self._correct.append(right.sum())

    def totals(self) -> tuple[int | None, int, float] | None:
        """Correct predictions (None for numbers), predictions and their summed loss; None if nothing is known."""
        if not self._losses:
            return None
        losses = torch.stack(self._losses).tolist()
        total = math.fsum(loss * count for loss, count in zip(losses, self._counts, strict=True))
        if not math.isfinite(total):  # the model has diverged
            return None
        return int(torch.stack(self._correct).sum()) if self._correct else None, sum(self._counts), total
