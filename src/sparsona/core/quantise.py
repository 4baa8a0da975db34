"""Quantisation: to multiples of a scale at random (Alistarh et al., "QSGD", 2017), scaled down to a contraction, or to
signs with one magnitude per tensor (Sattler et al., "Sparse Ternary Compression", 2020)."""

from __future__ import annotations

import math

import torch

from sparsona.core.layout import Layout, Mask, Vector, picked
from sparsona.core.rng import Rng
from sparsona.core.wire import Quantised


def quantise(x: Vector, bits: int, rng: Rng) -> Quantised:
    """Each entry as a sign and a level of ``bits`` bits, rounded up or down at random so that the mean is right.

    With s = 2 ** bits levels the entries become |x| sign(x_i) floor(s |x_i| / |x| + u) / (s tau), u uniform in [0, 1);
    tau = 1 + min(d / s^2, sqrt(d) / s) makes x - Q(x) shorter than x on average (Koloskova et al., 2019).
    """
    levels, d = 2**bits, x.numel()
    norm = float(x.double().norm())
    if norm == 0 or not math.isfinite(norm):
        return Quantised(torch.zeros(d, dtype=torch.bool), torch.zeros(d, dtype=torch.uint8), norm, bits)
    tau = 1 + min(d / levels**2, math.sqrt(d) / levels)
    steps = (x.abs() * (levels / norm) + rng.uniform(d)).floor().clamp_(max=levels - 1)
    return Quantised(x < 0, steps.to(torch.uint8), norm / (levels * tau), bits)


def ternary(layout: Layout, x: Vector, mask: Mask) -> tuple[Quantised, Vector]:
    """The signs of the entries where the mask is one, and for each tensor their mean magnitude, 0 if it has none."""
    kept = picked(x, mask)
    each = torch.split(kept.abs().double(), layout.counts(mask))
    sizes = torch.tensor([float(e.mean()) if len(e) else 0.0 for e in each])
    return Quantised(kept < 0, torch.ones(len(kept), dtype=torch.uint8), 1.0, 0), sizes


def of_ternary(layout: Layout, signs: Quantised, sizes: Vector, mask: Mask) -> Vector:
    """The entries where the mask is one, back from their signs and each tensor's magnitude."""
    return signs.values * torch.repeat_interleave(sizes, torch.tensor(layout.counts(mask)))
