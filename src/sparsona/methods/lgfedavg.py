"""LG-FedAvg (Liang et al., 2020): lower layers stay local; upper layers are shared and averaged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from typing_extensions import Doc

from sparsona.core.aggregate import Mean
from sparsona.core.fields import Natural
from sparsona.core.layout import picked, replaced
from sparsona.core.training import Ctx, State, StatefulTraining, train_on
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, LocalData, Mask, Vector

Answer = tuple[Vector, int]  # what is shared, or in the warm-up a whole model, and the number of samples


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    own: Vector | None  # what is not shared; None: that of the model received, or the common initial one
    state: State | None = None  # what its optimiser keeps


@dataclass(frozen=True)
class Server:
    """What the server keeps between rounds."""

    theta: Vector
    met: tuple[int, ...] = ()  # clients that have a personal part by now


@dataclass(frozen=True, kw_only=True)
class LGFedAvg(StatefulTraining):
    """Everything is trained together; only shared tensors travel."""

    share: Annotated[
        Literal["linear", "convolutions", "head"], Doc("which layers are shared; all other layers stay local")
    ] = "linear"
    warmup: Annotated[Natural, Doc("rounds of FedAvg on the whole model at the start")] = 0

    def mask(self, ctx: Ctx) -> Mask:
        """What is shared."""
        if self.share == "head":
            return ctx.layout.head
        dims = {s.layer: len(s.shape) for s in ctx.layout.slots if s.kind == "weight"}
        return ctx.layout.spread([(dims.get(s.layer, 0) == 2) == (self.share == "linear") for s in ctx.layout.slots])

    def start(self, clients: int, ctx: Ctx) -> Server:
        if self.mask(ctx).all() or not self.mask(ctx).any():
            raise ValueError(f'share: "{self.share}" selects all or none of this model; expected a part of its layers')
        return Server(ctx.theta0)

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:
        if self.warmup and k not in server.met:
            return Message(theta=Values(server.theta))
        return Message(theta=Values.of(server.theta, self.mask(ctx)))

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(None)

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        mask, theta = self.mask(ctx), self.personal(client, inbox, data, ctx)
        theta, state = train_on(self, theta, data.train, ctx, client.state)
        if ctx.t < self.warmup:
            return Client(client.own, state), Message(theta=Values(theta), samples=len(data)), theta
        return Client(picked(theta, ~mask), state), Message(theta=Values.of(theta, mask), samples=len(data)), theta

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> Answer:
        size = ctx.layout.dim if ctx.t < self.warmup else int(self.mask(ctx).count_nonzero())
        return message.floats("theta", size), message.whole("samples", 1)

    def merge(self, server: Server, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Server:
        mask, mean, met = self.mask(ctx), Mean(ctx.layout.dim), set(server.met)
        for k, (values, samples) in inbox:
            mean.add(values if ctx.t < self.warmup else replaced(server.theta, mask, values), samples)
            if 0 < self.warmup <= ctx.t:
                met.add(k)
        return Server(mean.value(otherwise=server.theta), tuple(sorted(met)))

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        values: Vector = inbox["server"]["theta"].values
        theta = values if len(values) == ctx.layout.dim else replaced(ctx.theta0, self.mask(ctx), values)
        return theta if client.own is None else replaced(theta, ~self.mask(ctx), client.own)

    def forget(self, server: Server, k: int) -> Server:
        return replace(server, met=tuple(j for j in server.met if j != k))
