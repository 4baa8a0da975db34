"""FedAvg (McMahan et al., 2017): everybody trains the same model, the server averages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from sparsona.core.aggregate import Mean
from sparsona.core.fields import Count, Natural
from sparsona.core.training import Ctx, Training, train, train_on
from sparsona.core.wire import Message, Values
from sparsona.method import Client, Inbox, LocalData, Vector

Answer = tuple[Vector, int]  # a model and the number of samples it was trained on


@dataclass(frozen=True, kw_only=True)
class FedAvg(Training):
    """One shared model, tested as it is on every client."""

    keeps_moments: ClassVar[bool] = True
    weighting: Literal["samples", "uniform"] = "samples"  # a client counts by its samples, or as any other
    weak: Natural = 0  # the first so many clients are weak
    weak_epochs: Count | None = None  # passes of a weak client; as many as of any other if left out
    finish_epochs: Natural = 5  # passes over the whole model at the end, if evaluate.points asks for "finished"

    def start(self, fleet: int, ctx: Ctx) -> Vector:
        return ctx.theta0

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values(server), **self.pace(k))

    def pace(self, k: int) -> dict[str, int]:
        """What client k is told of its passes, if it is weak."""
        return {} if self.weak_epochs is None or k >= self.weak else {"epochs": self.weak_epochs}

    def paced(self, inbox: Inbox) -> Self:
        """The method with the passes that the server told."""
        message = inbox["server"]
        return replace(self, epochs=message.whole("epochs", 1)) if "epochs" in message else self

    def join(self, k: int, ctx: Ctx) -> Client:
        return None

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        theta, client = self.paced(inbox).step(client, inbox["server"]["theta"].values, data, ctx)
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

    def finish(self, theta: Vector, data: LocalData, ctx: Ctx) -> Vector:
        return train(self, theta, data.train, ctx, purpose="finish", epochs=self.finish_epochs)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        theta: Vector = inbox["server"]["theta"].values
        return theta
