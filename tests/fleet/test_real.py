"""A fleet of processes on loopback, with TLS and node keys: as in the simulator to the bit, also when it is shaken."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sparsona[flower]'")

from fleet.test_fleet import files
from fleet.test_trouble import events
from small import recipe
from sparsona.config import tables, to_toml
from sparsona.fleet.server import run_on_fleet
from sparsona.fleet.trial import collect, loopback, suited
from sparsona.runner import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def quiet(*_):
    pass


def left_behind(top: Path) -> list[str]:
    """Processes of Flower's or of ours that have to do with a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(top) in line and str(os.getpid()) != entry.parent.name:
                found.append(line)
    return found


@pytest.fixture(scope="module")
def fleet():
    """Two nodes that are there for several runs."""
    with loopback(2) as world:
        for k in range(2):
            world.start_node(k)
        yield world
    assert left_behind(world.top) == []


METHODS = ["fedspa", "ditto", "dadpfl"]  # all methods are compared in one process by test_fleet.py


@pytest.mark.parametrize("method", METHODS)
def test_a_real_fleet_equals_local_to_the_bit(method, fleet, tmp_path):
    more = {"topology": {"neighbours": 1, "max_wait": 1}} if method == "dadpfl" else {}
    r = suited(recipe(method, rounds=2, **more), 2)
    run(r, tmp_path / "local")
    done = run_on_fleet(fleet.home, r, tmp_path / "fleet", quiet, quiet, wait=300)
    collect(done, fleet.top)
    assert files(tmp_path / "fleet") == files(tmp_path / "local")


def test_chaos(tmp_path):
    """Nodes are killed and come back, one lies, the server process is killed: all is named, the honest are intact."""
    rounds, honest = 12, (0, 1, 2)
    r = suited(recipe("ditto", rounds=rounds, evaluate={"every": rounds}, fleet={"per_round": 4, "timeout": 25.0}), 4)
    draw = random.Random(7)
    over = threading.Event()
    struck: list[str] = []
    with loopback(4) as world:
        for k in honest:
            world.start_node(k)
        world.start_node(3, (str(Path(__file__).with_name("liar.py")),))

        def shake():
            killed = False
            while not over.wait(draw.uniform(10, 30)):
                done = (tmp_path / "fleet" / "rounds.jsonl").is_file()
                if done and not killed:
                    (pid,) = (world.home.path / "orders").glob("*/pid")
                    with suppress(ProcessLookupError):
                        os.kill(int(pid.read_text()), signal.SIGKILL)
                        struck.append("server")
                        killed = True
                    continue
                k = draw.choice(honest)
                if done and world.nodes[k].process.poll() is None:
                    os.kill(world.nodes[k].process.pid, signal.SIGKILL)
                    struck.append(f"node {k}")
                    over.wait(draw.uniform(0, 5))
                    world.nodes[k].stop(0)
                    if not over.is_set():
                        world.start_node(k)

        thread = threading.Thread(target=shake)
        thread.start()
        try:
            done = run_on_fleet(world.home, r, tmp_path / "fleet", quiet, print, wait=300)
        finally:
            over.set()
            thread.join()
        versions = json.loads((done.path / "state" / "versions.json").read_text())
        name = json.loads((done.path / "run.json").read_text())["fleet_run"]
        for k in honest:  # what the server believes is what the device has
            assert (world.top / f"node-{k}" / name / f"{versions[str(k)]}.value").is_file()
            trained = sum(k not in row["left_out"] for row in done.rounds)
            assert versions[str(k)].startswith(f"{trained - 1}-")
    assert "server" in struck
    assert len(struck) >= 3
    whys = {why for row in done.rounds for k, why in row.get("why_left_out", {}).items() if k == "3"}
    assert "NaN or Inf" in whys
    assert any("from is" in why or "parcel" in why or "theta" in why for why in whys)
    assert "resumed" in {e["event"] for e in events(done.path)}
    assert done.summary["accuracy"] > 0.5
    assert left_behind(world.top) == []


def test_the_trial_command(tmp_path):
    """What a user types: it prints the result, writes an ordinary run folder, and Ctrl-C leaves nothing behind."""
    r = recipe("fedavg", rounds=2, data={"clients": 2}, fleet={"per_round": 2})
    (tmp_path / "small.toml").write_text(to_toml(tables(r)))
    command = [sys.executable, "-m", "sparsona", "fleet", "trial", "small.toml", "--nodes", "2", "--out", "run"]
    here = {"cwd": tmp_path, "env": os.environ | {"TMPDIR": str(tmp_path)}, "text": True}
    done = subprocess.run(command, capture_output=True, timeout=900, **here)
    assert done.returncode == 0, done.stderr
    assert "results: run" in done.stdout
    run(r, tmp_path / "local")
    assert files(tmp_path / "run") == files(tmp_path / "local")
    assert not any(b"PRIVATE KEY" in p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())
    assert left_behind(tmp_path) == []
    process = subprocess.Popen([*command[:-1], "stopped"], stderr=subprocess.PIPE, **here)
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert "error: stopped" in err
    assert left_behind(tmp_path) == []
    assert list(tmp_path.glob("sparsona-*")) == []
