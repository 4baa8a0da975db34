"""Commands that write personal models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sparsona.api import models
from sparsona.cli import terminal
from sparsona.cli.terminal import DataDir, Json, Overrides, errors, show

app = typer.Typer()


@app.command(epilog=terminal.examples("sparsona export runs/a --client 7 --to seven.onnx"))
def export(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    client: Annotated[int, typer.Option(help="Client number, from 0.")],
    to: Annotated[Path, typer.Option(help="Output file: NAME.safetensors or NAME.onnx.")],
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Export a client's personal model to a file, for use outside of Sparsona."""
    with errors(as_json):
        show(models.export(folder, client, to, data_dir=data_dir), as_json)


@app.command(
    epilog=terminal.examples(
        "sparsona adapt runs/a --data mine.npz",
        "sparsona adapt runs/a --data mine.npz --to mine.onnx fleet.adapt_epochs=5 method.keep=0.3",
    )
)
def adapt(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    samples: Annotated[
        str, typer.Option("--data", help="Samples of the new client: file, folder or package.module:name.")
    ],
    overrides: Overrides = None,
    to: Annotated[
        Path | None,
        typer.Option(help="Output file for the model: NAME.safetensors or NAME.onnx. Default: not written."),
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Personalise a model for a client that was not part of the run, and test it."""
    with errors(as_json):
        show(models.adapt(folder, samples, to, overrides or (), data_dir=data_dir), as_json)
