"""Keys, addresses, files and options of a fleet: what is wrong is told in one line."""

import datetime
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sparsona[flower]'")

from command import call, ok, refused
from sparsona import plan_fleet_trial
from sparsona.data import DataConfig, DataError
from sparsona.data.readers.npz import read_own_npz
from sparsona.experiment.plan import load
from sparsona.experiment.recipe import check
from sparsona.fleet import FleetError, node, orders, processes, superlink
from sparsona.fleet.data import NodeData
from sparsona.fleet.home import Home
from sparsona.fleet.keys import check_certificate, check_private, make_authority, make_node_key, read_public, roster
from sparsona.fleet.node import _place, check_secure, split_address
from sparsona.fleet.processes import Child, free_port
from sparsona.fleet.status import describe_event, mark_status
from sparsona.fleet.superlink import refusals, start_superlink


def test_keys_are_made_and_known(tmp_path):
    told = json.loads(
        ok("fleet", "keys", str(tmp_path), "--host", "fleet.example.org", "--nodes", "a,b", "--json").stdout
    )
    assert told["clients"] == {"a": 0, "b": 1}
    ok("fleet", "keys", str(tmp_path), "--nodes", "c", "--first", "2")
    assert {k: name for k, (name, _) in roster(tmp_path).items()} == {0: "a", 1: "b", 2: "c"}
    for secret in ("server.key", "a.key", "b.key", "c.key"):
        assert stat.S_IMODE((tmp_path / secret).stat().st_mode) == 0o600
        assert "PRIVATE" not in (tmp_path / f"{secret[:-4]}.pub").read_text() if secret != "server.key" else True
    check_certificate(tmp_path / "ca.crt")
    check_certificate(tmp_path / "server.pem", "fleet.example.org")
    check_certificate(tmp_path / "server.pem", "127.0.0.1")
    check_private(tmp_path / "a.key")
    verified = subprocess.run(
        ["openssl", "verify", "-CAfile", "ca.crt", "server.pem"], cwd=tmp_path, capture_output=True, text=True
    )
    assert verified.stdout.strip() == "server.pem: OK"


def test_keys_are_never_replaced(tmp_path):
    make_node_key(tmp_path, "a", 0)
    before = (tmp_path / "a.key").read_bytes()
    with pytest.raises(
        FleetError, match=r"a\.key already exists, and keys are never replaced; choose another folder or name"
    ):
        make_node_key(tmp_path, "a", 1)
    assert (tmp_path / "a.key").read_bytes() == before
    assert (
        "a.pub is already the key of client 0; choose another --first; to replace a lost key, see docs/deploy.md"
        in refused("fleet", "keys", str(tmp_path), "--nodes", "b")
    )


def test_one_client_one_key(tmp_path):
    make_node_key(tmp_path, "a", 0)
    make_node_key(tmp_path, "b", 0)
    with pytest.raises(FleetError, match=r"a\.pub and .* are both keys of client 0; remove one of them"):
        roster(tmp_path)
    (tmp_path / "b.pub").write_text((tmp_path / "a.pub").read_text().replace("client-0", "client-1"))
    with pytest.raises(FleetError, match="are the same key"):
        roster(tmp_path)
    (tmp_path / "b.pub").write_text("ssh-rsa AAAA someone@else\n")
    with pytest.raises(FleetError, match=r"b\.pub is not a public key of a node; make one with: sparsona fleet keys"):
        read_public(tmp_path / "b.pub")


def test_certificates_out_of_date_or_for_others(tmp_path):
    make_authority(tmp_path / "old", ["localhost"], days=0)
    with pytest.raises(
        FleetError,
        match=r"ca\.crt is only valid from .* to .*; make new keys with: sparsona fleet keys",
    ):
        check_certificate(tmp_path / "old" / "ca.crt")
    make_authority(tmp_path / "new", ["localhost"], days=1)
    with pytest.raises(FleetError, match=r"server\.pem is for localhost, not for 10\.0\.0\.1; make keys with --host"):
        check_certificate(tmp_path / "new" / "server.pem", "10.0.0.1")
    with pytest.raises(FleetError, match=r"ca\.crt is missing; make keys with: sparsona fleet keys"):
        check_certificate(tmp_path / "none" / "ca.crt")
    (tmp_path / "new" / "ca.crt").write_text("nonsense")
    with pytest.raises(FleetError, match=r"ca\.crt is not a certificate"):
        check_certificate(tmp_path / "new" / "ca.crt")
    with pytest.raises(FleetError, match=r'host: "a b" is not allowed; expected a name such as server\.example\.org'):
        make_authority(tmp_path / "bad", ["a b"], days=1)


def test_private_keys(tmp_path):
    make_node_key(tmp_path, "a", 0)
    key = tmp_path / "a.key"
    key.chmod(0o644)
    with pytest.raises(FleetError, match=r"a\.key is readable by other users; make it private with: chmod 600 .*"):
        check_private(key)
    key.write_text("nonsense")
    key.chmod(0o600)
    with pytest.raises(FleetError, match="is not a private key"):
        check_private(key)
    with pytest.raises(FleetError, match="is missing"):
        check_private(tmp_path / "b.key")


def test_addresses_and_trust(tmp_path):
    assert split_address("fleet.example.org:8000") == ("fleet.example.org", 8000)
    assert split_address("[::1]:8000") == ("::1", 8000)
    for bad in ("fleet.example.org", ":8000", "host:port", "host:99999"):
        with pytest.raises(FleetError, match=f'server: "{bad}" is not allowed; expected host:port'):
            split_address(bad)
    with pytest.raises(FleetError, match=r"server: 10\.0\.0\.1 is another machine; give --ca and --key, or --insecure"):
        check_secure("10.0.0.1", False, None, None)
    with pytest.raises(FleetError, match="give --ca and --key, or --insecure"):
        check_secure("127.0.0.1", False, None, None)
    with pytest.raises(
        FleetError, match="insecure: not allowed together with --ca or --key; leave out --insecure, or both"
    ):
        check_secure("127.0.0.1", True, tmp_path, None)
    assert check_secure("10.0.0.1", False, tmp_path, tmp_path)
    assert not check_secure("10.0.0.1", True, None, None)


def test_the_server_says_whom_flower_refused(tmp_path):
    home = Home(tmp_path)
    (tmp_path / "nodes.json").write_text(json.dumps({"77": {"name": "north", "client": 0}}))
    log = "ERROR: ... exception: SuperNode with node ID {} could not be activated.\n"
    told = refusals(log.format(77) * 2 + log.format(78) + "... No SuperNode found with the given public key.", home)
    assert [line.partition(" was refused: ")[0] for line in told] == ["north", "node 78", "a node"]
    assert refusals("nothing of note", home) == []
    (told,) = refusals('127.0.0.1:33880 - "POST /v1/fleet/activate-node HTTP/1.1" 401', home)
    assert told.startswith("a node was refused: its signature is not valid")


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("httpx.ConnectError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate has expired", "certificate is not trusted"),
        (
            "exited, code: 2004",
            "the server refuses this node: its key is not registered, another node uses it, or the node was just",
        ),
        ("Address already in use", "the SuperNode ended (exit code 3): Address already in use"),
        (
            "SuperNode terminated gracefully.",
            "the server rejects this node's signature: the clock of the node or of the server is wrong",
        ),
        (
            "exited, code: 2004" + "\n" + "x" * 2000,
            "the server refuses this node: its key is not registered, another node uses it, or the node was just",
        ),
    ],
)
def test_a_node_says_why_flower_ended(log, told, tmp_path):
    code = 0 if "gracefully" in log else 3
    child = Child([sys.executable, "-c", f"print({log!r}); raise SystemExit({code})"], tmp_path / "log")
    child.process.wait(60)
    assert told in node._why(child)


def test_a_server_that_has_gone_is_told(tmp_path):
    Home(tmp_path).write_settings("0.0.0.0", port := free_port(), secure=False)
    for command in (("status",), ("run", "quickstart", "--only", "personal")):
        told = refused("fleet", command[0], str(tmp_path), *command[1:])
        assert f"no server listens on 127.0.0.1:{port}; start it with: sparsona fleet server {tmp_path}" in told
        assert told.endswith(f"--host 0.0.0.0 --port {port} --insecure")


@pytest.mark.parametrize(("days", "warned"), [(31, []), (29, ["expires"]), (0.2 / 86400, ["expires", "expired"])])
def test_a_server_says_in_time_that_its_certificate_ends(days, warned, tmp_path, monkeypatch):
    lines, looks, sleep = [], iter(range(3)), time.sleep
    monkeypatch.setattr(superlink, "start_superlink", lambda *_: Child([sys.executable, "-c", ""], tmp_path / "log"))
    monkeypatch.setattr(superlink, "check_certificate", lambda file: ends)
    monkeypatch.setattr(Child, "ended", False)
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)

    def wait(seconds):
        sleep(0.2)
        if next(looks, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(superlink.time, "sleep", wait)
    with pytest.raises(KeyboardInterrupt):
        superlink.run_server(Home(tmp_path), "localhost", 1, True, lines.append)
    found = [re.match(r"the server's certificate (expires|expired) on 20", line) for line in lines]
    assert [m[1] for m in found if m] == warned


def test_a_node_that_was_registered_but_not_noted_is_noted_the_next_time(tmp_path, monkeypatch):
    for k, name in enumerate(("north", "south")):
        make_node_key(tmp_path / "keys", name, k)
    (tmp_path / "nodes.json").write_text(json.dumps({"77": {"name": "north", "client": 0}}))

    def flwr(home, *words):
        if words[:2] == ("supernode", "list"):
            return {"nodes": [{"node-id": "77"}, {"node-id": "78"}]}
        raise FleetError("flwr supernode register: public key already in use")

    monkeypatch.setattr(superlink, "flwr", flwr)
    superlink.register(Home(tmp_path))
    names = {n: told["name"] for n, told in json.loads((tmp_path / "nodes.json").read_text()).items()}
    assert names == {"77": "north", "78": "south"}


def test_the_log_of_a_program_that_runs_for_months_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_LONGEST", 1000)
    code = "for _ in range(3): print('x' * 600, flush=True); input()"
    monkeypatch.setattr(subprocess, "DEVNULL", subprocess.PIPE)  # for it to wait for us
    child = Child([sys.executable, "-c", code], tmp_path / "a.log")
    told = ""
    try:
        for i in range(1, 4):
            while told.count("x") < 600 * i:
                told += child.news()
            child.process.stdin.write(b"\n")
            child.process.stdin.flush()
        child.process.wait(60)
    finally:
        child.stop()
    assert told.count("x") == 1800
    assert (tmp_path / "a.old").read_text().count("x") == 1200
    assert (tmp_path / "a.log").read_text() == "x" * 600 + "\n"


def test_the_servers_folder_is_its_owners_alone(tmp_path):
    ok("fleet", "keys", str(tmp_path / "server" / "keys"), "--host", "localhost")
    Home(tmp_path / "server").write_settings("127.0.0.1", 8000, secure=True)
    assert stat.S_IMODE((tmp_path / "server").stat().st_mode) == 0o700


def test_an_address_of_six_has_brackets_where_flower_reads_it(tmp_path):
    Home(tmp_path).write_settings("::", 8000, secure=False)
    assert tomllib.loads((tmp_path / "config.toml").read_text())["superlink"]["fleet"]["address"] == "[::1]:8000"


def test_orders_of_those_who_were_killed_are_removed(tmp_path):
    (tmp_path / "server.json").write_text(json.dumps({"host": "h", "port": 1, "secure": False}))
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    folder = tmp_path / "orders"
    for name, pid in ((f"{dead.pid}-1", dead.pid), (f"{dead.pid}-2", os.getpid()), (f"{os.getpid()}-3", dead.pid)):
        (folder / name).mkdir(parents=True)
        (folder / name / "pid").write_text(str(pid))
    with orders._order(Home(tmp_path), load("quickstart")["personal"], tmp_path / "run", 1, 1):
        assert not (folder / f"{dead.pid}-1").exists()
        assert (folder / f"{dead.pid}-2").exists()  # it is still carried out
        assert (folder / f"{os.getpid()}-3").exists()


def test_a_node_that_is_told_to_end_clears_away(tmp_path):
    command = [sys.executable, "-m", "sparsona", "fleet", "node", f"127.0.0.1:{free_port()}", "--client", "0"]
    command += ["--insecure", "--trial-part", "--home", str(tmp_path / "node")]
    where = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=where)
    try:
        assert "cannot be reached" in process.stderr.readline()
        assert len(list(tmp_path.glob("sparsona-*"))) == 1
        process.terminate()
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
    assert told.splitlines()[-1] == "stopped"
    assert process.returncode == 0
    assert list(tmp_path.glob("sparsona-*")) == []


def test_a_port_that_is_taken(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        with pytest.raises(FleetError, match=r"port: \d+ of 127\.0\.0\.1 is in use; choose another with --port"):
            start_superlink(Home(tmp_path), "127.0.0.1", s.getsockname()[1], secure=False)


@pytest.mark.parametrize(
    ("overrides", "nodes", "clients"),
    [([], None, 4), (["data.clients=2", "fleet.per_round=1"], None, 2), ([], 3, 3), (["data.clients=12"], 12, 12)],
)
def test_a_trial_has_a_node_per_client(overrides, nodes, clients, tmp_path):
    planned = plan_fleet_trial("quickstart", overrides, ["personal"], nodes=nodes, out=tmp_path / "run")
    assert planned.recipe.data.clients == clients


def test_commands_refuse_what_cannot_be(tmp_path):
    home = str(tmp_path / "server")
    assert "server has no server; start one with: sparsona fleet server" in refused(
        "fleet", "run", home, "quickstart", "--only", "personal"
    )
    assert "server has no server; start one with: sparsona fleet server" in refused("fleet", "status", home)
    assert "quickstart: several variants; choose one with --only: " in refused("fleet", "trial", "quickstart")
    assert "nodes: 0 is not allowed; expected an int in [1, 64]" in refused(
        "fleet", "trial", "quickstart", "--only", "personal", "--nodes", "0"
    )
    assert "data.clients: 12 is not allowed with 4 nodes, one per client; set only one of them" in refused(
        "fleet", "trial", "quickstart", "--only", "personal", "--nodes", "4", "data.clients=12"
    )
    assert "max-mb: 0 is not allowed; expected an int in [1, 2000]" in refused(
        "fleet", "node", "h:1", "--client", "0", "--trial-part", "--max-mb", "0"
    )
    assert "data: nothing is given; expected exactly one of --data, --source and --trial-part" in refused(
        "fleet", "node", "h:1", "--client", "0"
    )
    assert "client: -1 is not allowed; expected an int >= 0" in refused(
        "fleet", "node", "h:1", "--client", "-1", "--trial-part"
    )
    assert 'source: "nonsense" is not allowed; expected one of digits' in refused(
        "fleet", "node", "h:1", "--client", "0", "--source", "nonsense"
    )
    assert "classes: 1 is not allowed; expected at least 2" in refused(
        "fleet", "node", "h:1", "--client", "0", "--data", "x", "--classes", "1"
    )
    assert "h is another machine" in refused("fleet", "node", "h:1", "--client", "0", "--trial-part")
    assert "host, nodes: both are missing; give at least one" in refused("fleet", "keys", home)
    assert "days: 0 is not allowed; expected an int in [1, 3650]" in refused(
        "fleet", "keys", home, "--host", "h", "--days", "0"
    )
    assert 'nodes: "A b" is not allowed; expected at most 41 lower-case letters' in refused(
        "fleet", "keys", home, "--nodes", "A b"
    )


def test_a_run_of_a_fleet_is_not_resumed_in_simulation(tmp_path):
    from sparsona.experiment.plan import load
    from sparsona.experiment.results import Run

    Run.create(tmp_path / "run", load("quickstart")["personal"], {"fleet_run": "abc"})
    assert (
        "run is a fleet run, whose nodes keep the clients' states; resume it with: sparsona fleet run SERVER"
        in refused("resume", str(tmp_path / "run"))
    )


def test_without_flower_the_commands_say_what_to_install(monkeypatch):
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for command in (("trial", "quickstart"), ("keys", "x"), ("server", "x"), ("status", "x"), ("run", "x", "y")):
        assert "pip install 'sparsona[flower]'" in refused("fleet", *command)


def test_the_device_side_of_flower_imports_no_torch():
    code = "import sys, sparsona.fleet.flower; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "False"


GOOD = {"x": np.zeros((4, 8, 8), np.uint8), "y": np.array([0, 1, 2, 1])}
BAD = {
    "no y": ({"x": GOOD["x"]}, r"f\.npz: array y is missing; found x"),
    "kind": (GOOD | {"x": np.zeros((4, 8, 8), np.int32)}, "x is int32"),
    "length": (GOOD | {"y": np.array([0, 1])}, r"f\.npz: y is int64 \[2\]; expected 4 entries"),
    "labels": (GOOD | {"y": np.array([["a"], ["b"], ["c"], ["b"]])}, r"y is <U1 \[4, 1\]"),
    "negative": (GOOD | {"y": np.array([0, -1, 2, 1])}, "y of sample 1 is -1"),
    "empty": (
        {"x": np.zeros((0, 8, 8), np.uint8), "y": np.zeros(0, int)},
        r"f\.npz: x is uint8 \[0, 8, 8\]; expected at least one sample and no size of 0",
    ),
    "NaN": (GOOD | {"x": np.full((4, 3), np.nan, np.float32)}, "x has NaN"),
    "half a test": (GOOD | {"x_test": GOOD["x"]}, r"f\.npz: y_test is missing; expected both x_test and y_test"),
    "other test": (
        GOOD | {"x_test": np.zeros((1, 9, 9), np.uint8), "y_test": np.array([1])},
        r"f\.npz: x_test is uint8 \[1, 9, 9\]; expected the type and sizes of x, uint8 \[4, 8, 8\]",
    ),
    "mean": (GOOD | {"mean": np.zeros(3)}, r"f\.npz: mean is \[0\.0, 0\.0, 0\.0\]; expected 1 finite numbers"),
    "std": (GOOD | {"std": np.zeros(1)}, r"f\.npz: std is \[0\.0\]; expected 1 finite numbers > 0"),
    "objects": (GOOD | {"y": np.array([0, 1, 2, None])}, "array 'y' is an array of objects; expected numbers"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_files(what, tmp_path):
    arrays, told = BAD[what]
    np.savez(tmp_path / "f.npz", **arrays)
    with pytest.raises(DataError, match=told):
        read_own_npz(tmp_path / "f.npz", DataConfig("f.npz"))


def test_good_files(tmp_path):
    np.savez(tmp_path / "f.npz", **GOOD)
    data = read_own_npz(tmp_path / "f.npz", DataConfig("f.npz", classes=5))
    assert (data.classes, data.shape, data.train, len(data)) == (5, (1, 8, 8), 4, 4)
    np.savez(
        tmp_path / "g.npz", x=np.ones((4, 3), np.float32), y=GOOD["y"], x_test=np.ones((1, 3), np.float32), y_test=[2]
    )
    data = read_own_npz(tmp_path / "g.npz", DataConfig("g.npz"))
    assert (data.classes, data.shape, data.train, len(data)) == (3, (3,), 4, 5)
    (tmp_path / "h.npz").write_text("nonsense")
    for bad in ("h.npz", "missing.npz"):
        with pytest.raises(DataError, match=r"cannot be read as \.npz with x and y"):
            read_own_npz(tmp_path / bad, DataConfig(bad))


def test_a_node_with_nothing_to_learn_from(tmp_path):
    line = call("fleet", "node", "127.0.0.1:1", "--client", "0", "--insecure", "--data", str(tmp_path / "none.npz"))
    assert line.exit_code == 2
    assert "none.npz: cannot be read" in line.stderr


def test_a_server_process_that_is_quick_to_start_is_found(tmp_path, monkeypatch):
    """It may have written its number before whoever submitted it goes on."""
    (tmp_path / "server.json").write_text(json.dumps({"host": "h", "port": 1, "secure": False}))
    monkeypatch.setattr("sparsona.fleet.home.reachable", lambda *_: True)

    def submit(home, work, attempts):
        (work / "pid").write_text("0")
        (work / "done").write_text("")

    def follow(work, folder, recipe, listen, hear):
        assert (work / "pid").is_file()
        raise KeyboardInterrupt

    monkeypatch.setattr(orders, "_submit", submit)
    monkeypatch.setattr(orders, "_end_process", lambda work: None)
    real = orders._follow
    monkeypatch.setattr(orders, "_follow", lambda *a: real(*a) and follow(*a))
    with pytest.raises(KeyboardInterrupt):
        orders.run_on_fleet(Home(tmp_path), load("quickstart")["personal"], tmp_path / "r", print, print)


def test_one_server_in_a_folder(tmp_path):
    """A second one, on another port, would answer for the first."""
    with processes.exclusive_lock(tmp_path / "server.lock", "there"):
        line = refused("fleet", "server", str(tmp_path), "--insecure", "--port", str(free_port()))
    assert line == f"{tmp_path}: another server is running here; give each server its own folder"
    with processes.exclusive_lock(tmp_path / "server.lock", "not any more"):
        pass


def test_a_node_that_can_no_longer_work_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(node, "_serve", lambda listener, runtime: None)
    monkeypatch.setattr(node, "reachable", lambda host, port, seconds: True)
    monkeypatch.setattr(
        node, "_command", lambda options, secure, socket: [sys.executable, "-c", "import time; time.sleep(60)"]
    )
    options = node.NodeOptions("127.0.0.1:1", 0, tmp_path / "node", NodeData(), insecure=True)
    with pytest.raises(FleetError, match="the node's worker thread has ended; start the node again"):
        node.run_node(options, lambda text: None)


def test_one_node_in_a_home_and_what_a_killed_one_left_is_removed(tmp_path):
    with _place(tmp_path / "node") as first:
        assert first.is_dir()
        told = "home: another node is running in .*; give each node its own --home"
        with pytest.raises(FleetError, match=told), _place(tmp_path / "node"):
            pass
    assert not first.exists()
    first.mkdir()  # as if it had been killed
    with _place(tmp_path / "node") as second:
        assert not first.exists()
        assert second.is_dir()


def test_what_a_killed_node_left_is_ended_when_it_starts_again(tmp_path):
    place = Path(tempfile.mkdtemp(prefix="sparsona-"))
    (tmp_path / "node.lock").write_text(str(place))

    def start(home):
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], env={"FLWR_HOME": str(home)})
        while not Path(f"/proc/{process.pid}/environ").read_bytes():  # its first moments
            time.sleep(0.01)
        return process

    left, other = start(place), start(f"{place}2")
    try:
        with _place(tmp_path) as new:
            assert left.wait(20) == -signal.SIGKILL
            assert not place.exists()
            assert new.is_dir()
            last = start(new)
        assert last.wait(20) == -signal.SIGKILL  # of this node, which ends in good order
        assert other.poll() is None
    finally:
        left.kill()
        other.kill()


def test_a_run_that_is_over_is_marked_and_no_other(tmp_path):
    home = Home(tmp_path)
    mark_status(home, tmp_path / "a", "stopped")  # nothing was told yet
    home.status.write_text(json.dumps({"folder": str(tmp_path / "a"), "state": "running"}))
    mark_status(home, tmp_path / "b", "finished")
    assert json.loads(home.status.read_text())["state"] == "running"
    mark_status(home, tmp_path / "a", "finished")
    assert json.loads(home.status.read_text())["state"] == "finished"
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"event": "all clients are connected", "time": 1.0}, "all clients are connected"),
        ({"event": "not there at the start", "clients": [1, 2]}, "not there at the start: clients 1 (south), 2"),
        ({"event": "left out", "client": 1, "round": 2, "why": "NaN"}, "left out: client 1 (south), round 2: NaN"),
        ({"event": "left out", "client": 0, "why": "a\x1b[2J\nresults: b"}, "left out: client 0: a [2J results: b"),
    ],
)
def test_events_are_described_in_one_line(event, line):
    assert describe_event(event, {1: "south"}) == line


def test_the_recipe_of_the_docs_is_one():
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    (block,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    recipe = check(tomllib.loads(block))
    assert (recipe.data.clients, recipe.fleet.min_answers, recipe.results.models) == (2, 2, True)
