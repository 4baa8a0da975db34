"""PerFedMask (Setayesh et al., 2023): weak devices freeze layers; the layers are chosen once to minimise bias.

The head stays as it was drawn (FedBABU). Of the body each device trains whole layers, within its budget of parameters;
which ones, an optimiser decides before the first round. The server averages each entry over the participants that
train it. At the end each device tunes the whole model for itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from sparsona.core.layout import replaced
from sparsona.core.star import PartAnswer, adapted, fine_tuned, mean_of_parts, pace, paced
from sparsona.core.training import Ctx, State, StatefulTraining, train_on
from sparsona.core.wire import Bits, Message, Values
from sparsona.method import Inbox, LocalData, Report, Vector
from sparsona.methods.perfedmask.layers import LayerMasks, Server, first_layers, layers_for, report_layers

Client = State | None  # what its optimiser keeps


@dataclass(frozen=True, kw_only=True)
class PerFedMask(LayerMasks, StatefulTraining):
    """Layer masks within budgets, designed once; a common random head; tuning at the end."""

    def start(self, clients: int, ctx: Ctx) -> Server:
        return Server(ctx.theta0, first_layers(self, clients, ctx))

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:
        body = Values.of(server.theta, self.body(ctx.layout))
        return Message(theta=body, layers=layers_for(server, k), **pace(self, k))

    def join(self, k: int, ctx: Ctx) -> Client:
        return None

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        move = self.moving(ctx.layout, inbox["server"].part("layers", Bits).mask)
        theta = self.personal(client, inbox, data, ctx)
        theta, client = train_on(paced(self, inbox), theta, data.train, ctx, client, move=move)
        return client, Message(theta=Values.of(theta, move), samples=len(data)), theta

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> PartAnswer:
        move = self.moving(ctx.layout, server.layers[k])
        return message.floats("theta", int(torch.count_nonzero(move))), move, message.whole("samples", 1)

    def merge(self, server: Server, inbox: Iterable[tuple[int, PartAnswer]], ctx: Ctx) -> Server:
        return Server(mean_of_parts(server.theta, inbox, self), server.layers)

    def shared(self, server: Server) -> Vector:
        return server.theta

    def finish(self, shared: Vector, data: LocalData, ctx: Ctx) -> Vector:
        return fine_tuned(self, self.finish_epochs, shared, data, ctx)

    def welcome(self, client: Client, inbox: Inbox, data: LocalData, epochs: int, ctx: Ctx) -> tuple[Client, Vector]:
        move = self.tuning(ctx.layout, inbox["server"].part("layers", Bits).mask)
        return client, adapted(self, epochs, self.personal(client, inbox, data, ctx), data, ctx, move=move)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        return replaced(ctx.theta0, self.body(ctx.layout), inbox["server"]["theta"].values)

    def report(self, client: Client, server: Server | None, k: int, ctx: Ctx) -> Report:
        return report_layers(server, k)
