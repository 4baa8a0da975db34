"""Tables and figures of runs whose headline is an error, which is better the lower it is."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from made import COST, FEDAVG, PNG, make
from sparsona.engines.jobs import Score
from sparsona.experiment.metrics import metrics
from sparsona.experiment.recipe import check
from sparsona.experiment.results import Journal, Run, RunError, summarise, write
from sparsona.experiment.sweep import Setting
from sparsona.reports.comparison import compare
from sparsona.reports.gains import gains, in_words
from sparsona.reports.run_figures import run_figures
from sparsona.reports.sweep_table import compare_sweep

SHARED = [[4.0, 5.0, 6.0, 9.0], [2.0, 3.0, 4.0, 3.0]]  # RMSE by round and client: means 6, 3
OWN = [[2.0, 2.0, 3.0, 1.0], [1.0, 2.0, 5.0, 4.0]]  # means 2, 3
METRICS = ("rmse", "r2")


def run_of(path: Path, rounds: list[list[float]], seed: int = 1, **evaluate: Any) -> Run:
    """A run of numbers with these errors; R2 is a tenth of each, and client 3 has none."""
    raw = {"name": path.name, "seed": seed, "rounds": len(rounds), "model": {"name": "mlp"}}
    raw |= {"method": {"name": "fedavg"}, "data": {"clients": 4}, "evaluate": evaluate}
    recipe = check(raw | {"task": {"loss": "mse", "metrics": list(METRICS)}})
    run = Run.create(path, recipe, {})
    journals = {name: Journal(path / f"{name}.jsonl") for name in ("rounds", "clients")}
    rows = []
    for i, errors in enumerate(rounds, start=1):
        scores = {k: Score(None, 10, 1.0, {"rmse": e, "r2": e / 10 if k < 3 else None}) for k, e in enumerate(errors)}
        total = {name: value * i for name, value in COST.items()}
        row = {"round": i, "participants": [0], "left_out": [], **COST, "total": total}
        rows.append(row | {"before": metrics(scores, recipe.task)})
        journals["rounds"].add(rows[-1])
        for k, score in scores.items():
            journals["clients"].add({"round": i, "client": k, **(COST if k == 0 else {}), "before": score.row()})
    for journal in journals.values():
        journal.close()
    write(path / "summary.json", json.dumps(summarise(recipe, rows)))
    return run


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    return [run_of(tmp_path / "shared", SHARED, target=3.0), run_of(tmp_path / "own", OWN, target=3.0)]


def test_the_best_round_has_the_smallest_error(runs: list[Run]) -> None:
    assert [run.summary["best"] for run in runs] == [{"round": 2, "rmse": 3.0}, {"round": 1, "rmse": 2.0}]
    assert [run.summary["target"]["reached"]["round"] for run in runs] == [2, 1]  # at most 3
    assert runs[0].client_scores() == {0: 2.0, 1: 3.0, 2: 4.0, 3: 3.0}
    assert runs[0].client_accuracy() == {}


def test_a_comparison_of_errors(runs: list[Run], tmp_path: Path) -> None:
    table = compare(runs, tmp_path / "out")
    first, second = table.rows
    assert (first["rmse"], first["bottom_decile"], first["best_rmse"]) == (3.0, 4.0, 3.0)
    assert (second["rmse"], second["bottom_decile"], second["best_rmse"], second["best_round"]) == (3.0, 5.0, 2.0, 1)
    assert first["r2"] == pytest.approx((0.2 + 0.3 + 0.4) / 3)
    assert (first["rounds_to_target"], second["rounds_to_target"]) == (2, 1)
    head = table.markdown().splitlines()[0]
    assert "| RMSE | bottom decile | spread | R2 | best round | rounds to 3 |" in head
    assert "accuracy" not in head
    assert table.notes == tuple(f"R2 is undefined for 1 of 4 clients in {name}; left out" for name in ("shared", "own"))
    names = {file.name for file in table.files}
    assert {"rmse-rounds.png", "rmse-bytes.png", "metrics.png", "clients.png", "gain.png"} < names
    assert all(file.read_bytes().startswith(PNG) for file in table.files if file.suffix == ".png")


def test_a_smaller_error_is_a_gain(runs: list[Run]) -> None:
    (gain,) = gains(runs)
    assert (gain["gained"], gain["lost"], gain["mean_gain"], gain["metric"]) == (2, 2, 0.0, "rmse")
    (line,) = in_words([gain | {"mean_gain": -0.5}])
    assert "2 of 4 clients gained, 2 lost; RMSE worse by 0.5 on average for the same bytes" in line


def test_runs_with_different_headlines_are_not_compared(runs: list[Run], tmp_path: Path) -> None:
    other = make(tmp_path / "accuracy", FEDAVG)
    with pytest.raises(RunError, match=r"task.headline differs: shared has rmse, and accuracy accuracy; compare runs"):
        compare([runs[0], other])


def test_figures_and_sweeps_of_errors(tmp_path: Path) -> None:
    every = {run_of(tmp_path / f"s{seed}", SHARED, seed): Setting(None, {"seed": seed}) for seed in (1, 2)}
    table = compare_sweep(every, tmp_path / "out")
    assert (table.rows[0]["rmse_mean"], table.rows[0]["rmse_std"], table.rows[0]["best_rmse_mean"]) == (3.0, 0.0, 3.0)
    assert "| RMSE | bottom decile | best | R2 |" in table.markdown()
    files = run_figures(next(iter(every)), tmp_path / "figures")
    assert [file.name for file in files][:3] == ["rmse.png", "clients.png", "metrics.png"]


def test_every_client_has_all_of_its_metrics_in_a_table_and_a_figure(runs: list[Run], tmp_path: Path) -> None:
    table = compare(runs, tmp_path / "out")
    assert "client-metrics.png" in {file.name for file in table.files}
    with (tmp_path / "out" / "clients.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[1] == {"run": "shared", "client": "1", "rmse": "3.0", "r2": "0.3"}
    assert rows[3] == {"run": "shared", "client": "3", "rmse": "3.0", "r2": ""}
    assert len(rows) == 8


def test_an_undefined_headline_is_not_called_untested(tmp_path: Path) -> None:
    raw = {"name": "one-class", "rounds": 1, "model": {"name": "mlp"}, "method": {"name": "fedavg"}}
    recipe = check(raw | {"data": {"clients": 2}, "task": {"metrics": ["auc", "accuracy"]}})
    run = Run.create(tmp_path / "one-class", recipe, {})
    scores = {k: Score(5 + k, 8, 1.0, {"auc": None}) for k in range(2)}
    row = {
        "round": 1,
        "participants": [0],
        "left_out": [],
        **COST,
        "total": COST,
        "before": metrics(scores, recipe.task),
    }
    write(run.path / "summary.json", json.dumps(summarise(recipe, [row])))
    assert not run.tested
    assert run.why_untested == "AUC is undefined for every client (accuracy 68.8 %)"
