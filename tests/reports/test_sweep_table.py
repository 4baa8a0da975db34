"""The table and the figures of a sweep."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from made import DITTO, FEDAVG, PNG, make
from sparsona.experiment.results import Run, RunError
from sparsona.experiment.sweep import Setting, Sweep
from sparsona.reports import sweep_figures
from sparsona.reports.sweep_groups import Group
from sparsona.reports.sweep_table import compare_sweep

WEAK = [FEDAVG[0], {0: (6, 10), 1: (6, 10), 2: (12, 20), 3: (24, 40)}]  # mean 0.5, then 0.6


def some(tmp_path: Path, **more: Any) -> tuple[list[Run], Sweep]:
    """Three runs of one group, with mean accuracies 0.7, 0.6 and 0.725, and one of another."""
    settings = {
        "lr=0.1 seed=1": ({"method.lr": 0.1, "seed": 1}, FEDAVG, 1),
        "lr=0.1 seed=2": ({"method.lr": 0.1, "seed": 2}, WEAK, 2),
        "lr=0.1 seed=3": ({"method.lr": 0.1, "seed": 3}, DITTO, 3),
        "lr=0.5 seed=1": ({"method.lr": 0.5, "seed": 1}, FEDAVG, 40),
    }
    runs = [make(tmp_path / name, scores, times=times, **more) for name, (_, scores, times) in settings.items()]
    return runs, Sweep({name: Setting(None, values) for name, (values, _, _) in settings.items()})


def test_rows_are_means_and_deviations_worked_out_by_hand(tmp_path: Path) -> None:
    runs, made = some(tmp_path, target=0.65)
    three, one = compare_sweep(made.of(runs)).json()
    mean = (0.7 + 0.6 + 0.725) / 3
    assert three["group"] == "lr=0.1"
    assert (three["variant"], three["method.lr"], three["seeds"]) == (None, 0.1, 3)
    assert three["accuracy_mean"] == pytest.approx(mean)
    assert three["accuracy_std"] == pytest.approx(math.sqrt(sum((a - mean) ** 2 for a in (0.7, 0.6, 0.725)) / 2))
    assert (three["bottom_decile_mean"], three["bottom_decile_std"]) == (pytest.approx(0.5), pytest.approx(0.1))
    assert three["best_accuracy_mean"] == pytest.approx(mean)
    assert (three["wire_bytes_mean"], three["wire_bytes_std"]) == (6e6, 3e6)  # 3, 6 and 9 MB
    assert (three["paper_bytes_mean"], three["flops_mean"]) == (5.2e6, 8e9)
    assert (three["target"], three["reached"]) == (0.65, 2)
    assert (three["rounds_to_target_mean"], three["rounds_to_target_std"]) == (1.5, pytest.approx(0.5**0.5))
    assert (one["seeds"], one["accuracy_mean"], one["accuracy_std"]) == (1, pytest.approx(0.7), None)
    assert (one["reached"], one["rounds_to_target_mean"], one["rounds_to_target_std"]) == (1, 2, None)


def test_seeds_of_data_are_averaged_over_unless_seeds_are_listed(tmp_path: Path) -> None:
    runs, made = some(tmp_path)
    of_data = {run: Setting(None, {"data.seed": n}) for n, run in enumerate(made.of(runs), start=1)}
    sheet = compare_sweep(of_data)
    (row,) = sheet.json()
    assert row["seeds"] == 4
    assert row["accuracy_mean"] == pytest.approx((0.7 + 0.6 + 0.725 + 0.7) / 4)
    assert "data.seed" not in row
    assert sheet.notes == ("± is the standard deviation over seeds of the partition, with one seed of training",)
    both = {run: Setting(None, {"data.seed": n % 2, "seed": n // 2}) for n, run in enumerate(runs)}
    rows = compare_sweep(both).json()
    assert [(row["data.seed"], row["seeds"]) for row in rows] == [(0, 2), (1, 2)]


def test_tables_for_reading_and_for_machines(tmp_path: Path) -> None:
    runs, made = some(tmp_path, target=0.65)
    sheet = compare_sweep(made.of(runs))
    assert sheet.markdown() == (
        "| lr | seeds | clients/round | never trained | accuracy % | bottom decile % | best % | rounds to 65 % "
        "| MB (wire) | MB (paper) | GFLOP |\n"
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        "| 0.1 | 3 | 1 | 3 | 67.50 ± 6.61 | 50.00 ± 10.00 | 67.50 ± 6.61 | 1.5 (1 not reached) | 6.00 | 5.20 | 8.00 |\n"
        "| 0.5 | 1 | 1 | 3 | 70.00 | 50.00 | 70.00 | 2 | 120.0 | 104.0 | 160.0 |\n"
        "\nNote: ± is the standard deviation over seeds of training and partition\n"
    )
    for width, parts in ((40, 4), (70, 3), (120, 1)):  # in parts where one is too wide
        console = Console(width=width, file=io.StringIO(), color_system=None)
        console.print(sheet.rich(width))
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert "67.50 ± 6.61" in text
        assert text.count("seeds") == 2  # in the head and in the note
        assert len(re.findall(r"\blr\b", text)) == parts
        assert max(map(len, text.splitlines())) <= width
    back = list(csv.DictReader(io.StringIO(sheet.csv())))
    for row, raw in zip(back, sheet.json(), strict=True):
        assert list(row) == list(raw)
        assert all(row[key] == ("" if value is None else str(value)) for key, value in raw.items())


def test_tuned_models_and_newcomers_are_told_beside_the_headline(tmp_path: Path) -> None:
    runs, made = some(tmp_path, points=("before", "finished"))
    assert "newcomers %" not in compare_sweep(made.of(runs)).markdown()
    for run in runs[:2]:
        file = run.path / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"newcomers": {"accuracy": 0.5}}))
    sheet = compare_sweep(made.of([Run.open(run.path) for run in runs]))
    assert sheet.markdown().startswith(
        "| lr | seeds | clients/round | never trained | accuracy % | bottom decile % | best % | fine-tuned % "
        "| newcomers % | MB (wire) | MB (paper) | GFLOP |\n"
    )
    assert [row["finished_accuracy_mean"] for row in sheet.rows] == [pytest.approx(0.675), pytest.approx(0.7)]
    assert [row["newcomers_accuracy_mean"] for row in sheet.rows] == [0.5, None]


def test_a_target_that_none_reached(tmp_path: Path) -> None:
    runs, made = some(tmp_path, target=0.9)
    sheet = compare_sweep(made.of(runs))
    assert sheet.markdown().count("| not reached |") == 2
    assert [row["rounds_to_target_mean"] for row in csv.DictReader(io.StringIO(sheet.csv()))] == ["not reached"] * 2
    runs, made = some(tmp_path / "none")
    assert "rounds to" not in compare_sweep(made.of(runs)).markdown()


def test_groups_are_told_apart_by_variant_and_by_values_of_any_kind(tmp_path: Path) -> None:
    settings = {
        "a": Setting("one", {"data.x": [1, 2], "seed": 1}),
        "b": Setting("one", {"data.x": [1, 2], "seed": 2}),
        "c": Setting("one", {"data.x": "1|2", "seed": 1}),
        "d": Setting("two", {"seed": 1}),
    }
    made = Sweep(settings)
    sheet = compare_sweep(made.of(make(tmp_path / name, FEDAVG) for name in settings), tmp_path / "out")
    assert [(r["group"], r["seeds"]) for r in sheet.json()] == [("one x=[1, 2]", 2), ("one x=1|2", 1), ("two", 1)]
    assert "| one | [1, 2] | 2 | 1 | 3 | 70.00 ± 0.00 |" in sheet.markdown()
    assert "| one | 1\\|2 | 1 | 1 | 3 | 70.00 |" in sheet.markdown()
    assert "| two |  | 1 | 1 | 3 | 70.00 |" in sheet.markdown()
    assert [f.name for f in sheet.files] == [
        "sweep.csv",
        "sweep.md",
        "sweep.tex",
        "sweep-rounds.png",
    ]  # all sent the same


def test_what_was_never_tested_is_left_out_and_told(tmp_path: Path) -> None:
    runs, made = some(tmp_path)
    runs[1] = make(tmp_path / "new" / "lr=0.1 seed=2", [None])
    sheet = compare_sweep(made.of(runs))
    assert sheet.json()[0]["seeds"] == 2
    assert "left out: lr=0.1 seed=2 (no client was tested)" in sheet.notes
    assert compare_sweep(made.of(runs[1:2]), tmp_path / "out").rows == ()
    assert not (tmp_path / "out").exists()
    with pytest.raises(RunError, match=r"other is not part of this sweep: sweep\.json does not list it"):
        made.of([make(tmp_path / "other", FEDAVG)])


def test_different_evaluation_points_are_told(tmp_path: Path) -> None:
    runs, made = some(tmp_path)
    runs[3] = make(tmp_path / "new" / "lr=0.5 seed=1", FEDAVG, points=["after"])
    assert compare_sweep(made.of(runs)).notes[-1] == (
        "accuracy is before local training in lr=0.1, but after local training in lr=0.5"
    )


def test_figures_are_written_the_same_twice(tmp_path: Path) -> None:
    runs, made = some(tmp_path, target=0.65)
    one, two = (compare_sweep(made.of(runs), tmp_path / "out" / name) for name in "ab")
    assert [f.name for f in one.files] == [
        "sweep.csv",
        "sweep.md",
        "sweep.tex",
        "sweep-rounds.png",
        "sweep-accuracy-lr.png",
        "sweep-bytes.png",
    ]
    for a, b in zip(one.files, two.files, strict=True):
        assert a.read_bytes() == b.read_bytes()
        assert a.suffix != ".png" or a.read_bytes().startswith(PNG)
    assert one.files[0].read_text() == one.csv()
    assert one.files[1].read_text().startswith(one.markdown())
    assert "![sweep-bytes](sweep-bytes.png)" in one.files[1].read_text()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write the tables of the sweep into"):
        compare_sweep(made.of(runs), tmp_path / "file")


@pytest.mark.parametrize(
    ("sizes", "panels"),
    [
        ((1,), [1]),
        ((8,), [8]),
        ((9,), [8]),  # the best
        ((3, 4), [4, 4, 4]),
        ((4, 3), [4, 4, 4]),
        ((2, 2, 3), [6, 6]),
        ((9, 9), [8]),
    ],
)
def test_lines_are_spread_over_as_few_panels_as_can_be_read(sizes: tuple[int, ...], panels: list[int]) -> None:
    places: list[dict[str, str]] = [{}]
    for i, size in enumerate(sizes):
        places = [p | {f"k{i}": str(v)} for p in places for v in range(size)]
    groups = [Group(p, {}, (), {"accuracy_mean": i}) for i, p in enumerate(places)]
    got = sweep_figures._panels([sweep_figures._Series(g.places, (g,)) for g in groups])
    assert [len(panel.lines) for panel in got] == panels
    if len(groups) > sum(panels):
        assert got[0].title == f"best 8 of {len(groups)}"
        assert [s.groups[0] for _, s in got[0].lines] == groups[-8:]
