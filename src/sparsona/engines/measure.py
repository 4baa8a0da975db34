"""Figures of merit beside the loss, computed over all test samples of a client."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

TOO_LARGE = 1e100  # no figure is so large: it would make a mean or a spread infinite
MOST = 1 << 28  # values that are kept of one client's test samples: 1 GiB


@dataclass(frozen=True)
class Measure:
    """A figure of merit: what is kept of each batch, and the figure from all that was kept.

    The figure is None where it is not defined, such as the AUC of a client with a single class.
    """

    keep: Callable[[Tensor, Tensor], tuple[Tensor, ...]]  # of outputs and targets
    value: Callable[..., float | None]


@dataclass
class Measuring:
    """Measures at work on the batches of one client."""

    measures: Mapping[str, Measure]
    _kept: dict[str, list[tuple[Tensor, ...]]] = field(default_factory=dict)
    _values: int = 0
    _finite: bool = True

    def add(self, outputs: Tensor, y: Tensor) -> None:
        """Take in a batch."""
        if not self.measures:
            return
        self._finite = self._finite and bool(outputs.isfinite().all())
        for name, measure in self.measures.items():
            parts = measure.keep(outputs, y)
            self._kept.setdefault(name, []).append(parts)
            self._values += sum(part.numel() for part in parts)
            if self._values > MOST:
                raise ValueError(
                    f"task.metrics: {name} needs more than {MOST:,} outputs in memory; test on fewer samples"
                )

    def values(self) -> dict[str, float | None]:
        """Each measure's figure; NaN for all if an output was not finite: the model has diverged."""
        if not self._finite:
            return dict.fromkeys(self.measures, math.nan)
        return {
            name: _defined(measure.value(*(torch.cat(parts) for parts in zip(*self._kept[name], strict=True))))
            for name, measure in self.measures.items()
            if name in self._kept
        }


def _defined(value: float | None) -> float | None:
    """A figure as scores hold it: none where it is NaN, or so large that a fleet would not take it."""
    return None if value is None or not abs(value) < TOO_LARGE else float(value)
