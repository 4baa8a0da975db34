"""FedSTC (Sattler et al., 2020): sparse ternary updates in both directions, with error feedback.

"Robust and Communication-Efficient Federated Learning from Non-i.i.d. Data".

One shared model, of which only compressed updates travel, both ways: the largest entries of each tensor, replaced by
their sign times their mean magnitude. What compression loses is added to the next update, on the client as on the
server. A client that was away receives the weights that have changed meanwhile instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from typing_extensions import Doc

from sparsona.core import masks
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
from sparsona.core.fields import Fraction
from sparsona.core.layout import picked
from sparsona.core.star import Weighting
from sparsona.core.training import Ctx, StatefulTraining
from sparsona.core.wire import Bits, Message, Part, Quantised, Sparse, Values, WireError
from sparsona.method import Inbox, Layout, LocalData, Mask, Vector


@dataclass(frozen=True, kw_only=True)
class FedSTC(Weighting, StatefulTraining):
    """A shared model by sparse ternary updates."""

    sparsity: Annotated[Fraction, Doc("fraction of each tensor's entries not sent, in both directions (p)")] = 0.9
    rounding: Annotated[Literal["nearest", "up"], Doc("entries kept of n: n - round(p n), or (1 - p) n rounded up")] = (
        "nearest"
    )

    def counts(self, layout: Layout) -> list[int]:
        """How many entries of each tensor are kept."""
        return entries_kept(layout, self.sparsity, self.rounding)

    def compress(self, layout: Layout, update: Vector) -> dict[str, Part]:
        """An update as it travels."""
        mask = masks.top_each(layout, update.abs(), self.counts(layout)) & (update != 0)
        signs, sizes = ternary(layout, update, mask)
        return {"places": Bits(mask), "signs": signs, "sizes": Values(sizes)}

    def expand(self, layout: Layout, message: Message) -> Sparse:
        """An update that travelled; WireError if it is none that could have been sent."""
        mask, signs = message.part("places", Bits).mask, message.part("signs", Quantised)
        if mask.shape != (layout.dim,) or (signs.bits, signs.scale) != (0, 1.0):
            raise WireError(f"the update is of {len(mask)} entries with {signs.bits} bits, not {layout.dim} with 0")
        ones, sizes = layout.counts(mask), message.floats("sizes", len(layout.slots))
        if any(n > due for n, due in zip(ones, self.counts(layout), strict=True)) or sum(ones) != len(signs.negative):
            raise WireError(f"the update holds {ones} entries of its tensors, or not as many signs")
        return Sparse(mask, of_ternary(layout, signs, sizes, mask))

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
        return merged(self, self, server, inbox, ctx)

    def shared(self, server: Server) -> Vector:
        return server.theta

    def forget(self, server: Server, k: int) -> Server:
        return replace(server, seen={j: version for j, version in server.seen.items() if j != k})


def ternary(layout: Layout, x: Vector, mask: Mask) -> tuple[Quantised, Vector]:
    """The signs of the entries where the mask is one, and for each tensor their mean magnitude, 0 if it has none."""
    kept = picked(x, mask)
    each = torch.split(precise(kept.abs()).double(), layout.counts(mask))
    sizes = torch.stack([e.mean() if len(e) else e.sum() for e in each]).float().to(x.device)
    return Quantised(kept < 0, torch.ones_like(kept, dtype=torch.uint8), 1.0, 0), sizes


def of_ternary(layout: Layout, signs: Quantised, sizes: Vector, mask: Mask) -> Vector:
    """The entries where the mask is one, back from their signs and each tensor's magnitude."""
    return signs.values * torch.repeat_interleave(sizes, torch.tensor(layout.counts(mask)).to(sizes.device))
