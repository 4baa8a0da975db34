"""GossipFL (Tang et al., 2022): no server; groups of clients average a random part of their models.

As in the DA-DPFL paper's comparison, new groups are drawn each round (topology "groups"). Which weights are averaged
in a round is drawn from a key that all have, so that only their values travel. Biases, norms and buffers always do.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from typing_extensions import Doc

from sparsona.core import masks
from sparsona.core.aggregate import OverlapMean
from sparsona.core.fields import PositiveShare
from sparsona.core.rng import Rng
from sparsona.core.training import Ctx, Training, train
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, Layout, LocalData, Mask, Vector


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    theta: Vector


@lru_cache(maxsize=4)
def drawn(layout: Layout, keep: float, key: Rng) -> Mask:
    """Each prunable weight with probability ``keep``, and all else; one mask serves many clients. Not to be changed."""
    always = ~layout.spread(masks.weights(layout))
    return (key.uniform(layout.dim, device=layout.device) < keep) | always


@dataclass(frozen=True, kw_only=True)
class GossipFL(Training):
    """Whole models of which neighbours exchange a random part."""

    keep: Annotated[PositiveShare, Doc("probability that a weight is exchanged and averaged in a round")] = 0.5

    def selected(self, t: int, ctx: Ctx) -> Mask:
        """What is averaged in round t."""
        return drawn(ctx.layout, self.keep, ctx.common("gossip", t))

    def join(self, k: int, ctx: Ctx) -> Client | None:
        return None  # the common initial model

    def post(self, client: Client | None, ctx: Ctx) -> Message:
        return Message()  # which everybody has

    def local(self, client: Client | None, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        start = self.gathered(self.personal(client, inbox, data, ctx), inbox, ctx)
        theta = train(self, start, data.train, ctx)
        part = self.selected(ctx.t + 1, ctx)
        return Client(theta), Message(theta=Values.of(theta, part), round=ctx.t + 1), theta

    def gathered(self, own: Vector, inbox: Inbox, ctx: Ctx) -> Vector:
        """One's own model with the selected part replaced by its mean over the group."""
        now = self.selected(ctx.t, ctx)
        mean = OverlapMean(ctx.layout.dim)
        mean.add(own, now)
        for j in sorted((j for j in inbox if j not in ("self", "all")), key=str):
            message = inbox[j]
            if "theta" not in message:  # has not trained yet
                mean.add(ctx.theta0, now)
            else:
                # a message of another round, from a client that was absent or is late, states what both parts hold
                part = self.selected(message["round"], ctx)
                mean.add(message["theta"].at(part), part & now)
        return mean.value(otherwise=own)

    def personal(self, client: Client | None, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        return ctx.theta0 if client is None else client.theta
