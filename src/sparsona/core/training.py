"""How a client trains: the fields that every method shares, and the one call that uses them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from sparsona.core.fields import Count, Fraction, NonNegative, Positive, PositiveShare, Share
from sparsona.core.layout import Layout, Mask, Vector
from sparsona.core.rng import Rng
from sparsona.core.samples import Samples
from sparsona.core.task import Adam, Moments, Task, correct, sgd

State = Moments | Vector  # what an optimiser remembers: Adam's moments, or the velocity of SGD's momentum [params]


@dataclass(frozen=True)
class Ctx:
    """Where and when a method's code runs: the round, the task, the common initial model and a key to randomness."""

    t: int  # round, from 0
    rounds: int
    task: Task
    theta0: Vector
    rng: Rng
    common: Rng  # the same in every round and place: what all must agree on without a message

    @property
    def layout(self) -> Layout:
        """The map between the model and its vector."""
        return self.task.layout


@dataclass(frozen=True, kw_only=True)
class Training:
    """Local training by SGD or Adam; a method inherits these fields and adds its own."""

    keeps_moments: ClassVar[bool] = False  # whether the method's clients can keep what their optimiser remembers
    step_needs: ClassVar[int] = 1  # samples without which no step is made

    epochs: Count = 1  # passes over the local data each round
    batch: Count = 32  # samples a step
    drop_last: bool = False  # leave out a last batch that is not full
    lr: Positive = 0.1  # learning rate, of the first round
    lr_schedule: Literal["constant", "exponential", "steps", "cosine"] = "constant"  # how it falls over the rounds
    lr_decay: PositiveShare = 0.998  # factor per round (exponential) or per step (steps)
    lr_steps: tuple[Share, ...] = (0.5, 0.75)  # shares of all rounds at which a step is taken
    momentum: Share = 0.0  # of SGD
    weight_decay: NonNegative = 0.0  # of SGD, added to the gradient
    clip: Positive | None = None  # bound on the gradient's norm
    clip_of: Literal["dense", "masked"] = "dense"  # the norm over all weights, or over those that move
    optimiser: Literal["sgd", "adam"] = "sgd"  # what makes steps of gradients
    beta1: Fraction = 0.9  # adam: how much of the running mean of gradients stays at a step
    beta2: Fraction = 0.999  # adam: the same of their squares
    epsilon: Positive = 1e-8  # adam: added to the root of the mean square
    moments: Literal["round", "client"] = "round"  # momentum, adam's means: begin anew, or are kept by the client

    def __post_init__(self) -> None:
        if self.optimiser == "adam" and self.momentum:
            raise ValueError(f'momentum = {self.momentum}: must be 0 with optimiser = "adam", which has its own')
        if self.moments == "client" and self.optimiser == "sgd" and not self.momentum:
            raise ValueError('moments = "client": SGD has none to keep with momentum = 0; only "round" is allowed')
        if self.moments == "client" and not self.keeps_moments:
            raise ValueError('moments = "client": clients of this method keep none; only "round" is allowed')


def lr_at(how: Training, t: int, rounds: int) -> float:
    """The learning rate of round t."""
    match how.lr_schedule:
        case "exponential":
            return how.lr * how.lr_decay**t
        case "steps":
            return how.lr * how.lr_decay ** sum(t >= share * rounds for share in how.lr_steps)
        case "cosine":
            return how.lr / 2 * (1 + math.cos(math.pi * t / rounds))
        case _:
            return how.lr


def accuracy(task: Task, theta: Vector, samples: Samples, size: int = 128) -> float:
    """The share of samples that a model classifies rightly."""
    return sum(correct(task.logits(theta, x), y) for x, y in samples.all(size)) / len(samples)


def train(how: Training, theta: Vector, samples: Samples, ctx: Ctx, **rest: Any) -> Vector:
    """Train from theta on the samples as ``how`` says; two trainings in one round need two purposes."""
    return train_on(how, theta, samples, ctx, None, **rest)[0]


def train_on(
    how: Training,
    theta: Vector,
    samples: Samples,
    ctx: Ctx,
    state: State | None,
    *,
    purpose: str = "train",
    epochs: int | None = None,
    mask: Mask | None = None,
    move: Mask | None = None,
    sam: float = 0.0,
    **pull: Any,
) -> tuple[Vector, State | None]:
    """Like ``train``, going on from what the client's optimiser kept; what it is to keep comes back, or None."""
    batches = samples.epochs(
        ctx.rng(purpose), how.epochs if epochs is None else epochs, how.batch, drop_last=how.drop_last
    )
    adam = velocity = None
    if how.optimiser == "adam":
        assert state is None or isinstance(state, Moments)
        adam = Adam(beta1=how.beta1, beta2=how.beta2, epsilon=how.epsilon, moments=state)
    elif how.moments == "client":
        assert not isinstance(state, Moments)
        velocity = torch.zeros(ctx.layout.params) if state is None else state.clone()
    trained = sgd(
        ctx.task,
        theta,
        batches,
        lr=lr_at(how, ctx.t, ctx.rounds),
        momentum=how.momentum,
        weight_decay=how.weight_decay,
        clip=how.clip,
        clip_of=how.clip_of,
        mask=mask,
        move=move,
        sam=sam,
        adam=adam,
        velocity=velocity,
        **pull,
    )
    return trained, adam.moments if adam is not None and how.moments == "client" else velocity
