"""Runs on a fleet, as whoever starts them sees it: an order to the server, followed until it is carried out."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sparsona.experiment.loop import Progress
from sparsona.experiment.recipe import Recipe, tables
from sparsona.experiment.results import Run, write
from sparsona.fleet import FleetError
from sparsona.fleet.envelope import MAX_BYTES
from sparsona.fleet.home import CONNECTION, Home
from sparsona.fleet.keys import roster
from sparsona.fleet.processes import flwr, reachable
from sparsona.fleet.status import describe_event, mark_status

_STARTS_WITHIN = 180.0  # seconds

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
SERVER_APP = """from sparsona.fleet.flower import server_app
from sparsona.fleet.coordinator import main

app = server_app(main)
"""
CLIENT_APP = """from sparsona.fleet.flower import client_app

app = client_app()
"""


def run_on_fleet(
    home: Home,
    recipe: Recipe,
    folder: Path,
    listen: Callable[[Progress], None],
    say: Callable[[str], None],
    wait: float = 120.0,
    max_bytes: int = MAX_BYTES,
) -> Run:
    """Run a recipe on a fleet, or resume it; a server process that dies is restarted from its checkpoint."""
    host, port = home.address()
    stuck, rounds = 0, -1
    names = {client: name for client, (name, _) in roster(home.keys).items()} if home.secure else {}
    with _order(home, recipe, folder, wait, max_bytes) as work:
        try:
            while True:
                (work / "pid").unlink(missing_ok=True)  # before: the next process may be quick to write its own
                _submit(home, work, 1 if rounds < 0 else 10)
                if _follow(work, folder, recipe, listen, lambda event: say(describe_event(event, names))):
                    mark_status(home, folder, "finished")
                    return Run.open(folder)
                now = _rounds_done(folder)
                stuck, rounds = (stuck + 1 if now == rounds else 1), now
                if stuck > 3:
                    log = home.path / "superlink.log"
                    raise FleetError(f"the server process died {stuck} times in round {now + 1}; see {log}")
                say(f"the server process died after round {now}; resuming from its checkpoint")
                end = time.monotonic() + 300
                while not reachable(host, port) and time.monotonic() < end:
                    time.sleep(0.5)
        except BaseException:
            _end_process(work)  # Flower notices that it is gone
            mark_status(home, folder, "stopped" if (folder / "recipe.toml").is_file() else "not started")
            raise


@contextmanager
def _order(home: Home, recipe: Recipe, folder: Path, wait: float, max_bytes: int) -> Iterator[Path]:
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
        order = {
            "recipe": tables(recipe),
            "folder": str(folder.resolve()),
            "keys": keys,
            "wait": wait,
            "max_bytes": max_bytes,
            "plugins": str(Path.cwd()),  # where plug-ins of the recipe are looked for, besides those installed
        }
        write(work / "order.json", json.dumps(order | {"status": str(home.status.resolve())}))
        (work / "app" / "pyproject.toml").write_text(APP.format(order=json.dumps(str(work))))
        (package / "__init__.py").write_text("")
        (package / "server.py").write_text(SERVER_APP)
        (package / "client.py").write_text(CLIENT_APP)
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


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


def _follow(
    work: Path,
    folder: Path,
    recipe: Recipe,
    listen: Callable[[Progress], None],
    on_event: Callable[[dict[str, Any]], None],
) -> bool:
    """Report rounds as they end; True when the run has ended, False if its process died; its errors are raised."""
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
            on_event(event)
        if failed:
            reason, _, trace = (work / "error").read_text().partition("\n")
            if trace and os.environ.get("SPARSONA_DEBUG"):
                print(trace, file=sys.stderr)
            raise FleetError(reason)
        finished = (work / "done").is_file()
        if rows := [row for row in rounds.news() if row["round"] > seen]:  # a repeated round was shown before
            times = {row["round"]: row["seconds"] for row in timing.news()}
            for row in rows:
                listen(Progress(row["round"], recipe.rounds, row, times.get(row["round"], 0.0)))
            seen = rows[-1]["round"]
        if finished:
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
    pids = [work.name.partition("-")[0]]
    with suppress(OSError):
        pids.append((work / "pid").read_text())
    return [int(pid) for pid in pids if pid.isdigit()]


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
    """A node's public key as Flower passes it to the server."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    key = load_ssh_public_key(file.read_bytes())
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode("ascii")
