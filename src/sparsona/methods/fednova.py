"""FedNova (Wang et al., 2020): FedAvg that does not favour those who make more steps.

A client of tau steps with momentum rho moves about |a| learning rates far, where |a| is the sum of how often each
gradient counts. The server averages updates per unit of |a|, and moves by the mean |a| along that average.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from sparsona.core.aggregate import Mean
from sparsona.core.training import Ctx
from sparsona.core.wire import Message, Values, WireError
from sparsona.method import Client, Inbox, LocalData, Vector
from sparsona.methods.fedavg import FedAvg

Answer = tuple[Vector, int, int]  # a model, the samples it was trained on, and the steps


def reach(steps: int, momentum: float) -> float:
    """|a|: how often the gradients of so many steps count in the update, altogether."""
    if momentum == 1:
        return steps * (steps + 1) / 2
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


@dataclass(frozen=True, kw_only=True)
class FedNova(FedAvg):
    """FedAvg by updates that are normalised for the number of local steps."""

    keeps_moments: ClassVar[bool] = False  # how far a round's steps reach is known of momentum that begins anew

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimiser != "sgd":
            raise ValueError(f'optimiser = "{self.optimiser}": must be "sgd", whose steps are known to add up')

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        how = self.paced(inbox)
        theta, client = how.step(client, inbox["server"]["theta"].values, data, ctx)
        each, rest = divmod(len(data), self.batch)
        a_pass = each + (rest > 0 and not (self.drop_last and each))
        return client, Message(theta=Values(theta), samples=len(data), steps=how.epochs * a_pass), theta

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:  # type: ignore[override]
        steps = message.whole("steps", 1)
        if steps > 1_000_000:
            raise WireError(f"{steps} steps are more than anybody makes in a round")
        return message.floats("theta", ctx.layout.dim), message.whole("samples", 1), steps

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:  # type: ignore[override]
        direction, far, total = Mean(ctx.layout.dim), 0.0, 0.0  # sum p d, sum p |a|, sum p
        for _, (theta, samples, steps) in inbox:
            weight, size = samples if self.weighting == "samples" else 1, reach(steps, self.momentum)
            direction.add((server - theta) / size, weight)
            far, total = far + weight * size, total + weight
        return server if not total else server - far / total * direction.value()
