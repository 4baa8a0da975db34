"""How much to prune, by the compressibility index, and in which rounds.

The index is that of Diao et al., "Pruning Deep Neural Networks from a Sparsity Perspective", 2023.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from sparsona.core.arithmetic import precise
from sparsona.core.layout import Layout, Mask, Vector, picked
from sparsona.core.masks import SLIP, Scope, check_one_of, check_within, flags_in, top

Each = Literal["layer", "neuron"]  # what the index is taken of


@dataclass(frozen=True)
class PQ:
    """How many entries are spare, by how unequal their magnitudes are."""

    p: float = 0.5
    q: float = 1.0
    eta: float = 0.0  # slack: more is spare
    gamma: float = 1.0  # share of the spare entries to take
    beta: float = 0.9  # share of all entries to take at most

    def __post_init__(self) -> None:
        if not 0 < self.p < self.q:
            raise ValueError(f"p, q: {self.p}, {self.q} are not allowed; expected 0 < p < q")
        for field, high in {"eta": math.inf, "gamma": math.inf, "beta": 1}.items():
            check_within(field, getattr(self, field), 0, high)

    def index(self, values: Tensor) -> float:
        """One less the ratio of p-power to q-power mean of magnitudes; 0 if all are equal, none, or not finite."""
        size = precise(values.detach().abs()).double()
        largest = float(size.max()) if size.numel() else 0.0
        if not 0 < largest < math.inf:
            return 0.0
        size /= largest  # the index ignores scale, and equal magnitudes become ones, whose means are exact
        low, high = (math.pow(float(size.pow(x).mean()), 1 / x) for x in (self.p, self.q))
        return max(0.0, 1 - low / high)

    def spare(self, values: Tensor) -> int:
        """How many of these entries to prune."""
        d, gap = values.numel(), self.q - self.p
        share = math.pow(1 + self.eta, -self.q / gap) * math.pow(1 - self.index(values), self.p * self.q / gap)
        keep = math.ceil(d * share - SLIP)
        return math.floor(min(self.gamma * (d - keep), self.beta * d) + SLIP)


def pq_prune(
    layout: Layout, mask: Mask, theta: Vector, pq: PQ, scope: Scope | None = None, each: Each = "layer"
) -> Mask:
    """The mask without the spare entries, those of smallest magnitude, of each tensor or each output unit's weights."""
    check_one_of("each", each, "layer", "neuron")
    out = mask.clone()
    for slot, inside in zip(layout.slots, flags_in(layout, scope), strict=True):
        if inside:
            # An output unit's weights lie side by side in the vector, also for convolutions.
            run = slot.size // slot.shape[0] if each == "neuron" and len(slot.shape) > 1 else slot.size
            for start in range(slot.offset, slot.offset + slot.size, run):
                m, w = out[start : start + run], theta[start : start + run]
                active = picked(w, m)
                m.copy_(top(w.abs(), active.numel() - pq.spare(active), among=m))
    return out


def prune_rounds(
    first: int, delay: int, factor: float, rounds: int, rounding: Literal["ceil", "reference"] = "ceil"
) -> list[int]:
    """Rounds to prune in, below ``rounds``, whose gaps start at first + delay and shrink by ``factor`` each time.

    "ceil" rounds each gap up; "reference" rounds it to nearest and derives the next from it, twenty times at most.
    """
    check_one_of("rounding", rounding, "ceil", "reference")
    check_within("factor", factor, 1, math.inf)
    check_within("first + delay", first + delay, 1, math.inf)
    t, gap, out = first + delay, float(first + delay), list[int]()
    while t < rounds and gap > 0 and not (rounding == "reference" and len(out) == 20):
        out.append(t)
        gap = max(1.0, gap / factor) if rounding == "ceil" else round(gap / factor)
        t += math.ceil(gap - SLIP)
    return out
