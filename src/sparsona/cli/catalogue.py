"""Commands that list and show methods, models, recipes, data, runs and papers."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Annotated

import typer

from sparsona.api import catalogue, layer_masks, run_list
from sparsona.cli import terminal
from sparsona.cli.terminal import DataDir, Json, Overrides, errors, listed, numbers, progress_bar
from sparsona.experiment.checking import RecipeError
from sparsona.papers import CHECKS
from sparsona.papers.waiting import Pick
from sparsona.reports.display import NameTable

app = typer.Typer()
Recipe = Annotated[str, typer.Argument(help="Recipe name or TOML file.")]


@app.command(epilog=terminal.examples("sparsona methods"))
def methods(as_json: Json = False) -> None:
    """List the built-in methods."""
    terminal.show(NameTable(("method", "description"), catalogue.list_methods()), as_json)


@app.command(epilog=terminal.examples("sparsona models"))
def models(as_json: Json = False) -> None:
    """List the built-in models."""
    terminal.show(NameTable(("model", "description"), catalogue.list_models()), as_json)


@app.command(epilog=terminal.examples("sparsona recipes"))
def recipes(as_json: Json = False) -> None:
    """List the built-in recipes."""
    with errors(as_json):
        terminal.show(NameTable(("recipe", "description"), catalogue.list_recipes()), as_json)


@app.command(epilog=terminal.examples("sparsona runs", "sparsona runs runs/quickstart-1 --json"))
def runs(
    folder: Annotated[Path, typer.Argument(help="Folder to search, including its subfolders.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List run folders with their method, rounds, state, accuracy and date of last change."""
    with errors(as_json):
        terminal.show(run_list.list_runs(folder), as_json)


@app.command(
    epilog=terminal.examples(
        "sparsona show ditto", "sparsona show quickstart", "sparsona show runs/quickstart-1/shared"
    )
)
def show(
    name: Annotated[
        str,
        typer.Argument(
            help="Method (built-in or package.module:Class), recipe section such as topology, recipe, or run folder."
        ),
    ],
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Show a method's options, a recipe with its defaults, or the outcome of a run."""
    with errors(as_json):
        terminal.show(catalogue.show(name, overrides or ()), as_json)


@app.command(
    epilog=terminal.examples("sparsona data quickstart data.alpha=0.1", "sparsona data mine.csv data.label=died")
)
def data(
    recipe: Annotated[str, typer.Argument(help="Recipe name or TOML file, or a data source such as a file or folder.")],
    overrides: Overrides = None,
    picture: Annotated[Path, typer.Option("--out", help="Output file of the figure.")] = Path("labels.png"),
    encoding: Annotated[
        Path | None,
        typer.Option(
            help="Write the data encoding to this JSON file: feature scales, categories, class names, characters."
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show how the data are divided: a table and a figure of each client's labels."""
    with errors(as_json):
        table = catalogue.data(recipe, overrides or (), picture=picture, encoding=encoding, data_dir=data_dir)
        terminal.show(table, as_json)


@app.command(
    epilog=terminal.examples(
        "sparsona masks perfedmask/small/main",
        "sparsona masks perfedmask/small/main method.budget=0.2 method.strong=0.3",
        "sparsona masks perfedmask/small/ablations --only random-masks --out r.png",
        "sparsona masks perfedmask/small/main --measure --step 1.5",
    )
)
def masks(
    recipe: Annotated[str, typer.Argument(help="Recipe whose method designs layer masks (name or TOML file).")],
    overrides: Overrides = None,
    only: Annotated[str | None, typer.Option("--only", help="Variant of the recipe to show.")] = None,
    picture: Annotated[Path, typer.Option("--out", help="Output file of the figure.")] = Path("masks.png"),
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure training steps on this device by budget instead.")
    ] = False,
    step: Annotated[
        float | None,
        typer.Option("--step", help="With --measure: propose a budget for steps of at most this many milliseconds."),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show which clients train which layers, or measure the time of training steps on this device (--measure)."""
    with errors(as_json):
        if step is not None and not (measure and step > 0):
            raise RecipeError(
                f"step: {step:g} is not allowed; expected a number of milliseconds > 0, together with --measure"
            )
        changes, variants = overrides or (), listed(only)
        if measure:
            times = layer_masks.measure_budgets(recipe, changes, variants, step=step, data_dir=data_dir)
            terminal.show(times, as_json)
        else:
            design = layer_masks.masks(recipe, changes, variants, picture=picture, data_dir=data_dir)
            terminal.show(design, as_json)


@app.command(
    epilog=terminal.examples("sparsona topology", "sparsona topology --neighbours 5,10 --waits 0,1,5 --draws 10000")
)
def topology(
    clients: Annotated[int, typer.Option(help="Clients per round (K).")] = 100,
    neighbours: Annotated[str, typer.Option(help="Neighbours per client (M, comma-separated).")] = "1,2,5,10,20",
    waits: Annotated[
        str, typer.Option(help="Maximum number of neighbours to wait for (N, comma-separated).")
    ] = "0,1,2,5,10",
    draws: Annotated[int, typer.Option(help="Number of random graphs to average over.")] = 1000,
    pick: Annotated[
        str, typer.Option(help='Neighbours to wait for: "fastest", or "smallest id" (first in training order).')
    ] = "fastest",
    seed: Annotated[int, typer.Option(help="Random seed.")] = 1,
    picture: Annotated[Path, typer.Option("--out", help="Output file of the figure.")] = Path("topology.png"),
    as_json: Json = False,
) -> None:
    """Simulate rounds without a server: how many clients start at once, and how much waiting lengthens a round."""
    with errors(as_json):
        sizes, most = numbers("neighbours", neighbours), numbers("waits", waits)
        with progress_bar("topology", draws, quiet=as_json) as on_draw:
            chosen = typing.cast(Pick, pick)
            result = catalogue.topology(
                clients, sizes, most, draws, pick=chosen, seed=seed, picture=picture, on_draw=on_draw
            )
        terminal.show(result, as_json)


@app.command(epilog=terminal.examples("sparsona check", "sparsona check fedspa --json"))
def check(
    name: Annotated[str | None, typer.Argument(help=f"Paper: {', '.join(CHECKS)}. Default: all papers.")] = None,
    as_json: Json = False,
) -> None:
    """Recompute published numbers that need no training. Exit code 1 if one differs unexpectedly."""
    with errors(as_json):
        papers = catalogue.check(name)
        terminal.show(papers, as_json)
        if papers.failed:
            raise typer.Exit(1)
