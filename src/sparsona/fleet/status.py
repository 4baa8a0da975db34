"""What a fleet and its runs show of themselves: events, status.json, and the nodes that are online."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sparsona.core.text import one_line
from sparsona.experiment.results import Journal
from sparsona.fleet.home import CONNECTION, Home
from sparsona.fleet.processes import flwr


def fleet_status(home: Home) -> dict[str, Any]:
    """The nodes, and how far the latest run is."""
    home.address()  # or there is nobody to ask
    names = json.loads(home.nodes.read_text()) if home.nodes.is_file() else {}
    nodes = []
    for node in flwr(home.path, "supernode", "list", CONNECTION).get("nodes", []):
        known = names.get(node["node-id"], {"name": "", "client": None})
        nodes.append(known | {"node": node["node-id"], "status": node["status"], "online_at": node["online-at"]})
    run: dict[str, Any] = json.loads(home.status.read_text()) if home.status.is_file() else {}
    return {"nodes": sorted(nodes, key=lambda n: str(n["client"])), "run": run}


def mark_status(home: Home, folder: Path, state: str) -> None:
    """Set the state of a run in the server's status file, if it is the run that wrote it last."""
    with suppress(OSError, ValueError):
        run = json.loads(home.status.read_text())
        if run["folder"] == str(folder.resolve()):
            write_status(home.status, run | {"state": state})


def write_status(path: Path, run: dict[str, Any]) -> None:
    """Replace what ``fleet status`` reads; runs of one server share it, and none may fail for it."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with suppress(OSError):
        part.write_text(json.dumps(run) + "\n")
        part.replace(path)


class RunStatus:
    """The status of a run while it is at work; a resumed run continues its counts."""

    def __init__(self, path: str | None, run: str, folder: Path, rounds: int) -> None:
        self._path = None if path is None else Path(path)
        self._about = {"run": run, "folder": str(folder), "rounds": rounds}
        self.traffic: dict[int, dict[str, Any]] = {}  # by client: when last seen, bytes
        with suppress(OSError, ValueError, KeyError):
            before = json.loads(self._path.read_text()) if self._path is not None else {}
            if before["run"] == run:
                self.traffic = {int(k): seen for k, seen in before["clients"].items()}

    def write(self, rounds_done: int) -> None:
        """Write how far it is."""
        clients = {str(k): seen for k, seen in sorted(self.traffic.items())}
        if self._path is not None:
            status = self._about | {"round": rounds_done, "state": "running", "time": time.time(), "clients": clients}
            write_status(self._path, status)


class EventLog:
    """Events besides the rounds: fleet.jsonl in the run's folder, once there is one."""

    def __init__(self, folder: Path, copy: Path) -> None:
        self._folder = folder
        self._copy = copy  # the same at once, for the process that waits
        self._journal: Journal | None = None
        self._early: list[dict[str, Any]] = []

    def open(self) -> None:
        """Begin to write, if the run's folder is there."""
        if self._journal is None and (self._folder / "recipe.toml").is_file():
            self._journal = Journal(self._folder / "fleet.jsonl")
            self._journal.add(*self._early)

    def add(self, event: dict[str, Any]) -> None:
        """Add an event."""
        row = {"time": round(time.time(), 3)} | event
        with self._copy.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if self._journal is None:
            self._early.append(row)
        else:
            self._journal.add(row)

    def close(self) -> None:
        """Close the file."""
        if self._journal is not None:
            self._journal.close()


def describe_event(event: dict[str, Any], names: Mapping[int, str]) -> str:
    """An event as a line of text."""
    details = {key: value for key, value in event.items() if key not in ("time", "event")}

    def who(k: Any) -> str:
        return f"{k} ({names[k]})" if k in names else str(k)

    if "clients" in details:
        details["clients"] = ", ".join(map(who, details["clients"]))
    if "client" in details:
        details["client"] = who(details["client"])
    why = details.pop("why", None)
    what = ", ".join(f"{key} {value}" for key, value in details.items())
    return one_line(str(event["event"]) + (f": {what}" if what else "") + (f": {why}" if why else ""))
