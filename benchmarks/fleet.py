"""What a round on a real fleet costs over Flower's own: ``python benchmarks/fleet.py [--json]``.

A server and two nodes on loopback, with TLS and keys. Bare: an app that sends as many bytes to each node and gets as
many back, over the very same processes, looking for answers as we do. Ours: rounds of FedAvg with LeNet on 64 pictures
that each node has in a file of its own, without evaluation; training itself takes some hundredths of a second. Bytes:
the nodes reach the server through a relay that counts what passes in both directions, with TLS, HTTP and all, in rounds
with a ResNet-18; what Flower says to itself while it waits is measured beforehand and taken off. Memory: all processes
of an idle node together, shared pages counted once.
"""

from __future__ import annotations

import json
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil

from common import Figure, main
from sparsona.experiment.recipe import Recipe, check
from sparsona.experiment.results import Run
from sparsona.fleet.home import CONNECTION
from sparsona.fleet.orders import APP, run_on_fleet
from sparsona.fleet.processes import Child, environment, flwr
from sparsona.fleet.trial import Loopback, loopback

NODES, ROUNDS = 2, 16
BARE = """import json, os, time
from pathlib import Path
from sparsona.fleet.flower import server_app

def main(post, config):
    work = Path(str(config["order"]))
    size, rounds = json.loads((work / "size.json").read_text())
    while len(nodes := post.nodes()) < {nodes}:
        time.sleep(0.2)
    spent = []
    for _ in range(rounds):
        began = time.perf_counter()
        data = os.urandom(size)
        out = set(post.send(node, data, 600.0) for node in nodes)
        while out:
            out -= set(reply.number for reply in post.receive(out))
            time.sleep(0.05)
        spent.append(time.perf_counter() - began)
    (work / "part").write_text(json.dumps(spent))
    (work / "part").rename(work / "spent.json")

app = server_app(main)
"""
ECHO = """from sparsona.fleet.flower import client_app

app = client_app(lambda data, context: data)
"""


def recipe(model: str, rounds: int) -> Recipe:
    """FedAvg with everybody, tested at the end alone."""
    return check(
        {
            "name": "bench",
            "rounds": rounds,
            "data": {"clients": NODES},
            "model": {"name": model},
            "method": {"name": "fedavg", "batch": 32, "lr": 0.01},
            "evaluate": {"every": rounds},
            "results": {"figures": False},
        }
    )


class Relay:
    """Passes on what comes to a port, and counts it."""

    def __init__(self, to: int) -> None:
        self.to, self.passed = to, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.to))
                for a, b in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(a, b), daemon=True).start()

    def _pass(self, a: socket.socket, b: socket.socket) -> None:
        with suppress(OSError):
            while data := a.recv(1 << 16):
                self.passed += len(data)
                b.sendall(data)
        for s in (a, b):
            with suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)


def pictures(file: Path, side: int, channels: int) -> None:
    """Random pictures for a node."""
    draw = np.random.default_rng(1)
    np.savez(file, x=draw.integers(0, 256, (80, side, side, channels), dtype=np.uint8), y=np.arange(80) % 10)


def start(world: Loopback, port: int, side: int, channels: int) -> None:
    """Start the nodes with data of their own."""
    for k in range(NODES):
        pictures(world.top / f"{k}.npz", side, channels)
        command = [
            *(sys.executable, "-m", "sparsona", "fleet", "node", f"127.0.0.1:{port}", "--client", str(k)),
            *("--home", str(world.top / f"node-{k}"), "--data", str(world.top / f"{k}.npz"), "--classes", "10"),
            *("--ca", str(world.home.keys / "ca.crt"), "--key", str(world.home.keys / f"node-{k}.key")),
        ]
        world.nodes[k] = Child(command, world.top / f"node-{k}.log", environment(world.top))


def rounds(world: Loopback, model: str, count: int) -> Run:
    """A run of ours."""
    folder = Path(tempfile.mkdtemp(dir=world.top)) / "run"
    return run_on_fleet(world.home, recipe(model, count), folder, lambda step: None, lambda text: None, wait=300)


def bare(world: Loopback, size: int) -> list[float]:
    """Seconds of round trips of Flower's own."""
    work = world.top / "bare"
    package = work / "app" / "sparsona_fleet"
    package.mkdir(parents=True)
    (work / "size.json").write_text(json.dumps([size, ROUNDS]))
    (work / "app" / "pyproject.toml").write_text(APP.format(order=json.dumps(str(work))))
    (package / "__init__.py").write_text("")
    (package / "server.py").write_text(BARE.replace("{nodes}", str(NODES)))
    (package / "client.py").write_text(ECHO)
    flwr(world.home.path, "run", str(work / "app"), CONNECTION)
    end = time.monotonic() + 600
    while not (work / "spent.json").is_file():
        if time.monotonic() > end:
            raise TimeoutError("Flower's own round trips took more than ten minutes")
        time.sleep(0.2)
    spent: list[float] = json.loads((work / "spent.json").read_text())
    shutil.rmtree(work)
    return spent


def idle_memory(world: Loopback) -> float:
    """Megabytes of a node's processes."""
    node = psutil.Process(world.nodes[0].process.pid)
    return sum(p.memory_full_info().pss for p in (node, *node.children(recursive=True))) / 1e6


def figures() -> Iterator[Figure]:
    """All figures."""
    with loopback(NODES) as world:
        start(world, world.port, 28, 1)
        done = rounds(world, "lenet", ROUNDS)
        ours = [row["seconds"] for row in done.rows("timing")][1:-1]
        each = done.rounds[0]["down"] // NODES
        theirs = bare(world, each)[1:]
        extra = statistics.mean(ours) - statistics.mean(theirs)
        name = f"fleet: a round with LeNet over a bare round trip of Flower's, of {statistics.mean(theirs):.1f} s"
        yield Figure(name, extra, "s more", 0.7, "lower")
        yield Figure("fleet: memory of an idle node", idle_memory(world), "MB", 1000, "lower")
    with loopback(NODES) as world:
        relay = Relay(world.port)
        start(world, relay.port, 32, 3)
        rounds(world, "lenet", 1)  # all is started, the app is out
        before, began = relay.passed, time.monotonic()
        time.sleep(10)
        idle = (relay.passed - before) / (time.monotonic() - began)
        before, began = relay.passed, time.monotonic()
        done = rounds(world, "resnet18-gn", 3)
        passed = relay.passed - before - idle * (time.monotonic() - began)
        total = done.summary["total"]
        tested = total["down"] / 3  # the model goes out once more for the test
        ratio = passed / (total["down"] + total["up"] + tested)
        yield Figure("fleet: bytes on the socket over bytes encoded, ResNet-18", ratio, "times", 1.05, "lower")


if __name__ == "__main__":
    main(figures)
