"""Shared by all commands: options, error messages, progress, and the printing of results."""

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
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as LiveProgress
from rich.status import Status

from sparsona.api.runs import RunSet, RunStart, summarised
from sparsona.engines.local import ClientFailed
from sparsona.engines.pool import WorkerDied
from sparsona.engines.store import StoreError
from sparsona.experiment.loop import Progress
from sparsona.experiment.objects import error_of_user
from sparsona.experiment.recipe import Recipe, RecipeError
from sparsona.experiment.results import plain
from sparsona.method import ContractError
from sparsona.reports.display import Printable, print_part, print_result

out = Console(emoji=False)  # "mine:three" is a name
err = Console(stderr=True, emoji=False)

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder with the data sets.", envvar="SPARSONA_DATA", show_envvar=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables and progress.")]
Only = Annotated[str | None, typer.Option("--only", help="Run only these variants (comma-separated).")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Overrides: key=value, such as method.lr=0.05")]


def examples(*commands: str) -> str:
    """The end of a command's help: one example per line."""
    return "\n\n".join(["Examples:" if len(commands) > 1 else "Example:", *commands])


_current: list[Path] = []  # the folder at work, for the last line of a run that was stopped
_began: list[bool] = []  # whether a round was done: what fails from there on is not for bad input


@contextmanager
def errors(as_json: bool) -> Iterator[None]:
    """Report an error in one clear line, and exit with the right code."""
    _current.clear()
    _began.clear()
    try:
        yield
    except (
        ValueError,
        ContractError,
    ) as error:  # RecipeError, RunError, DataError and what the parts say of their arguments
        fail(f"{error}{_hint() if _began else ''}", 1 if _began else 2, as_json)
    except (ClientFailed, WorkerDied, StoreError) as error:
        if isinstance(error, ClientFailed) and os.environ.get("SPARSONA_DEBUG"):
            err.print(error.trace, markup=False, highlight=False)
        lonely = "Expected more than 1 value per channel" in str(error)  # batch norm on a last batch of one sample
        tip = "; avoid batches of one sample with method.drop_last=true or another method.batch" if lonely else ""
        fail(f"{error}{tip}{_hint()}", 1, as_json)
    except BrokenPipeError:  # whoever read us, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        fail(f"{error.strerror or error}{where}{_hint()}", 1, as_json)
    except KeyboardInterrupt:
        fail(f"stopped{_hint()}", 1, as_json)
    except Exception as error:
        if (text := error_of_user(error)) is None or os.environ.get("SPARSONA_DEBUG"):
            raise
        fail(f"{text}{_hint()}", 1, as_json)


def _hint() -> str:
    """How to resume, if there is something to resume."""
    if not _current or not any((_current[0] / name).is_file() for name in ("plan.json", "recipe.toml")):
        return ""
    return f"; finished rounds are saved, resume with: sparsona resume {shlex.quote(str(_current[0]))}"


def fail(text: str, code: int, as_json: bool) -> NoReturn:
    """Report an error and exit."""
    if as_json:
        print_json({"error": text})
    err.print(f"error: {text}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def print_json(value: Any) -> None:
    """Print a result for scripts."""
    print(json.dumps(plain(value), allow_nan=False))


def show(result: Printable, as_json: bool) -> None:
    """Print a result, for people or for scripts."""
    if as_json:
        print_json(result.json())
    else:
        print_result(result, out)


def finish(result: RunSet, as_json: bool) -> None:
    """Print the results of runs; the exit code is 1 if one of them learnt nothing."""
    show(result, as_json)
    for line in result.failures:
        if not as_json:
            err.print(f"error: {line}", style="red", markup=False, highlight=False, soft_wrap=True)
    if result.failed:
        raise typer.Exit(1)


def say(text: str) -> None:
    """Print a status line to standard error."""
    print_part(text, err)


def listed(names: str | None) -> list[str]:
    """Comma-separated names as a list."""
    return [] if names is None else [name.strip() for name in names.split(",")]


def numbers(option: str, text: str) -> list[int]:
    """Comma-separated whole numbers as an ascending list."""
    try:
        values = [int(piece) for piece in text.split(",")]
    except ValueError:
        values = []
    if not values or len(set(values)) < len(values):
        raise RecipeError(f"{option}: {json.dumps(text)} is not allowed; expected different ints, comma-separated")
    return sorted(values)


@contextmanager
def progress_bar(name: str, total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar, on a terminal only."""
    if quiet or not err.is_terminal:
        yield lambda count: None
        return
    with LiveProgress(*_columns(), console=err, transient=True) as bar:
        task = bar.add_task(name, total=total)
        yield lambda count: bar.update(task, completed=count)


class Reporter:
    """Shows the progress of runs: a live line on a terminal, plain lines elsewhere, nothing with --json."""

    def __init__(self, as_json: bool) -> None:
        self._quiet = as_json
        self._live: Status | LiveProgress | None = None  # what is on the terminal
        self._task = TaskID(0)
        self._recipe: Recipe | None = None
        self._name = ""
        self._spent: list[float] = []  # seconds of each round of this process
        self._last = 0.0  # when the last plain line was printed

    def __enter__(self) -> Reporter:
        if err.is_terminal and not self._quiet:
            self._live = err.status("checking data and models")
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def on_run(self, start: RunStart) -> None:
        """Announce a run."""
        self._stop()
        assert start.path is not None
        assert start.folder is not None
        if start.finished:
            self._say(f"{start.path}: already finished")
            return
        if summarised(start.folder):
            self._say(f"run {start.number} of {start.count}: {start.name}")
        self.begin(start.recipe, start.path, start.folder)

    def begin(self, recipe: Recipe, path: Path, folder: Path | None = None) -> None:
        """Show a run that starts; ``folder`` is what to resume if it is stopped."""
        self._stop()
        _current[:] = [] if folder is None else [folder]
        self._recipe, self._name, self._spent, self._last = recipe, path.name, [], 0.0
        if err.is_terminal and not self._quiet:
            info = TextColumn("{task.fields[info]}", markup=False)
            self._live = LiveProgress(*_columns(), info, console=err)
            self._task = self._live.add_task(path.name, total=recipe.rounds, info="starting")
            self._live.start()

    def on_round(self, step: Progress) -> None:
        """Show a round."""
        _began[:] = [True]
        self._spent.append(step.seconds)
        now = time.monotonic()
        if isinstance(self._live, LiveProgress):
            self._live.update(self._task, completed=step.round, info=self._text(step))
        elif not self._quiet and (now - self._last >= 1 or step.round == step.rounds):
            self._last = now
            line = f"{self._name}: round {step.round}/{step.rounds}  {self._text(step)}"
            print(line, file=sys.stderr, flush=True)

    def _text(self, step: Progress) -> str:
        assert self._recipe is not None
        total = step.row["total"]
        score = step.row.get(self._recipe.evaluate.points[0])
        main = self._recipe.task.main
        reached = f"{main.title} {main.text(score[main.key])}  " if score else ""
        lost = f"{len(step.row['left_out'])} left out  " if step.row["left_out"] else ""
        if missing := step.row.get("not_tested"):
            lost += f"{len(missing)} not tested  "
        left = round(sum(self._spent) / len(self._spent) * (step.rounds - step.round))
        minutes = f"{left // 60 % 60:02}" if left >= 3600 else f"{left // 60}"
        clock = f"{f'{left // 3600}:' if left >= 3600 else ''}{minutes}:{left % 60:02}"
        return f"{reached}sent {(total['down'] + total['up']) / 1e6:.1f} MB  {lost}ETA {clock}"

    def _say(self, text: str) -> None:
        if not self._quiet:
            say(text)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _columns() -> tuple[ProgressColumn, ...]:
    return (
        SpinnerColumn(),
        TextColumn("{task.description}", style="bold", markup=False),
        BarColumn(bar_width=16),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
    )
