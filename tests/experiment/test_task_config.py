"""Losses and metrics of a recipe, from the section [task] to records and summary."""

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import small
from sparsona.api.models import adapt
from sparsona.core.samples import Prepare
from sparsona.data import Dataset, divide
from sparsona.engines.codec import CodecError, read_result, result_parts
from sparsona.engines.jobs import Result, Score
from sparsona.engines.measure import Measuring
from sparsona.experiment import setup
from sparsona.experiment.export import export
from sparsona.experiment.metrics import metrics
from sparsona.experiment.recipe import Recipe, RecipeError, check, tables
from sparsona.experiment.results import Run, RunError
from sparsona.experiment.runner import resume, run
from sparsona.experiment.scoring import measures_of, objective_of
from sparsona.experiment.task import TaskConfig


def measured(names: Sequence[str], target: Any, outputs: Any, y: Any) -> dict[str, float | None]:
    """The metrics of outputs, in two batches."""
    measuring = Measuring(measures_of(TaskConfig(metrics=tuple(names)), target))
    outputs, y = torch.tensor(outputs), torch.tensor(y)
    for part in (slice(0, 1), slice(1, None)):
        measuring.add(outputs[part], y[part])
    return measuring.values()


def test_metrics_of_classes_by_hand():
    logits = [[3.0, 0.0, 0.0], [0.0, 2.0, 0.0], [1.0, 2.0, 0.0], [0.0, 0.0, 1.0]]  # guesses 0, 1, 1, 2
    found = measured(["balanced_accuracy", "macro_f1", "auc"], "class", logits, [0, 1, 0, 0])
    assert found["balanced_accuracy"] == pytest.approx((1 / 3 + 1) / 2)
    assert found["macro_f1"] == pytest.approx((1 / 2 + 2 / 3 + 0) / 3)  # F1 of 0: 2*1/(1+3); of 1: 2*1/(2+1); of 2: 0
    # class 0 against the rest: scores .909, .107, .245, .212 of truth 1, 0, 1, 1: all three above; class 1: all below
    assert found["auc"] == pytest.approx(1.0)


def test_auc_of_one_class_is_undefined_and_a_diverged_model_is_nan():
    assert measured(["auc"], "class", [[0.0, 1.0], [1.0, 0.0]], [1, 1]) == {"auc": None}
    assert measured(["auc"], "class", [[-1.0], [0.5], [0.7]], [0, 1, 0]) == {"auc": 0.5}  # one of two pairs is in order
    found = measured(["auc", "balanced_accuracy"], "class", [[math.nan, 1.0], [1.0, 0.0]], [1, 0])
    assert all(math.isnan(value or 0.0) for value in found.values())


def test_metrics_of_numbers_by_hand():
    found = measured(["mae", "rmse", "r2"], "number", [[1.0], [4.0], [2.0]], [1.0, 2.0, 3.0])
    assert found == {"mae": 1.0, "rmse": pytest.approx(math.sqrt(5 / 3)), "r2": pytest.approx(1 - 5 / 2)}
    assert measured(["r2"], "number", [[1.0], [4.0]], [2.0, 2.0]) == {"r2": None}


def test_metrics_of_labels_and_tokens_by_hand():
    found = measured(
        ["macro_f1", "auc"], "labels", [[1.0, -1.0], [2.0, 1.0], [-1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
    )
    assert found == {"macro_f1": pytest.approx(2 / 3), "auc": pytest.approx((0.5 + 0.75) / 2)}
    logits = np.zeros((2, 2, 4)).tolist()
    assert measured(["perplexity"], "tokens", logits, [[1, -100], [2, 3]]) == {"perplexity": pytest.approx(4.0)}


def test_a_figure_beyond_all_bounds_is_undefined_as_on_a_fleet():
    for far in (300.0, 1000.0):  # exp(300) is finite, and too large for a fleet
        assert measured(["perplexity"], "tokens", [[[far, 0.0]]], [[1]]) == {"perplexity": None}
    assert measured(["perplexity"], "tokens", [[[100.0, 0.0]]], [[1]]) == {"perplexity": pytest.approx(math.exp(100))}


def test_auc_tells_confident_scores_apart():
    logits = [[30.0, 0.0, 0.0], [25.0, 0.0, 0.0], [20.0, 0.0, 0.0]]  # all are 1 in single precision
    assert measured(["auc"], "class", logits, [1, 0, 0]) == {"auc": pytest.approx(0.0)}


def scores(values: Sequence[float | None], name: str) -> dict[int, Score]:
    return {k: Score(None, 5, 10.0, {name: value}) for k, value in enumerate(values)}


def test_the_worst_clients_are_those_with_the_largest_errors():
    values = [float(v) for v in range(20)]
    row = metrics(scores(values, "rmse"), TaskConfig(loss="mse"))
    assert "accuracy" not in row
    assert (row["rmse"], row["worst"], row["bottom_decile"]) == (9.5, 19.0, 18.0)
    assert row["spread"] == pytest.approx(float(np.std(values)))
    assert (row["loss"], row["clients"]) == (2.0, 20)


def test_clients_without_a_metric_are_left_out_and_counted():
    row = metrics(scores([0.5, None, 1.0, None], "auc"), TaskConfig(metrics=("auc",)))
    assert (row["auc"], row["worst"], row["clients"], row["undefined"]) == (0.75, 0.5, 4, {"auc": 2})
    row = metrics(scores([None], "auc"), TaskConfig(metrics=("auc",)))
    assert (row["auc"], row["bottom_decile"], row["undefined"]) == (None, None, {"auc": 1})


# -- whole runs ------------------------------------------------------------------------------------------------------


def made(target: Any, y: torch.Tensor, x: torch.Tensor, names: Sequence[str] = (), vocabulary: int = 0) -> Dataset:
    return Dataset("made", x, y, len(x), tuple(names), tuple(x.shape[1:]), Prepare(), {}, vocabulary, target)


def regression(n: int = 120) -> Dataset:
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(n, 4)).astype(np.float32))
    return made("number", x @ torch.tensor([1.0, -2.0, 0.5, 0.0]) + 1, x)


def labels(n: int = 120) -> Dataset:
    x = regression(n).x
    return made("labels", (x[:, :3] > 0).float(), x, ("a", "b", "c"))


def characters(n: int = 80) -> Dataset:
    start = torch.arange(n)[:, None]
    text = (start + torch.arange(9)) % 5  # each token follows from the one before
    return made("tokens", text[:, 1:].contiguous(), text[:, :8].to(torch.int32), vocabulary=5)


TASKS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "number": (regression, {"loss": "mse", "metrics": ["rmse", "r2", "mae"]}, "mlp"),
    "labels": (labels, {"loss": "bce", "metrics": ["macro_f1", "auc", "accuracy"]}, "mlp"),
    "tokens": (characters, {"metrics": ["perplexity", "accuracy"]}, "char-cnn"),
}


def recipe_of(kind: str, name: str = "fedavg", /, **more: Any) -> Recipe:
    _, task, model = TASKS[kind]
    rest = {"data": {"partition": "iid", "sample_share": 1.0}, "model": {"name": model}, "task": task, "rounds": 2}
    return small.recipe(name, **{**rest, **more})


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(kind: str) -> None:
        monkeypatch.setattr(setup, "build", lambda config, seed, *_, **__: divide(TASKS[kind][0](), config, seed))

    return use


def test_metrics_of_classes_reach_records_and_summary(tmp_path: Path):
    task = {"metrics": ["accuracy", "balanced_accuracy", "auc"], "headline": "balanced_accuracy"}
    recipe = small.recipe(task=task, evaluate={"points": ["before"], "target": 0.1}, rounds=2)
    assert check(tables(recipe)) == recipe
    done = run(recipe, tmp_path / "run")
    last = [row for row in done.clients if row["round"] == 2]
    each = [row["before"]["balanced_accuracy"] for row in last]
    row = done.rounds[-1]["before"]
    assert row["balanced_accuracy"] == pytest.approx(sum(each) / 6)
    assert row["worst"] == min(each)
    assert row["accuracy"] == pytest.approx(sum(r["before"]["correct"] / r["before"]["samples"] for r in last) / 6)
    assert done.summary["balanced_accuracy"] == row["balanced_accuracy"]
    assert done.summary["best"].keys() == {"round", "balanced_accuracy"}
    assert done.summary["target"]["reached"]["round"] in (1, 2)
    assert done.client_scores() == {r["client"]: r["before"]["balanced_accuracy"] for r in last}


@pytest.mark.parametrize("kind", TASKS)
def test_other_tasks_run_end_to_end(kind: str, tmp_path: Path, data: Any):
    data(kind)
    recipe = recipe_of(kind, rounds=6, method={"lr": 0.05 if kind == "number" else 0.3})
    done = run(recipe, tmp_path / "run")
    main = recipe.task.main
    values = [row["before"][main.key] for row in done.rounds]
    assert main.rank(values[-1]) > main.rank(values[0])
    assert done.summary["best"][main.key] == max(values, key=main.rank)
    assert ("accuracy" in done.rounds[-1]["before"]) == (kind != "number")
    about = export(done, 0, tmp_path / "model.safetensors")
    assert about["target"] == kind
    made_data = TASKS[kind][0](40)
    np.savez(tmp_path / "mine.npz", x=made_data.x.numpy(), y=made_data.y.numpy())
    newcomer = adapt(done, tmp_path / "mine.npz", overrides=["fleet.adapt_epochs=3"])
    assert main.rank(newcomer.score) > main.rank(values[0])
    assert newcomer.accuracy is None or kind != "number"
    assert newcomer.headline.title in next(iter(newcomer.render(80)))
    np.savez(tmp_path / "wrong.npz", x=made_data.x.numpy(), y=np.full(40, 7))
    if kind != "number":
        with pytest.raises(RunError, match=r"wrong\.npz: y is int64 \[40\]; expected (labels|next tokens)"):
            adapt(done, tmp_path / "wrong.npz")


def test_a_run_of_numbers_resumes_to_the_same_records(tmp_path: Path, data: Any):
    data("number")
    recipe = recipe_of("number", rounds=3, fleet={"hold_out": 0.34})
    whole = run(recipe, tmp_path / "whole")

    def stop(step: Any) -> None:
        if step.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(recipe, tmp_path / "part", on_round=stop)
    assert resume(tmp_path / "part").summary == whole.summary
    for name in ("rounds.jsonl", "clients.jsonl"):
        assert (tmp_path / "part" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert whole.summary["newcomers"].keys() >= {"rmse", "r2", "mae", "worst"}


def test_the_shared_model_that_is_tuned_has_the_smallest_error(data: Any):
    data("number")
    points = {"points": ["finished", "shared"]}
    done = run(recipe_of("number", rounds=4, evaluate=points, method={"lr": 0.2}))
    errors = {row["round"]: row["validation"]["rmse"] for row in done.rounds}
    best = min(errors, key=lambda t: errors[t])
    shared = {row["round"]: row["shared"]["rmse"] for row in done.rounds}
    assert done.rounds[-1]["unfinished"]["rmse"] == shared[best]


@pytest.mark.parametrize(
    ("task", "kind", "message"),
    [
        (
            {"loss": "mse"},
            "class",
            'task.loss: "mse" is not allowed',
        ),
        ({}, "number", 'task.loss: "cross_entropy" is not allowed'),
        ({"loss": "mse", "metrics": ["auc"]}, "number", 'task.metrics: "auc" is not allowed'),
        ({"loss": "math:nothing"}, "class", 'task.loss: "nothing" not found in module "math"'),
        (
            {"metrics": ["no_module:f"]},
            "class",
            'task.metrics: module "no_module" cannot be imported: it is neither installed nor in the current folder',
        ),
    ],
)
def test_what_does_not_fit_the_targets_is_refused(task: dict[str, Any], kind: Any, message: str):
    config = small.recipe(task=task).task

    def build() -> None:
        objective_of(config, kind)
        measures_of(config, kind)

    with pytest.raises(RecipeError) as error:
        build()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            {"loss": "mes"},
            'task.loss: "mes" not found; did you mean "mse"?',
        ),
        ({"metrics": ["acuracy"]}, 'task.metrics: "acuracy" not found; did you mean "accuracy"?'),
        ({"metrics": ["auc", "auc"]}, 'task.metrics: ["auc", "auc"] is not allowed; expected each metric at most once'),
        ({"metrics": ["mine:auc"]}, 'task.metrics: "mine:auc" is not allowed'),
        ({"loss": "mse", "label_smoothing": 0.1}, 'label_smoothing: 0.1 is not allowed; expected 0 with loss = "mse"'),
        ({"label_smoothing": 1.0}, "task.label_smoothing: 1.0 is not allowed; expected a float in [0, 1)"),
    ],
)
def test_wrong_values_are_refused_when_a_recipe_is_read(task: dict[str, Any], message: str):
    with pytest.raises(RecipeError) as error:
        small.recipe(task=task)
    assert message in str(error.value)


def test_a_target_is_a_share_only_of_metrics_that_are():
    with pytest.raises(RecipeError, match=r"evaluate.target: 3 is not allowed; expected a float in \(0, 1\]"):
        small.recipe(evaluate={"target": 3.0})
    assert small.recipe(evaluate={"target": 3.0}, task={"loss": "mse"}).evaluate.target == 3.0


def test_plug_ins_are_not_imported_by_reading():
    recipe = small.recipe(task={"loss": "nowhere.to.find:loss", "metrics": ["-nowhere:cost"]})
    assert (recipe.task.main.key, recipe.task.main.lower) == ("cost", True)


OWN = """
import torch

def focal(outputs, y):
    losses = torch.nn.functional.cross_entropy(outputs, y, reduction="none")
    return (1 - torch.exp(-losses)) ** 2 * losses

def largest(y, outputs):
    return float(abs(outputs).max())
"""


@pytest.mark.parametrize("engine", ["local", pytest.param("pool", marks=pytest.mark.slow)])
def test_own_loss_and_metric_on_every_engine(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_task.py").write_text(OWN)
    task = {"loss": "own_task:focal", "metrics": ["-own_task:largest", "accuracy"]}
    first = run(small.recipe(task=task, rounds=2), tmp_path / "first")
    second = run(small.recipe(task=task, rounds=2, engine=engine), tmp_path / "second")
    for name in ("rounds.jsonl", "clients.jsonl", "summary.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()
    assert first.summary["largest"] > 0
    assert first.headline.lower
    plain = run(small.recipe(rounds=2))
    assert second.rounds[-1]["before"]["loss"] < plain.rounds[-1]["before"]["loss"]  # easy samples count less
    monkeypatch.delitem(sys.modules, "own_task")
    (tmp_path / "own_task.py").unlink()
    assert Run.open(tmp_path / "first").headline.key == "largest"  # reading imports nothing


def test_scores_with_metrics_cross_the_wire():
    score = Score(None, 7, 2.5, {"rmse": 0.5, "r2": None})
    head, blobs = result_parts(Result(3, score=score))
    assert read_result(head, blobs).score == score
    for wrong in ({"rmse": math.nan}, {"rmse": 1}, {"a" * 101: 1.0}, {str(i): 1.0 for i in range(101)}, [1.0]):
        with pytest.raises(
            CodecError,
            match=r"score\.metrics: the value is not allowed; expected at most 100 finite numbers by " r"name",
        ):
            read_result(head | {"score": head["score"] | {"metrics": wrong}}, blobs)
    for name in ("correct", "samples", "loss"):  # they would hide what was checked
        with pytest.raises(CodecError, match=f"the name '{name}' is reserved"):
            read_result(head | {"score": head["score"] | {"metrics": {name: 1.0}}}, blobs)
    plain, _ = result_parts(Result(3, score=replace(score, correct=2, metrics={})))
    assert plain["score"] == {"correct": 2, "samples": 7, "loss": 2.5}


LOSSES = """
import torch

def fails(outputs, y):
    raise KeyError("boom\\nboom")

def flat(outputs, y):
    return torch.ones(len(y))

def text(t, rounds):
    return "q"

def broken(y, outputs):
    raise KeyError("boom\\nboom")

def words(y, outputs):
    return "0.5"

def array(y, outputs):
    return outputs[:, 0]

def few(t, clients):
    return clients

def strange(t, clients, per_round, rng):
    return [99]
"""


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"task": {"loss": "losses_of_mine:fails"}}, "task.loss: the function failed: KeyError: 'boom"),
        ({"task": {"loss": "losses_of_mine:flat"}}, "task.loss: the function's losses have no gradient"),
        (
            {"method": {"lr_schedule": "losses_of_mine:text"}},
            'method.lr_schedule: "losses_of_mine:text" failed in round 0: ValueError: could not convert',
        ),
        (
            {"task": {"metrics": ["losses_of_mine:broken"]}},
            'task.metrics: "losses_of_mine:broken" failed: KeyError: \'boom',
        ),
        (
            {"task": {"metrics": ["losses_of_mine:words"]}},
            'task.metrics: "losses_of_mine:words" returned str; expected a number, or None where it is undefined',
        ),
        (
            {"task": {"metrics": ["accuracy", "losses_of_mine:array"]}},
            'task.metrics: "losses_of_mine:array" returned an array of shape [',
        ),
        (
            {"fleet": {"sampler": "losses_of_mine:few"}},
            'fleet.sampler: "losses_of_mine:few" in round 1 failed: TypeError: few() takes 2 positional arguments',
        ),
        (
            {"fleet": {"sampler": "losses_of_mine:strange"}},
            'fleet.sampler: "losses_of_mine:strange" in round 1 returned client 99; expected some',
        ),
    ],
)
def test_own_functions_that_fail_do_so_before_anything_is_written(table, why, tmp_path, monkeypatch):
    (tmp_path / "losses_of_mine.py").write_text(LOSSES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RecipeError) as caught:
        run(small.recipe(**table), tmp_path / "run")
    assert str(caught.value).startswith(why)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
