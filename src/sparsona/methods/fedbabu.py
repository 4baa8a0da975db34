"""FedBABU (Oh et al., 2022): trains and averages the body; the head keeps its initial weights until fine-tuning.

All devices hold the same random head, which never travels. At the end each device tunes the whole model for itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from sparsona.core.layout import replaced
from sparsona.core.star import Answer, FineTuning, WeakClients, Weighting, fine_tuned, mean_model, pace, paced
from sparsona.core.training import Ctx, MaskedClip, State, StatefulTraining, train_on
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, Layout, LocalData, Vector

Client = State | None  # what its optimiser keeps


def needs_head(layout: Layout) -> None:
    """ValueError if the model has no head to freeze."""
    if not layout.head.any():
        raise ValueError(
            "name: the method freezes the head, and this model has none; set head_name in the model's class"
        )


@dataclass(frozen=True, kw_only=True)
class FedBABU(FineTuning, WeakClients, Weighting, MaskedClip, StatefulTraining):
    """A shared body under a common random head, tuned by each client at the end."""

    def start(self, clients: int, ctx: Ctx) -> Vector:
        needs_head(ctx.layout)
        return ctx.theta0

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values.of(server, ~ctx.layout.head), **pace(self, k))

    def join(self, k: int, ctx: Ctx) -> Client:
        return None

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        body, theta = ~ctx.layout.head, self.personal(client, inbox, data, ctx)
        theta, client = train_on(paced(self, inbox), theta, data.train, ctx, client, move=body)
        return client, Message(theta=Values.of(theta, body), samples=len(data)), theta

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:
        body = ~ctx.layout.head
        values = message.floats("theta", int(torch.count_nonzero(body)))
        return replaced(server, body, values), message.whole("samples", 1)

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:
        return mean_model(server, inbox, self)

    def shared(self, server: Vector) -> Vector:
        return server

    def finish(self, shared: Vector, data: LocalData, ctx: Ctx) -> Vector:
        return fine_tuned(self, self.finish_epochs, shared, data, ctx)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        return replaced(ctx.theta0, ~ctx.layout.head, inbox["server"]["theta"].values)
