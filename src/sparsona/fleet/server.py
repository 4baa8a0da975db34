"""A fleet's server: Flower's SuperLink, kept running, with the keys of a folder registered; and runs on it."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsona.config import Recipe, tables
from sparsona.engines.parcels import MOST, one_line
from sparsona.fleet import FleetError, needs_flower
from sparsona.fleet.keys import check_certificate, roster
from sparsona.fleet.processes import (
    Child,
    alone,
    environment,
    flwr,
    port_is_free,
    reachable,
    stop_all,
    wait_until_reachable,
)
from sparsona.fleet.serve import tell_status
from sparsona.results import Run, write
from sparsona.runner import Progress

CONNECTION = "fleet"  # the name that Flower's settings know the server by
_STARTS_WITHIN = 180.0  # seconds
_STRANGER = "No SuperNode found with the given public key"  # what Flower's log says of a key that it does not know
_UNSIGNED = '/v1/fleet/activate-node HTTP/1.1" 401'  # of one whose signature is too old or from the future
_TWICE = re.compile(r"SuperNode with node ID (\d+) could not be activated")  # and of one that is in use
_SOON = datetime.timedelta(days=30)  # before its certificate ends, the server says so
_QUIET = 120.0  # seconds without a refusal after which the same one is news again


@dataclass(frozen=True)
class Home:
    """The folder of a server: its keys, Flower's settings and database, and what a run tells of itself."""

    path: Path

    @property
    def keys(self) -> Path:
        """Where the keys lie."""
        return self.path / "keys"

    @property
    def status(self) -> Path:
        """What a run last told."""
        return self.path / "status.json"

    @property
    def nodes(self) -> Path:
        """The names and clients of registered nodes, by Flower's numbers."""
        return self.path / "nodes.json"

    @property
    def secure(self) -> bool:
        """Whether it was started with TLS and node keys."""
        return bool(self._told()["secure"])

    def address(self) -> tuple[str, int]:
        """Where the server listens; raises FleetError if it does not."""
        told = self._told()
        host, port = str(told["host"]), int(told["port"])
        if not reachable(host, port, 5.0):
            again = f"sparsona fleet server {self.path} --host {told.get('listens', host)} --port {port}"
            trust = "" if told["secure"] else " --insecure"
            raise FleetError(f"no server listens on {host}:{port}; start it with: {again}{trust}")
        return host, port

    def _told(self) -> dict[str, Any]:
        try:
            told: dict[str, Any] = json.loads((self.path / "server.json").read_text())
        except (OSError, ValueError) as error:
            again = f"sparsona fleet server {self.path}"
            raise FleetError(f"{self.path} has no server yet; start one with: {again}") from error
        return told

    def write_settings(self, host: str, port: int, secure: bool) -> None:
        """What Flower's commands read, and we ourselves."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)  # also if it was there: Flower's database in it holds updates
        trust = f'root-certificates = "{self.keys.resolve() / "ca.crt"}"' if secure else "insecure = true"
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        name = f"[{_local(host)}]" if ":" in host else _local(host)
        write(self.path / "config.toml", f'{text}address = "{name}:{port}"\n{trust}\n')
        told = {"host": _local(host), "port": port, "secure": secure, "listens": host}
        write(self.path / "server.json", json.dumps(told) + "\n")


def start_superlink(home: Home, host: str, port: int, secure: bool) -> Child:
    """Start a SuperLink and wait until it listens."""
    needs_flower()
    from sparsona.engines.flower import GUARDED

    if not port_is_free(host, port):
        raise FleetError(f"port {port} of {host} is taken; choose another with --port")
    if secure:
        check_certificate(home.keys / "ca.crt")
        check_certificate(home.keys / "server.pem", _local(host))
    home.write_settings(host, port, secure)
    trust = ["--insecure"]
    if secure:
        names = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
        trust = [word for option, name in names.items() for word in (f"--ssl-{option}", str(home.keys / name))]
        trust.append("--enable-supernode-auth")
    command = [
        *(sys.executable, "-P", "-m", "sparsona.engines.flower"),
        *("--host", host, "--port", str(port), *trust, "--database", str(home.path / "flower.sqlite")),
        "--disable-runtime-dependency-installation",
    ]
    child = Child(command, home.path / "superlink.log", environment(home.path))
    try:
        wait_until_reachable(child, _local(host), port)
        if GUARDED not in child.news():
            raise FleetError("this version of Flower cannot be guarded: install the one that Sparsona was tested with")
    except BaseException:
        child.stop()
        raise
    return child


def register(home: Home, say: Callable[[str], None] = lambda text: None) -> None:
    """Let the SuperLink know the keys of the fleet; those that it knows already stay."""
    known: dict[str, Any] = json.loads(home.nodes.read_text()) if home.nodes.is_file() else {}
    for client, (name, file) in roster(home.keys).items():
        try:
            made = flwr(home.path, "supernode", "register", str(file.resolve()), CONNECTION, "--name", name)
        except FleetError as error:
            if "already" not in str(error).lower():
                raise
            unnamed = [] if client in {n["client"] for n in known.values()} else _unnamed(home, known)
            if len(unnamed) != 1:
                continue
            made = {"node-id": unnamed[0]}  # we were killed after it was registered and before it was noted
        known[str(made["node-id"])] = {"name": name, "client": client}
        write(home.nodes, json.dumps(known, indent=1) + "\n")
        say(f"{name} may speak for client {client}")


def _unnamed(home: Home, known: dict[str, Any]) -> list[str]:
    """Registered nodes of which we know nothing."""
    nodes = flwr(home.path, "supernode", "list", CONNECTION).get("nodes", [])
    return [node["node-id"] for node in nodes if node["node-id"] not in known]


def run_server(home: Home, host: str, port: int, secure: bool, say: Callable[[str], None]) -> None:
    """Keep a SuperLink running until stopped; one that ends is started again, with all it knew."""
    with alone(home.path / "server.lock", f"another server is at work in {home.path}; each needs a folder of its own"):
        _keep_running(home, host, port, secure, say)


def _keep_running(home: Home, host: str, port: int, secure: bool, say: Callable[[str], None]) -> None:
    child = start_superlink(home, host, port, secure)
    try:
        if secure:
            register(home, say)
            child.news()  # whoever came before its key was registered comes again
        said: dict[str, float] = {}
        warnings = _warnings(check_certificate(home.keys / "server.pem")) if secure else []
        say(f"the server listens on {host}:{port}" + (f"; the fleet's keys are in {home.keys}" if secure else ""))
        while True:
            time.sleep(0.5)
            while warnings and datetime.datetime.now(datetime.UTC) >= warnings[0][0]:
                say(warnings.pop(0)[1])
            for line in refusals(child.news(), home):
                if time.monotonic() - said.get(line, -_QUIET) >= _QUIET:
                    say(line)
                said[line] = time.monotonic()
            if child.ended:
                say(f"the SuperLink ended: {child.last_words()}; starting it again")
                child.stop()
                time.sleep(1)
                child = start_superlink(home, host, port, secure)
    finally:
        stop_all([child])


def _warnings(ends: datetime.datetime) -> list[tuple[datetime.datetime, str]]:
    """What to say when of a certificate that ends; nodes that do not trust it never get as far as we could see them."""
    when = f"{ends:%Y-%m-%d %H:%M} UTC"
    return [
        (ends - _SOON, f"the server's certificate ends on {when}: make new keys in time, or no node trusts it"),
        (ends, f"the server's certificate ended on {when}: no node can come until there are new keys"),
    ]


def refusals(news: str, home: Home) -> list[str]:
    """What Flower's log tells of nodes that it refused, in our words."""
    names = json.loads(home.nodes.read_text()) if home.nodes.is_file() else {}
    told = [
        f"{names.get(node, {}).get('name', f'node {node}')} was refused: a node with its key is there already, or was "
        "until a moment ago"
        for node in sorted(set(_TWICE.findall(news)))
    ]
    if _UNSIGNED in news:
        told.append("a node was refused: its signature is not valid; its clock or ours is wrong, by seconds or more")
    if _STRANGER in news:
        told.append("a node was refused: its key is not registered here; put its .pub file into keys and start again")
    return told


APP = """[project]
name = "sparsona-fleet"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "sparsona"

[tool.flwr.app.components]
serverapp = "sparsona_fleet.server:app"
clientapp = "sparsona_fleet.client:app"

[tool.flwr.app.config]
order = {order}
"""
SERVER_APP = """from sparsona.engines.flower import server_app
from sparsona.fleet.serve import main

app = server_app(main)
"""
CLIENT_APP = """from sparsona.engines.flower import client_app

app = client_app()
"""


def run_on_fleet(
    home: Home,
    recipe: Recipe,
    folder: Path,
    listen: Callable[[Progress], None],
    say: Callable[[str], None],
    wait: float = 120.0,
    most: int = MOST,
) -> Run:
    """Run a recipe on a fleet, or go on with it; a server process that dies is started again from its checkpoint."""
    host, port = home.address()
    stuck, rounds = 0, -1
    names = {client: name for client, (name, _) in roster(home.keys).items()} if home.secure else {}
    with _order(home, recipe, folder, wait, most) as work:
        try:
            while True:
                (work / "pid").unlink(missing_ok=True)  # before: the next process may be quick to write its own
                _submit(home, work, 1 if rounds < 0 else 10)
                if _follow(work, folder, recipe, listen, lambda event: say(in_words(event, names))):
                    _mark(home, folder, "finished")
                    return Run.open(folder)
                now = _rounds_done(folder)
                stuck, rounds = (stuck + 1 if now == rounds else 1), now
                if stuck > 3:
                    log = home.path / "superlink.log"
                    raise FleetError(f"the server process died {stuck} times in round {now + 1}; see {log}")
                say(f"the server process died after round {now}; going on from its checkpoint")
                end = time.monotonic() + 300
                while not reachable(host, port) and time.monotonic() < end:
                    time.sleep(0.5)
        except BaseException:
            _end_process(work)  # Flower notices by itself that it is gone
            _mark(home, folder, "stopped" if (folder / "recipe.toml").is_file() else "did not begin")
            raise


def _submit(home: Home, work: Path, attempts: int) -> None:
    """Give an order to the SuperLink; one that has just been started again may need a moment."""
    while True:
        attempts -= 1
        try:
            flwr(home.path, "run", str(work / "app"), CONNECTION)
            return
        except FleetError:
            if attempts <= 0:
                raise
            time.sleep(3)


def status(home: Home) -> dict[str, Any]:
    """Who is there, and how far the run is."""
    home.address()  # or there is nobody to ask
    names = json.loads(home.nodes.read_text()) if home.nodes.is_file() else {}
    nodes = []
    for node in flwr(home.path, "supernode", "list", CONNECTION).get("nodes", []):
        known = names.get(node["node-id"], {"name": "", "client": None})
        nodes.append(known | {"node": node["node-id"], "status": node["status"], "online_at": node["online-at"]})
    told: dict[str, Any] = json.loads(home.status.read_text()) if home.status.is_file() else {}
    return {"nodes": sorted(nodes, key=lambda n: str(n["client"])), "run": told}


@contextmanager
def _order(home: Home, recipe: Recipe, folder: Path, wait: float, most: int) -> Iterator[Path]:
    """A folder with what a server process is to do, and the small app that Flower carries to everybody."""
    orders = home.path.resolve() / "orders"
    for old in orders.glob("*-*"):  # of those who were killed
        if not any(_alive(pid) for pid in _pids(old)):
            shutil.rmtree(old, ignore_errors=True)
    work = orders / f"{os.getpid()}-{time.time_ns()}"
    package = work / "app" / "sparsona_fleet"
    package.mkdir(parents=True)
    try:
        keys = {_pem(file): client for client, (_, file) in roster(home.keys).items()} if home.secure else None
        told = {"recipe": tables(recipe), "folder": str(folder.resolve()), "keys": keys, "wait": wait, "most": most}
        write(work / "order.json", json.dumps(told | {"status": str(home.status.resolve())}))
        (work / "app" / "pyproject.toml").write_text(APP.format(order=json.dumps(str(work))))
        (package / "__init__.py").write_text("")
        (package / "server.py").write_text(SERVER_APP)
        (package / "client.py").write_text(CLIENT_APP)
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def in_words(event: dict[str, Any], names: Mapping[int, str]) -> str:
    """What happened on a fleet, as a line for whoever watches."""
    told = {key: value for key, value in event.items() if key not in ("time", "event")}

    def who(k: Any) -> str:
        return f"{k} ({names[k]})" if k in names else str(k)

    if "clients" in told:
        told["clients"] = ", ".join(map(who, told["clients"]))
    if "client" in told:
        told["client"] = who(told["client"])
    why = told.pop("why", None)
    what = ", ".join(f"{key} {value}" for key, value in told.items())
    return one_line(str(event["event"]) + (f": {what}" if what else "") + (f": {why}" if why else ""))


def _mark(home: Home, folder: Path, state: str) -> None:
    """Note in the server's folder that a run is over, if it is the one that told last."""
    with suppress(OSError, ValueError):
        told = json.loads(home.status.read_text())
        if told["folder"] == str(folder.resolve()):
            tell_status(home.status, told | {"state": state})


def _follow(
    work: Path,
    folder: Path,
    recipe: Recipe,
    listen: Callable[[Progress], None],
    hear: Callable[[dict[str, Any]], None],
) -> bool:
    """Show rounds as they are done; True when the run is, False if the server process died; its errors are raised."""
    events, rounds, timing = (
        _Tail(work / "events.jsonl"),
        _Tail(folder / "rounds.jsonl"),
        _Tail(folder / "timing.jsonl"),
    )
    seen = max((row["round"] for row in rounds.news()), default=0)
    events.news()
    end = time.monotonic() + _STARTS_WITHIN
    pid: int | None = None
    while True:
        alive = pid is None or _alive(pid)  # before the files, or a process that ends well might seem to have died
        if pid is None and (work / "pid").is_file():
            pid = int((work / "pid").read_text())
        failed = (work / "error").is_file()
        for event in events.news():
            hear(event)
        if failed:
            told, _, trace = (work / "error").read_text().partition("\n")
            if trace and os.environ.get("SPARSONA_DEBUG"):
                print(trace, file=sys.stderr)
            raise FleetError(told)
        done = (work / "done").is_file()
        if rows := [row for row in rounds.news() if row["round"] > seen]:  # one that is done again was shown
            times = {row["round"]: row["seconds"] for row in timing.news()}
            for row in rows:
                listen(Progress(row["round"], recipe.rounds, row, times.get(row["round"], 0.0)))
            seen = rows[-1]["round"]
        if done:
            return True
        if not alive:
            return False
        if pid is None and time.monotonic() > end:
            raise FleetError(f"the server did not start the run within {_STARTS_WITHIN:g} seconds; see superlink.log")
        time.sleep(0.2)


class _Tail:
    """What a file of JSON lines has gained since one last looked; if it was cut back, all of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def news(self) -> list[dict[str, Any]]:
        """The rows of new whole lines."""
        with suppress(FileNotFoundError), self._path.open("rb") as file:
            if file.seek(0, os.SEEK_END) < self._read:
                self._read = 0
            file.seek(self._read)
            text = file.read()
            whole = text[: text.rfind(b"\n") + 1]
            self._read += len(whole)
            return [json.loads(line) for line in whole.splitlines()]
        return []


def _end_process(work: Path) -> None:
    """See to it that the process that carried out an order is gone: it would write into the run's folder."""
    with suppress(OSError, ValueError):
        pid = int((work / "pid").read_text())
        os.kill(pid, signal.SIGTERM)
        for _ in range(50):
            if not _alive(pid):
                return
            time.sleep(0.1)
        os.kill(pid, signal.SIGKILL)


def _pids(work: Path) -> list[int]:
    """Who gave an order, and who carries it out."""
    told = [work.name.partition("-")[0]]
    with suppress(OSError):
        told.append((work / "pid").read_text())
    return [int(pid) for pid in told if pid.isdigit()]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")  # one that has ended but is not yet collected is as good as gone
        return not stat.is_file() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError, PermissionError):  # the last: somebody else's, with the same number
        return False


def _rounds_done(folder: Path) -> int:
    file = folder / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def _pem(file: Path) -> str:
    """A node's public key as Flower tells it to the server."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    key = load_ssh_public_key(file.read_bytes())
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")


def _local(host: str) -> str:
    """How this machine reaches a server that listens there."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
