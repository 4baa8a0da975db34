"""PerFedMask with HeteroFL: weak devices hold the leading channels of the model, and freeze layers of that part.

Their masks are designed within the narrow part, which all devices hold: its layers' sizes, and budgets that are shares
of its body. Strong devices hold and train everything. Each entry is averaged over those who both hold and train it.
Nothing frozen and the head trained (``budget = 1``, ``freeze_head = false``), it is HeteroFL.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from sparsona.core.fields import PositiveShare
from sparsona.core.layout import replaced
from sparsona.core.training import Ctx, train_on
from sparsona.core.wire import Bits, Message, Values, WireError
from sparsona.method import Client, Inbox, Layout, LocalData, Mask, Vector
from sparsona.methods.heterofl import leading
from sparsona.methods.perfedmask import Answer, PerFedMask, Server


@dataclass(frozen=True, kw_only=True)
class PerFedMaskHeteroFL(PerFedMask):
    """HeteroFL under PerFedMask's layer masks and frozen head."""

    width: PositiveShare = 0.125  # share of the channels that a weak device holds
    scaler: bool = True  # divide outputs of narrowed layers by their width in training; normalised models need none

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.budget, tuple):
            raise ValueError("budget: a list; with a width only a number or what to draw it from is allowed")

    def part(self, layout: Layout, width: float) -> Mask:
        """What a device of this width holds."""
        return leading(layout, width**2)

    def layers(self, layout: Layout) -> tuple[int, ...]:
        sizes = [0] * (len(layout.groups) + 1)  # the head's comes last
        for slot, count in zip(layout.slots, layout.counts(self.part(layout, self.width)), strict=True):
            if slot.kind != "buffer":
                sizes[-1 if slot.head else slot.group] += count
        return tuple(n for n in (sizes[:-1] if self.freeze_head else sizes) if n)

    def width_of(self, server: Server, k: int) -> float:
        """The width of device k."""
        return self.width if k < self.weak_of(len(server.layers)) else 1.0

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:  # type: ignore[override]
        width = self.width_of(server, k)
        held = self.part(ctx.layout, width) & self.body(ctx.layout)
        layers = self.told_layers(server, k)
        return Message(theta=Values.of(server.theta, held), layers=layers, width=width, **self.pace(k))

    def told(self, inbox: Inbox) -> float:
        """The width that the server told."""
        width = inbox["server"].part("width", float)
        if not 0 < width <= 1:
            raise WireError(f"a width of {width} was sent, not one above 0 and at most 1")
        return width

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        width = self.told(inbox)
        part = self.part(ctx.layout, width)
        move = self.moving(ctx.layout, inbox["server"].part("layers", Bits).mask) & part
        theta = self.personal(client, inbox, data, ctx)
        with ctx.task.scaled(math.sqrt(width**2) if self.scaler else 1.0):  # as HeteroFL has it, to the bit
            theta, client = train_on(self.paced(inbox), theta, data.train, ctx, client, mask=part, move=move)
        return client, Message(theta=Values.of(theta, move), samples=len(data)), theta

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> Answer:  # type: ignore[override]
        move = self.moving(ctx.layout, server.layers[k]) & self.part(ctx.layout, self.width_of(server, k))
        return message.floats("theta", int(torch.count_nonzero(move))), move, message.whole("samples", 1)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        part = self.part(ctx.layout, self.told(inbox))
        held = part & self.body(ctx.layout)
        values = inbox["server"].floats("theta", int(torch.count_nonzero(held)))
        return replaced(ctx.theta0 * part, held, values)
