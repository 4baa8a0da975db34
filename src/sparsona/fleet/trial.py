"""A fleet on this machine for a trial: a server and nodes as processes, with TLS and keys made for the occasion."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sparsona.core.imports import plugin_names
from sparsona.experiment.loop import Progress
from sparsona.experiment.recipe import Recipe, check, tables
from sparsona.experiment.results import Run, write
from sparsona.experiment.setup import newcomers
from sparsona.fleet import FleetError, needs_flower
from sparsona.fleet.home import Home
from sparsona.fleet.keys import make_authority, make_node_key
from sparsona.fleet.orders import run_on_fleet
from sparsona.fleet.processes import Child, environment, free_port, stop_all
from sparsona.fleet.superlink import register, start_superlink


def node_count(recipe: Recipe, overrides: Iterable[str], nodes: int | None) -> int:
    """The number of nodes: ``nodes``, or what an override of data.clients says, or by default 4."""
    overridden = any(override.partition("=")[0].strip() == "data.clients" for override in overrides)
    clients = recipe.data.clients if overridden else None
    if nodes is None:
        return 4 if clients is None else clients
    if clients not in (None, nodes):
        raise FleetError(
            f"data.clients: {clients} is not allowed with {nodes} nodes, one per client; set only one of them"
        )
    return nodes


def suited(recipe: Recipe, nodes: int) -> Recipe:
    """The recipe for as many clients as there are nodes."""
    if nodes < 1 or nodes > 64:
        raise FleetError(f"nodes: {nodes} is not allowed; expected an int in [1, 64], as each node needs about 530 MB")
    each = recipe.fleet.per_round
    fleet = replace(
        recipe.fleet,
        per_round=None if each is None else min(each, nodes),
        min_answers=min(recipe.fleet.min_answers, nodes),
    )
    return check(tables(replace(recipe, data=replace(recipe.data, clients=nodes), fleet=fleet)))


@dataclass
class Loopback:
    """A server and nodes on this machine, below one folder that is removed at the end."""

    top: Path
    home: Home
    port: int
    data_dir: Path | None
    plugins: bool = False  # whether nodes may import what the recipe names
    device: str = "auto"  # what nodes train on
    server: Child | None = None
    nodes: dict[int, Child] = field(default_factory=dict)

    def start_node(self, k: int, program: tuple[str, ...] = ("-m", "sparsona")) -> None:
        """Start node k, or start it again."""
        where = [] if self.data_dir is None else ["--data-dir", str(self.data_dir.resolve())]
        where += ["--device", self.device, *(["--allow-plugins"] if self.plugins else [])]
        command = [
            *(sys.executable, *program, "fleet", "node", f"127.0.0.1:{self.port}"),
            *("--client", str(k), "--home", str(self.top / f"node-{k}"), "--trial-part", *where),
            *("--ca", str(self.home.keys / "ca.crt"), "--key", str(self.home.keys / f"node-{k}.key")),
        ]
        self.nodes[k] = Child(command, self.top / f"node-{k}.log", environment(self.top))

    def start_server(self) -> None:
        """Start the server, or start it again."""
        self.server = start_superlink(self.home, "127.0.0.1", self.port, secure=True)


@contextmanager
def loopback(nodes: int, data_dir: Path | None = None) -> Iterator[Loopback]:
    """A server with TLS that knows the keys of so many nodes; they are still to be started."""
    needs_flower()
    top = Path(tempfile.mkdtemp(prefix="sparsona-trial-"))
    world = Loopback(top, Home(top / "server"), free_port(), data_dir)
    try:
        make_authority(world.home.keys, ["127.0.0.1", "localhost"], days=2)
        for k in range(nodes):
            make_node_key(world.home.keys, f"node-{k}", k)
        world.start_server()
        register(world.home)
        yield world
    finally:
        stop_all([child for child in (world.server, *world.nodes.values()) if child is not None])
        shutil.rmtree(top, ignore_errors=True)


def trial(
    recipe: Recipe,
    folder: Path,
    data_dir: Path | None,
    listen: Callable[[Progress], None],
    say: Callable[[str], None],
    device: str = "auto",
) -> Run:
    """Run a recipe on a fleet of processes with one node for each client, and leave nothing behind but the run."""
    nodes = recipe.data.clients
    say(f"starting a server and {nodes} nodes on this machine")
    with loopback(nodes, data_dir) as world:
        world.device = device
        world.plugins = any(plugin_names(tables(recipe)))  # who runs the trial has chosen the recipe, and its plug-ins
        for k in range(nodes):
            world.start_node(k)
        try:
            run = run_on_fleet(world.home, recipe, folder, listen, say, wait=300.0)
        except FleetError as error:
            ended = [c for c in world.nodes.values() if c.ended]
            raise FleetError(f"{error}{''.join(f'; {c.log.name}: {c.last_words()}' for c in ended)}") from error
        collect(run, world.top)
        return run


def collect(run: Run, top: Path) -> None:
    """Take what the devices keep into the run's folder, as a simulation leaves it: on a real fleet it stays there."""
    state = run.path / "state"
    fleet_run = json.loads((run.path / "run.json").read_text())["fleet_run"]
    for k, version in json.loads((state / "versions.json").read_text()).items():
        value = top / f"node-{k}" / fleet_run / f"{version}.value"
        write(state / f"client-{int(k):05d}.safetensors", value.read_bytes())
    for k in newcomers(run.recipe):  # they have but one value, which no round knows of
        for value in (top / f"node-{k}" / fleet_run).glob("*.value"):
            write(state / f"client-{k:05d}.safetensors", value.read_bytes())
    (state / "versions.json").unlink()
    if run.recipe.results.models:
        (run.path / "models").mkdir(exist_ok=True)
        for k in range(run.recipe.data.clients):
            model = top / f"node-{k}" / fleet_run / "model.safetensors"
            if model.is_file():
                write(run.path / "models" / f"client-{k:05d}.safetensors", model.read_bytes())
