"""Layer masks by group: devices of one budget and one mask, and the names of layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparsona.core.layout import Layout
from sparsona.methods.perfedmask.problem import Solution


@dataclass(frozen=True)
class DeviceGroup:
    """Devices of one budget and one mask."""

    devices: list[int]
    budget: int
    trained: int
    slack: int
    layers: list[bool]

    def json(self) -> dict[str, Any]:
        """As plain values, the layers by number from 0."""
        return vars(self) | {"layers": [j for j, trains in enumerate(self.layers) if trains]}


def device_groups(solution: Solution) -> list[DeviceGroup]:
    """The devices of a design, those alike together, in the order of their first ones."""
    alike: dict[tuple[int, bytes], list[int]] = {}
    for n, budget in enumerate(solution.problem.budgets):
        alike.setdefault((budget, solution.masks[n].tobytes()), []).append(n)
    return [
        DeviceGroup(of, budget, solution.trained[of[0]], solution.slack[of[0]], solution.masks[of[0]].tolist())
        for (budget, _), of in alike.items()
    ]


def layer_names(layout: Layout, count: int) -> list[str]:
    """Layers by their first module; one more than the body has is the head."""
    names = ["head"] * count
    for slot in reversed(layout.slots):
        if slot.group >= 0:
            names[slot.group] = slot.layer
    return names
