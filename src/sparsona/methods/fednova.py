"""FedNova (Wang et al., 2020): FedAvg with updates normalised by the number of local steps.

A client of tau steps with momentum rho moves about |a| learning rates far, where |a| is the sum of how often each
gradient counts. The server averages updates per unit of |a|, and moves by the mean |a| along that average.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparsona.core.aggregate import Mean
from sparsona.core.star import FineTuning, WeakClients, Weighting, fine_tuned, pace, paced, weight, whole_model
from sparsona.core.training import Ctx, SgdTraining, train
from sparsona.core.wire import Message, Values, WireError
from sparsona.method import Client, Inbox, LocalData, Vector

Answer = tuple[Vector, int, int]  # a model, the samples it was trained on, and the steps


def reach(steps: int, momentum: float) -> float:
    """|a|: how often the gradients of so many steps count in the update, altogether."""
    if momentum == 1:
        return steps * (steps + 1) / 2
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


@dataclass(frozen=True, kw_only=True)
class FedNova(FineTuning, WeakClients, Weighting, SgdTraining):
    """FedAvg by updates that are normalised for the number of local steps, which add up with plain SGD."""

    def start(self, clients: int, ctx: Ctx) -> Vector:
        return ctx.theta0

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values(server), **pace(self, k))

    def join(self, k: int, ctx: Ctx) -> Client:
        return None

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        training = paced(self, inbox)
        theta = train(training, inbox["server"]["theta"].values, data.train, ctx)
        each, rest = divmod(len(data), self.batch)
        a_pass = each + (rest > 0 and not (self.drop_last and each))
        return None, Message(theta=Values(theta), samples=len(data), steps=training.epochs * a_pass), theta

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:
        steps = message.whole("steps", 1)
        if steps > 1_000_000:
            raise WireError(f"{steps} steps are more than any client takes in a round")
        return *whole_model(message, ctx), steps

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:
        direction, far, total = Mean(ctx.layout.dim), 0.0, 0.0  # sum p d, sum p |a|, sum p
        for _, (theta, samples, steps) in inbox:
            share, size = weight(samples, self), reach(steps, self.momentum)
            direction.add((server - theta) / size, share)
            far, total = far + share * size, total + share
        return server if not total else server - far / total * direction.value()

    def shared(self, server: Vector) -> Vector:
        return server

    def finish(self, shared: Vector, data: LocalData, ctx: Ctx) -> Vector:
        return fine_tuned(self, self.finish_epochs, shared, data, ctx)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        theta: Vector = inbox["server"]["theta"].values
        return theta
