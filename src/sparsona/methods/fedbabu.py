"""FedBABU (Oh et al., 2022): the body is trained and averaged, the head stays as it was drawn until the very end.

All devices hold the same random head, which never travels. At the end each device tunes the whole model for itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparsona.core.layout import Layout, Mask, replaced
from sparsona.core.training import Ctx, train_on
from sparsona.core.wire import Message, Values
from sparsona.method import Client, Inbox, LocalData, Vector
from sparsona.methods.fedavg import Answer, FedAvg


@dataclass(frozen=True, kw_only=True)
class FedBABU(FedAvg):
    """A shared body under a common random head, tuned by each client at the end."""

    def start(self, fleet: int, ctx: Ctx) -> Vector:
        if not ctx.layout.head.any():
            raise ValueError("name: it freezes the head, and this model has none; say which by its class's head_name")
        return ctx.theta0

    def body(self, layout: Layout) -> Mask:
        """What is federated."""
        return ~layout.head

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values.of(server, self.body(ctx.layout)), **self.pace(k))

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        theta, client = self.paced(inbox).step(client, self.personal(client, inbox, data, ctx), data, ctx)
        return client, Message(theta=Values.of(theta, self.body(ctx.layout)), samples=len(data)), theta

    def step(self, client: Client, theta: Vector, data: LocalData, ctx: Ctx) -> tuple[Vector, Client]:
        return train_on(self, theta, data.train, ctx, client, move=self.body(ctx.layout))

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:
        body = self.body(ctx.layout)
        values = message.floats("theta", int(torch.count_nonzero(body)))
        return replaced(server, body, values), message.whole("samples", 1)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        return replaced(ctx.theta0, self.body(ctx.layout), inbox["server"]["theta"].values)
