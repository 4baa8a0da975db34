"""The same method files on a fleet: equal to the local engine to the bit, through Flower's own ClientApp."""

import json
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Client, Listener
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sparsona[flower]'")

from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fleet.world import World
from small import recipe
from sparsona.experiment.recipe import tables
from sparsona.experiment.results import Run
from sparsona.experiment.runner import run
from sparsona.experiment.setup import newcomers, prepare
from sparsona.fleet import FleetError
from sparsona.fleet.client_runtime import ClientRuntime, Refused
from sparsona.fleet.data import NodeData
from sparsona.fleet.envelope import pack, unpack
from sparsona.fleet.flower import _content, _data, _through_socket, client_app
from sparsona.fleet.node import _serve
from sparsona.fleet.trial import collect
from sparsona.methods import METHODS
from tiers import tiered

LEAVE = {"progress.json", "timing.jsonl", "recipe.toml", "run.json", "fleet.jsonl", "versions.json"}


def files(path: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file() and p.name not in LEAVE
    }


@pytest.mark.parametrize("method", tiered(sorted(METHODS), short=("dadpfl", "ditto", "fedspa", "pfedgate")))
def test_a_fleet_equals_local_to_the_bit(method, tmp_path):
    r = recipe(method)
    run(r, tmp_path / "local")
    world = World(tmp_path, 6)
    world.run(r, tmp_path / "fleet")
    assert files(tmp_path / "fleet") | world.values(tmp_path / "fleet") == files(tmp_path / "local")


def test_metrics_travel_with_scores(tmp_path):
    task = {"metrics": ["auc", "balanced_accuracy", "accuracy"], "label_smoothing": 0.1}
    r = recipe("ditto", rounds=2, task=task, method={"optimiser": "AdamW", "lr": 0.01, "moments": "client"})
    run(r, tmp_path / "local")
    world = World(tmp_path, 6)
    world.run(r, tmp_path / "fleet")
    assert files(tmp_path / "fleet") | world.values(tmp_path / "fleet") == files(tmp_path / "local")
    assert Run.open(tmp_path / "fleet").clients[-1]["before"].keys() >= {"auc", "balanced_accuracy"}


def test_a_fleet_of_numbers_equals_local_to_the_bit(tmp_path):
    """The server builds the same model without any data: nodes tell it what their targets are."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 4)).astype(np.float32)
    np.savez(
        tmp_path / "all.npz", x=x, y=(x @ np.array([1.0, -2.0, 0.5, 0.0])).astype(np.float32), client=np.arange(90) % 3
    )
    data = {
        "source": str(tmp_path / "all.npz"),
        "clients": 3,
        "partition": "natural",
        "sample_share": 1.0,
        "alpha": 0.3,
    }
    r = recipe("fedavg", rounds=2, task={"loss": "huber", "metrics": ["rmse"]}, model={"name": "mlp"}, data=data)
    run(r, tmp_path / "local")
    world = World(tmp_path, 3)
    world.run(r, tmp_path / "fleet")
    assert files(tmp_path / "fleet") | world.values(tmp_path / "fleet") == files(tmp_path / "local")


@pytest.mark.parametrize("field", ["loss", "metrics"])
def test_a_node_refuses_losses_and_metrics_of_others(field, tmp_path):
    value = {"loss": "math:exp", "metrics": ["math:exp"]}[field]
    raw = tables(recipe(task={field: value}))
    with pytest.raises(Refused, match=rf'task.{field}: "math:exp" is a plug-in'):
        NodeData().builder()(raw, 0)


@pytest.mark.parametrize("method", ["ditto", "splitmix"])
def test_many_rounds_between_checkpoints_and_models_stay_on_the_devices(method, tmp_path):
    r = recipe(method, rounds=5, checkpoint_every=3, results={"models": True, "figures": False})
    run(r, tmp_path / "local")
    world = World(tmp_path, 6)
    world.run(r, tmp_path / "fleet")
    left = {name for name in files(tmp_path / "local") if name.startswith("models/")}
    assert len(left) == 6
    got = files(tmp_path / "fleet") | world.values(tmp_path / "fleet")
    assert got == {name: data for name, data in files(tmp_path / "local").items() if name not in left}
    for k in range(6):
        (model,) = (tmp_path / f"node-{k}").glob("*/model.safetensors")
        assert model.read_bytes() == (tmp_path / "local" / "models" / f"client-{k:05d}.safetensors").read_bytes()


def test_models_are_finished_on_the_devices(tmp_path):
    """The best round is found by the devices' validation samples, and each one tunes its model."""
    results, evaluate = {"models": True, "figures": False}, {"every": 2, "points": ["finished", "shared"]}
    r = recipe("perfedmask", results=results, evaluate=evaluate)
    run(r, tmp_path / "local")
    World(tmp_path, 6).run(r, tmp_path / "fleet")
    assert (tmp_path / "fleet" / "summary.json").read_bytes() == (tmp_path / "local" / "summary.json").read_bytes()
    assert not list((tmp_path / "fleet").rglob("client-*"))
    for k in range(6):
        (model,) = (tmp_path / f"node-{k}").glob("*/model.safetensors")
        assert model.read_bytes() == (tmp_path / "local" / "models" / f"client-{k:05d}.safetensors").read_bytes()


def test_newcomers_adapt_on_their_devices(tmp_path):
    r = recipe("pfedgate", fleet={"hold_out": 0.34})
    run(r, tmp_path / "local")
    world = World(tmp_path, 6)
    world.run(r, tmp_path / "fleet")
    summary = (tmp_path / "fleet" / "summary.json").read_bytes()
    assert summary == (tmp_path / "local" / "summary.json").read_bytes()
    assert b"newcomers" in summary
    for k in newcomers(r):
        (value,) = (tmp_path / f"node-{k}").glob("*/*.value")  # it stays there
        assert value.read_bytes() == (tmp_path / "local" / "state" / f"client-{k:05d}.safetensors").read_bytes()
        assert not (tmp_path / "fleet" / "state" / f"client-{k:05d}.safetensors").exists()
    collect(Run(tmp_path / "fleet"), tmp_path)  # as a trial does
    assert files(tmp_path / "fleet") == files(tmp_path / "local")


@pytest.mark.parametrize(
    ("method", "fleet"),
    [("ditto", {"sampler": "samples"}), ("dispfl", {"sampler": "poisson", "peers": "drawn", "per_round": 2})],
)
def test_a_fleet_draws_its_clients_as_a_simulation_does(method, fleet, tmp_path):
    r = recipe(method, fleet=fleet, evaluate={"clients": "participated"})
    done = run(r, tmp_path / "local")
    world = World(tmp_path, 6)
    world.run(r, tmp_path / "fleet")
    trained = {k for row in done.rounds for k in row["participants"]}
    local = files(tmp_path / "local")
    for k in set(range(6)) - trained:  # a device that was never asked keeps nothing
        local.pop(f"state/client-{k:05d}.safetensors", None)
    assert files(tmp_path / "fleet") | world.values(tmp_path / "fleet") == local


def test_sizes_of_clients_are_those_that_the_run_began_with(tmp_path):
    """A sampler that goes by samples needs all of them at the start, and not again when it is resumed."""
    r = recipe("ditto", fleet={"sampler": "samples"})
    with pytest.raises(
        FleetError,
        match=r'fleet\.sampler: "samples" needs the sizes of all clients, and client 5 is offline; start its node,',
    ):
        World(tmp_path, 6, away={5}).run(r, tmp_path / "fleet", wait=0.2)
    assert not (tmp_path / "fleet").exists()
    world = World(tmp_path, 6)
    world.run(r, tmp_path / "fleet")
    sizes = json.loads((tmp_path / "fleet" / "run.json").read_text())["client_samples"]
    assert sizes == prepare(r)[1].train_sizes.tolist()


def test_own_files_are_the_same_as_a_part_of_a_data_set(tmp_path):
    """Nodes with .npz files that hold what a partition would have given them train the same models, to the bit."""
    r = recipe("fedspa")
    _, whole = prepare(r)
    run(r, tmp_path / "local")
    world = World(tmp_path, 6)
    for k, runtime in enumerate(world.runtimes):
        part, data = whole.parts[k], whole.dataset
        held = np.sort(np.concatenate([part.train, part.validation, part.test]))
        scale = {"mean": data.prepare.mean, "std": data.prepare.std}
        np.savez(tmp_path / f"{k}.npz", x=data.x.numpy()[held], y=data.y.numpy()[held], **scale)
        runtime.build = NodeData(tmp_path / f"{k}.npz", classes=10).builder()
    world.run(r, tmp_path / "fleet")
    assert files(tmp_path / "fleet") | world.values(tmp_path / "fleet") == files(tmp_path / "local")


def test_a_test_set_of_ones_own_stays_one(tmp_path):
    r = recipe("fedspa")
    data = prepare(r)[1].dataset
    x, y = data.x.numpy(), data.y.numpy()
    np.savez(tmp_path / "f.npz", x=x[:80], y=y[:80], x_test=x[80:100], y_test=y[80:100])
    device, facts = NodeData(tmp_path / "f.npz", classes=10).builder()(tables(r), 3)
    assert facts == {
        "classes": 10,
        "shape": [1, 8, 8],
        "vocabulary": None,
        "target": "class",
        "samples": 70,
    }
    assert device.test(3).index.tolist() == list(range(80, 100))


def test_an_official_data_set_as_ones_own():
    device, facts = NodeData(source="digits").builder()(tables(recipe("fedspa")), 3)
    assert facts["classes"] == 10
    assert facts["samples"] + len(device.local(3).validation) + len(device.test(3)) == 1797


def test_the_process_that_stays_answers_over_its_socket(tmp_path):
    """Flower's short-lived process and the device's own, which are two on a real node."""
    folder = Path(tempfile.mkdtemp())  # short: a socket's path has about a hundred characters
    runtime = ClientRuntime(2, tmp_path, NodeData().builder(), "1.2")
    listener = Listener(str(folder / "device"), "AF_UNIX")
    threading.Thread(target=_serve, args=(listener, runtime), daemon=True).start()
    try:
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
        context = Context(1, 1, {"socket": str(folder / "device")}, RecordDict(), {})
        for recipe_, told in ((tables(recipe("fedspa")), "client"), ({"name": "x"}, "error")):
            envelope = pack({"hello": True, "ask": "abc", "run": "r", "sparsona": "1.2", "recipe": recipe_})
            message = Message(_content(envelope), 1, "query.sparsona")
            said, _ = unpack(_data(client_app()(message, context)))
            assert said["ask"] == "abc"
            assert told in said
        told = []
        runtime.report, runtime.max_bytes = told.append, 1 << 20
        with suppress(OSError), Client(str(folder / "device"), "AF_UNIX") as link:
            link.send_bytes(bytes((1 << 20) + 1))
            link.poll(10)
        end = time.monotonic() + 10
        while not told and time.monotonic() < end:  # it hangs up before it says why
            time.sleep(0.01)
        assert told == ["refused a job of more than 1 MB; allow more with --max-mb"]
        with Client(str(folder / "device"), "AF_UNIX"):
            pass  # one that hangs up at once does not stop it
        honest = runtime.answer
        runtime.answer = lambda data: (_ for _ in ()).throw(MemoryError)
        with Client(str(folder / "device"), "AF_UNIX") as link:
            link.send_bytes(b"one that is too much")  # the next is answered
            with pytest.raises(EOFError):
                link.recv_bytes()
        runtime.answer = lambda data: threading.Event().wait(2) and b""
        with pytest.raises(TimeoutError, match=r"did not answer within 0.1 seconds"):
            _through_socket(b"one that takes too long", context, 0.1)
        runtime.answer = honest
        with Client(str(folder / "device"), "AF_UNIX") as link:
            link.send_bytes(b"garbage")
            assert "7 bytes are too few for an envelope" in unpack(link.recv_bytes())[0]["error"]
    finally:
        listener.close()
        shutil.rmtree(folder)
