"""A model whose blocks are scaled by weights and dropped where these are zero: logits, and gradients for both.

Two ways to compute the same numbers. *Masked*: every entry is multiplied by its block's weight. *Compact*: where
blocks are output units of a plain chain of layers with ReLUs between, only kept units are computed, forward and
backward, and each layer reads only the kept outputs of the one before. A dropped unit gives zero there, ReLU lets no
gradient through at zero, so nothing is lost; the last layer is computed with all its outputs, as its dropped ones still
tell the gate their gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.func import functional_call

from sparsona.core.blocks import Blocks
from sparsona.core.layout import Mask, Slot, Vector, places
from sparsona.core.task import Task

Gradients = Sequence[Tensor | None]
_RELUS: tuple[Any, ...] = (nn.ReLU, F.relu, torch.relu, "relu")
_KEEP_ZEROS: tuple[Any, ...] = (nn.MaxPool2d, nn.AvgPool2d, nn.Identity, F.max_pool2d, F.avg_pool2d)
_FLATTEN: tuple[Any, ...] = (torch.flatten, "flatten", "contiguous")


@dataclass
class Run:
    """One forward pass: its logits, the tensors to be differentiated, and how their gradients make one vector."""

    logits: Tensor
    leaves: list[Tensor]
    gather: Callable[[Gradients], Vector]  # [params]


@dataclass(frozen=True)
class Step:
    """One step of a chain: a layer with its tensors, or a function that keeps zeros and channels."""

    call: Callable[[Tensor], Tensor]
    weight: Slot | None = None
    bias: Slot | None = None
    conv: nn.Conv2d | None = None


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
        sums = torch.bincount(index, weights=(gradient * vec).double(), minlength=ctx.blocks)  # type: ignore[attr-defined]
        return gradient * spread, sums.to(gradient.dtype), None


class Masked:
    """Every entry multiplied by the weight of its block: for any model and any blocks."""

    def __init__(self, task: Task, blocks: Blocks) -> None:
        self.task, self.blocks = task, blocks

    def __call__(self, x: Tensor, weights: Tensor, chosen: Mask) -> Run:
        """The loaded model, adapted, on a batch."""
        n = self.blocks.layout.dim
        leaf = self.task.flat[:n].detach().requires_grad_(torch.is_grad_enabled())
        scaled: Any = Scaled.apply
        adapted = scaled(leaf, weights, self.blocks.index)
        logits = functional_call(self.task.model, self.blocks.layout.unflatten(adapted), (x,))
        return Run(logits, [leaf], lambda found: torch.zeros(n) if found[0] is None else found[0])


class Compact:
    """Only kept units computed: for blocks of output units in a chain."""

    def __init__(self, task: Task, blocks: Blocks, steps: list[Step]) -> None:
        self.task, self.blocks, self.steps = task, blocks, steps
        layers = [s.weight for s in steps if s.weight is not None]
        self.last = layers[-1].name
        self.units = {s.name: stored(s, blocks.index).flatten(1)[:, 0].contiguous() for s in layers}  # [outputs]

    def __call__(self, x: Tensor, weights: Tensor, chosen: Mask) -> Run:
        """The loaded model, adapted, on a batch."""
        flat, leaves, whence = self.task.flat, list[Tensor](), list[tuple[Slot, Tensor | None, Tensor | None]]()
        inputs: Tensor | None = None  # which inputs of the next layer are there; None: all

        def leaf(slot: Slot, rows: Tensor | None, columns: Tensor | None) -> Tensor:
            part = stored(slot, flat)
            part = part if rows is None else part.index_select(0, rows)
            part = part if columns is None else part.index_select(part.dim() - 1, columns)
            leaves.append(part.detach().requires_grad_(torch.is_grad_enabled()))
            whence.append((slot, rows, columns))
            return leaves[-1]

        for step in self.steps:
            if step.weight is None:
                before = x.shape
                x = step.call(x)
                if inputs is not None and len(before) == 4 and x.dim() == 2:  # each channel becomes its positions
                    area = before[2] * before[3]
                    inputs = (inputs[:, None] * area + torch.arange(area)).flatten()
                continue
            units = self.units[step.weight.name]  # the block of each
            rows = None if step.weight.name == self.last else places(chosen[units])
            scale = weights[units if rows is None else units[rows]]
            weight = leaf(step.weight, rows, inputs)
            weight = weight * scale.view(-1, *(1,) * (weight.dim() - 1))
            bias = None if step.bias is None else leaf(step.bias, rows, None) * scale
            if step.conv is None:
                x = F.linear(x, weight, bias)
            else:
                conv = step.conv
                x = F.conv2d(x, weight.permute(0, 3, 1, 2), bias, conv.stride, conv.padding, conv.dilation)
            inputs = rows

        def gather(found: Gradients) -> Vector:
            out = self.task.grads.zero_()
            for (slot, rows, columns), gradient in zip(whence, found, strict=True):
                if gradient is None:
                    continue
                part = stored(slot, out)
                if columns is not None:
                    wide = gradient.new_zeros(*gradient.shape[:-1], part.shape[-1])
                    gradient = wide.index_copy_(gradient.dim() - 1, columns, gradient)
                part.copy_(gradient) if rows is None else part.index_copy_(0, rows, gradient)
            return out

        return Run(x, leaves, gather)


@lru_cache(maxsize=8)
def adapted(task: Task, blocks: Blocks) -> Masked | Compact:
    """The faster of the ways that this model and these blocks allow."""
    steps = chain(task) if blocks.units else None
    return Masked(task, blocks) if steps is None else Compact(task, blocks, steps)


def chain(task: Task) -> list[Step] | None:
    """The steps of a model that is a plain chain: linear layers and convolutions, ReLU between them, no more."""
    try:
        graph = fx.symbolic_trace(task.model).graph
    except Exception:  # whatever the forward pass of a stranger's class raises when it is traced
        return None
    slots = {slot.name: slot for slot in task.layout.trained.slots}
    steps, used, last, open_layer = list[Step](), set[str](), None, False
    for node in graph.nodes:
        if node.op == "placeholder" and last is None:
            last = node
            continue
        if node.op == "output":
            return steps if node.args == (last,) and used == set(slots) and steps[-1].weight is not None else None
        more = (*node.args[1:], *node.kwargs.values())
        if not node.args or node.args[0] is not last or any(isinstance(a, fx.Node) for a in more):
            return None
        last = node
        module = task.model.get_submodule(node.target) if node.op == "call_module" else None
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            if open_layer or not _plain(module) or f"{node.target}.weight" in used:
                return None
            weight, bias = slots.get(f"{node.target}.weight"), slots.get(f"{node.target}.bias")
            if weight is None or (bias is None and module.bias is not None):
                return None  # frozen or shared
            used |= {slot.name for slot in (weight, bias) if slot is not None}
            steps.append(Step(module, weight, bias, module if isinstance(module, nn.Conv2d) else None))
            open_layer = True
            continue
        kind = node.target if module is None else type(module)
        if kind in _RELUS:
            open_layer = False
        elif not (kind in _KEEP_ZEROS or _flattens(node, module) or (isinstance(module, nn.Dropout) and module.p == 0)):
            return None
        steps.append(Step(_bound(node, module)))
    return None


def _bound(node: fx.Node, module: nn.Module | None) -> Callable[[Tensor], Tensor]:
    target, more, named = node.target, node.args[1:], node.kwargs
    if module is not None:
        return module
    if isinstance(target, str):
        return lambda x: getattr(x, target)(*more, **named)
    return lambda x: target(x, *more, **named)


def _plain(layer: nn.Linear | nn.Conv2d) -> bool:
    if isinstance(layer, nn.Linear):
        return type(layer) is nn.Linear
    return type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"


def _flattens(node: fx.Node, module: nn.Module | None) -> bool:
    if isinstance(module, nn.Flatten):
        return (module.start_dim, module.end_dim) == (1, -1)
    return node.target in _FLATTEN and (node.target == "contiguous" or node.args[1:] == (1,))


def stored(slot: Slot, vec: Tensor) -> Tensor:
    """A tensor as it lies in a vector: convolutions as output, row, column, input."""
    part = vec[slot.where]
    return slot.view(part).permute(0, 2, 3, 1) if len(slot.shape) == 4 else slot.view(part)
