"""pFedGate's gating layer (Chen et al., 2023): from a batch of inputs to a weight and an importance for every block.

Switchable normalisation after Luo et al., Differentiable learning-to-normalize, ICLR 2019; the straight-through step
after Hubara et al., Binarized neural networks, NIPS 2016.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsona.core.layout import CPU, Mask, Vector
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
        line = self.line(x)
        return x * line.scale[:, :, None] + line.shift[:, :, None]

    def line(self, x: Tensor) -> SwitchLine:
        """What each channel of each sample is multiplied by, and what is then added."""
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
        means = mean, mean_layer, mean_batch
        variances = square - mean.square(), square_layer - mean_layer.square(), var_batch
        middle, spread = mixture(a, means), mixture(b, variances)
        root = (spread.clamp(min=0) + self.epsilon).sqrt()  # differences of squares may slip below 0
        scale = self.weight / root
        return SwitchLine(scale, self.bias - middle * scale, middle, spread, root, a, b, *means, *variances)


class SwitchLine(NamedTuple):
    """How a batch is normalised, and what led to it."""

    scale: Tensor  # [b, channels]
    shift: Tensor  # [b, channels]
    middle: Tensor  # [b, channels] the mixture of means
    spread: Tensor  # [b, channels] that of variances
    root: Tensor  # [b, channels] of what is not negative in it, and epsilon
    a: Tensor  # [3] shares of means
    b: Tensor  # [3] shares of variances
    mean: Tensor  # [b, channels]
    mean_layer: Tensor  # [b, 1]
    mean_batch: Tensor  # [channels]
    var: Tensor  # [b, channels]
    var_layer: Tensor  # [b, 1]
    var_batch: Tensor  # [channels]

    def gradients(self, of_scale: Tensor, of_shift: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of weight, bias and what the shares of means and variances are made of, as autograd has them to the bit."""
        minus = of_shift.neg()
        of_scale = of_scale + minus * self.middle
        of_weight = (of_scale / self.root).sum(0)
        of_spread = -of_scale * (self.scale / self.root) / (2 * self.root)
        of_spread = torch.where(self.spread >= 0, of_spread, 0)
        of_means = _of_shares(self.a, minus * self.scale, (self.mean, self.mean_layer, self.mean_batch))
        of_variances = _of_shares(self.b, of_spread, (self.var, self.var_layer, self.var_batch))
        return of_weight, of_shift.sum(0), of_means, of_variances


Kinds = tuple[Tensor, Tensor, Tensor]  # a statistic of each channel of a sample, of the sample, and of the batch


def mixture(shares: Tensor, kinds: Kinds) -> Tensor:
    """A statistic in these shares [b, channels]."""
    of_channel, of_layer, of_batch = kinds
    return shares[0] * of_channel + shares[1] * of_layer + shares[2] * of_batch


def _of_shares(shares: Tensor, of_mixture: Tensor, kinds: Kinds) -> Tensor:
    """The gradient of what a softmax makes the shares of."""
    of_channel, of_layer, of_batch = kinds
    parts = of_mixture * of_channel, of_mixture.sum(1, keepdim=True) * of_layer, of_mixture.sum(0) * of_batch
    return torch._softmax_backward_data(torch.stack([part.sum() for part in parts]), shares, 0, shares.dtype)


class NormedGate(torch.autograd.Function):
    """A gate's means over a batch, with gradients by hand: as autograd's to the bit, in half the time.

    The normalised inputs are never written down: W (a x + s) is a (W x) + s (W 1), channel by channel. So the inputs,
    which need no gradients, are read once forward and once backward.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, gate: Gate, *parameters: Tensor) -> Tensor:
        """x [b, c, n] and the gate's parameters, in their order; the means of all outputs."""
        assert isinstance(gate.pre, SwitchNorm)
        line, weight, post = gate.pre.line(x), gate.linear.weight, gate.post
        parts = weight.view(len(weight), *x.shape[1:])
        products = x.new_empty(x.shape[1], len(x), len(weight))
        for c in range(x.shape[1]):
            torch.mm(x[:, c], parts[:, c].T, out=products[c])
        sums = parts.sum(2)  # [out, c]
        linear = torch.addmm(gate.linear.bias, line.shift, sums.T) + (line.scale.T[:, :, None] * products).sum(0)
        out, means, deviations = linear, linear, linear
        if isinstance(post, nn.BatchNorm1d):
            assert post.momentum is not None
            out, means, deviations = torch.native_batch_norm(
                linear,
                post.weight,
                post.bias,
                post.running_mean,
                post.running_var,
                post.training,
                post.momentum,
                post.eps,
            )
        out = out.sigmoid() if gate.sigmoid else out
        ctx.save_for_backward(x, products, sums, linear, means, deviations, out, *line)
        ctx.gate = gate  # type: ignore[attr-defined]
        return out.mean(0)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, g: Tensor) -> tuple[Tensor | None, ...]:
        """g [out]."""
        x, products, sums, linear, means, deviations, out, *rest = ctx.saved_tensors  # type: ignore[attr-defined]
        gate: Gate = ctx.gate  # type: ignore[attr-defined]
        line, post, of_post = SwitchLine(*rest), gate.post, tuple[Tensor, ...]()
        g = g.expand(len(x), -1) / len(x)
        if gate.sigmoid:
            g = torch.ops.aten.sigmoid_backward(g, out)
        if isinstance(post, nn.BatchNorm1d):
            g, *of_post = torch.ops.aten.native_batch_norm_backward(
                g,
                linear,
                post.weight,
                post.running_mean,
                post.running_var,
                means,
                deviations,
                post.training,
                post.eps,
                [True, True, True],
            )
        of_weight = g.new_empty(g.shape[1], *x.shape[1:])
        for c in range(x.shape[1]):
            torch.mm((g * line.scale[:, c : c + 1]).T, x[:, c], out=of_weight[:, c])
        of_weight += (g.T @ line.shift)[:, :, None]
        of_line = line.gradients((products * g).sum(2).T, g @ sums)
        return None, None, *of_line, of_weight.flatten(1), g.sum(0), *of_post


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
            x = x.transpose(0, 1).contiguous().transpose(0, 1)  # each channel is read separately
            pre, linear, post = self.pre, self.linear, self.post
            parameters = pre.weight, pre.bias, pre.means, pre.variances, linear.weight, linear.bias
            of_post = (post.weight, post.bias) if isinstance(post, nn.BatchNorm1d) else ()
            mean = cast(Any, NormedGate.apply)(x, self, *parameters, *of_post)
        else:
            out = self.post(self.linear(self.pre(x).flatten(1)))
            mean = (out.sigmoid() if self.sigmoid else out).mean(0)
        if self.shared:
            return mean, mean
        importance, weights = mean.chunk(2)
        return importance, weights


@lru_cache(maxsize=8)
def gate_task(
    shape: tuple[int, ...],
    blocks: int,
    pre_norm: bool,
    post_norm: bool,
    sigmoid: bool,
    shared: bool,
    device: torch.device = CPU,
) -> Task:
    """The one gate of this kind in this process, over a flat vector: clients differ only in the vector."""
    gate = Gate(shape, blocks, pre_norm=pre_norm, post_norm=post_norm, sigmoid=sigmoid, shared=shared)
    return Task.of(gate, torch.zeros(2, *shape), device=device)[0]


def fresh(task: Task, rng: Rng, opening: float = 0.5) -> Vector:
    """A gate's first vector, by its key: PyTorch's usual initial values, its bias for M at the logit of ``opening``."""
    gate = cast(Gate, task.model)
    with rng.everywhere():
        for module in gate.modules():
            if isinstance(module, (nn.Linear, nn.BatchNorm1d, SwitchNorm)):
                module.reset_parameters()
    if opening != 0.5:
        last = gate.post if isinstance(gate.post, nn.BatchNorm1d) else gate.linear
        of_weights = last.bias if gate.shared else last.bias.chunk(2)[1]
        with torch.no_grad():
            of_weights.add_(math.log(opening / (1 - opening)))
    return task.flat.clone()


def sparse_weights(importance: Tensor, weights: Tensor, chosen: Mask, *, kept_only: bool = False) -> Tensor:
    """M' = M I*, with G's gradient in place of that of I*: for every block, or for the kept ones only."""
    straight = chosen.to(weights.dtype) - importance.detach() + importance
    return weights * (straight * chosen if kept_only else straight)
