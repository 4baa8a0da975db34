"""Run every combination of listed values."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sparsona.api.dry_run import DryRun, dry_run
from sparsona.api.folders import PLAN, free_folder, read_plan, write_plan
from sparsona.api.runs import OnRun, RunSet, compared, run_planned, verify_all
from sparsona.experiment.loop import OnRound
from sparsona.experiment.recipe import Recipe
from sparsona.experiment.results import Run, RunError, vacant
from sparsona.experiment.sweep import SWEEP, Sweep, extended
from sparsona.experiment.sweep import plan as planned_runs


def sweep(
    recipe: str | Path,
    overrides: Iterable[str] = (),
    only: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    target: float | None = None,
    data_dir: Path | None = None,
    on_run: OnRun | None = None,
    on_round: OnRound | None = None,
    on_resume: Callable[[str], None] | None = None,
) -> RunSet:
    """Run a recipe for every combination of the listed values, and report mean ± std over seeds.

    Args:
        recipe: Name of a built-in recipe, or path of a TOML file.
        overrides: ``key=a,b,c`` runs every value; ``key=value`` applies to all runs.
        only: Names of variants to run. Default: all.
        out: Sweep folder, by default runs/NAME-sweep-1, -2, ... If it holds this sweep already, the sweep is resumed or
            extended.
        target: Report the cost of reaching this accuracy, or other headline.
        data_dir: Folder with the data sets; by default SPARSONA_DATA.
        on_run: Called with a RunStart before every run.
        on_round: Called with a Progress after every round.
        on_resume: Called with a message if the folder holds runs already.

    Returns:
        All runs, with one table row for each setting.

    Examples:
        >>> runs = sparsona.sweep("quickstart", ["method.lr=0.05,0.1", "seed=1,2,3"], only=["personal"])
        >>> print(runs.comparison)  # folder of tables and figures
    """
    folder, known, plan, described = _planned(recipe, overrides, only, out)
    for planned in plan.values():
        planned.task.main.check_target("target", target)
    added = {name: each for name, each in plan.items() if name not in known}
    if added:
        verify_all(added, data_dir)
    if known and on_resume is not None:
        finished = sum(Run(folder / name).finished for name in known)
        more = f", adding {len(added)}" if added else ""
        on_resume(f"resuming the sweep in {folder}: {finished} of {len(known)} runs finished{more}")
    write_plan(folder, plan, SWEEP, described.json())
    return compared(run_planned(folder, data_dir, on_run, on_round), folder, target)


def plan_sweep(
    recipe: str | Path,
    overrides: Iterable[str] = (),
    only: Sequence[str] = (),
    *,
    out: str | Path | None = None,
    data_dir: Path | None = None,
) -> DryRun:
    """The runs that ``sweep`` would run with the same arguments, with folders, sizes and progress."""
    folder, _, plan, _ = _planned(recipe, overrides, only, out)
    return dry_run(plan, folder, data_dir=data_dir)


def _planned(
    recipe: str | Path, overrides: Iterable[str], only: Sequence[str], out: str | Path | None
) -> tuple[Path, dict[str, Recipe], dict[str, Recipe], Sweep]:
    """A sweep's folder, the runs that it has already, all runs, and what sets them apart."""
    plan, described = planned_runs(str(recipe), overrides, only)
    folder = _folder(None if out is None else Path(out), plan, described)
    known = read_plan(folder)
    try:
        plan, described = extended(plan, described, known)
    except RunError as error:
        again = f"choose another folder, or resume it with: sparsona resume {shlex.quote(str(folder))}"
        raise RunError(f"{folder} holds another sweep: {error}; {again}") from error
    return folder, known, plan, described


def _folder(folder: Path | None, plan: Mapping[str, Recipe], described: Sweep) -> Path:
    """Where a sweep is to go: the folder given, where just these runs are already, or a new one."""
    if folder is None:
        base, name = Path("runs"), next(iter(plan.values())).name
        for path in sorted(base.iterdir() if base.is_dir() else (), key=lambda p: (len(p.name), p.name)):
            if path.name.rstrip("0123456789") == f"{name}-sweep-":
                with suppress(RunError):
                    if len(known := read_plan(path)) == len(plan) and extended(plan, described, known):
                        return path
        return free_folder(base, f"{name}-sweep")
    if not (folder / PLAN).is_file():
        vacant(folder)
    return folder
