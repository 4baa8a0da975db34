"""Split-Mix (Hong et al., 2022): several narrow models side by side, of which each client trains as many as it can.

The model of the recipe is one base; ``model.width`` makes it narrow. Bases share no parameters, so that one step on the
sum of their losses is a step of each on its own. They predict together, by the mean of their logits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sparsona.core.aggregate import OverlapMean
from sparsona.core.fields import Count
from sparsona.core.initial import redrawn
from sparsona.core.portable import Bases
from sparsona.core.rng import Rng
from sparsona.core.training import Ctx, train
from sparsona.core.wire import Bits, Message, Values, WireError
from sparsona.method import Inbox, LocalData, Mask, Vector
from sparsona.methods.fedavg import FedAvg

Answer = tuple[Vector, Mask, int]  # trained bases one after the other, where they belong, and the number of samples


def rotation(bases: int, each: int, k: int, t: int, common: Rng) -> Mask:
    """The bases that client k trains in round t, so many of all: in a shuffled order, each as often as any other."""
    turn = ((k + t) * each + torch.arange(each)) % bases
    return torch.zeros(bases, dtype=torch.bool).index_fill_(0, common("bases").permutation(bases)[turn], True)


def first_bases(bases: int, ctx: Ctx) -> Tensor:
    """Where bases begin, each with values of its own: [bases, d]."""
    others = (redrawn(ctx.task, ctx.theta0, ctx.common("base", b)) for b in range(1, bases))
    return torch.stack([ctx.theta0, *others])


def told(inbox: Inbox, bases: int) -> Mask:
    """The bases that the server sent."""
    chosen = inbox["server"].part("bases", Bits).mask
    if chosen.shape != (bases,) or not chosen.any():
        raise WireError(f"{int(chosen.sum())} of {len(chosen)} bases were sent; some of {bases} are needed")
    return chosen


def few(bases: int, weak_bases: int) -> None:
    """ValueError if weak clients were to train more bases than there are."""
    if weak_bases > bases:
        raise ValueError(f"weak_bases = {weak_bases}: must be at most bases = {bases}")


@dataclass(frozen=True, kw_only=True)
class SplitMix(FedAvg):
    """Narrow models side by side, each averaged over those who train it."""

    keeps_moments: ClassVar[bool] = False
    bases: Count = 8  # how many narrow models, each as model.width makes it
    weak_bases: Count = 1  # how many of them a weak client trains in a round; the others train all

    def __post_init__(self) -> None:
        super().__post_init__()
        few(self.bases, self.weak_bases)

    def start(self, fleet: int, ctx: Ctx) -> Vector:
        return first_bases(self.bases, ctx).flatten()

    def chosen(self, k: int, ctx: Ctx) -> Mask:
        """The bases of client k in this round."""
        return rotation(self.bases, self.weak_bases if k < self.weak else self.bases, k, ctx.t, ctx.common)

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        chosen = self.chosen(k, ctx)
        return Message(theta=Values(server.view(self.bases, -1)[chosen].flatten()), bases=Bits(chosen), **self.pace(k))

    def received(self, inbox: Inbox, ctx: Ctx) -> Tensor:
        """The bases that came, [n, d]."""
        count = int(told(inbox, self.bases).sum())
        return inbox["server"].floats("theta", count * ctx.layout.dim).view(count, -1)

    def local(self, client: None, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[None, Message, Bases]:  # type: ignore[override]
        how = self.paced(inbox)
        rows = torch.stack([train(how, base, data.train, ctx) for base in self.received(inbox, ctx)])
        return None, Message(theta=Values(rows.flatten()), samples=len(data)), Bases(ctx.task, rows)

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:  # type: ignore[override]
        held = self.chosen(k, ctx).repeat_interleave(ctx.layout.dim)
        return message.floats("theta", int(torch.count_nonzero(held))), held, message.whole("samples", 1)

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:  # type: ignore[override]
        mean = OverlapMean(len(server))
        for _, (values, held, samples) in inbox:
            mean.add(values, held, samples if self.weighting == "samples" else 1)
        return mean.value(otherwise=server)

    def opened(self, shared: Vector, ctx: Ctx) -> Bases:
        return Bases(ctx.task, shared.view(self.bases, -1))

    def finish(self, theta: Vector, data: LocalData, ctx: Ctx) -> Bases:  # type: ignore[override]
        rows = theta.view(self.bases, -1)
        tuned = [train(self, base, data.train, ctx, purpose="finish", epochs=self.finish_epochs) for base in rows]
        return Bases(ctx.task, torch.stack(tuned))

    def personal(self, client: None, inbox: Inbox, data: LocalData, ctx: Ctx) -> Bases:  # type: ignore[override]
        return Bases(ctx.task, self.received(inbox, ctx))
