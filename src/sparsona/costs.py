"""What training costs in seconds and joules, by the cost model of DA-DPFL (its Section VI-A, Figures 3 and 4).

A device computes at ``tflops`` over a ``correction`` for what it does not reach in practice, and its link carries
``gbit_per_s``; while at it, each draws its power. Waiting stretches the time of computing and takes no energy.

Of a run this is told per round, as the mean over its rounds:

- seconds: the longest computing time among the round's participants, times the length of its clock (how many training
  times the round takes with all waiting, ``clock.length``; 1 with a server), plus their longest communication time;
- joules: the sum over its participants, for computing and communicating.

A client communicates what it receives and what it sends, as encoded, one after the other. A server costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Cost:
    """Time and energy."""

    seconds: float
    joules: float

    def total(self, theta: float) -> float:
        """Both in one number: from time alone, 0, to energy alone, 1."""
        if not 0 <= theta <= 1:
            raise ValueError(f"theta = {theta}: must be 0 to 1")
        return (1 - theta) * self.seconds + theta * self.joules


@dataclass(frozen=True)
class Device:
    """What clients compute and communicate with; the paper's is an NVIDIA 4090 at a network of 1 Gbit/s."""

    tflops: float = 80.0
    correction: float = 5.0  # computing takes so many times longer than its operations would
    compute_watt: float = 450.0
    network_watt: float = 1.0
    gbit_per_s: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            free = field.name.endswith("_watt")  # of charge, if one likes
            if not (value >= 0 if free else value > 0) or not math.isfinite(value):
                least = "at least 0" if free else "more than 0"
                raise ValueError(f"device: {field.name} = {value:g}: must be a finite number, {least}")

    @staticmethod
    def parse(text: str) -> Device:
        """A device from NAME=NUMBER with commas between; what is not named is the paper's."""
        names = [field.name for field in fields(Device)]
        given: dict[str, float] = {}
        for piece in text.split(","):
            name, equals, number = (part.strip() for part in piece.partition("="))
            if not equals or not number:
                raise ValueError(
                    f"device = {text!r}: must be NAME=NUMBER with commas between; names: {', '.join(names)}"
                )
            if name not in names:
                raise ValueError(f"device: {name!r}: no such number; allowed: {', '.join(names)}")
            if name in given:
                raise ValueError(f"device: {name} is given twice")
            try:
                given[name] = float(number)
            except ValueError:
                raise ValueError(f"device: {name} = {number!r}: must be a number") from None
        return Device(**given)

    def compute_seconds(self, flops: float) -> float:
        """How long so many operations take."""
        return self.correction * flops / (self.tflops * 1e12)

    def network_seconds(self, nbytes: float) -> float:
        """How long so many bytes take."""
        return 8 * nbytes / (self.gbit_per_s * 1e9)

    def cost(self, flops: float, nbytes: float, delay: float = 1.0) -> Cost:
        """A client's round, if waiting for others makes its computing ``delay`` times as long."""
        compute, network = self.compute_seconds(flops), self.network_seconds(nbytes)
        return Cost(delay * compute + network, self.compute_watt * compute + self.network_watt * network)


def busiest(rounds: Iterable[Row], clients: Iterable[Row]) -> float:
    """Bytes a round, on average, through the node that most pass through, in its busier direction.

    That is the server where there is one: what it sends to all participants, or receives from them. Without one, it
    is a client.
    """
    most: dict[int, int] = {}
    for row in clients:
        if "flops" in row:
            most[row["round"]] = max(most.get(row["round"], 0), row["down"], row["up"])
    return fmean(most.get(r["round"], 0) if "clock" in r else max(r["down"], r["up"]) for r in rounds)


def per_round(rounds: Iterable[Row], clients: Iterable[Row], device: Device) -> Cost:
    """What a round costs on average, from the rows of a run's rounds and clients."""
    busiest: dict[int, tuple[int, int]] = {}  # by round: most operations and most bytes of a participant
    joules: dict[int, list[float]] = {}
    for row in clients:
        if "flops" in row:  # others were only tested
            t, flops, nbytes = row["round"], row["flops"], row["down"] + row["up"]
            most = busiest.get(t, (0, 0))
            busiest[t] = max(most[0], flops), max(most[1], nbytes)
            joules.setdefault(t, []).append(device.cost(flops, nbytes).joules)
    found = []
    for row in rounds:
        t, spent = row["round"], joules.get(row["round"], [])
        if len(spent) != len(row["participants"]):
            raise ValueError(f"round {t} has {len(row['participants'])} participants, but costs of {len(spent)}")
        delay = row["clock"]["length"] if "clock" in row else 1.0
        found.append(Cost(device.cost(*busiest.get(t, (0, 0)), delay).seconds, math.fsum(spent)))
    return Cost(fmean(c.seconds for c in found), fmean(c.joules for c in found))
