"""Per-FedAvg (Fallah et al., 2020), first order: a shared model that adapts well after a few local steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Annotated

from typing_extensions import Doc

from sparsona.core.fields import Count, Positive
from sparsona.core.optimiser import Steps
from sparsona.core.star import (
    Answer,
    FineTuning,
    WeakClients,
    Weighting,
    fine_tuned,
    mean_model,
    pace,
    paced,
    whole_model,
)
from sparsona.core.training import Ctx, SgdTraining, batches_of, lr_at, sgd_of, train
from sparsona.core.wire import Message, Values
from sparsona.method import Client, Inbox, LocalData, Vector


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(FineTuning, WeakClients, Weighting, SgdTraining):
    """FedAvg of meta steps: the gradient on one batch, taken after a step on another, moves the model."""

    inner_lr: Annotated[
        Positive, Doc("inner learning rate, also for tuning before use (alpha in the paper; lr is beta)")
    ] = 0.05
    tune_epochs: Annotated[Count, Doc("local epochs of tuning before the model is used")] = 1

    def start(self, clients: int, ctx: Ctx) -> Vector:
        return ctx.theta0

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(theta=Values(server), **pace(self, k))

    def join(self, k: int, ctx: Ctx) -> Client:
        return None

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Vector]:
        theta = paced(self, inbox).meta_steps(inbox["server"]["theta"].values, data, ctx)
        return None, Message(theta=Values(theta), samples=len(data)), theta

    def meta_steps(self, theta: Vector, data: LocalData, ctx: Ctx) -> Vector:
        """Local training from the model received."""
        task, w, batches = ctx.task, ctx.task.flat[: ctx.layout.params], batches_of(self, data.train, ctx)
        meta, each = Steps(sgd_of(self, lr_at(self, ctx.t, ctx.rounds), fused=True), w), iter(batches)
        task.load(theta)
        with task.training(batches):
            for ahead, then in zip_longest(each, each):
                here = w.clone()
                w.sub_(task.gradient(ahead), alpha=self.inner_lr)
                g = task.gradient(ahead if then is None else then, tally=False)  # an odd one out serves twice
                w.copy_(here)
                meta.step(g)
        return task.flat.clone()

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:
        return whole_model(message, ctx)

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:
        return mean_model(server, inbox, self)

    def shared(self, server: Vector) -> Vector:
        return server

    def finish(self, shared: Vector, data: LocalData, ctx: Ctx) -> Vector:
        return fine_tuned(self, self.finish_epochs, shared, data, ctx)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        # the steps that it was trained for: plain ones, at an alpha that does not follow the schedule of lr
        own, start = replace(self, lr=self.inner_lr, momentum=0.0, weight_decay=0.0), replace(ctx, t=0)
        shared = inbox["server"]["theta"].values
        return train(own, shared, data.train, start, purpose="tune", epochs=self.tune_epochs)
