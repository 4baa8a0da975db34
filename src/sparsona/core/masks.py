"""Personal masks: how many entries of each tensor are kept, which ones, and how the choice moves over the rounds.

Densities per tensor are Erdos-Renyi-Kernel and the drop/grow step is RigL's (Evci et al., "Rigging the Lottery", 2020);
the compressibility index is that of Diao et al., "Pruning Deep Neural Networks from a Sparsity Perspective", 2023.
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

Each = Literal["layer", "neuron"]  # what the compressibility index is taken of
Piece = Literal["layer", "model"]  # what entries compete in: a tensor, or the whole vector
Scope = Sequence[bool]  # one flag per tensor: may its entries be masked? None stands for ``trainable``

_SLIP = 1e-9  # what double arithmetic may be off by, so that 0.3 * 50 is 15 both rounded up and rounded down


def trainable(layout: Layout) -> list[bool]:
    """The scope of every trainable tensor: weights, biases and norms."""
    return [s.kind != "buffer" for s in layout.slots]


def weights(layout: Layout, dense: Sequence[str] = ()) -> list[bool]:
    """The scope of convolution, linear and embedding weights, less those whose name matches a pattern in ``dense``."""
    out = [s.kind == "weight" and len(s.shape) > 1 for s in layout.slots]
    for pattern in dense:
        hits = [fnmatchcase(s.name, pattern) for s in layout.slots]
        if not any(hits):
            raise ValueError(f"dense: {pattern!r}; a name or pattern of {[s.name for s in layout.slots]} is allowed")
        out = [ok and not hit for ok, hit in zip(out, hits, strict=True)]
    return out


def density(layout: Layout, mask: Mask, scope: Scope | None = None) -> float:
    """The share of ones among the entries in scope."""
    inside = _flags(layout, scope)
    return sum(compress(layout.counts(mask), inside)) / sum(compress(layout.sizes, inside))


def hamming(layout: Layout, a: Mask, b: Mask, scope: Scope | None = None) -> float:
    """The share of entries in which two masks differ, as the mean over the tensors in scope."""
    inside = _flags(layout, scope)
    shares = [n / size for n, size in zip(layout.counts(a != b), layout.sizes, strict=True)]
    return sum(compress(shares, inside)) / sum(inside)


def erk(layout: Layout, density: float, scope: Scope | None = None) -> list[float]:
    """Densities as (sum of dimensions) / (their product), scaled and cut off at 1 so that the scope has ``density``."""
    _within("density", density, 0, 1)
    free = [i for i, ok in enumerate(_flags(layout, scope)) if ok]
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
    _within("density", density, 0, 1)
    return _floors(layout, [density if ok else 1.0 for ok in _flags(layout, scope)])


def kept(n: int, sparsity: float) -> int:
    """How many of ``n`` entries remain when a share ``sparsity``, rounded (halves to even), is left out; at least 1."""
    _within("sparsity", sparsity, 0, 1)
    return max(1, n - round(sparsity * n))


def at_least(n: int, share: float) -> int:
    """A share of ``n`` entries, rounded up; at least 1."""
    _within("share", share, 0, 1)
    return max(1, math.ceil(share * n - _SLIP))


def drop_counts(layout: Layout, mask: Mask, rate: float) -> list[int]:
    """A share ``rate`` of the ones of each tensor, rounded up."""
    _within("rate", rate, 0, 1)
    return [math.ceil(rate * ones - _SLIP) for ones in layout.counts(mask)]


def below_percentile(n: int, share: float) -> int:
    """How many of n different numbers lie strictly below their percentile ``share``, interpolated linearly."""
    _within("share", share, 0, 1)
    return math.ceil(share * (n - 1) - _SLIP) if n else 0


def top(score: Tensor, k: int, among: Mask | None = None) -> Mask:
    """Exactly ``k`` entries of largest score, of equal ones those of lowest index; NaN ranks below every number."""
    eligible = score.numel() if among is None else ones_in(among)
    _within("k", k, 0, eligible)
    if k == eligible:
        return torch.ones_like(score, dtype=torch.bool) if among is None else among.clone()
    if k == 0:
        return torch.zeros_like(score, dtype=torch.bool)
    score = score.detach()
    if among is not None:  # places first: a choice by bools costs a mispredicted branch per entry
        at = places(among)
        return torch.zeros_like(among).index_fill_(0, picked(at, top(score.index_select(0, at), k)), True)
    # Sorting beats selection: NumPy's is vectorised, and unlike its partition does not slow down on many equal values.
    ordered = np.sort(score.numpy(force=True))
    if np.isnan(ordered[-1]):
        score = torch.where(score.isnan(), -math.inf, score)
        ordered = np.sort(score.numpy(force=True))
    bar = ordered[-k]
    low, high = (int(np.searchsorted(ordered, bar, side)) for side in ("left", "right"))
    if high - low == k - (len(ordered) - high):  # all that equal the bar are in
        return score >= float(bar)
    chosen = score > float(bar)
    chosen[places(score == float(bar))[: k - (len(ordered) - high)]] = True
    return chosen


def draw(pool: Mask, k: int, rng: Rng) -> Mask:
    """Exactly ``k`` of the ones of ``pool``, uniformly."""
    at = places(pool)
    _within("k", k, 0, len(at))
    out = torch.zeros_like(pool)
    out[at[rng.permutation(len(at))[:k]]] = True
    return out


def top_each(layout: Layout, score: Vector, counts: Sequence[int]) -> Mask:
    """The ``counts`` entries of largest score of each tensor."""
    return torch.cat([top(s, k) for s, k in zip(layout.split(score), counts, strict=True)])


def pieces(layout: Layout, each: Piece, *vectors: Tensor) -> list[tuple[Tensor, ...]]:
    """What all vectors have of each tensor, or of the whole model, in turn: views, never copies."""
    _one_of("each", each, "layer", "model")
    return list(zip(*map(layout.split, vectors), strict=True)) if each == "layer" else [vectors]


def largest(layout: Layout, vec: Vector, sparsity: float, each: Piece = "layer") -> Mask:
    """The entries of largest magnitude that remain of each piece when a share ``sparsity`` of it is left out."""
    if vec.shape != (layout.dim,) or not 0 <= sparsity < 1:
        what = f"a vector of {layout.dim} entries and a share of at least 0 and below 1 are allowed"
        raise ValueError(f"vec, sparsity: {tuple(vec.shape)}, {sparsity}; {what}")
    return torch.cat([top(p.abs(), kept(p.numel(), sparsity)) for (p,) in pieces(layout, each, vec)])


def miscount(layout: Layout, mask: Mask, sparsity: float, each: Piece = "layer") -> str:
    """What is wrong with the number of ones of a mask that ``largest`` should have given, if anything."""
    for (piece,) in pieces(layout, each, mask):
        here, due = ones_in(piece), kept(piece.numel(), sparsity)
        if here != due:
            return f"holds {here} of {piece.numel()} entries, not {due}"
    return ""


def mixed(a: Mask, b: Mask, share: float, rng: Rng) -> Mask:
    """As many places as ``a`` has: those of both, and of the rest, by lot, a ``share`` from b and what is left from a.

    The share is rounded (halves to even); if ``b`` has fewer places of its own, all of them.
    """
    _within("share", share, 0, 1)
    only_a, only_b = places(a & ~b), places(b & ~a)
    from_b = min(round(share * len(only_a)), len(only_b))
    out = a.clone()
    if from_b:  # as many leave as come
        lot = rng.numpy()
        for pool, inside in ((only_a, False), (only_b, True)):
            out.index_fill_(0, torch.from_numpy(lot.choice(pool.numpy(), from_b, replace=False)), inside)
    return out


def random(layout: Layout, counts: Sequence[int], rng: Rng) -> Mask:
    """``counts`` entries of each tensor, uniformly."""
    out = torch.ones(layout.dim, dtype=torch.bool)
    for i, (part, k) in enumerate(zip(layout.split(out), counts, strict=True)):
        if k != part.numel():
            part.copy_(draw(part, k, rng(i)))
    return out


@lru_cache(maxsize=4)
def remembered(layout: Layout, counts: tuple[int, ...], rng: Rng) -> Mask:
    """Like ``random``, at once where it was asked for before: one mask serves many clients. Not to be changed."""
    return random(layout, counts, rng)


def starved(layout: Layout, counts: Sequence[int]) -> list[str]:
    """Tensors of weights or scales that are left without a single entry, so that nothing passes their layer."""
    pairs = zip(layout.slots, counts, strict=True)
    return [s.name for s, k in pairs if k == 0 and s.kind in ("weight", "norm") and not s.name.endswith("bias")]


def suffices(layout: Layout, density: float, counts: Callable[[float], list[int]]) -> None:
    """An error if a density starves a tensor, with about the smallest one that does not."""
    if without := starved(layout, counts(density)):
        low, high = density, 1.0
        while high - low > 1e-3 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if starved(layout, counts(middle)) else (low, middle)
        raise ValueError(
            f"density: {density} leaves {without[0]} without any weight; about {high:.3g} or more is needed"
        )


def flaw(layout: Layout, old: Mask, new: Mask, same_counts: bool) -> str:
    """What is wrong with a mask that is to follow another, if anything."""
    if not isinstance(new, Tensor) or new.dtype != old.dtype or new.shape != old.shape:
        return f"is not {len(old)} bools"
    counts = layout.counts(new)
    if same_counts and counts != layout.counts(old):
        return "does not keep the number of ones of every tensor"
    if starved(layout, counts) or not bool(new[layout.params :].all()):
        return "leaves a layer without any weight, or a buffer out"
    return ""


@dataclass(frozen=True)
class Packed:
    """A mask in an eighth of its space, for whoever keeps many."""

    bits: Tensor  # [ceil(size / 8)] uint8
    size: int

    @staticmethod
    def of(mask: Mask) -> Packed:
        """Pack a mask."""
        return Packed(torch.from_numpy(np.packbits(mask.numpy())), len(mask))

    def mask(self) -> Mask:
        """The mask again."""
        return torch.from_numpy(np.unpackbits(self.bits.numpy(), count=self.size).view(np.bool_))


@dataclass(frozen=True)
class PackedSparse(Packed):
    """A sparse vector likewise."""

    values: Tensor

    @staticmethod
    def of_sparse(vec: Sparse) -> PackedSparse:
        """Pack a sparse vector."""
        packed = Packed.of(vec.mask)
        return PackedSparse(packed.bits, packed.size, vec.values)

    def sparse(self) -> Sparse:
        """The sparse vector again."""
        return Sparse(self.mask(), self.values)


def drop(layout: Layout, mask: Mask, theta: Vector, counts: Sequence[int]) -> Mask:
    """The mask without the ``counts`` ones of smallest magnitude of each tensor; of equals the lower index stays."""
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
    """RigL's step: drop a share ``rate`` of each tensor's ones, grow as many; what was dropped may come back."""
    counts = drop_counts(layout, mask, rate)
    for i, (ones, size) in enumerate(zip(layout.counts(mask), layout.sizes, strict=True)):
        counts[i] *= ones < size  # a dense tensor would get back all it lost
    return grow(layout, drop(layout, mask, theta, counts), by, counts)


@dataclass(frozen=True)
class PQ:
    """How many entries are spare, by how unequal their magnitudes are."""

    p: float = 0.5
    q: float = 1.0
    eta: float = 0.0  # slack: more is spare
    gamma: float = 1.0  # share of the spare entries to take
    beta: float = 0.9  # share of all entries to take at most

    def __post_init__(self) -> None:
        if not 0 < self.p < self.q:
            raise ValueError(f"p, q: {self.p}, {self.q}; 0 < p < q is needed")
        for field, high in {"eta": math.inf, "gamma": math.inf, "beta": 1}.items():
            _within(field, getattr(self, field), 0, high)

    def index(self, values: Tensor) -> float:
        """One less the ratio of p-power to q-power mean of magnitudes; 0 if all are equal, none, or not finite."""
        size = values.detach().abs().double()
        largest = float(size.max()) if size.numel() else 0.0
        if not 0 < largest < math.inf:
            return 0.0
        size /= largest  # the index ignores scale, and equal magnitudes become ones, whose means are exact
        low, high = (math.pow(float(size.pow(x).mean()), 1 / x) for x in (self.p, self.q))
        return max(0.0, 1 - low / high)

    def spare(self, values: Tensor) -> int:
        """How many of these entries to prune."""
        d, gap = values.numel(), self.q - self.p
        share = math.pow(1 + self.eta, -self.q / gap) * math.pow(1 - self.index(values), self.p * self.q / gap)
        keep = math.ceil(d * share - _SLIP)
        return math.floor(min(self.gamma * (d - keep), self.beta * d) + _SLIP)


def pq_prune(
    layout: Layout, mask: Mask, theta: Vector, pq: PQ, scope: Scope | None = None, each: Each = "layer"
) -> Mask:
    """The mask without the spare entries, those of smallest magnitude, of each tensor or each output unit's weights."""
    _one_of("each", each, "layer", "neuron")
    out = mask.clone()
    for slot, inside in zip(layout.slots, _flags(layout, scope), strict=True):
        if inside:
            # An output unit's weights lie side by side in the vector, also for convolutions.
            run = slot.size // slot.shape[0] if each == "neuron" and len(slot.shape) > 1 else slot.size
            for start in range(slot.offset, slot.offset + slot.size, run):
                m, w = out[start : start + run], theta[start : start + run]
                active = picked(w, m)
                m.copy_(top(w.abs(), active.numel() - pq.spare(active), among=m))
    return out


def cosine(rate: float, t: int, rounds: int, horizon: Literal["T-1", "T"] = "T-1") -> float:
    """The rate in round t = 0, 1, ...: from ``rate`` to 0, reached in the last round ("T-1") or one after it ("T")."""
    _one_of("horizon", horizon, "T-1", "T")
    _within("t", t, 0, rounds - 1)
    steps = rounds - 1 if horizon == "T-1" else rounds
    return rate / 2 * (1 + math.cos(math.pi * t / max(steps, 1)))


def prune_rounds(
    first: int, delay: int, factor: float, rounds: int, rounding: Literal["ceil", "reference"] = "ceil"
) -> list[int]:
    """Rounds to prune in, below ``rounds``, whose gaps start at first + delay and shrink by ``factor`` each time.

    "ceil" rounds each gap up; "reference" rounds it to nearest and derives the next from it, twenty times at most.
    """
    _one_of("rounding", rounding, "ceil", "reference")
    _within("factor", factor, 1, math.inf)
    _within("first + delay", first + delay, 1, math.inf)
    t, gap, out = first + delay, float(first + delay), list[int]()
    while t < rounds and gap > 0 and not (rounding == "reference" and len(out) == 20):
        out.append(t)
        gap = max(1.0, gap / factor) if rounding == "ceil" else round(gap / factor)
        t += math.ceil(gap - _SLIP)
    return out


def _flags(layout: Layout, scope: Scope | None) -> list[bool]:
    if scope is None:
        return trainable(layout)
    if len(scope) != len(layout.slots):
        raise ValueError(f"scope: {len(scope)} flags; {len(layout.slots)} are needed, one per tensor")
    return [ok and s.kind != "buffer" for ok, s in zip(scope, layout.slots, strict=True)]


def _floors(layout: Layout, densities: list[float]) -> list[int]:
    return [min(n, math.floor(d * n + _SLIP)) for d, n in zip(densities, layout.sizes, strict=True)]


def _within(field: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{field}: {value}; {low} to {high} is allowed")


def _one_of(field: str, value: str, *allowed: str) -> None:
    if value not in allowed:
        raise ValueError(f"{field}: {value!r}; one of {', '.join(allowed)} is allowed")
