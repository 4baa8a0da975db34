"""Training loss and correct predictions, added up while a client trains; nothing waits for the device until the end."""

from __future__ import annotations

import math

from torch import Tensor

from sparsona.core.arithmetic import precise
from sparsona.core.objective import Objective

_BATCHES, _OUTPUTS = 256, 1 << 20  # so much is kept before it is added up: one step costs next to nothing


class Tally:
    """Sums over the batches that gradients were computed for, each with the weights before its step."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Start at zero."""
        self._kept = list[tuple[Objective, Tensor, Tensor, Tensor]]()
        self._outputs = 0  # entries of what is kept
        self._loss: Tensor | None = None
        self._correct: Tensor | None = None
        self._count = 0

    def add(self, objective: Objective, loss: Tensor, outputs: Tensor, y: Tensor) -> None:
        """Add a batch by its mean loss and its outputs."""
        self._kept.append((objective, loss.detach(), outputs.detach(), y))
        self._outputs += outputs.numel()
        if len(self._kept) >= _BATCHES or self._outputs >= _OUTPUTS:
            self._sum()

    def totals(self) -> tuple[int | None, int, float] | None:
        """Correct predictions (None for numbers), predictions and their summed loss; None if nothing is known."""
        self._sum()
        total = math.nan if self._loss is None else float(self._loss)
        if not math.isfinite(total):  # nothing was added, or the model has diverged
            return None
        return None if self._correct is None else int(self._correct), self._count, total

    def _sum(self) -> None:
        for objective, loss, outputs, y in self._kept:
            count = y.numel() if objective.target == "tokens" and not objective.packed else len(y)
            right = objective.right(outputs, objective.plain(y))
            loss = precise(loss).double() * count
            self._loss = loss if self._loss is None else self._loss + loss
            if right is not None:
                self._correct = right.sum() if self._correct is None else self._correct + right.sum()
            self._count += count
        self._kept, self._outputs = [], 0
