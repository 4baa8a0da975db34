"""FedMask (Li et al., 2021): random weights stay fixed; clients learn binary masks over the last layers.

Each weight of the last layers has a real-valued score; it is used where sigmoid(score) > 0.5, that is above zero, and
gradients pass straight through that step. After its first training a client drops all but the best scored weights for
good. Only binary masks travel up; the server averages them over the clients that still hold a
weight, and where at least two do, that average is where the next round's scores begin.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import Doc

from sparsona.core import masks
from sparsona.core.aggregate import OverlapMean
from sparsona.core.fields import Count, Positive, PositiveShare
from sparsona.core.layout import ones_in, picked, places, replaced
from sparsona.core.masks import Packed
from sparsona.core.optimiser import Steps
from sparsona.core.training import Ctx, SgdTraining, batches_of, lr_at, sgd_of
from sparsona.core.wire import Bits, Message, Sparse, WireError
from sparsona.method import Inbox, LocalData, Mask, Vector

Answer = tuple[Mask, Mask, int]  # what the client holds [n], the mask over that, the number of samples


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    scores: Tensor  # [n], of all weights of the last layers
    held: Mask | None = None  # [n] which of them are left after pruning; None: not pruned yet


@dataclass(frozen=True)
class Server:
    """What the server keeps between rounds."""

    mean: Tensor  # [n] of masks
    shared: Mask  # [n] where at least two clients of a round sent values
    held: dict[int, Packed] = field(default_factory=dict)  # of the clients that have pruned


@dataclass(frozen=True, kw_only=True)
class FedMask(SgdTraining):
    """Personal binary masks over the last layers of a random network, averaged where clients share weights."""

    layers: Annotated[Count, Doc("number of masked layers, counted from the output; all other layers stay dense")] = 2
    keep: Annotated[PositiveShare, Doc("fraction of each masked layer that one-shot pruning keeps")] = 0.5
    score: Annotated[
        Positive, Doc("initial score of every weight; averaged masks are mapped to scores in [-score, score]")
    ] = 0.01

    def scope(self, ctx: Ctx) -> list[bool]:
        """The weight tensors that have masks."""
        every = [i for i, flag in enumerate(masks.weights(ctx.layout)) if flag][-self.layers :]
        return [i in every for i in range(len(ctx.layout.slots))]

    def start(self, clients: int, ctx: Ctx) -> Server:
        if self.layers > (most := sum(masks.weights(ctx.layout))):
            raise ValueError(
                f"layers: {self.layers} is not allowed; expected an int <= {most}, "
                "the layers of this model with weights"
            )
        if ctx.layout.dim > ctx.layout.params:
            raise ValueError(
                "name: fedmask does not train weights, so it cannot use a model with batch normalisation statistics"
            )
        n = ones_in(ctx.layout.spread(self.scope(ctx)))
        return Server(torch.zeros(n), torch.zeros(n, dtype=torch.bool))

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:
        known = server.shared & server.held[k].mask() if k in server.held else server.shared
        return Message(mean=Sparse.of(server.mean, known))

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(ctx.theta0.new_full((ones_in(ctx.layout.spread(self.scope(ctx))),), self.score))

    def scores(self, client: Client, inbox: Inbox) -> Tensor:
        """The client's scores; where there is an average of masks, one above zero if it is above a half."""
        mean: Sparse = inbox["server"]["mean"]
        return replaced(client.scores, mean.mask, self.score * (2 * mean.values - 1))

    def masked(self, scores: Tensor, held: Mask | None, ctx: Ctx) -> Vector:
        """The initial model without the weights that are dropped."""
        used, scope = scores > 0, ctx.layout.spread(self.scope(ctx))
        used = used if held is None else used & held
        return replaced(ctx.theta0, scope, picked(ctx.theta0, scope) * used)

    def trained(self, scores: Tensor, held: Mask | None, data: LocalData, ctx: Ctx) -> Tensor:
        """The scores after local training."""
        task, at = ctx.task, places(ctx.layout.spread(self.scope(ctx)))
        first, scores = ctx.theta0[at], scores.clone()
        steps = Steps(sgd_of(self, lr_at(self, ctx.t, ctx.rounds), fused=True), scores)
        batches = batches_of(self, data.train, ctx)
        task.load(self.masked(scores, held, ctx))
        with task.training(batches):
            for batch in batches:
                p = scores.sigmoid()
                steps.step(task.gradient(batch)[at].mul_(first).mul_(p * (1 - p)), held)
                task.flat[at] = first * (scores > 0 if held is None else (scores > 0) & held)
        return scores

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        scores = self.trained(self.scores(client, inbox), client.held, data, ctx)
        held, news = client.held, {}
        if held is None:
            held = self.pruned(scores, ctx)
            news = {"held": Bits(held)}
        message = Message(mask=Bits(picked(scores, held) > 0), samples=len(data), **news)
        return Client(scores, held), message, self.masked(scores, held, ctx)

    def pruned(self, scores: Tensor, ctx: Ctx) -> Mask:
        """The best scored share of each tensor."""
        sizes = [slot.size for slot, flag in zip(ctx.layout.slots, self.scope(ctx), strict=True) if flag]
        return torch.cat([masks.top(part, masks.at_least(len(part), self.keep)) for part in scores.split(sizes)])

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> Answer:
        held = server.held[k].mask() if k in server.held else message.part("held", Bits).mask
        mask = message.part("mask", Bits).mask
        if len(held) != len(server.mean) or len(mask) != ones_in(held):
            raise WireError(f"a mask of {len(mask)} over {len(held)} weights, not over {len(server.mean)}")
        return held, mask, message.whole("samples", 1)

    def merge(self, server: Server, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Server:
        mean, senders = OverlapMean(len(server.mean)), torch.zeros(len(server.mean), dtype=torch.int64)
        known = dict(server.held)
        for k, (held, mask, samples) in inbox:
            mean.add(mask.float(), held, samples)
            senders += held
            known.setdefault(k, Packed.of(held))
        several = senders > 1  # what only one client holds stays with it
        averages = torch.where(several, mean.value(otherwise=server.mean), server.mean)
        return Server(averages, server.shared | several, known)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        return self.masked(self.scores(client, inbox), client.held, ctx)

    def welcome(self, client: Client, inbox: Inbox, data: LocalData, epochs: int, ctx: Ctx) -> tuple[Client, Vector]:
        """A newcomer learns scores and prunes, as every client does at first; its weights stay as they were drawn."""
        begun = replace(ctx, t=0)  # at the learning rate of the first round
        scores = replace(self, epochs=epochs).trained(self.scores(client, inbox), None, data, begun)
        held = self.pruned(scores, ctx)
        return Client(scores, held), self.masked(scores, held, ctx)

    def forget(self, server: Server, k: int) -> Server:
        return replace(server, held={j: held for j, held in server.held.items() if j != k})
