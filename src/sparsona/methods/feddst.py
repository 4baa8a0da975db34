"""FedDST (Bibikar et al., 2022): one sparse model for all, whose mask the clients move together.

Every few rounds each client drops small weights of the model it receives and grows as many others, from 0 and within
its own mask; in between all train within the global mask. The server averages each weight over the clients that hold
it, and keeps the largest of each tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from sparsona.core import masks
from sparsona.core.aggregate import OverlapMean
from sparsona.core.fields import Count, PositiveShare, Share
from sparsona.core.layout import ones_in
from sparsona.core.search import moved, on_batch
from sparsona.core.training import Ctx, Training, train
from sparsona.core.wire import MaskChange, Message, Sparse, Values, WireError
from sparsona.method import Client, Inbox, LocalData, Mask, Vector

Answer = tuple[Vector, Mask]  # trained weights at a client's mask, and that mask


@dataclass(frozen=True)
class Server:
    theta: Vector  # zero off the mask
    mask: Mask


@dataclass(frozen=True, kw_only=True)
class FedDST(Training):
    """One sparse model, tested as it is on every client."""

    density: PositiveShare = 0.5  # of the tensors that are masked
    masked: Literal["all", "weights"] = "weights"  # every tensor, or the weights of convolutions and linear layers
    dense: tuple[str, ...] = ()  # weights: names or patterns of tensors that stay dense, such as "*shortcut*"
    interval: Count = 5  # rounds from one readjustment to the next; the first is in round number ``interval``
    prune_rate: Share = 0.3  # the share of each tensor's weights dropped in the first round; by a cosine it falls to 0
    recovery: Literal["gradient", "random"] = "gradient"  # what is grown

    def counts(self, ctx: Ctx, density: float | None = None) -> list[int]:
        """How many weights each tensor has."""
        scope = masks.trainable(ctx.layout) if self.masked == "all" else masks.weights(ctx.layout, self.dense)
        return masks.erk_counts(ctx.layout, self.density if density is None else density, scope)

    def readjusts(self, ctx: Ctx) -> bool:
        """Whether clients move their masks in this round."""
        return (ctx.t + 1) % self.interval == 0

    def start(self, fleet: int, ctx: Ctx) -> Server:
        masks.suffices(ctx.layout, self.density, lambda d: self.counts(ctx, d))
        mask = masks.random(ctx.layout, self.counts(ctx), ctx.common("mask"))
        return Server(ctx.theta0 * mask, mask)

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:
        return Message(model=Sparse.of(server.theta, server.mask))  # clients keep nothing: the mask is new to them

    def join(self, k: int, ctx: Ctx) -> Client:
        return None

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        old: Mask = inbox["server"]["model"].mask
        theta = self.personal(client, inbox, data, ctx)
        new = self.searched(old, theta, data, ctx) if self.readjusts(ctx) else old
        theta = train(self, theta, data.train, ctx, mask=new)  # what is new starts from 0, as the model is off its mask
        change = {"mask": MaskChange.between(old, new)} if self.readjusts(ctx) else {}
        return None, Message(theta=Values.of(theta, new), **change), theta

    def searched(self, mask: Mask, theta: Vector, data: LocalData, ctx: Ctx) -> Mask:
        """The mask after dropping small weights and growing as many."""
        rate = masks.cosine(self.prune_rate, ctx.t, ctx.rounds, "T")
        gradient = on_batch(theta, data.train, self.batch, ctx)
        return moved(mask, theta, gradient, ctx, rate=rate, recovery=self.recovery)

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> Answer:
        mask = server.mask
        if self.readjusts(ctx):
            mask = message.part("mask", MaskChange).apply(mask)
            if (found := ctx.layout.counts(mask)) != (counts := self.counts(ctx)):
                raise WireError(f"part 'mask' leaves {found} weights in the tensors, not {counts}")
        return message.floats("theta", ones_in(mask)), mask

    def merge(self, server: Server, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Server:
        mean, held = OverlapMean(ctx.layout.dim), torch.zeros_like(server.mask)
        for _, (values, mask) in inbox:
            mean.add(values, mask)
            held |= mask
        if not held.any():
            return server
        theta = mean.value(otherwise=server.theta)
        # what all have dropped is gone, however large; a weight that is held counts before one that is not
        mask = masks.top_each(ctx.layout, torch.where(held, theta.abs(), -1.0), self.counts(ctx))
        return Server(theta * mask, mask)

    def shared(self, server: Server) -> Vector:
        return server.theta

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        model: Sparse = inbox["server"]["model"]
        return model.dense()
