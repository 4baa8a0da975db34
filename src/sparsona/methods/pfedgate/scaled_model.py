"""A model whose blocks are scaled by weights and dropped where these are zero: logits, and gradients for both.

Two ways to compute the same numbers: *masked*, where every entry is multiplied by its block's weight, and *compact*,
where only kept units are computed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import functional_call

from sparsona.core.arithmetic import precise
from sparsona.core.layout import Mask, Vector
from sparsona.core.task import Task
from sparsona.methods.pfedgate.blocks import Blocks
from sparsona.methods.pfedgate.chain import chain
from sparsona.methods.pfedgate.compact import Compact


class Scaled(torch.autograd.Function):
    """A vector whose entries are each multiplied by the weight of their block."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, vec: Tensor, weights: Tensor, index: Tensor) -> Tensor:
        """vec [n], weights [L], index [n] of blocks."""
        spread = weights[index]
        ctx.save_for_backward(vec, spread, index)
        ctx.blocks = len(weights)  # type: ignore[attr-defined]
        return vec * spread

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """For each block's weight a sum in double precision over its entries."""
        vec, spread, index = ctx.saved_tensors  # type: ignore[attr-defined]
        parts, blocks = precise(gradient * vec).double(), ctx.blocks  # type: ignore[attr-defined]
        if parts.is_cpu:
            sums = torch.bincount(precise(index), weights=parts, minlength=blocks)
        else:  # where the weighted bincount has no deterministic kernel
            sums = parts.new_zeros(blocks).index_add_(0, index, parts)
        return gradient * spread, sums.to(gradient), None


class Masked:
    """Every entry multiplied by the weight of its block: for any model and any blocks."""

    def __init__(self, task: Task, blocks: Blocks) -> None:
        self.task, self.blocks, self.index = task, blocks, blocks.index.to(task.flat.device)

    def __call__(self, x: Tensor, theta: Vector, weights: Tensor, chosen: Mask) -> Tensor:
        """Logits of a batch; theta [params]."""
        adapted = cast(Any, Scaled.apply)(theta, weights, self.index)
        logits: Tensor = functional_call(self.task.model, self.blocks.layout.unflatten(adapted), (x,))
        return logits


@lru_cache(maxsize=8)
def scaled_model(task: Task, blocks: Blocks) -> Masked | Compact:
    """The faster of the ways that this model and these blocks allow."""
    steps = chain(task) if blocks.units else None
    return Masked(task, blocks) if steps is None else Compact(task, blocks, steps)
