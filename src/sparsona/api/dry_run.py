"""Dry runs: which runs a command would run, their progress, folders and sizes. Nothing is written."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sparsona.core.rng import Rng
from sparsona.data import Fleet
from sparsona.engines.device import Device
from sparsona.experiment.checking import RecipeError
from sparsona.experiment.objects import method_name
from sparsona.experiment.recipe import Recipe, ready, with_data
from sparsona.experiment.results import Run
from sparsona.experiment.sampling import sampling_of
from sparsona.experiment.setup import check_place, names_of, newcomers, prepare, sizes_of, verify
from sparsona.method import capabilities
from sparsona.reports.display import Part
from sparsona.reports.run_rows import some_of
from sparsona.reports.sheet import UNKNOWN, Column, Row, Sheet, amount, flop_unit, scaled_amount


@dataclass(frozen=True)
class RunSize:
    """The size of a run; bytes and FLOPs per round are estimates."""

    clients: int
    participants: int  # of a round
    train_samples: int | None  # None if clients are read only when they are drawn
    parameters: int
    bytes_per_round: int  # answers are taken to be as large as what the first round sends
    flops_per_round: int | None  # of dense training on the participants' samples; None without the fields of Training
    not_in_flops: tuple[str, ...] = ()  # what these operations do not include


@dataclass(frozen=True)
class PlannedRun:
    """A planned run and its progress."""

    name: str
    method: str
    seed: int
    rounds: int
    rounds_done: int = 0
    finished: bool = False
    size: RunSize | None = None  # None if data and model were not looked at

    def json(self) -> dict[str, Any]:
        """The run as plain values."""
        size = {} if self.size is None else dict(vars(self.size))
        return {
            "run": self.name,
            "method": self.method,
            "seed": self.seed,
            "done": self.finished,
            "rounds": self.rounds,
            "rounds_done": self.rounds_done,
        } | size


@dataclass(frozen=True, repr=False)
class DryRun:
    """The runs that a command would run."""

    folder: Path
    runs: tuple[PlannedRun, ...]

    def __repr__(self) -> str:
        return f"DryRun({self.finished} of {len(self.runs)} runs finished in {str(self.folder)!r})"

    @property
    def finished(self) -> int:
        """How many of the runs are finished."""
        return sum(run.finished for run in self.runs)

    def json(self) -> dict[str, Any]:
        """The runs as plain values."""
        return {"folder": str(self.folder), "runs": [run.json() for run in self.runs], "done": self.finished}

    def render(self, width: int) -> Iterator[Part]:
        """A row for each unfinished run, and the number of runs."""
        left = [run for run in self.runs if not run.finished]
        if left:
            yield _PlannedSheet(tuple(run.json() for run in left)).rich(width)
        if any(run.size is not None for run in left):
            yield "MB and FLOPs are estimates: uploads are assumed as large as the first downloads, and training dense"
        for run in left:
            if run.size is not None and run.size.not_in_flops:
                yield f"FLOPs of {run.name}: without {some_of(run.size.not_in_flops)}"
            if run.size is not None and run.size.flops_per_round is None and run.size.train_samples is not None:
                yield f"FLOPs of {run.name} are unknown: {run.method} has no epochs; inherit the fields of Training"
        yield f"{self.finished} of {len(self.runs)} runs are finished, {len(left)} would run in {self.folder}"


def dry_run(
    plan: Mapping[str, Recipe], folder: Path, *, alone: bool = False, sizes: bool = True, data_dir: Path | None = None
) -> DryRun:
    """What a plan would run into a folder; with ``sizes``, data and models are built, so that all is checked.

    A run that is ``alone`` lies in the folder itself.
    """
    size_of = _sizes(plan, data_dir) if sizes else {}
    runs = []
    for name, recipe in plan.items():
        run = Run(folder if alone else folder / name)
        begun, method = (run.path / "recipe.toml").is_file(), method_name(recipe.method)
        rounds = len(run.rounds) if begun else 0
        runs.append(PlannedRun(name, method, recipe.seed, recipe.rounds, rounds, run.finished, size_of.get(name)))
    return DryRun(folder, tuple(runs))


def _sizes(plan: Mapping[str, Recipe], data_dir: Path | None) -> dict[str, RunSize]:
    """The size of each run; each different data set and model is built once."""
    built: tuple[Any, Device, Fleet] | None = None
    sizes = {}
    for name, recipe in sorted(plan.items(), key=lambda item: str((item[1].data, item[1].seed, item[1].model))):
        try:
            recipe = ready(recipe)
            key = (recipe.data, recipe.seed, recipe.model, recipe.task)
            if built is None or built[0] != key:
                built = (key, *prepare(recipe, data_dir))
            device, fleet = built[1:]
            recipe = with_data(recipe, fleet.config)
            verify(recipe, device, fleet.clients, sizes_of(fleet), names_of(fleet))
            check_place(recipe, device, fleet)
            sizes[name] = _size(recipe, device, fleet)
        except ValueError as error:
            raise RecipeError(f"{name}: {error}" if len(plan) > 1 else str(error)) from error
    return sizes


def _size(recipe: Recipe, device: Device, fleet: Fleet) -> RunSize:
    able, clients = capabilities(recipe.method), fleet.clients
    layout, ctx = device.task.layout, device.ctx(0, "start")
    if able.star is not None:
        participants = recipe.fleet.per_round or clients - len(newcomers(recipe))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run repeats them when it starts
            first = able.star.down(able.star.start(clients, ctx), 0, device.ctx(0, "merge", 0))
        messages = participants
    else:
        assert able.peer is not None
        away = sampling_of(recipe, range(clients), sizes_of(fleet), names_of(fleet)).away(0)
        plan = recipe.topology.plan(clients, 0, recipe.rounds, Rng(recipe.seed, "topology"), away)
        participants, messages = len(plan.reads), sum(map(len, plan.reads.values()))
        first = able.peer.post(able.peer.join(0, device.ctx(0, "join", 0)), device.ctx(0, "post", 0))
    samples = None if fleet.lazy else int(fleet.train_sizes.sum())
    flops = None
    if samples is not None and able.training is not None:
        passes = able.training.epochs * participants / clients
        flops = round(3 * layout.flops() * passes * samples)
    known = able.peer is not None and first.nbytes < layout.params / 100  # peers need not send what all begin with
    down_and_up = 2 * messages * (4 * layout.params if known else first.nbytes)
    return RunSize(clients, participants, samples, layout.params, down_and_up, flops, layout.uncounted)


class _PlannedSheet(Sheet):
    """A row for each planned run."""

    def parts(self) -> tuple[list[Column], ...]:
        """The run, how far it is, and how large, if all sizes are known."""
        state = [
            Column("method", lambda r: r["method"], words=True),
            Column("seed", lambda r: str(r["seed"])),
            Column("rounds", lambda r: f"{r['rounds_done']}/{r['rounds']}"),
        ]
        groups = [[Column("run", lambda r: r["run"], words=True)], state]
        if all("clients" in row for row in self.rows):
            scale, unit = flop_unit(*(row["flops_per_round"] for row in self.rows))
            titles = {"clients": "clients", "participants": "clients/round"}
            titles |= {"train_samples": "samples", "parameters": "parameters"}
            size = [Column(title, partial(_count, key)) for key, title in titles.items()]
            size.append(Column("MB/round", lambda r: amount(r["bytes_per_round"] / 1e6)))
            size.append(Column(f"{unit}/round", lambda r: scaled_amount(r["flops_per_round"], scale)))
            groups.append(size)
        return tuple(groups)


def _count(key: str, row: Row) -> str:
    return UNKNOWN if row[key] is None else f"{row[key]:,}"


__all__ = ["DryRun", "PlannedRun", "RunSize", "dry_run"]
