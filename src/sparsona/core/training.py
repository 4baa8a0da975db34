"""How a client trains: the fields that every method shares, and the one call that uses them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, TypedDict, Unpack

from typing_extensions import Doc

from sparsona.core.descent import Pull, descend
from sparsona.core.fields import Count, Fraction, NonNegative, Positive, PositiveShare, Share
from sparsona.core.imports import imported
from sparsona.core.layout import Layout, Mask, Vector
from sparsona.core.library_optimiser import Argument, check_library, takes, try_library
from sparsona.core.optimiser import SGD, Adam, ClipOf, Library, Optimiser, State
from sparsona.core.rng import Rng
from sparsona.core.samples import Batches, Samples
from sparsona.core.task import Task
from sparsona.core.text import meant, one_line

SCHEDULES = ("constant", "exponential", "steps", "cosine")


@dataclass(frozen=True)
class Ctx:
    """The context of a hook: the round, the task, the common initial model and the keys to random numbers."""

    t: int  # round, from 0
    rounds: int
    task: Task
    theta0: Vector
    rng: Rng
    common: Rng  # the same in every round and on every device: for what all must agree on without a message

    @property
    def layout(self) -> Layout:
        """The map between the model and its vector."""
        return self.task.layout


@dataclass(frozen=True, kw_only=True)
class SgdTraining:
    """Local training by SGD; a method inherits these fields and adds its own."""

    step_needs: ClassVar[int] = 1  # minimum samples for a step

    epochs: Annotated[Count, Doc("local epochs per round")] = 1
    batch: Annotated[Count, Doc("batch size")] = 32
    drop_last: Annotated[bool, Doc("drop the last incomplete batch")] = False
    lr: Annotated[Positive, Doc("learning rate in the first round")] = 0.1
    lr_schedule: Annotated[
        str, Doc('learning-rate schedule: constant, exponential, steps, cosine or "package.module:function"')
    ] = "constant"
    lr_decay: Annotated[PositiveShare, Doc("learning-rate factor: per round (exponential) or per step (steps)")] = 0.998
    lr_steps: Annotated[
        tuple[Share, ...], Doc("steps: fractions of all rounds at which lr is multiplied by lr_decay")
    ] = (0.5, 0.75)
    momentum: Annotated[Share, Doc("SGD momentum")] = 0.0
    weight_decay: Annotated[NonNegative, Doc("weight decay (L2 penalty)")] = 0.0
    clip: Annotated[Positive | None, Doc("maximum gradient norm; unset: no clipping")] = None

    def __post_init__(self) -> None:
        if self.lr_schedule not in SCHEDULES and ":" not in self.lr_schedule:
            names = f"expected {', '.join(SCHEDULES)} or package.module:function"
            raise ValueError(
                f'lr_schedule: "{self.lr_schedule}" not found; {names}{meant(self.lr_schedule, SCHEDULES)}'
            )


@dataclass(frozen=True, kw_only=True)
class Training(SgdTraining):
    """Local training with an optimiser whose state is reset every round."""

    optimiser: Annotated[str, Doc("local optimiser: sgd, adam, or the name of a torch.optim class such as AdamW")] = (
        "sgd"
    )
    optimiser_args: Annotated[
        dict[str, Argument], Doc("keyword arguments of the torch.optim class, such as betas or eps")
    ] = field(default_factory=dict, hash=False)
    beta1: Annotated[Fraction, Doc("Adam: decay rate of the first moment")] = 0.9
    beta2: Annotated[Fraction, Doc("Adam: decay rate of the second moment")] = 0.999
    epsilon: Annotated[Positive, Doc("Adam: term added to the denominator (eps)")] = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimiser == "adam" and self.momentum:
            raise ValueError(
                f'momentum: {self.momentum} is not allowed; expected 0 with optimiser = "adam", which uses beta1'
            )
        if self.optimiser not in ("sgd", "adam"):
            check_library(self.optimiser, self.optimiser_args)
            for name in ("momentum", "weight_decay"):
                if (value := getattr(self, name)) and not takes(self.optimiser, name):
                    raise ValueError(
                        f"{name}: {value} is not allowed; expected 0, as torch.optim.{self.optimiser} has no {name}"
                    )
                if value and name in self.optimiser_args:
                    raise ValueError(
                        f"optimiser_args.{name}: not allowed together with {name} = {value}; remove one of them"
                    )
        elif self.optimiser_args:
            key = next(iter(self.optimiser_args))
            kind, names = ("SGD", "momentum") if self.optimiser == "sgd" else ("Adam", "beta1, beta2, epsilon")
            raise ValueError(
                f'optimiser_args.{key}: only for classes of torch.optim, not for optimiser = "{self.optimiser}"; '
                f'use the fields {names} and weight_decay, or optimiser = "{kind}" of torch.optim'
            )


@dataclass(frozen=True, kw_only=True)
class StatefulTraining(Training):
    """Local training where clients can keep the state of their optimiser."""

    moments: Annotated[Literal["round", "client"], Doc("optimiser state: reset every round, or kept by the client")] = (
        "round"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.moments == "client" and self.optimiser == "sgd" and not self.momentum:
            raise ValueError(
                'moments: "client" is not allowed; expected "round", as SGD with momentum = 0 has no state to keep'
            )


@dataclass(frozen=True, kw_only=True)
class MaskedClip:
    """The field of methods that do not train every weight."""

    clip_of: Annotated[
        Literal["dense", "masked"], Doc("norm that clip limits: over all weights, or over the trained weights only")
    ] = "dense"


def lr_at(training: SgdTraining, t: int, rounds: int) -> float:
    """The learning rate of round t."""
    if ":" in training.lr_schedule:
        return training.lr * _own_factor(training.lr_schedule, t, rounds)
    match training.lr_schedule:
        case "exponential":
            return training.lr * training.lr_decay**t
        case "steps":
            return training.lr * training.lr_decay ** sum(t >= share * rounds for share in training.lr_steps)
        case "cosine":
            return training.lr / 2 * (1 + math.cos(math.pi * t / rounds))
        case _:
            return training.lr


def _own_factor(name: str, t: int, rounds: int) -> float:
    schedule: Callable[[int, int], float] = imported("lr_schedule", name, {})
    try:
        factor = float(schedule(t, rounds))
    except Exception as error:  # whatever a stranger's function raises
        what = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f'lr_schedule: "{name}" failed in round {t}: {what}') from error
    if not 0 <= factor < math.inf:
        raise ValueError(f'lr_schedule: "{name}" returned {factor} in round {t}; expected a finite float >= 0')
    return factor


def try_out(training: SgdTraining, rounds: int) -> None:
    """Raise ValueError, beginning with a field, if a user's schedule or a library's optimiser would fail in a run."""
    if ":" in training.lr_schedule:
        for t in range(rounds):
            lr_at(training, t, rounds)
    if isinstance(training, Training) and training.optimiser not in ("sgd", "adam"):
        try_library(training.optimiser, training.lr, _library_args(training))


def accuracy(task: Task, theta: Vector, samples: Samples, size: int = 128) -> float:
    """The accuracy of a model; 1 if targets are numbers, which have no accuracy."""
    objective, right, count = task.objective, 0, 0
    if objective.target == "number":
        return 1.0
    for x, y in samples.all(size):
        right += objective.correct(task.logits(theta, x), y) or 0
        count += objective.count(y)
    return right / max(count, 1)


class Options(TypedDict, total=False):
    """What a method may add to local training; see ``descend``."""

    mask: Mask | None
    move: Mask | None
    pull: Pull | None
    sam: float


def train(
    training: SgdTraining,
    theta: Vector,
    samples: Samples,
    ctx: Ctx,
    *,
    purpose: str = "train",
    epochs: int | None = None,
    **options: Unpack[Options],
) -> Vector:
    """Train from theta with the fields of ``training``. Two trainings in one round need different purposes."""
    batches = batches_of(training, samples, ctx, purpose, epochs)
    return descend(ctx.task, theta, batches, optimiser_of(training, ctx), **options)[0]


def train_on(
    training: SgdTraining,
    theta: Vector,
    samples: Samples,
    ctx: Ctx,
    state: State | None,
    *,
    purpose: str = "train",
    epochs: int | None = None,
    **options: Unpack[Options],
) -> tuple[Vector, State | None]:
    """Like ``train``, but from a given optimiser state; also returns the state to keep, or None."""
    batches = batches_of(training, samples, ctx, purpose, epochs)
    theta, state = descend(ctx.task, theta, batches, optimiser_of(training, ctx), state=state, **options)
    return theta, state if isinstance(training, StatefulTraining) and training.moments == "client" else None


def batches_of(
    training: SgdTraining, samples: Samples, ctx: Ctx, purpose: str = "train", epochs: int | None = None
) -> Batches:
    """The batches of one training."""
    passes = training.epochs if epochs is None else epochs
    return samples.epochs(ctx.rng(purpose), passes, training.batch, drop_last=training.drop_last)


def optimiser_of(training: SgdTraining, ctx: Ctx) -> Optimiser:
    """The local optimiser with the learning rate of this round."""
    lr = lr_at(training, ctx.t, ctx.rounds)
    if not isinstance(training, Training) or training.optimiser == "sgd":
        return sgd_of(training, lr)
    if training.optimiser != "adam":
        args, clip_of = _library_args(training), _clip_of(training)
        return Library(name=training.optimiser, lr=lr, args=args, clip=training.clip, clip_of=clip_of)
    return Adam(
        lr=lr,
        beta1=training.beta1,
        beta2=training.beta2,
        epsilon=training.epsilon,
        weight_decay=training.weight_decay,
        clip=training.clip,
        clip_of=_clip_of(training),
    )


def _library_args(training: Training) -> dict[str, Argument]:
    own = {"momentum": training.momentum, "weight_decay": training.weight_decay}
    return {**{name: value for name, value in own.items() if value}, **training.optimiser_args}


def sgd_of(training: SgdTraining, lr: float, *, fused: bool = False) -> SGD:
    """SGD with this learning rate."""
    decay, clip = training.weight_decay, training.clip
    return SGD(
        lr=lr, momentum=training.momentum, weight_decay=decay, clip=clip, clip_of=_clip_of(training), fused=fused
    )


def _clip_of(training: SgdTraining) -> ClipOf:
    return training.clip_of if isinstance(training, MaskedClip) else "dense"
