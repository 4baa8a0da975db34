"""Run a fleet of devices over Flower, or try one on this machine."""
# more than 400 lines, because the functions are public and their docstrings describe every argument

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsona.api.figures import draw
from sparsona.api.folders import free_folder
from sparsona.data import SOURCES
from sparsona.engines.hardware import Machine, devices_of
from sparsona.experiment.checking import RecipeError
from sparsona.experiment.loop import OnRound, Progress
from sparsona.experiment.plan import load
from sparsona.experiment.recipe import Recipe
from sparsona.experiment.results import Run, vacant
from sparsona.fleet import FleetError, needs_flower
from sparsona.fleet import trial as trials
from sparsona.fleet.data import NodeData
from sparsona.fleet.envelope import MAX_BYTES
from sparsona.fleet.home import Home
from sparsona.fleet.keys import NODE_NAME, make_authority, make_node_key, roster
from sparsona.fleet.node import NodeOptions, run_node
from sparsona.fleet.orders import run_on_fleet
from sparsona.fleet.status import fleet_status
from sparsona.fleet.superlink import run_server
from sparsona.reports.display import Part, text_table

MOST_MB = MAX_BYTES >> 20  # of a message, by default
Say = Callable[[str], None]  # called with a status line


@dataclass(frozen=True, repr=False)
class FleetRun:
    """A run on a fleet, planned by ``plan_fleet_run`` or ``plan_fleet_trial``.

    Attributes:
        recipe: The recipe, with all defaults.
        folder: Its run folder.
    """

    recipe: Recipe
    folder: Path

    def __repr__(self) -> str:
        return f"FleetRun({self.recipe.name} in {str(self.folder)!r})"


@dataclass(frozen=True)
class MadeKeys:
    """The keys that ``make_keys`` created."""

    folder: Path
    authority: bool  # whether an authority and a server certificate are among them
    clients: dict[str, int]  # by the name of the node

    def json(self) -> dict[str, Any]:
        """The keys as plain values."""
        return {"folder": str(self.folder), "authority": self.authority, "clients": self.clients}

    def render(self, width: int) -> Iterator[Part]:
        """Where to keep each key."""
        if self.authority:
            yield f"keep {self.folder}/server.key on the server; copy {self.folder}/ca.crt to every node"
        for name, k in self.clients.items():
            yield f"client {k}: copy {name}.key only to this node; keep {name}.pub on the server"


@dataclass(frozen=True, repr=False)
class FleetStatus:
    """The nodes of a fleet, and the progress of its latest run."""

    nodes: list[dict[str, Any]]
    run: dict[str, Any]  # empty if there was none

    def __repr__(self) -> str:
        return f"FleetStatus({len(self.nodes)} nodes, round {self.run.get('round', 0)} of {self.run.get('rounds', 0)})"

    def json(self) -> dict[str, Any]:
        """The status as plain values."""
        return {"nodes": self.nodes, "run": self.run}

    def render(self, width: int) -> Iterator[Part]:
        """The latest run, and a row per node."""
        run, now = self.run, time.time()
        if run:
            state = run.get("state", "running")
            yield f"{state}, round {run['round']} of {run['rounds']}, {_ago(run['time'], now)}: {run['folder']}"
        rows = []
        for node in self.nodes:
            seen = run.get("clients", {}).get(str(node["client"]), {})
            last = _ago(seen["seen"], now) if seen.get("seen") else ""
            traffic = (f"{seen.get(way, 0) / 1e6:.1f}" for way in ("up", "down"))
            rows.append((str(node["client"]), node["name"], node["status"], last, *traffic))
        yield text_table(("client", "node", "state", "last answer", "received (MB)", "sent (MB)"), rows)


def plan_trial(
    recipe: str,
    overrides: Iterable[str] = (),
    only: Sequence[str] = (),
    *,
    nodes: int | None = None,
    out: str | Path | None = None,
) -> FleetRun:
    """Plan a trial of a fleet on this machine. Nothing is started.

    Args:
        recipe: Name of a built-in recipe, or path of a TOML file.
        overrides: Fields to change, each as ``key=value``.
        only: The variant to run, if the recipe has several.
        nodes: Number of nodes, one per client. Default: data.clients if ``overrides`` set it, else 4.
        out: Run folder. Default: runs/NAME-1, -2, ...

    Returns:
        The planned run, for ``fleet_trial``.
    """
    needs_flower()
    overrides = tuple(overrides)
    single = _single(recipe, overrides, only)
    chosen = trials.suited(single, trials.node_count(single, overrides, nodes))
    folder = Path(out or free_folder(Path("runs"), chosen.name))
    vacant(folder)
    return FleetRun(chosen, folder)


def trial(
    planned: FleetRun,
    *,
    device: str = "auto",
    data_dir: Path | None = None,
    on_round: OnRound | None = None,
    say: Say | None = None,
) -> Run:
    """Run a recipe with a server and nodes as local processes, with TLS and temporary keys.

    Args:
        planned: What ``plan_fleet_trial`` returned.
        device: Training device of all nodes: auto, cpu, cuda, cuda:1 or mps.
        data_dir: Folder with the data sets; by default SPARSONA_DATA.
        on_round: Called with a Progress after every round.
        say: Called with status lines.

    Returns:
        The finished run.

    Examples:
        >>> planned = sparsona.plan_fleet_trial("quickstart", ["rounds=3"], only=["personal"], nodes=4)
        >>> run = sparsona.fleet_trial(planned, say=print)
    """
    devices_of(device, Machine.here())
    run = trials.trial(planned.recipe, planned.folder, data_dir, on_round or _no_round, say or _no_line, device)
    draw(run)
    return run


def make_keys(
    folder: str | Path,
    hosts: Sequence[str] = (),
    nodes: Sequence[str] = (),
    *,
    first: int = 0,
    days: int = 365,
) -> MadeKeys:
    """Create a certificate authority and a server certificate for ``hosts``, keys for ``nodes``, or both.

    Args:
        folder: Output folder; HOME/keys for a server with the folder HOME.
        hosts: Host names and addresses of the server.
        nodes: Node names, one client each, in order.
        first: Client number of the first node.
        days: Days until the certificate expires.

    Returns:
        The names of the keys, and the client of each.
    """
    needs_flower()
    folder = Path(folder)
    if not hosts and not nodes:
        raise RecipeError(
            "host, nodes: both are missing; give at least one, such as --host 192.168.0.5 --nodes north,south"
        )
    if not 1 <= days <= 3650:
        raise RecipeError(f"days: {days} is not allowed; expected an int in [1, 3650]")
    if first < 0:
        raise RecipeError(f"first: {first} is not allowed; expected an int >= 0")
    for name in nodes:
        if not NODE_NAME.fullmatch(name):
            raise RecipeError(
                f'nodes: "{name}" is not allowed; expected at most 41 lower-case letters, digits and dashes'
            )
    if len(set(nodes)) < len(nodes):
        raise RecipeError(f"nodes: {','.join(nodes)} is not allowed; expected each name once")
    taken = roster(folder) if folder.is_dir() else {}
    for k in range(first, first + len(nodes)):
        if k in taken:
            lost = "choose another --first; to replace a lost key, see docs/deploy.md"
            raise RecipeError(f"{taken[k][1]} is already the key of client {k}; {lost}")
    if hosts:
        make_authority(folder, [*hosts, *(h for h in ("127.0.0.1", "localhost") if h not in hosts)], days)
    for k, name in enumerate(nodes, start=first):
        make_node_key(folder, name, k)
    return MadeKeys(folder, bool(hosts), {name: k for k, name in enumerate(nodes, start=first)})


def serve(
    home: str | Path, host: str = "127.0.0.1", port: int = 8000, *, insecure: bool = False, say: Say | None = None
) -> None:
    """Run the fleet's server until it is stopped.

    Args:
        home: Server folder with its keys, database and run status.
        host: Address to listen on; 0.0.0.0 means all network interfaces.
        port: Port to listen on.
        insecure: Disable TLS and keys; for trusted networks only.
        say: Called with status lines.
    """
    needs_flower()
    run_server(Home(Path(home)), host, port, not insecure, say or _no_line)


def node(
    server: str,
    client: int,
    *,
    home: Path = Path("node"),
    data: str | Path | None = None,
    source: str | None = None,
    trial_part: bool = False,
    classes: int | Sequence[str] | None = None,
    encoding: str | Path | None = None,
    authority: Path | None = None,
    key: Path | None = None,
    insecure: bool = False,
    plugins: bool = False,
    device: str = "auto",
    max_mb: int = MOST_MB,
    data_dir: Path | None = None,
    say: Say | None = None,
) -> None:
    """Run a node of a fleet until it is stopped: train and test on local data when the server asks.

    Give exactly one of ``data``, ``source`` and ``trial_part``.

    Args:
        server: Server address, host:port.
        client: Client number of this node, from 0.
        home: Folder for the client's state between rounds.
        data: Local data: a file, a folder or package.module:name.
        source: A built-in data set in ``data_dir``, used in full by this node.
        trial_part: Use this client's part of the recipe's data set, for trials.
        classes: With ``data``: number of classes in the whole fleet, or their names.
        encoding: With ``data``: file of scales, categories and classes, the same for all nodes.
        authority: CA certificate of the fleet (ca.crt).
        key: Private key of this node.
        insecure: Disable TLS and keys; for trusted networks only.
        plugins: Allow recipes to use methods, models and functions installed here.
        device: Training device: auto, cpu, cuda, cuda:1 or mps.
        max_mb: Maximum message size in MB.
        data_dir: Folder with the data sets; by default SPARSONA_DATA.
        say: Called with status lines.
    """
    needs_flower()
    given = [name for name, value in (("data", data), ("source", source), ("trial-part", trial_part)) if value]
    if len(given) != 1:
        raise RecipeError(
            f"data: {' and '.join(given) or 'nothing'} is given; expected exactly one of --data, "
            "--source and --trial-part"
        )
    if client < 0:
        raise RecipeError(f"client: {client} is not allowed; expected an int >= 0")
    if source is not None and source not in SOURCES:
        raise RecipeError(f'source: "{source}" is not allowed; expected one of {", ".join(SOURCES)}')
    if classes is not None and (data is None or (classes if isinstance(classes, int) else len(classes)) < 2):
        raise RecipeError(f"classes: {classes} is not allowed; expected at least 2 classes, together with --data")
    if data is not None and ":" in str(data) and not Path(data).exists() and not plugins:
        raise RecipeError(f'data: "{data}" imports your own code; allow it with --allow-plugins')
    if encoding is not None and data is None:
        raise RecipeError(f'encoding: "{encoding}" is not allowed without --data')
    fixed = classes if isinstance(classes, int | None) else tuple(classes)
    own = NodeData(data, source, data_dir, fixed, encoding, plugins, device)
    options = NodeOptions(server, client, home, own, authority, key, insecure, _nbytes(max_mb))
    run_node(options, say or _no_line)


def plan_run(
    home: str | Path,
    recipe: str,
    overrides: Iterable[str] = (),
    only: Sequence[str] = (),
    *,
    out: str | Path | None = None,
) -> FleetRun:
    """Plan a run on a fleet. Nothing is started.

    Args:
        home: Server folder.
        recipe: Name of a built-in recipe, path of a TOML file, or a run folder to resume.
        overrides: Fields to change, each as ``key=value``.
        only: The variant to run, if the recipe has several.
        out: Run folder. Default: runs/NAME-1, -2, ...

    Returns:
        The planned run, for ``fleet_run``.
    """
    needs_flower()
    if (Path(recipe) / "recipe.toml").is_file():
        if list(overrides) or only or out:
            raise RecipeError(f"{recipe}: a resumed run takes no overrides, only and out; remove them")
        return FleetRun(Run.open(recipe).recipe, Path(recipe))
    chosen = _single(recipe, overrides, only)
    if chosen.data.clients is None:
        raise RecipeError("data.clients is missing; set the number of clients of the fleet")
    folder = Path(out or free_folder(Path("runs"), chosen.name))
    if (folder / "recipe.toml").is_file():
        raise RecipeError(
            f"{folder} already holds a run; choose another folder, or resume it with: "
            f"sparsona fleet run {home} {folder}"
        )
    vacant(folder)
    return FleetRun(chosen, folder)


def run(
    home: str | Path,
    planned: FleetRun,
    *,
    wait: float = 120.0,
    max_mb: int = MOST_MB,
    on_round: OnRound | None = None,
    say: Say | None = None,
) -> Run:
    """Start or resume a planned run on a fleet.

    Args:
        home: Server folder; its server must be running on this machine.
        planned: What ``plan_fleet_run`` returned.
        wait: Seconds to wait for missing clients at the start.
        max_mb: Maximum message size in MB.
        on_round: Called with a Progress after every round.
        say: Called with status lines.

    Returns:
        The finished run.

    Examples:
        >>> planned = sparsona.plan_fleet_run("server", "fleet.toml", out="runs/first")
        >>> run = sparsona.fleet_run("server", planned, say=print)
    """
    if wait <= 0:
        raise RecipeError(f"wait: {wait} is not allowed; expected a number of seconds > 0")
    folder, listener = planned.folder, on_round or _no_round
    try:
        finished = run_on_fleet(
            Home(Path(home)), planned.recipe, folder, listener, say or _no_line, wait, _nbytes(max_mb)
        )
    except KeyboardInterrupt:
        again = f"; resume with: sparsona fleet run {home} {folder}" if (folder / "recipe.toml").is_file() else ""
        raise FleetError(f"stopped{again}") from None
    draw(finished)
    return finished


def status(home: str | Path) -> FleetStatus:
    """The nodes, their last answers, the current round and the traffic.

    Args:
        home: Server folder; its server must be running on this machine.

    Returns:
        The nodes, and the progress of the latest run.
    """
    needs_flower()
    return FleetStatus(**fleet_status(Home(Path(home))))


def _single(recipe: str, overrides: Iterable[str], only: Sequence[str]) -> Recipe:
    """The one run that a recipe stands for."""
    plan = load(recipe, overrides, only)
    if len(plan) != 1:
        raise RecipeError(f"{recipe}: several variants; choose one with --only: {', '.join(plan)}")
    return next(iter(plan.values()))


def _nbytes(megabytes: int) -> int:
    if not 1 <= megabytes <= 2000:
        raise RecipeError(f"max-mb: {megabytes} is not allowed; expected an int in [1, 2000]")
    return megabytes << 20


def _ago(then: float, now: float) -> str:
    spent = max(int(now - then), 0)
    return f"{spent} s ago" if spent < 120 else f"{spent // 60} min ago"


def _no_round(progress: Progress) -> None:
    pass


def _no_line(line: str) -> None:
    pass
