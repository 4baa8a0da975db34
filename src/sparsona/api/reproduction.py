"""Run a paper's table from its recipes, and compare the results with the printed values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sparsona.api.dry_run import DryRun, dry_run
from sparsona.api.folders import PLAN, read_plan, write_plan
from sparsona.api.runs import OnRun, RunSet, compared, run_planned, verify_all
from sparsona.experiment.loop import OnRound
from sparsona.experiment.recipe import Recipe
from sparsona.experiment.reproduce import TABLE, Reproduction, load_table, table_names
from sparsona.experiment.reproduce import plan as plan_table
from sparsona.experiment.results import RunError, vacant
from sparsona.experiment.sweep import content, difference


def list_tables() -> dict[str, str]:
    """The built-in tables with a description each."""
    tables = {name: load_table(name) for name in table_names()}
    return {name: f"{table.source}: {table.title}" for name, table in tables.items()}


def reproduce(
    table: str,
    only: Sequence[str] = (),
    *,
    seeds: Sequence[int] = (),
    rounds: int | None = None,
    out: str | Path | None = None,
    data_dir: Path | None = None,
    on_run: OnRun | None = None,
    on_round: OnRound | None = None,
) -> RunSet:
    """Run a paper's table, and compare the results with the printed values. Run again to resume or extend.

    Args:
        table: Name of a built-in table (``list_tables()``), or path of a TOML file.
        only: Columns and rows to run, by name or by prefix of a column's name. Default: all.
        seeds: Seeds. Default: those of the table.
        rounds: Rounds of every run. Default: those of the recipes.
        out: Folder of the runs. Default: runs/PAPER-TABLE.
        data_dir: Folder with the data sets; by default SPARSONA_DATA.
        on_run: Called with a RunStart before every run.
        on_round: Called with a Progress after every round.

    Returns:
        All runs, with the table that compares them with the paper.

    Examples:
        >>> sparsona.reproduce("fedspa/table1", ["emnist", "dst"], rounds=10)
    """
    folder, known, plan, described = _planned(table, only, seeds, rounds, out)
    verify_all({name: recipe for name, recipe in plan.items() if name not in known}, data_dir)
    write_plan(folder, known | plan, TABLE, described.json())
    return compared(run_planned(folder, data_dir, on_run, on_round, plan), folder)


def plan_reproduction(
    table: str,
    only: Sequence[str] = (),
    *,
    seeds: Sequence[int] = (),
    rounds: int | None = None,
    out: str | Path | None = None,
) -> DryRun:
    """The runs that ``reproduce`` would run with the same arguments, and their progress. No data are read."""
    folder, _, plan, _ = _planned(table, only, seeds, rounds, out)
    return dry_run(plan, folder, sizes=False)


def _planned(
    table: str, only: Sequence[str], seeds: Sequence[int], rounds: int | None, out: str | Path | None
) -> tuple[Path, dict[str, Recipe], dict[str, Recipe], Reproduction]:
    plan, described = plan_table(table, only, seeds, rounds)
    short = table.replace("/", "-") if table in table_names() else Path(table).stem
    folder = Path(out or Path("runs") / (short if rounds is None else f"{short}-{rounds}-rounds"))
    known = read_plan(folder)
    return folder, known, plan, _joined(folder, known, plan, described)


def _joined(
    folder: Path, known: Mapping[str, Recipe], plan: Mapping[str, Recipe], described: Reproduction
) -> Reproduction:
    """A table's runs and those that its folder has already; raises RunError if the two do not go together."""
    elsewhere = "choose another folder with --out"
    if not (folder / PLAN).is_file():
        vacant(folder)
    elif (folder / TABLE).is_file():
        there = Reproduction.read(folder)
        for what, then, now in (
            ("the table", there.table.source, described.table.source),
            ("the number of rounds", there.rounds or "the recipes' own", described.rounds or "the recipes' own"),
        ):
            if then != now:
                raise RunError(f"{folder} holds other runs: {what} is {then} there, but {now} here; {elsewhere}")
        described = replace(described, runs={**there.runs, **described.runs})
    elif not known.keys() <= plan.keys():
        raise RunError(f"{folder} holds other runs; {elsewhere}")
    for name, recipe in plan.items():
        if name in known and content(known[name]) != content(recipe):
            differs = difference(known[name], [recipe])
            raise RunError(f"{folder} holds other runs: in {json.dumps(name)}, {differs}; {elsewhere}")
    return described
