"""What all commands share: options, how errors are told, progress, the table of runs at the end."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from sparsona import attendance, report
from sparsona.config import COMPARISON, Recipe, RecipeError
from sparsona.engines.local import ClientFailed
from sparsona.engines.pool import WorkerDied
from sparsona.engines.store import StoreError
from sparsona.results import Run, RunError, plain
from sparsona.runner import Progress as Step

out = Console()
err = Console(stderr=True)

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder with the data sets.", envvar="SPARSONA_DATA", show_envvar=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of tables and progress.")]
Only = Annotated[
    str | None, typer.Option("--only", help="Run these variants of the recipe alone: names with commas between.")
]
Overrides = Annotated[list[str] | None, typer.Argument(help="Changes: key=value, for example method.lr=0.05 rounds=20")]


_current: list[Path] = []  # the folder at work, for the last line of a run that was stopped
_began: list[bool] = []  # whether a round was done: what fails from there on is not for bad input


def at_work(folder: Path) -> None:
    """Note where results go, so that whoever stops a run is told how to go on."""
    _current[:] = [folder]


@contextmanager
def errors(as_json: bool) -> Iterator[None]:
    """Tell errors in one clear line, and leave with the right exit code."""
    _current.clear()
    _began.clear()
    try:
        yield
    except ValueError as error:  # RecipeError, RunError, DataError and what the parts say of their arguments
        fail(f"{error}{_hint() if _began else ''}", 1 if _began else 2, as_json)
    except (ClientFailed, WorkerDied, StoreError) as error:
        if isinstance(error, ClientFailed) and os.environ.get("SPARSONA_DEBUG"):
            err.print(error.trace, markup=False, highlight=False)
        lonely = "Expected more than 1 value per channel" in str(error)  # batch norm on a last batch of one sample
        tip = "; method.drop_last=true or another method.batch avoids batches of one sample" if lonely else ""
        fail(f"{error}{tip}{_hint()}", 1, as_json)
    except BrokenPipeError:  # whoever read us, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        fail(f"{error.strerror or error}{where}{_hint()}", 1, as_json)
    except KeyboardInterrupt:
        fail(f"stopped{_hint()}", 1, as_json)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A place that cannot be written to is bad input, not a failed run."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error


def _hint() -> str:
    """How to go on, if there is something to go on with."""
    if not _current or not any((_current[0] / name).is_file() for name in ("plan.json", "recipe.toml")):
        return ""
    return f"; what was done is saved, go on with: sparsona resume {shlex.quote(str(_current[0]))}"


def fail(text: str, code: int, as_json: bool) -> NoReturn:
    """Tell an error and leave."""
    if as_json:
        print_json({"error": text})
    err.print(f"error: {text}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def print_json(value: Any) -> None:
    """Print a result for scripts."""
    print(json.dumps(plain(value), allow_nan=False))


def tell(text: str) -> None:
    """Print a line of the result as it is."""
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def say(text: str) -> None:
    """Tell what goes on, beside the results."""
    err.print(text, markup=False, highlight=False, soft_wrap=True)


def listed(names: str | None) -> list[str]:
    """Names with commas between them, as a list."""
    return [] if names is None else [name.strip() for name in names.split(",")]


def numbers(option: str, text: str) -> list[int]:
    """Whole numbers with commas between them, as an ascending list."""
    try:
        found = [int(piece) for piece in text.split(",")]
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found):
        raise RecipeError(f"{option} = {json.dumps(text)}: must be different whole numbers with commas between")
    return sorted(found)


@contextmanager
def progress_bar(name: str, total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show how far a computation is, on a terminal only."""
    if quiet or not err.is_terminal:
        yield lambda done: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", style="bold"),
        BarColumn(bar_width=16),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda done: bar.update(task, completed=done)


def free_folder(base: Path, name: str) -> Path:
    """The first folder base/name-1, -2, ... that is not taken."""
    n = 1
    while (base / f"{name}-{n}").exists():
        n += 1
    return base / f"{name}-{n}"


@contextmanager
def display(recipe: Recipe, path: Path, as_json: bool) -> Iterator[Callable[[Step], None]]:
    """Show progress: a live line on a terminal, plain lines elsewhere, nothing with --json."""
    spent: list[float] = []  # seconds of each round; starting up and what an earlier process did do not count

    def text(step: Step) -> str:
        total = step.row["total"]
        score = step.row.get(recipe.evaluate.points[0])
        accuracy = f"accuracy {100 * score['accuracy']:.1f} %  " if score else ""
        lost = f"{len(step.row['left_out'])} left out  " if step.row["left_out"] else ""
        if missing := step.row.get("not_tested"):
            lost += f"{len(missing)} not tested  "
        left = round(sum(spent) / len(spent) * (step.rounds - step.round))
        clock = (
            f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02}" if left >= 3600 else f"{left // 60}:{left % 60:02}"
        )
        return f"{accuracy}sent {(total['down'] + total['up']) / 1e6:.1f} MB  {lost}ETA {clock}"

    def heard(show: Callable[[Step], None]) -> Callable[[Step], None]:
        def listen(step: Step) -> None:
            _began[:] = [True]
            spent.append(step.seconds)
            show(step)

        return listen

    if as_json:
        yield heard(lambda step: None)
    elif err.is_terminal:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=16),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[info]}", markup=False),
        )
        with Progress(*columns, console=err) as bar:
            task: TaskID = bar.add_task(path.name, total=recipe.rounds, info="starting")
            yield heard(lambda step: bar.update(task, completed=step.round, info=text(step)))
    else:
        last = [0.0]

        def line(step: Step) -> None:
            now = time.monotonic()
            if now - last[0] >= 1 or step.round == step.rounds:
                last[0] = now
                print(f"{path.name}: round {step.round}/{step.rounds}  {text(step)}", file=sys.stderr, flush=True)

        yield heard(line)


def gain_line(gain: dict[str, Any]) -> str:
    """What clients gained over a baseline, in one line."""
    n = gain["gained"] + gain["lost"] + gain["equal"]
    if not n:
        return f"{gain['name']} against {gain['baseline']}: no client was tested in both"
    extra = gain["extra_mb"]
    price = f"{abs(extra):.1f} MB {'more' if extra > 0 else 'less'}" if abs(extra) >= 0.05 else "the same bytes"
    return (
        f"{gain['name']} against {gain['baseline']}: {gain['gained']} of {n} clients gained, "
        f"{gain['lost']} lost; {gain['mean_gain']:+.1f} points on average for {price}"
    )


def show_runs(runs: list[Run], folder: Path, as_json: bool) -> None:
    """Print how runs ended, side by side."""
    tested = [r for r in runs if r.summary["accuracy"] is not None]
    where = folder / COMPARISON
    several = len(runs) > 1 and bool(tested)
    table = report.compare(tested, where if several else None) if tested else None
    gains = report.gains(tested) if several else []
    if as_json:
        told: dict[str, Any] = {"folder": str(folder), "runs": [{"run": str(r.path), **r.summary} for r in runs]}
        print_json(told | ({"comparison": str(where), "gains": gains} if several else {}))
        return
    if table is not None:
        out.print(table.rich())
    for r in runs:
        if r not in tested:
            tell(f"{r.path.name}: no client was ever tested")
    for gain in gains:
        tell(gain_line(gain))
    for r in runs:
        for line in attendance.in_words(r):
            tell(f"{r.path.name}: {line}" if len(runs) > 1 else line)
    tell(f"results: {folder}")
    if several:
        tell(f"tables and pictures: {where}")
    if gains:
        tell(f"who gained: {where / 'gain.png'}")
