"""Split-Mix (Hong et al., 2022): several narrow base models; each client trains as many as it can.

The model of the recipe is one base; ``model.width`` makes it narrow. Bases share no parameters, so that one step on the
sum of their losses is a step of each on its own. They predict together, by the mean of their logits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import Doc

from sparsona.core.fields import Count
from sparsona.core.initial import redrawn
from sparsona.core.rng import Rng
from sparsona.core.star import (
    FineTuning,
    PartAnswer,
    WeakClients,
    Weighting,
    fine_tuned,
    mean_of_parts,
    pace,
    paced,
)
from sparsona.core.training import Ctx, Training, train
from sparsona.core.wire import Bits, Message, Values, WireError
from sparsona.method import Inbox, LocalData, Mask, Vector


def rotation(bases: int, each: int, k: int, t: int, common: Rng) -> Mask:
    """The bases that client k trains in round t: taken in turn from a shuffled order, each equally often."""
    turn = ((k + t) * each + torch.arange(each)) % bases
    return torch.zeros(bases, dtype=torch.bool).index_fill_(0, common("bases").permutation(bases)[turn], True)


def first_bases(bases: int, ctx: Ctx) -> Tensor:
    """Initial values of the bases, different for each: [bases, d]."""
    others = (redrawn(ctx.task, ctx.theta0, ctx.common("base", b)) for b in range(1, bases))
    return torch.stack([ctx.theta0, *others])


def sent_bases(inbox: Inbox, bases: int) -> Mask:
    """The bases that the server sent."""
    chosen = inbox["server"].part("bases", Bits).mask
    if chosen.shape != (bases,) or not chosen.any():
        raise WireError(f"{int(chosen.sum())} of {len(chosen)} bases were sent, not some of {bases}")
    return chosen


def check_bases(bases: int, weak_bases: int) -> None:
    """ValueError if weak clients were to train more bases than there are."""
    if weak_bases > bases:
        raise ValueError(f"weak_bases: {weak_bases} is not allowed; expected an int <= bases = {bases}")


@dataclass(frozen=True, kw_only=True)
class SplitMix(FineTuning, WeakClients, Weighting, Training):
    """Narrow models side by side, each averaged over those who train it."""

    bases: Annotated[Count, Doc("number of narrow base models; model.width sets their width")] = 8
    weak_bases: Annotated[
        Count, Doc("base models that a weak client trains per round; other clients train all of them")
    ] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_bases(self.bases, self.weak_bases)

    def start(self, clients: int, ctx: Ctx) -> Vector:
        return first_bases(self.bases, ctx).flatten()

    def chosen(self, k: int, ctx: Ctx) -> Mask:
        """The bases of client k in this round."""
        return rotation(self.bases, self.weak_bases if k < self.weak else self.bases, k, ctx.t, ctx.common)

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        chosen = self.chosen(k, ctx)
        return Message(theta=Values(server.view(self.bases, -1)[chosen].flatten()), bases=Bits(chosen), **pace(self, k))

    def received(self, inbox: Inbox, ctx: Ctx) -> Tensor:
        """The bases that came, [n, d]."""
        count = int(sent_bases(inbox, self.bases).sum())
        return inbox["server"].floats("theta", count * ctx.layout.dim).view(count, -1)

    def join(self, k: int, ctx: Ctx) -> None:
        return None

    def local(self, client: None, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[None, Message, Tensor]:
        training = paced(self, inbox)
        rows = torch.stack([train(training, base, data.train, ctx) for base in self.received(inbox, ctx)])
        return None, Message(theta=Values(rows.flatten()), samples=len(data)), rows

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> PartAnswer:
        held = self.chosen(k, ctx).repeat_interleave(ctx.layout.dim)
        return message.floats("theta", int(torch.count_nonzero(held))), held, message.whole("samples", 1)

    def merge(self, server: Vector, inbox: Iterable[tuple[int, PartAnswer]], ctx: Ctx) -> Vector:
        return mean_of_parts(server, inbox, self)

    def shared(self, server: Vector) -> Tensor:
        return server.view(self.bases, -1)

    def finish(self, shared: Tensor, data: LocalData, ctx: Ctx) -> Tensor:
        return torch.stack([fine_tuned(self, self.finish_epochs, base, data, ctx) for base in shared])

    def personal(self, client: None, inbox: Inbox, data: LocalData, ctx: Ctx) -> Tensor:
        return self.received(inbox, ctx)
