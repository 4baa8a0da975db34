"""All engines give the same bits, and say clearly what went wrong."""

import os
import signal
import sys
import threading
import time
from functools import cache
from pathlib import Path

import pytest
import torch

from small import recipe
from sparsona.core.arithmetic import arithmetic
from sparsona.core.wire import Message, Values
from sparsona.engines.jobs import Job
from sparsona.engines.local import ClientFailed
from sparsona.engines.pool import MOST, PoolEngine, WorkerDied, batch_size
from sparsona.experiment.recipe import tables
from sparsona.experiment.runner import resume, run
from sparsona.experiment.setup import prepare
from sparsona.methods import METHODS
from tiers import tiered

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


POOLED = ("ditto", "fedspa", "dadpfl", "pfedgate")  # in the short tier: starting workers takes seconds
FUNCTIONS = {"fedem", "pfedgate"}  # models that are no vectors are not written out


@pytest.mark.parametrize(
    ("method", "workers"),
    [*tiered(((m, 2) for m in sorted(METHODS)), short=POOLED), pytest.param("ditto", 3, marks=pytest.mark.slow)],
)
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
from pathlib import Path
from sparsona.methods.fedavg import FedAvg

@dataclass(frozen=True, kw_only=True)
class Broken(FedAvg):
    def local(self, client, inbox, data, ctx):
        if ctx.t == 1:
            Path(__file__).with_name("asleep").touch()
            time.sleep(60)
        return super().local(client, inbox, data, ctx)
"""


def test_a_worker_that_dies_is_named_with_its_client(tmp_path, monkeypatch):
    before = children()
    victim: list[int] = []
    use_broken(SLOW, tmp_path, monkeypatch)

    def kill_when_asleep():
        while not (tmp_path / "asleep").exists():
            time.sleep(0.05)
        os.kill(victim[0], signal.SIGKILL)

    def strike(step):
        victim[:] = children() - before
        threading.Thread(target=kill_when_asleep, daemon=True).start()

    r = recipe("broken:Broken", rounds=5, engine="pool", workers=1)
    first = run(recipe("fedavg", rounds=2), tmp_path / "same").rounds[1]["participants"][0]
    told = rf"worker 0 was killed by SIGKILL while client {first} ran in round 2 \(local\)"
    with pytest.raises(WorkerDied, match=told):
        run(r, tmp_path / "run", on_round=strike)
    assert victim
    assert children() <= before  # nobody is left behind


def test_a_worker_that_dies_idle_is_told_before_its_client(tmp_path):
    before = children()

    def strike(step):
        for pid in children() - before:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)

    with pytest.raises(WorkerDied, match=r"was killed by SIGKILL (before|while) client \d (started|ran) in round 2"):
        run(recipe("fedavg", rounds=5, engine="pool"), tmp_path / "run", on_round=strike)


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


def use_broken(code: str, path: Path, monkeypatch) -> None:
    """Make a method importable that lives in a file of its own, here and in the workers of any pool."""
    (path / "broken.py").write_text(code)
    monkeypatch.syspath_prepend(path)
    monkeypatch.delitem(sys.modules, "broken", raising=False)


@pytest.mark.parametrize("engine", ["local", "pool"])
def test_a_method_that_raises_is_named_with_its_client(engine, tmp_path, monkeypatch):
    use_broken(BROKEN, tmp_path, monkeypatch)
    with pytest.raises(
        ClientFailed, match=r"client \d failed in round 2 \(local\): ZeroDivisionError: on purpose$"
    ) as told:
        run(recipe("broken:Broken", engine=engine), tmp_path / "run")
    assert "in local" in told.value.trace


def test_a_worker_that_cannot_start_says_why():
    pool = PoolEngine(1, "sparsona.experiment.setup:worker_device", {"recipe": {}, "data_dir": None})
    with pytest.raises(WorkerDied, match=r"worker 0 could not start: RecipeError: method.name is missing"):
        pool.ready()


def test_clients_that_diverge_are_left_out_and_named(tmp_path):
    done = run(recipe("fedavg", rounds=3, method={"lr": 1e30}), tmp_path / "run")
    assert all(row["left_out"] == row["participants"] for row in done.rounds)
    assert done.summary["left_out"] == 9
    assert all(set(row["why_left_out"].values()) == {"NaN or Inf"} for row in done.rounds)
    assert [sorted(map(int, row["why_left_out"])) for row in done.rounds] == [row["left_out"] for row in done.rounds]
    assert done.summary["before"]["loss"] > 0  # the shared model is still the initial one, without a NaN


@pytest.mark.parametrize(("method", "how"), [("local", {"lr": 1e30}), ("ditto", {"mu": 1e30, "personal_epochs": 3})])
def test_personal_models_that_diverge_are_left_out_too(method, how, tmp_path):
    done = run(recipe(method, method=how), tmp_path / "run")
    assert all(row["left_out"] == row["participants"] for row in done.rounds)
    assert not list((tmp_path / "run" / "state").glob("client-*"))  # nobody keeps a broken model


@pytest.fixture(scope="module")
def pool():
    """Two workers and a device for jobs made by hand."""
    r = recipe("local")
    engine = PoolEngine(2, "sparsona.experiment.setup:worker_device", {"recipe": tables(r), "data_dir": None})
    engine.ready()
    yield engine, prepare(r)[0]
    engine.close()


def looked_ahead(engine, jobs) -> tuple[list[int], int]:
    """The clients of the results in order, and how many jobs were drawn ahead of the results at most."""
    drawn: list[int] = []
    given: list[int] = []
    most = 0
    for result in engine.map(drawn.append(job.k) or job for job in jobs):
        given.append(result.k)
        most = max(most, len(drawn) - len(given))
    assert given == drawn
    return given, most


def test_results_come_in_the_order_of_jobs_with_bounded_look_ahead(pool):
    engine, device = pool
    inbox = {"server": device.method.down(None, 0, device.ctx(0))}
    given, most = looked_ahead(engine, (Job("evaluate", 0, i % 6, None, inbox) for i in range(600)))
    assert given == [i % 6 for i in range(600)]
    assert MOST < most <= 2 * 3 * MOST + MOST  # in batches, and no more than three of them for each worker


def test_jobs_that_carry_much_go_singly(pool):
    engine = pool[0]
    inbox = [{"server": Message(theta=Values(torch.zeros(2_000_000)))} for _ in range(4)]
    given, most = looked_ahead(engine, (Job("evaluate", 0, i % 6, None, inbox[i % 4]) for i in range(60)))
    assert len(given) == 60
    assert most <= 17


@pytest.mark.parametrize(
    ("jobs", "seconds", "nbytes", "then"),
    [
        (1, 0.0001, 10, 2),  # small ones: twice as many as before,
        (16, 0.0016, 160, MOST),  # up to a bound
        (4, 0.004, 0, 8),
        (8, 0.016, 0, 4),  # 2 ms each
        (8, 8.0, 0, 1),
        (2, 0.0, 8 << 20, 1),  # 4 MiB each
        (1, 0.0, 0, 2),
    ],
)
def test_a_batch_is_as_large_as_its_jobs_are_small(jobs, seconds, nbytes, then):
    assert batch_size(jobs, seconds, nbytes, within=0.008) == then


def test_what_fails_in_the_middle_of_a_batch_is_named(pool):
    engine, device = pool
    inbox = {"server": device.method.down(None, 0, device.ctx(0))}
    wrong = {"server": Message(theta=Values(torch.zeros(3)))}
    jobs = (Job("shared" if i == 150 else "evaluate", i, i % 6, None, wrong if i == 150 else inbox) for i in range(300))
    with pytest.raises(
        ClientFailed, match=r"client 0 failed in round 151 \(shared\): RuntimeError: shape '\[-1, 4810\]'"
    ):
        list(engine.map(jobs))
    assert len(list(engine.map(Job("evaluate", 0, k, None, inbox) for k in range(6)))) == 6  # it is as good as before


def test_messages_of_a_batch_arrive_as_they_were(pool):
    """Alike or not, in this batch or the last one: each client gets its own."""
    engine, device = pool
    dim = device.task.layout.dim
    generator = torch.Generator().manual_seed(1)
    messages = [Message(theta=Values(torch.randn(dim, generator=generator))) for _ in range(5)]
    order = [int(i) for i in torch.randint(0, 5, (400,), generator=generator)]
    jobs = [Job("shared", 0, place % 6, None, {"server": messages[i]}) for place, i in enumerate(order)]
    with arithmetic():
        due = [device.handle(job).score for job in jobs]
    assert [result.score for result in engine.map(jobs)] == due
    assert len(set(map(str, due))) > 10


DEADLY = """
import os, signal
from dataclasses import dataclass
from pathlib import Path
from sparsona.methods.ditto import Ditto

@dataclass(frozen=True, kw_only=True)
class Broken(Ditto):
    def personal(self, client, inbox, data, ctx):
        kind, _, t, k = (*ctx.rng.key[1:2], *ctx.rng.key[-3:])
        if kind == "personal" and (t, k) == (2, 33) and Path(__file__).with_name("poison").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return super().personal(client, inbox, data, ctx)
"""


def test_killed_in_the_middle_of_a_batch_and_resumed_to_the_bit(tmp_path, monkeypatch):
    """Only the client that the worker was at is named, out of all that it was given."""
    use_broken(DEADLY, tmp_path, monkeypatch)
    many = {"data": {"clients": 60, "partition": "iid", "sample_share": 1.0}, "fleet": {"per_round": 20}}
    r = recipe("broken:Broken", rounds=4, engine="pool", **many)
    run(r, tmp_path / "whole")
    (tmp_path / "poison").touch()
    with pytest.raises(WorkerDied, match=r"was killed by SIGKILL while client 33 ran in round 3 \(evaluate\)"):
        run(r, tmp_path / "run")
    (tmp_path / "poison").unlink()
    resume(tmp_path / "run")
    assert files(tmp_path / "run", {"timing.jsonl"}) == files(tmp_path / "whole", {"timing.jsonl"})
