"""Ditto (Li et al., 2021): FedAvg beside a personal model on each client that is held near the shared one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparsona.core.fields import Count, NonNegative
from sparsona.core.training import Ctx, State, train_on
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, LocalData, Vector
from sparsona.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Client:
    theta: Vector | None  # v_k; None: the common initial model
    states: tuple[State | None, State | None] = (None, None)  # what the optimisers of both trainings keep


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg):
    """Two models per client: ``epochs`` passes for the shared one, ``personal_epochs`` for its own."""

    personal_epochs: Count = 1  # passes for the personal model
    pull: NonNegative = 0.5  # lambda
    pull_as: Literal["loss", "step"] = "loss"  # a term of the loss, or a step of its own after each step

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(None)

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        received = inbox["server"]["theta"].values
        shared, first = train_on(self, received, data.train, ctx, client.states[0], purpose="shared")
        own, second = train_on(
            self,
            self.personal(client, inbox, data, ctx),
            data.train,
            ctx,
            client.states[1],
            epochs=self.personal_epochs,
            anchor=received,
            pull=self.pull,
            pull_as=self.pull_as,
        )
        return Client(own, (first, second)), Message(theta=Values(shared), samples=len(data)), own

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        return ctx.theta0 if client.theta is None else client.theta
