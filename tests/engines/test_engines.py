"""All engines give the same bits, and say clearly what went wrong."""

import os
import signal
import sys
import threading
import time
from functools import cache
from pathlib import Path

import pytest

from small import recipe
from sparsona.engines.local import ClientFailed
from sparsona.engines.pool import Pool, WorkerDied
from sparsona.methods import METHODS
from sparsona.runner import prepare, run, worker_device

VOLATILE = {"timing.jsonl", "recipe.toml", "run.json"}  # recipe.toml names the engine, run.json the versions


def files(path: Path, leave: set[str] = VOLATILE) -> dict[str, bytes]:
    return {
        str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file() and p.name not in leave
    }


def whole(name, **more):
    """A recipe that writes models, and for some methods figures, which take longer than the rounds."""
    return recipe(name, results={"models": True, "figures": name in ("dadpfl", "ditto", "pfedgate")}, **more)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A method's files as the local engine leaves them, made when they are first asked for."""
    base = tmp_path_factory.mktemp("reference")

    @cache
    def made(name):
        run(whole(name), base / name)
        return files(base / name)

    return made


FUNCTIONS = {"fedem", "pfedgate"}  # models that are no vectors are not written out


@pytest.mark.parametrize(("method", "workers"), [*((m, 2) for m in sorted(METHODS)), ("ditto", 1), ("ditto", 3)])
def test_pool_equals_local_to_the_bit(method, workers, reference, tmp_path):
    run(whole(method, engine="pool", workers=workers), tmp_path / "run")
    got = files(tmp_path / "run")
    assert got.keys() == reference(method).keys()
    assert [name for name in got if got[name] != reference(method)[name]] == []
    assert {"rounds.jsonl", "clients.jsonl", "summary.json"} <= got.keys()
    assert ("models/client-00005.safetensors" in got) == (method not in FUNCTIONS)


def test_other_seeds_differ(reference, tmp_path):
    run(whole("fedavg", seed=8), tmp_path / "run")
    got = files(tmp_path / "run")
    assert got["rounds.jsonl"] != reference("fedavg")["rounds.jsonl"]
    assert got["models/client-00000.safetensors"] != reference("fedavg")["models/client-00000.safetensors"]


def test_same_seed_twice_in_one_process(reference, tmp_path):
    run(whole("ditto"), tmp_path / "run")
    assert files(tmp_path / "run") == reference("ditto")


def test_dropout_and_batch_norm_are_repeatable_too(tmp_path, monkeypatch):
    (tmp_path / "mynet.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(),\n"
        "                         nn.Linear(144, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    net = {"model": {"name": "mynet:Net"}}
    run(recipe("ditto", **net), tmp_path / "a")
    run(recipe("ditto", engine="pool", **net), tmp_path / "b")
    assert files(tmp_path / "a") == files(tmp_path / "b")


SLOW = """
import time
from dataclasses import dataclass
from sparsona.methods.fedavg import FedAvg

@dataclass(frozen=True, kw_only=True)
class Broken(FedAvg):
    def local(self, client, inbox, data, ctx):
        if ctx.t == 1:
            time.sleep(60)
        return super().local(client, inbox, data, ctx)
"""


def test_a_worker_that_dies_is_named_with_its_client(tmp_path, monkeypatch):
    before = children()
    victim: list[int] = []
    use_broken(SLOW, tmp_path, monkeypatch)

    def strike(step):
        victim[:] = children() - before
        threading.Timer(1.0, os.kill, (victim[0], signal.SIGKILL)).start()  # by then it sleeps in round 2

    r = recipe("broken", rounds=5, engine="pool", workers=1)
    first = run(recipe("fedavg", rounds=2), tmp_path / "same").rounds[1]["participants"][0]
    told = rf"worker 0 was killed by SIGKILL while client {first} ran in round 2 \(local\)"
    with pytest.raises(WorkerDied, match=told):
        run(r, tmp_path / "run", listen=strike)
    assert victim
    assert children() <= before  # nobody is left behind


def test_a_worker_that_dies_idle_is_told_before_its_client(tmp_path):
    before = children()

    def strike(step):
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)

    with pytest.raises(WorkerDied, match=r"was killed by SIGKILL (before|while) client \d (began|ran) in round 2"):
        run(recipe("fedavg", rounds=5, engine="pool"), tmp_path / "run", listen=strike)


def children() -> set[int]:
    """Worker processes of this process."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z":
            found.add(int(entry.parent.name))
    return found


BROKEN = """
from dataclasses import dataclass
from sparsona.methods.fedavg import FedAvg

@dataclass(frozen=True, kw_only=True)
class Broken(FedAvg):
    def local(self, client, inbox, data, ctx):
        if ctx.t == 1:
            raise ZeroDivisionError("on purpose")
        return super().local(client, inbox, data, ctx)
"""


def broken_device(path: str, tables: dict) -> object:
    """A device whose method fails; a worker builds it from here."""
    sys.path.insert(0, path)
    import broken

    METHODS["broken"] = broken.Broken
    return worker_device(tables, None)


def use_broken(code: str, path: Path, monkeypatch) -> None:
    """Register a method that lives in a file of its own, here and in the workers of any pool."""
    (path / "broken.py").write_text(code)
    monkeypatch.syspath_prepend(path)
    monkeypatch.syspath_prepend(Path(__file__).parent.parent)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    import broken

    monkeypatch.setitem(METHODS, "broken", broken.Broken)
    original = Pool.__init__

    def start(self, workers, build, arguments):
        given = {"path": str(path), "tables": arguments["recipe"]}
        original(self, workers, "engines.test_engines:broken_device", given)

    monkeypatch.setattr(Pool, "__init__", start)


@pytest.mark.parametrize("engine", ["local", "pool"])
def test_a_method_that_raises_is_named_with_its_client(engine, tmp_path, monkeypatch):
    use_broken(BROKEN, tmp_path, monkeypatch)
    with pytest.raises(
        ClientFailed, match=r"client \d failed in round 2 \(local\): ZeroDivisionError: on purpose$"
    ) as told:
        run(recipe("broken", engine=engine), tmp_path / "run")
    assert "in local" in told.value.trace


def test_a_worker_that_cannot_start_says_why():
    pool = Pool(1, "sparsona.runner:worker_device", {"recipe": {}, "data_dir": None})
    with pytest.raises(WorkerDied, match=r"worker 0 could not start: RecipeError: method.name is missing"):
        pool.ready()


def test_clients_that_diverge_are_left_out_and_named(tmp_path):
    done = run(recipe("fedavg", rounds=3, method={"lr": 1e30}), tmp_path / "run")
    assert all(row["left_out"] == row["participants"] for row in done.rounds)
    assert done.summary["left_out"] == 9
    assert all(set(row["why_left_out"].values()) == {"NaN or Inf"} for row in done.rounds)
    assert [sorted(map(int, row["why_left_out"])) for row in done.rounds] == [row["left_out"] for row in done.rounds]
    assert done.summary["before"]["loss"] > 0  # the shared model is still the initial one, without a NaN


@pytest.mark.parametrize(("method", "how"), [("local", {"lr": 1e30}), ("ditto", {"pull": 1e30, "personal_epochs": 3})])
def test_personal_models_that_diverge_are_left_out_too(method, how, tmp_path):
    done = run(recipe(method, method=how), tmp_path / "run")
    assert all(row["left_out"] == row["participants"] for row in done.rounds)
    assert not list((tmp_path / "run" / "state").glob("client-*"))  # nobody keeps a broken model


def test_results_come_in_the_order_of_jobs_with_bounded_look_ahead():
    from sparsona.config import tables
    from sparsona.engines.device import Job

    r = recipe("local")
    pool = Pool(2, "sparsona.runner:worker_device", {"recipe": tables(r), "data_dir": None})
    pool.ready()
    device, _ = prepare(r)
    drawn = []

    def jobs():
        for i in range(60):
            drawn.append(i)
            yield Job("local", 0, i % 6, None, {"server": device.method.down(None, 0, device.ctx(0))})

    got = []
    for result in pool.map(jobs()):
        got.append(result.k)
        assert len(drawn) - len(got) <= 17
    pool.close()
    assert got == [i % 6 for i in range(60)]
