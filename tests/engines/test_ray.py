"""Ray's workers give the same bits as the local engine."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import sparsona
from engines.test_engines import files
from small import recipe
from sparsona.engines.pool import WorkerDied
from sparsona.experiment.recipe import RecipeError, check, tables
from sparsona.experiment.runner import resume, run
from sparsona.methods import METHODS

there = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'sparsona[ray]'"
)
MORE = {"results": {"models": True, "figures": False}}


@pytest.fixture
def fetched(monkeypatch):
    """Whose bytes came to the engine by themselves, as if all were large."""
    from sparsona.engines import ray as engine

    fetch, whose = engine._RayBlob.fetch, []
    monkeypatch.setattr(engine, "_SMALL", 0)
    monkeypatch.setattr(engine._RayBlob, "fetch", lambda held: whose.append(held.k) or fetch(held))
    return whose


def equal_on_ray(method: str, at: Path) -> None:
    run(recipe(method, **MORE), at / method / "local")
    run(recipe(method, engine="ray", **MORE), at / method / "ray")
    assert files(at / method / "ray") == files(at / method / "local")


class Cluster(ModuleType):
    """What the engine needs of the module ray, for a cluster that has so much; it notes what actors ask for."""

    def __init__(self, **has: float) -> None:
        super().__init__("ray")
        self.has, self.asked, self.built, self.ended = has, [], [], []
        self.exceptions = ModuleType("ray.exceptions")
        for name in ("GetTimeoutError", "ObjectLostError", "RayError"):
            setattr(self.exceptions, name, type(name, (Exception,), {}))

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return self.has

    def remote(self, **options):
        def actor(kind):
            def made(*arguments):
                self.asked.append(options)
                worker = kind(*arguments)
                return SimpleNamespace(ready=SimpleNamespace(remote=worker.ready))

            return SimpleNamespace(remote=made)

        return actor

    def get(self, value, timeout=None):
        return value

    def kill(self, worker):
        self.ended.append(worker)


STUB = """
import types, torch
built = []

def build(**arguments):
    built.append(arguments)
    place = torch.device(KINDS.get(len(built) - 1, "cpu"))
    return types.SimpleNamespace(task=types.SimpleNamespace(device=place))

KINDS = {}
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """A module that builds devices, and knows what with."""
    (tmp_path / "stub.py").write_text(STUB)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "stub", raising=False)
    return importlib.import_module("stub")


@pytest.fixture
def on_cluster(stub, monkeypatch):
    """Makes an engine on a pretended cluster, whose workers build stubs; gives it and the cluster."""

    def make(workers, devices, *, fewer=False, **has):
        cluster = Cluster(**has)
        file = Path(sparsona.__file__).parent / "engines" / "ray.py"
        spec = importlib.util.spec_from_file_location("engine_on_a_pretended_cluster", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "ray", cluster)
        monkeypatch.setitem(sys.modules, "ray.exceptions", cluster.exceptions)
        spec.loader.exec_module(module)
        return module.RayEngine(workers, "stub:build", {"x": 1}, "auto", devices, fewer=fewer), cluster

    return make


SEES = {"runtime_env": {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}}  # else Ray hides GPUs from workers


@pytest.mark.parametrize(
    ("workers", "devices", "fewer", "has", "count", "options", "sharing"),
    [
        (3, ("cpu",), False, {"CPU": 8, "GPU": 2}, 3, {}, 1),
        (3, ("auto",), False, {"CPU": 8}, 3, SEES, 3),  # Ray may not know of GPUs that are there
        (3, ("auto",), False, {"CPU": 8, "GPU": 1}, 3, SEES | {"num_gpus": 0.3333}, 3),
        (3, ("cuda",), False, {"CPU": 8, "GPU": 2}, 3, SEES | {"num_gpus": 0.5}, 2),  # 2/3 would not fit thrice
        (7, ("cuda",), False, {"CPU": 8, "GPU": 1}, 7, SEES | {"num_gpus": 0.1428}, 7),
        (2, ("auto",), False, {"CPU": 8, "GPU": 4}, 2, SEES | {"num_gpus": 1.0}, 1),
        (100, ("auto",), True, {"CPU": 8, "GPU": 2}, 4, SEES | {"num_gpus": 0.5}, 2),
        (100, ("auto",), True, {"CPU": 8}, 8, SEES, 8),
        (4, ("cuda:0", "cuda:1"), False, {"CPU": 8, "GPU": 2}, 4, SEES, 2),  # the numbers are the machine's own
    ],
)
def test_workers_ask_for_their_share_of_a_gpu_and_are_shown_it(
    workers, devices, fewer, has, count, options, sharing, on_cluster, stub
):
    engine, cluster = on_cluster(workers, devices, fewer=fewer, **has)
    engine.ready()
    assert cluster.asked == count * [{"max_restarts": 0, "num_cpus": 1, **options}]
    places = [devices[i % len(devices)] for i in range(count)]  # in turn
    assert stub.built == [{"x": 1, "device": place, "sharing": sharing} for place in places]


def test_workers_say_what_they_compute_on(on_cluster, stub, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: "NVIDIA A100")
    engine, _ = on_cluster(2, ("auto",), CPU=8, GPU=1)
    engine.ready()
    assert engine.kind == "cpu"
    stub.KINDS.update(dict.fromkeys(range(2, 5), "cuda:0"))
    engine, _ = on_cluster(3, ("auto",), CPU=8, GPU=1)
    engine.ready()
    assert engine.kind == "cuda: NVIDIA A100"


def test_workers_of_different_kinds_are_an_error_that_names_them(on_cluster, stub):
    stub.KINDS[1] = "mps"
    engine, cluster = on_cluster(3, ("auto",), CPU=8, GPU=1)
    text = (
        'engine.device: "auto" is of several kinds on this cluster, which give different results: cpu (workers 0, 2); '
        'mps (workers 1); use machines of one kind, or engine.device = "cpu"'
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        engine.ready()
    assert len(cluster.ended) == 3


@there
@pytest.mark.slow
def test_gpus_of_a_cluster_that_runs_already_are_not_hidden_from_workers(tmp_path, monkeypatch):
    """A real cluster that says it has two GPUs: what counts is what Ray lets workers see."""
    import ray

    from sparsona.engines.ray import RayEngine

    (tmp_path / "seer.py").write_text(
        "import os, types, torch\n"
        "def build(**arguments):\n"
        "    seen = os.environ.get('CUDA_VISIBLE_DEVICES')\n"
        "    if seen not in ([None] if ':' in arguments['device'] else ['0', '1']):\n"
        "        raise ValueError(f'{arguments} sees {seen!r}')\n"
        "    return types.SimpleNamespace(task=types.SimpleNamespace(device=torch.device('cpu')))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", raising=False)
    ray.init(num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False)
    try:
        for devices, workers in ((("cuda",), 4), (("cuda:0", "cuda:1"), 2)):
            engine = RayEngine(workers, "seer:build", {}, "auto", devices)
            engine.ready()
            engine.close()
    finally:
        ray.shutdown()


@there
@pytest.mark.slow
def test_ray_equals_local_to_the_bit(tmp_path):
    """One cluster for several runs: a star, one whose server knows its clients, and peers."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        for method in ("ditto", "fedspa", "dadpfl"):
            equal_on_ray(method, tmp_path)
        with pytest.raises(
            ValueError,
            match=r"engine.workers: 3 is not allowed; expected an int <= 2, the processors of the Ray cluster",
        ):
            run(recipe("ditto", engine="ray", workers=3))
    finally:
        ray.shutdown()


@there
@pytest.mark.fleet
@pytest.mark.timeout(1200)
def test_every_method_on_ray_equals_local_to_the_bit(tmp_path):
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        for method in METHODS:
            equal_on_ray(method, tmp_path)
    finally:
        ray.shutdown()


@there
@pytest.mark.slow
def test_a_cluster_of_two_machines_and_one_that_is_lost(tmp_path, fetched):
    """What clients keep and say stays on the workers until a checkpoint; with a machine, the rounds since are lost."""
    from ray.cluster_utils import Cluster

    run(recipe("dadpfl", rounds=4, **MORE), tmp_path / "local")
    apart = {"max_direct_call_object_size": 100}  # small things lie on the machine that made them, too
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": apart}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    machines = [cluster.add_node(num_cpus=1)]
    more = MORE | {"engine": {"name": "ray", "workers": 2, "address": cluster.address, "checkpoint_every": 2}}
    r = check(tables(recipe("dadpfl", rounds=4)) | more)
    seen = []

    def listen(step):
        seen.append((step.round, len(fetched)))
        if step.round == 3:
            cluster.remove_node(machines.pop())

    try:
        with pytest.raises(WorkerDied, match=r"died while client \d ran in round 4|is lost with the machine it was on"):
            run(r, tmp_path / "ray", on_round=listen)
        assert seen == [(1, 0), (2, 12), (3, 12)]  # six values and six messages, for the checkpoint alone
        machines.append(cluster.add_node(num_cpus=1))
        seen.clear()
        resume(tmp_path / "ray", on_round=lambda step: seen.append(step.round))
        assert seen == [3, 4]
        assert files(tmp_path / "ray") == files(tmp_path / "local")
    finally:
        cluster.shutdown()


@there
def test_an_address_where_no_cluster_is_is_told_at_once():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))  # and nobody listens
        address = f"127.0.0.1:{s.getsockname()[1]}"
        for wrong, told in (
            ("somewhere", "expected host:port"),
            (address, "cannot be reached .*; expected host:port"),
        ):
            more = {"engine": {"name": "ray", "workers": 2, "address": wrong}}
            with pytest.raises(ValueError, match=rf'engine.address: "{re.escape(wrong)}" .*{told}'):
                run(check(tables(recipe()) | more))


def test_without_ray_it_says_what_to_install(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find(name, *rest))
    with pytest.raises(
        RecipeError, match=r"""engine\.name: "ray" needs Ray, which is not installed: pip install 'sparsona\[ray\]'"""
    ):
        run(recipe(engine="ray"), tmp_path / "run")
