"""FedSCR (Wu et al., "Structure-Based Communication Reduction for Federated Learning", 2020): whole structures travel.

An update is scored by structures: the sum of magnitudes over each output unit and over each input unit of a weight
tensor, relative to the tensor's largest. Units with small scores are left out; tensors without such units, as biases,
travel whole. The threshold is set for each update so that as much is kept as by the other methods at the same p. As in
FedSTC, whose rounds these are, what is left out is added to the next update, at both ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from sparsona.core.fields import Share
from sparsona.core.layout import ones_in, picked
from sparsona.core.structures import calibrated, scores, spread
from sparsona.core.wire import Bits, Message, Part, Sparse, Values
from sparsona.method import Layout, Vector
from sparsona.methods.fedstc import FedSTC


@dataclass(frozen=True, kw_only=True)
class FedSCR(FedSTC):
    """A shared model by updates of whole filters, channels, rows and columns."""

    threshold: Share | None = None  # structures at or below it are left out; left empty: set so that 1 - p is kept

    downlink: Literal["same", "dense"] = "same"  # the server leaves out as much as clients do, or nothing

    def broadcast(self, layout: Layout, update: Vector) -> dict[str, Part]:
        how = self if self.downlink == "same" else replace(self, sparsity=0.0, threshold=None)
        return how.compress(layout, update)

    def compress(self, layout: Layout, update: Vector) -> dict[str, Part]:
        found = scores(layout, update)
        bar = calibrated(layout, found, sum(self.counts(layout))) if self.threshold is None else self.threshold
        kept = torch.cat([*found, torch.zeros(0, dtype=torch.float64)]) > bar  # a model may have no units at all
        return {"structures": Bits(kept), "values": Values(picked(update, spread(layout, kept)))}

    def expand(self, layout: Layout, message: Message) -> Sparse:
        mask = spread(layout, message.part("structures", Bits).mask)
        return Sparse(mask, message.floats("values", ones_in(mask)))
