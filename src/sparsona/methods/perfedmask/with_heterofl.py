"""PerFedMask with HeteroFL: weak devices hold only the first channels, and freeze some of their layers.

Their masks are designed within the narrow part, which all devices hold: its layers' sizes, and budgets that are shares
of its body. Strong devices hold and train everything. Each entry is averaged over those who both hold and train it.
Nothing frozen and the head trained (``budget = 1``, ``freeze_head = false``), it is HeteroFL.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from typing_extensions import Doc

from sparsona.core.fields import PositiveShare
from sparsona.core.layout import replaced
from sparsona.core.star import PartAnswer, adapted, fine_tuned, mean_of_parts, pace, paced
from sparsona.core.training import Ctx, State, StatefulTraining, train_on
from sparsona.core.wire import Bits, Message, Values, WireError
from sparsona.method import Inbox, Layout, LocalData, Mask, Report, Vector
from sparsona.methods.heterofl import leading
from sparsona.methods.perfedmask.layers import LayerMasks, Server, Sizes, first_layers, layers_for, report_layers

Client = State | None  # what its optimiser keeps


def held_by(layout: Layout, width: float) -> Mask:
    """What a device of this width holds."""
    return leading(layout, width**2)


def sent_width(inbox: Inbox) -> float:
    """The width that the server sent."""
    width = inbox["server"].part("width", float)
    if not 0 < width <= 1:
        raise WireError(f"a width of {width} was sent, not one above 0 and at most 1")
    return width


@dataclass(frozen=True, kw_only=True)
class PerFedMaskHeteroFL(LayerMasks, StatefulTraining):
    """HeteroFL under PerFedMask's layer masks and frozen head."""

    width: Annotated[PositiveShare, Doc("fraction of the channels that a weak client holds")] = 0.125
    scaler: Annotated[
        bool, Doc("divide the outputs of narrowed layers by their width in training; not needed with normalisation")
    ] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.budget, tuple):
            raise ValueError(
                "budget: a list is not allowed with width; expected a float or a table that it is drawn from"
            )

    def layers(self, layout: Layout) -> Sizes:
        """Sizes of the layers that masks are made of: those of the narrow part."""
        sizes = [0] * (len(layout.groups) + 1)  # the head's comes last
        for slot, count in zip(layout.slots, layout.counts(held_by(layout, self.width)), strict=True):
            if slot.kind != "buffer":
                sizes[-1 if slot.head else slot.group] += count
        return tuple(n for n in (sizes[:-1] if self.freeze_head else sizes) if n)

    def start(self, clients: int, ctx: Ctx) -> Server:
        return Server(ctx.theta0, first_layers(self, clients, ctx))

    def width_of(self, server: Server, k: int) -> float:
        """The width of device k."""
        return self.width if k < self.weak_of(len(server.layers)) else 1.0

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:
        width = self.width_of(server, k)
        theta = Values.of(server.theta, held_by(ctx.layout, width) & self.body(ctx.layout))
        return Message(theta=theta, layers=layers_for(server, k), width=width, **pace(self, k))

    def join(self, k: int, ctx: Ctx) -> Client:
        return None

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        width = sent_width(inbox)
        part = held_by(ctx.layout, width)
        move = self.moving(ctx.layout, inbox["server"].part("layers", Bits).mask) & part
        theta = self.personal(client, inbox, data, ctx)
        with ctx.task.scaled(math.sqrt(width**2) if self.scaler else 1.0):  # as HeteroFL has it, to the bit
            theta, client = train_on(paced(self, inbox), theta, data.train, ctx, client, mask=part, move=move)
        return client, Message(theta=Values.of(theta, move), samples=len(data)), theta

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> PartAnswer:
        move = self.moving(ctx.layout, server.layers[k]) & held_by(ctx.layout, self.width_of(server, k))
        return message.floats("theta", int(torch.count_nonzero(move))), move, message.whole("samples", 1)

    def merge(self, server: Server, inbox: Iterable[tuple[int, PartAnswer]], ctx: Ctx) -> Server:
        return Server(mean_of_parts(server.theta, inbox, self), server.layers)

    def shared(self, server: Server) -> Vector:
        return server.theta

    def finish(self, shared: Vector, data: LocalData, ctx: Ctx) -> Vector:
        return fine_tuned(self, self.finish_epochs, shared, data, ctx)

    def welcome(self, client: Client, inbox: Inbox, data: LocalData, epochs: int, ctx: Ctx) -> tuple[Client, Vector]:
        width = sent_width(inbox)
        part = held_by(ctx.layout, width)
        move = self.tuning(ctx.layout, inbox["server"].part("layers", Bits).mask) & part
        theta = self.personal(client, inbox, data, ctx)
        with ctx.task.scaled(math.sqrt(width**2) if self.scaler else 1.0):
            return client, adapted(self, epochs, theta, data, ctx, mask=part, move=move)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        part = held_by(ctx.layout, sent_width(inbox))
        held = part & self.body(ctx.layout)
        values = inbox["server"].floats("theta", int(torch.count_nonzero(held)))
        return replaced(ctx.theta0 * part, held, values)

    def report(self, client: Client, server: Server | None, k: int, ctx: Ctx) -> Report:
        return report_layers(server, k)
