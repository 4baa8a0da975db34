"""Ray's workers give the same bits as the local engine."""

import importlib.util
import re
from pathlib import Path

import pytest

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
