"""The door to computation: one model per process, over one flat buffer of parameters and one of gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsona.core.layout import Layout, Mask, Vector
from sparsona.core.samples import Batch, Batches


class Task:
    """A model whose parameters are views of one vector: it gives logits, losses and gradients at any vector.

    It also counts: ``flops`` is what was spent on training so far, by the papers' convention (2 per multiply-add on
    non-zero weights, training is three times the forward pass), and ``forward`` the part of it that went forward.
    """

    def __init__(self, model: nn.Module, layout: Layout, shape: tuple[int, ...] = ()) -> None:
        self.model = model
        self.layout = layout
        self.shape = shape  # of one input, if known
        self.flops = 0
        self.forward = 0
        self.flat = torch.zeros(layout.dim)
        self.grads = torch.zeros(layout.params)
        self.weights, self._buffers = _bind(model, layout, self.flat)
        self._grad_views = [s.view(self.grads[s.where]) for s in layout.slots if s.kind != "buffer"]
        self._live, self._live_views = self.weights, self._grad_views  # what has a gradient now: all, or what moves

    @staticmethod
    def of(model: nn.Module, example: Tensor) -> tuple[Task, Vector]:
        """A task and the model's initial vector."""
        layout = Layout.of(model, example)
        theta0 = layout.flatten({**dict(model.named_buffers()), **dict(model.named_parameters())})
        return Task(model, layout, tuple(example.shape[1:])), theta0

    def logits(self, theta: Vector, x: Tensor) -> Tensor:
        """Outputs for a batch, in evaluation mode."""
        self.load(theta)
        self.model.eval()
        with torch.no_grad():
            out: Tensor = self.model(x)
        return out

    def grad(self, theta: Vector, batch: Batch) -> Vector:
        """The dense gradient of the loss at theta, in evaluation mode: it sees the pruned weights as well."""
        self.load(theta)
        self.model.eval()
        self.charge(len(batch[1]))
        out = torch.zeros(self.layout.dim)
        out[: self.layout.params] = self.gather(self.gradients(batch))
        return out

    def charge(self, samples: int) -> None:
        """Count a dense gradient over so many samples."""
        self.flops += 3 * samples * self.layout.flops()
        self.forward += samples * self.layout.flops()

    def load(self, theta: Vector) -> None:
        """Put a vector into the model."""
        if theta.shape != self.flat.shape:
            raise ValueError(f"a vector of length {theta.numel()} does not fit a model of {self.layout.dim} entries")
        self.flat.copy_(theta)

    def settle(self) -> None:
        """Take in buffers that the model replaced instead of writing into them."""
        for module, leaf, view in self._buffers:
            found = module._buffers[leaf]
            if found is not view and found is not None:
                view.copy_(found)
                module._buffers[leaf] = view

    def gradients(self, batch: Batch) -> list[Tensor]:
        """The gradient of the loss at the loaded vector, tensor by tensor, fresh from the backward pass."""
        x, y = batch
        found = torch.autograd.grad(loss(self.model(x), y), self._live, allow_unused=True)
        return [torch.zeros_like(w) if g is None else g for w, g in zip(self._live, found, strict=True)]

    def gather(self, gradients: list[Tensor]) -> Vector:
        """Gradients as one flat vector, in a buffer that the next call writes over."""
        torch._foreach_copy_(self._live_views, gradients)
        return self.grads

    @contextmanager
    def scaled(self, width: float) -> Iterator[None]:
        """Within the block outputs of the body's layers are divided by this width (HeteroFL's scaler).

        Layers that hold a share of their inputs then say about as much as whole ones. A model with normalisation layers
        stays as it is, since these undo any such factor.
        """
        hooks = []
        if width != 1 and not any(slot.kind == "norm" for slot in self.layout.slots):
            layers = {slot.layer for slot in self.layout.slots if slot.uses and not slot.head}
            hooks = [self.model.get_submodule(name).register_forward_hook(_divided(width)) for name in sorted(layers)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def frozen(self, still: list[bool]) -> Iterator[None]:
        """Within the block these tensors, one flag each, have no gradients: the backward pass stops above the lowest.

        Where a flat gradient is asked for, theirs is 0.
        """
        try:
            for weight, stays in zip(self.weights, still, strict=True):
                weight.requires_grad_(not stays)
            self._live = [w for w, stays in zip(self.weights, still, strict=True) if not stays]
            self._live_views = [v for v, stays in zip(self._grad_views, still, strict=True) if not stays]
            self.grads.zero_()
            yield
        finally:
            for weight in self.weights:
                weight.requires_grad_(True)
            self._live, self._live_views = self.weights, self._grad_views


def _divided(by: float) -> Callable[[nn.Module, object, Tensor], Tensor]:
    return lambda module, inputs, out: out / by


def loss(logits: Tensor, y: Tensor, *, reduction: Literal["mean", "sum"] = "mean") -> Tensor:
    """Cross entropy; with a single output, binary cross entropy on its logit."""
    if logits.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(logits[:, 0], y.to(logits.dtype), reduction=reduction)
    return F.cross_entropy(logits, y, reduction=reduction)


def correct(logits: Tensor, y: Tensor) -> int:
    """How many samples are classified rightly; NaN is never right."""
    guess = (logits[:, 0] > 0).to(y.dtype) if logits.shape[1] == 1 else logits.argmax(1)
    return int(((guess == y) & ~logits.isnan().any(1)).sum())


@dataclass(frozen=True)
class Moments:
    """What Adam remembers: running means of the gradient and of its square, and how many steps they are of."""

    mean: Tensor  # [params]
    square: Tensor  # [params]
    steps: int


class Adam:
    """Adam's steps (Kingma and Ba, 2015) on the flat vector, those of ``torch.optim.Adam``; it goes on from moments."""

    def __init__(
        self, *, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-8, moments: Moments | None = None
    ) -> None:
        self.beta1, self.beta2, self.epsilon, self.begins = beta1, beta2, epsilon, moments
        self._steps = 0 if moments is None else moments.steps
        self._mean = self._square = self._root = torch.empty(0)

    def start(self, params: int, gate: Tensor | None = None) -> None:
        """Make ready for a vector of this length, of which only what the gate lets through may move."""
        if self.begins is None:
            self._mean, self._square = torch.zeros(params), torch.zeros(params)
        elif self.begins.mean.shape == self.begins.square.shape == (params,):
            self._mean, self._square = self.begins.mean.clone(), self.begins.square.clone()
        else:
            raise ValueError(f"moments of {self.begins.mean.numel()} entries do not fit a model of {params}")
        if gate is not None:
            self._mean.mul_(gate)
        self._root = torch.empty(params)

    def step(self, w: Tensor, gradient: Tensor, lr: float) -> None:
        """Move w, in place."""
        self._steps += 1
        self._mean.lerp_(gradient, 1 - self.beta1)
        self._square.mul_(self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        torch.sqrt(self._square, out=self._root).div_(math.sqrt(1 - self.beta2**self._steps)).add_(self.epsilon)
        w.addcdiv_(self._mean, self._root, value=-lr / (1 - self.beta1**self._steps))

    @property
    def moments(self) -> Moments:
        """What it remembers by now."""
        return Moments(self._mean, self._square, self._steps)


class Sgd:
    """SGD's steps on a vector, in place, each on some of its entries only; momentum goes on from what it was."""

    def __init__(
        self,
        w: Tensor,
        *,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        clip: float | None = None,
        velocity: Tensor | None = None,
    ) -> None:
        self.w, self.momentum, self.weight_decay, self.clip = w, momentum, weight_decay, clip
        self.velocity = None
        if momentum:
            self.velocity = torch.zeros_like(w) if velocity is None else velocity.clone()

    def step(self, g: Tensor, lr: float, move: Tensor | None = None) -> None:
        """Clip, decay, move where ``move`` is 1; where it is 0, value and velocity stay. The gradient is used up."""
        if self.clip is not None and (bound := self.clip / (g.norm() + 1e-6)) < 1:
            g.mul_(bound)
        if self.weight_decay:
            g.add_(self.w, alpha=self.weight_decay)
        if self.velocity is not None:
            g.add_(self.velocity, alpha=self.momentum)
        if move is not None:
            g.mul_(move)
        if self.velocity is not None:
            self.velocity.copy_(g) if move is None else self.velocity.addcmul_(self.velocity, move, value=-1).add_(g)
        self.w.sub_(g, alpha=lr)


def sgd(
    task: Task,
    theta: Vector,
    batches: Batches,
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    clip: float | None = None,
    clip_of: Literal["dense", "masked"] = "dense",
    mask: Mask | None = None,
    move: Mask | None = None,
    anchor: Vector | None = None,
    pull: float = 0.0,
    pull_as: Literal["loss", "step"] = "loss",
    sam: float = 0.0,
    adam: Adam | None = None,
    velocity: Vector | None = None,
) -> Vector:
    """Train from theta and give the trained vector.

    ``mask`` is the model's support: weights outside are zero and stay so. Only coordinates in ``move`` ever move, be
    it by gradient, momentum, decay or pull. ``pull`` draws towards ``anchor``: as a term pull/2 |theta - anchor|^2 of
    the loss, or as a step of its own after each step. ``clip`` bounds the norm of the gradient, taken over all
    coordinates ("dense") or over those that move ("masked"). A tensor of which nothing moves costs no gradient, unless
    the norm needs it. Momentum starts at zero, or goes on from ``velocity`` [params], which is written over; what does
    not move keeps its own. With ``sam`` each gradient is taken that far up the slope (sharpness-aware minimisation,
    Foret et al., 2021), at twice the cost. With ``adam`` the gradient, once clipped and decayed, makes Adam's step
    instead, and momentum must be 0.
    """
    if adam is not None and momentum:
        raise ValueError(f"momentum: {momentum}; with Adam only 0 is allowed")
    n = task.layout.params
    if velocity is not None and velocity.shape != (n,):
        raise ValueError(f"a velocity of {velocity.numel()} entries does not fit a model of {n}")
    support = None if mask is None else mask.to(torch.float32)  # multiplying by bools is many times slower
    gate = _gate(support, move, n)
    task.load(theta if support is None else theta * support)
    w = task.flat[:n]
    buffers = task.flat[n:].clone() if move is not None and len(task.flat) > n else None
    goal = None if anchor is None or pull == 0 else anchor[:n] if support is None else (anchor * support)[:n]
    plain = gate is None and goal is None and clip is None and not weight_decay and not momentum and adam is None
    if adam is not None:
        adam.start(n, gate)
    still = _still(task.layout, move) if clip is None or clip_of == "masked" else []
    if still and all(still):  # nothing to learn, but for running statistics, which do not move without their layers
        return task.flat.clone()
    # steps touch nothing but runs of tensors that move
    runs = task.layout.trained.runs([not stays for stays in still]) if any(still) and adam is None else [slice(0, n)]
    parts = [_Part.of(run, w, task.grads, gate, goal, momentum, velocity) for run in runs]
    passes = 2 if sam else 1
    cost, forward = task.layout.training_flops(mask, still) * passes, task.layout.flops(mask) * passes
    task.model.train()
    quiet = task.frozen(still) if any(still) else nullcontext()
    with quiet, batches.rng("layers").everywhere():  # dropout and the like draw from the global generator
        for batch in batches:
            gradients = task.gradients(batch)
            if sam:
                gradients = _uphill(task, batch, gradients, sam, gate)
            task.flops += cost * len(batch[1])
            task.forward += forward * len(batch[1])
            if plain:  # the same sums without a pass through the flat gradient
                with torch.no_grad():
                    torch._foreach_sub_(task.weights, gradients, alpha=lr)
                continue
            g = task.gather(gradients)
            for p in parts:
                if p.goal is not None and pull_as == "loss":
                    p.g.add_(p.w, alpha=pull).sub_(p.goal, alpha=pull)
                if p.gate is not None and clip_of == "masked":
                    p.g.mul_(p.gate)
            if clip is not None:
                g.mul_((clip / (g.norm() + 1e-6)).clamp(max=1.0))
            for p in parts:
                if weight_decay:
                    p.g.add_(p.w, alpha=weight_decay)
                if p.gate is not None:
                    p.g.mul_(p.gate)
                if adam is not None:
                    adam.step(p.w, p.g, lr)
                else:
                    p.w.sub_(p.g if p.velocity is None else p.velocity.mul_(momentum).add_(p.g), alpha=lr)
                if p.goal is not None and pull_as == "step":
                    away = p.w - p.goal if p.gate is None else (p.w - p.goal).mul_(p.gate)
                    p.w.sub_(away, alpha=lr * pull)
    task.settle()
    if buffers is not None and move is not None:
        task.flat[n:] = torch.where(move[n:], task.flat[n:], buffers)
    if velocity is not None:
        for run, p in zip(runs, parts, strict=True):
            if p.gate is not None and p.velocity is not None:
                velocity[run] = torch.where(p.gate > 0, p.velocity, velocity[run])
    return task.flat.clone()


@dataclass(frozen=True)
class _Part:
    """A stretch of the vector that steps are made on, each field a view of that stretch."""

    w: Tensor
    g: Tensor
    gate: Tensor | None  # None: all of it moves
    goal: Tensor | None
    velocity: Tensor | None

    @staticmethod
    def of(
        at: slice,
        w: Tensor,
        g: Tensor,
        gate: Tensor | None,
        goal: Tensor | None,
        momentum: float,
        velocity: Tensor | None,
    ) -> _Part:
        open_ = None if gate is None or bool(gate[at].all()) else gate[at]
        moving = None
        if momentum and velocity is None:
            moving = torch.zeros_like(w[at])
        elif momentum and velocity is not None:
            moving = velocity[at] if open_ is None else velocity[at] * open_  # what is closed must not coast
        return _Part(w[at], g[at], open_, None if goal is None else goal[at], moving)


def _uphill(task: Task, batch: Batch, gradients: list[Tensor], far: float, gate: Tensor | None) -> list[Tensor]:
    """The gradient a step of length ``far`` along the given one, within what may move; the model stays where it is."""
    task.settle()
    here = task.flat.clone()
    g = task.gather(gradients)
    if gate is not None:
        g.mul_(gate)
    task.flat[: len(g)].add_(g, alpha=far / (float(g.norm()) + 1e-12))
    found = task.gradients(batch)
    task.settle()
    task.flat.copy_(here)  # running statistics too: each batch counts once, where the model is
    return found


def _still(layout: Layout, move: Mask | None) -> list[bool]:
    """For each trained tensor, whether nothing of it moves."""
    return [] if move is None else [n == 0 for n in layout.trained.counts(move[: layout.params])]


def _gate(support: Tensor | None, move: Mask | None, n: int) -> Tensor | None:
    """The coordinates that may move, as zeros and ones, or None for all."""
    if move is None:
        return None if support is None else support[:n]
    free = move[:n].to(torch.float32)
    return free if support is None else free.mul_(support[:n])


def _bind(model: nn.Module, layout: Layout, flat: Tensor) -> tuple[list[Tensor], list[tuple[nn.Module, str, Tensor]]]:
    """Make the model's parameters and buffers views of the flat buffer; give both, the trained ones in its order."""
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    for module in model.modules():
        if (
            isinstance(module, nn.modules.batchnorm._NormBase)
            and module.track_running_stats
            and module.momentum is None
        ):
            raise ValueError("batch norm with momentum=None counts batches, which would leak from client to client")
    bound = []
    for slot in layout.slots:
        view = slot.view(flat[slot.where])
        if slot.name in parameters:
            view.copy_(parameters[slot.name].data)
            parameters[slot.name].data = view
        else:
            view.copy_(buffers[slot.name])
            owner, _, leaf = slot.name.rpartition(".")
            model.get_submodule(owner)._buffers[leaf] = view
            bound.append((model.get_submodule(owner), leaf, view))
    return [parameters[slot.name] for slot in layout.slots if slot.kind != "buffer"], bound
