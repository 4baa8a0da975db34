"""Optimisers as values, and one optimiser at work on a flat vector.

``SGD``, ``Adam`` and ``Library`` say how a gradient becomes a step. ``Steps`` takes these steps in place, on the whole
vector or on the part that may move, and holds what the optimiser remembers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from sparsona.core.layout import Vector
from sparsona.core.library_optimiser import Argument, LibraryState, LibrarySteps

ClipOf = Literal["dense", "masked"]


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent; ``clip`` bounds the gradient's norm before decay and momentum are added."""

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    clip_of: ClipOf = "dense"  # the norm over all coordinates, or over those that move
    fused: bool = False  # add momentum to the gradient with one rounding (g + m v) instead of two (m v, then + g)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam (Kingma and Ba, 2015), with the steps of ``torch.optim.Adam`` to the bit.

    The library's takes 3.0, 1.6, 4.0 and 2.8 times as long on vectors of 5 thousand, 100 thousand, 600 thousand and 11
    million entries (one thread), because it allocates at each step. Its fused form is up to 3.6 times faster than this
    one on the larger of them, but rounds differently; it is what ``optimiser = "Adam"`` runs.
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip: float | None = None
    clip_of: ClipOf = "dense"


@dataclass(frozen=True)
class Moments:
    """The state of Adam: running means of the gradient and of its square, and the number of steps so far."""

    mean: Tensor  # [params]
    square: Tensor  # [params]
    steps: int


@dataclass(frozen=True, kw_only=True)
class Library:
    """A class of ``torch.optim`` by its name, with its arguments; decay and momentum are among them."""

    name: str
    lr: float
    args: Mapping[str, Argument] = field(default_factory=dict)
    clip: float | None = None
    clip_of: ClipOf = "dense"


Optimiser = SGD | Adam | Library
# what an optimiser remembers: Adam's moments, the velocity of SGD's momentum [params], or what a library's has
State = Moments | Vector | LibraryState


@dataclass(frozen=True)
class Segment:
    """A stretch of the vector that steps move."""

    at: slice
    w: Tensor  # a view
    gate: Tensor | None  # zeros and ones; None: all of it moves
    velocity: Tensor | None


class Steps:
    """An optimiser at work on the vector ``w``, in place; it continues from ``state``, which stays as it was.

    Only coordinates at ones of ``gate`` and within ``runs`` move. What does not move keeps its velocity.
    """

    def __init__(
        self,
        optimiser: Optimiser,
        w: Tensor,
        *,
        gate: Tensor | None = None,
        runs: Sequence[slice] | None = None,
        state: State | None = None,
    ) -> None:
        self.optimiser = optimiser
        self._velocity = None
        whole = [slice(0, len(w))]
        if isinstance(optimiser, Library):
            runs = whole
            assert state is None or isinstance(state, LibraryState)
            self._library = LibrarySteps(optimiser.name, w, optimiser.lr, optimiser.args, state, gate)
        elif isinstance(optimiser, Adam):
            runs = whole
            self._mean, self._square, self._count = _first_moments(w, gate, state)
            self._root = torch.empty_like(w)
        elif optimiser.momentum:
            self._velocity = _first_velocity(w, state)
        self.parts = [self._part(at, w, gate) for at in (whole if runs is None else runs)]
        # steps that are the gradient times the learning rate and nothing else
        self.plain = (
            gate is None
            and isinstance(optimiser, SGD)
            and optimiser.clip is None
            and not optimiser.weight_decay
            and not optimiser.momentum
        )

    def _part(self, at: slice, w: Tensor, gate: Tensor | None) -> Segment:
        gate = None if gate is None or bool(gate[at].all()) else gate[at]
        velocity = None if self._velocity is None else self._velocity[at]
        if velocity is not None and gate is not None:
            velocity = velocity * gate  # what is closed must not coast
        return Segment(at, w[at], gate, velocity)

    def step(self, g: Tensor, move: Tensor | None = None) -> None:
        """Take one step along the gradient, which is used up; with ``move``, only at its ones."""
        optimiser = self.optimiser
        if optimiser.clip_of == "masked":
            for part in self.parts:
                if part.gate is not None:
                    g[part.at].mul_(part.gate)
        if optimiser.clip is not None:
            _clip(g, optimiser.clip)
        for part in self.parts:
            mine = g[part.at]
            if isinstance(optimiser, Library):
                self._library.step(mine, part.gate if move is None else move)
                continue
            if optimiser.weight_decay:
                mine.add_(part.w, alpha=optimiser.weight_decay)
            gate = part.gate if move is None else move
            if isinstance(optimiser, Adam):
                self._adam(optimiser, part.w, mine if gate is None else mine.mul_(gate))
            else:
                _sgd(optimiser, part.w, mine, part.velocity, gate)

    def _adam(self, adam: Adam, w: Tensor, g: Tensor) -> None:
        self._count += 1
        self._mean.lerp_(g, 1 - adam.beta1)
        self._square.mul_(adam.beta2).addcmul_(g, g, value=1 - adam.beta2)
        torch.sqrt(self._square, out=self._root).div_(math.sqrt(1 - adam.beta2**self._count)).add_(adam.epsilon)
        w.addcdiv_(self._mean, self._root, value=-adam.lr / (1 - adam.beta1**self._count))

    def state(self) -> State | None:
        """The current state of the optimiser; None if it has none."""
        if isinstance(self.optimiser, Library):
            return self._library.state()
        if isinstance(self.optimiser, Adam):
            return Moments(self._mean, self._square, self._count)
        if self._velocity is None:
            return None
        for part in self.parts:
            if part.gate is not None and part.velocity is not None:
                self._velocity[part.at] = torch.where(part.gate > 0, part.velocity, self._velocity[part.at])
        return self._velocity


def _clip(g: Tensor, most: float) -> None:
    """Scale a gradient down to this norm; NaN passes. The host spares itself a pass, and waits for no accelerator."""
    bound = most / (g.norm() + 1e-6)
    if not g.is_cpu:
        g.mul_(bound.clamp(max=1))
    elif not bound >= 1:
        g.mul_(bound)


def velocity(steps: Steps) -> Vector | None:
    """The current velocity of SGD with momentum; None without momentum."""
    state = steps.state()
    assert not isinstance(state, (Moments, LibraryState))
    return state


def _sgd(sgd: SGD, w: Tensor, g: Tensor, velocity: Tensor | None, gate: Tensor | None) -> None:
    if velocity is not None and sgd.fused:
        g.add_(velocity, alpha=sgd.momentum)
    if gate is not None:
        g.mul_(gate)
    if velocity is None:
        w.sub_(g, alpha=sgd.lr)
    elif sgd.fused:
        if gate is None:
            velocity.copy_(g)
        else:
            velocity.addcmul_(velocity, gate, value=-1).add_(g)
        w.sub_(g, alpha=sgd.lr)
    else:
        w.sub_(velocity.mul_(sgd.momentum).add_(g), alpha=sgd.lr)


def _first_velocity(w: Tensor, state: State | None) -> Tensor:
    if state is None:
        return torch.zeros_like(w)
    assert not isinstance(state, (Moments, LibraryState))
    if state.shape != w.shape:
        raise ValueError(f"optimiser state: a velocity of {state.numel()} entries does not fit a model of {len(w)}")
    return state.clone()


def _first_moments(w: Tensor, gate: Tensor | None, state: State | None) -> tuple[Tensor, Tensor, int]:
    if state is None:
        return torch.zeros_like(w), torch.zeros_like(w), 0
    assert isinstance(state, Moments)
    if not state.mean.shape == state.square.shape == w.shape:
        raise ValueError(f"optimiser state: moments of {state.mean.numel()} entries do not fit a model of {len(w)}")
    mean = state.mean.clone() if gate is None else state.mean * gate
    return mean, state.square.clone(), state.steps
