"""The command line: ``sparsona --help``. Exit codes: 0 done, 1 failed, 2 bad input."""

from __future__ import annotations

import signal
import sys
import warnings
from pathlib import Path
from typing import Annotated, NoReturn

import typer

import sparsona
from sparsona.cli import catalogue, fleet, models, runs, terminal

app = typer.Typer(
    name="sparsona",
    help="Sparse personalised federated learning: one small model per device.",
    epilog="Try: sparsona run quickstart",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
for group in (runs.app, models.app, catalogue.app):
    app.add_typer(group)
app.add_typer(fleet.app, name="fleet")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"sparsona {sparsona.__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = (False),
) -> None:
    pass


def main() -> None:
    """Entry point."""
    for name in ("SIGTERM", "SIGHUP"):  # a machine that shuts down is like Ctrl-C: save, then go
        if hasattr(signal, name):  # Windows has no SIGHUP
            signal.signal(getattr(signal, name), _stop)
    here = str(Path.cwd())
    if here not in sys.path:  # for --model; last, so that no file here can hide a module that we need
        sys.path.append(here)
    warnings.showwarning = lambda message, *_: terminal.err.print(f"warning: {message}", style="yellow", markup=False)
    app()


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt
