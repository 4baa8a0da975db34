"""A model under a gate: for each batch the gate says which blocks are kept and how they are scaled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsona.core.adapted import adapted
from sparsona.core.blocks import Blocks
from sparsona.core.gate import sparse_weights
from sparsona.core.layout import Mask, Vector
from sparsona.core.samples import Batch
from sparsona.core.task import Task, loss


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

    def gradients(self, batch: Batch) -> tuple[Vector, Vector, Mask]:
        """Of the loss at what is loaded, for model and gate by one backward pass; and the blocks kept."""
        x, y = batch
        weights, chosen = self.weights(x)
        run = adapted(self.task, self.blocks)(x, weights, chosen)
        wanted = [*run.leaves, *self.gate.weights]
        found = torch.autograd.grad(loss(run.logits, y), wanted, allow_unused=True)
        pairs = zip(self.gate.weights, found[len(run.leaves) :], strict=True)
        of_gate = self.gate.gather([torch.zeros_like(w) if g is None else g for w, g in pairs])
        self._charge(len(y), chosen)
        return run.gather(found[: len(run.leaves)]), of_gate, chosen

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
        kept = self.blocks.counts[chosen].sum(0).tolist()
        read = samples if self.seen is None else 1
        forward = samples * self.blocks.layout.flops_of(kept) + read * self.gate.layout.flops()
        self.task.flops += 3 * forward
        self.task.forward += forward
