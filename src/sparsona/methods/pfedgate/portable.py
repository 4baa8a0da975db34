"""Gated models as standalone modules: the kept blocks and the part of the gate that still weighs them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from sparsona.core.layout import Mask, Slot, Vector, places
from sparsona.core.model import plain
from sparsona.core.samples import LocalData
from sparsona.methods.pfedgate.chain import Step
from sparsona.methods.pfedgate.compact import Compact, stored
from sparsona.methods.pfedgate.gate import Gate
from sparsona.methods.pfedgate.scaled_model import scaled_model
from sparsona.methods.pfedgate.sparse_adaptation import Gated

PIECES = 256  # of a tensor; more would make a graph of very many nodes


@dataclass(frozen=True)
class GatedModel:
    """A model under a gate."""

    gated: Gated
    theta: Vector
    phi: Vector
    data: LocalData  # what the client has seen

    def logits(self, x: Tensor) -> Tensor:
        """Outputs for a batch: importance and weights are means over it."""
        return self.gated.logits(self.theta, self.phi, x)

    def module(self) -> nn.Module:
        """The model with blocks that are chosen once, by what the client has seen."""
        x, _ = self.data.train.at(torch.arange(len(self.data)))
        return gated_module(self.gated, self.theta, self.phi, x)

    def vectors(self) -> Tensor:
        """None: the gate matters, too."""
        return torch.empty(0, self.gated.task.layout.dim)


class Weigher(nn.Module):
    """A gate that only weighs: of its outputs, the weights M of the blocks that were chosen."""

    def __init__(self, gated: Gated, phi: Vector, chosen: Mask) -> None:
        super().__init__()
        whole = plain(gated.gate, phi)
        assert isinstance(whole, Gate)
        at = places(chosen) if whole.shared else places(chosen) + len(chosen)  # M is the second half of the outputs
        self.channels, self.sigmoid, self.pre = whole.channels, whole.sigmoid, whole.pre
        self.linear = nn.Linear(whole.linear.in_features, len(at))
        self.linear.load_state_dict({"weight": whole.linear.weight[at], "bias": whole.linear.bias[at]})
        self.post: nn.Module = nn.Identity()
        if isinstance(whole.post, nn.BatchNorm1d):
            self.post = nn.BatchNorm1d(len(at))
            names = ("weight", "bias", "running_mean", "running_var")
            self.post.load_state_dict({n: getattr(whole.post, n)[at] for n in names}, strict=False)

    def forward(self, x: Tensor) -> Tensor:
        """The means over a batch [kept blocks]."""
        out: Tensor = self.post(self.linear(self.pre(x.reshape(x.shape[0], self.channels, -1)).flatten(1)))
        return (out.sigmoid() if self.sigmoid else out).mean(0)


class CompactModule(nn.Module):
    """Only the kept units, scaled by a gate's weights for each batch: smaller tensors than the model's."""

    classes: Tensor  # where each one's logit is; one beyond the computed ones: zero

    def __init__(self, compact: Compact, theta: Vector, weigher: nn.Module, chosen: Mask, example: Tensor) -> None:
        super().__init__()
        self.gate, self.steps, x = weigher, compact.steps, example
        number = chosen.cumsum(0) - 1  # of a block among the kept ones
        tensors = compact.task.layout.unflatten(theta)
        inputs: Tensor | None = None
        for step in self.steps:
            if step.weight is None:
                area = x[0, 0].numel()
                x = step.call(x)
                if inputs is not None and x.dim() == 2 and area > 1:
                    inputs = (inputs[:, None] * area + torch.arange(area)).flatten()
                continue
            units, name = compact.units[step.weight.name], _key(step)
            rows = places(chosen[units])
            weight = tensors[step.weight.name][rows]
            weight = weight if inputs is None else weight[:, inputs]
            self.register_parameter(f"{name}_weight", nn.Parameter(weight.contiguous()))
            if step.bias is not None:
                self.register_parameter(f"{name}_bias", nn.Parameter(tensors[step.bias.name][rows].contiguous()))
            self.register_buffer(f"{name}_block", number[units[rows]])
            if step.weight.name == compact.last:  # dropped classes are not computed, but they are there: zero
                last = chosen[units].cumsum(0) - 1
                self.register_buffer("classes", torch.where(chosen[units], last, len(rows)))
            x, inputs = self._layer(step, x, torch.ones(int(chosen.sum()))), rows

    def _layer(self, step: Step, x: Tensor, weights: Tensor) -> Tensor:
        name = _key(step)
        scale = weights[getattr(self, f"{name}_block")]
        weight = getattr(self, f"{name}_weight")
        bias = None if step.bias is None else getattr(self, f"{name}_bias") * scale
        if step.conv is None:
            return F.linear(x, weight * scale[:, None], bias)
        conv = step.conv
        return F.conv2d(x, weight * scale[:, None, None, None], bias, conv.stride, conv.padding, conv.dilation)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [b, classes]."""
        weights = self.gate(x)
        for step in self.steps:
            x = step.call(x) if step.weight is None else self._layer(step, x, weights)
        return torch.cat([x, x.new_zeros(x.shape[0], 1)], 1).index_select(1, self.classes)


class Pieces(nn.Module):
    """A tensor in pieces, each multiplied by the weight of its block, and zero where that was dropped.

    Pieces lie one after the other along a dimension or, if none will do, in memory. So only the values of kept ones are
    stored, with each one's block and length. Blocks that alternate too often are stored entry by entry instead.
    """

    blocks: Tensor  # [pieces] which of the weights, -1: dropped; or the same of each entry, where dropped values are 0
    lengths: Tensor  # [pieces], or empty
    way: Tensor  # the dimension

    def __init__(self, slot: Slot, theta: Vector, numbers: Tensor) -> None:
        """The tensor of a slot in theta, and in a vector that holds for each entry the number of its weight."""
        super().__init__()
        values, number = stored(slot, theta), stored(slot, numbers)
        self.shape = values.shape
        along = next((d for d in range(number.dim()) if _changes_only(number, d)), None)
        if along is None:
            values, number = values.reshape(-1), number.reshape(-1)
        self.along = along or 0
        line = number.movedim(self.along, 0).flatten(1)[:, 0] if number.dim() > 1 else number
        blocks, lengths = torch.unique_consecutive(line, return_counts=True)
        if len(blocks) > PIECES:
            values, blocks, lengths = values * (number >= 0), number.clamp(min=0), lengths[:0]
        else:
            values = values.index_select(self.along, places(line >= 0))
        self.values = nn.Parameter(values.contiguous())
        small = next(t for t in (torch.int8, torch.int16, torch.int32) if int(blocks.max()) <= torch.iinfo(t).max)
        self.register_buffer("blocks", blocks.to(small))
        self.register_buffer("lengths", lengths.to(torch.int32))
        self.register_buffer("way", torch.tensor(self.along, dtype=torch.int8))
        self.pieces = list(zip(blocks.tolist(), lengths.tolist(), strict=True)) if len(lengths) else []

    def forward(self, weights: Tensor) -> Tensor:
        """The tensor, as its model has it, for these weights [kept blocks]."""
        if self.pieces:
            kept = iter(torch.split(self.values, [n for block, n in self.pieces if block >= 0], self.along))
            parts, shape = list[Tensor](), list(self.values.shape)
            for block, n in self.pieces:
                shape[self.along] = n
                parts.append(weights.new_zeros(shape) if block < 0 else next(kept) * weights[block])
            whole = torch.cat(parts, self.along)
        else:
            whole = self.values * weights[self.blocks.long()]
        whole = whole.view(self.shape)
        return whole.permute(0, 3, 1, 2) if whole.dim() == 4 else whole


def _changes_only(number: Tensor, along: int) -> bool:
    """Whether numbers are the same wherever this coordinate is."""
    lines = number.movedim(along, 0).reshape(number.shape[along], -1)
    return bool((lines == lines[:, :1]).all())


class SparseModule(nn.Module):
    """All units, dropped entries as zeros: for blocks that are no whole units, or models that are no plain chain."""

    def __init__(self, gated: Gated, theta: Vector, weigher: nn.Module, chosen: Mask) -> None:
        super().__init__()
        self.gate, self.model = weigher, plain(gated.task, theta)
        numbers = torch.where(chosen, chosen.cumsum(0) - 1, -1)[gated.blocks.index]
        own = dict(self.model.named_parameters())
        self.names = [slot.name for slot in gated.blocks.layout.slots]
        self.tensors = nn.ModuleDict({_word(s.name): Pieces(s, theta, numbers) for s in gated.blocks.layout.slots})
        for name in self.names:
            own[name].data = torch.empty(0)  # a place to put the tensor made of pieces

    def forward(self, x: Tensor) -> Tensor:
        """Logits [b, classes]."""
        weights = self.gate(x)
        scaled = {name: self.tensors[_word(name)](weights) for name in self.names}
        logits: Tensor = functional_call(self.model, scaled, (x,))
        return logits


def _word(name: str) -> str:
    return name.replace(".", "-")  # names of modules have no dots


def _key(step: Step) -> str:
    assert step.weight is not None
    return step.weight.layer.replace(".", "_") or "layer"


def gated_module(gated: Gated, theta: Vector, phi: Vector, x: Tensor) -> nn.Module:
    """A model under a gate whose blocks are chosen once, from these inputs; the weights still follow each batch.

    A gate that always sees the same gives the same weights: these are then multiplied in, and no gate is left.
    """
    gated.load(theta, phi, train=False)
    with torch.no_grad():
        weights, chosen = gated.weights(x)
    weigher: nn.Module = Weigher(gated, phi, chosen)
    if gated.seen is not None:
        n, weigher = gated.blocks.layout.dim, Ones(int(chosen.sum()))
        theta = torch.cat([theta[:n] * weights[gated.blocks.index], theta[n:]])
    way = scaled_model(gated.task, gated.blocks)
    module: nn.Module
    if isinstance(way, Compact):
        module = CompactModule(way, theta, weigher, chosen, x[:1])
    else:
        module = SparseModule(gated, theta, weigher, chosen)
    return (nn.Sequential(module, nn.ReLU()) if gated.relu else module).eval()


class Ones(nn.Module):
    """Weights that are in the model already."""

    ones: Tensor

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.register_buffer("ones", torch.ones(blocks))

    def forward(self, x: Tensor) -> Tensor:
        """[kept blocks]."""
        return self.ones
