"""The commands as a person or a script would use them."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from rich.console import Console

from command import call, enter, ok, refused
from sparsona.api import runs
from sparsona.cli import terminal
from sparsona.experiment.recipe_files import recipe_names
from sparsona.experiment.results import Run
from sparsona.methods import METHODS
from sparsona.models import MODELS

TINY = ["data.clients=4", "data.sample_share=0.2", "fleet.per_round=3", "rounds=2", "engine.name=local"]
SMALL: dict[str, Any] = {
    "rounds": 2,
    "data": {"clients": 4, "sample_share": 0.2},
    "model": {"name": "digits-mlp"},
    "method": {"name": "fedavg"},
    "engine": {"name": "local"},
}
NET = """
from torch import nn


class Net(nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.layer = nn.Linear(64, classes)

    def forward(self, x):
        return self.layer(x.flatten(1))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, with nothing of the machine's own settings."""
    enter(tmp_path, monkeypatch)
    return tmp_path


def saved(path: str, **changes: Any) -> str:
    raw = {k: v | changes.get(k, {}) if isinstance(v, dict) else changes.get(k, v) for k, v in SMALL.items()}
    Path(path).write_text(tomli_w.dumps(raw | {k: v for k, v in changes.items() if k not in raw}))
    return path


# -- runs ------------------------------------------------------------------------------------------------------------


def test_the_quickstart_from_run_to_comparison(folder: Path) -> None:
    done = ok("run", "quickstart", *TINY)
    top = folder / "runs" / "quickstart-1"
    assert {p.name for p in top.iterdir()} == {"plan.json", "compare", "shared", "tuned", "personal", "alone"}
    assert {p.name for p in (top / "compare").iterdir()} == {
        "compare.csv",
        "compare.md",
        "compare.tex",
        "clients.csv",
        "accuracy-rounds.png",
        "accuracy-bytes.png",
        "accuracy-flops.png",
        "cost.png",
        "clients.png",
        "gain.png",
    }
    assert "personal against shared: " in done.stdout
    assert "results: runs/quickstart-1\n" in done.stdout
    assert re.search(r"^ *shared +fedavg +\d", done.stdout, re.MULTILINE)
    # plain lines where there is no terminal
    assert re.search(r"^alone: round 2/2  accuracy \d+\.\d %  sent 0\.0 MB  ETA 0:00$", done.stderr, re.MULTILINE)
    assert "\x1b" not in done.output

    again = ok("resume", "runs/quickstart-1")
    assert again.stderr.count("already finished") == 4
    assert again.stdout == done.stdout

    state = json.loads(ok("show", "runs/quickstart-1", "--json").stdout)
    assert [Path(r["run"]).name for r in state["runs"]] == ["shared", "tuned", "personal", "alone"]
    assert all(r["finished"] for r in state["runs"])
    assert "ditto" in ok("show", "runs/quickstart-1/personal").stdout

    # a whole folder, what a shell makes of runs/quickstart-1/*, and single runs
    got = json.loads(ok("compare", "runs/quickstart-1", "--json", "--target", "0.05").stdout)
    assert got["folder"] == "runs/quickstart-1/compare"
    assert [r["name"] for r in got["runs"]] == ["shared", "tuned", "personal", "alone"]
    assert {r["rounds_to_target"] for r in got["runs"]} <= {1, 2, None}
    everything = sorted(str(p.relative_to(folder)) for p in top.iterdir())
    got = json.loads(ok("compare", *everything, "--json").stdout)
    assert [r["name"] for r in got["runs"]] == ["alone", "personal", "shared", "tuned"]
    assert got["notes"] == []
    assert (folder / "comparison" / "compare.csv").is_file()
    shown = ok("compare", "runs/quickstart-1/shared", "runs/quickstart-1/alone", "--out", "both").stdout
    assert "tables and figures: both" in shown
    assert re.search(r"^alone against shared: \d+ of 4 clients gained, ", shown, re.MULTILINE)
    assert [g["name"] for g in got["gains"]] == ["personal", "shared", "tuned"]
    told = json.loads(ok("compare", "runs/quickstart-1", "--json", "--device", "gbit_per_s=0.001").stdout)
    assert told["device"] == got["device"] | {"gbit_per_s": 0.001}
    slow = {r["name"]: r["cost_seconds"] for r in told["runs"]}
    fast = {r["name"]: r["cost_seconds"] for r in got["runs"]}
    assert slow["shared"] > 100 * fast["shared"]
    assert 'device: no such name "watt"; allowed: tflops' in refused("compare", "runs", "--device", "watt=3")
    assert (folder / "both" / "gain.png").is_file()

    assert refused("compare", "runs/quickstart-1/plan.json").startswith("runs/quickstart-1/plan.json: not a run folder")
    assert "nowhere is not a run folder" in refused("compare", "runs/quickstart-1", "nowhere")
    assert "given twice" in refused("compare", "runs/quickstart-1/alone", "runs/quickstart-1")
    for target in ("0", "1.5", "nan", "-1"):
        text = refused("compare", "runs/quickstart-1", "--target", target)
        assert text == f"target: {float(target):g} is not allowed; expected a float in (0, 1]"
    assert "cannot write the comparison into" in refused("compare", "runs/quickstart-1", "--out", "both/gain.png")

    (top / "alone" / "summary.json").unlink()
    assert "sparsona resume runs/quickstart-1/alone" in refused("compare", "runs/quickstart-1")
    assert "resume with: sparsona resume runs/quickstart-1\n" in ok("show", "runs/quickstart-1").stdout
    (top / "plan.json").write_text('{"shared": 3}')
    assert "plan.json is damaged" in refused("resume", "runs/quickstart-1")


def test_a_run_for_scripts() -> None:
    done = ok("run", "quickstart", *TINY, "results.figures=false", "--json", "--out", "here")
    assert done.stderr == ""
    got = json.loads(done.stdout)
    assert set(got) == {"folder", "runs", "comparison", "gains"}
    assert (got["folder"], got["comparison"]) == ("here", "here/compare")
    assert [r["run"] for r in got["runs"]] == ["here/shared", "here/tuned", "here/personal", "here/alone"]
    for run in got["runs"]:
        assert set(run["total"]) == {"down", "up", "paper_down", "paper_up", "flops", "forward"}
        assert 0 <= run["accuracy"] <= run["best"]["accuracy"] <= 1
        assert {"accuracy", "accuracy_by_sample", "bottom_decile", "worst", "spread", "loss"} <= set(run["before"])
    assert [g["name"] for g in got["gains"]] == ["tuned", "personal", "alone"]


def test_a_file_of_ones_own_goes_to_the_next_free_folder() -> None:
    saved("mine.toml")
    assert "results: runs/mine-1\n" in ok("run", "mine.toml").stdout
    got = json.loads(ok("run", "mine.toml", "rounds=1", "seed=2", "--json").stdout)
    assert got["folder"] == got["runs"][0]["run"] == "runs/mine-2"
    assert "comparison" not in got
    assert Run.open("runs/mine-2").recipe.seed == 2


def test_a_single_variant_is_named_after_recipe_and_variant() -> None:
    done = ok("run", "quickstart", *TINY, "results.figures=false", "--only", "alone", "--json")
    assert json.loads(done.stdout)["folder"] == "runs/quickstart-alone-1"
    assert Run.open("runs/quickstart-alone-1").summary["name"] == "quickstart-alone"
    text = refused("run", "quickstart", "variants.shared.seed=2", "--only", "alone,tuned")
    assert text == "variants.shared.seed: variant shared does not run with only alone, tuned; add it to only"


def test_a_name_in_brackets_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(terminal, "err", Console(file=screen, force_terminal=True, width=110))
    saved("x.toml", description="[red]not red[/red]")
    done = ok("run", "x.toml", "--out", "[bold]a b")
    assert "results: [bold]a b\n" in done.stdout
    live = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert "[bold]a b " in live
    assert re.search(r"2/2 \d:\d\d:\d\d accuracy \d+\.\d %  sent \d\.\d MB  ETA 0:00", live)


def test_a_run_in_which_nobody_can_be_tested_says_so() -> None:
    saved("x.toml", method={"lr": 1e30, "epochs": 3}, evaluate={"points": ["after"]})
    done = call("run", "x.toml")
    assert done.exit_code == 1
    assert "x-1: no client was tested" in done.stdout
    assert "4 left out" in done.stderr
    assert json.loads(ok("show", "runs/x-1", "--json").stdout)["runs"][0]["accuracy"] is None
    assert "2 of 2 rounds, finished, no client was tested" in ok("show", "runs/x-1").stdout
    assert "runs/x-1: no client was tested" in refused("compare", "runs/x-1")


def test_figures_that_are_no_numbers_are_valid_json() -> None:
    saved("x.toml", method={"name": "fedavg_ft", "lr": 1e30, "epochs": 3})  # tuning for the test diverges
    got = json.loads(call("run", "x.toml", "--json").stdout, parse_constant=pytest.fail)
    assert got["runs"][0]["before"]["loss"] is None
    for file in ("rounds.jsonl", "clients.jsonl"):
        for line in Path("runs/x-1", file).read_text().splitlines():
            json.loads(line, parse_constant=pytest.fail)


# -- lists and looks -------------------------------------------------------------------------------------------------


def test_lists() -> None:
    assert set(json.loads(ok("methods", "--json").stdout)) == set(METHODS)
    assert set(json.loads(ok("models", "--json").stdout)) == set(MODELS)
    assert "quickstart" in json.loads(ok("recipes", "--json").stdout)
    for command in ("methods", "models", "recipes"):
        assert ok(command).stdout
    assert ok("--version").stdout.startswith("sparsona ")
    for command in ("run", "resume", "compare", "methods", "models", "recipes", "show", "data"):
        assert command in ok("--help").stdout
        assert "sparsona" in ok(command, "--help").stdout


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_can_be_shown(name: str) -> None:
    got = json.loads(ok("show", name, "--json").stdout)
    assert got["fields"]["lr"] == 0.1
    assert got["allowed"]["lr"] == "float > 0"
    shown = ok("show", name).stdout
    assert "[method] of a recipe" in shown
    assert "true or false" in shown


def test_a_recipe_is_shown_as_a_recipe_that_runs_alike() -> None:
    plan = json.loads(ok("show", "quickstart", "rounds=7", "--json").stdout)
    assert {raw["rounds"] for raw in plan.values()} == {7}
    assert plan["personal"]["method"]["mu"] == 0.5
    Path("shown.toml").write_text(ok("show", saved("x.toml")).stdout)
    assert ok("show", "shown.toml").stdout == ok("show", "x.toml").stdout
    assert (
        refused("show", "dito") == '"dito": no such method, section, recipe, file or run folder; did you mean "ditto"?'
    )


def test_data_as_table_and_picture(folder: Path) -> None:
    shown = ok("data", "quickstart", *TINY)
    assert "digits, 4 clients, dirichlet" in shown.stdout
    assert (folder / "labels.png").read_bytes().startswith(b"\x89PNG")
    got = json.loads(ok("data", "quickstart", *TINY, "--json", "--out", "new/a.png").stdout)
    assert got["picture"] == "new/a.png"
    assert len(got["clients"]) == 4
    assert set(got["clients"][0]) == {"client", "train", "validation", "test", "labels"}
    assert "cannot write" in refused("data", "quickstart", *TINY, "--out", "labels.png/x.png")
    other = ok("data", "quickstart", *TINY, "variants.alone.seed=2")
    assert "other variants use different data" in other.stdout


def test_topology_as_table_and_picture(folder: Path) -> None:
    few = ["--clients", "12", "--neighbours", "4,2", "--waits", "0,1,3", "--draws", "30"]
    shown = ok("topology", *few).stdout
    assert "12 clients that wait for the fastest neighbours; mean of 30 draws" in shown
    assert re.search(r"^ +2 +\d+\.\d\d ± \d\.\d\d +33\.33 +1\.00 +\d\.\d\d ± ", shown, re.MULTILINE)
    assert shown.endswith("figure: topology.png\n")
    assert (folder / "topology.png").read_bytes().startswith(b"\x89PNG")
    done = ok("topology", *few, "--pick", "smallest id", "--seed", "3", "--out", "new/t.png", "--json")
    assert done.stderr == ""
    got = json.loads(done.stdout)
    assert {k: got[k] for k in ("clients", "draws", "pick", "seed", "picture")} == {
        "clients": 12,
        "draws": 30,
        "pick": "smallest id",
        "seed": 3,
        "picture": "new/t.png",
    }
    assert [(r["neighbours"], r["wait"]) for r in got["delay"]] == [
        (2, 0), (2, 1), (2, 2), (4, 0), (4, 1), (4, 3), (4, 4)
    ]  # fmt: skip
    assert [r["exact"] for r in got["parallelism"]] == [1 / 3, 1 / 5]
    assert "cannot write" in refused("topology", *few, "--out", "topology.png/x.png")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--neighbours", "5,100"], "neighbours: 100 is not allowed; expected an int in [1, 99]"),
        (["--neighbours", "0"], "neighbours: 0 is not allowed; expected an int in [1, 99]"),
        (["--clients", "1"], "clients: 1 is not allowed; expected an int in [2, 5000]"),
        (["--waits=-1"], "waits: -1 is not allowed; expected an int >= 0"),
        (["--draws", "0"], "draws: 0 is not allowed; expected an int >= 1"),
        (["--neighbours", "1,,2"], 'neighbours: "1,,2" is not allowed; expected different ints, comma-separated'),
        (["--waits", "1,x"], 'waits: "1,x" is not allowed; expected different ints, comma-separated'),
        (["--waits", ""], 'waits: "" is not allowed; expected different ints, comma-separated'),
        (["--waits", "1,1"], 'waits: "1,1" is not allowed; expected different ints, comma-separated'),
        (["--pick", "best"], 'pick: "best" is not allowed; expected one of fastest, smallest id'),
    ],
)
def test_topologies_that_cannot_be(arguments: list[str], text: str) -> None:
    assert refused("topology", *arguments) == text


# -- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nosuch"], 'recipe "nosuch": not found'),
        (["quickstart", "rnds=3"], 'rnds: no such field; did you mean "rounds"?'),
        (["quickstart", "rounds"], 'override "rounds" is not allowed; expected key=value, for example method.lr=0.05'),
        (["quickstart", "rounds=0"], "rounds: 0 is not allowed; expected an int >= 1"),
        (["quickstart", "method.lr=nan"], "method.lr: nan is not allowed; expected a finite float"),
        (["quickstart", "method.lr=inf"], "method.lr: inf is not allowed; expected a finite float"),
        (["quickstart", "rounds=2024-01-01"], "rounds: 2024-01-01 is not allowed; expected"),
        (
            ["quickstart", "fleet.per_round=50"],
            "fleet.per_round: 50 is not allowed; expected an int <= data.clients = 20",
        ),
        (
            ["quickstart", "variants.alone.method.lr=0"],
            "variant alone: method.lr: 0 is not allowed; expected a float > 0",
        ),
        (["quickstart", "--model", "resnet"], 'model.name: "resnet" not found; did you mean "lenet", "resnet18-gn"'),
        (["quickstart", "--model", "nosuch:Net"], "cannot be imported"),
        (["quickstart", "--model", "json:Net"], 'model.name: class "Net" not found in module "json"'),
        (["quickstart", "--model", "vgg11-gn"], "does not fit inputs of shape (1, 8, 8)"),
        (["quickstart", "data.source=mnist"], "MNIST: mnist/train-images-idx3-ubyte.gz not found"),
        (
            ["quickstart", "data.source=mnist", "--data-dir", "there"],
            "MNIST: train-images-idx3-ubyte.gz not found in there/mnist, there/MNIST/raw",
        ),
        (["quickstart", "variants.alone.data.clients=500"], "1,797 samples are too few for 500 clients"),
        (["quickstart", "data.partition=file", "data.partition_file=p.json"], 'p.json" cannot be read'),
        (["quickstart", "--out", "taken"], "cannot write into taken: the folder is not empty; choose another"),
        (["quickstart", "--out", "taken/file"], "it is a file"),
        (["quickstart", "--out", "taken/file/x"], "taken/file is a file"),
        (["quickstart", "--out", "/proc/nothing/x"], "cannot write"),
        (["bad.toml"], "bad.toml: not valid TOML"),
        (["taken"], 'recipe "taken": not found'),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_run_or_written(folder: Path, arguments: list[str], text: str) -> None:
    (folder / "taken").mkdir()
    (folder / "taken" / "file").write_text("mine")
    (folder / "bad.toml").write_text("rounds = = 3")
    before = sorted(folder.rglob("*"))
    assert text in refused("run", *arguments)
    assert sorted(folder.rglob("*")) == before
    done = call("run", *arguments, "--json")
    assert done.exit_code == 2
    assert text in json.loads(done.stdout)["error"]


def test_usage_errors_are_bad_input() -> None:
    for arguments in (["run"], ["run", "quickstart", "--nosuch"], ["nosuch"], ["compare", "x", "--target", "y"]):
        assert call(*arguments).exit_code == 2


@pytest.mark.parametrize(
    ("file", "data", "text"),
    [
        ("recipe.toml", b"rounds = ", "recipe.toml is damaged"),
        ("recipe.toml", b"\xff", "recipe.toml is damaged"),
        ("recipe.toml", None, "is not a run folder: it has no recipe.toml"),
        ("summary.json", b"{", "summary.json is damaged"),
        ("rounds.jsonl", b"{\n", "rounds.jsonl is damaged in line 1"),
        ("rounds.jsonl", None, "run is damaged: rounds.jsonl is missing"),
        ("clients.jsonl", b"3\n", "clients.jsonl is damaged in line 1"),
    ],
)
def test_a_damaged_run_is_told_by_the_file(folder: Path, file: str, data: bytes | None, text: str) -> None:
    saved("x.toml", rounds=1, results={"figures": False})
    ok("run", "x.toml", "--out", "run")
    if data is None:
        (folder / "run" / file).unlink()
    else:
        (folder / "run" / file).write_bytes(data)
    assert text in refused("compare", "run", "--target", "0.5")


def test_a_state_that_is_no_state_is_a_failure(folder: Path) -> None:
    saved("x.toml", rounds=1, results={"figures": False})
    ok("run", "x.toml", "--out", "run")
    (folder / "run" / "summary.json").unlink()
    (folder / "run" / "state.sqlite").write_bytes(b"not a database" * 100)
    assert "state" in refused("resume", "run", code=1)


def test_what_fails_while_it_runs_is_a_failure_and_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    saved("x.toml", rounds=3)
    real = METHODS["fedavg"].merge

    def merge(self: Any, server: Any, inbox: Any, ctx: Any) -> Any:
        if ctx.t == 1:
            raise ValueError("a broken merge")
        return real(self, server, inbox, ctx)

    with monkeypatch.context() as patch:
        patch.setattr(METHODS["fedavg"], "merge", merge)
        done = call("run", "x.toml", "--out", "my run")
    assert done.exit_code == 1
    assert done.stderr.endswith("a broken merge; finished rounds are saved, resume with: sparsona resume 'my run'\n")
    ok("resume", "my run")
    ok("run", "x.toml", "--out", "never stopped")
    for file in ("rounds.jsonl", "clients.jsonl", "summary.json", "state/server.safetensors"):
        assert Path("my run", file).read_bytes() == Path("never stopped", file).read_bytes()


# -- in a process of its own -----------------------------------------------------------------------------------------


def start(*arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-P", "-m", "sparsona", *arguments]  # -P: as the installed script, without this folder
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed)


def stop_when(process: subprocess.Popen[str], ready: Callable[[], bool], number: int) -> tuple[int, str]:
    end = time.monotonic() + 60
    while not ready():
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    return process.returncode, told


def test_ctrl_c_saves_and_says_how_to_go_on(folder: Path) -> None:
    saved("x.toml", rounds=100_000, results={"figures": False})
    rows = folder / "out" / "rounds.jsonl"
    process = start("run", "x.toml", "--out", "out")
    code, told = stop_when(process, lambda: rows.is_file() and rows.stat().st_size > 0, signal.SIGINT)
    assert code == 1
    assert told.endswith("error: stopped; finished rounds are saved, resume with: sparsona resume out\n")
    assert "Traceback" not in told
    done = len(Run.open("out").rounds)
    assert done >= 1
    assert f"out: {done} of 100000 rounds, not finished" in ok("show", "out").stdout
    code, told = stop_when(start("resume", "out"), lambda: len(Run.open("out").rounds) > done, signal.SIGINT)
    assert (code, "Traceback" in told) == (1, False)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to see the worker processes")
def test_a_machine_that_shuts_down_is_like_ctrl_c_and_no_worker_stays(folder: Path) -> None:
    saved("x.toml", rounds=100_000, engine={"name": "pool", "workers": 1}, results={"figures": False})
    process = start("run", "x.toml", "--out", "out")
    rows = folder / "out" / "rounds.jsonl"
    workers: list[int] = []

    def ready() -> bool:
        if not rows.is_file() or not rows.stat().st_size:
            return False
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        workers.extend(int(pid) for pid in children.split())
        return True

    code, told = stop_when(process, ready, signal.SIGTERM)
    assert code == 1
    assert told.endswith("error: stopped; finished rounds are saved, resume with: sparsona resume out\n")
    assert workers
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_stopped_before_there_is_a_run_there_is_nothing_to_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sparsona.api.runs.prepare", interrupted)
    monkeypatch.setattr("sparsona.api.runs.runner.run", interrupted)
    assert refused("run", "quickstart", code=1) == "stopped"
    assert refused("run", saved("x.toml"), code=1) == "stopped"
    assert not Path("runs").exists()


def test_a_model_from_the_current_folder_is_found_by_workers_too(folder: Path) -> None:
    (folder / "mynet.py").write_text(NET)
    saved("x.toml", engine={"name": "pool", "workers": 1}, results={"figures": False})
    process = start("run", "x.toml", "--model", "mynet:Net", "--out", "out", "--json")
    out, told = process.communicate(timeout=100)
    assert process.returncode == 0, told
    assert json.loads(out)["runs"][0]["total"]["paper_up"] == 2 * 4 * 4 * 650  # rounds x clients x bytes x parameters
    assert Run.open("out").recipe.model.name == "mynet:Net"
    assert json.loads((folder / "out" / "run.json").read_text())["parameters"] == 650


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in recipe_names() if "/small/" in name])
def test_every_small_recipe_runs(name, tmp_path, monkeypatch):
    """One round of each, without pictures, which take as long: what they come to in full is measured, not tested."""
    compare, compare_sweep = runs.compare, runs.compare_sweep
    monkeypatch.setattr(runs, "compare", lambda tested, folder=None: compare(tested))
    monkeypatch.setattr(runs, "compare_sweep", lambda groups, folder, target: compare_sweep(groups, None, target))
    done = call("run", name, "rounds=1", "results.figures=false", "--out", str(tmp_path / "run"), "--json")
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    rows = shown["runs"] if "runs" in shown else shown["rows"]
    assert all(row.get("accuracy", row.get("accuracy_mean")) is not None for row in rows)


@pytest.mark.parametrize(
    "name", [*sorted(METHODS), "data", "model", "fleet", "topology", "evaluate", "engine", "results"]
)
def test_every_field_of_every_method_and_section_is_explained(name):
    shown = json.loads(call("show", name, "--json").stdout)
    assert [field for field in shown["fields"] if not shown["meaning"].get(field)] == []
