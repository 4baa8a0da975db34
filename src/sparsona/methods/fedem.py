"""FedEM (Marfoq et al., 2021): several shared models; each client mixes them with its own weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import Doc

from sparsona.core.fields import Count
from sparsona.core.initial import redrawn
from sparsona.core.model import plain
from sparsona.core.objective import Blend, mixed
from sparsona.core.samples import Samples
from sparsona.core.star import mean_model
from sparsona.core.task import Task
from sparsona.core.training import Ctx, State, StatefulTraining, train_on
from sparsona.core.wire import Message, Values
from sparsona.method import Inbox, LocalData, Vector

Answer = tuple[Vector, int]  # all models, one after the other, and the number of samples


@dataclass(frozen=True)
class Client:
    """What a client keeps between rounds."""

    mixture: Tensor  # pi_k [models]
    states: tuple[State | None, ...] | None = None  # what the optimiser of each model keeps


@dataclass(frozen=True)
class MixtureModel:
    """Models whose opinions are mixed in fixed proportions."""

    task: Task
    models: tuple[Vector, ...]
    mixture: Tensor  # [models]

    def logits(self, x: Tensor) -> Tensor:
        """The logarithm of the mixture of what the models think likely; of numbers, their mean in these proportions."""
        each = torch.stack([self.task.logits(h, x) for h in self.models])
        return mixed(each, self.mixture, self.task.objective.blend)

    def module(self) -> nn.Module:
        """The models and their proportions."""
        return Mixture([plain(self.task, h) for h in self.models], self.mixture, self.task.objective.blend)

    def vectors(self) -> Tensor:
        """None: the proportions matter, too."""
        return self.mixture.new_empty(0, self.task.layout.dim)


class Mixture(nn.Module):
    """A mixture as a standalone module."""

    proportions: Tensor

    def __init__(self, models: list[nn.Module], proportions: Tensor, blend: Blend) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.register_buffer("proportions", proportions)
        self.blend = blend

    def forward(self, x: Tensor) -> Tensor:
        """Logarithms of what is likely [b, classes], or mean numbers."""
        return mixed(torch.stack([model(x) for model in self.models]), self.proportions, self.blend)


@dataclass(frozen=True, kw_only=True)
class FedEM(StatefulTraining):
    """Each sample is shared out among the models, by how well they explain it; each model trains on its part."""

    models: Annotated[Count, Doc("number of shared models (M in the paper)")] = 3

    def start(self, clients: int, ctx: Ctx) -> Vector:
        first = [ctx.theta0, *(redrawn(ctx.task, ctx.theta0, ctx.common("model", m)) for m in range(1, self.models))]
        if any(torch.equal(ctx.theta0, other) for other in first[1:]):
            raise ValueError(
                "models: fedem needs different initial models, but no layer of this model has reset_parameters"
            )
        single = ctx.task.logits(ctx.theta0, ctx.task.example).shape[-1] == 1
        if single and ctx.task.objective.target == "class":
            raise ValueError(
                "models: fedem needs a model with one logit per class, and this one has one logit for two classes"
            )
        return torch.cat(first)

    def down(self, server: Vector, k: int, ctx: Ctx) -> Message:
        return Message(models=Values(server))

    def join(self, k: int, ctx: Ctx) -> Client:
        return Client(ctx.theta0.new_full((self.models,), 1 / self.models))

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, MixtureModel]:
        received = inbox["server"]["models"].values.split(ctx.layout.dim)
        losses = [self.losses(h, data.train, ctx) for h in received]
        shares = (client.mixture.log() - torch.stack([each for each, _ in losses], 1)).softmax(1)  # q [n, M]
        mixture = shares.mean(0).clamp(min=1e-12)
        states, results = client.states or (None,) * self.models, list[tuple[Vector, State | None]]()
        with ctx.task.trained_by(ctx.task.objective.weighted(data.train.y)):
            for m, h in enumerate(received):
                samples = self.weighted(data.train, shares[:, m], losses[0][1], ctx)
                results.append(train_on(self, h, samples, ctx, states[m], purpose=f"model {m}"))
        trained = tuple(h for h, _ in results)
        message = Message(models=Values(torch.cat(trained)), samples=len(data))
        return Client(mixture, tuple(state for _, state in results)), message, MixtureModel(ctx.task, trained, mixture)

    def welcome(
        self, client: Client, inbox: Inbox, data: LocalData, epochs: int, ctx: Ctx
    ) -> tuple[Client, MixtureModel]:
        """A newcomer finds its proportions; the models stay as they are."""
        received, mixture = inbox["server"]["models"].values.split(ctx.layout.dim), client.mixture
        losses = torch.stack([self.losses(h, data.train, ctx)[0] for h in received], 1)  # [n, M]
        for _ in range(epochs):
            mixture = (mixture.log() - losses).softmax(1).mean(0).clamp(min=1e-12)
        return Client(mixture), MixtureModel(ctx.task, received, mixture)

    def losses(self, theta: Vector, samples: Samples, ctx: Ctx) -> tuple[Tensor, int]:
        """The loss of each sample, and how many outputs there are."""
        outputs = [(ctx.task.logits(theta, x), y) for x, y in samples.all(128)]
        return torch.cat([ctx.task.objective.each(z, y) for z, y in outputs]), outputs[0][0].shape[-1]

    def weighted(self, samples: Samples, weights: Tensor, classes: int, ctx: Ctx) -> Samples:
        """The samples with targets that carry their weights."""
        targets = ctx.task.objective.weigh(samples.y[samples.index], weights, classes)
        return replace(
            samples, x=samples.x[samples.index], y=targets, index=torch.arange(len(samples), device=targets.device)
        )

    def read(self, server: Vector, k: int, message: Message, ctx: Ctx) -> Answer:
        return message.floats("models", len(server)), message.whole("samples", 1)

    def merge(self, server: Vector, inbox: Iterable[tuple[int, Answer]], ctx: Ctx) -> Vector:
        return mean_model(server, inbox)

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> MixtureModel:
        return MixtureModel(ctx.task, inbox["server"]["models"].values.split(ctx.layout.dim), client.mixture)
