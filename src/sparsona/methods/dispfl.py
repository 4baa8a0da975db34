"""DisPFL (Dai et al., 2022): no server, a sparse model for every client, averaged where masks of neighbours overlap.

Everybody takes in the models of its neighbours as they were when the round began, keeps what lies in its own mask,
trains within it, and then drops small weights and grows as many others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sparsona.core import masks
from sparsona.core.aggregate import OverlapMean
from sparsona.core.fields import PositiveShare, Share
from sparsona.core.masks import Scope
from sparsona.core.search import moved, on_batch
from sparsona.core.training import Ctx, Training, train
from sparsona.core.wire import Message, Sparse
from sparsona.method import Inbox, LocalData, Mask, Vector


@dataclass(frozen=True)
class Client:
    mask: Mask  # the newest; its weights still lie in the mask that they were trained with, in its own last message


@dataclass(frozen=True, kw_only=True)
class DisPFL(Training):
    """Personal sparse models among peers."""

    density: PositiveShare = 0.5  # of the tensors that are masked
    masked: Literal["all", "weights"] = "all"  # every tensor, or the weights of convolutions and linear layers alone
    dense: tuple[str, ...] = ()  # weights: names or patterns of tensors that stay dense, such as "*shortcut*"
    same_start: bool = False  # all begin with one mask
    prune_rate: Share = 0.5  # the share of each tensor's weights dropped in the first round; by a cosine it falls to 0
    recovery: Literal["random", "gradient"] = "random"  # what is grown

    def scope(self, ctx: Ctx) -> Scope:
        """Which tensors are masked."""
        return masks.trainable(ctx.layout) if self.masked == "all" else masks.weights(ctx.layout, self.dense)

    def check(self, fleet: int, ctx: Ctx) -> None:
        masks.suffices(ctx.layout, self.density, lambda d: masks.erk_counts(ctx.layout, d, self.scope(ctx)))

    def first(self, k: int, ctx: Ctx) -> Mask:
        """Client k's first mask."""
        counts = masks.erk_counts(ctx.layout, self.density, self.scope(ctx))
        key = ctx.common("mask") if self.same_start else ctx.common("mask", k)
        return masks.remembered(ctx.layout, tuple(counts), key)

    def join(self, k: int, ctx: Ctx) -> Any:
        return Client(self.first(k, ctx))

    def post(self, client: Any, ctx: Ctx) -> Message:
        return Message(model=Sparse.of(ctx.theta0, client.mask))

    def local(self, client: Any, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Any, Message, Vector]:
        mask = client.mask
        theta = train(self, self.gathered(inbox, ctx) * mask, data.train, ctx, mask=mask)
        return Client(self.searched(mask, theta, data, ctx)), Message(model=Sparse.of(theta, mask)), theta

    def gathered(self, inbox: Inbox, ctx: Ctx) -> Vector:
        """The mean of the neighbours' models and one's own, each coordinate over those whose mask holds it."""
        mean = OverlapMean(ctx.layout.dim)
        for j in sorted(inbox.keys() - {"all"}, key=str):
            model = inbox[j]["model"]
            mean.add(model.values, model.mask)
        return mean.value()

    def searched(self, mask: Mask, theta: Vector, data: LocalData, ctx: Ctx) -> Mask:
        """The mask after dropping small weights and growing as many."""
        rate = masks.cosine(self.prune_rate, ctx.t, ctx.rounds, "T")
        gradient = on_batch(theta, data.train, self.batch, ctx)
        return moved(mask, theta, gradient, ctx, rate=rate, recovery=self.recovery)

    def personal(self, client: Any, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        model: Sparse = inbox["self"]["model"]
        return model.dense()

    def notes(self, client: Any, ctx: Ctx) -> dict[str, float]:
        return {"sparsity": 1 - masks.density(ctx.layout, client.mask, self.scope(ctx))}
