"""Per-FedAvg (Fallah et al., 2020), first order: a shared model from which one pass of training gets far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import ClassVar

from sparsona.core.fields import Count, Positive
from sparsona.core.task import Sgd
from sparsona.core.training import Ctx, lr_at, train
from sparsona.method import Client, Inbox, LocalData, Vector
from sparsona.methods.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class PerFedAvg(FedAvg):
    """FedAvg of meta steps: the gradient on one batch, taken after a step on another, moves the model."""

    keeps_moments: ClassVar[bool] = False
    inner_lr: Positive = 0.05  # alpha, of the step that looks ahead, and of tuning before use; lr is beta
    tune_epochs: Count = 1  # passes before use

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimiser != "sgd":
            raise ValueError(f'optimiser = "{self.optimiser}": meta steps are made by "sgd" alone')

    def step(self, client: Client, theta: Vector, data: LocalData, ctx: Ctx) -> tuple[Vector, Client]:
        task, n, lr = ctx.task, ctx.layout.params, lr_at(self, ctx.t, ctx.rounds)
        batches = data.train.epochs(ctx.rng("train"), self.epochs, self.batch, drop_last=self.drop_last)
        task.load(theta)
        task.model.train()
        w, each = task.flat[:n], iter(batches)
        outer = Sgd(w, momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)
        with batches.rng("layers").everywhere():
            for ahead, then in zip_longest(each, each):
                here = w.clone()
                w.sub_(task.gather(task.gradients(ahead)), alpha=self.inner_lr)
                batch = ahead if then is None else then  # an odd one out serves twice
                g = task.gather(task.gradients(batch))
                w.copy_(here)
                outer.step(g, lr)
                task.charge(len(ahead[1]) + len(batch[1]))
        task.settle()
        return task.flat.clone(), client

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Vector:
        own = replace(self, lr=self.inner_lr)
        shared = inbox["server"]["theta"].values
        return train(own, shared, data.train, ctx, purpose="tune", epochs=self.tune_epochs)
