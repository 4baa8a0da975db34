"""A fleet's server: Flower's SuperLink, kept running, with the keys of a folder registered; and runs on it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsona.config import Recipe, tables
from sparsona.engines.parcels import MOST
from sparsona.fleet import FleetError, needs_flower
from sparsona.fleet.keys import check_certificate, roster
from sparsona.fleet.processes import (
    Child,
    environment,
    flwr,
    port_is_free,
    reachable,
    stop_all,
    wait_until_reachable,
)
from sparsona.results import Run, write
from sparsona.runner import Progress

CONNECTION = "fleet"  # the name that Flower's settings know the server by


@dataclass(frozen=True)
class Home:
    """The folder of a server: its keys, Flower's settings and database, and what a run tells of itself."""

    path: Path

    @property
    def keys(self) -> Path:
        """Where the keys lie."""
        return self.path / "keys"

    @property
    def status(home: Home) -> dict[str, Any]:
    """Who is there, and how far the run is."""
    host, port = home.address
    if not reachable(host, port, 5.0):
        raise FleetError(f"no server listens on {host}:{port}; start it with: sparsona fleet server {home.path}")
    names = json.loads(home.nodes.read_text()) if home.nodes.is_file() else {}
    nodes = []
    for node in flwr(home.path, "supernode", "list", CONNECTION).get("nodes", []):
        known = names.get(node["node-id"], {"name": "", "client": None})
        nodes.append(known | {"node": node["node-id"], "status": node["status"], "online_at": node["online-at"]})
    told: dict[str, Any] = json.loads(home.status.read_text()) if home.status.is_file() else {}
    return {"nodes": sorted(nodes, key=lambda n: str(n["client"])), "run": told}
