"""Sub-FedAvg, unstructured (Vahidian et al., 2021): clients prune the shared model to sub-networks of their own.

All masks start dense. A client whose pruning candidates still change within a round, whose model is denser than the
target and accurate enough on its own training samples, drops a share of its smallest weights. The server averages each
weight over the participants that still hold it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

import torch
from annotated_types import Ge

from sparsona.core import masks
from sparsona.core.aggregate import OverlapMean
from sparsona.core.fields import NonNegative, PositiveShare, Share
from sparsona.core.layout import ones_in
from sparsona.core.masks import Packed
from sparsona.core.training import Ctx, Training, accuracy, train
from sparsona.core.wire import MaskChange, Message, Values
from sparsona.method import Inbox, LocalData, Mask, Vector

Answer = tuple[Vector, Mask]  # trained weights at the new mask, and that mask


@dataclass(frozen=True)
class Client:
    mask: Mask


@dataclass(frozen=True)
class Server:
    theta: Vector
    masks: dict[int, Packed] = field(default_factory=dict)  # of the clients that have pruned


@dataclass(frozen=True, kw_only=True)
class SubFedAvg(Training):
    """Personal sub-networks by iterative magnitude pruning."""

    epochs: Annotated[int, Ge(2)] = 2  # the pruning candidates of the first and of the last are compared
    density: PositiveShare = 0.5  # of convolution and linear weights: at or below it, pruning ends
    prune_rate: Share = 0.05  # share of the weights still alive that one pruning drops, tensor by tensor
    distance: NonNegative = 1e-4  # the candidates after the first and the last epoch must differ by more
    accuracy: Share = 0.5  # the pruned model must do better on the client's training samples

    def start(self, fleet: int, ctx: Ctx) -> Server:
        return Server(ctx.theta0)

    def mask_of(self, server: Server, k: int, ctx: Ctx) -> Mask:
        """The mask that client k has now."""
        return server.masks[k].mask() if k in server.masks else torch.ones(ctx.layout.dim, dtype=torch.bool)

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values.of(server.theta, self.mask_of(server, k, ctx)))

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(torch.ones(ctx.layout.dim, dtype=torch.bool))

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        old = new = client.mask
        theta = self.personal(client, inbox, data, ctx)
        theta = train(self, theta, data.train, ctx, purpose="first", epochs=1, mask=old)
        early = self.candidate(old, theta, ctx)
        theta = train(self, theta, data.train, ctx, purpose="rest", epochs=self.epochs - 1, mask=old)
        late = self.candidate(old, theta, ctx)
        scope = masks.weights(ctx.layout)
        if (
            masks.hamming(ctx.layout, early, late, scope) > self.distance
            and masks.density(ctx.layout, old, scope) > self.density
            and accuracy(ctx.task, theta * late, data.train) > self.accuracy
        ):
            new, theta = late, theta * late
        return Client(new), Message(mask=MaskChange.between(old, new), theta=Values.of(theta, new)), theta

    def candidate(self, mask: Mask, theta: Vector, ctx: Ctx) -> Mask:
        """The mask without the weights of each tensor that lie below the percentile of those alive."""
        scope = masks.weights(ctx.layout)
        alive = ctx.layout.counts(mask)
        counts = [masks.below_percentile(n, self.prune_rate) * ok for n, ok in zip(alive, scope, strict=True)]
        return masks.drop(ctx.layout, mask, theta, counts)

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> Answer:
        mask = message.part("mask", MaskChange).apply(self.mask_of(server, k, ctx))
        return message.floats("theta", ones_in(mask)), mask

    def merge(self, server: Server, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Server:
        mean, held = OverlapMean(ctx.layout.dim), dict(server.masks)
        for k, (values, mask) in inbox:
            mean.add(values, mask)
            held[k] = Packed.of(mask)
        return Server(mean.value(otherwise=server.theta), held)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        theta: Vector = inbox["server"]["theta"].at(client.mask)
        return theta

    def shared(self, server: Server) -> Vector:
        return server.theta
