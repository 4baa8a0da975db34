"""Time and energy of training, by the cost model of DA-DPFL (Section VI-A, Figures 3 and 4 of its paper).

A device computes at ``tflops`` over a ``correction`` for what it does not reach in practice, and its link carries
``gbit_per_s``; while at it, each draws its power. Waiting stretches the time of computing and takes no energy.

The cost of a run is given per round, as the mean over its rounds:

- seconds: the longest computing time among the round's participants, times the length of its clock (how many training
  times the round takes with all waiting, ``clock.length``; 1 with a server), plus the communication time of the busiest
  node, in its busier direction (``busiest``; the server, where there is one);
- joules: the sum over its participants for computing, and over all that is sent, each byte once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from statistics import fmean
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True)
class TimeEnergy:
    """Time and energy."""

    seconds: float
    joules: float

    def total(self, theta: float) -> float:
        """Weighted sum: theta = 0 is time only, theta = 1 is energy only."""
        if not 0 <= theta <= 1:
            raise ValueError(f"theta: {theta} is not allowed; expected a float in [0, 1]")
        return (1 - theta) * self.seconds + theta * self.joules


@dataclass(frozen=True)
class DeviceModel:
    """The hardware of the clients. The default is that of DA-DPFL's paper: an NVIDIA 4090 and a link of 1 Gbit/s.

    Attributes:
        tflops: Peak performance in TFLOP/s.
        correction: Factor by which computing is slower than at peak performance.
        compute_watt: Power while computing.
        network_watt: Power while sending.
        gbit_per_s: Bandwidth of the link.
    """

    tflops: float = 80.0
    correction: float = 5.0
    compute_watt: float = 450.0
    network_watt: float = 1.0
    gbit_per_s: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            free = field.name.endswith("_watt")  # of charge, if one likes
            if not (value >= 0 if free else value > 0) or not math.isfinite(value):
                least = ">= 0" if free else "> 0"
                raise ValueError(f"device: {field.name}={value:g} is not allowed; expected a finite float {least}")

    @staticmethod
    def parse(text: str) -> DeviceModel:
        """A device from comma-separated NAME=NUMBER; other values are the paper's."""
        names = [field.name for field in fields(DeviceModel)]
        given: dict[str, float] = {}
        for piece in text.split(","):
            name, equals, number = (part.strip() for part in piece.partition("="))
            if not equals or not number:
                raise ValueError(
                    f'device: "{text}" is not allowed; expected comma-separated NAME=NUMBER with the '
                    f"names {', '.join(names)}"
                )
            if name not in names:
                raise ValueError(f'device: no such name "{name}"; allowed: {", ".join(names)}')
            if name in given:
                raise ValueError(f"device: {name} is given twice; expected each name once")
            try:
                given[name] = float(number)
            except ValueError:
                raise ValueError(f"device: {name}={number} is not allowed; expected a float") from None
        return DeviceModel(**given)

    def compute_seconds(self, flops: float) -> float:
        """Seconds for this number of operations."""
        return self.correction * flops / (self.tflops * 1e12)

    def network_seconds(self, nbytes: float) -> float:
        """Seconds to send this number of bytes."""
        return 8 * nbytes / (self.gbit_per_s * 1e9)

    def cost(self, flops: float, nbytes: float, delay: float = 1.0) -> TimeEnergy:
        """The cost of a client's round, if waiting stretches its computing time by the factor ``delay``."""
        compute, network = self.compute_seconds(flops), self.network_seconds(nbytes)
        return TimeEnergy(delay * compute + network, self.compute_watt * compute + self.network_watt * network)


def busiest(rounds: Iterable[Row], clients: Iterable[Row]) -> float:
    """Mean bytes per round through the most loaded node, in its busier direction.

    With a server, that node is the server: what it sends to all participants, or receives from them. Without one, it
    is a client.
    """
    return fmean(_most(row, of) for row, of in _books(rounds, clients))


def per_round(rounds: Iterable[Row], clients: Iterable[Row], device: DeviceModel) -> TimeEnergy | None:
    """The mean cost of a round, from the rows of a run's rounds and clients; None if FLOPs are unknown."""
    costs = []
    for row, of in _books(rounds, clients):
        if len(of) != len(row["participants"]):
            count = len(row["participants"])
            raise ValueError(f"round {row['round']} has {count} participants, but the costs of {len(of)}")
        flops = [spent["flops"] for spent in of]
        if None in flops:
            return None
        delay = row["clock"]["length"] if "clock" in row else 1.0
        sent = row["down"] if "clock" in row else row["down"] + row["up"]  # among peers, what one gets another sends
        seconds = device.cost(max(flops, default=0), _most(row, of), delay).seconds
        costs.append(TimeEnergy(seconds, device.cost(sum(flops), sent).joules))
    return TimeEnergy(fmean(c.seconds for c in costs), fmean(c.joules for c in costs))


def _books(rounds: Iterable[Row], clients: Iterable[Row]) -> list[tuple[Row, list[Row]]]:
    """Each round with what its participants spent."""
    spent: dict[int, list[Row]] = {}
    for row in clients:
        if "flops" in row:  # others were only tested
            spent.setdefault(row["round"], []).append({key: row[key] for key in ("flops", "down", "up")})
    return [(row, spent.get(row["round"], [])) for row in rounds]


def _most(row: Row, of: list[Row]) -> int:
    """What passes through the busiest node of a round, in one direction."""
    if "clock" not in row:
        return max(row["down"], row["up"])
    return max((max(spent["down"], spent["up"]) for spent in of), default=0)
