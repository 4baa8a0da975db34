"""FedSpa (Huang et al., 2022): each client trains a personal sparse model, a masked part of one dense model.

The server keeps the dense weights w and knows every mask m_k. A client receives m_k w, trains it within its mask, and
searches its next mask: DST drops small weights and regrows where the gradient is large, RSM stays with its first mask.
The new mask is cut from the dense weights next time, so that what is regrown starts warm. Line numbers are those of
the paper's Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import torch
from typing_extensions import Doc

from sparsona.core import budgets, masks
from sparsona.core.aggregate import Mean
from sparsona.core.budgets import Shares
from sparsona.core.fields import Share
from sparsona.core.imports import imported
from sparsona.core.layout import ones_in, replaced
from sparsona.core.masks import Packed
from sparsona.core.search import SEARCHES, Initialiser, Search, searched
from sparsona.core.star import adapted
from sparsona.core.training import Ctx, MaskedClip, Training, train
from sparsona.core.wire import MaskChange, Message, Values, WireError
from sparsona.method import Inbox, LocalData, Mask, Report, Vector

Answer = tuple[Vector, Mask, Mask]  # trained weights at the old mask, that mask, the new one
_COUNTS = {"erk": masks.erk_counts, "uniform": masks.uniform_counts}


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    mask: Mask


@dataclass(frozen=True)
class Server:
    """What the server keeps between rounds."""

    theta: Vector  # w, dense
    masks: dict[int, Packed] = field(default_factory=dict)  # of the clients whose mask is no longer their first


@dataclass(frozen=True, kw_only=True)
class FedSpa(MaskedClip, Training):
    """A dense model on the server, a personal mask on each client."""

    density: Annotated[
        Shares, Doc("fraction of all weights kept: a number, one per client, {low, high}, or {values, weights}")
    ] = 0.5
    search: Annotated[str, Doc("mask search: dst, rsm, or package.module:function")] = "dst"
    layers: Annotated[Literal["erk", "uniform"], Doc("how the density is distributed over the tensors")] = "erk"
    same_start: Annotated[bool, Doc("clients with the same density start with the same mask")] = True
    prune_rate: Annotated[
        Share, Doc("dst: fraction of each tensor's weights dropped in round 1, with cosine decay to 0 (alpha_0)")
    ] = 0.5
    horizon: Annotated[
        Literal["T-1", "T"], Doc("dst: prune_rate reaches 0 in the last round (T-1), or one round later (T)")
    ] = "T-1"
    recovery: Annotated[
        Literal["gradient", "random"], Doc("dst: regrow the weights with the largest gradients, or random ones")
    ] = "gradient"
    charge_search: Annotated[
        bool, Doc("charge every search for the FLOPs of one dense batch, as in the paper's tables")
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.searcher()

    @property
    def depends_on_rounds(self) -> str | None:
        if self.search == "rsm" or (self.search == "dst" and not self.prune_rate):
            return None
        return f'search = "{self.search}" regrows masks by a schedule over all rounds'

    def searcher(self) -> Search:
        """The searcher by its name."""
        return imported("search", self.search, SEARCHES)

    def first(self, k: int, ctx: Ctx) -> Mask:
        """Client k's first mask, which it and the server both know (line 3)."""
        density = budgets.share(self.density, k, ctx.common)
        key = ctx.common("mask") if self.same_start else ctx.common("mask", k)
        searcher = self.searcher()
        if isinstance(searcher, Initialiser):
            return searcher.initialise(self, density, ctx.layout, key)
        return masks.remembered(ctx.layout, tuple(_COUNTS[self.layers](ctx.layout, density)), key)

    def start(self, clients: int, ctx: Ctx) -> Server:
        least = budgets.least("density", self.density, clients)
        masks.suffices(ctx.layout, least, lambda d: _COUNTS[self.layers](ctx.layout, d))
        return Server(ctx.theta0)

    def mask_of(self, server: Server, k: int, ctx: Ctx) -> Mask:
        """The mask that client k has now."""
        packed = server.masks.get(k)
        return self.first(k, ctx) if packed is None else packed.mask()

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values.of(server.theta, self.mask_of(server, k, ctx)))  # line 9

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(self.first(k, ctx))

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        mask, start = client.mask, self.personal(client, inbox, data, ctx)
        theta = train(self, start, data.train, ctx, mask=mask)  # lines 13 to 16
        new = searched(self.searcher(), self, mask, theta, data.train, ctx, charge=self.charge_search)  # line 18
        if flaw := masks.flaw(ctx.layout, mask, new, self.search in SEARCHES):
            raise ValueError(f'search: "{self.search}" returned a mask that {flaw}')
        message = Message(theta=Values.of(theta, mask), mask=MaskChange.between(mask, new))
        return Client(new), message, theta

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> Answer:
        mask = self.mask_of(server, k, ctx)
        new = message.part("mask", MaskChange).apply(mask)
        if flaw := masks.flaw(ctx.layout, mask, new, self.search in SEARCHES):
            raise WireError(f"the new mask {flaw}")
        return message.floats("theta", ones_in(mask)), mask, new

    def merge(self, server: Server, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Server:
        mean, new = Mean(ctx.layout.dim), dict(server.masks)  # line 7: who did not take part keeps its mask
        for k, (values, mask, now) in inbox:
            # line 11: w less the mean of the updates (m_k w - trained) is the mean of w with each mask's part replaced
            mean.add(replaced(server.theta, mask, values))
            if not torch.equal(now, mask):
                new[k] = Packed.of(now)
        return Server(mean.value(otherwise=server.theta), new)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        theta: Vector = inbox["server"]["theta"].at(client.mask)
        return theta

    def welcome(self, client: Client, inbox: Inbox, data: LocalData, epochs: int, ctx: Ctx) -> tuple[Client, Vector]:
        theta = self.personal(client, inbox, data, ctx)
        return client, adapted(self, epochs, theta, data, ctx, mask=client.mask)

    def report(self, client: Client | None, server: Server | None, k: int, ctx: Ctx) -> Report:
        return Report() if client is None else Report({"sparsity": 1 - masks.density(ctx.layout, client.mask)})

    def forget(self, server: Server, k: int) -> Server:
        return replace(server, masks={j: mask for j, mask in server.masks.items() if j != k})

    def shared(self, server: Server) -> Vector:
        return server.theta
