"""A fleet's server process: Flower's SuperLink, kept running, with the keys of a folder registered."""

from __future__ import annotations

import datetime
import json
import re
import sys
import time
from collections.abc import Callable
from typing import Any

from sparsona.experiment.results import write
from sparsona.fleet import FleetError, needs_flower
from sparsona.fleet.home import CONNECTION, Home, reachable_host
from sparsona.fleet.keys import check_certificate, roster
from sparsona.fleet.processes import (
    Child,
    environment,
    exclusive_lock,
    flwr,
    port_is_free,
    stop_all,
    wait_until_reachable,
)

_STRANGER = "No SuperNode found with the given public key"  # what Flower's log says of a key that it does not know
_UNSIGNED = '/v1/fleet/activate-node HTTP/1.1" 401'  # of one whose signature is too old or from the future
_TWICE = re.compile(r"SuperNode with node ID (\d+) could not be activated")  # and of one that is in use
_SOON = datetime.timedelta(days=30)  # before its certificate ends, the server says so
_QUIET = 120.0  # seconds without a refusal after which the same one is news again


def start_superlink(home: Home, host: str, port: int, secure: bool) -> Child:
    """Start a SuperLink and wait until it listens."""
    needs_flower()
    from sparsona.fleet.flower import GUARDED

    if not port_is_free(host, port):
        raise FleetError(f"port: {port} of {host} is in use; choose another with --port")
    if secure:
        check_certificate(home.keys / "ca.crt")
        check_certificate(home.keys / "server.pem", reachable_host(host))
    home.write_settings(host, port, secure)
    trust = ["--insecure"]
    if secure:
        names = {"ca-certfile": "ca.crt", "certfile": "server.pem", "keyfile": "server.key"}
        trust = [word for option, name in names.items() for word in (f"--ssl-{option}", str(home.keys / name))]
        trust.append("--enable-supernode-auth")
    command = [
        *(sys.executable, "-P", "-m", "sparsona.fleet.flower"),
        *("--host", host, "--port", str(port), *trust, "--database", str(home.path / "flower.sqlite")),
        "--disable-runtime-dependency-installation",
    ]
    child = Child(command, home.path / "superlink.log", environment(home.path))
    try:
        wait_until_reachable(child, reachable_host(host), port)
        if GUARDED not in child.news():
            raise FleetError(
                "this version of Flower is not supported; install a supported one with: pip install 'sparsona[flower]'"
            )
    except BaseException:
        child.stop()
        raise
    return child


def register(home: Home, say: Callable[[str], None] = lambda text: None) -> None:
    """Let the SuperLink know the keys of the fleet; those that it knows already stay."""
    known: dict[str, Any] = json.loads(home.nodes.read_text()) if home.nodes.is_file() else {}
    for client, (name, file) in roster(home.keys).items():
        try:
            node = flwr(home.path, "supernode", "register", str(file.resolve()), CONNECTION, "--name", name)
        except FleetError as error:
            if "already" not in str(error).lower():
                raise
            unnamed = [] if client in {n["client"] for n in known.values()} else _unnamed(home, known)
            if len(unnamed) != 1:
                continue
            node = {"node-id": unnamed[0]}  # we were killed after it was registered and before it was noted
        known[str(node["node-id"])] = {"name": name, "client": client}
        write(home.nodes, json.dumps(known, indent=1) + "\n")
        say(f"registered node {name} as client {client}")


def _unnamed(home: Home, known: dict[str, Any]) -> list[str]:
    """Registered nodes of which we know nothing."""
    nodes = flwr(home.path, "supernode", "list", CONNECTION).get("nodes", [])
    return [node["node-id"] for node in nodes if node["node-id"] not in known]


def run_server(home: Home, host: str, port: int, secure: bool, say: Callable[[str], None]) -> None:
    """Keep a SuperLink running until stopped; one that ends is started again, with all it knew."""
    with exclusive_lock(
        home.path / "server.lock", f"{home.path}: another server is running here; give each server its own folder"
    ):
        _keep_running(home, host, port, secure, say)


def _keep_running(home: Home, host: str, port: int, secure: bool, say: Callable[[str], None]) -> None:
    child = start_superlink(home, host, port, secure)
    try:
        if secure:
            register(home, say)
            child.news()  # whoever came before its key was registered comes again
        last_logged: dict[str, float] = {}
        warnings = _warnings(check_certificate(home.keys / "server.pem")) if secure else []
        say(f"the server listens on {host}:{port}" + (f"; keys of the fleet: {home.keys}" if secure else ""))
        while True:
            time.sleep(0.5)
            while warnings and datetime.datetime.now(datetime.UTC) >= warnings[0][0]:
                say(warnings.pop(0)[1])
            for line in refusals(child.news(), home):
                if time.monotonic() - last_logged.get(line, -_QUIET) >= _QUIET:
                    say(line)
                last_logged[line] = time.monotonic()
            if child.ended:
                say(f"the SuperLink ended: {child.last_words()}; restarting it")
                child.stop()
                time.sleep(1)
                child = start_superlink(home, host, port, secure)
    finally:
        stop_all([child])


def _warnings(ends: datetime.datetime) -> list[tuple[datetime.datetime, str]]:
    """What to say when of a certificate that ends; nodes that do not trust it never get as far as we could see them."""
    when = f"{ends:%Y-%m-%d %H:%M} UTC"
    return [
        (ends - _SOON, f"the server's certificate expires on {when}: make new keys before, or no node can connect"),
        (ends, f"the server's certificate expired on {when}: make new keys, as no node can connect"),
    ]


def refusals(news: str, home: Home) -> list[str]:
    """What Flower's log says about nodes that it refused, in our words."""
    names = json.loads(home.nodes.read_text()) if home.nodes.is_file() else {}
    lines = [
        f"{names.get(node, {}).get('name', f'node {node}')} was refused: another node with its key is online, or was "
        "until a moment ago"
        for node in sorted(set(_TWICE.findall(news)))
    ]
    if _UNSIGNED in news:
        lines.append("a node was refused: its signature is not valid, as its clock or this server's clock is wrong")
    if _STRANGER in news:
        lines.append(
            "a node was refused: its key is not registered; put its .pub file into keys and restart the server"
        )
    return lines
