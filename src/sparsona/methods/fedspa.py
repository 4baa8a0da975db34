"""FedSpa (Huang et al., 2022): every client a sparse model of its own, cut from one dense model by its own mask.

The server keeps the dense weights w and knows every mask m_k. A client receives m_k w, trains it within its mask, and
searches its next mask: DST drops small weights and regrows where the gradient is large, RSM stays with its first mask.
The new mask is cut from the dense weights next time, so that what is regrown starts warm. Line numbers are those of
the paper's Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch

from sparsona.core import budgets, masks
from sparsona.core.aggregate import Mean
from sparsona.core.budgets import Shares
from sparsona.core.fields import Share
from sparsona.core.imports import imported
from sparsona.core.layout import ones_in, replaced
from sparsona.core.masks import Packed
from sparsona.core.search import SEARCHES, Initialiser, Search, on_batch
from sparsona.core.training import Ctx, Training, train
from sparsona.core.wire import MaskChange, Message, Values, WireError
from sparsona.method import Inbox, LocalData, Mask, Vector

Answer = tuple[Vector, Mask, Mask]  # trained weights at the old mask, that mask, the new one
_COUNTS = {"erk": masks.erk_counts, "uniform": masks.uniform_counts}


@dataclass(frozen=True)
class Client:
    mask: Mask


@dataclass(frozen=True)
class Server:
    theta: Vector  # w, dense
    masks: dict[int, Packed] = field(default_factory=dict)  # of the clients whose mask is no longer their first


@dataclass(frozen=True, kw_only=True)
class FedSpa(Training):
    """A dense model on the server, a personal mask on each client."""

    density: Shares = 0.5  # kept share of all weights: a number, one per client, {low, high}, or {values, weights}
    search: str = "dst"  # dst, rsm, or a searcher of your own as package.module:function
    layers: Literal["erk", "uniform"] = "erk"  # how the density is spread over the tensors
    same_start: bool = True  # clients of one density begin with one mask
    prune_rate: Share = 0.5  # dst: alpha_0, the share dropped in the first round; by a cosine it comes down to 0
    horizon: Literal["T-1", "T"] = "T-1"  # dst: it is 0 in the last round, or would be in the round after it
    recovery: Literal["gradient", "random"] = "gradient"  # dst: what is regrown
    charge_search: bool = False  # count the search's dense batch for every searcher, as the paper's tables do

    def __post_init__(self) -> None:
        super().__post_init__()
        self.searcher()

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

    def start(self, fleet: int, ctx: Ctx) -> Server:
        least = budgets.least("density", self.density, fleet)
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
        before, gradient = ctx.task.flops, on_batch(theta, data.train, self.batch, ctx)
        new = self.searcher()(self, mask.clone(), theta, gradient, ctx)  # line 18
        if flaw := masks.flaw(ctx.layout, mask, new, self.search in SEARCHES):
            raise ValueError(f"search: {self.search!r} gave a new mask that {flaw}")
        if self.charge_search and ctx.task.flops == before:
            ctx.task.charge(min(self.batch, len(data)))
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

    def notes(self, client: Client, ctx: Ctx) -> dict[str, float]:
        return {"sparsity": 1 - masks.density(ctx.layout, client.mask)}

    def shared(self, server: Server) -> Vector:
        return server.theta
