"""The command line: ``sparsona --help``. Exit codes: 0 done, 1 failed, 2 bad input."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shlex
import signal
import sys
import typing
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

import sparsona
from sparsona import report
from sparsona.checks import CHECKS, Line
from sparsona.config import (
    COMPARISON,
    Recipe,
    RecipeError,
    allowed,
    check,
    load,
    named,
    nearest,
    read,
    recipe_names,
    required,
    tables,
    to_toml,
    variants,
)
from sparsona.costs import Device
from sparsona.data import build
from sparsona.fleet.commands import app as fleet_app
from sparsona.methods import METHODS
from sparsona.methods.perfedmask import PerFedMask
from sparsona.models import MODELS
from sparsona.reproduce import TABLE, Reproduction, load_table, result, table_names
from sparsona.reproduce import plan as plan_table
from sparsona.results import Run, RunError, plain, vacant, write
from sparsona.runner import prepare, verify
from sparsona.runner import resume as resume_run
from sparsona.runner import run as run_recipe
from sparsona.sheet import Sheet
from sparsona.simulate import Estimate, Pick, Waiting, at_once, waiting
from sparsona.sweep import SWEEP, Setting, Sweep, difference, extended
from sparsona.sweep import plan as plan_sweep
from sparsona.sweep import table as sweep_table
from sparsona.terminal import (
    DataDir,
    Json,
    Only,
    Overrides,
    at_work,
    display,
    err,
    errors,
    free_folder,
    gain_line,
    listed,
    numbers,
    out,
    print_json,
    progress_bar,
    say,
    show_runs,
    tell,
    writing,
)

app = typer.Typer(
    name="sparsona",
    help="Sparse personalised federated learning: one small model per device.",
    epilog="Try: sparsona run quickstart",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(fleet_app, name="fleet")


def _told(device: Device) -> str:
    return ",".join(f"{name}={value:g}" for name, value in dataclasses.asdict(device).items())


def _version(wanted: bool) -> None:
    if wanted:
        print(f"sparsona {sparsona.__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", callback=_version, is_eager=True)] = (
        False
    ),
) -> None:
    pass


@app.command(epilog="Examples: sparsona run quickstart | sparsona run quickstart rounds=5 seed=2 --out runs/mine")
def run(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (sparsona recipes) or a TOML file.")],
    overrides: Overrides = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Run folder; default runs/NAME-1, -2, ...")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A model's name or your own package.module:Class.")
    ] = None,
    only: Only = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run a recipe, with progress, into a folder of its own."""
    with errors(as_json):
        changes = [*(overrides or ()), *([] if model is None else [f"model.name={json.dumps(model)}"])]
        plan = load(recipe, changes, listed(only))
        variant, first = next(iter(plan.items()))
        if only is not None and len(plan) == 1:
            first = dataclasses.replace(first, name=f"{first.name}-{variant}"[:100])
        target = folder or free_folder(Path("runs"), first.name)
        vacant(target)
        if len(plan) == 1:
            runs = [_run(first, target, data_dir, as_json)]
        else:
            _try(plan, data_dir)
            _write_plan(target, plan)
            runs = _run_plan(target, data_dir, as_json)
        _end(runs, target, as_json)


@app.command(
    epilog="Examples: sparsona sweep quickstart method.lr=0.05,0.1 seed=1,2,3 | "
    "sparsona sweep quickstart variants.personal.method.pull=0.1,0.5,1.0 seed=1,2 rounds=20 --out runs/pull"
)
def sweep(
    recipe: Annotated[str, typer.Argument(help="A recipe's name (sparsona recipes) or a TOML file.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Changes: key=a,b,c for a run with each value, key=value for all runs alike."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the runs; default runs/NAME-sweep-1, -2, ...")
    ] = None,
    only: Only = None,
    goal: Annotated[
        float | None, typer.Option("--target", help="Accuracy whose cost is told: above 0, at most 1.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run all combinations of values listed and tell means and deviations over seeds; again to go on or add more."""
    with errors(as_json):
        if goal is not None and not 0 < goal <= 1:
            raise RecipeError(f"target = {goal}: must be above 0 and at most 1")
        plan, made = plan_sweep(recipe, overrides or (), listed(only))
        target = _sweep_folder(folder, plan, made)
        known = _plan(target)
        try:
            plan, made = extended(plan, made, known)
        except RunError as error:
            again = f"choose another folder, or go on with what is there: sparsona resume {shlex.quote(str(target))}"
            raise RunError(f"{target} holds another sweep: {error}; {again}") from error
        added = len(plan) - len(known)
        if added:
            _try({name: recipe for name, recipe in plan.items() if name not in known}, data_dir)
        if known and not as_json:
            done = sum(Run(target / name).finished for name in known)
            more = f", and adding {added}" if added else ""
            say(f"{target} holds this sweep, {done} of {len(known)} runs done: going on with it{more}")
        _write_plan(target, plan, SWEEP, made.json())
        _end(_run_plan(target, data_dir, as_json), target, as_json, goal)


@app.command(
    epilog="Examples: sparsona reproduce | sparsona reproduce fedspa/table1 --only emnist,dst --seeds 1,2 | "
    "sparsona reproduce dadpfl/table3 --rounds 50 --dry-run"
)
def reproduce(
    table: Annotated[
        str | None, typer.Argument(help="A table's name or a TOML file; without it, all names are listed.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option("--only", help="These columns and rows alone: names with commas between, or how columns begin."),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds with commas between, instead of the table's own.")] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of every run, instead of the recipes' own, to see something soon.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the runs; default runs/PAPER-TABLE.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what would be run and what is done, no more.")] = (
        False
    ),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run a table of a paper from its recipes, and tell what is printed, what came out and the difference."""
    with errors(as_json):
        if table is None:
            found = {name: load_table(name) for name in table_names()}
            _list(("table", "what it shows"), [(n, f"{t.source}: {t.title}") for n, t in found.items()], as_json)
            return
        chosen = None if seeds is None else numbers("seeds", seeds)
        plan, made = plan_table(table, listed(only), chosen or (), rounds)
        short = table.replace("/", "-") if table in table_names() else Path(table).stem
        target = folder or Path("runs") / (short if rounds is None else f"{short}-{rounds}-rounds")
        known = _plan(target)
        made = _joined(target, known, plan, made)
        if dry_run:
            _dry_run(target, plan, as_json)
            return
        _try({name: recipe for name, recipe in plan.items() if name not in known}, data_dir)
        _write_plan(target, known | plan, TABLE, made.json())
        _end_table(_run_plan(target, data_dir, as_json, plan), target, as_json)


@app.command(epilog="Example: sparsona resume runs/quickstart-1")
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of an interrupted run.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Go on with an interrupted run from its last checkpoint; the result is the same to the bit."""
    with errors(as_json):
        if (folder / "plan.json").is_file():
            runs = _run_plan(folder, data_dir, as_json)
        else:
            runs = [_resume(folder, data_dir, as_json)]
        _end(runs, folder, as_json)


@app.command(
    epilog="Examples: sparsona compare runs/quickstart-1 --target 0.9 | sparsona compare runs/a runs/b --out c"
)
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs or sweeps; the first run is the baseline.")],
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Where CSV, Markdown and PNGs go; default comparison, or in the one folder given."),
    ] = None,
    target: Annotated[float | None, typer.Option(help="Accuracy whose cost is told: above 0, at most 1.")] = None,
    device: Annotated[
        str | None,
        typer.Option(help=f"What time and energy are told for, all or some of: {_told(Device())}", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare finished runs, and sweeps by means over seeds: one table, and CSV, Markdown and pictures in a folder."""
    with errors(as_json):
        chosen = Device() if device is None else Device.parse(device)
        if folder is None:
            whole = len(folders) == 1 and (folders[0] / "plan.json").is_file()
            folder = folders[0] / COMPARISON if whole else Path("comparison")
        given = [(path, found) for path in folders if (found := [Run.open(p) for p in _members(path)])]
        if not given:
            raise RunError("none of the paths given is a run folder")
        swept = any((path / SWEEP).is_file() for path, _ in given)
        table: Sheet
        gains: list[dict[str, Any]] = []
        try:
            if swept:
                table = sweep_table(_settings(given), folder, target, None if device is None else chosen)
            else:
                runs = [run for _, found in given for run in found]
                for run in runs:
                    if run.summary["accuracy"] is None:
                        raise RunError(
                            f"{run.path}: no client was ever tested in this run, so there is nothing to compare"
                        )
                table = report.compare(runs, folder, target=target, device=None if device is None else chosen)
                gains = report.gains(runs)
        except (KeyError, TypeError, IndexError) as error:
            raise RunError(f"one of these run folders is damaged: {type(error).__name__} {error}") from error
        if not table.rows:
            raise RunError("no client was ever tested in any of these runs, so there is nothing to compare")
        if as_json:
            told = {"rows" if swept else "runs": table.json(), "notes": table.notes, "folder": str(folder)}
            print_json(told | ({} if swept else {"gains": gains}) | {"device": dataclasses.asdict(chosen)})
            return
        out.print(table.rich())
        for gain in gains:
            tell(gain_line(gain))
        tell(f"tables and pictures: {folder}")


@app.command("export", epilog="Example: sparsona export runs/a --client 7 --to seven.onnx")
def export_model(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    client: Annotated[int, typer.Option(help="Whose model, by number from 0.")],
    to: Annotated[Path, typer.Option(help="The file: NAME.safetensors or NAME.onnx.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Write a client's personal model into a file, as small as it is, to be used elsewhere."""
    from sparsona.export import export

    with errors(as_json), writing(to):
        _written(export(Run.open(folder), client, to, data_dir), as_json)


@app.command(
    epilog="Examples: sparsona adapt runs/a --data mine.npz | "
    "sparsona adapt runs/a --data mine.npz --to mine.onnx fleet.adapt_epochs=5 method.keep=0.3"
)
def adapt(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    samples: Annotated[Path, typer.Option("--data", help="The newcomer's samples: .npz with x and y as in the run.")],
    overrides: Overrides = None,
    to: Annotated[
        Path | None, typer.Option(help="Where its model goes, NAME.safetensors or NAME.onnx; by default nowhere.")
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Personalise for a client that was never part of a run, test its model and write it."""
    from sparsona.export import adapt as welcome

    with errors(as_json):
        _written(welcome(Run.open(folder), samples, to, overrides or (), data_dir), as_json)


def _written(told: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(told)
        return
    if "accuracy" in told:
        tell(f"accuracy {told['accuracy']:.1%} on its test samples; {told['train_samples']} to adapt with")
    if "file" in told:
        tell(f"{told['parameters']:,} parameters, {told['nbytes']:,} bytes, {told['which']}: {told['file']}")


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
    with errors(as_json):
        rows = [(name, str(read(name).get("description", ""))) for name in recipe_names()]
        _list(("recipe", "what it shows"), rows, as_json)


@app.command(epilog="Examples: sparsona show ditto | sparsona show quickstart | sparsona show runs/quickstart-1/shared")
def show(
    name: Annotated[str, typer.Argument(help="A method, a section such as topology, a recipe or a run folder.")],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Show what can be set of a method or in a section, a recipe with all of its defaults, or how a run ended."""
    with errors(as_json):
        path = Path(name)
        if name in METHODS and not path.exists():
            _show_fields(name, METHODS[name], "method", as_json)
        elif name in _sections() and not path.exists():
            _show_fields(name, _sections()[name], name, as_json)
        elif any((path / marker).is_file() for marker in ("recipe.toml", "plan.json")):
            _show_runs(path, as_json)
        elif not path.is_file() and name not in recipe_names():
            known = nearest(name, [*METHODS, *_sections(), *recipe_names()])
            raise RecipeError(f"{json.dumps(name)}: no such method, section, recipe, file or run folder{known}")
        else:
            plan = {variant: tables(r) for variant, r in load(name, overrides or ()).items()}
            if as_json:
                print_json(plan)
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
    from sparsona.data.picture import label_picture, label_table  # drawing is slow to import

    with errors(as_json):
        plan = load(recipe, overrides or ())
        name, chosen = next(iter(plan.items()))
        fleet = build(chosen.data, chosen.seed, data_dir)
        with writing(picture):
            picture.parent.mkdir(parents=True, exist_ok=True)
            label_picture(fleet, picture)
        rows = [row._asdict() for row in label_table(fleet)]
        if as_json:
            print_json({"clients": rows, "picture": str(picture)})
            return
        table = Table(title=f"{chosen.data.source}, {fleet.clients} clients, {chosen.data.partition}")
        for column in rows[0]:
            table.add_column(column, justify="left" if column in ("client", "labels") else "right")
        for row in rows:
            table.add_row(*(escape(str(v)) for v in row.values()))
        out.print(table)
        if any((r.data, r.seed) != (chosen.data, chosen.seed) for r in plan.values()):
            tell(f"note: this is variant {name}; other variants have other data")
        tell(f"picture: {picture}")


@app.command(
    epilog="Examples: sparsona masks perfedmask/small/main | "
    "sparsona masks perfedmask/small/main method.budget=0.2 method.strong=0.3 | "
    "sparsona masks perfedmask/small/masks --only random --out r.png | "
    "sparsona masks perfedmask/small/main --measure --step 1.5"
)
def masks(
    recipe: Annotated[str, typer.Argument(help="A recipe of PerFedMask, by name or as a TOML file.")],
    overrides: Overrides = None,
    only: Annotated[str | None, typer.Option("--only", help="The variant of the recipe to show.")] = None,
    picture: Annotated[Path, typer.Option("--out", help="Where the picture goes.")] = Path("masks.png"),
    measure: Annotated[
        bool, typer.Option("--measure", help="Time training steps on this device instead, by budget.")
    ] = False,
    step: Annotated[
        float | None,
        typer.Option("--step", help="With --measure: milliseconds that a step may take; a budget is proposed."),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show who trains which layers, as a table and a picture; or find the budget that suits this device."""
    from sparsona.layers import kinds, layer_names, mask_picture, proposed, spans, timed  # drawing is slow to import

    with errors(as_json):
        if step is not None and not (measure and step > 0):
            raise RecipeError(f"step = {step:g}: must be above 0, and is for --measure")
        raw = variants(recipe, listed(only))
        kinds_of = {n: METHODS.get(table.get("method", {}).get("name", ""), object) for n, table in raw.items() if n}
        masked = [n for n, kind in kinds_of.items() if issubclass(kind, PerFedMask)]
        plan = load(recipe, overrides or (), masked[:1] or listed(only))  # changes need not suit the other variants
        name, chosen = next(((n, r) for n, r in plan.items() if isinstance(r.method, PerFedMask)), (None, None))
        if chosen is None or name is None or not isinstance(chosen.method, PerFedMask):
            what = f"variant {only}" if only else json.dumps(recipe)
            raise RecipeError(f"{what}: no layer masks are designed there; the method perfedmask is needed")
        device, fleet = prepare(chosen, data_dir)
        layout = device.task.layout
        verify(chosen, device, fleet.clients)
        if measure:
            steps = timed(chosen.method, device.task, device.theta0, fleet.local(0).train)
            best = None if step is None else proposed(steps, step)
            if as_json:
                rows = [dataclasses.asdict(each) for each in steps]
                print_json({"steps": rows, "step": step, "budget": None if best is None else best.budget})
                return
            table = Table(title=f"a step of {chosen.model.name} on this device, batches of {chosen.method.batch}")
            for column in ("budget", "parameters", "milliseconds", "of the first"):
                table.add_column(column, justify="right")
            for each in steps:
                share = f"{each.milliseconds / steps[0].milliseconds:.2f}"
                table.add_row(f"{each.budget:g}", f"{each.trained:,}", f"{each.milliseconds:.2f}", share)
            out.print(table)
            if step is None:
                tell(f"for other devices that are to keep up with this one: --step {steps[0].milliseconds:.2f}")
            elif best is None:
                tell(f"no budget keeps a step within {step:g} ms here; let this device make fewer passes")
            else:
                tell(f"proposed: method.budget = {best.budget:g} for this device")
            return
        found = chosen.method.design(fleet.clients, layout, device.ctx(0, "start").common)
        names = layer_names(layout, len(found.problem.sizes))
        with writing(picture):
            picture.parent.mkdir(parents=True, exist_ok=True)
            mask_picture(found, names, picture)
        alike = kinds(found)
        if as_json:
            told = {"bias": found.bias, "slack": sum(found.slack), "bound": found.bound, "gap": found.gap}
            layers = [{"name": n, "parameters": size} for n, size in zip(names, found.problem.sizes, strict=True)]
            devices = [kind.json() for kind in alike]
            print_json({"variant": name, "layers": layers, "devices": devices, **told, "picture": str(picture)})
            return
        table = Table(
            title=f"{name}: {fleet.clients} devices, {len(names)} layers of {found.problem.body:,} parameters"
        )
        for column in ("devices", "budget", "trained", "slack", "layers (from the input on)"):
            table.add_column(column, justify="right" if column in ("budget", "trained", "slack") else "left")
        for kind in alike:
            marks = "".join("#" if trains else "." for trains in kind.layers)
            table.add_row(spans(kind.devices), *(f"{n:,}" for n in (kind.budget, kind.trained, kind.slack)), marks)
        out.print(table)
        if found.gap is None:
            gap = "not comparable, for some device trains nothing that could"
        else:
            gap = "proven to be least" if found.proven else f"at most {100 * found.gap:.1f} % less would be possible"
        tell(f"bias {found.bias:,.0f}, slack {sum(found.slack):,}, together {found.objective:,.0f}: {gap}")
        if len(masked) > 1:
            tell(f"note: this is variant {name}; others by --only: {', '.join(masked[1:])}")
        tell(f"picture: {picture}")


@app.command(epilog="Examples: sparsona topology | sparsona topology --neighbours 5,10 --waits 0,1,5 --draws 10000")
def topology(
    clients: Annotated[int, typer.Option(help="Clients in a round, K.")] = 100,
    neighbours: Annotated[str, typer.Option(help="How many others each one reads, M.")] = "1,2,5,10,20",
    waits: Annotated[str, typer.Option(help="For how many of them it waits at most, N.")] = "0,1,2,5,10",
    draws: Annotated[int, typer.Option(help="Random graphs to take the mean over.")] = 1000,
    pick: Annotated[
        str, typer.Option(help='Whom to wait for: "fastest", or "smallest id", first in order.')
    ] = "fastest",
    seed: Annotated[int, typer.Option(help="What the draws depend on.")] = 1,
    picture: Annotated[Path, typer.Option("--out", help="Where the picture goes.")] = Path("topology.png"),
    as_json: Json = False,
) -> None:
    """Simulate rounds without a server: how many clients start at once, and how long waiting makes a round."""
    with errors(as_json):
        sizes, most = numbers("neighbours", neighbours), numbers("waits", waits)
        with progress_bar("topology", draws, quiet=as_json) as listen:
            found = waiting(clients, sizes, most, draws, pick=typing.cast(Pick, pick), seed=seed, listen=listen)
        with writing(picture):
            picture.parent.mkdir(parents=True, exist_ok=True)
            report.waiting_figure(found, picture)
        if as_json:
            print_json(_waiting_rows(found) | {"picture": str(picture)})
            return
        out.print(_waiting_table(found, most))
        tell(f"picture: {picture}")


@app.command("check", epilog="Examples: sparsona check | sparsona check fedspa --json")
def check_papers(
    name: Annotated[str | None, typer.Argument(help=f"A paper: {', '.join(CHECKS)}; default all.")] = None,
    as_json: Json = False,
) -> None:
    """Recompute the figures of papers that need no training; exit code 1 if one differs that should not."""
    with errors(as_json):
        if name is not None and name not in CHECKS:
            raise RecipeError(f"{json.dumps(name)}: no such check{nearest(name, CHECKS)}")
        found = {paper: list(CHECKS[paper]()) for paper in (CHECKS if name is None else [name])}
        if as_json:
            print_json([{"check": paper, **line.json()} for paper, lines in found.items() for line in lines])
        else:
            for paper, lines in found.items():
                _show_lines((CHECKS[paper].__doc__ or paper).rstrip("."), lines)
        if any(line.failed for lines in found.values() for line in lines):
            raise typer.Exit(1)


def main() -> None:
    """Entry point."""
    for stop in (signal.SIGTERM, signal.SIGHUP):  # a machine that shuts down is like Ctrl-C: save, then go
        signal.signal(stop, _stop)
    here = str(Path.cwd())
    if here not in sys.path:  # for --model; last, so that no file here can hide a module that we need
        sys.path.append(here)
    warnings.showwarning = lambda message, *_: err.print(f"warning: {message}", style="yellow", markup=False)
    app()


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _waiting_rows(found: Waiting) -> dict[str, Any]:
    """A simulation as plain values."""
    told = {name: getattr(found, name) for name in ("clients", "draws", "pick", "seed")}
    return told | {
        "parallelism": [
            {"neighbours": m, **dataclasses.asdict(e), "exact": at_once(m)} for m, e in found.parallelism.items()
        ],
        "delay": [{"neighbours": m, "wait": n, **dataclasses.asdict(e)} for (m, n), e in found.delay.items()],
    }


def _waiting_table(found: Waiting, waits: list[int]) -> Table:
    """Neighbours down, waits across: the length of a round; nobody can wait for more than it reads."""

    gap = " " if out.width >= 45 + 15 * len(waits) else "\n"

    def shown(e: Estimate | None, scale: float = 1) -> str:
        if e is None:
            return ""
        return f"{scale * e.mean:.2f}" + (f"{gap}± {scale * e.error:.2f}" if e.error else "")

    table = Table(
        title=f"{found.clients} clients, each waits for the {found.pick}; mean of {found.draws} draws ± standard error",
        caption="N = ...: length of a round in training times, if each reads M others and waits for N at most",
        box=box.SIMPLE_HEAD,
    )
    for head in ("M", "at once %", "expected %", *(f"N = {n}" for n in waits), "N = M"):
        table.add_column(head, justify="right", no_wrap=head.startswith("N"))
    for m, share in found.parallelism.items():
        cells = [found.delay.get((m, n)) for n in (*waits, m)]
        table.add_row(str(m), shown(share, 100), f"{100 * at_once(m):.2f}", *map(shown, cells))
    return table


def _sweep_folder(folder: Path | None, plan: dict[str, Recipe], made: Sweep) -> Path:
    """Where a sweep is to go: the folder given, where just these runs are already, or a new one."""
    if folder is None:
        base, name = Path("runs"), next(iter(plan.values())).name
        for path in sorted(base.iterdir() if base.is_dir() else (), key=lambda p: (len(p.name), p.name)):
            if path.name.rstrip("0123456789") == f"{name}-sweep-":
                with suppress(RunError):
                    if len(known := _plan(path)) == len(plan) and extended(plan, made, known):
                        return path
        return free_folder(base, f"{name}-sweep")
    if not (folder / "plan.json").is_file():
        vacant(folder)
    return folder


def _joined(folder: Path, known: dict[str, Recipe], plan: dict[str, Recipe], made: Reproduction) -> Reproduction:
    """A table's runs and those that its folder has already; raises RunError if the two do not go together."""
    elsewhere = "choose another folder with --out"
    if not (folder / "plan.json").is_file():
        vacant(folder)
    elif (folder / TABLE).is_file():
        there = Reproduction.read(folder)
        for what, then, now in (
            ("the table", there.table.source, made.table.source),
            ("the number of rounds", there.rounds or "the recipes' own", made.rounds or "the recipes' own"),
        ):
            if then != now:
                raise RunError(f"{folder}: {what} is {then} there, but {now} here; {elsewhere}")
        made = dataclasses.replace(made, runs={**there.runs, **made.runs})
    elif not known.keys() <= plan.keys():
        raise RunError(f"{folder} holds other runs; {elsewhere}")
    for name, recipe in plan.items():
        if known.get(name, recipe) != recipe:
            told = difference(known[name], [recipe])
            raise RunError(f"{folder}: its run {json.dumps(name)} is another: {told}; {elsewhere}")
    return made


def _write_plan(folder: Path, plan: dict[str, Recipe], name: str = "", text: str = "") -> None:
    """Write which runs a folder is for and, of a sweep or a table, what each of them is there."""
    raw = {run: tables(recipe) for run, recipe in plan.items()}
    files = {"plan.json": json.dumps(raw, indent=1) + "\n"} | ({name: text} if name else {})
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        # killed between the two, a new folder is known by its plan, and in an old one each run planned is described
        for file in reversed(files) if (folder / "plan.json").is_file() else files:
            write(folder / file, files[file])


def _plan(folder: Path) -> dict[str, Recipe]:
    """The runs that a folder of several was made for; none if it is no such folder."""
    file = folder / "plan.json"
    if not file.is_file():
        return {}
    try:
        plan = {str(name): check(raw) for name, raw in json.loads(file.read_text(encoding="utf-8")).items()}
        for name in plan:
            named("its run", name)  # each is a folder beside it, and nowhere else
        return plan
    except (ValueError, AttributeError) as error:
        raise RunError(f"{file} is damaged: {error}") from error


def _members(folder: Path, *, begun: bool = True) -> list[Path]:
    """The run folders that a path stands for: itself, or all of its runs, an error if some have not begun."""
    if (folder / "plan.json").is_file():
        inside = [folder / name for name in _plan(folder)]
        if begun and not all((run / "recipe.toml").is_file() for run in inside):
            raise RunError(f"{folder} is not finished, go on with: sparsona resume {shlex.quote(str(folder))}")
        return inside
    # a shell that spells out runs/x/* also names plan.json and the comparison
    beside = folder.exists() and (folder.parent / "plan.json").is_file()
    return [] if beside and folder.name in ("plan.json", SWEEP, TABLE, COMPARISON) else [folder]


def _settings(given: list[tuple[Path, list[Run]]]) -> dict[Run, Setting]:
    """Runs by what sets them apart, in their sweep or as runs of their own; of several folders, also by the folder."""
    names = report.folder_names([path for path, _ in given])
    report.folder_names([run.path for _, runs in given for run in runs])  # refuses a run that is given twice
    found: dict[Run, Setting] = {}
    for name, (path, runs) in zip(names, given, strict=True):
        swept = Sweep.read(path).of(runs) if (path / SWEEP).is_file() else {}
        for run in runs:
            setting = swept.get(run) or Setting(None if run.path == path else run.path.name, {})
            if len(given) > 1:
                setting = Setting("/".join(filter(None, [name, setting.variant])), setting.values)
            found[run] = setting
    return found


def _try(plan: Mapping[str, Recipe], data_dir: Path | None) -> None:
    """Build each different data set and model once, so that what cannot run is told before anything is written."""
    groups: dict[Any, list[str]] = {}
    for name, recipe in plan.items():
        groups.setdefault((recipe.data, recipe.seed, recipe.model), []).append(name)
    with err.status("checking data and models"):
        for names in groups.values():
            name = names[0]
            try:
                device, fleet = prepare(plan[name], data_dir)
                for name in names:
                    verify(plan[name], device, fleet.clients)
            except ValueError as error:
                raise RecipeError(f"{name}: {error}") from error


def _run_plan(folder: Path, data_dir: Path | None, as_json: bool, only: Collection[str] = ()) -> list[Run]:
    """Run what a plan still lacks, of all or of some of its runs."""
    runs = []
    plan = {name: recipe for name, recipe in _plan(folder).items() if not only or name in only}
    numbered = False
    for file, kind in ((SWEEP, Sweep), (TABLE, Reproduction)):
        if (folder / file).is_file():
            kind.read(folder)  # a file that is damaged is told now, not when all is run
            numbered = True
    for number, (name, recipe) in enumerate(plan.items(), start=1):
        path = folder / name
        if numbered and not as_json and not Run(path).finished:
            say(f"run {number} of {len(plan)}: {name}")
        if (path / "recipe.toml").is_file():
            runs.append(_resume(path, data_dir, as_json, top=folder))
        else:
            runs.append(_run(recipe, path, data_dir, as_json, top=folder))
    return runs


def _run(recipe: Recipe, path: Path, data_dir: Path | None, as_json: bool, top: Path | None = None) -> Run:
    at_work(top or path)
    with display(recipe, path, as_json) as listen:
        done = run_recipe(recipe, path, data_dir=data_dir, listen=listen)
        assert isinstance(done, Run)
        return done


def _resume(path: Path, data_dir: Path | None, as_json: bool, top: Path | None = None) -> Run:
    run = Run.open(path)
    if run.finished:
        if not as_json:
            say(f"{path}: already done")
        return run
    at_work(top or path)
    with display(run.recipe, path, as_json) as listen:
        return resume_run(path, data_dir=data_dir, listen=listen)


def _end(runs: list[Run], folder: Path, as_json: bool, goal: float | None = None) -> None:
    """Print how it ended; of a sweep, with the cost to reach a goal."""
    if (folder / SWEEP).is_file():
        _end_sweep(runs, folder, as_json, goal)
        return
    if (folder / TABLE).is_file():
        _end_table(runs, folder, as_json)
        return
    show_runs(runs, folder, as_json)


def _end_sweep(runs: list[Run], folder: Path, as_json: bool, goal: float | None) -> None:
    """Print a sweep's table."""
    with _reading(folder):
        table = sweep_table(Sweep.read(folder).of(runs), folder / COMPARISON, goal)
    _end_sheet(table, folder, {}, as_json)


def _end_table(runs: list[Run], folder: Path, as_json: bool) -> None:
    """Print the cells of a paper's table."""
    with _reading(folder):
        made = Reproduction.read(folder)
        sheet = result(made, runs, folder / COMPARISON)
    _end_sheet(sheet, folder, {"source": made.table.source, "title": made.table.title}, as_json)


def _end_sheet(sheet: Sheet, folder: Path, about: dict[str, str], as_json: bool) -> None:
    where = folder / COMPARISON
    if as_json:
        told = {"folder": str(folder), **about, "rows": sheet.json(), "notes": sheet.notes}
        print_json(told | ({"comparison": str(where)} if sheet.files else {}))
        return
    if about:
        tell(": ".join(about.values()))
    if sheet.rows:
        out.print(sheet.rich())
    else:
        tell("no client was ever tested in any of the runs")
    tell(f"results: {folder}")
    if sheet.files:
        pictures = any(file.suffix == ".png" for file in sheet.files)
        tell(f"{'tables and pictures' if pictures else 'tables'}: {where}")


@contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """What is wrong with the records of a run is told as such."""
    try:
        yield
    except (KeyError, TypeError, IndexError) as error:
        raise RunError(f"one of the runs in {folder} is damaged: {type(error).__name__} {error}") from error


def _dry_run(folder: Path, plan: dict[str, Recipe], as_json: bool) -> None:
    """Tell what a plan lacks."""
    runs = [(Run(folder / name), name, recipe.rounds) for name, recipe in plan.items()]
    done = sum(run.finished for run, _, _ in runs)
    if as_json:
        told = [{"run": name, "done": run.finished, "rounds": rounds} for run, name, rounds in runs]
        print_json({"folder": str(folder), "runs": told, "done": done})
        return
    for run, name, rounds in runs:
        if not run.finished:
            tell(f"{name}: {len(run.rounds)} of {rounds} rounds done")
    tell(f"{done} of {len(runs)} runs are done, {len(runs) - done} would be run into {folder}")


def _about(kind: type) -> str:
    """The first sentence of a method's module."""
    module = inspect.getmodule(kind)
    return (module.__doc__ or "").strip().split("\n")[0] if module else ""


def _list(head: tuple[str, str], rows: list[tuple[str, str]], as_json: bool) -> None:
    if as_json:
        print_json(dict(rows))
        return
    table = Table(*head)
    for row in rows:
        table.add_row(*map(escape, row))
    out.print(table)


def _show_lines(title: str, lines: list[Line]) -> None:
    """A table of figures, what there is to say about some of them, and how many agree."""
    table = Table(title=escape(title))
    table.add_column("what")
    table.add_column("from", no_wrap=True)
    for column in ("printed", "computed"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("agrees", max_width=10 if out.width < 100 else None)  # else little is left for what it is
    notes: dict[str, int] = {}  # numbered in the order they come up
    section = ""
    for line in lines:
        if line.section != section:
            section = line.section
            table.add_section()
            table.add_row(f"[bold]{escape(section)}[/bold]")
        mark = f" ({notes.setdefault(line.remark, len(notes) + 1)})" if line.remark else ""
        cells = (line.what, line.source, line.aim, line.shown, f"{line.verdict}{mark}")
        table.add_row(*map(escape, cells), style="red" if line.failed else None)
    out.print(table)
    for note, number in notes.items():
        tell(f"({number}) {note}")
    tell("whole numbers agree if equal, others if they round to what is printed, those with ± if within it")
    stated = sum(not line.agrees and bool(line.stated) for line in lines)
    told = f"; {stated} more differ as stated" if stated else ""
    tell(f"{sum(line.agrees for line in lines)} of {len(lines) - stated} agree{told}")


def _sections() -> dict[str, type]:
    """The tables of a recipe besides its method."""
    hints = typing.get_type_hints(Recipe)
    return {f.name: hints[f.name] for f in dataclasses.fields(Recipe) if dataclasses.is_dataclass(hints[f.name])}


def _show_fields(name: str, kind: type, section: str, as_json: bool) -> None:
    """What can be set of a method, or in a section of a recipe."""
    about = _about(kind) if section == "method" else inspect.getdoc(kind) or ""
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = dataclasses.fields(kind)
    takes = {f.name: allowed(hints[f.name]) for f in fields}
    defaults = {f.name: None if required(f) else f.default for f in fields}
    meanings = _meanings(kind)
    if as_json:
        print_json({"name": name, "about": about, "fields": defaults, "allowed": takes, "meaning": meanings})
        return
    tell(f"{name}: {about}")
    title = f"[{section}] of a recipe, or {section}.FIELD=VALUE ({kind.__module__})"
    table = Table("field", "allowed", "default", "meaning", title=escape(title))
    for f in fields:
        default = "required" if required(f) else "none" if f.default is None else json.dumps(plain(f.default))
        table.add_row(f.name, escape(takes[f.name]), escape(default), escape(meanings.get(f.name, "")))
    out.print(table)


def _meanings(kind: type) -> dict[str, str]:
    """What is said of each field beside it in the source: the one place where it is kept."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            for line in inspect.getsource(base).splitlines():
                if match := re.match(r"    (\w+): .*?  # (.+)", line):
                    found[match[1]] = match[2]
    return found


def _show_runs(folder: Path, as_json: bool) -> None:
    members = _members(folder, begun=False)
    begun = [Run(p) for p in members if (p / "recipe.toml").is_file()]
    if as_json:
        print_json({"folder": str(folder), "runs": [_state(r) for r in begun]})
        return
    done = [r for r in begun if r.finished and r.summary["accuracy"] is not None]
    if done:
        out.print(report.compare(done).rich())
    for r in begun:
        if r not in done:
            state = "finished, no client was ever tested" if r.finished else "not finished"
            tell(f"{r.path.name}: {len(r.rounds)} of {r.recipe.rounds} rounds, {state}")
    if len(begun) < len(members) or not all(r.finished for r in begun):
        tell(f"go on with: sparsona resume {shlex.quote(str(folder))}")


def _state(run: Run) -> dict[str, Any]:
    done = {"run": str(run.path), "finished": run.finished}
    return done | (run.summary if run.finished else {"name": run.recipe.name, "rounds": len(run.rounds)})
