"""A chain of layers of which only the kept units are computed, forward and backward.

A dropped unit gives zero, ReLU lets no gradient through at zero, so nothing is lost: each layer reads only the kept
outputs of the one before. The last layer is computed with all its outputs, as its dropped ones still pass their
gradient to the gate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sparsona.core.layout import Mask, Slot, Vector
from sparsona.core.task import Task
from sparsona.methods.pfedgate.blocks import Blocks
from sparsona.methods.pfedgate.chain import Step

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Kept:
    """Where the entries of kept units are: the weights layer by layer, then the biases of all layers."""

    index: Tensor  # [n] places in the vector
    blocks: Tensor  # [units] the block of each unit
    biased: Tensor | None  # [biases] which of the units have a bias; None: all
    shapes: list[tuple[int, ...]]  # of each layer's weight as it is stored, a row per unit
    sizes: list[int]  # entries of each weight, and of all biases
    units: list[int]  # of each layer
    biases: list[int]  # of each layer

    def weights(self, parts: Tensor) -> list[Tensor]:
        """The weights among all entries [n]."""
        return [part.view(shape) for part, shape in zip(parts.split(self.sizes), self.shapes, strict=False)]

    def columns(self, scale: Tensor) -> list[Tensor]:
        """A factor for each unit [units] by layers, each to be multiplied with its weight."""
        parts = zip(scale.split(self.units), self.shapes, strict=True)
        return [part.view(-1, *(1,) * (len(shape) - 1)) for part, shape in parts]

    def of_biases(self, units: Tensor) -> Tensor:
        """Of one number per unit those of units with a bias."""
        return units if self.biased is None else units.index_select(0, self.biased)


class GatheredUnits(torch.autograd.Function):
    """The scaled tensors of kept units: gathered from the vector at once, their gradients written back at once."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, vec: Tensor, weights: Tensor, kept: Kept, out: Tensor
    ) -> tuple[Tensor, ...]:
        """vec [params], weights [L], and where the gradient of vec is written: all weights, then all biases."""
        parts, scale = vec.index_select(0, kept.index), weights.index_select(0, kept.blocks)
        ctx.save_for_backward(parts, scale)
        ctx.kept, ctx.out, ctx.count = kept, out, len(weights)  # type: ignore[attr-defined]
        scaled = [w * column for w, column in zip(kept.weights(parts), kept.columns(scale), strict=True)]
        biases = parts[sum(kept.sizes[:-1]) :] * kept.of_biases(scale)
        return *scaled, *biases.split(kept.biases)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """A block's weight is multiplied with each entry of its units."""
        parts, scale = ctx.saved_tensors  # type: ignore[attr-defined]
        kept: Kept = ctx.kept  # type: ignore[attr-defined]
        out: Tensor = ctx.out  # type: ignore[attr-defined]
        fresh, sums, begin = torch.empty_like(parts), list[Tensor](), sum(kept.sizes[:-1])
        for g, w, column, of_w in zip(
            gradients, kept.weights(parts), kept.columns(scale), kept.weights(fresh), strict=False
        ):
            torch.mul(g, column, out=of_w)
            sums.append((g * w).flatten(1).sum(1))
        of_biases, of_scale = torch.cat(gradients[len(sums) :]), torch.cat(sums)
        torch.mul(of_biases, kept.of_biases(scale), out=fresh[begin:])
        of_biases = of_biases * parts[begin:]
        of_scale = of_scale + of_biases if kept.biased is None else of_scale.index_add_(0, kept.biased, of_biases)
        of_weights = scale.new_zeros(ctx.count).index_add_(0, kept.blocks, of_scale)  # type: ignore[attr-defined]
        return out.zero_().scatter_(0, kept.index, fresh), of_weights, None, None


@dataclass(frozen=True)
class Layer:
    """How the entries of a layer lie in the vector."""

    rows: Places  # [outputs] where the weights of each unit begin
    columns: Places  # [taps, inputs, positions] where those of an input are in a row: a window's taps, or all positions
    biases: Places  # [outputs] of each unit; [0]: none
    blocks: Places  # [outputs] of each unit
    window: tuple[int, ...]  # of a convolution


class Compact:
    """Only kept units computed: for blocks of output units in a chain."""

    def __init__(self, task: Task, blocks: Blocks, steps: list[Step]) -> None:
        self.task, self.steps = task, steps
        slots = [(step.weight, step.bias) for step in steps if step.weight is not None]
        self.last = slots[-1][0].name
        self.units = {w.name: stored(w, blocks.index).flatten(1)[:, 0].contiguous() for w, _ in slots}  # [outputs]
        self.layers = list[Layer]()
        for weight, bias in slots:
            before = len(self.layers[-1].rows) if self.layers else weight.shape[1]
            self.layers.append(_layer(weight, bias, self.units[weight.name], before))
        self.kept = lru_cache(maxsize=1)(self._kept)  # neighbouring batches often agree

    def __call__(self, x: Tensor, theta: Vector, weights: Tensor, chosen: Mask) -> Tensor:
        """Logits of a batch; theta [params]."""
        gathered = cast(Any, GatheredUnits.apply)
        kept = self.kept(chosen.numpy().tobytes())
        tensors = gathered(theta, weights, kept, self.task.grads)
        own, biases = iter(tensors[: len(self.layers)]), iter(tensors[len(self.layers) :])
        for step in self.steps:
            if step.weight is None:
                x = step.call(x)
                continue
            weight, bias = next(own), next(biases)
            bias = None if step.bias is None else bias
            if step.conv is None:
                x = F.linear(x, weight, bias)
            else:
                conv = step.conv
                x = F.conv2d(x, weight.permute(0, 3, 1, 2), bias, conv.stride, conv.padding, conv.dilation)
        return x

    def _kept(self, chosen: bytes) -> Kept:
        flags = np.frombuffer(chosen, dtype=np.bool_)
        weights, biases, blocks, shapes = list[Places](), list[Places](), list[Places](), list[tuple[int, ...]]()
        columns = self.layers[0].columns
        for layer, following in zip(self.layers, [*self.layers[1:], None], strict=True):
            units = np.arange(len(layer.rows)) if following is None else np.flatnonzero(flags[layer.blocks])
            weights.append((layer.rows[units, None] + columns.ravel()).ravel())
            shapes.append((len(units), *layer.window, columns.shape[1] * columns.shape[2]))
            blocks.append(layer.blocks[units])
            biases.append(layer.biases[units] if len(layer.biases) else layer.biases)
            if following is not None:
                columns = following.columns[:, units]
        units_of, biases_of = [len(b) for b in blocks], [len(b) for b in biases]
        biased = np.flatnonzero(np.repeat([n > 0 for n in biases_of], units_of)).astype(np.int64)
        places = torch.from_numpy(np.concatenate([*weights, *biases, *blocks, biased])).to(self.task.flat.device)
        sizes = [*(len(w) for w in weights), sum(biases_of)]
        index, block, biased_units = places.split([sum(sizes), sum(units_of), len(biased)])
        every = len(biased) == sum(units_of)
        return Kept(index, block, None if every else biased_units, shapes, sizes, units_of, biases_of)


def _layer(weight: Slot, bias: Slot | None, blocks: Tensor, before: int) -> Layer:
    """A layer behind one with so many outputs; a linear layer reads several positions of each behind a convolution."""
    outputs, inputs, *window = weight.shape
    row = np.arange(weight.size // outputs, dtype=np.int64)
    return Layer(
        rows=weight.offset + np.arange(outputs, dtype=np.int64) * len(row),
        columns=row.reshape(-1, inputs, 1) if window else row.reshape(1, before, -1),
        biases=np.arange(0 if bias is None else outputs, dtype=np.int64) + (0 if bias is None else bias.offset),
        blocks=blocks.numpy().astype(np.int64),
        window=tuple(window),
    )


def stored(slot: Slot, vec: Tensor) -> Tensor:
    """A tensor as it lies in a vector: convolutions as output, row, column, input."""
    part = vec[slot.where]
    return slot.view(part).permute(0, 2, 3, 1) if len(slot.shape) == 4 else slot.view(part)
