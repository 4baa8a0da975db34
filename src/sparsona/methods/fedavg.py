"""FedAvg (McMahan et al., 2017): everybody trains the same model, the server averages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from sparsona.core.aggregate import Mean
from sparsona.core.training import Ctx, Training, train_on
from sparsona.core.wire import Message, Values
from sparsona.method import Client, Inbox, LocalData, Vector

Answer = tuple[Vector, int]  # a model and the number of samples it was trained on


@dataclass(frozen=True, kw_only=True)
class FedAvg(Training):
    """One shared model, tested as it is on every client."""

    keeps_moments: ClassVar[bool] = True
    weighting: Literal["samples", "uniform"] = "samples"  # a client counts by its samples, or as any other

    def start(self, fleet: int, ctx: Ctx) -> Vector:
        return ctx.theta0

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values(server))

    def join(self, k: int, ctx: Ctx) -> Client:
        return None

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        theta, client = self.step(client, inbox["server"]["theta"].values, data, ctx)
        return client, Message(theta=Values(theta), samples=len(data)), theta

    def step(self, client: Client, theta: Vector, data: LocalData, ctx: Ctx) -> tuple[Vector, Client]:
        """Local training from the model received; a client is nothing, or what its optimiser keeps."""
        return train_on(self, theta, data.train, ctx, client)

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:
        return message.floats("theta", ctx.layout.dim), message.whole("samples", 1)

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:
        mean = Mean(ctx.layout.dim)
        for _, (theta, samples) in inbox:
            mean.add(theta, samples if self.weighting == "samples" else 1)
        return mean.value(otherwise=server)

    def shared(self, server: Vector) -> Vector:
        return server

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        theta: Vector = inbox["server"]["theta"].values
        return theta
