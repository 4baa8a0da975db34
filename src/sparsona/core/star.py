"""Shared by methods with a server: groups of fields, and the steps that use them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeVar, Unpack

from typing_extensions import Doc

from sparsona.core.aggregate import Mean, OverlapMean
from sparsona.core.fields import Count, Natural
from sparsona.core.layout import Mask, Vector
from sparsona.core.samples import LocalData
from sparsona.core.training import Ctx, Options, SgdTraining, train
from sparsona.core.wire import Message

Answer = tuple[Vector, int]  # a model and the number of samples it was trained on
PartAnswer = tuple[Vector, Mask, int]  # values, where they belong, and the number of samples


@dataclass(frozen=True, kw_only=True)
class Weighting:
    """The weights of clients in the mean."""

    weighting: Annotated[
        Literal["samples", "uniform"],
        Doc("aggregation weights: by number of training samples, or equal for all clients"),
    ] = "samples"


@dataclass(frozen=True, kw_only=True)
class WeakClients:
    """Clients that train fewer epochs than the others."""

    weak: Annotated[Natural, Doc("number of weak clients (the first ones by number)")] = 0
    weak_epochs: Annotated[Count | None, Doc("local epochs of a weak client; unset: the same as epochs")] = None


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """Fine-tuning of the shared model by each client, after the last round."""

    finish_epochs: Annotated[
        Natural, Doc('fine-tuning epochs after the last round, used if evaluate.points has "finished"')
    ] = 5


Trained = TypeVar("Trained", bound=SgdTraining)


def pace(weak_clients: WeakClients, k: int) -> dict[str, int]:
    """The message part that sets the local epochs of client k, if it is weak."""
    return {} if weak_clients.weak_epochs is None or k >= weak_clients.weak else {"epochs": weak_clients.weak_epochs}


def paced(training: Trained, inbox: Mapping[str | int, Message]) -> Trained:
    """The method with the local epochs that the server sent."""
    message = inbox["server"]
    return replace(training, epochs=message.whole("epochs", 1)) if "epochs" in message else training


def whole_model(message: Message, ctx: Ctx) -> Answer:
    """A dense model sent by a client, and its number of samples."""
    return message.floats("theta", ctx.layout.dim), message.whole("samples", 1)


def mean_model(server: Vector, inbox: Iterable[tuple[int, Answer]], weighting: Weighting | None = None) -> Vector:
    """The mean of the clients' models, by default weighted by samples; the server's model if there are none."""
    mean = Mean(len(server))
    for _, (values, samples) in inbox:
        mean.add(values, weight(samples, weighting))
    return mean.value(otherwise=server)


def mean_of_parts(
    server: Vector, inbox: Iterable[tuple[int, PartAnswer]], weighting: Weighting | None = None
) -> Vector:
    """The mean of each entry over the clients that sent it; the server's value where no client did."""
    mean = OverlapMean(len(server))
    for _, (values, mask, samples) in inbox:
        mean.add(values, mask, weight(samples, weighting))
    return mean.value(otherwise=server)


def weight(samples: int, weighting: Weighting | None = None) -> int:
    """The weight of a client with this number of samples."""
    return samples if weighting is None or weighting.weighting == "samples" else 1


def fine_tuned(training: SgdTraining, epochs: int, shared: Vector, data: LocalData, ctx: Ctx) -> Vector:
    """The shared model, fine-tuned by a client after the last round."""
    return train(training, shared, data.train, ctx, purpose="finish", epochs=epochs)


def adapted(
    training: SgdTraining, epochs: int, theta: Vector, data: LocalData, ctx: Ctx, **options: Unpack[Options]
) -> Vector:
    """A new client's model, fine-tuned with the learning rate of the first round, whatever the schedule is."""
    return train(training, theta, data.train, replace(ctx, t=0), purpose="adapt", epochs=epochs, **options)
