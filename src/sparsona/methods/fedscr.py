"""FedSCR (Wu et al., 2020): clients send only the filters, channels, rows and columns with large updates.

"Structure-Based Communication Reduction for Federated Learning".

An update is scored by structures: the sum of magnitudes over each output unit and over each input unit of a weight
tensor, relative to the tensor's largest. Units with small scores are left out; tensors without such units, as biases,
travel whole. The threshold is set for each update so that as much is kept as by the other methods at the same p. As in
FedSTC, whose rounds these are, what is left out is added to the next update, at both ends.

The units of a tensor are its output units (filters, rows), then its input units (channels, columns); those of a model
come tensor by tensor. Tensors with one dimension have none and are always kept whole.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import Doc

from sparsona.core.arithmetic import precise
from sparsona.core.compressed import (
    Answer,
    Client,
    Server,
    entries_kept,
    first_client,
    first_server,
    merged,
    news_for,
    read_update,
    received,
    trained_update,
)
from sparsona.core.fields import Fraction, Share
from sparsona.core.layout import ones_in, picked
from sparsona.core.star import Weighting
from sparsona.core.training import Ctx, StatefulTraining
from sparsona.core.wire import Bits, Message, Part, Sparse, Values, WireError
from sparsona.method import Inbox, Layout, LocalData, Mask, Vector


@dataclass(frozen=True, kw_only=True)
class FedSCR(Weighting, StatefulTraining):
    """A shared model by updates of whole filters, channels, rows and columns."""

    sparsity: Annotated[Fraction, Doc("fraction of each tensor's entries not sent, in both directions (p)")] = 0.9
    rounding: Annotated[Literal["nearest", "up"], Doc("entries kept of n: n - round(p n), or (1 - p) n rounded up")] = (
        "nearest"
    )
    threshold: Annotated[
        Share | None, Doc("send only structures that score above this; unset: chosen so that 1 - p is kept")
    ] = None
    downlink: Annotated[
        Literal["same", "dense"], Doc("sparsity of the server's updates: the same as the clients', or dense")
    ] = "same"

    def compress(self, layout: Layout, update: Vector) -> dict[str, Part]:
        """An update as it travels."""
        units, budget = scores(layout, update), sum(entries_kept(layout, self.sparsity, self.rounding))
        bar = calibrated(layout, units, budget) if self.threshold is None else self.threshold
        none = precise(update[:0]).double()  # a model may have no units at all
        kept = (torch.cat([*units, none]) > bar).to(update.device)
        return {"structures": Bits(kept), "values": Values(picked(update, spread(layout, kept)))}

    def expand(self, layout: Layout, message: Message) -> Sparse:
        """An update that travelled; WireError if it is none that could have been sent."""
        mask = spread(layout, message.part("structures", Bits).mask)
        return Sparse(mask, message.floats("values", ones_in(mask)))

    def broadcast(self) -> FedSCR:
        """How the server's update travels."""
        return self if self.downlink == "same" else replace(self, sparsity=0.0, threshold=None)

    def start(self, clients: int, ctx: Ctx) -> Server:
        return first_server(ctx)

    def join(self, k: int, ctx: Ctx) -> Client:
        return first_client(ctx)

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:
        return news_for(server, k, ctx)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        return received(self, client, inbox["server"], ctx)

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        return trained_update(self, self, client, self.personal(client, inbox, data, ctx), data, ctx)

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> Answer:
        return read_update(self, message, ctx)

    def merge(self, server: Server, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Server:
        return merged(self, self.broadcast(), server, inbox, ctx)

    def shared(self, server: Server) -> Vector:
        return server.theta

    def forget(self, server: Server, k: int) -> Server:
        return replace(server, seen={j: version for j, version in server.seen.items() if j != k})


def scores(layout: Layout, vec: Vector) -> list[Tensor]:
    """For output and input units of each weight tensor in turn, the sum of magnitudes, by the largest of its kind."""
    units = []
    for slot in layout.slots:
        if len(slot.shape) > 1:
            size = precise(slot.view(vec[slot.where])).abs()
            for way in (0, 1):
                unit = size.sum([d for d in range(size.dim()) if d != way], dtype=torch.float64)
                units.append(unit / unit.max().clamp(min=torch.finfo(torch.float64).tiny))  # all zero: scores of zero
    return units


def spread(layout: Layout, kept: Mask) -> Mask:
    """One flag per unit, as a mask over coordinates: an entry is kept if both its units are."""
    units = [n for slot in layout.slots if len(slot.shape) > 1 for n in slot.shape[:2]]
    if kept.shape != (sum(units),):
        raise WireError(f"{len(kept)} flags do not fit {sum(units)} units")
    flags = iter(torch.split(kept, units))
    out = torch.ones(layout.dim, dtype=torch.bool, device=layout.device)
    for slot in layout.slots:
        if len(slot.shape) > 1:
            rest = (1,) * (len(slot.shape) - 2)
            outputs, inputs = next(flags).view(-1, 1, *rest), next(flags).view(1, -1, *rest)
            slot.view(out[slot.where]).copy_(outputs & inputs)
    return out


def calibrated(layout: Layout, units: list[Tensor], budget: int) -> float:
    """The least threshold above which units hold, with the tensors kept whole, at most ``budget`` entries.

    It stays below 1, so that the largest unit of each tensor is kept even where that is more.
    """
    units = [each.cpu() for each in units]  # few numbers, of which one threshold is sought
    bars = torch.from_numpy(np.unique(np.concatenate([[-1.0], *(each.numpy() for each in units)])))
    bars = bars[bars < 1]
    held = torch.full_like(bars, sum(s.size for s in layout.slots if len(s.shape) < 2))
    kinds = iter(units)
    for slot in layout.slots:
        if len(slot.shape) > 1:
            above = [len(u) - torch.searchsorted(u.sort().values, bars, right=True) for u in (next(kinds), next(kinds))]
            held += above[0] * above[1] * math.prod(slot.shape[2:])
    fits = torch.nonzero(held <= budget)
    return float(bars[fits[0, 0]] if len(fits) else bars[-1])
