"""What a run leaves behind, and its figures worked out by hand."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from safetensors.torch import load_file

import sparsona
from sparsona.core.wire import Message, Values, encode
from sparsona.data import build
from sparsona.engines.jobs import Score
from sparsona.experiment.metrics import metrics
from sparsona.experiment.recipe import Recipe, RecipeError, check, tables
from sparsona.experiment.results import Journal, Run, RunError, plain, summarise, vacant, write
from sparsona.models import build as build_model

PNG = b"\x89PNG\r\n\x1a\n"


def recipe(method: str = "fedavg", **more: Any) -> Recipe:
    raw: dict[str, Any] = {
        "name": "tiny",
        "rounds": 2,
        "data": {"clients": 4, "sample_share": 0.2},
        "model": {"name": "digits-mlp"},
        "method": {"name": method, "batch": 8, "epochs": 2},
        "fleet": {"per_round": 3},
        "engine": {"name": "local"},
        "evaluate": {"points": ["before", "after"]},
    }
    return check(raw | more)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run with everything that a run can leave."""
    run = sparsona.run(recipe("ditto", results={"models": True}), tmp_path_factory.mktemp("runs") / "tiny")
    assert isinstance(run, Run)
    return run


# -- metrics ---------------------------------------------------------------------------------------------------------


def test_metrics_of_two_clients_by_hand() -> None:
    got = metrics({0: Score(1, 4, 8.0), 1: Score(9, 12, 4.0)})
    assert got == {
        "accuracy": 0.5,  # (1/4 + 9/12) / 2
        "accuracy_by_sample": 0.625,  # 10 / 16
        "bottom_decile": 0.25,
        "worst": 0.25,
        "spread": 0.25,  # of 0.25 and 0.75, population
        "loss": 0.75,  # 12 / 16
        "clients": 2,
    }


@pytest.mark.parametrize(("clients", "place"), [(1, 1), (9, 1), (10, 1), (19, 1), (20, 2), (29, 2), (30, 3), (100, 10)])
def test_the_bottom_decile_is_the_worst_tenth_at_its_upper_end(clients: int, place: int) -> None:
    scores = {k: Score(clients - k, 1000, 0.0) for k in range(clients)}  # 1/1000 to clients/1000
    assert metrics(scores)["bottom_decile"] == place / 1000


def test_clients_without_test_samples_do_not_count() -> None:
    assert metrics({0: Score(1, 2, 1.0), 1: Score(0, 0, 0.0)})["accuracy"] == 0.5
    assert metrics({0: Score(0, 0, 0.0)}) == {}


# -- the summary -----------------------------------------------------------------------------------------------------


def rows(accuracies: Sequence[float | None], point: str = "before") -> list[dict[str, Any]]:
    """Rounds that cost 10 down, 1 up and 100 operations each."""
    made = []
    for i, accuracy in enumerate(accuracies, start=1):
        total = {"down": 10 * i, "up": i, "paper_down": 9 * i, "paper_up": i, "flops": 100 * i}
        row: dict[str, Any] = {"round": i, "left_out": [7] if i == 1 else [], "total": total}
        made.append(row if accuracy is None else row | {point: {"accuracy": accuracy, "loss": 1.0}})
    return made


def summary(accuracies: Sequence[float | None], point: str = "before", **evaluate: Any) -> dict[str, Any]:
    chosen = recipe(rounds=len(accuracies), evaluate={"points": [point], **evaluate})
    return summarise(chosen, rows(accuracies, point))


def test_the_best_round_is_the_first_of_the_best() -> None:
    got = summary([0.1, 0.8, 0.5, 0.8, 0.7])
    assert got["best"] == {"round": 2, "accuracy": 0.8}
    assert got["accuracy"] == 0.7
    assert got["left_out"] == 1
    assert got["total"] == {"down": 50, "up": 5, "paper_down": 45, "paper_up": 5, "flops": 500}


def test_the_cost_to_a_target_is_that_of_the_first_round_that_reaches_it() -> None:
    got = summary([0.1, None, 0.6, 0.5, 0.7], target=0.6)["target"]
    assert got["reached"] == {"round": 3, "down": 30, "up": 3, "paper_down": 27, "paper_up": 3, "flops": 300}
    assert summary([0.1, 0.2], target=0.6)["target"] == {"accuracy": 0.6, "reached": None}
    assert "target" not in summary([0.1])


def test_a_run_in_which_nobody_was_tested_has_a_summary_without_accuracy() -> None:
    got = summary([None, None], "after", target=0.5)
    assert (got["accuracy"], got["best"], got["after"]) == (None, None, None)
    assert got["total"]["down"] == 20
    assert got["target"]["reached"] is None


def test_a_loss_that_is_no_number_is_null_in_every_file(tmp_path: Path) -> None:
    bad = rows([0.5])
    bad[0]["before"]["loss"] = math.nan
    assert summarise(recipe(evaluate={}), bad)["before"]["loss"] is None
    journal = Journal(tmp_path / "rounds.jsonl")
    journal.add({"a": [math.inf, {"b": -math.inf}], "c": (1.5,)})
    journal.close()
    assert (tmp_path / "rounds.jsonl").read_text() == '{"a":[null,{"b":null}],"c":[1.5]}\n'
    assert plain({"a": (1, "x", None, True)}) == {"a": [1, "x", None, True]}


# -- the folder ------------------------------------------------------------------------------------------------------


def test_a_run_leaves_what_it_promises_and_nothing_else(done: Run) -> None:
    names = {p.relative_to(done.path).as_posix() for p in done.path.rglob("*") if p.is_file()}
    clients = [f"client-{k:05d}.safetensors" for k in range(4)]
    joined = sorted({k for row in done.rounds for k in row["participants"]})
    assert names == {
        "recipe.toml",
        "run.json",
        "rounds.jsonl",
        "clients.jsonl",
        "timing.jsonl",
        "summary.json",
        "figures/accuracy.png",
        "figures/clients.png",
        "state/server.safetensors",
        "state/progress.json",
        *(f"state/{clients[k]}" for k in joined),
        *(f"models/{c}" for c in clients),
    }
    for figure in (done.path / "figures").iterdir():
        assert figure.read_bytes().startswith(PNG)


def test_models_and_figures_come_on_request_only(tmp_path: Path) -> None:
    run = sparsona.run(recipe("local", results={"figures": False}, rounds=1), tmp_path / "bare")
    assert isinstance(run, Run)
    assert not (run.path / "figures").exists()
    assert not (run.path / "models").exists()


def test_a_run_tells_recipe_versions_and_seed(done: Run) -> None:
    assert tables(done.recipe)["method"]["name"] == "ditto"
    about = json.loads((done.path / "run.json").read_text())
    assert about["seed"] == done.recipe.seed
    assert about["torch"] == torch.__version__
    assert about["sparsona"] == sparsona.__version__
    assert about["parameters"] == 64 * 64 + 64 + 64 * 10 + 10


def score_of(row: dict[str, Any]) -> Score:
    """A client's score from a row, which has its accuracy, too."""
    assert row["accuracy"] == row["correct"] / row["samples"]
    return Score(**{key: value for key, value in row.items() if key != "accuracy"})


def test_rounds_and_clients_add_up(done: Run) -> None:
    each = list(done.rows("clients"))
    totals = dict.fromkeys(("down", "up", "paper_down", "paper_up", "flops", "forward"), 0)
    for row in done.rounds:
        of_round = [c for c in each if c["round"] == row["round"]]
        for name in totals:
            assert row[name] == sum(c.get(name, 0) for c in of_round)
            totals[name] += row[name]
        assert row["total"] == totals
        assert [c["client"] for c in of_round] == [0, 1, 2, 3]  # all of them are tested
        assert [c["client"] for c in of_round if "after" in c] == row["participants"]
        scores = {c["client"]: score_of(c["before"]) for c in of_round}
        assert row["before"] == pytest.approx(metrics(scores))
    assert done.summary["total"] == totals
    assert done.summary["before"] == done.rounds[-1]["before"]


def test_after_local_training_counts_each_client_as_it_last_trained(done: Run) -> None:
    latest: dict[int, Score] = {}
    for row in done.rows("clients"):
        if "after" in row:
            latest[row["client"]] = score_of(row["after"])
    assert done.summary["after"] == pytest.approx(metrics(latest))


def test_a_personal_model_loads_in_three_lines_and_scores_what_was_recorded(done: Run) -> None:
    fleet = build(done.recipe.data, done.recipe.seed)
    last = {row["client"]: row["before"] for row in done.rows("clients")}
    for k in range(fleet.clients):
        model = build_model("digits-mlp", 10, (1, 8, 8))
        model.load_state_dict(load_file(done.path / "models" / f"client-{k:05d}.safetensors"))
        model.eval()
        correct = 0
        for x, y in fleet.test(k).all(1000):
            correct += int((model(x).argmax(1) == y).sum())
        assert correct == last[k]["correct"]
        assert len(fleet.test(k)) == last[k]["samples"]
        assert done.client_accuracy()[k] == last[k]["correct"] / last[k]["samples"]


def test_bytes_and_operations_of_fedavg_by_hand(tmp_path: Path) -> None:
    run = sparsona.run(recipe("fedavg"), tmp_path / "fedavg")
    assert isinstance(run, Run)
    parameters = 64 * 64 + 64 + 64 * 10 + 10
    forward = 2 * 64 * 64 + 64 + 2 * 64 * 10 + 10
    fleet = build(run.recipe.data, run.recipe.seed)
    theta = torch.zeros(parameters)
    trained = [row for row in run.rows("clients") if "flops" in row]
    assert len(trained) == 2 * 3  # rounds x clients per round
    for row in trained:
        samples = int(fleet.train_sizes[row["client"]])
        assert row["down"] == len(encode(Message(theta=Values(theta))))
        assert row["up"] == len(encode(Message(theta=Values(theta), samples=samples)))
        assert row["paper_down"] == row["paper_up"] == 4 * parameters
        assert row["forward"] == 2 * samples * forward
        assert row["flops"] == 2 * samples * 3 * forward  # epochs x samples x training x forward


def test_local_training_sends_no_model(tmp_path: Path) -> None:
    run = sparsona.run(recipe("local", results={"figures": False}), tmp_path / "local")
    assert isinstance(run, Run)
    total = run.summary["total"]
    assert total["paper_down"] == total["paper_up"] == 0
    assert total["down"] == total["up"] == 6 * len(encode(Message()))


# -- folders that are not what they should be ------------------------------------------------------------------------


def begun(path: Path) -> Run:
    return Run.create(path, recipe(), {"seed": 1})


def test_a_folder_is_taken_once(tmp_path: Path) -> None:
    run = begun(tmp_path / "my run")
    with pytest.raises(RunError, match=r"the folder already holds a run; .* sparsona resume '.*my run'"):
        begun(tmp_path / "my run")
    assert run.recipe == recipe()
    assert not run.finished
    assert run.rounds == []


def test_a_folder_whose_making_was_cut_short_is_free(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / "run.json").write_text("{}")
    (path / "recipe.toml.part").write_text("na")
    with pytest.raises(RunError, match=r"not a run folder: it has no recipe\.toml"):
        Run.open(path)
    begun(path)
    assert Run.open(str(path)).recipe == recipe()


def test_a_folder_with_other_things_or_a_file_is_not_free(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"cannot write into .*: the folder is not empty; choose another folder"):
        vacant(tmp_path)
    with pytest.raises(RunError, match="it is a file"):
        vacant(tmp_path / "notes.txt")
    with pytest.raises(RunError, match=r"notes\.txt is a file"):
        vacant(tmp_path / "notes.txt" / "a" / "b")
    vacant(tmp_path / "new" / "folder")


def test_damage_is_told_with_the_file_it_is_in(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    with pytest.raises(RunError, match=r"is not finished; resume with: sparsona resume .*run"):
        _ = run.summary
    for text in ("", "[1]", "3", '{"name": "x"}', "\x00"):
        (run.path / "summary.json").write_text(text)
        with pytest.raises(RunError, match=r"summary\.json is damaged"):
            _ = Run(run.path).summary
    with pytest.raises(RunError, match=r"run is damaged: rounds\.jsonl is missing"):
        _ = Run(run.path).rounds
    (run.path / "rounds.jsonl").write_text('{"round": 1}\n{"rou\n{"round": 3}\n')
    with pytest.raises(RunError, match=r"rounds\.jsonl is damaged in line 2"):
        _ = Run(run.path).rounds
    (run.path / "rounds.jsonl").write_text('{"round": 1}\n{"rou')
    assert Run(run.path).rounds == [{"round": 1}]  # a line that was being written is none yet
    for data in (b"name = ", b"\xff", b"rounds = 3\n"):
        (run.path / "recipe.toml").write_bytes(data)
        with pytest.raises(RunError, match=r"recipe\.toml is damaged"):
            _ = Run(run.path).recipe


def test_a_client_without_test_samples_has_no_accuracy(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    journal = Journal(run.path / "clients.jsonl")
    journal.add(
        {"round": 1, "client": 1, "before": {"correct": 1, "samples": 4, "loss": 1.0}},
        {"round": 1, "client": 0, "before": {"correct": 0, "samples": 0, "loss": 0.0}},
        {"round": 2, "client": 1, "before": {"correct": 3, "samples": 4, "loss": 1.0}},
        {"round": 3, "client": 1},
    )
    journal.close()
    assert run.client_accuracy() == {1: 0.75}


def test_a_journal_goes_back_to_its_checkpoint_and_no_further(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    journal = Journal(path)
    journal.add({"a": 1})
    size = journal.size
    journal.add({"a": 2}, {"a": 3})
    journal.close()
    again = Journal(path, size)
    again.add({"a": 4})
    again.close()
    assert path.read_text() == '{"a":1}\n{"a":4}\n'
    with pytest.raises(
        RunError, match=r"rows\.jsonl is shorter than recorded in the checkpoint: " r"another program changed it"
    ):
        Journal(path, 1000)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write(path, "old")
    write(path, b"new")
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize(("method", "strength"), [("ditto", 0.25), ("pfedme", 15.0)])
def test_folders_of_earlier_versions_are_read(method: str, strength: float, tmp_path: Path) -> None:
    """Some fields had other names, and methods recorded fields that they did not use."""
    table = tables(recipe(method))
    old = {"pull" if key == "mu" else key: value for key, value in table["method"].items()}
    old |= {"pull": strength, "clip_of": "dense", "weak": 0, "weak_epochs": 1}
    if method == "ditto":
        del old["proximal"]
        old["pull_as"] = "step"
    (tmp_path / "recipe.toml").write_text(tomli_w.dumps(table | {"method": old}))
    read: Any = Run(tmp_path).recipe.method
    assert read.mu == strength
    assert method != "ditto" or read.proximal == "step"
    with pytest.raises(RecipeError, match=r'method\.pull: no such field; it is now called "mu"'):
        check(table | {"method": {"name": method, "pull": strength}})
    (tmp_path / "recipe.toml").write_text(tomli_w.dumps(table | {"method": old | {"strange": 1}}))
    with pytest.raises(RunError, match=r"damaged: method\.strange: no such field"):
        _ = Run(tmp_path).recipe
