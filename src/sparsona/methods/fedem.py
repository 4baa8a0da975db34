"""FedEM (Marfoq et al., 2021): a few shared models, mixed by each client in its own proportions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsona.core.aggregate import Mean
from sparsona.core.fields import Count
from sparsona.core.initial import redrawn
from sparsona.core.portable import Mixture, plain
from sparsona.core.samples import Samples
from sparsona.core.task import Task
from sparsona.core.training import Ctx, State, Training, train_on
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, LocalData, Model, Vector

Answer = tuple[Vector, int]  # all models, one after the other, and the number of samples


@dataclass(frozen=True)
class Client:
    mixture: Tensor  # pi_k [models]
    states: tuple[State | None, ...] | None = None  # what the optimiser of each model keeps


def mixed(task: Task, models: tuple[Vector, ...], mixture: Tensor, x: Tensor) -> Tensor:
    """The logarithm of the mixture of what the models think likely."""
    return (
        torch.stack([task.logits(h, x).log_softmax(1) for h in models]).add(mixture.log()[:, None, None]).logsumexp(0)
    )


@dataclass(frozen=True, kw_only=True)
class FedEM(Training):
    """Each sample is shared out among the models, by how well they explain it; each model trains on its part."""

    keeps_moments: ClassVar[bool] = True
    models: Count = 3  # M, how many are shared

    def start(self, fleet: int, ctx: Ctx) -> Vector:
        first = [ctx.theta0, *(redrawn(ctx.task, ctx.theta0, ctx.common("model", m)) for m in range(1, self.models))]
        if any(torch.equal(ctx.theta0, other) for other in first[1:]):
            raise ValueError("model: fedem needs several initial models, but no layer of it can draw its weights anew")
        if ctx.task.logits(ctx.theta0, torch.zeros(1, *ctx.task.shape)).shape[1] == 1:
            raise ValueError("model: fedem needs one logit per class, not one for two of them")
        return torch.cat(first)

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(models=Values(server))

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(torch.full((self.models,), 1 / self.models))

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Model]:
        received = inbox["server"]["models"].values.split(ctx.layout.dim)
        losses = [self.losses(h, data.train, ctx) for h in received]
        shares = (client.mixture.log() - torch.stack([each for each, _ in losses], 1)).softmax(1)  # q [n, M]
        mixture = shares.mean(0).clamp(min=1e-12)
        states, done = client.states or (None,) * self.models, list[tuple[Vector, State | None]]()
        for m, h in enumerate(received):
            samples = self.weighted(data.train, shares[:, m], losses[0][1], ctx)
            done.append(train_on(self, h, samples, ctx, states[m], purpose=f"model {m}"))
        trained = tuple(h for h, _ in done)
        message = Message(models=Values(torch.cat(trained)), samples=len(data))
        return Client(mixture, tuple(state for _, state in done)), message, partial(mixed, ctx.task, trained, mixture)

    def welcome(self, client: Client, inbox: Inbox, data: LocalData, epochs: int, ctx: Ctx) -> tuple[Client, Model]:
        """A newcomer finds its proportions; the models stay as they are."""
        received, mixture = inbox["server"]["models"].values.split(ctx.layout.dim), client.mixture
        losses = torch.stack([self.losses(h, data.train, ctx)[0] for h in received], 1)  # [n, M]
        for _ in range(epochs):
            mixture = (mixture.log() - losses).softmax(1).mean(0).clamp(min=1e-12)
        return Client(mixture), partial(mixed, ctx.task, received, mixture)

    def losses(self, theta: Vector, samples: Samples, ctx: Ctx) -> tuple[Tensor, int]:
        """The loss of each sample, and how many classes there are."""
        found = [(ctx.task.logits(theta, x), y) for x, y in samples.all(128)]
        return torch.cat([F.cross_entropy(z, y, reduction="none") for z, y in found]), found[0][0].shape[1]

    def weighted(self, samples: Samples, weights: Tensor, classes: int, ctx: Ctx) -> Samples:
        """The samples with targets that carry their weights: cross entropy is linear in its target."""
        targets = F.one_hot(samples.y[samples.index], classes) * weights[:, None]
        return replace(samples, x=samples.x[samples.index], y=targets, index=torch.arange(len(samples)))

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:
        return message.floats("models", len(server)), message.whole("samples", 1)

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:
        mean = Mean(len(server))
        for _, (models, samples) in inbox:
            mean.add(models, samples)
        return mean.value(otherwise=server)

    def module(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> nn.Module:
        models = inbox["server"]["models"].values.split(ctx.layout.dim)
        return Mixture([plain(ctx.task, h) for h in models], client.mixture)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Model:
        return partial(mixed, ctx.task, inbox["server"]["models"].values.split(ctx.layout.dim), client.mixture)
