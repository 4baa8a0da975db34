"""A model under a gate: for each batch the gate says which blocks are kept and how they are scaled."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor
from typing_extensions import Doc

from sparsona.core.fields import Count
from sparsona.core.imports import imported
from sparsona.core.layout import CPU, Mask, Vector
from sparsona.core.samples import Batch, LocalData
from sparsona.core.task import Task
from sparsona.core.training import Ctx, SgdTraining
from sparsona.methods.pfedgate.blocks import SPLITTERS, Blocks, cut
from sparsona.methods.pfedgate.gate import fresh, gate_task, sparse_weights
from sparsona.methods.pfedgate.knapsack import SELECTORS, room, select
from sparsona.methods.pfedgate.scaled_model import scaled_model

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
    kept_only: bool = False  # gradients of G only for kept blocks
    relu: bool = False  # on the model's outputs
    seen: Tensor | None = None  # what the gate always sees instead of the batch; its norms then use running statistics

    def load(self, theta: Vector, phi: Vector, *, train: bool) -> None:
        """Put in a model and a gate."""
        self.task.load(theta)
        self.gate.load(phi)
        self.task.model.train(train)
        self.gate.model.train(train and self.seen is None)

    @property
    def theta(self) -> Tensor:
        """What is trained of the loaded model [params], a view."""
        return self.task.flat[: self.blocks.layout.dim].detach()

    def weights(self, x: Tensor) -> tuple[Tensor, Mask]:
        """M' and I* for a batch; I* is the host's."""
        weights, chosen, _ = self._weights(x)
        return weights, chosen

    def _weights(self, x: Tensor) -> tuple[Tensor, Mask, Mask]:
        """The same, and I* on the device: the only copy to it in a step."""
        importance, weights = self.gate.model(x if self.seen is None else self.seen)
        importance = importance.clamp(min=self.least)
        chosen = self.choose(importance)
        if bool(chosen.all()):
            return (
                weights,
                chosen,
                torch.ones_like(weights, dtype=torch.bool),
            )  # nothing is dropped: the model is only scaled
        there = chosen.to(weights.device)
        return sparse_weights(importance, weights, there, kept_only=self.kept_only), chosen, there

    def gradients(self, batch: Batch) -> tuple[Vector, Vector, Mask, Tensor]:
        """Of the loss at what is loaded, for model and gate by one backward pass; the blocks kept and all weights."""
        x, y = batch
        weights, chosen, there = self._weights(x)
        theta = self.theta.requires_grad_()
        logits = self._outputs(x, theta, weights, chosen)
        loss = self.task.objective(logits, y)
        of_theta, *rest = torch.autograd.grad(loss, [theta, *self.gate.weights], allow_unused=True)
        self.task.tally.add(self.task.objective, loss, logits, y)
        pairs = zip(self.gate.weights, rest, strict=True)
        of_gate = self.gate.gather([torch.zeros_like(w) if g is None else g for w, g in pairs])
        self._charge(len(y), chosen)
        return of_theta, of_gate, there, weights.detach()

    def logits(self, theta: Vector, phi: Vector, x: Tensor) -> Tensor:
        """Outputs for a batch, in evaluation mode: importance and weights are means over this batch."""
        self.load(theta, phi, train=False)
        with torch.no_grad():
            weights, chosen = self.weights(x)
            return self._outputs(x, self.theta, weights, chosen)

    def _outputs(self, x: Tensor, theta: Vector, weights: Tensor, chosen: Mask) -> Tensor:
        """Logits of the scaled model in the task's precision, as float32; the gate always computes in float32."""
        with self.task.autocast():
            logits = scaled_model(self.task, self.blocks)(x, theta, weights, chosen)
        return logits.float().relu() if self.relu else logits.float()

    def taken(self) -> tuple[Vector, Vector]:
        """Copies of model and gate as they are now."""
        self.task.settle()
        self.gate.settle()
        return self.task.flat.clone(), self.gate.flat.clone()

    def _charge(self, samples: int, chosen: Mask) -> None:
        """Count the kept weights of the model, and the gate."""
        read = samples if self.seen is None else 1
        forward = samples * self.blocks.flops_of(chosen) + read * self.gate.layout.flops()
        self.task.charge(forward, 2 * forward)


@dataclass(frozen=True, kw_only=True)
class Gating(SgdTraining):
    """How a model is cut into blocks and what gates over them are like; a method inherits these fields."""

    step_needs: ClassVar[int] = 2  # one sample has no batch statistics

    batch: Annotated[Annotated[int, Ge(2)], Doc("batch size")] = 32
    blocks: Annotated[Count, Doc("blocks per tensor, or per layer with split rows (B in the paper)")] = 5
    split: Annotated[
        str, Doc("how tensors are cut into blocks: flat, even, rows, channels, or package.module:function")
    ] = "flat"
    selector: Annotated[str, Doc("knapsack solver: greedy_value, greedy_ratio, exact, or package.module:function")] = (
        "greedy_value"
    )
    budget: Annotated[
        Literal["reference", "exact", "layers"],
        Doc("knapsack capacity: as in the paper's code, all of the remaining budget, or per layer"),
    ] = "reference"
    adapt: Annotated[
        Literal["batch", "client"], Doc("input of the gate: each batch, or the mean of the client's training inputs")
    ] = "batch"
    pre_norm: Annotated[bool, Doc("switchable normalisation of the gate's inputs")] = True
    post_norm: Annotated[bool, Doc("batch normalisation of the gate's outputs")] = True
    sigmoid: Annotated[bool, Doc("apply a sigmoid to the gate's outputs")] = True
    open: Annotated[
        Annotated[float, Gt(0), Lt(1)],
        Doc("initial weight M of every block: sigmoid of the bias of the gate's last layer; 0.5 in the paper"),
    ] = 0.5
    gate_start: Annotated[
        Literal["own", "common"], Doc("initial weights of gates: drawn for each client, or the same for all")
    ] = "own"
    shared_branch: Annotated[bool, Doc("use one branch for importance (G) and weights (M)")] = False
    st_kept_only: Annotated[bool, Doc("importance (G) gets gradients only from the kept blocks")] = False
    relu_logits: Annotated[bool, Doc("apply ReLU to the model's outputs, as the authors' code does")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        imported("split", self.split, SPLITTERS)
        imported("selector", self.selector, SELECTORS)

    def least(self, keep: float) -> float:
        """s_min, the share of first blocks."""
        return min(max(1 / self.blocks, 0.1), keep)

    def check_budget(self, keep: float, ctx: Ctx) -> None:
        """ValueError if splitter or selector fail, or the first blocks exceed the budget; it names one that fits."""
        if self.blocks == 1 and keep < 1:
            raise ValueError(
                "blocks: 1 is not allowed with keep < 1; expected an int >= 2, "
                "as the first block of a tensor is always kept"
            )
        if why := self._lacking(keep, ctx):  # first blocks may grow with keep: what would do can only be tried
            enough = next(i / 100 for i in range(math.ceil(100 * keep), 101) if not self._lacking(i / 100, ctx))
            raise ValueError(f"{why}; expected about {enough:g} or more")
        gated = self.gated(keep, ctx)
        chosen = gated.choose(torch.ones(len(gated.blocks)))  # a user's selector shows its faults before the run
        if keep < 1 and self.least(keep) >= keep:
            kept = gated.blocks.spread(chosen)
            heads = [
                slot.view(kept[slot.where]) for slot in gated.blocks.layout.slots if slot.head and len(slot.shape) > 1
            ]
            some = "".join(f", and of the head {int(h.any(1).sum())} of {len(h)} outputs have weights" for h in heads)
            warnings.warn(
                f"method.keep: {keep:g} only has room for the first blocks, so gates choose nothing{some}", stacklevel=3
            )

    def _lacking(self, keep: float, ctx: Ctx) -> str:
        blocks = cut(imported("split", self.split, SPLITTERS), ctx.layout.trained, self.blocks, self.least(keep))
        try:
            room(blocks, keep)
        except ValueError as error:
            return str(error)
        return ""

    def gate_over(self, blocks: Blocks, ctx: Ctx, device: torch.device) -> Task:
        """The gate over these blocks, on a device."""
        parts = self.pre_norm, self.post_norm, self.sigmoid, self.shared_branch
        return gate_task(ctx.task.shape, len(blocks), *parts, device)

    def first_gate(self, keep: float, ctx: Ctx) -> Vector:
        """A new gate's vector, drawn on the host, so that it is the same on every kind of device."""
        host = self.gate_over(self.gated(keep, ctx).blocks, ctx, CPU)
        rng = ctx.rng if self.gate_start == "own" else ctx.common
        return fresh(host, rng("gate"), self.open).to(ctx.task.device)

    def gated(self, keep: float, ctx: Ctx, data: LocalData | None = None) -> Gated:
        """The model under a gate of this budget."""
        least = self.least(keep)
        blocks = cut(imported("split", self.split, SPLITTERS), ctx.layout.trained, self.blocks, least)
        selector = imported("selector", self.selector, SELECTORS)
        gate = self.gate_over(blocks, ctx, ctx.task.device)
        seen = None if data is None or self.adapt == "batch" else data.train.mean()
        choose = partial(select, blocks=blocks, keep=keep, least=least, selector=selector, budget=self.budget)
        return Gated(ctx.task, gate, blocks, least, choose, self.st_kept_only, self.relu_logits, seen)
