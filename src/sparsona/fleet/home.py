"""The folder of a fleet's server: its keys, Flower's settings and database, and the status of its runs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsona.experiment.results import write
from sparsona.fleet import FleetError
from sparsona.fleet.processes import reachable

CONNECTION = "fleet"  # the name that Flower's settings know the server by


@dataclass(frozen=True)
class Home:
    """The folder of a server."""

    path: Path

    @property
    def keys(self) -> Path:
        """Where the keys lie."""
        return self.path / "keys"

    @property
    def status(self) -> Path:
        """The status of the latest run."""
        return self.path / "status.json"

    @property
    def nodes(self) -> Path:
        """The names and clients of registered nodes, by Flower's numbers."""
        return self.path / "nodes.json"

    @property
    def secure(self) -> bool:
        """Whether it was started with TLS and node keys."""
        return bool(self._settings()["secure"])

    def address(self) -> tuple[str, int]:
        """Where the server listens; raises FleetError if it does not."""
        settings = self._settings()
        host, port = str(settings["host"]), int(settings["port"])
        if not reachable(host, port, 5.0):
            again = f"sparsona fleet server {self.path} --host {settings.get('listens', host)} --port {port}"
            trust = "" if settings["secure"] else " --insecure"
            raise FleetError(f"no server listens on {host}:{port}; start it with: {again}{trust}")
        return host, port

    def _settings(self) -> dict[str, Any]:
        try:
            settings: dict[str, Any] = json.loads((self.path / "server.json").read_text())
        except (OSError, ValueError) as error:
            again = f"sparsona fleet server {self.path}"
            raise FleetError(f"{self.path} has no server; start one with: {again}") from error
        return settings

    def write_settings(self, host: str, port: int, secure: bool) -> None:
        """What Flower's commands read, and we ourselves."""
        self.path.mkdir(parents=True, exist_ok=True)
        self.path.chmod(0o700)  # also if it was there: Flower's database in it holds updates
        trust = f'root-certificates = "{self.keys.resolve() / "ca.crt"}"' if secure else "insecure = true"
        text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
        name = f"[{reachable_host(host)}]" if ":" in host else reachable_host(host)
        write(self.path / "config.toml", f'{text}address = "{name}:{port}"\n{trust}\n')
        settings = {"host": reachable_host(host), "port": port, "secure": secure, "listens": host}
        write(self.path / "server.json", json.dumps(settings) + "\n")


def reachable_host(host: str) -> str:
    """How this machine reaches a server that listens there."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
