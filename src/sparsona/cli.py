"""The command line: ``sparsona --help``. Exit codes: 0 done, 1 failed, 2 bad input."""

from __future__ import annotations

import dataclasses
import inspect
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from sparsona import report
from sparsona.config import Recipe, RecipeError, check, load, read, recipe_names, tables, to_toml
from sparsona.data import build
from sparsona.data.picture import label_picture, label_table
from sparsona.engines.local import ClientFailed
from sparsona.engines.pool import WorkerDied
from sparsona.engines.store import StoreError
from sparsona.methods import METHODS
from sparsona.models import MODELS
from sparsona.results import Run, RunError, write
from sparsona.runner import Progress as Step
from sparsona.runner import resume as resume_run
from sparsona.runner import run as run_recipe

app = typer.Typer(
    name="sparsona",
    help="Sparse personalised federated learning: one small model per device.",
    epilog="Try: sparsona run quickstart",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
out = Console()
err = Console(stderr=True)

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder with the data sets.", envvar="SPARSONA_DATA", show_envvar=True)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts instead of tables and progress.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="Changes: key=value, for example method.lr=0.05 rounds=20")]


@app.command(epilog="Examples: sparsona run quickstart | sparsona run quickstart rounds=5 seed=2 --out runs/mine")
def run(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (sparsona recipes) or a TOML file.")],
    overrides: Overrides = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Run folder; default runs/NAME-1, -2, ...")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A model's name or your own package.module:Class.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run a recipe, with progress, into a folder of its own."""
    with _errors(as_json):
        changes = [*(overrides or ()), *([] if model is None else [f'model.name="{model}"'])]
        plan = load(recipe, changes)
        target = folder or _free(Path("runs"), next(iter(plan.values())).name)
        if len(plan) == 1:
            runs = [_run(next(iter(plan.values())), target, data_dir, as_json)]
        else:
            if target.exists() and any(target.iterdir()):
                raise RunError(f"{target} is not empty: choose another folder, or go on with: sparsona resume {target}")
            target.mkdir(parents=True, exist_ok=True)
            write(target / "plan.json", json.dumps({name: tables(r) for name, r in plan.items()}, indent=1) + "\n")
            runs = _run_plan(target, data_dir, as_json)
        _end(runs, target, as_json)


@app.command(epilog="Example: sparsona resume runs/quickstart-1")
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of an interrupted run.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Go on with an interrupted run from its last checkpoint; the result is the same to the bit."""
    with _errors(as_json):
        if (folder / "plan.json").is_file():
            runs = _run_plan(folder, data_dir, as_json)
        else:
            runs = [_resume(folder, data_dir, as_json)]
        _end(runs, folder, as_json)


@app.command(epilog="Example: sparsona compare runs/quickstart-1/* --target 0.9 --out comparison")
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Run folders; the first is the baseline.")],
    folder: Annotated[Path | None, typer.Option("--out", help="Write CSV, Markdown and PNGs here.")] = None,
    target: Annotated[float | None, typer.Option(help="Accuracy in (0, 1] whose cost is told.", min=0, max=1)] = None,
    as_json: Json = False,
) -> None:
    """Compare finished runs: one table, and CSV, Markdown and pictures in a folder."""
    with _errors(as_json):
        paths = [p for f in folders for p in _members(f)]
        table = report.compare([Run.open(p) for p in paths], folder, target=target)
        if as_json:
            print(json.dumps(table.json()))
            return
        out.print(table.rich())
        if folder is not None:
            out.print(f"written to [bold]{folder}[/bold]")


@app.command(epilog="Example: sparsona methods")
def methods(as_json: Json = False) -> None:
    """List the methods."""
    rows = [(name, _about(kind)) for name, kind in sorted(METHODS.items())]
    _list(("method", "what it does"), rows, as_json)


@app.command(epilog="Example: sparsona models")
def models(as_json: Json = False) -> None:
    """List the models that come with Sparsona."""
    rows = [(name, entry.about) for name, entry in MODELS.items()]
    _list(("model", "what it is"), rows, as_json)


@app.command(epilog="Example: sparsona recipes")
def recipes(as_json: Json = False) -> None:
    """List the recipes that come with Sparsona."""
    rows = [(name, str(read(name).get("description", ""))) for name in recipe_names()]
    _list(("recipe", "what it shows"), rows, as_json)


@app.command(epilog="Examples: sparsona show ditto | sparsona show quickstart | sparsona show runs/quickstart-1/shared")
def show(
    name: Annotated[str, typer.Argument(help="A method, a recipe or a run folder.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Show a method's fields, a recipe with all of its defaults, or how a run ended."""
    with _errors(as_json):
        if name in METHODS and not Path(name).exists():
            _show_method(name, as_json)
        elif (Path(name) / "recipe.toml").is_file():
            run = Run.open(Path(name))
            shown = run.summary if run.finished else {"rounds": len(run.rounds), "finished": False}
            print(json.dumps(shown, indent=None if as_json else 1))
        else:
            plan = {variant: tables(r) for variant, r in load(name, overrides or ()).items()}
            if as_json:
                print(json.dumps(plan))
                return
            for variant, raw in plan.items():
                print(f"# {variant}\n{to_toml(raw)}")


@app.command(epilog="Examples: sparsona data quickstart | sparsona data quickstart data.alpha=0.1 --out labels.png")
def data(
    recipe: Annotated[str, typer.Argument(help="A recipe's name or a TOML file.")],
    overrides: Overrides = None,
    picture: Annotated[Path, typer.Option("--out", help="Where the picture goes.")] = Path("labels.png"),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show who holds what: a table and a picture of the labels of each client."""
    with _errors(as_json):
        chosen = next(iter(load(recipe, overrides or ()).values()))
        fleet = build(chosen.data, chosen.seed, data_dir)
        label_picture(fleet, picture)
        rows = label_table(fleet)
        if as_json:
            print(json.dumps({"clients": rows, "picture": str(picture)}))
            return
        table = Table(title=f"{chosen.data.source}, {fleet.clients} clients, {chosen.data.partition}")
        for column in rows[0]:
            table.add_column(column, justify="left" if column == "labels" else "right")
        for row in rows:
            table.add_row(*(str(v) for v in row.values()))
        out.print(table)
        out.print(f"picture: [bold]{picture}[/bold]")


def main() -> None:
    """Entry point."""
    for stop in (signal.SIGTERM, signal.SIGHUP):  # a machine that shuts down is like Ctrl-C: save, then go
        signal.signal(stop, _stop)
    app()


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _errors(as_json: bool) -> Iterator[None]:
    """Tell errors in one clear line, and leave with the right exit code."""
    try:
        yield
    except (RecipeError, RunError) as error:
        _fail(str(error), 2, as_json)
    except (ClientFailed, WorkerDied, StoreError) as error:
        _fail(f"{error}{_hint()}", 1, as_json)
    except ValueError as error:
        _fail(str(error), 2, as_json)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        _fail(f"{error.strerror or error}{where}{_hint()}", 1, as_json)
    except KeyboardInterrupt:
        _fail(f"stopped{_hint()}", 1, as_json)


_current: list[Path] = []  # the folder to resume, for the last line of a run that was stopped


def _hint() -> str:
    return f"; rounds that were done are saved, go on with: sparsona resume {_current[0]}" if _current else ""


def _fail(text: str, code: int, as_json: bool) -> NoReturn:
    if as_json:
        print(json.dumps({"error": text}))
    err.print(f"error: {text}", style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def _free(base: Path, name: str) -> Path:
    """The first folder base/name-1, -2, ... that is not taken."""
    n = 1
    while (base / f"{name}-{n}").exists():
        n += 1
    return base / f"{name}-{n}"


def _members(folder: Path) -> list[Path]:
    """The runs in a folder: itself, or those of its plan."""
    plan = folder / "plan.json"
    return [folder / name for name in json.loads(plan.read_text())] if plan.is_file() else [folder]


def _run_plan(folder: Path, data_dir: Path | None, as_json: bool) -> list[Run]:
    """Run what a plan still lacks."""
    _current[:] = [folder]
    try:
        plan = {name: check(raw) for name, raw in json.loads((folder / "plan.json").read_text()).items()}
    except (json.JSONDecodeError, AttributeError) as error:
        raise RunError(f"{folder / 'plan.json'} is damaged: {error}") from error
    runs = []
    for name, recipe in plan.items():
        path = folder / name
        begun = (path / "recipe.toml").is_file() and (path / "run.json").is_file()
        if begun:
            runs.append(_resume(path, data_dir, as_json, top=folder))
        else:
            runs.append(_run(recipe, path, data_dir, as_json, top=folder))
    return runs


def _run(recipe: Recipe, path: Path, data_dir: Path | None, as_json: bool, top: Path | None = None) -> Run:
    with _display(recipe, path, as_json) as listen:
        done = run_recipe(recipe, path, data_dir=data_dir, listen=lambda s: _heard(s, listen, top or path))
        assert isinstance(done, Run)
        return done


def _resume(path: Path, data_dir: Path | None, as_json: bool, top: Path | None = None) -> Run:
    run = Run.open(path)
    if run.finished:
        if not as_json:
            err.print(f"{path}: already done", markup=False)
        return run
    _current[:] = [top or path]
    with _display(run.recipe, path, as_json) as listen:
        return resume_run(path, data_dir=data_dir, listen=listen)


def _heard(step: Step, listen: Any, top: Path) -> None:
    _current[:] = [top]  # from the first round on there is something to resume
    listen(step)


@contextmanager
def _display(recipe: Recipe, path: Path, as_json: bool) -> Iterator[Any]:
    """Show progress: a live line on a terminal, plain lines elsewhere, nothing with --json."""
    title = path.name

    def text(step: Step) -> str:
        total = step.row["total"]
        score = step.row.get(recipe.evaluate.points[0])
        accuracy = f"accuracy {100 * score['accuracy']:5.1f} %  " if score else ""
        lost = f"  left out {step.row['left_out']}" if step.row["left_out"] else ""
        return f"{accuracy}sent {(total['down'] + total['up']) / 1e6:.1f} MB{lost}"

    if as_json:
        yield lambda step: None
    elif err.is_terminal:
        columns = (
            SpinnerColumn(),
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
            TextColumn("{task.fields[info]}"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=err) as bar:
            task: TaskID = bar.add_task(title, total=recipe.rounds, info="starting")
            yield lambda step: bar.update(task, completed=step.round, info=text(step))
    else:
        last = [0.0]
        began = time.monotonic()
        first: list[int] = []

        def line(step: Step) -> None:
            first[:] = first or [step.round - 1]
            now = time.monotonic()
            if now - last[0] >= 1 or step.round == step.rounds:
                last[0] = now
                left = (now - began) / (step.round - first[0]) * (step.rounds - step.round)
                print(f"{title}: round {step.round}/{step.rounds}  {text(step)}  ETA {left:.0f} s", file=sys.stderr)

        yield line


def _end(runs: list[Run], folder: Path, as_json: bool) -> None:
    """Print how it ended."""
    if len(runs) == 1:
        run = runs[0]
        if as_json:
            print(json.dumps({"run": str(run.path), **run.summary}))
            return
        out.print(report.compare(runs, None).rich())
        out.print(f"results: [bold]{run.path}[/bold]")
        return
    where = folder / "compare"
    table = report.compare(runs, where)
    if as_json:
        print(json.dumps({"runs": [{"run": str(r.path), **r.summary} for r in runs]}))
        return
    out.print(table.rich())
    for gain in report.gains(runs):
        out.print(_gain(gain), highlight=False)
    out.print(f"pictures: [bold]{where}[/bold] (who gained: [bold]{where / 'gain.png'}[/bold])")


def _gain(gain: dict[str, Any]) -> str:
    n = gain["gained"] + gain["lost"] + gain["equal"]
    return (
        f"[bold]{gain['name']}[/bold] against {gain['baseline']}: {gain['gained']} of {n} clients gained, "
        f"{gain['lost']} lost; {gain['mean_gain']:+.1f} points on average at {gain['extra_mb']:+.1f} MB"
    )


def _about(kind: type) -> str:
    """The first sentence of a method's module."""
    module = inspect.getmodule(kind)
    return (module.__doc__ or "").strip().split("\n")[0] if module else ""


def _list(head: tuple[str, str], rows: list[tuple[str, str]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(dict(rows)))
        return
    table = Table(*head)
    for row in rows:
        table.add_row(*row)
    out.print(table)


def _show_method(name: str, as_json: bool) -> None:
    kind = METHODS[name]
    fields = {f.name: f.default for f in dataclasses.fields(kind)}
    if as_json:
        print(json.dumps({"name": name, "about": _about(kind), "fields": fields}))
        return
    out.print(f"[bold]{name}[/bold]: {_about(kind)}")
    table = Table(
        "field", "type", "default", title=f"\\[method] of a recipe, or method.FIELD=VALUE ({kind.__module__})"
    )
    for f in dataclasses.fields(kind):
        table.add_row(f.name, str(f.type), str(f.default))
    out.print(table)
