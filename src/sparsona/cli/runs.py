"""Commands that run recipes and compare runs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from sparsona.api import comparison, reproduction, runs, sweeps
from sparsona.cli import terminal
from sparsona.cli.terminal import DataDir, Json, Only, Overrides, Reporter, errors, finish, listed, numbers, say, show
from sparsona.experiment.overrides import parse_resume
from sparsona.reports.costs import DeviceModel
from sparsona.reports.display import NameTable

app = typer.Typer()
Recipe = Annotated[str, typer.Argument(help="Recipe name (see sparsona recipes) or TOML file.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would run, without writing anything.")]
_DEVICE = ",".join(f"{name}={value:g}" for name, value in dataclasses.asdict(DeviceModel()).items())


@app.command(
    epilog=terminal.examples("sparsona run quickstart", "sparsona run quickstart rounds=5 seed=2 --out runs/mine")
)
def run(
    recipe: Recipe,
    overrides: Overrides = None,
    folder: Annotated[Path | None, typer.Option("--out", help="Run folder. Default: runs/NAME-1, -2, ...")] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Model name, or your own as package.module:Class.")
    ] = None,
    only: Only = None,
    dry_run: DryRun = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run a recipe and write its results to a new folder."""
    with errors(as_json):
        changes = [*(overrides or ()), *([] if model is None else [f"model.name={json.dumps(model)}"])]
        plan = runs.load(recipe, changes, listed(only))
        if only is not None and len(plan) == 1:
            plan = plan.named_after_variant()
        if dry_run:
            show(plan.dry_run(folder, data_dir=data_dir), as_json)
            return
        target = folder or plan.free_folder()
        with Reporter(as_json) as report:
            result = plan.run(target, data_dir=data_dir, on_run=report.on_run, on_round=report.on_round)
        finish(result, as_json)


@app.command(
    epilog=terminal.examples(
        "sparsona sweep quickstart method.lr=0.05,0.1 seed=1,2,3",
        "sparsona sweep quickstart variants.personal.method.mu=0.1,0.5,1.0 seed=1,2 rounds=20 --out runs/mu",
    )
)
def sweep(
    recipe: Recipe,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Overrides: key=a,b,c runs every value, key=value applies to all runs."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Sweep folder. Default: runs/NAME-sweep-1, -2, ...")
    ] = None,
    only: Only = None,
    target: Annotated[
        float | None, typer.Option(help="Report the cost of reaching this score (headline metric).")
    ] = None,
    dry_run: DryRun = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run every combination of the listed values and report mean ± std over seeds. Reuse --out to resume or extend."""
    with errors(as_json):
        if dry_run:
            show(sweeps.plan_sweep(recipe, overrides or (), listed(only), out=folder, data_dir=data_dir), as_json)
            return
        with Reporter(as_json) as report:
            result = sweeps.sweep(
                recipe,
                overrides or (),
                listed(only),
                out=folder,
                target=target,
                data_dir=data_dir,
                on_run=report.on_run,
                on_round=report.on_round,
                on_resume=None if as_json else say,
            )
        finish(result, as_json)


@app.command(
    epilog=terminal.examples(
        "sparsona reproduce",
        "sparsona reproduce fedspa/table1 --only emnist,dst --seeds 1,2",
        "sparsona reproduce dadpfl/table3 --rounds 50 --dry-run",
    )
)
def reproduce(
    table: Annotated[str | None, typer.Argument(help="Table name or TOML file. Without it, list all tables.")] = None,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", help="Run only these columns and rows (comma-separated names, or prefixes of column names)."
        ),
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds (comma-separated). Default: the table's seeds.")] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Rounds of every run, for a quick test. Default: the recipes' rounds.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the runs. Default: runs/PAPER-TABLE.", show_default=False)
    ] = None,
    dry_run: DryRun = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Reproduce a table of a paper: run its recipes and compare the results with the printed values."""
    with errors(as_json):
        if table is None:
            show(NameTable(("table", "description"), reproduction.list_tables()), as_json)
            return
        names, chosen = listed(only), () if seeds is None else numbers("seeds", seeds)
        if dry_run:
            show(reproduction.plan_reproduction(table, names, seeds=chosen, rounds=rounds, out=folder), as_json)
            return
        with Reporter(as_json) as report:
            result = reproduction.reproduce(
                table,
                names,
                seeds=chosen,
                rounds=rounds,
                out=folder,
                data_dir=data_dir,
                on_run=report.on_run,
                on_round=report.on_round,
            )
        finish(result, as_json)


@app.command(
    epilog=terminal.examples("sparsona resume runs/quickstart-1", "sparsona resume runs/quickstart-1 rounds=50")
)
def resume(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, of several variants, or of a sweep.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="rounds=N extends the run to N rounds; engine.device=cpu or engine.workers=1 resumes elsewhere."
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Resume or extend a run. On the same kind of device, the result is bit-identical to an uninterrupted run."""
    with errors(as_json):
        rounds, engine = parse_resume(overrides or ())
        with Reporter(as_json) as report:
            result = runs.resume_all(
                folder,
                data_dir=data_dir,
                on_run=report.on_run,
                on_round=report.on_round,
                rounds=rounds,
                engine=engine,
            )
        finish(result, as_json)


@app.command(
    epilog=terminal.examples(
        "sparsona compare runs/quickstart-1 --target 0.9", "sparsona compare runs/a runs/b --out c"
    )
)
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs or sweeps. The first run is the baseline.")],
    folder: Annotated[
        Path | None,
        typer.Option("--out", help="Output folder. Default: comparison, or inside the folder if only one is given."),
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Report the cost of reaching this score (headline metric).")
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help=f"Report time and energy for this device, given as NAME=NUMBER,... Default: {_DEVICE}",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare finished runs, or sweeps by their means over seeds, and write tables and figures to a folder."""
    with errors(as_json):
        chosen = None if device is None else DeviceModel.parse(device)
        result = comparison.compare(folders, folder, target=target, device=chosen)
        show(result, as_json)
