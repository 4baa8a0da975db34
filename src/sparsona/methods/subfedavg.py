"""Sub-FedAvg, unstructured (Vahidian et al., 2021): clients prune the shared model to personal sub-networks.

All masks start dense. A client whose pruning candidates still change within a round, whose model is denser than the
target and accurate enough on its own training samples, drops a share of its smallest weights. The server averages each
weight over the participants that still hold it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Annotated

import torch
from annotated_types import Ge
from typing_extensions import Doc

from sparsona.core import masks
from sparsona.core.aggregate import OverlapMean
from sparsona.core.fields import NonNegative, PositiveShare, Share
from sparsona.core.layout import ones_in
from sparsona.core.masks import Packed
from sparsona.core.star import adapted
from sparsona.core.training import Ctx, MaskedClip, Training, accuracy, train
from sparsona.core.wire import MaskChange, Message, Values
from sparsona.method import Inbox, Layout, LocalData, Mask, Vector

Answer = tuple[Vector, Mask]  # trained weights at the new mask, and that mask


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    mask: Mask


@dataclass(frozen=True)
class Server:
    """What the server keeps between rounds."""

    theta: Vector
    masks: dict[int, Packed] = field(default_factory=dict)  # of the clients that have pruned


@dataclass(frozen=True, kw_only=True)
class SubFedAvg(MaskedClip, Training):
    """Personal sub-networks by iterative magnitude pruning."""

    epochs: Annotated[
        Annotated[int, Ge(2)],
        Doc("local epochs per round; the pruning masks after the first and the last epoch are compared"),
    ] = 2
    density: Annotated[
        PositiveShare, Doc("target density of the convolution and linear weights; pruning stops there")
    ] = 0.5
    prune_rate: Annotated[Share, Doc("fraction of each tensor's remaining weights that one pruning step drops")] = 0.05
    distance: Annotated[
        NonNegative, Doc("prune only if the two masks differ by more than this (mean Hamming distance)")
    ] = 1e-4
    accuracy: Annotated[Share, Doc("prune only if the pruned model's training accuracy is above this")] = 0.5

    def start(self, clients: int, ctx: Ctx) -> Server:
        if self.accuracy and ctx.task.objective.target == "number":
            raise ValueError(
                f"accuracy: {self.accuracy} is not allowed; expected 0, as numbers as targets have no accuracy"
            )
        return Server(ctx.theta0)

    def mask_of(self, server: Server, k: int, ctx: Ctx) -> Mask:
        """The mask that client k has now."""
        return server.masks[k].mask() if k in server.masks else torch.ones(ctx.layout.dim, dtype=torch.bool)

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values.of(server.theta, self.mask_of(server, k, ctx)))

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(torch.ones_like(ctx.theta0, dtype=torch.bool))

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        old = new = client.mask
        theta = self.personal(client, inbox, data, ctx)
        theta = train(self, theta, data.train, ctx, purpose="first", epochs=1, mask=old)
        early = self.candidate(old, theta, ctx)
        theta = train(self, theta, data.train, ctx, purpose="rest", epochs=self.epochs - 1, mask=old)
        late = self.candidate(old, theta, ctx)
        scope = masks.weights(ctx.layout)
        if (
            hamming(ctx.layout, early, late, scope) > self.distance
            and masks.density(ctx.layout, old, scope) > self.density
            and accuracy(ctx.task, theta * late, data.train) > self.accuracy
        ):
            new, theta = late, theta * late
        return Client(new), Message(mask=MaskChange.between(old, new), theta=Values.of(theta, new)), theta

    def candidate(self, mask: Mask, theta: Vector, ctx: Ctx) -> Mask:
        """The mask without the weights of each tensor that lie below the percentile of those alive."""
        scope = masks.weights(ctx.layout)
        alive = ctx.layout.counts(mask)
        counts = [below_percentile(n, self.prune_rate) * ok for n, ok in zip(alive, scope, strict=True)]
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

    def welcome(self, client: Client, inbox: Inbox, data: LocalData, epochs: int, ctx: Ctx) -> tuple[Client, Vector]:
        """A newcomer prunes what it receives as often as members have had the chance to, then tunes what is left."""
        theta, mask, scope = self.personal(client, inbox, data, ctx), client.mask, masks.weights(ctx.layout)
        for _ in range(ctx.t + 1):
            if masks.density(ctx.layout, mask, scope) > self.density:
                mask = self.candidate(mask, theta, ctx)
        return Client(mask), adapted(self, epochs, theta * mask, data, ctx, mask=mask)

    def shared(self, server: Server) -> Vector:
        return server.theta

    def forget(self, server: Server, k: int) -> Server:
        return replace(server, masks={j: mask for j, mask in server.masks.items() if j != k})


def hamming(layout: Layout, a: Mask, b: Mask, scope: masks.Scope | None = None) -> float:
    """The share of entries in which two masks differ, as the mean over the tensors in scope."""
    inside = masks.flags_in(layout, scope)
    shares = [n / size for n, size in zip(layout.counts(a != b), layout.sizes, strict=True)]
    return sum(compress(shares, inside)) / sum(inside)


def below_percentile(n: int, share: float) -> int:
    """How many of n different numbers lie strictly below their percentile ``share``, interpolated linearly."""
    masks.check_within("share", share, 0, 1)
    return math.ceil(share * (n - 1) - masks.SLIP) if n else 0
