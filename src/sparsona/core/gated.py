"""A model under a gate: for each batch the gate says which blocks are kept and how they are scaled."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from sparsona.core.adapted import adapted
from sparsona.core.blocks import SPLITTERS, Blocks, cut
from sparsona.core.fields import Count
from sparsona.core.gate import gate_task, sparse_weights
from sparsona.core.imports import imported
from sparsona.core.knapsack import SELECTORS, room, select
from sparsona.core.layout import Mask, Vector
from sparsona.core.samples import Batch, LocalData
from sparsona.core.task import Task, loss
from sparsona.core.training import Ctx, Training

LEVELS = ("dropped", "below 0.1", *(f"0.{i} to 0.{i + 1}" for i in range(1, 9)), "above 0.9")


def levels(weights: Tensor, chosen: Mask) -> Tensor:
    """The share of blocks that are dropped, and of kept ones by their weight [11], in the order of LEVELS."""
    edges = torch.arange(1, 10, device=weights.device) / 10
    level = torch.bucketize(weights.detach(), edges, right=True) + 1  # 0.1 is not below 0.1
    return torch.bincount((level * chosen).flatten(), minlength=11) / chosen.numel()


@dataclass(frozen=True)
class Gated:
    """The one model and the one gate of a process, to be loaded with a client's vectors."""

    task: Task
    gate: Task
    blocks: Blocks
    least: float  # s_min, below which no importance falls
    choose: Callable[[Tensor], Mask]  # from importance to the blocks kept
    kept_only: bool = False  # gradients of G for kept blocks alone
    seen: Tensor | None = None  # what the gate always sees instead of the batch; its norms then use running statistics

    def load(self, theta: Vector, phi: Vector, *, train: bool) -> None:
        """Put in a model and a gate."""
        self.task.load(theta)
        self.gate.load(phi)
        self.task.model.train(train)
        self.gate.model.train(train and self.seen is None)

    def weights(self, x: Tensor) -> tuple[Tensor, Mask]:
        """M' and I* for a batch."""
        importance, weights = self.gate.model(x if self.seen is None else self.seen)
        importance = importance.clamp(min=self.least)
        chosen = self.choose(importance)
        if bool(chosen.all()):
            return weights, chosen  # nothing is dropped: the model is only scaled
        return sparse_weights(importance, weights, chosen, kept_only=self.kept_only), chosen

    def gradients(self, batch: Batch) -> tuple[Vector, Vector, Mask, Tensor]:
        """Of the loss at what is loaded, for model and gate by one backward pass; the blocks kept and all weights."""
        x, y = batch
        weights, chosen = self.weights(x)
        run = adapted(self.task, self.blocks)(x, weights, chosen)
        wanted = [*run.leaves, *self.gate.weights]
        found = torch.autograd.grad(loss(run.logits, y), wanted, allow_unused=True)
        pairs = zip(self.gate.weights, found[len(run.leaves) :], strict=True)
        of_gate = self.gate.gather([torch.zeros_like(w) if g is None else g for w, g in pairs])
        self._charge(len(y), chosen)
        return run.gather(found[: len(run.leaves)]), of_gate, chosen, weights.detach()

    def logits(self, theta: Vector, phi: Vector, x: Tensor) -> Tensor:
        """Outputs for a batch, in evaluation mode: importance and weights are means over this batch."""
        self.load(theta, phi, train=False)
        with torch.no_grad():
            weights, chosen = self.weights(x)
            return adapted(self.task, self.blocks)(x, weights, chosen).logits

    def taken(self) -> tuple[Vector, Vector]:
        """Copies of model and gate as they are now."""
        self.task.settle()
        self.gate.settle()
        return self.task.flat.clone(), self.gate.flat.clone()

    def _charge(self, samples: int, chosen: Mask) -> None:
        """Count the kept weights of the model, and the gate."""
        read = samples if self.seen is None else 1
        forward = samples * self.blocks.flops_of(chosen) + read * self.gate.layout.flops()
        self.task.flops += 3 * forward
        self.task.forward += forward


@dataclass(frozen=True, kw_only=True)
class Gating(Training):
    """How a model is cut into blocks and what gates over them are like; a method inherits these fields."""

    step_needs: ClassVar[int] = 2  # one sample has no batch statistics

    batch: Annotated[int, Ge(2)] = 32  # samples a step; at least as many as that
    blocks: Count = 5  # B, blocks per tensor (rows: per layer), at most one per entry
    split: str = "flat"  # flat, even, rows, channels, or a splitter of your own as package.module:function
    selector: str = "greedy_value"  # greedy_value, greedy_ratio, exact, or your own as package.module:function
    budget: Literal["reference", "exact", "layers"] = "reference"  # as the paper's code, all that is left, or per layer
    adapt: Literal["batch", "client"] = "batch"  # the gate sees each batch, or the mean of all training inputs
    pre_norm: bool = True  # switchable normalisation of the gate's inputs
    post_norm: bool = True  # batch normalisation of its outputs
    sigmoid: bool = True  # bounds its outputs
    shared_branch: bool = False  # one branch for G and M
    st_kept_only: bool = False  # gradients of G for kept blocks only

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimiser != "sgd":
            raise ValueError(f'optimiser = "{self.optimiser}": model and gate are trained by "sgd" alone')
        imported("split", self.split, SPLITTERS)
        imported("selector", self.selector, SELECTORS)

    def least(self, keep: float) -> float:
        """s_min, the share of first blocks."""
        return min(max(1 / self.blocks, 0.1), keep)

    def check(self, keep: float, ctx: Ctx) -> None:
        """ValueError if splitter or selector fail, or first blocks alone exceed the budget, with one that would do."""
        if self.blocks == 1 and keep < 1:
            raise ValueError("blocks = 1: first blocks are always kept, and with one per tensor that is everything")
        if why := self._lacking(keep, ctx):  # first blocks may grow with keep: what would do can only be tried
            enough = next(i / 100 for i in range(math.ceil(100 * keep), 101) if not self._lacking(i / 100, ctx))
            raise ValueError(f"{why}; keep = {enough:g} would do")
        gated = self.gated(keep, ctx)
        chosen = gated.choose(torch.ones(len(gated.blocks)))  # a selector of one's own shows its faults before the run
        if keep < 1 and self.least(keep) >= keep:
            kept = gated.blocks.spread(chosen)
            heads = [
                slot.view(kept[slot.where]) for slot in gated.blocks.layout.slots if slot.head and len(slot.shape) > 1
            ]
            some = "".join(f", and of the head {int(h.any(1).sum())} of {len(h)} outputs have weights" for h in heads)
            warnings.warn(f"method.keep: {keep:g} holds first blocks only, so gates choose nothing{some}", stacklevel=3)

    def _lacking(self, keep: float, ctx: Ctx) -> str:
        blocks = cut(imported("split", self.split, SPLITTERS), ctx.layout.trained, self.blocks, self.least(keep))
        try:
            room(blocks, keep)
        except ValueError as error:
            return str(error)
        return ""

    def gated(self, keep: float, ctx: Ctx, data: LocalData | None = None) -> Gated:
        """The model under a gate of this budget."""
        least = self.least(keep)
        blocks = cut(imported("split", self.split, SPLITTERS), ctx.layout.trained, self.blocks, least)
        selector = imported("selector", self.selector, SELECTORS)
        gate = gate_task(ctx.task.shape, len(blocks), self.pre_norm, self.post_norm, self.sigmoid, self.shared_branch)
        seen = None if data is None or self.adapt == "batch" else data.train.mean()
        choose = partial(select, blocks=blocks, keep=keep, least=least, selector=selector, budget=self.budget)
        return Gated(ctx.task, gate, blocks, least, choose, self.st_kept_only, seen)
