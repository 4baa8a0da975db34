"""Local training only: every client has its own model and sends nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparsona.core.training import Ctx, State, StatefulTraining, train_on
from sparsona.core.wire import Message
from sparsona.method import Inbox, LocalData, Vector


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    theta: Vector | None  # None: the common initial model
    state: State | None = None  # what its optimiser keeps


@dataclass(frozen=True, kw_only=True)
class Local(StatefulTraining):
    """K independent models; the server only says whose turn it is."""

    def start(self, clients: int, ctx: Ctx) -> None:
        return None

    def down(self, server: None, k: int, ctx: Ctx) -> Message:
        return Message()

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(None)

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        theta, state = train_on(self, self.personal(client, inbox, data, ctx), data.train, ctx, client.state)
        return Client(theta, state), Message(), theta

    def read(self, server: None, k: int, message: Message, ctx: Ctx) -> None:
        return None

    def merge(self, server: None, inbox: Iterable[tuple[int, None]], ctx: Ctx) -> None:
        return None

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        return ctx.theta0 if client.theta is None else client.theta
