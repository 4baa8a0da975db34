"""DFedAvgM (Sun et al., 2022): decentralised FedAvg with momentum and half-precision updates.

As in the DA-DPFL paper's comparison, updates travel in half precision. A client moves its model by the mean of the last
updates of its neighbours and itself, trains from there, and sends its update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from typing_extensions import Doc

from sparsona.core.aggregate import Mean
from sparsona.core.fields import Share
from sparsona.core.training import Ctx, Training, train
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, LocalData, Topology, Vector, of_last_round


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    # where training last started, not where it ended: its own update comes back in the next round's mean
    start: Vector


@dataclass(frozen=True, kw_only=True)
class DFedAvgM(Training):
    """Clients without a server exchange updates in half precision."""

    momentum: Annotated[Share, Doc("SGD momentum")] = 0.9

    def check(self, clients: int, topology: Topology, ctx: Ctx | None) -> None:
        if topology.max_wait:
            allowed = "expected 0, as DFedAvgM averages the updates of the previous round"
            raise ValueError(f"topology.max_wait: {topology.max_wait} is not allowed; {allowed}")

    def join(self, k: int, ctx: Ctx) -> Client | None:
        return None  # the common initial model

    def post(self, client: Client | None, ctx: Ctx) -> Message:
        return Message()  # no update yet

    def local(self, client: Client | None, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        start = self.last(client, ctx) + self.step(inbox, ctx)
        theta = train(self, start, data.train, ctx)
        update = (theta - start).to(torch.float16)  # too large a step becomes Inf, and its client is left out
        return Client(start), Message(update=Values(update), samples=len(data), round=ctx.t), theta

    def last(self, client: Client | None, ctx: Ctx) -> Vector:
        """Where training last started."""
        return ctx.theta0 if client is None else client.start

    def step(self, inbox: Inbox, ctx: Ctx) -> Vector:
        """The mean, by samples, of the last updates of the clients that trained, this one included."""
        mean = Mean(ctx.layout.dim)
        for j in of_last_round(inbox, ctx):
            if "update" in inbox[j]:
                mean.add(inbox[j]["update"].values, inbox[j]["samples"])
        return mean.value(otherwise=torch.zeros_like(ctx.theta0))

    def personal(self, client: Client | None, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        own, start = inbox["self"], self.last(client, ctx)
        return start + own["update"].values if "update" in own else start
