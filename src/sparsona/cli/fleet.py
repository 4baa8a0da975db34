"""``sparsona fleet``: run a real fleet, or try one on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sparsona.api import fleet
from sparsona.api.fleet import MOST_MB
from sparsona.api.runs import compared
from sparsona.cli import terminal
from sparsona.cli.terminal import DataDir, Json, Only, Overrides, Reporter, errors, listed, say, show

app = typer.Typer(help="Run a fleet of devices over Flower, or try one on this machine.", no_args_is_help=True)

Recipe = Annotated[str, typer.Argument(help="Recipe name (see sparsona recipes) or TOML file.")]
HomeDir = Annotated[Path, typer.Argument(help="Server folder with its keys, database and run status.")]
Out = Annotated[Path | None, typer.Option("--out", help="Run folder. Default: runs/NAME-1, -2, ...")]
OnDevice = Annotated[
    str,
    typer.Option("--device", help="Training device: auto (a GPU if there is one), cpu, cuda, cuda:1 or mps."),
]
MostMb = Annotated[int, typer.Option("--max-mb", help="Maximum message size in MB.")]


@app.command(epilog=terminal.examples("sparsona fleet trial quickstart --only personal --nodes 4 rounds=3"))
def trial(
    recipe: Recipe,
    overrides: Overrides = None,
    nodes: Annotated[
        int | None, typer.Option(help="Number of nodes, one per client. Default: data.clients if overridden, else 4.")
    ] = None,
    folder: Out = None,
    only: Only = None,
    device: OnDevice = "auto",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Try a fleet on this machine: run a recipe with a server and nodes as local processes."""
    with errors(as_json):
        planned = fleet.plan_trial(recipe, overrides or (), listed(only), nodes=nodes, out=folder)
        with Reporter(as_json) as report:
            report.begin(planned.recipe, planned.folder)
            lines = None if as_json else say
            run = fleet.trial(planned, device=device, data_dir=data_dir, on_round=report.on_round, say=lines)
        show(compared([run], planned.folder), as_json)


@app.command(
    epilog=terminal.examples("sparsona fleet keys server/keys --host fleet.example.org --nodes north,south,east")
)
def keys(
    folder: Annotated[Path, typer.Argument(help="Output folder. Use HOME/keys for a server with the folder HOME.")],
    hosts: Annotated[
        str | None, typer.Option("--host", help="Host names and addresses of the server (comma-separated).")
    ] = None,
    nodes: Annotated[
        str | None, typer.Option("--nodes", help="Node names (comma-separated), one client each, in order.")
    ] = None,
    first: Annotated[int, typer.Option("--first", help="Client number of the first node.")] = 0,
    days: Annotated[int, typer.Option(help="Days until the certificate expires.")] = 365,
    as_json: Json = False,
) -> None:
    """Create a certificate authority and a server certificate (--host), node keys (--nodes), or both."""
    with errors(as_json):
        show(fleet.make_keys(folder, listed(hosts), listed(nodes), first=first, days=days), as_json)


@app.command(epilog=terminal.examples("sparsona fleet server ./server --host 0.0.0.0"))
def server(
    home: HomeDir,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 means all network interfaces.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Disable TLS and keys. Use only in a trusted network.")
    ] = False,
) -> None:
    """Start the fleet's server. It accepts the nodes whose .pub files are in its keys folder. Stop it with Ctrl-C."""
    with errors(False), _until_stopped():
        fleet.serve(home, host, port, insecure=insecure, say=say)


@app.command(
    epilog=terminal.examples(
        "sparsona fleet node fleet.example.org:8000 --client 0 --ca ca.crt --key north.key --data mine.npz"
    )
)
def node(
    server: Annotated[str, typer.Argument(help="Server address, host:port.")],
    client: Annotated[int, typer.Option(help="Client number of this node, from 0.")],
    home: Annotated[Path, typer.Option(help="Folder for the client's state between rounds.")] = Path("node"),
    data: Annotated[
        str | None, typer.Option(help="Local data: file, folder or package.module:name, as in data.source.")
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="Instead of --data: a built-in data set in --data-dir; this node uses all of it.")
    ] = None,
    trial_part: Annotated[
        bool, typer.Option("--trial-part", help="Instead of --data: this client's part of the recipe's data.")
    ] = False,
    classes: Annotated[
        str | None,
        typer.Option(help="With --data: number of classes in the whole fleet, or their comma-separated names."),
    ] = None,
    encoding: Annotated[
        Path | None,
        typer.Option(help="With --data: JSON file with the fleet's common scales, categories and classes."),
    ] = None,
    ca: Annotated[Path | None, typer.Option("--ca", help="CA certificate of the fleet (ca.crt).")] = None,
    key: Annotated[Path | None, typer.Option("--key", help="Private key of this node.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Disable TLS and keys. Use only in a trusted network.")
    ] = False,
    plugins: Annotated[
        bool, typer.Option("--allow-plugins", help="Allow recipes to use plug-ins that are installed on this node.")
    ] = False,
    device: OnDevice = "auto",
    max_mb: MostMb = MOST_MB,
    data_dir: DataDir = None,
) -> None:
    """Start a node of a fleet: train and test on local data when the server asks. Stop it with Ctrl-C."""
    with errors(False), _until_stopped():
        fleet.node(
            server,
            client,
            home=home,
            data=data,
            source=source,
            trial_part=trial_part,
            classes=int(classes) if classes is not None and classes.isdigit() else listed(classes) or None,
            encoding=encoding,
            authority=ca,
            key=key,
            insecure=insecure,
            plugins=plugins,
            device=device,
            max_mb=max_mb,
            data_dir=data_dir,
            say=say,
        )


@app.command(
    "run",
    epilog=terminal.examples("sparsona fleet run ./server quickstart --only personal data.clients=3 fleet.per_round=3"),
)
def run_(
    home: HomeDir,
    recipe: Annotated[str, typer.Argument(help="Recipe name, TOML file, or run folder to resume.")],
    overrides: Overrides = None,
    folder: Out = None,
    only: Only = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for missing clients at the start.")] = 120.0,
    max_mb: MostMb = MOST_MB,
    as_json: Json = False,
) -> None:
    """Run a recipe on a fleet, on nodes 0 to data.clients - 1. Give a run folder instead of a recipe to resume it."""
    with errors(as_json):
        planned = fleet.plan_run(home, recipe, overrides or (), listed(only), out=folder)
        with Reporter(as_json) as report:
            report.begin(planned.recipe, planned.folder)
            lines = None if as_json else say
            run = fleet.run(home, planned, wait=wait, max_mb=max_mb, on_round=report.on_round, say=lines)
        show(compared([run], planned.folder), as_json)


@app.command(epilog=terminal.examples("sparsona fleet status ./server"))
def status(home: HomeDir, as_json: Json = False) -> None:
    """Show the nodes, their last answers, the current round and the traffic."""
    with errors(as_json):
        show(fleet.status(home), as_json)


@contextmanager
def _until_stopped() -> Iterator[None]:
    """End without an error when the user stops a command that runs until then."""
    try:
        yield
    except KeyboardInterrupt:
        say("stopped")
