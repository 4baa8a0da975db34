"""A fleet on this machine for a trial: a server and nodes as processes, with TLS and keys made for the occasion."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sparsona.config import Recipe
from sparsona.fleet import FleetError
from sparsona.fleet.keys import make_authority, make_node_key
from sparsona.fleet.processes import Child, environment, free_port, stop_all
from sparsona.fleet.server import Home, register, run_on_fleet, start_superlink
from sparsona.results import Run, write
from sparsona.runner import Progress


def suited(recipe: Recipe, nodes: int) -> Recipe:
    """The recipe for as many clients as there are nodes."""
    if nodes < 1 or nodes > 64:
        raise FleetError(f"nodes = {nodes}: must be from 1 to 64, each takes some 600 MB")
    each = recipe.fleet.per_round
    fleet = replace(
        recipe.fleet,
        per_round=None if each is None else min(each, nodes),
        min_answers=min(recipe.fleet.min_answers, nodes),
    )
    return replace(recipe, data=replace(recipe.data, clients=nodes), fleet=fleet)


def trial(
    recipe: Recipe,
    folder: Path,
    data_dir: Path | None,
    listen: Callable[[Progress], None],
    say: Callable[[str], None],
) -> Run:
    """Run a recipe on a fleet of processes with one node for each client, and leave nothing behind but the run."""
    nodes = recipe.data.clients
    top = Path(tempfile.mkdtemp(prefix="sparsona-trial-"))
    home = Home(top / "server")
    children: list[Child] = []
    try:
        make_authority(home.keys, ["127.0.0.1", "localhost"], days=2)
        for k in range(nodes):
            make_node_key(home.keys, f"node-{k}", k)
        port = free_port()
        say(f"starting a server and {nodes} nodes on this machine")
        children.append(start_superlink(home, "127.0.0.1", port, secure=True))
        register(home)
        for k in range(nodes):
            children.append(Child(_node(home, top, k, port, data_dir), top / f"node-{k}.log", environment(top)))
        done = run_on_fleet(home, recipe, folder, listen, say, wait=300.0)
        _collect(done, top)
        return done
    except FleetError as error:
        ended = [c for c in children if c.ended]
        raise FleetError(f"{error}{''.join(f'; {c.log.name}: {c.last_words()}' for c in ended)}") from error
    finally:
        stop_all(children)
        shutil.rmtree(top, ignore_errors=True)


def _node(home: Home, top: Path, k: int, port: int, data_dir: Path | None) -> list[str]:
    where = [] if data_dir is None else ["--data-dir", str(data_dir.resolve())]
    return [
        *(sys.executable, "-m", "sparsona", "fleet", "node", f"127.0.0.1:{port}"),
        *("--client", str(k), "--home", str(top / f"node-{k}"), "--trial-part", *where),
        *("--ca", str(home.keys / "ca.crt"), "--key", str(home.keys / f"node-{k}.key")),
    ]


def _collect(done: Run, top: Path) -> None:
    """Take what the devices keep into the run's folder, as a simulation leaves it: on a real fleet it stays there."""
    state = done.path / "state"
    run = json.loads((done.path / "run.json").read_text())["fleet_run"]
    for k, version in json.loads((state / "versions.json").read_text()).items():
        value = top / f"node-{k}" / run / f"{version}.value"
        write(state / f"client-{int(k):05d}.safetensors", value.read_bytes())
    (state / "versions.json").unlink()
    if done.recipe.results.models:
        (done.path / "models").mkdir(exist_ok=True)
        for k in range(done.recipe.data.clients):
            model = top / f"node-{k}" / run / "model.safetensors"
            if model.is_file():
                write(done.path / "models" / f"client-{k:05d}.safetensors", model.read_bytes())
