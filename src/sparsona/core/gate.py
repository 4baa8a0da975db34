"""pFedGate's gating layer (Chen et al., 2023): from a batch of inputs to a weight and an importance for every block.

Switchable normalisation after Luo et al., Differentiable learning-to-normalize, ICLR 2019; the straight-through step
after Hubara et al., Binarized neural networks, NIPS 2016.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsona.core.layout import Mask, Vector
from sparsona.core.rng import Rng
from sparsona.core.task import Task


class SwitchNorm(nn.Module):
    """Normalisation by a learnt mixture of statistics: of each channel of a sample, of the sample, of the batch."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, *, epsilon: float = 1e-5, momentum: float = 0.9) -> None:
        super().__init__()
        self.epsilon, self.momentum = epsilon, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))
        self.means, self.variances = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))  # before a softmax
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def reset_parameters(self) -> None:
        """All kinds of statistics alike, no change of scale."""
        for tensor, value in (
            *((t, 1.0) for t in (self.weight, self.means, self.variances, self.running_var)),
            *((t, 0.0) for t in (self.bias, self.running_mean)),
        ):
            nn.init.constant_(tensor, value)

    def forward(self, x: Tensor) -> Tensor:
        """A batch [b, channels, n], normalised."""
        scale, shift = self.line(x)
        return x * scale[:, :, None] + shift[:, :, None]

    def line(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What each channel of each sample is multiplied by, and what is then added [b, channels]."""
        mean = x.mean(2)  # [b, channels]
        square = torch.linalg.vector_norm(x, dim=2).square() / x.shape[2]
        mean_layer, square_layer = mean.mean(1, keepdim=True), square.mean(1, keepdim=True)
        mean_batch, var_batch = self.running_mean, self.running_var
        if self.training:
            mean_batch = mean.mean(0)
            var_batch = square.mean(0) - mean_batch.square()
            with torch.no_grad():
                self.running_mean.lerp_(mean_batch, 1 - self.momentum)
                self.running_var.lerp_(var_batch, 1 - self.momentum)
        a, b = F.softmax(self.means, 0), F.softmax(self.variances, 0)
        middle = a[0] * mean + a[1] * mean_layer + a[2] * mean_batch
        spread = (
            b[0] * (square - mean.square()) + b[1] * (square_layer - mean_layer.square()) + b[2] * var_batch
        ).clamp(min=0)  # differences of squares may slip below
        scale = self.weight / (spread + self.epsilon).sqrt()
        return scale, self.bias - middle * scale


class NormedLinear(torch.autograd.Function):
    """A linear layer of inputs that are first scaled and shifted by channel and sample, which are never written down.

    W (a x + s) is a (W x) + s (W 1), channel by channel: so the inputs are read once forward and once backward, and no
    gradient of their size arises. They need none themselves.
    """

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, x: Tensor, scale: Tensor, shift: Tensor, weight: Tensor, bias: Tensor
    ) -> Tensor:
        """x [b, c, n], scale and shift [b, c], weight [out, c n], bias [out]."""
        parts = weight.view(len(weight), *x.shape[1:])
        products = torch.stack([x[:, c] @ parts[:, c].T for c in range(x.shape[1])])  # [c, b, out]
        sums = parts.sum(2)  # [out, c]
        ctx.save_for_backward(x, scale, shift, products, sums)
        return torch.addmm(bias, shift, sums.T) + (scale.T[:, :, None] * products).sum(0)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, g: Tensor) -> tuple[None, Tensor, Tensor, Tensor, Tensor]:
        """g [b, out]."""
        x, scale, shift, products, sums = ctx.saved_tensors  # type: ignore[attr-defined]
        of_weight = g.new_empty(g.shape[1], *x.shape[1:])
        for c in range(x.shape[1]):
            torch.mm((g * scale[:, c : c + 1]).T, x[:, c], out=of_weight[:, c])
        of_weight += (g.T @ shift)[:, :, None]
        return None, (products * g).sum(2).T, g @ sums, of_weight.flatten(1), g.sum(0)


class Gate(nn.Module):
    """Norm, linear, norm, in two branches side by side, and a sigmoid; means over the batch."""

    def __init__(
        self,
        shape: tuple[int, ...],
        blocks: int,
        *,
        pre_norm: bool = True,
        post_norm: bool = True,
        sigmoid: bool = True,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self.channels = shape[0] if len(shape) > 1 else 1
        self.pre = SwitchNorm(self.channels) if pre_norm else nn.Identity()
        outputs = blocks if shared else 2 * blocks
        self.linear = nn.Linear(math.prod(shape), outputs)  # both branches in one product
        self.post = nn.BatchNorm1d(outputs) if post_norm else nn.Identity()
        self.sigmoid, self.shared = sigmoid, shared

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The importance G and the weights M of the blocks [L], from a batch of inputs."""
        x = x.float().reshape(len(x), self.channels, -1)
        if isinstance(self.pre, SwitchNorm) and torch.is_grad_enabled():
            x = x.transpose(0, 1).contiguous().transpose(0, 1)  # each channel is read by itself
            product = cast(Any, NormedLinear.apply)
            out = self.post(product(x, *self.pre.line(x), self.linear.weight, self.linear.bias))
        else:
            out = self.post(self.linear(self.pre(x).flatten(1)))
        mean = (out.sigmoid() if self.sigmoid else out).mean(0)
        if self.shared:
            return mean, mean
        importance, weights = mean.chunk(2)
        return importance, weights


@lru_cache(maxsize=8)
def gate_task(
    shape: tuple[int, ...], blocks: int, pre_norm: bool, post_norm: bool, sigmoid: bool, shared: bool
) -> Task:
    """The one gate of this kind in this process, over a flat vector: clients differ in the vector alone."""
    gate = Gate(shape, blocks, pre_norm=pre_norm, post_norm=post_norm, sigmoid=sigmoid, shared=shared)
    return Task.of(gate, torch.zeros(2, *shape))[0]


def fresh(task: Task, rng: Rng) -> Vector:
    """A gate's first vector, by its key: PyTorch's usual initial values."""
    with rng.everywhere():
        for module in task.model.modules():
            if isinstance(module, (nn.Linear, nn.BatchNorm1d, SwitchNorm)):
                module.reset_parameters()
    return task.flat.clone()


def sparse_weights(importance: Tensor, weights: Tensor, chosen: Mask, *, kept_only: bool = False) -> Tensor:
    """M' = M I*, with G's gradient in place of that of I*: for every block, or for the kept ones only."""
    straight = chosen.to(weights.dtype) - importance.detach() + importance
    return weights * (straight * chosen if kept_only else straight)
