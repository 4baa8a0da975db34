"""Mask searches: how a client finds its next mask after training; your own can be plugged in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

from sparsona.core import masks
from sparsona.core.layout import Layout, Mask, Vector
from sparsona.core.masks import Scope
from sparsona.core.rng import Rng
from sparsona.core.samples import Samples
from sparsona.core.training import Ctx

Gradient = Callable[[], Vector]  # of one batch, dense; computed when asked for


class Search(Protocol):
    """A mask search: the next mask, from the trained weights and, if it needs it, their dense gradient."""

    def __call__(self, method: Any, mask: Mask, theta: Vector, gradient: Gradient, ctx: Ctx) -> Mask:
        """Client k's mask for round t + 1; ``method`` gives access to the method's fields."""


@runtime_checkable
class Initialiser(Protocol):
    """A search that also makes the first mask; for others it is a random mask with the densities of ``layers``."""

    def initialise(self, method: Any, density: float, layout: Layout, key: Rng) -> Mask:
        """A first mask that depends only on the key, because client and server both make it."""


def dst(method: Any, mask: Mask, theta: Vector, gradient: Gradient, ctx: Ctx) -> Mask:
    """Drop a fraction of the smallest weights of each tensor, and regrow as many where the gradient is largest."""
    rate = masks.cosine(method.prune_rate, ctx.t, ctx.rounds, method.horizon)
    return moved(mask, theta, gradient, ctx, rate=rate, recovery=method.recovery)


def rsm(method: Any, mask: Mask, theta: Vector, gradient: Gradient, ctx: Ctx) -> Mask:
    """Keep the first mask forever."""
    return mask


def moved(mask: Mask, theta: Vector, gradient: Gradient, ctx: Ctx, *, rate: float, recovery: str) -> Mask:
    """RigL's step: the mask after dropping small weights and growing as many, by gradient or at random."""
    by = gradient().abs() if recovery == "gradient" else ctx.rng("recovery")
    return masks.regrow(ctx.layout, mask, theta, by, rate)


def on_batch(theta: Vector, samples: Samples, batch: int, ctx: Ctx) -> Gradient:
    """The dense gradient at theta, on a batch drawn for the search."""
    return lambda: ctx.task.gradient_at(theta, samples.batch(ctx.rng("search"), batch), tally=False)


def scope_of(layout: Layout, masked: Literal["all", "weights"], dense: tuple[str, ...] = ()) -> Scope:
    """The tensors that are masked: every trained one, or the weights of layers but those named in ``dense``."""
    return masks.trainable(layout) if masked == "all" else masks.weights(layout, dense)


def regrown(
    mask: Mask, theta: Vector, samples: Samples, ctx: Ctx, *, batch: int, prune_rate: float, recovery: str
) -> Mask:
    """The mask after dropping small weights and growing as many; ``prune_rate`` decays to 0 by a cosine schedule."""
    rate = masks.cosine(prune_rate, ctx.t, ctx.rounds, "T")
    return moved(mask, theta, on_batch(theta, samples, batch, ctx), ctx, rate=rate, recovery=recovery)


def searched(
    search: Search, method: Any, mask: Mask, theta: Vector, samples: Samples, ctx: Ctx, *, charge: bool = False
) -> Mask:
    """The next mask. With ``charge``, a search that uses no gradient is charged for one, as in the paper's tables."""
    spent = ctx.task.flops
    new = search(method, mask.clone(), theta, on_batch(theta, samples, method.batch, ctx), ctx)
    if charge and ctx.task.flops == spent:
        ctx.task.charge_gradient(min(method.batch, len(samples)))
    return new


SEARCHES: dict[str, Search] = {"dst": dst, "rsm": rsm}
