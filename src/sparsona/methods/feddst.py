"""FedDST (Bibikar et al., 2022): one shared sparse model; the clients adjust its mask during training.

Every few rounds each client drops small weights of the model it receives and grows as many others, from 0 and within
its own mask; in between all train within the global mask. The server averages each weight over the clients that hold
it, and keeps the largest of each tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from typing_extensions import Doc

from sparsona.core import masks
from sparsona.core.aggregate import OverlapMean
from sparsona.core.fields import Count, PositiveShare, Share
from sparsona.core.layout import ones_in
from sparsona.core.search import regrown, scope_of
from sparsona.core.star import adapted
from sparsona.core.training import Ctx, MaskedClip, Training, train
from sparsona.core.wire import MaskChange, Message, Sparse, Values, WireError
from sparsona.method import Client, Inbox, LocalData, Mask, Vector

Answer = tuple[Vector, Mask]  # trained weights at a client's mask, and that mask


@dataclass(frozen=True)
class Server:
    """What the server keeps between rounds."""

    theta: Vector  # zero off the mask
    mask: Mask


@dataclass(frozen=True, kw_only=True)
class FedDST(MaskedClip, Training):
    """One sparse model, tested as it is on every client."""

    density: Annotated[PositiveShare, Doc("density of the masked tensors")] = 0.5
    masked: Annotated[
        Literal["all", "weights"],
        Doc("masked tensors: all trainable ones, or only convolution, linear and embedding weights"),
    ] = "weights"
    dense: Annotated[
        tuple[str, ...], Doc('masked = "weights": names or patterns of tensors that stay dense, such as "*shortcut*"')
    ] = ()
    interval: Annotated[Count, Doc("adjust the mask every N rounds")] = 5
    prune_rate: Annotated[
        Share, Doc("fraction of each tensor's weights dropped in round 1, with cosine decay to 0 (alpha_0)")
    ] = 0.3
    recovery: Annotated[
        Literal["gradient", "random"], Doc("regrow the weights with the largest gradients, or random ones")
    ] = "gradient"

    @property
    def depends_on_rounds(self) -> str | None:
        return f"prune_rate = {self.prune_rate} falls to 0 in the last round" if self.prune_rate else None

    def counts(self, ctx: Ctx, density: float | None = None) -> list[int]:
        """How many weights each tensor has."""
        scope = scope_of(ctx.layout, self.masked, self.dense)
        return masks.erk_counts(ctx.layout, self.density if density is None else density, scope)

    def readjusts(self, ctx: Ctx) -> bool:
        """Whether clients move their masks in this round."""
        return (ctx.t + 1) % self.interval == 0

    def start(self, clients: int, ctx: Ctx) -> Server:
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
        new = old
        if self.readjusts(ctx):
            new = regrown(
                old, theta, data.train, ctx, batch=self.batch, prune_rate=self.prune_rate, recovery=self.recovery
            )
        theta = train(self, theta, data.train, ctx, mask=new)  # what is new starts from 0, as the model is off its mask
        change = {"mask": MaskChange.between(old, new)} if self.readjusts(ctx) else {}
        return None, Message(theta=Values.of(theta, new), **change), theta

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> Answer:
        mask = server.mask
        if self.readjusts(ctx):
            mask = message.part("mask", MaskChange).apply(mask)
            if (left := ctx.layout.counts(mask)) != (counts := self.counts(ctx)):
                raise WireError(f"part 'mask' leaves {left} weights in the tensors, not {counts}")
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

    def welcome(self, client: Client, inbox: Inbox, data: LocalData, epochs: int, ctx: Ctx) -> tuple[Client, Vector]:
        mask = inbox["server"]["model"].mask
        return client, adapted(self, epochs, self.personal(client, inbox, data, ctx), data, ctx, mask=mask)
