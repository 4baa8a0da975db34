"""Layer masks that PerFedMask designs for a recipe, and budgets measured on a device."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparsona.api.folders import writing
from sparsona.api.runs import load
from sparsona.data import Fleet
from sparsona.engines.device import Device
from sparsona.experiment.checking import RecipeError
from sparsona.experiment.plan import variants
from sparsona.experiment.recipe import Recipe
from sparsona.experiment.setup import names_of, prepare, sizes_of, verify
from sparsona.methods import METHODS
from sparsona.methods.perfedmask.figures import mask_picture
from sparsona.methods.perfedmask.groups import DeviceGroup, device_groups, layer_names
from sparsona.methods.perfedmask.layers import LayerMasks
from sparsona.methods.perfedmask.solver import Solution
from sparsona.methods.perfedmask.step_time import StepTime, propose_budget, time_steps
from sparsona.reports.display import Part, text_table
from sparsona.reports.sheet import number_ranges


@dataclass(frozen=True, repr=False)
class MaskDesign:
    """Which clients train which layers."""

    variant: str
    others: tuple[str, ...]  # variants that design masks too
    layers: tuple[str, ...]
    solution: Solution
    groups: tuple[DeviceGroup, ...]
    picture: Path | None

    def __repr__(self) -> str:
        return f"MaskDesign({self.variant}: {len(self.solution.masks)} devices, {len(self.layers)} layers)"

    def json(self) -> dict[str, Any]:
        """The masks by group of devices, and their bounds."""
        solution = self.solution
        sizes = zip(self.layers, solution.problem.sizes, strict=True)
        return {
            "variant": self.variant,
            "layers": [{"name": name, "parameters": size} for name, size in sizes],
            "devices": [group.json() for group in self.groups],
            "bias": solution.bias,
            "slack": sum(solution.slack),
            "bound": solution.bound,
            "gap": solution.gap,
            "picture": None if self.picture is None else str(self.picture),
        }

    def render(self, width: int) -> Iterator[Part]:
        """A row per group of devices, and how good the design is."""
        solution = self.solution
        count = f"{len(solution.masks)} devices, {len(self.layers)} layers"
        numbers = ("budget", "trained", "slack")
        yield text_table(
            ("devices", *numbers, "layers (input to output)"),
            (
                (
                    number_ranges(group.devices),
                    *(f"{n:,}" for n in (group.budget, group.trained, group.slack)),
                    "".join("#" if trains else "." for trains in group.layers),
                )
                for group in self.groups
            ),
            title=f"{self.variant}: {count} of {solution.problem.body:,} parameters",
            right=numbers,
        )
        if solution.gap is None:
            gap = "optimality gap unknown, because some device trains nothing although it could"
        elif solution.proven:
            gap = "proven optimal"
        else:
            gap = f"optimality gap at most {100 * solution.gap:.1f} %"
        yield f"bias {solution.bias:,.0f} + slack {sum(solution.slack):,} = {solution.objective:,.0f}: {gap}"
        if self.others:
            yield f"note: this is variant {self.variant}; choose another with --only: {', '.join(self.others)}"
        if self.picture is not None:
            yield f"figure: {self.picture}"


@dataclass(frozen=True, repr=False)
class BudgetTimes:
    """The time of a training step on this device by budget, and a proposed budget."""

    recipe: Recipe
    batch: int
    steps: tuple[StepTime, ...]
    limit: float | None  # milliseconds that a step may take
    proposed: StepTime | None

    def __repr__(self) -> str:
        return f"BudgetTimes({self.recipe.model.name}, {len(self.steps)} budgets)"

    def json(self) -> dict[str, Any]:
        """The times by budget as plain values, and the budget proposed."""
        rows = [asdict(each) for each in self.steps]
        return {"steps": rows, "step": self.limit, "budget": None if self.proposed is None else self.proposed.budget}

    def render(self, width: int) -> Iterator[Part]:
        """A row per budget, and the proposal."""
        columns, first = ("budget", "parameters", "ms/step", "relative time"), self.steps[0].milliseconds
        yield text_table(
            columns,
            (
                (f"{s.budget:g}", f"{s.trained:,}", f"{s.milliseconds:.2f}", f"{s.milliseconds / first:.2f}")
                for s in self.steps
            ),
            title=f"Training step of {self.recipe.model.name} on this device, batch size {self.batch}",
            right=columns,
        )
        if self.limit is None:
            yield f"to find a budget with which another device keeps up with this one, use there: --step {first:.2f}"
        elif self.proposed is None:
            yield f"no budget keeps a step within {self.limit:g} ms; use fewer local epochs on this device"
        else:
            yield f"proposed: method.budget = {self.proposed.budget:g} for this device"


def masks(
    recipe: str | Path,
    overrides: Iterable[str] = (),
    only: Sequence[str] = (),
    *,
    picture: str | Path | None = None,
    data_dir: Path | None = None,
) -> MaskDesign:
    """Design the layer masks of a PerFedMask recipe; ``picture`` is the output file of a figure."""
    variant, others, _, method, device, fleet = _scene(recipe, overrides, only, data_dir)
    layout = device.task.layout
    solution = method.design(fleet.clients, layout, device.ctx(0, "start").common)
    names = layer_names(layout, len(solution.problem.sizes))
    path = None if picture is None else Path(picture)
    if path is not None:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            mask_picture(solution, names, path)
    return MaskDesign(variant, others, tuple(names), solution, tuple(device_groups(solution)), path)


def measure_budgets(
    recipe: str | Path,
    overrides: Iterable[str] = (),
    only: Sequence[str] = (),
    *,
    step: float | None = None,
    data_dir: Path | None = None,
) -> BudgetTimes:
    """Time training steps on this device by budget; propose a budget whose steps take at most ``step`` milliseconds."""
    if step is not None and not step > 0:
        raise RecipeError(f"step: {step:g} is not allowed; expected a number of milliseconds > 0")
    _, _, chosen, method, device, fleet = _scene(recipe, overrides, only, data_dir)
    steps = time_steps(method, device.task, device.theta0, fleet.local(0).train)
    proposed = None if step is None else propose_budget(steps, step)
    return BudgetTimes(chosen, method.batch, tuple(steps), step, proposed)


def _scene(
    recipe: str | Path, overrides: Iterable[str], only: Sequence[str], data_dir: Path | None
) -> tuple[str, tuple[str, ...], Recipe, LayerMasks, Device, Fleet]:
    """The first variant that designs masks, the names of the others, and what it needs."""
    raw = variants(str(recipe), only)
    kinds = {n: METHODS.get(table.get("method", {}).get("name", ""), object) for n, table in raw.items() if n}
    masked = [n for n, kind in kinds.items() if issubclass(kind, LayerMasks)]
    plan = load(recipe, overrides, masked[:1] or only)  # changes need not suit the other variants
    for name, chosen in plan.items():
        if isinstance(chosen.method, LayerMasks):
            device, fleet = prepare(chosen, data_dir)
            verify(chosen, device, fleet.clients, sizes_of(fleet), names_of(fleet))
            return name, tuple(masked[1:]), chosen, chosen.method, device, fleet
    what = f"variant {', '.join(only)}" if only else f"recipe {json.dumps(str(recipe))}"
    raise RecipeError(f'{what} has no layer masks; expected method.name = "perfedmask"')
