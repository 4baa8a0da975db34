"""A dry run says what would run, where and how large, checks everything, and writes nothing."""

import json
from pathlib import Path

import pytest

import sparsona
from command import contents, ok, refused
from small import recipe
from sparsona.experiment.recipe import check, tables

SMALL = ("data.clients=4", "fleet.per_round=2", "engine.name=local", "rounds=2", "data.sample_share=0.2")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


@pytest.mark.parametrize("method", ["fedavg", "dfedsam"])
def test_sizes_are_those_of_the_run(method: str) -> None:
    """FedAvg and D-FedSAM send whole models and train once, on all samples of those who take part."""
    r = recipe(method, rounds=2, fleet={"per_round": None} if method == "fedavg" else {})
    size = sparsona.Plan({"one": r}).dry_run("out").runs[0].size
    assert size is not None
    run = sparsona.run(r)
    row = run.rounds[1]
    assert (size.clients, size.participants) == (6, len(row["participants"]))
    assert size.bytes_per_round == pytest.approx(row["down"] + row["up"], rel=0.01)
    passes = 2 if method == "dfedsam" else 1  # SAM takes two gradients a step
    assert passes * size.flops_per_round == pytest.approx(row["flops"], rel=0.02)


def test_peers_that_are_drawn_are_counted() -> None:
    r = recipe("dfedsam", rounds=1, fleet={"per_round": 3, "peers": "drawn"}, topology={"neighbours": 5})
    size = sparsona.Plan({"one": r}).dry_run("out").runs[0].size
    everyone = sparsona.Plan({"one": recipe("dfedsam", topology={"neighbours": 5})}).dry_run("out").runs[0].size
    assert size is not None
    assert everyone is not None
    assert (size.participants, everyone.participants) == (len(sparsona.run(r).rounds[0]["participants"]), 6) == (3, 6)
    assert size.bytes_per_round * 5 == everyone.bytes_per_round  # 3 read 2 each, of 6 that read 5 each
    assert size.flops_per_round == pytest.approx(everyone.flops_per_round / 2)


BARE = """
from dataclasses import dataclass
from sparsona.methods.fedavg import FedAvg
from sparsona.method import Message
from sparsona.core.wire import Values

@dataclass(frozen=True)
class Bare:
    join, personal, start, read, merge = FedAvg.join, FedAvg.personal, FedAvg.start, FedAvg.read, FedAvg.merge

    def down(self, server, k, ctx):
        return Message(theta=Values(server))

    def local(self, client, inbox, data, ctx):
        theta = inbox["server"]["theta"].values
        return None, Message(theta=Values(theta), samples=len(data)), theta
"""


def test_flops_are_unknown_without_the_fields_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bare_dry.py").write_text(BARE)
    monkeypatch.syspath_prepend(tmp_path)
    raw = tables(recipe(rounds=1)) | {"method": {"name": "bare_dry:Bare"}}
    planned = sparsona.Plan({"one": check(raw)}).dry_run("out")
    assert planned.runs[0].size is not None
    assert planned.runs[0].size.flops_per_round is None
    assert "FLOPs of one are unknown: bare_dry:Bare has no epochs; inherit the fields of Training" in [
        part for part in planned.render(160) if isinstance(part, str)
    ]


def test_run(tmp_path: Path) -> None:
    shown = ok("run", "quickstart", *SMALL, "--dry-run").stdout
    line = next(line for line in shown.splitlines() if "personal" in line)
    assert line.split()[:6] == ["personal", "ditto", "1", "0/2", "4", "2"]
    assert shown.endswith("0 of 4 runs are finished, 4 would run in runs/quickstart-1\n")
    one = json.loads(ok("run", "quickstart", *SMALL, "--only", "alone", "--dry-run", "--out", "x", "--json").stdout)
    assert [(r["run"], r["method"], r["done"], r["clients"]) for r in one["runs"]] == [("alone", "local", False, 4)]
    assert one["folder"] == "x"
    assert contents(tmp_path) == {}


def test_what_cannot_run_is_reported(tmp_path: Path) -> None:
    words = ("run", "quickstart", "--only", "shared", *SMALL, "--dry-run")
    assert 'none.json" cannot be read' in refused(*words, "data.partition=file", "data.partition_file=none.json")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert "cannot write into full: the folder is not empty; choose another folder" in refused(*words, "--out", "full")


def test_sweep(tmp_path: Path) -> None:
    words = ("sweep", "quickstart", "--only", "shared", *SMALL, "seed=1,2", "--dry-run")
    got = json.loads(ok(*words, "--json").stdout)
    assert [(r["run"], r["seed"], r["rounds_done"]) for r in got["runs"]] == [
        ("shared seed=1", 1, 0),
        ("shared seed=2", 2, 0),
    ]
    assert contents(tmp_path) == {}
