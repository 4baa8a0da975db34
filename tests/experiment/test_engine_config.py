"""The section [engine]: what is refused, what may change in a run that has begun, and what a run records of it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from command import refused
from engines.test_engines import files, use_broken
from small import recipe
from sparsona.api.dry_run import dry_run
from sparsona.api.runs import verify_all
from sparsona.engines.device import Device
from sparsona.engines.jobs import Job
from sparsona.engines.local import ClientFailed, LocalEngine, reason
from sparsona.experiment import setup
from sparsona.experiment.engine import EngineConfig, devices_for, moved
from sparsona.experiment.recipe import Recipe, RecipeError, check, deciding, same_run, tables
from sparsona.experiment.results import Run
from sparsona.experiment.runner import resume, run
from sparsona.experiment.setup import count_workers, prepare
from sparsona.experiment.sweep import content
from tiers import tiered

LEAVE = {"timing.jsonl", "recipe.toml"}


def on(r: Recipe, **fields: Any) -> Recipe:
    """The recipe with other fields of [engine]."""
    return check(tables(r) | {"engine": tables(r)["engine"] | fields})


def stopped(r: Recipe, folder: Path, after: int = 1) -> None:
    """A run that was interrupted after some rounds."""

    def stop(step: Any) -> None:
        if step.round == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(r, folder, on_round=stop)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"device": "gpu"}, 'engine.device: "gpu" is not allowed; expected auto, cpu, cuda, cuda:N, mps or a list'),
        ({"device": []}, "engine.device: [] is not allowed; expected auto"),
        ({"device": ["cuda:0", "cuda"]}, 'engine.device: ["cuda:0", "cuda"] has cuda:0 more than once'),
        ({"device": ["cuda:0", "cpu"]}, 'engine.device: ["cuda:0", "cpu"] mixes kinds'),
        (
            {"device": ["cuda:0", "cuda:1"], "name": "local"},
            'engine.device: ["cuda:0", "cuda:1"] needs worker processes, but engine.name = "local" has none; expected '
            'one device, or "pool"',
        ),
        ({"device": 0}, "engine.device: 0 is not allowed; expected a string or list of strings"),
        ({"workers": 0}, 'engine.workers: 0 is not allowed; expected an int >= 1 or "auto"'),
        ({"workers": "many"}, 'engine.workers: "many" is not allowed; expected an int >= 1 or "auto"'),
        ({"device_cache": 0}, "engine.device_cache: 0 is not allowed; expected a float > 0"),
        ({"precision": "fp16"}, 'engine.precision: "fp16" is not allowed; expected one of "float32", "bf16"'),
        ({"tf32": 1}, "engine.tf32: 1 is not allowed; expected true or false"),
    ],
)
def test_what_no_machine_has_is_refused_when_the_recipe_is_read(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(RecipeError) as caught:
        on(recipe(), **fields)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("engine", ["local", "pool"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_here_is_refused_before_anything_is_written(engine: str, tmp_path: Path) -> None:
    r = on(recipe(engine=engine), device="cuda")
    text = rf'^engine.device: "cuda" is not available; expected auto.* cpu \(PyTorch {torch.__version__.split("+")[0]}'
    with pytest.raises(RecipeError, match=text):
        run(r, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(RecipeError, match=r'^x: engine.device: "cuda" is not available'):
        verify_all({"x": r})
    with pytest.raises(RecipeError, match=r'^engine.device: "cuda" is not available'):
        dry_run({"x": r}, tmp_path / "runs")


def test_more_workers_than_fit_are_refused_before_any_is_started(tmp_path: Path) -> None:
    r = recipe(engine="pool", workers=5000)
    with pytest.raises(
        RecipeError, match=r"^engine.workers: 5000 is too many for this machine; expected at most \d+ \("
    ):
        run(r, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(RecipeError, match=r"^engine.workers: 5000 is too many"):
        dry_run({"x": r}, tmp_path / "runs")


def test_workers_without_worker_processes_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    r = on(recipe(), workers=500)
    text = (
        'engine.workers: 500 needs worker processes, but engine.name = "local" has none; expected 1 or "auto", or '
        'engine.name = "pool"'
    )
    with pytest.raises(RecipeError, match=f"^{re.escape(text)}$"):
        run(r, tmp_path / "run")
    with pytest.raises(RecipeError, match=f"^x: {re.escape(text)}$"):
        verify_all({"x": r})
    with pytest.raises(RecipeError, match=f"^{re.escape(text)}$"):
        dry_run({"x": r}, tmp_path / "runs")
    assert not list(tmp_path.iterdir())
    for workers in (1, "auto"):
        assert devices_for(EngineConfig(name="local", workers=workers, device="cpu")) == ("cpu",)


def test_a_recorded_number_of_workers_does_not_follow_a_run_to_the_local_engine(tmp_path: Path) -> None:
    stopped(recipe(), tmp_path / "run")
    file = tmp_path / "run" / "recipe.toml"
    file.write_text(file.read_text().replace("workers = 1", "workers = 2"))  # as earlier versions wrote it
    assert Run.open(tmp_path / "run").recipe.engine.workers == 2
    assert resume(tmp_path / "run").finished
    assert moved(EngineConfig(workers=4), {"name": "local"}).workers == 1
    with pytest.raises(RecipeError, match=r"^engine.workers: 4 needs worker processes"):
        devices_for(moved(EngineConfig(), {"name": "local", "workers": 4}))


@pytest.mark.parametrize(
    ("method", "fleet", "most"),
    [
        ("fedavg", {"per_round": 1}, 1),
        ("dispfl", {"per_round": 1}, 6),
        ("dispfl", {"per_round": 1, "peers": "drawn"}, 1),
    ],
)
def test_auto_is_no_more_workers_than_train_at_a_time(method: str, fleet: dict[str, Any], most: int) -> None:
    r = on(recipe(method, fleet=fleet), name="pool", workers="auto")
    assert 1 <= count_workers(r, ("cpu",), *prepare(r)) <= most


def test_where_clients_run_does_not_decide_results_but_precision_does() -> None:
    r = recipe()
    there = on(r, name="pool", workers=7, device="cuda", device_cache=1, checkpoint_every=3, address="x")
    assert same_run(replace(r, name="other"), there)
    assert content(r) == content(there)
    for field, value in (("precision", "bf16"), ("tf32", True)):
        assert not same_run(r, on(r, **{field: value}))
    assert deciding(r)["engine"] == {"precision": "float32", "tf32": False}


def test_a_run_moves_by_fields_that_do_not_decide_its_results() -> None:
    config = EngineConfig(workers=500)
    assert moved(config, {"workers": 1, "device": "cpu"}) == EngineConfig(workers=1, device="cpu")
    assert moved(config, {}) is not None
    with pytest.raises(
        RecipeError, match=r"^engine.precision: cannot change in a run that has started; expected name, w"
    ):
        moved(config, {"precision": "bf16"})
    with pytest.raises(RecipeError, match=r"^engine.wokers: no such field; expected name, workers"):
        moved(config, {"wokers": 1})
    with pytest.raises(RecipeError, match=r'^engine.device: "gpu" is not allowed'):
        moved(config, {"device": "gpu"})


def test_a_cluster_s_devices_are_those_of_its_machines() -> None:
    assert devices_for(EngineConfig(name="ray", address="auto", device="cuda")) == ("cuda",)
    assert devices_for(EngineConfig(name="ray", address="auto", device=("cuda:0", "cuda:1"))) == ("cuda:0", "cuda:1")


def test_a_run_names_its_kind_of_device_and_warns_when_it_goes_on_with_another(tmp_path: Path) -> None:
    stopped(on(recipe(), device="cpu"), tmp_path / "run")
    about = tmp_path / "run" / "run.json"
    facts = json.loads(about.read_text())
    assert (facts["devices"], facts["precision"]) == (["cpu"], "float32")
    about.write_text(json.dumps(facts | {"devices": ["cuda: NVIDIA A100"]}))
    with pytest.warns(UserWarning, match=r"may not be bit-identical: device was cuda: NVIDIA A100, is cpu$"):
        resume(tmp_path / "run")
    assert Run.open(tmp_path / "run").finished


def test_all_kinds_of_device_that_computed_a_run_are_on_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(recipe(rounds=6), tmp_path / "run")
    about = tmp_path / "run" / "run.json"

    def continued(kind: str, after: int) -> list[str]:
        def stop(step: Any) -> None:
            if step.round == after:
                raise KeyboardInterrupt

        monkeypatch.setattr(setup, "device_kind", lambda devices: kind)
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "run", on_round=stop)
        devices: list[str] = json.loads(about.read_text())["devices"]
        return devices

    with pytest.warns(UserWarning, match=r"device was cpu, is mps$"):
        assert continued("mps", 2) == ["cpu", "mps"]
    with pytest.warns(UserWarning, match=r"device was cpu, then mps, is mps$"):
        assert continued("mps", 3) == ["cpu", "mps"]
    monkeypatch.setattr(setup, "device_kind", lambda devices: "cuda: NVIDIA A100")
    with monkeypatch.context() as failing:
        failing.setattr(Device, "handle", broken)
        with pytest.warns(UserWarning, match="device was"), pytest.raises(ClientFailed):
            resume(tmp_path / "run")
    assert json.loads(about.read_text())["devices"] == ["cpu", "mps"]  # where nothing was computed is not among them
    with pytest.warns(UserWarning, match=r"device was cpu, then mps, is cuda: NVIDIA A100$"):
        resume(tmp_path / "run")
    assert json.loads(about.read_text())["devices"] == ["cpu", "mps", "cuda: NVIDIA A100"]


def broken(*args: object) -> None:
    raise ZeroDivisionError


def test_what_a_cluster_s_workers_say_of_themselves_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """The recipe says "auto", which is no kind of device."""
    monkeypatch.setattr(LocalEngine, "kind", "cuda: NVIDIA A100")
    stopped(on(recipe(), device="auto"), tmp_path / "run")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["devices"] == ["cuda: NVIDIA A100"]
    resume(tmp_path / "run")
    assert not [w for w in recwarn if "device was" in str(w.message)]
    stopped(on(recipe(), device="auto"), tmp_path / "other")
    monkeypatch.setattr(LocalEngine, "kind", "cpu")
    with pytest.warns(UserWarning, match=r"device was cuda: NVIDIA A100, is cpu$"):
        resume(tmp_path / "other")


def test_a_run_of_a_version_that_named_no_device_was_on_the_cpu(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    stopped(on(recipe(), device="cpu"), tmp_path / "run")
    about = tmp_path / "run" / "run.json"
    facts = json.loads(about.read_text())
    about.write_text(json.dumps({k: v for k, v in facts.items() if k not in ("devices", "precision")}))
    resume(tmp_path / "run")
    assert not [str(w.message) for w in recwarn if "another environment" in str(w.message)]


def test_a_run_of_a_version_that_named_the_first_device_keeps_it(tmp_path: Path) -> None:
    stopped(on(recipe(), device="cpu"), tmp_path / "run")
    about = tmp_path / "run" / "run.json"
    facts = json.loads(about.read_text())
    del facts["devices"]
    about.write_text(json.dumps(facts | {"device": "mps"}))
    with pytest.warns(UserWarning, match=r"may not be bit-identical: device was mps, is cpu$"):
        resume(tmp_path / "run")
    assert json.loads(about.read_text())["devices"] == ["mps", "cpu"]


def test_a_run_moves_to_another_engine_and_keeps_its_bits(tmp_path: Path) -> None:
    run(recipe(), tmp_path / "whole")
    stopped(recipe(), tmp_path / "moved")
    resume(tmp_path / "moved", engine={"name": "pool", "workers": 1, "device": "cpu"})
    assert files(tmp_path / "moved", LEAVE) == files(tmp_path / "whole", LEAVE)
    assert Run.open(tmp_path / "moved").recipe.engine.name == "local"  # the recipe stays as it was recorded


def test_the_command_resumes_elsewhere(tmp_path: Path) -> None:
    stopped(recipe(), tmp_path / "run")
    text = "engine.precision: cannot change in a run that has started; expected name, workers, device, device_cache"
    assert refused("resume", str(tmp_path / "run"), "engine.precision=bf16").startswith(text)
    assert refused("resume", str(tmp_path / "run"), "engine.device=gpu").startswith(
        'engine.device: "gpu" is not allowed'
    )


FULL = """
from dataclasses import dataclass
from pathlib import Path
import torch
from sparsona.methods.fedavg import FedAvg

@dataclass(frozen=True, kw_only=True)
class Broken(FedAvg):
    def local(self, client, inbox, data, ctx):
        if ctx.t == 2 and not Path(__file__).with_name("roomy").exists():
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().local(client, inbox, data, ctx)
"""


@pytest.mark.parametrize("engine", ["local", "pool"])
def test_out_of_memory_says_what_to_lower_and_loses_nothing(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_broken(FULL, tmp_path, monkeypatch)
    r = recipe("broken:Broken", rounds=4, engine=engine)
    with pytest.raises(ClientFailed) as caught:
        run(r, tmp_path / "run")
    text = str(caught.value)
    assert "failed in round 3 (local): the GPU is out of memory; lower engine.workers or engine.device_cache" in text
    assert "method.batch or evaluate.batch" in text
    assert "\n" not in text
    assert len(Run.open(tmp_path / "run").rounds) == 2  # what was done is kept
    (tmp_path / "roomy").touch()
    run(r, tmp_path / "whole")
    resume(tmp_path / "run", engine={"workers": 1, "device_cache": 0.5})
    assert files(tmp_path / "run", LEAVE) == files(tmp_path / "whole", LEAVE)


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("CUDA error: out of memory", True),
        ("HIP out of memory. Tried to allocate 2.00 GiB.", True),
        ("MPS backend out of memory (MPS allocated: 5.00 GB, other allocations: 1.00 GB, max allowed: 6 GB)", True),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        ("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED", False),
        ("the GPU is out of memory", False),  # what we say ourselves
    ],
)
def test_a_gpu_without_memory_is_known_by_what_pytorch_and_its_libraries_say(text: str, full: bool) -> None:
    assert reason(RuntimeError(text)).startswith("the GPU is out of memory; lower engine.workers") == full
    assert not reason(ValueError(text)).startswith("the GPU")
    assert reason(torch.OutOfMemoryError("x")).startswith("the GPU is out of memory")


def test_a_model_that_does_not_fit_on_the_gpu_says_what_to_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine "local" moves the model in this process, before any job."""

    def full(*args: object) -> None:
        raise RuntimeError("MPS backend out of memory (MPS allocated: 5.00 GB, max allowed: 6 GB)")

    stopped(recipe(), tmp_path / "begun")
    monkeypatch.setattr(setup, "devices_for", lambda config: ("mps",))
    monkeypatch.setattr(setup, "_device_of", full)
    monkeypatch.setattr(setup, "prepare", lambda *args: (None, None))
    text = r"^engine.device: the GPU is out of memory; lower engine.workers or engine.device_cache when you resume, or"
    with pytest.raises(RecipeError, match=text):
        run(recipe(), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(RecipeError, match=text):
        resume(tmp_path / "begun")
    assert len(Run.open(tmp_path / "begun").rounds) == 1


def test_an_operation_without_a_deterministic_kernel_is_named() -> None:
    said = (
        "avg_pool3d_backward_cuda does not have a deterministic implementation, but you set "
        "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation, ..."
    )
    assert reason(RuntimeError(said)) == (
        "avg_pool3d_backward_cuda has no deterministic kernel on this device; use another layer in the model, or "
        "engine.device=cpu"
    )
    assert reason(ValueError("x")) == "ValueError: x"


@pytest.mark.parametrize(
    "method", tiered(["fedavg", "pfedgate", "dispfl", "fedpse", "perfedavg"], ("fedavg", "pfedgate"))
)
def test_bf16_changes_results_a_little_and_is_the_same_in_every_engine(method: str, tmp_path: Path) -> None:
    exact, rough = recipe(method), on(recipe(method), precision="bf16")
    run(exact, tmp_path / "exact")
    run(rough, tmp_path / "rough")
    run(on(rough, name="pool", workers=2), tmp_path / "pool")
    assert files(tmp_path / "rough", LEAVE) == files(tmp_path / "pool", LEAVE)
    one, two = (Run.open(tmp_path / name).summary["before"]["loss"] for name in ("exact", "rough"))
    assert one != two
    assert two == pytest.approx(one, rel=0.02)


def test_bf16_tests_models_too(tmp_path: Path) -> None:
    exact, _ = prepare(recipe())
    rough, _ = prepare(on(recipe(), precision="bf16"))
    server = exact.method.start(6, exact.ctx(0, "start"))  # type: ignore[attr-defined]
    down = exact.method.down(server, 0, exact.ctx(0, "down", 0))  # type: ignore[attr-defined]
    scores = [d.handle(Job("evaluate", 0, 0, None, {"server": down})).score for d in (exact, rough)]
    assert scores[0] is not None
    assert scores[1] is not None
    assert scores[0].loss != scores[1].loss
    assert scores[0].loss == pytest.approx(scores[1].loss, rel=0.01)
