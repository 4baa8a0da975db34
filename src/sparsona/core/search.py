"""Mask searchers: how a client finds its next mask once it has trained; one of your own plugs in beside these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from sparsona.core import masks
from sparsona.core.layout import Layout, Mask, Vector
from sparsona.core.rng import Rng
from sparsona.core.samples import Samples
from sparsona.core.training import Ctx

Gradient = Callable[[], Vector]  # of one batch, dense; computed when asked for


class Search(Protocol):
    """A mask searcher: the next mask, from the trained weights and, if it asks for it, their dense gradient."""

    def __call__(self, how: Any, mask: Mask, theta: Vector, gradient: Gradient, ctx: Ctx) -> Mask:
        """Client k's mask for round t + 1; ``how`` is the method, with its fields."""


@runtime_checkable
class Initialiser(Protocol):
    """A searcher that also says where to begin; for others that is a random mask with ``layers``' densities."""

    def initialise(self, how: Any, density: float, layout: Layout, key: Rng) -> Mask:
        """A first mask, decided by the key alone: client and server each make it."""


def dst(how: Any, mask: Mask, theta: Vector, gradient: Gradient, ctx: Ctx) -> Mask:
    """Drop a share of the smallest weights of each tensor, regrow as many where the gradient is largest."""
    rate = masks.cosine(how.prune_rate, ctx.t, ctx.rounds, how.horizon)
    return moved(mask, theta, gradient, ctx, rate=rate, recovery=how.recovery)


def rsm(how: Any, mask: Mask, theta: Vector, gradient: Gradient, ctx: Ctx) -> Mask:
    """The first mask, for ever."""
    return mask


def moved(mask: Mask, theta: Vector, gradient: Gradient, ctx: Ctx, *, rate: float, recovery: str) -> Mask:
    """RigL's step: the mask after dropping small weights and growing as many, by gradient or at random."""
    by = gradient().abs() if recovery == "gradient" else ctx.rng("recovery")
    return masks.regrow(ctx.layout, mask, theta, by, rate)


def on_batch(theta: Vector, samples: Samples, batch: int, ctx: Ctx) -> Gradient:
    """The dense gradient at theta on a batch that is drawn for the search."""
    return lambda: ctx.task.grad(theta, samples.batch(ctx.rng("search"), batch))


SEARCHES: dict[str, Search] = {"dst": dst, "rsm": rsm}
