"""PerFedMask with Split-Mix: several narrow base models; weak devices freeze some layers of each.

All bases have the same layers, so one design of masks serves them all: a device trains the same layers in each base
that it is given. The head of each base stays as it was drawn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import Doc

from sparsona.core.fields import Count
from sparsona.core.star import PartAnswer, adapted, fine_tuned, mean_of_parts, pace, paced
from sparsona.core.training import Ctx, Training, train
from sparsona.core.wire import Bits, Message, Values
from sparsona.method import Client, Inbox, LocalData, Mask, Report
from sparsona.methods.perfedmask.layers import LayerMasks, Server, first_layers, layers_for, report_layers
from sparsona.methods.splitmix import check_bases, first_bases, rotation, sent_bases


@dataclass(frozen=True, kw_only=True)
class PerFedMaskSplitMix(LayerMasks, Training):
    """Split-Mix under PerFedMask's layer masks and frozen heads."""

    bases: Annotated[Count, Doc("number of narrow base models; model.width sets their width")] = 8
    weak_bases: Annotated[
        Count, Doc("base models that a weak client trains per round; other clients train all of them")
    ] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bases(self.bases, self.weak_bases)
        if isinstance(self.budget, tuple):
            raise ValueError(
                "budget: a list is not allowed with bases; expected a float or a table that it is drawn from"
            )

    def start(self, clients: int, ctx: Ctx) -> Server:
        return Server(first_bases(self.bases, ctx).flatten(), first_layers(self, clients, ctx))

    def chosen(self, server: Server, k: int, ctx: Ctx) -> Mask:
        """The bases of device k in this round."""
        each = self.weak_bases if k < self.weak_of(len(server.layers)) else self.bases
        return rotation(self.bases, each, k, ctx.t, ctx.common)

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:
        chosen, body = self.chosen(server, k, ctx), self.body(ctx.layout)
        rows = server.theta.view(self.bases, -1)[chosen][:, body]
        layers = layers_for(server, k)
        return Message(theta=Values(rows.flatten()), bases=Bits(chosen), layers=layers, **pace(self, k))

    def join(self, k: int, ctx: Ctx) -> None:
        return None

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[None, Message, Tensor]:
        training, move = paced(self, inbox), self.moving(ctx.layout, inbox["server"].part("layers", Bits).mask)
        bases = self.personal(client, inbox, data, ctx)
        rows = torch.stack([train(training, base, data.train, ctx, move=move) for base in bases])
        return None, Message(theta=Values(rows[:, move].flatten()), samples=len(data)), rows

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> PartAnswer:
        move = self.moving(ctx.layout, server.layers[k])
        held = (self.chosen(server, k, ctx)[:, None] & move).flatten()
        return message.floats("theta", int(torch.count_nonzero(held))), held, message.whole("samples", 1)

    def merge(self, server: Server, inbox: Iterable[tuple[int, PartAnswer]], ctx: Ctx) -> Server:
        return Server(mean_of_parts(server.theta, inbox, self), server.layers)

    def shared(self, server: Server) -> Tensor:
        return server.theta.view(self.bases, -1)

    def finish(self, shared: Tensor, data: LocalData, ctx: Ctx) -> Tensor:
        return torch.stack([fine_tuned(self, self.finish_epochs, base, data, ctx) for base in shared])

    def welcome(self, client: Client, inbox: Inbox, data: LocalData, epochs: int, ctx: Ctx) -> tuple[Client, Tensor]:
        move = self.tuning(ctx.layout, inbox["server"].part("layers", Bits).mask)
        bases = self.personal(client, inbox, data, ctx)
        return client, torch.stack([adapted(self, epochs, base, data, ctx, move=move) for base in bases])

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Tensor:
        """The bases that came, under the heads that all know: [n, d]."""
        chosen, body = sent_bases(inbox, self.bases), self.body(ctx.layout)
        rows = first_bases(self.bases, ctx)[chosen]
        rows[:, body] = inbox["server"].floats("theta", int(chosen.sum() * body.sum())).view(len(rows), -1)
        return rows

    def report(self, client: Client, server: Server | None, k: int, ctx: Ctx) -> Report:
        return report_layers(server, k)
