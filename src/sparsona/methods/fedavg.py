"""FedAvg (McMahan et al., 2017): all clients train the same model, and the server averages their weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparsona.core.star import (
    Answer,
    FineTuning,
    WeakClients,
    Weighting,
    fine_tuned,
    mean_model,
    pace,
    paced,
    whole_model,
)
from sparsona.core.training import Ctx, State, StatefulTraining, train_on
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, LocalData, Vector

Client = State | None  # what its optimiser keeps


@dataclass(frozen=True, kw_only=True)
class FedAvg(FineTuning, WeakClients, Weighting, StatefulTraining):
    """One shared model, tested as it is on every client."""

    def start(self, clients: int, ctx: Ctx) -> Vector:
        return ctx.theta0

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values(server), **pace(self, k))

    def join(self, k: int, ctx: Ctx) -> Client:
        return None

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        theta, client = paced(self, inbox).step(client, inbox["server"]["theta"].values, data, ctx)
        return client, Message(theta=Values(theta), samples=len(data)), theta

    def step(self, client: Client, theta: Vector, data: LocalData, ctx: Ctx) -> tuple[Vector, Client]:
        """Local training from the model received."""
        return train_on(self, theta, data.train, ctx, client)

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:
        return whole_model(message, ctx)

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:
        return mean_model(server, inbox, self)

    def shared(self, server: Vector) -> Vector:
        return server

    def finish(self, shared: Vector, data: LocalData, ctx: Ctx) -> Vector:
        return fine_tuned(self, self.finish_epochs, shared, data, ctx)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        theta: Vector = inbox["server"]["theta"].values
        return theta
