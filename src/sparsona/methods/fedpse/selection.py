"""Which entries FedPSE sends: up by size (UPS), down by size and by what the client sent itself (DPS)."""

from __future__ import annotations

import torch

from sparsona.core import masks
from sparsona.core.layout import Layout, Mask, Vector, ones_in
from sparsona.core.masks import Piece
from sparsona.core.rng import Rng
from sparsona.core.wire import Sparse
from sparsona.methods.fedpse.correlation import Correlation, cosine, distance


def upstream(layout: Layout, update: Vector, sparsity: float, each: Piece = "layer") -> tuple[Sparse, Vector]:
    """UPS: the largest entries of an update, to be sent, and the residual; together they are the update exactly."""
    mask = masks.largest(layout, update, sparsity, each)
    return Sparse.of(update, mask), torch.where(mask, 0.0, update)


def downstream(
    layout: Layout, top: Sparse, update: Sparse, rng: Rng, each: Piece = "layer", correlation: Correlation = cosine
) -> Mask:
    """DPS: where a client is sent the average, by the average's largest entries and those that the client sent."""
    parts = enumerate(masks.pieces(layout, each, top.mask, top.dense(), update.dense()))
    # b != 0: a zero that fills an update up is nobody's choice
    return torch.cat([masks.mixed(ours, b != 0, distance(correlation, a, b), rng(i)) for i, (ours, a, b) in parts])


def miscount(layout: Layout, mask: Mask, sparsity: float, each: Piece = "layer") -> str:
    """What is wrong with the number of ones of a mask that ``largest`` should have given, if anything."""
    for (piece,) in masks.pieces(layout, each, mask):
        here, due = ones_in(piece), masks.kept(piece.numel(), sparsity)
        if here != due:
            return f"holds {here} of {piece.numel()} entries, not {due}"
    return ""
