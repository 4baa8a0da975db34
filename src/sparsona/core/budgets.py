"""Heterogeneous devices: a share per client, given as a number, a list, or a distribution to draw from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sparsona.core.fields import Fraction, Positive, PositiveShare
from sparsona.core.rng import Rng


@dataclass(frozen=True)
class Between:
    """Drawn uniformly between two bounds."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    low: PositiveShare
    high: PositiveShare

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low: {self.low} is not allowed; expected a float <= high = {self.high}")


@dataclass(frozen=True)
class OneOf:
    """Drawn from a few values, with the given weights or equally."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    values: tuple[PositiveShare, ...]
    weights: tuple[Positive, ...] = ()

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("values: [] is not allowed; expected at least one value")
        if self.weights and len(self.weights) != len(self.values):
            raise ValueError(
                f"weights: a list of {len(self.weights)} is not allowed; expected {len(self.values)}, one per value"
            )


@dataclass(frozen=True)
class FractionBetween(Between):
    """Drawn uniformly between two bounds, from 0 and below 1."""

    low: Fraction
    high: Fraction


@dataclass(frozen=True)
class FractionOneOf(OneOf):
    """Drawn from a few values, from 0 and below 1, with the given weights or equally."""

    values: tuple[Fraction, ...]


Shares = PositiveShare | tuple[PositiveShare, ...] | Between | OneOf
Fractions = Fraction | tuple[Fraction, ...] | FractionBetween | FractionOneOf


def share(shares: Shares | Fractions, k: int, common: Rng) -> float:
    """The share of client k; draws depend only on the run's seed and the client."""
    drawn = float(common("share", k).numpy().random())
    match shares:
        case Between(low, high):
            return low + (high - low) * drawn
        case OneOf(values, weights):
            bars = weights or (1.0,) * len(values)
            left = drawn * sum(bars)
            for value, bar in zip(values, bars, strict=True):
                left -= bar
                if left < 0:
                    return value
            return values[-1]
        case tuple():
            return shares[k]
    return shares


def least(field: str, shares: Shares | Fractions, clients: int) -> float:
    """The smallest share that any client may get; ValueError if a list does not have one value per client."""
    match shares:
        case Between(low, _):
            return low
        case OneOf(values, _):
            return min(values)
        case tuple():
            if len(shares) != clients:
                raise ValueError(
                    f"{field}: a list of {len(shares)} is not allowed; expected {clients} values, one per client"
                )
            return min(shares)
    return shares
