"""How alike two vectors are, from -1 to 1; a measure of your own plugs in beside these."""

from __future__ import annotations

from collections.abc import Callable

from sparsona.core.layout import Vector

Correlation = Callable[[Vector, Vector], float]  # of two vectors of one length: 1 alike, 0 unrelated, -1 opposed

_SLIP = 1e-6  # what a measure in single precision may lie outside its range


def cosine(a: Vector, b: Vector) -> float:
    """The cosine of the angle between two vectors; 0 if either is zero."""
    a, b = a.double(), b.double()
    norms = float(a.norm() * b.norm())
    return float(a @ b) / norms if norms else 0.0


def pearson(a: Vector, b: Vector) -> float:
    """The cosine after each vector's mean is taken off; 0 if either is constant."""
    a, b = a.double(), b.double()
    return cosine(a - a.mean(), b - b.mean())


def signs(a: Vector, b: Vector) -> float:
    """How far signs agree: agreeing less opposed entries, of all at which either vector is not zero; 0 if both are."""
    either = int(((a != 0) | (b != 0)).sum())
    return float((a.sign() * b.sign()).double().sum()) / either if either else 0.0


def distance(correlation: Correlation, a: Vector, b: Vector) -> float:
    """From 0, alike, to 1, opposed."""
    value = float(correlation(a, b))
    if not -1 - _SLIP <= value <= 1 + _SLIP:
        name = getattr(correlation, "__name__", repr(correlation))
        raise ValueError(f"correlation: {name} returned {value}; expected a float in [-1, 1]")
    return min(1.0, max(0.0, 0.5 - 0.5 * value))


CORRELATIONS: dict[str, Correlation] = {"cosine": cosine, "pearson": pearson, "signs": signs}
