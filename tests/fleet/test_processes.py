"""A fleet of processes on loopback, with TLS and node keys: as in the simulator to the bit, also when it is shaken."""

import json
import os
import random
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sparsona[flower]'")

import tomli_w

from command import ok, refused
from fleet.test_fleet import files
from fleet.test_trouble import events
from small import recipe
from sparsona.experiment.recipe import tables
from sparsona.experiment.results import Run
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.fleet.orders import _rounds_done, run_on_fleet
from sparsona.fleet.processes import Child, environment, free_port, stop_all
from sparsona.fleet.trial import collect, loopback, suited
from sparsona.fleet.versions import VersionedState
from sparsona.methods import METHODS
from sparsona.reports import participation

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def quiet(*_):
    pass


@pytest.fixture(autouse=True)
def mark(monkeypatch, tmp_path):
    """What all processes that a test starts have in their environment, and none may outlive it."""
    monkeypatch.setenv("SPARSONA_TEST", str(tmp_path))
    mine = f"SPARSONA_TEST={tmp_path}".encode()
    yield mine
    left = left_behind(mine)
    for pid in left:  # a test that failed may leave some; the next one shall not have them beside it
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert list(left.values()) == []


def left_behind(mark: bytes, seconds: float = 20.0) -> dict[int, str]:
    """Processes of a test that are still there; those that were told to end get a moment."""
    end = time.monotonic() + seconds
    while True:
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(entry.name)] = words.decode(errors="replace")
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.5)


def kill_hard(pid: int) -> None:
    """Kill a process and all that it started, at once, so that none of them can say goodbye."""
    family = [pid]
    for one in family:  # it grows
        with suppress(OSError):
            family += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    for one in family:
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def until(what, seconds=300.0):
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.2)


def equal_on_a_fleet(methods, at, together):
    """One fleet for several runs, some at a time: it takes long to start, and a run mostly waits for Flower."""
    clients = {method: 3 if method == "beer" else 2 for method in methods}  # its neighbours are mutual
    rounds = {method: 3 if method == "dadpfl" else 2 for method in methods}  # in the third it prunes

    def small(method):
        n, last = clients[method], rounds[method]
        return suited(recipe(method, topology={"neighbours": n - 1}, rounds=last, evaluate={"every": last}), n)

    recipes = {method: small(method) for method in methods}
    for method, r in recipes.items():
        run(r, at / method / "local")
    with loopback(max(clients.values())) as fleet:
        for k in range(max(clients.values())):
            fleet.start_node(k)

        def same(method):
            collect(run_on_fleet(fleet.home, recipes[method], at / method / "fleet", quiet, quiet, wait=300), fleet.top)
            return files(at / method / "fleet") == files(at / method / "local")

        with ThreadPoolExecutor(together) as threads:
            found = dict(zip(methods, threads.map(same, methods), strict=True))
    assert found == dict.fromkeys(methods, True)


def test_a_real_fleet_equals_local_to_the_bit(tmp_path):
    equal_on_a_fleet(["fedspa", "ditto", "dadpfl"], tmp_path, 3)


@pytest.mark.fleet
@pytest.mark.timeout(3600)
def test_every_method_on_a_real_fleet_equals_local_to_the_bit(tmp_path):
    """Beside test_fleet.py, which compares all of them in one process, through the same ClientApp."""
    equal_on_a_fleet(sorted(METHODS), tmp_path, 3)


@pytest.mark.fleet
def test_chaos(tmp_path):
    """Nodes are killed and come back, one lies, the server process is killed: all is named, the honest are intact.

    A node's SuperNode is killed with it, so that nobody tells Flower: it notices after some 48 seconds, and until then
    refuses the node that is back, which tries again.
    """
    rounds, honest = 12, (0, 1, 2)
    r = suited(recipe("ditto", rounds=rounds, evaluate={"every": rounds}, fleet={"per_round": 4, "timeout": 45.0}), 4)
    draw = random.Random(7)
    over = threading.Event()
    strikes = [(2, "node 0"), (4, "server"), (6, "node 1"), (8, "node 2")]  # after so many rounds
    struck: list[str] = []
    with loopback(4) as world:
        for k in honest:
            world.start_node(k)
        world.start_node(3, (str(Path(__file__).with_name("liar.py")),))

        def shake():
            for after, what in strikes:
                while _rounds_done(tmp_path / "fleet") < after:
                    if over.wait(0.1):
                        return
                over.wait(draw.uniform(0, 5))
                if what == "server":
                    (pid,) = (world.home.path / "orders").glob("*/pid")
                    os.kill(int(pid.read_text()), signal.SIGKILL)
                else:
                    k = int(what.split()[1])
                    kill_hard(world.nodes[k].process.pid)
                    over.wait(draw.uniform(0, 5))
                    world.nodes[k].stop(0)
                    world.start_node(k)
                struck.append(what)

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
            assert VersionedState(world.top / f"node-{k}" / name).get(versions[str(k)])
            trained = sum(k not in row["left_out"] for row in done.rounds)
            assert versions[str(k)].startswith(f"{trained - 1}-")
    assert struck == [what for _, what in strikes]
    for k, after in zip(honest, (2, 6, 8), strict=True):  # the round in which it was killed, or the next
        why = [row["why_left_out"][str(k)] for row in done.rounds if k in row["left_out"] and row["round"] > after]
        assert why
        assert all(re.search(r"not there|no answer within 45 seconds|\(code \d\)", line) for line in why), why
    whys = {row["round"]: row.get("why_left_out", {}).get("3", "") for row in done.rounds}
    lies = {
        2: "NaN or Inf",
        4: "part 'theta'",
        6: "an answer to something else: from is",
        8: "too few for an envelope",
    }
    assert {t: why for t, why in whys.items() if t in lies and not re.search(lies[t], why)} == {}
    assert "resumed" in {e["event"] for e in events(done.path)}
    assert done.summary["accuracy"] > 0.5
    told = list(participation.in_words(done))  # what a user reads at the end
    (liar,) = [line for line in told if line.startswith("client 3: left out of ")]
    assert "NaN or Inf (round 2)" in liar
    assert any(line.startswith("the server resumed after round ") for line in told)


def ask(port, path, ca, **headers):
    """What a SuperLink answers to a request; by X-Forwarded-For a proxy on its machine says where one came from."""
    trust = ssl.create_default_context(cafile=ca)
    request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", b"", headers, method="POST")
    try:
        with urllib.request.urlopen(request, context=trust, timeout=60) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.fleet
def test_the_commands_and_a_superlink_that_is_killed(tmp_path):
    """What users type on three machines, one with data of its own; the SuperLink is killed in the middle.

    Two more nodes are refused: one has a key of nobody's, one trusts another fleet's server.
    """
    r = recipe("ditto", rounds=4, data={"clients": 2}, fleet={"per_round": 2})
    (tmp_path / "small.toml").write_text(tomli_w.dumps(tables(r)))
    whole = prepare(r)[1]
    part, data = whole.parts[1], whole.dataset
    held = np.sort(np.concatenate([part.train, part.validation, part.test]))
    scale = {"mean": data.prepare.mean, "std": data.prepare.std}
    np.savez(tmp_path / "mine.npz", x=data.x.numpy()[held], y=data.y.numpy()[held], **scale)
    home, port, env = tmp_path / "server", free_port(), environment(tmp_path)
    keys, other = home / "keys", tmp_path / "other"
    ok("fleet", "keys", str(keys), "--host", "localhost", "--nodes", "north,south")
    ok("fleet", "keys", str(other), "--host", "localhost", "--nodes", "stranger,astray")
    sparsona = [sys.executable, "-m", "sparsona", "fleet"]
    children = [Child([*sparsona, "server", str(home), "--port", str(port)], tmp_path / "server.log", env)]
    part_of_it = ["--trial-part"]
    nodes = [
        (keys / "north.key", keys / "ca.crt", part_of_it),
        (keys / "south.key", keys / "ca.crt", ["--data", str(tmp_path / "mine.npz"), "--classes", "10"]),
        (other / "stranger.key", keys / "ca.crt", part_of_it),
        (other / "astray.key", other / "ca.crt", part_of_it),
    ]
    try:
        until(lambda: "the server listens" in (tmp_path / "server.log").read_text())
        for k, (key, ca, own) in enumerate(nodes):
            command = [
                *sparsona,
                "node",
                f"127.0.0.1:{port}",
                "--client",
                str(k),
                "--home",
                str(tmp_path / f"node-{k}"),
            ]
            children.append(
                Child([*command, *own, "--ca", str(ca), "--key", str(key)], tmp_path / f"node-{k}.log", env)
            )
        elsewhere = {"X-Forwarded-For": "192.0.2.7"}
        assert ask(port, "/v1/control/list-nodes", keys / "ca.crt", **elsewhere) == 403
        assert ask(port, "/v1/control/list-nodes", keys / "ca.crt") not in (403, 404)
        assert ask(port, "/v1/fleet/activate-node", keys / "ca.crt", **elsewhere) not in (403, 404)
        command = [*sparsona, "run", str(home), "small.toml", "--out", "run", "--wait", "300"]
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
        until(lambda: _rounds_done(tmp_path / "run") >= 1)
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if "sparsona.fleet.flower" in words and str(home / "flower.sqlite") in words:
                    os.kill(int(entry.name), signal.SIGKILL)
        out, _ = process.communicate(timeout=900)
        assert process.returncode == 0
        assert "results: run" in out
        told = json.loads(ok("fleet", "status", str(home), "--json").stdout)
        assert {n["name"]: n["status"] for n in told["nodes"]} == {"north": "online", "south": "online"}
        assert (told["run"]["round"], told["run"]["rounds"]) == (4, 4)
        shown = ok("fleet", "status", str(home)).stdout
        assert "finished, round 4 of 4" in shown
        assert re.search(r"1 .* south .* online .* ago .* \d+\.\d .* \d+\.\d", shown)
        logs = {file.stem: " ".join(file.read_text().split()) for file in tmp_path.glob("*.log")}
        assert "the SuperLink ended" in logs["server"]
        assert "its key is not registered; put its .pub file into keys" in logs["server"]
        assert (
            1 <= logs["node-2"].count("the server refuses this node") <= 2
        )  # by the one that was killed, and by the next
        assert "the server's certificate is not trusted" in logs["node-3"]
        assert "client 0 is connected to 127.0.0.1" in logs["node-0"]
        assert told["run"]["state"] == "finished"
        assert "run is a fleet run, so the clients' states" in refused(
            "export", str(tmp_path / "run"), "--client", "0", "--to", "x.onnx"
        )
    finally:
        stop_all(children)
    run(r, tmp_path / "local")
    collect(Run.open(tmp_path / "run"), tmp_path)
    assert files(tmp_path / "run") == files(tmp_path / "local")
    secrets = [file.read_text().splitlines()[-3] for top in (keys, other) for file in top.glob("*.key")]  # not public
    assert len(secrets) == 6
    told = [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".key" and not p.is_relative_to(keys)]
    assert {home / "superlink.log", tmp_path / "node-0" / "supernode.log", tmp_path / "run" / "fleet.jsonl"} <= set(
        told
    )
    for file in told:
        text = file.read_bytes()
        assert not any(secret.encode() in text for secret in secrets), file


@pytest.mark.fleet
def test_the_trial_command(tmp_path, mark):
    """What a user types: it prints the result, writes an ordinary run folder, and Ctrl-C leaves nothing behind."""
    r = recipe("fedavg", rounds=2, data={"clients": 2}, fleet={"per_round": 2})
    (tmp_path / "small.toml").write_text(tomli_w.dumps(tables(r)))
    command = [sys.executable, "-m", "sparsona", "fleet", "trial", "small.toml", "--nodes", "2", "--out", "run"]
    here = {"cwd": tmp_path, "env": os.environ | {"TMPDIR": str(tmp_path)}, "text": True}
    done = subprocess.run(command, capture_output=True, timeout=900, **here)
    assert done.returncode == 0, done.stderr
    assert "results: run" in done.stdout
    run(r, tmp_path / "local")
    assert files(tmp_path / "run") == files(tmp_path / "local")
    assert not any(b"PRIVATE KEY" in p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())
    assert left_behind(mark) == {}
    here |= {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}  # background jobs of scripts ignore it
    process = subprocess.Popen([*command[:-1], "stopped"], stderr=subprocess.PIPE, **here)
    until(lambda: list(tmp_path.glob("sparsona-trial-*/node-1.log")))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert "error: stopped" in err
    assert list(tmp_path.glob("sparsona-*")) == []


@pytest.mark.fleet
def test_a_trial_of_a_method_of_ones_own(tmp_path, monkeypatch):
    """Nodes and server import it from the folder in which the trial was started."""
    example = Path(__file__).parent.parent.parent / "examples" / "own_method.py"
    (tmp_path / example.name).write_text(example.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    r = recipe("own_method:HalfWay", rounds=2, data={"clients": 2}, fleet={"per_round": 2})
    (tmp_path / "mine.toml").write_text(tomli_w.dumps(tables(r)))
    command = [sys.executable, "-P", "-m", "sparsona", "fleet", "trial", "mine.toml", "--nodes", "2", "--out", "run"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    run(r, tmp_path / "local")
    assert files(tmp_path / "run") == files(tmp_path / "local")
