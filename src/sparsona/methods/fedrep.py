"""FedRep (Collins et al., 2021): a shared body, and a personal head on each client."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

from typing_extensions import Doc

from sparsona.core.fields import Count, Positive
from sparsona.core.layout import picked, replaced
from sparsona.core.star import mean_model
from sparsona.core.training import Ctx, MaskedClip, State, StatefulTraining, train_on
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, LocalData, Vector

Answer = tuple[Vector, int]  # a body and the number of samples it was trained on


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    head: Vector | None  # None: the common initial one
    states: tuple[State | None, State | None] = (None, None)  # what the optimisers of head and body keep


@dataclass(frozen=True, kw_only=True)
class FedRep(MaskedClip, StatefulTraining):
    """Each round the head is trained first, then the body; only bodies travel."""

    head_epochs: Annotated[Count, Doc("local epochs of the head, with the body frozen")] = 1
    head_lr: Annotated[Positive, Doc("learning rate of the head")] = 0.1

    def start(self, clients: int, ctx: Ctx) -> Vector:
        if not ctx.layout.head.any():
            raise ValueError("name: fedrep needs a head, and this model has none; set head_name in the model's class")
        return picked(ctx.theta0, ~ctx.layout.head)

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(body=Values(server))

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(None)

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        head, theta = ctx.layout.head, self.personal(client, inbox, data, ctx)
        own = replace(self, lr=self.head_lr)
        upper, lower = client.states
        theta, upper = train_on(own, theta, data.train, ctx, upper, purpose="head", epochs=self.head_epochs, move=head)
        theta, lower = train_on(self, theta, data.train, ctx, lower, purpose="body", move=~head)
        new = Client(picked(theta, head), (upper, lower))
        return new, Message(body=Values.of(theta, ~head), samples=len(data)), theta

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:
        return message.floats("body", len(server)), message.whole("samples", 1)

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:
        return mean_model(server, inbox)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        theta = replaced(ctx.theta0, ~ctx.layout.head, inbox["server"]["body"].values)
        return theta if client.head is None else replaced(theta, ctx.layout.head, client.head)
