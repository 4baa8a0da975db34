"""Random quantisation to multiples of a scale (Alistarh et al., "QSGD", 2017), scaled down to a contraction."""

from __future__ import annotations

import math

import torch

from sparsona.core.layout import Vector
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
