"""Several GPUs: workers take them in turn, and share what may be kept on each; their devices are stubs."""

import os

import pytest

from small import recipe
from sparsona.engines.hardware import Machine
from sparsona.engines.jobs import Job
from sparsona.engines.pool import PoolEngine
from sparsona.experiment import setup
from sparsona.experiment.recipe import check, tables

GIB = 1 << 30
STUB = """
import os, time
from sparsona.engines.jobs import Result

class Stub:
    def __init__(self, device, sharing):
        self.notes = {"gpu": float(device.removeprefix("cuda:")), "sharing": float(sharing), "pid": float(os.getpid())}

    def handle(self, job):
        time.sleep(0.05)  # so that each worker has its part
        return Result(job.k, notes=self.notes)

def build(device, sharing):
    return Stub(device, sharing)
"""


def test_workers_of_the_pool_take_the_gpus_in_turn(tmp_path, monkeypatch):
    (tmp_path / "stub_of_places.py").write_text(STUB)
    monkeypatch.syspath_prepend(tmp_path)
    engine = PoolEngine(3, "stub_of_places:build", {"sharing": 2}, ("cuda:0", "cuda:3"))
    try:
        engine.ready()
        places = {r.notes["pid"]: r.notes for r in engine.map(Job("shared", 0, k, None) for k in range(24))}
    finally:
        engine.close()
    assert os.getpid() not in places
    assert sorted((notes["gpu"], notes["sharing"]) for notes in places.values()) == [(0, 2), (0, 2), (3, 2)]


@pytest.mark.parametrize(
    ("workers", "devices", "count", "sharing"),
    [
        (3, ("cuda:0", "cuda:1"), 6, 3),
        ("auto", ("cuda:0", "cuda:1"), 3, 2),  # no more than clients that train at a time
        ("auto", ("cuda:1",), 2, 2),
        (1, ("cuda:0", "cuda:1"), 2, 1),
    ],
)
def test_a_run_on_several_gpus_says_how_many_workers_share_each(workers, devices, count, sharing, monkeypatch):
    made = []

    class Stub:
        def __init__(self, *arguments):
            made.append(arguments)

        def ready(self):
            pass

        def close(self):
            pass

    here = Machine(16, 64 * GIB, 60 * GIB, ("cuda:0", "cuda:1"), dict.fromkeys(("cuda:0", "cuda:1"), 32 * GIB).get)
    monkeypatch.setattr(setup, "PoolEngine", Stub)
    monkeypatch.setattr(setup, "devices_for", lambda config: devices)
    monkeypatch.setattr(Machine, "here", lambda: here)
    r = check(tables(recipe(engine="pool")) | {"engine": {"name": "pool", "workers": workers}})
    with setup.open_engine(r, None):
        pass
    ((number, _, arguments, given),) = made
    assert (number, arguments["sharing"], given) == (count, sharing, devices)


def test_workers_of_a_gpu_share_what_it_keeps_of_clients_data():
    r = check(tables(recipe()) | {"engine": {"name": "pool", "device": "cpu", "device_cache": 3.0}})
    assert [setup.worker_device(tables(r), None, "cpu", sharing=n).cache for n in (1, 2, 3)] == [3e9, 1.5e9, 1e9]
