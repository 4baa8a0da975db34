"""Ditto (Li et al., 2021): FedAvg plus a personal model per client, kept near the shared one by a proximal term."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from typing_extensions import Doc

from sparsona.core.descent import Pull
from sparsona.core.fields import Count, NonNegative
from sparsona.core.star import Answer, FineTuning, Weighting, fine_tuned, mean_model, whole_model
from sparsona.core.training import Ctx, State, StatefulTraining, train_on
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, LocalData, Vector


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    theta: Vector | None  # v_k; None: the common initial model
    states: tuple[State | None, State | None] = (None, None)  # what the optimisers of both trainings keep


@dataclass(frozen=True, kw_only=True)
class Ditto(FineTuning, Weighting, StatefulTraining):
    """Two models per client: ``epochs`` passes for the shared one, ``personal_epochs`` for its own."""

    personal_epochs: Annotated[Count, Doc("local epochs of the personal model")] = 1
    mu: Annotated[NonNegative, Doc("coefficient of the proximal term (lambda in the paper)")] = 0.5
    proximal: Annotated[
        Literal["loss", "step"],
        Doc("proximal term: added to the loss, or applied as a separate step after each SGD step"),
    ] = "loss"

    def start(self, clients: int, ctx: Ctx) -> Vector:
        return ctx.theta0

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values(server))

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(None)

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        received, own = inbox["server"]["theta"].values, self.personal(client, inbox, data, ctx)
        first, second = client.states
        shared, first = train_on(self, received, data.train, ctx, first, purpose="shared")
        pull = Pull(received, self.mu, self.proximal)
        own, second = train_on(self, own, data.train, ctx, second, epochs=self.personal_epochs, pull=pull)
        return Client(own, (first, second)), Message(theta=Values(shared), samples=len(data)), own

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:
        return whole_model(message, ctx)

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:
        return mean_model(server, inbox, self)

    def shared(self, server: Vector) -> Vector:
        return server

    def finish(self, shared: Vector, data: LocalData, ctx: Ctx) -> Vector:
        return fine_tuned(self, self.finish_epochs, shared, data, ctx)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        return ctx.theta0 if client.theta is None else client.theta
