"""The training loop: steps of an optimiser from a vector, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sparsona.core.layout import Layout, Mask, Vector
from sparsona.core.optimiser import Optimiser, Segment, State, Steps
from sparsona.core.samples import Batch, Batches
from sparsona.core.task import Task


@dataclass(frozen=True)
class Pull:
    """A proximal term towards ``anchor``: strength/2 |theta - anchor|^2 in the loss, or a step after each step."""

    anchor: Vector
    strength: float
    kind: Literal["loss", "step"] = "loss"


def descend(
    task: Task,
    theta: Vector,
    batches: Batches,
    optimiser: Optimiser,
    *,
    mask: Mask | None = None,
    move: Mask | None = None,
    pull: Pull | None = None,
    sam: float = 0.0,
    state: State | None = None,
) -> tuple[Vector, State | None]:
    """Train from theta; return the trained vector and the state of the optimiser.

    ``mask`` is the model's support: weights outside are zero and stay zero. Only coordinates in ``move`` are
    trained, which includes momentum, decay and pull. A frozen tensor costs no gradient, unless clipping needs it for
    the norm. ``sam`` is the perturbation radius of sharpness-aware minimisation (Foret et al., 2021), at twice the
    cost; 0 turns it off. Momentum and Adam's moments continue from ``state``.
    """
    task.charge(0, 0)  # what comes is counted, and where nothing moves it is nothing
    n = task.layout.params
    support = None if mask is None else mask.to(torch.float32)  # multiplying by bools is many times slower
    gate = _gate(support, move, n)
    task.load(theta if support is None else theta * support)
    w = task.flat[:n]
    buffers = task.flat[n:].clone() if move is not None and len(task.flat) > n else None
    still = _still(task.layout, move) if optimiser.clip is None or optimiser.clip_of == "masked" else []
    # steps touch nothing but runs of tensors that move
    runs = task.layout.trained.runs([not stays for stays in still]) if any(still) else None
    steps = Steps(optimiser, w, gate=gate, runs=runs, state=state)
    if still and all(still):  # nothing to learn, but for running statistics, which do not move without their layers
        return task.flat.clone(), steps.state()
    pull = None if pull is None or pull.strength == 0 else pull
    goal = w if pull is None else pull.anchor[:n] if support is None else (pull.anchor * support)[:n]
    with task.training(batches, mask=mask, still=still):
        for batch in batches:
            gradients = task.gradients(batch)
            if sam:
                gradients = _uphill(task, batch, gradients, sam, gate)
            if steps.plain and pull is None:  # the same sums without a pass through the flat gradient
                with torch.no_grad():
                    torch._foreach_sub_(task.weights, gradients, alpha=optimiser.lr)
                continue
            g = task.gather(gradients)
            if pull is not None and pull.kind == "loss":
                for part in steps.parts:
                    g[part.at].add_(part.w, alpha=pull.strength).sub_(goal[part.at], alpha=pull.strength)
            steps.step(g)
            if pull is not None and pull.kind == "step":
                for part in steps.parts:
                    _approach(part, goal[part.at], optimiser.lr * pull.strength)
    if buffers is not None and move is not None:
        task.flat[n:] = torch.where(move[n:], task.flat[n:], buffers)
    return task.flat.clone(), steps.state()


def _approach(part: Segment, goal: Tensor, share: float) -> None:
    away = part.w - goal if part.gate is None else (part.w - goal).mul_(part.gate)
    part.w.sub_(away, alpha=share)


def _uphill(task: Task, batch: Batch, gradients: list[Tensor], far: float, gate: Tensor | None) -> list[Tensor]:
    """The gradient a step of length ``far`` along the given one, within what may move; the model stays where it is."""
    task.settle()
    here = task.flat.clone()
    g = task.gather(gradients)
    if gate is not None:
        g.mul_(gate)
    task.flat[: len(g)].add_(g, alpha=far / (float(g.norm()) + 1e-12))
    uphill = task.gradients(batch, tally=False)
    task.settle()
    task.flat.copy_(here)  # running statistics too: each batch counts once, where the model is
    return uphill


def _still(layout: Layout, move: Mask | None) -> list[bool]:
    """For each trained tensor, whether nothing of it moves."""
    return [] if move is None else [n == 0 for n in layout.trained.counts(move[: layout.params])]


def _gate(support: Tensor | None, move: Mask | None, n: int) -> Tensor | None:
    """The coordinates that may move, as zeros and ones, or None for all."""
    if move is None:
        return None if support is None else support[:n]
    free = move[:n].to(torch.float32)
    return free if support is None else free.mul_(support[:n])
