"""Ditto (Li et al., 2021): FedAvg beside a personal model on each client that is held near the shared one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from sparsona.core.fields import Count, NonNegative
from sparsona.core.training import Ctx, train
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, LocalData, Vector
from sparsona.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Client:
    theta: Vector | None  # v_k; None: the common initial model


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg):
    """Two models per client: ``epochs`` passes for the shared one, ``personal_epochs`` for its own."""

    keeps_moments: ClassVar[bool] = False  # two trainings a round would need two of them
    personal_epochs: Count = 1  # passes for the personal model
    pull: NonNegative = 0.5  # lambda
    pull_as: Literal["loss", "step"] = "loss"  # a term of the loss, or a step of its own after each step

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(None)

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        received = inbox["server"]["theta"].values
        shared = train(self, received, data.train, ctx, purpose="shared")
        own = train(
            self,
            self.personal(client, inbox, data, ctx),
            data.train,
            ctx,
            epochs=self.personal_epochs,
            anchor=received,
            pull=self.pull,
            pull_as=self.pull_as,
        )
        return Client(own), Message(theta=Values(shared), samples=len(data)), own

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        return ctx.theta0 if client.theta is None else client.theta
