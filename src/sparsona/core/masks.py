"""Personal masks: how many entries of each tensor are kept, which ones, and how masks change over the rounds.

Densities per tensor are Erdos-Renyi-Kernel and the drop/grow step is RigL's (Evci et al., "Rigging the Lottery", 2020).
A tensor outside the scope of a mask, and every buffer, is dense: all ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import compress
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sparsona.core.layout import Layout, Mask, Vector, ones_in, picked, places
from sparsona.core.rng import Rng
from sparsona.core.wire import Sparse

Piece = Literal["layer", "model"]  # what entries compete in: a tensor, or the whole vector
Scope = Sequence[bool]  # one flag per tensor: may its entries be masked? None stands for ``trainable``

SLIP = 1e-9  # what double arithmetic may be off by, so that 0.3 * 50 is 15 both rounded up and rounded down


def trainable(layout: Layout) -> list[bool]:
    """The scope of every trainable tensor: weights, biases and norms."""
    return [s.kind != "buffer" for s in layout.slots]


def weights(layout: Layout, dense: Sequence[str] = ()) -> list[bool]:
    """The scope of convolution, linear and embedding weights, less those whose name matches a pattern in ``dense``."""
    out = [s.kind == "weight" and len(s.shape) > 1 for s in layout.slots]
    for pattern in dense:
        hits = [fnmatchcase(s.name, pattern) for s in layout.slots]
        if not any(hits):
            raise ValueError(
                f'dense: "{pattern}" matches no tensor; expected a name or pattern of '
                f"{', '.join(s.name for s in layout.slots)}"
            )
        out = [ok and not hit for ok, hit in zip(out, hits, strict=True)]
    return out


def density(layout: Layout, mask: Mask, scope: Scope | None = None) -> float:
    """The fraction of ones among the entries in scope."""
    inside = flags_in(layout, scope)
    return sum(compress(layout.counts(mask), inside)) / sum(compress(layout.sizes, inside))


def erk(layout: Layout, density: float, scope: Scope | None = None) -> list[float]:
    """Densities as (sum of dimensions) / (their product), scaled and cut off at 1 so that the scope has ``density``."""
    check_within("density", density, 0, 1)
    free = [i for i, ok in enumerate(flags_in(layout, scope)) if ok]
    size = layout.sizes
    raw = [(sum(s.shape) or 1) / s.size for s in layout.slots]  # a scalar counts as one entry long
    budget = density * sum(size[i] for i in free)
    while free:
        epsilon = budget / sum(raw[i] * size[i] for i in free)
        largest = max(raw[i] for i in free)
        if epsilon * largest <= 1:
            return [epsilon * r if i in free else 1.0 for i, r in enumerate(raw)]
        budget -= sum(size[i] for i in free if raw[i] == largest)
        free = [i for i in free if raw[i] != largest]
    return [1.0] * len(size)


def erk_counts(layout: Layout, density: float, scope: Scope | None = None) -> list[int]:
    """Ones per tensor under ``erk``, rounded down."""
    return _floors(layout, erk(layout, density, scope))


def uniform_counts(layout: Layout, density: float, scope: Scope | None = None) -> list[int]:
    """Ones per tensor when every tensor in scope has the same density, rounded down."""
    check_within("density", density, 0, 1)
    return _floors(layout, [density if ok else 1.0 for ok in flags_in(layout, scope)])


def kept(n: int, sparsity: float) -> int:
    """The number of ``n`` entries kept at this sparsity: n minus sparsity x n, rounded half to even; at least 1."""
    check_within("sparsity", sparsity, 0, 1)
    return max(1, n - round(sparsity * n))


def at_least(n: int, share: float) -> int:
    """The number of entries in this fraction of ``n``, rounded up; at least 1."""
    check_within("share", share, 0, 1)
    return max(1, math.ceil(share * n - SLIP))


def drop_counts(layout: Layout, mask: Mask, rate: float) -> list[int]:
    """The number of ones to drop in each tensor: a fraction ``rate`` of its ones, rounded up."""
    check_within("rate", rate, 0, 1)
    return [math.ceil(rate * ones - SLIP) for ones in layout.counts(mask)]


def top(score: Tensor, k: int, among: Mask | None = None) -> Mask:
    """A mask of exactly the ``k`` largest scores; ties go to the lowest index, and NaN ranks below every number."""
    eligible = score.numel() if among is None else ones_in(among)
    check_within("k", k, 0, eligible)
    if k == eligible:
        return torch.ones_like(score, dtype=torch.bool) if among is None else among.clone()
    if k == 0:
        return torch.zeros_like(score, dtype=torch.bool)
    score = score.detach()
    if among is not None:  # places first: a choice by bools costs a mispredicted branch per entry
        at = places(among)
        return torch.zeros_like(among).index_fill_(0, picked(at, top(score.index_select(0, at), k)), True)
    if not score.is_cpu:
        score = torch.where(score.isnan(), -math.inf, score) + 0.0  # one zero, whatever its sign
        first = score.sort(descending=True, stable=True).indices[:k]
        return torch.zeros_like(score, dtype=torch.bool).index_fill_(0, first, True)
    # Sorting beats selection: NumPy's is vectorised, and unlike its partition does not slow down on many equal values.
    ordered = np.sort(score.numpy())
    if np.isnan(ordered[-1]):
        score = torch.where(score.isnan(), -math.inf, score)
        ordered = np.sort(score.numpy())
    bar = ordered[-k]
    low, high = (int(np.searchsorted(ordered, bar, side)) for side in ("left", "right"))
    if high - low == k - (len(ordered) - high):  # all that equal the bar are in
        return score >= float(bar)
    chosen = score > float(bar)
    chosen[places(score == float(bar))[: k - (len(ordered) - high)]] = True
    return chosen


def draw(pool: Mask, k: int, rng: Rng) -> Mask:
    """A mask of exactly ``k`` of the ones of ``pool``, drawn uniformly."""
    at = places(pool)
    check_within("k", k, 0, len(at))
    out = torch.zeros_like(pool)
    out[at[rng.permutation(len(at), at.device)[:k]]] = True
    return out


def top_each(layout: Layout, score: Vector, counts: Sequence[int]) -> Mask:
    """A mask of the ``counts`` largest scores of each tensor."""
    return torch.cat([top(s, k) for s, k in zip(layout.split(score), counts, strict=True)])


def pieces(layout: Layout, each: Piece, *vectors: Tensor) -> list[tuple[Tensor, ...]]:
    """For each tensor in turn, or once for the whole model, the views of all vectors; never copies."""
    check_one_of("each", each, "layer", "model")
    return list(zip(*map(layout.split, vectors), strict=True)) if each == "layer" else [vectors]


def largest(layout: Layout, vec: Vector, sparsity: float, each: Piece = "layer") -> Mask:
    """A mask of the entries of largest magnitude of each tensor (or of the whole model), at this sparsity."""
    if vec.shape != (layout.dim,) or not 0 <= sparsity < 1:
        what = f"expected a vector of {layout.dim} entries and a float in [0, 1)"
        raise ValueError(f"vec, sparsity: {tuple(vec.shape)}, {sparsity} are not allowed; {what}")
    return torch.cat([top(p.abs(), kept(p.numel(), sparsity)) for (p,) in pieces(layout, each, vec)])


def mixed(a: Mask, b: Mask, share: float, rng: Rng) -> Mask:
    """As many places as ``a`` has: those of both, and of the rest, by lot, a ``share`` from b and what is left from a.

    The share is rounded (halves to even); if ``b`` has fewer exclusive places, all of them.
    """
    check_within("share", share, 0, 1)
    only_a, only_b = places(a & ~b), places(b & ~a)
    from_b = min(round(share * len(only_a)), len(only_b))
    out = a.clone()
    if from_b:  # as many leave as come
        lot = rng.numpy()
        for pool, inside in ((only_a, False), (only_b, True)):
            chosen = torch.from_numpy(lot.choice(pool.numpy(force=True), from_b, replace=False))
            out.index_fill_(0, chosen.to(out.device), inside)
    return out


def random(layout: Layout, counts: Sequence[int], rng: Rng) -> Mask:
    """A mask of ``counts`` entries of each tensor, drawn uniformly."""
    out = torch.ones(layout.dim, dtype=torch.bool, device=layout.device)
    for i, (part, k) in enumerate(zip(layout.split(out), counts, strict=True)):
        if k != part.numel():
            part.copy_(draw(part, k, rng(i)))
    return out


@lru_cache(maxsize=4)
def remembered(layout: Layout, counts: tuple[int, ...], rng: Rng) -> Mask:
    """Like ``random``, but cached, because many clients share one mask. Do not change the result in place."""
    return random(layout, counts, rng)


def starved(layout: Layout, counts: Sequence[int]) -> list[str]:
    """The tensors of weights or scales without a single entry left, so that their layer outputs nothing."""
    pairs = zip(layout.slots, counts, strict=True)
    return [s.name for s, k in pairs if k == 0 and s.kind in ("weight", "norm") and not s.name.endswith("bias")]


def suffices(layout: Layout, density: float, counts: Callable[[float], list[int]]) -> None:
    """Raise ValueError if a density leaves a tensor empty; the message has about the smallest valid density."""
    if without := starved(layout, counts(density)):
        low, high = density, 1.0
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if starved(layout, counts(middle)) else (low, middle)
        raise ValueError(
            f"density: {density} leaves {without[0]} without any weight; expected about {high:.3g} or more"
        )


def flaw(layout: Layout, old: Mask, new: Mask, same_counts: bool) -> str:
    """A description of what is wrong with the next mask of a client, or an empty string."""
    if not isinstance(new, Tensor) or new.dtype != old.dtype or new.shape != old.shape:
        return f"is not a vector of {len(old)} bools"
    counts = layout.counts(new)
    if same_counts and counts != layout.counts(old):
        return "does not keep the number of ones of every tensor"
    if starved(layout, counts) or not bool(new[layout.params :].all()):
        return "leaves a layer without any weight, or removes a buffer"
    return ""


@dataclass(frozen=True)
class Packed:
    """A mask stored in bits, an eighth of its space."""

    bits: Tensor  # [ceil(size / 8)] uint8
    size: int

    @staticmethod
    def of(mask: Mask) -> Packed:
        """Pack a mask."""
        return Packed(torch.from_numpy(np.packbits(mask.numpy(force=True))).to(mask.device), len(mask))

    def mask(self) -> Mask:
        """Unpack the mask."""
        bits = np.unpackbits(self.bits.numpy(force=True), count=self.size)
        return torch.from_numpy(bits.view(np.bool_)).to(self.bits.device)


@dataclass(frozen=True)
class PackedSparse(Packed):
    """A sparse vector with its mask stored in bits."""

    values: Tensor

    @staticmethod
    def of_sparse(vec: Sparse) -> PackedSparse:
        """Pack a sparse vector."""
        packed = Packed.of(vec.mask)
        return PackedSparse(packed.bits, packed.size, vec.values)

    def sparse(self) -> Sparse:
        """Unpack the sparse vector."""
        return Sparse(self.mask(), self.values)


def drop(layout: Layout, mask: Mask, theta: Vector, counts: Sequence[int]) -> Mask:
    """The mask without the ``counts`` ones of smallest magnitude of each tensor; of ties the lowest index stays."""
    out = mask.clone()
    for slot, ones, r in zip(layout.slots, layout.counts(mask), counts, strict=True):
        if r:
            m = out[slot.where]
            m.copy_(top(theta[slot.where].abs(), ones - r, among=m))
    return out


def grow(layout: Layout, mask: Mask, by: Vector | Rng, counts: Sequence[int]) -> Mask:
    """The mask with ``counts`` zeros of each tensor turned on: those of largest score, or random ones given an Rng."""
    out = mask.clone()
    for i, (slot, r) in enumerate(zip(layout.slots, counts, strict=True)):
        if r:
            m = out[slot.where]
            m |= draw(~m, r, by(i)) if isinstance(by, Rng) else top(by[slot.where], r, among=~m)
    return out


def regrow(layout: Layout, mask: Mask, theta: Vector, by: Vector | Rng, rate: float) -> Mask:
    """RigL's step: drop a fraction ``rate`` of each tensor's ones and grow as many; dropped ones may grow again."""
    counts = drop_counts(layout, mask, rate)
    for i, (ones, size) in enumerate(zip(layout.counts(mask), layout.sizes, strict=True)):
        counts[i] *= ones < size  # a dense tensor would get back all it lost
    return grow(layout, drop(layout, mask, theta, counts), by, counts)


def cosine(rate: float, t: int, rounds: int, horizon: Literal["T-1", "T"] = "T-1") -> float:
    """The rate in round t = 0, 1, ...: from ``rate`` to 0, reached in the last round ("T-1") or one after it ("T")."""
    check_one_of("horizon", horizon, "T-1", "T")
    check_within("t", t, 0, rounds - 1)
    steps = rounds - 1 if horizon == "T-1" else rounds
    return rate / 2 * (1 + math.cos(math.pi * t / max(steps, 1)))


def flags_in(layout: Layout, scope: Scope | None) -> list[bool]:
    """For each tensor, whether the scope allows it to be masked; buffers never are."""
    if scope is None:
        return trainable(layout)
    if len(scope) != len(layout.slots):
        raise ValueError(
            f"scope: a list of {len(scope)} flags is not allowed; expected {len(layout.slots)}, one per tensor"
        )
    return [ok and s.kind != "buffer" for ok, s in zip(scope, layout.slots, strict=True)]


def _floors(layout: Layout, densities: list[float]) -> list[int]:
    return [min(n, math.floor(d * n + SLIP)) for d, n in zip(densities, layout.sizes, strict=True)]


def check_within(field: str, value: float, low: float, high: float) -> None:
    """ValueError unless the value of a field lies within these bounds."""
    if not low <= value <= high:
        raise ValueError(f"{field}: {value} is not allowed; expected a float in [{low}, {high}]")


def check_one_of(field: str, value: str, *allowed: str) -> None:
    """ValueError unless the value of a field is one of these."""
    if value not in allowed:
        raise ValueError(f'{field}: "{value}" is not allowed; expected one of {", ".join(allowed)}')
