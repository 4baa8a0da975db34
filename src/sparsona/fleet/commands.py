"""``sparsona fleet``: a real fleet, or one on this machine for a trial."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from sparsona.config import RecipeError, load
from sparsona.data import SOURCES
from sparsona.engines.parcels import MOST
from sparsona.fleet import FleetError, needs_flower
from sparsona.results import Run, vacant
from sparsona.terminal import (
    DataDir,
    Json,
    Only,
    Overrides,
    display,
    errors,
    free_folder,
    listed,
    out,
    print_json,
    say,
    show_runs,
    tell,
)

app: typer.Typer = typer.Typer(help="A real fleet over Flower, or a trial of one.", no_args_is_help=True)

Recipe = Annotated[str, typer.Argument(help="A recipe's name (sparsona recipes) or a TOML file.")]
HomeDir = Annotated[Path, typer.Argument(help="The server's folder: keys, database, what runs tell.")]
Out = Annotated[Path | None, typer.Option("--out", help="Run folder; default runs/NAME-1, -2, ...")]
MostMb = Annotated[int, typer.Option("--max-mb", help="Messages of more megabytes are refused.")]


@app.command(epilog="Example: sparsona fleet trial quickstart --only personal --nodes 4 rounds=3")
def trial(
    recipe: Recipe,
    overrides: Overrides = None,
    nodes: Annotated[int, typer.Option(help="Nodes, one for each client of the recipe.")] = 4,
    folder: Out = None,
    only: Only = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Run a recipe on a server and nodes as processes of this machine, with TLS and keys made for the occasion."""
    from sparsona.fleet.trial import suited
    from sparsona.fleet.trial import trial as run_trial

    with errors(as_json):
        needs_flower()
        chosen = suited(_one(recipe, overrides, only), nodes)
        target = folder or free_folder(Path("runs"), chosen.name)
        vacant(target)
        with display(chosen, target, as_json) as listen:
            done = run_trial(chosen, target, data_dir, listen, _quiet if as_json else say)
        show_runs([done], target, as_json)


@app.command(epilog="Example: sparsona fleet keys server/keys --host fleet.example.org --nodes north,south,east")
def keys(
    folder: Annotated[Path, typer.Argument(help="Where keys go; a server looks in the folder keys of its own.")],
    hosts: Annotated[
        str | None, typer.Option("--host", help="Names and addresses of the server, with commas between.")
    ] = None,
    nodes: Annotated[
        str | None, typer.Option("--nodes", help="Names of nodes, with commas between: the first is client 0.")
    ] = None,
    first: Annotated[int, typer.Option("--first", help="The client of the first node.")] = 0,
    days: Annotated[int, typer.Option(help="How long the certificate is valid.")] = 365,
    as_json: Json = False,
) -> None:
    """Make an authority with a server certificate (--host), keys of nodes (--nodes), or both."""
    from sparsona.fleet.keys import NODE_NAME, make_authority, make_node_key, roster

    with errors(as_json):
        needs_flower()
        names = [] if nodes is None else [name.strip() for name in nodes.split(",")]
        if hosts is None and not names:
            raise RecipeError("host, nodes: give at least one, such as --host 192.168.0.5 --nodes north,south")
        if not 1 <= days <= 3650:
            raise RecipeError(f"days = {days}: must be from 1 to 3650")
        if first < 0:
            raise RecipeError(f"first = {first}: must be at least 0")
        for name in names:
            if not NODE_NAME.fullmatch(name):
                raise RecipeError(f"nodes: {name!r} must be small letters, digits and dashes, at most 41")
        if len(set(names)) < len(names):
            raise RecipeError(f"nodes = {nodes}: each name must be there once")
        taken = roster(folder) if folder.is_dir() else {}
        for k in range(first, first + len(names)):
            if k in taken:
                lost = "choose another --first; for a key that is lost see docs/deploy.md"
                raise RecipeError(f"client {k} has a key already, {taken[k][1]}; {lost}")
        if hosts is not None:
            local = [h.strip() for h in hosts.split(",")]
            make_authority(folder, [*local, *(h for h in ("127.0.0.1", "localhost") if h not in local)], days)
        for k, name in enumerate(names, start=first):
            make_node_key(folder, name, k)
        made = {name: k for k, name in enumerate(names, start=first)}
        if as_json:
            print_json({"folder": str(folder), "authority": hosts is not None, "clients": made})
            return
        if hosts is not None:
            tell(f"the server keeps {folder}/server.key; every node needs {folder}/ca.crt")
        for name, k in made.items():
            tell(f"client {k}: {name}.key goes to the node and nowhere else, {name}.pub stays with the server")


@app.command(epilog="Example: sparsona fleet server ./server --host 0.0.0.0")
def server(
    home: HomeDir,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 8000,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no keys: on this machine, or where all are trusted.")
    ] = False,
) -> None:
    """Start the fleet's server and keep it running; it trusts the nodes whose .pub files are in its keys folder."""
    from sparsona.fleet.server import Home, run_server

    with errors(False):
        needs_flower()
        with _until_stopped():
            run_server(Home(home), host, port, not insecure, say)


@app.command(
    epilog="Example: sparsona fleet node fleet.example.org:8000 --client 0 --ca ca.crt --key north.key --data mine.npz"
)
def node(
    server: Annotated[str, typer.Argument(help="The server, host:port.")],
    client: Annotated[int, typer.Option(help="Which client this node is, from 0.")],
    home: Annotated[Path, typer.Option(help="Where the device keeps what is its own between rounds.")] = Path("node"),
    data: Annotated[Path | None, typer.Option(help="Its samples: an .npz file with x and y.")] = None,
    source: Annotated[
        str | None, typer.Option(help="Or an official data set below --data-dir, all of it this node's own.")
    ] = None,
    trial_part: Annotated[
        bool, typer.Option("--trial-part", help="Or its part of the recipe's data set, for trials.")
    ] = False,
    classes: Annotated[
        int | None, typer.Option(help="With --data: how many classes the whole fleet has; default those in y.")
    ] = None,
    ca: Annotated[Path | None, typer.Option("--ca", help="The fleet's ca.crt.")] = None,
    key: Annotated[Path | None, typer.Option("--key", help="The node's private key.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No TLS and no keys: on this machine, or where all are trusted.")
    ] = False,
    plugins: Annotated[
        bool, typer.Option("--allow-plugins", help="Let recipes name models and functions installed here.")
    ] = False,
    max_mb: MostMb = MOST >> 20,
    data_dir: DataDir = None,
) -> None:
    """Be a device of a fleet until stopped: train and test on this machine's own data when asked."""
    from sparsona.fleet.data import NodeData
    from sparsona.fleet.node import NodeOptions, run_node

    with errors(False):
        needs_flower()
        given = [name for name, value in (("data", data), ("source", source), ("trial-part", trial_part)) if value]
        if len(given) != 1:
            raise RecipeError(f"{' and '.join(given) or 'no data'}: give one of --data, --source and --trial-part")
        if client < 0:
            raise RecipeError(f"client = {client}: must be at least 0")
        if source is not None and source not in SOURCES:
            raise RecipeError(f"source = {source!r}: must be one of {', '.join(SOURCES)}")
        if classes is not None and (data is None or classes < 2):
            raise RecipeError(f"classes = {classes}: must be at least 2, and goes with --data")
        own = NodeData(data, source, data_dir, classes, plugins)
        options = NodeOptions(server, client, home, own, ca, key, insecure, _megabytes(max_mb))
        with _until_stopped():
            run_node(options, say)


@app.command(
    "run", epilog="Example: sparsona fleet run ./server quickstart --only personal data.clients=3 fleet.per_round=3"
)
def run_(
    home: HomeDir,
    recipe: Annotated[str, typer.Argument(help="A recipe's name, a TOML file, or a run folder to go on with.")],
    overrides: Overrides = None,
    folder: Out = None,
    only: Only = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait for clients that are not there at the start.")] = 120.0,
    max_mb: MostMb = MOST >> 20,
    as_json: Json = False,
) -> None:
    """Run a recipe on a fleet; data.clients of it are clients 0, 1, ... Give a run folder to go on with it."""
    from sparsona.fleet.server import Home, run_on_fleet

    with errors(as_json):
        needs_flower()
        if wait <= 0:
            raise RecipeError(f"wait = {wait}: must be above 0")
        if (Path(recipe) / "recipe.toml").is_file():
            target, chosen = Path(recipe), Run.open(recipe).recipe
            if overrides or only or folder:
                raise RecipeError("a run that goes on takes no changes")
        else:
            chosen = _one(recipe, overrides, only)
            target = folder or free_folder(Path("runs"), chosen.name)
            if (target / "recipe.toml").is_file():
                raise RecipeError(
                    f"{target} holds a run; choose another folder, or: sparsona fleet run {home} {target}"
                )
            vacant(target)
        again = f"sparsona fleet run {home} {target}"
        with display(chosen, target, as_json) as listen:
            try:
                listened = say if not as_json else _quiet
                done = run_on_fleet(Home(home), chosen, target, listen, listened, wait, _megabytes(max_mb))
            except KeyboardInterrupt:
                begun = (target / "recipe.toml").is_file()
                raise FleetError(f"stopped{f'; go on with: {again}' if begun else ''}") from None
        show_runs([done], target, as_json)


@app.command(epilog="Example: sparsona fleet status ./server")
def status(home: HomeDir, as_json: Json = False) -> None:
    """Tell who is there, when each was last heard of, the round and the bytes."""
    from sparsona.fleet.server import Home
    from sparsona.fleet.server import status as ask

    with errors(as_json):
        needs_flower()
        found = ask(Home(home))
        if as_json:
            print_json(found)
            return
        _show(found)


@contextmanager
def _until_stopped() -> Iterator[None]:
    """To be stopped is how these end, and no error."""
    try:
        yield
    except KeyboardInterrupt:
        say("stopped")


def _show(found: dict[str, Any]) -> None:
    run, now = found["run"], time.time()
    if run:
        state = run.get("state", "at work")
        tell(f"{state}, round {run['round']} of {run['rounds']}, {_ago(run['time'], now)}: {run['folder']}")
    table = Table("client", "node", "state", "last answer", "MB from it", "MB to it")
    clients = run.get("clients", {})
    for node in found["nodes"]:
        seen = clients.get(str(node["client"]), {})
        table.add_row(
            str(node["client"]),
            node["name"],
            node["status"],
            _ago(seen["seen"], now) if seen.get("seen") else "",
            f"{seen.get('up', 0) / 1e6:.1f}",
            f"{seen.get('down', 0) / 1e6:.1f}",
        )
    out.print(table)


def _ago(then: float, now: float) -> str:
    spent = max(int(now - then), 0)
    return f"{spent} s ago" if spent < 120 else f"{spent // 60} min ago"


def _one(recipe: str, overrides: list[str] | None, only: str | None) -> Any:
    """The one run that a recipe stands for."""
    plan = load(recipe, overrides or (), listed(only))
    if len(plan) != 1:
        raise RecipeError(f"{recipe} has several variants; choose one with --only: {', '.join(plan)}")
    return next(iter(plan.values()))


def _megabytes(count: int) -> int:
    if not 1 <= count <= 2000:
        raise RecipeError(f"max-mb = {count}: must be from 1 to 2000")
    return count << 20


def _quiet(text: str) -> None:
    pass


__all__ = ["app"]
