"""PerFedMask with Split-Mix: narrow models side by side, and in each of them weak devices freeze layers.

All bases have the same layers, so one design of masks serves them all: a device trains the same layers in each base
that it is given. The head of each base stays as it was drawn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparsona.core.aggregate import OverlapMean
from sparsona.core.fields import Count
from sparsona.core.portable import Bases
from sparsona.core.training import Ctx, train
from sparsona.core.wire import Bits, Message, Values
from sparsona.method import Inbox, LocalData, Mask, Vector
from sparsona.methods.perfedmask import Answer, PerFedMask, Server
from sparsona.methods.splitmix import few, first_bases, rotation, told


@dataclass(frozen=True, kw_only=True)
class PerFedMaskSplitMix(PerFedMask):
    """Split-Mix under PerFedMask's layer masks and frozen heads."""

    keeps_moments: ClassVar[bool] = False
    bases: Count = 8  # how many narrow models, each as model.width makes it
    weak_bases: Count = 1  # how many of them a weak device trains in a round; the strong train all

    def __post_init__(self) -> None:
        super().__post_init__()
        few(self.bases, self.weak_bases)
        if isinstance(self.budget, tuple):
            raise ValueError("budget: a list; with bases only a number or what to draw it from is allowed")

    def start(self, fleet: int, ctx: Ctx) -> Server:  # type: ignore[override]
        return Server(first_bases(self.bases, ctx).flatten(), super().start(fleet, ctx).layers)

    def chosen(self, server: Server, k: int, ctx: Ctx) -> Mask:
        """The bases of device k in this round."""
        each = self.weak_bases if k < self.weak_of(len(server.layers)) else self.bases
        return rotation(self.bases, each, k, ctx.t, ctx.common)

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:  # type: ignore[override]
        chosen, body = self.chosen(server, k, ctx), self.body(ctx.layout)
        rows = server.theta.view(self.bases, -1)[chosen][:, body]
        layers = self.told_layers(server, k)
        return Message(theta=Values(rows.flatten()), bases=Bits(chosen), layers=layers, **self.pace(k))

    def received(self, inbox: Inbox, ctx: Ctx) -> Tensor:
        """The bases that came, under the heads that all know: [n, d]."""
        chosen, body = told(inbox, self.bases), self.body(ctx.layout)
        rows = first_bases(self.bases, ctx)[chosen]
        rows[:, body] = inbox["server"].floats("theta", int(chosen.sum() * body.sum())).view(len(rows), -1)
        return rows

    def local(self, client: None, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[None, Message, Bases]:  # type: ignore[override]
        how, move = self.paced(inbox), self.moving(ctx.layout, inbox["server"].part("layers", Bits).mask)
        rows = torch.stack([train(how, base, data.train, ctx, move=move) for base in self.received(inbox, ctx)])
        return None, Message(theta=Values(rows[:, move].flatten()), samples=len(data)), Bases(ctx.task, rows)

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> Answer:  # type: ignore[override]
        move = self.moving(ctx.layout, server.layers[k])
        held = (self.chosen(server, k, ctx)[:, None] & move).flatten()
        return message.floats("theta", int(torch.count_nonzero(held))), held, message.whole("samples", 1)

    def merge(self, server: Server, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Server:  # type: ignore[override]
        mean = OverlapMean(len(server.theta))
        for _, (values, held, samples) in inbox:
            mean.add(values, held, samples if self.weighting == "samples" else 1)
        return Server(mean.value(otherwise=server.theta), server.layers)

    def opened(self, shared: Vector, ctx: Ctx) -> Bases:
        return Bases(ctx.task, shared.view(self.bases, -1))

    def finish(self, theta: Vector, data: LocalData, ctx: Ctx) -> Bases:  # type: ignore[override]
        rows = theta.view(self.bases, -1)
        tuned = [train(self, base, data.train, ctx, purpose="finish", epochs=self.finish_epochs) for base in rows]
        return Bases(ctx.task, torch.stack(tuned))

    def personal(self, client: None, inbox: Inbox, data: LocalData, ctx: Ctx) -> Bases:  # type: ignore[override]
        return Bases(ctx.task, self.received(inbox, ctx))
