"""Folders of several runs: which runs they are planned for, and where new ones go."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from sparsona.experiment.checking import COMPARISON, check_name
from sparsona.experiment.extension import check_extension, extend, why_not
from sparsona.experiment.recipe import Recipe, check, ready, tables
from sparsona.experiment.reproduce import TABLE
from sparsona.experiment.results import Run, RunError, write
from sparsona.experiment.sweep import SWEEP

PLAN = "plan.json"  # the recipes of a folder's runs, by name


def free_folder(base: Path, name: str) -> Path:
    """The first folder base/name-1, -2, ... that is not taken."""
    n = 1
    while (base / f"{name}-{n}").exists():
        n += 1
    return base / f"{name}-{n}"


def read_plan(folder: Path) -> dict[str, Recipe]:
    """The runs that a folder of several was made for; none if it is no such folder."""
    file = folder / PLAN
    if not file.is_file():
        return {}
    try:
        plan = {
            str(name): check(raw, imports=False) for name, raw in json.loads(file.read_text(encoding="utf-8")).items()
        }
        for name in plan:
            check_name("its run", name)  # each is a folder beside it, and nowhere else
        return plan
    except (ValueError, AttributeError) as error:
        raise RunError(f"{file} is damaged: {error}") from error


def write_plan(folder: Path, plan: Mapping[str, Recipe], name: str = "", text: str = "") -> None:
    """Write which runs a folder is for and, of a sweep or a table, the file ``name`` that describes them."""
    raw = {run: tables(recipe) for run, recipe in plan.items()}
    files = {PLAN: json.dumps(raw, indent=1) + "\n"} | ({name: text} if name else {})
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # killed between the two, a new folder is known by its plan, and in an old one each run planned is described
        for file in reversed(files) if (folder / PLAN).is_file() else files:
            write(folder / file, files[file])


def members(folder: Path, *, begun: bool = True) -> list[Path]:
    """The run folders that a path stands for: itself, or all of its runs; an error if some have not begun."""
    if (folder / PLAN).is_file():
        inside = [folder / name for name in read_plan(folder)]
        if begun and not all((run / "recipe.toml").is_file() for run in inside):
            raise RunError(f"{folder} is not finished; resume it with: sparsona resume {shlex.quote(str(folder))}")
        return inside
    # a shell that spells out runs/x/* also names plan.json and the comparison
    beside = folder.exists() and (folder.parent / PLAN).is_file()
    return [] if beside and folder.name in (PLAN, SWEEP, TABLE, COMPARISON) else [folder]


def check_extensions(folder: Path, rounds: int) -> list[Run]:
    """The runs of a folder that have begun; RunError if some run of the folder cannot have so many rounds."""
    plan = read_plan(folder)
    if (folder / TABLE).is_file():
        raise RunError(f"{folder} cannot be extended: it holds the runs of a paper's table; extend a single run")
    if len(counts := sorted({recipe.rounds for recipe in plan.values()} - {rounds})) > 1:
        raise RunError(
            f"{folder} cannot be extended: its runs differ in rounds, from {counts[0]} to {counts[-1]}; "
            "extend a single run"
        )
    begun = [Run.open(path) for path in members(folder, begun=False) if not plan or (path / "recipe.toml").is_file()]
    for run in begun:
        check_extension(run, rounds)
    for recipe in plan.values():  # also of those that have not begun, so that all have the same number
        if recipe.rounds < rounds and (reason := why_not(ready(recipe))):
            raise RunError(f"{folder} cannot be extended: {reason}; start new runs with rounds={rounds}")
    return begun


def extend_all(folder: Path, rounds: int) -> None:
    """Give all runs of a folder more rounds, which resuming them computes; all are checked before any is changed."""
    for run in check_extensions(folder, rounds):
        extend(run, rounds)
    if plan := read_plan(folder):
        write_plan(folder, {name: replace(recipe, rounds=rounds) for name, recipe in plan.items()})


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report a place that cannot be written to as bad input, not as a failed run."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Report records that do not have what a table needs as damaged."""
    try:
        yield
    except (KeyError, TypeError, IndexError) as error:
        raise RunError(f"{where} is damaged: {type(error).__name__} {error}") from error
