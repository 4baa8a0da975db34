"""Shared by methods without a server and with sparse models: first masks, and the mean of neighbours' models."""

from __future__ import annotations

from collections.abc import Mapping

from sparsona.core import masks
from sparsona.core.aggregate import OverlapMean
from sparsona.core.layout import Mask, Vector
from sparsona.core.masks import Scope
from sparsona.core.training import Ctx
from sparsona.core.wire import Message, Sparse


def check_density(density: float, scope: Scope, ctx: Ctx) -> None:
    """Raise ValueError if the density leaves a tensor without any weight."""
    masks.suffices(ctx.layout, density, lambda d: masks.erk_counts(ctx.layout, d, scope))


def first_mask(density: float, scope: Scope, k: int, ctx: Ctx, *, same: bool) -> Mask:
    """The first mask of client k; with ``same``, all clients have the same one."""
    counts = masks.erk_counts(ctx.layout, density, scope)
    return masks.remembered(ctx.layout, tuple(counts), ctx.common("mask") if same else ctx.common("mask", k))


def mean_of_neighbours(inbox: Mapping[str | int, Message], ctx: Ctx) -> Vector:
    """The mean of the neighbours' models and the client's own; each coordinate over the models whose mask holds it."""
    mean = OverlapMean(ctx.layout.dim)
    for j in sorted(inbox.keys() - {"all"}, key=str):
        model: Sparse = inbox[j]["model"]
        mean.add(model.values, model.mask)
    return mean.value()


def own_model(inbox: Mapping[str | int, Message]) -> Vector:
    """The model that a client sent last."""
    model: Sparse = inbox["self"]["model"]
    return model.dense()
