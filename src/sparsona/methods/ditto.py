"""Ditto (Li et al., 2021): FedAvg beside a personal model on each client that is held near the shared one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sparsona.core.aggregate import Mean
from sparsona.core.fields import Count, NonNegative
from sparsona.core.training import Ctx, Training, train
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, LocalData, Vector


@dataclass(frozen=True)
class Client:
    personal: Vector | None  # v_k; None: the common initial model


@dataclass(frozen=True, kw_only=True)
class Ditto(Training):
    """Two models per client: ``epochs`` passes for the shared one, ``personal_epochs`` for its own."""

    personal_epochs: Count = 1
    pull: NonNegative = 0.5  # lambda
    pull_as: Literal["loss", "step"] = "loss"  # a term of the loss, or a step of its own after each step
    weighting: Literal["samples", "uniform"] = "samples"

    def start(self, fleet: int, ctx: Ctx) -> Vector:
        return ctx.theta0

    def down(self, server: Vector, k: int) -> Message:
        return Message(theta=Values(server))

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(None)

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        received = inbox["server"]["theta"].values
        shared = train(self, received, data.train, ctx, purpose="shared")
        personal = train(
            self,
            self.personal(client, inbox, data, ctx),
            data.train,
            ctx,
            epochs=self.personal_epochs,
            anchor=received,
            pull=self.pull,
            pull_as=self.pull_as,
        )
        return Client(personal), Message(theta=Values(shared), samples=len(data)), personal

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Message]], ctx: Ctx) -> Vector:
        mean = Mean(ctx.layout.dim)
        for _, m in inbox:
            mean.add(m["theta"].values, m["samples"] if self.weighting == "samples" else 1)
        return mean.value(otherwise=server)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        return ctx.theta0 if client.personal is None else client.personal
