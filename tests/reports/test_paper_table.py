"""The table of a reproduction: what is printed, what came out, and the difference."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from command import enter, ok
from made import DITTO, FEDAVG, make
from small import recipe
from sparsona.experiment.recipe import RecipeError, tables
from sparsona.experiment.reproduce import PaperTable, Reproduction, load_table, plan
from sparsona.experiment.results import Run, RunError
from sparsona.reports.comparison import compare
from sparsona.reports.paper_table import compare_with_paper


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a tiny recipe of two variants."""
    enter(tmp_path, monkeypatch)
    raw = tables(recipe(rounds=2, evaluate={"points": ["before"]}, data={"clients": 4, "sample_share": 0.2}))
    raw["method"] = {"name": "fedavg", "lr": 0.1, "batch": 16}  # what all variants have
    ways = {"shared": {"method": {"name": "fedavg"}}, "own": {"method": {"name": "ditto"}}}
    Path("paper").mkdir()
    Path("paper/two.toml").write_text(tomli_w.dumps(raw | {"name": "two", "variants": ways}))
    return tmp_path


def paper(**more: Any) -> PaperTable:
    """A table of one row and one column."""
    printed = json.dumps(more.pop("printed", [68.5]))
    file = Path("paper/one.toml")
    text = tomli_w.dumps({"title": "t", "source": "s", **more})
    file.write_text(f'{text}[[columns]]\nname = "c"\nrecipe = "r"\n[[rows]]\nname = "m"\nprinted = {printed}\n')
    return load_table(str(file))


def test_differences_worked_out_by_hand(folder: Path) -> None:
    runs = [make(folder / "one", FEDAVG), make(folder / "two", DITTO, method="ditto", recipe={"seed": 2})]
    made = Reproduction(paper(seeds=[1, 2]), {"one": ("c", "m"), "two": ("c", "m")})
    sheet = compare_with_paper(made, runs)
    (row,) = sheet.json()
    assert row == {
        "column": "c",
        "row": "m",
        "recipe": "r",
        "variant": None,
        "seeds": 2,
        "printed": 68.5,
        "printed_std": None,
        "mean": pytest.approx(71.25),  # 70 and 72.5
        "std": pytest.approx(2.5 / 2**0.5),
        "difference": pytest.approx(2.75),
    }
    assert sheet.markdown() == (
        "| setting | method | paper | ours | difference | seeds |\n"
        "| --- | --- | ---: | ---: | ---: | ---: |\n"
        "| c | m | 68.5 | 71.2 ± 1.8 | +2.8 | 2 |\n"
        "\nNote: ± is the standard deviation over seeds\n"
    )
    assert sheet.notes == ("± is the standard deviation over seeds",)
    alone = compare_with_paper(made, runs[:1])
    assert (alone.json()[0]["std"], alone.json()[0]["difference"]) == (None, pytest.approx(1.5))
    assert alone.notes == ("the runs use seeds 1; the table asks for 1, 2",)
    with pytest.raises(RunError, match=r"three is not part of this table: table\.json does not list it"):
        compare_with_paper(made, [make(folder / "three", FEDAVG)])


@pytest.mark.parametrize(
    ("more", "value"),
    [
        ({"metric": "bytes", "unit": 1e6}, 3.0),
        ({"metric": "paper bytes", "unit": 1e6}, 2.6),
        ({"metric": "flops", "unit": 1e9}, 4.0),
        ({"metric": "last round flops", "unit": 1e9}, 2.0),
        ({"metric": "busiest node", "unit": 1e6}, 1.0),  # down, the busier direction of the server
        ({"metric": "accuracy"}, 50.0),
        ({"metric": "accuracy", "round": "best"}, 70.0),
        ({"metric": "accuracy by sample"}, 50.0),
        ({"metric": "accuracy by sample", "round": "best"}, 75.0),  # 60 of 80
    ],
)
def test_what_can_be_measured(folder: Path, more: dict[str, Any], value: float) -> None:
    run = make(folder / "one", FEDAVG[::-1])
    (row,) = compare_with_paper(Reproduction(paper(**more), {"one": ("c", "m")}), [run]).json()
    assert row["mean"] == pytest.approx(value)


def test_rounds_to_an_accuracy(folder: Path) -> None:
    runs = [make(folder / "one", FEDAVG), make(folder / "two", FEDAVG[::-1], recipe={"seed": 2})]
    made = {"one": ("c", "m"), "two": ("c", "m")}
    for target, each in ((40.0, [1, 1]), (60.0, [2, 1])):
        table = paper(metric="rounds to accuracy", target=target, point="before", seeds=[1, 2])
        (row,) = compare_with_paper(Reproduction(table, made), runs).json()
        assert (row["mean"], row["seeds"]) == (sum(each) / 2, 2)
    sheet = compare_with_paper(Reproduction(paper(metric="rounds to accuracy", target=71.0), made), runs)
    assert sheet.json()[0]["mean"] is None
    assert "left out, because 71 % was not reached: one, two" in sheet.notes
    for wrong in (
        {"metric": "rounds to accuracy"},
        {"metric": "rounds to accuracy", "target": 500.0},
        {"metric": "accuracy", "target": 50.0},
    ):
        with pytest.raises(RecipeError, match=r"target: .* is not allowed; expected an accuracy in percent, in"):
            paper(**wrong)


def test_the_bottom_decile_of_the_best_round_is_that_of_the_round_with_the_best_mean(folder: Path) -> None:
    run = make(folder / "one", [{0: (9, 10), 1: (2, 10)}, {0: (5, 10), 1: (5, 10)}])
    for when, value in (("last", 50.0), ("best", 20.0)):
        (row,) = compare_with_paper(
            Reproduction(paper(metric="bottom decile", round=when), {"one": ("c", "m")}), [run]
        ).json()
        assert row["mean"] == pytest.approx(value)


def test_points_beside_the_one_that_is_compared(folder: Path) -> None:
    Path("paper/x.toml").write_text(tomli_w.dumps(tables(recipe(rounds=2)) | {"name": "x"}))  # tested before and after
    ok("run", "paper/x.toml", "--out", "x")
    last = Run.open("x").rounds[-1]
    made = Reproduction(paper(point="after"), {"x": ("c", "m")})
    sheet = compare_with_paper(made, [Run.open("x")])
    (row,) = sheet.json()
    assert last["after"]["accuracy"] != last["before"]["accuracy"]
    assert row["mean"] == pytest.approx(100 * last["after"]["accuracy"])
    assert row["before"] == pytest.approx(100 * last["before"]["accuracy"])
    assert sheet.markdown().startswith("| setting | method | paper | ours | difference | ours before | seeds |\n")
    assert f"| {row['before']:.1f} | 1 |" in sheet.markdown()
    table = paper()
    own = replace(table, rows=(replace(table.rows[0], point="after"),))  # the row's, where the table has none
    assert compare_with_paper(Reproduction(own, made.runs), [Run.open("x")]).json() == sheet.json()
    assert compare([Run.open("x")]).rows[0]["after_accuracy"] == last["after"]["accuracy"]
    (row,) = compare_with_paper(Reproduction(paper(metric="flops"), made.runs), [Run.open("x")]).json()
    assert "before" not in row


MORE = """
title = "t"
source = "s"
columns = [
  { name = "c",        recipe = "two.toml" },
  { name = "c-bottom", of = "c", metric = "bottom decile" },
  { name = "c-new",    of = "c", point = "newcomers" },
]

[[rows]]
name = "FedAvg"
variant = "shared"
printed = [70, 45, 65]

[[rows]]
name = "Ditto"
variant = "own"
point = "after"
printed = [71, "-", 66]
"""


def test_several_figures_of_the_same_runs(folder: Path) -> None:
    changed = "changes = [\"fleet.hold_out=0.25\", \"evaluate.points=['before', 'after']\"]"
    Path("paper/more.toml").write_text(MORE.replace('"two.toml"', f'"two.toml", {changed}'))
    recipes, made = plan("paper/more.toml")
    assert list(recipes) == ["c FedAvg seed=1", "c Ditto seed=1"]
    assert list(plan("paper/more.toml", ["c-new"])[0]) == list(recipes)

    held = {"fleet": {"hold_out": 0.25}}
    runs = [
        make(folder / "c FedAvg seed=1", FEDAVG, points=("before", "after"), recipe=held),
        make(folder / "c Ditto seed=1", DITTO, points=("before", "after"), recipe=held),
    ]
    for run, score in zip(runs, (0.625, 0.5), strict=True):
        file = run.path / "summary.json"
        new = {"accuracy": score, "accuracy_by_sample": score, "bottom_decile": 0.25}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"newcomers": new}))
    runs = [Run.open(run.path) for run in runs]
    sheet = compare_with_paper(made, runs)
    got = {(row["column"], row["row"]): row for row in sheet.json()}
    assert {cell: row["mean"] for cell, row in got.items()} == {
        ("c", "FedAvg"): pytest.approx(70.0),
        ("c", "Ditto"): pytest.approx(72.5),
        ("c-bottom", "FedAvg"): pytest.approx(50.0),
        ("c-bottom", "Ditto"): pytest.approx(40.0),
        ("c-new", "FedAvg"): pytest.approx(62.5),
        ("c-new", "Ditto"): pytest.approx(50.0),
    }
    assert got["c-bottom", "FedAvg"]["difference"] == pytest.approx(5.0)
    assert {row["recipe"] for row in got.values()} == {"paper/two.toml"}
    # rows are compared at different points, so all are told; newcomers are tested at no other
    assert [(row["before"], row["after"]) for row in got.values()] == [
        (pytest.approx(value), pytest.approx(value)) if value else (None, None) for value in (70, 72.5, 50, 40, 0, 0)
    ]
    (folder / "there").mkdir()
    (folder / "there" / "table.json").write_text(made.json())
    assert Reproduction.read(folder / "there") == made


def test_a_note_at_the_end(folder: Path) -> None:
    Path("paper/x.toml").write_text(tomli_w.dumps(tables(recipe("fedspa", rounds=1)) | {"name": "x"}))
    ok("run", "paper/x.toml", "--out", "x")
    made = Reproduction(paper(metric="note", note="sparsity", printed=["-"]), {"x": ("c", "m")})
    (row,) = compare_with_paper(made, [Run.open("x")]).json()
    assert row["mean"] == pytest.approx(0.5, abs=0.01)
    assert (row["printed"], row["difference"]) == (None, None)
    assert "| c | m | - | 0.50 | - | 1 |" in compare_with_paper(made, [Run.open("x")]).markdown()
    wrong = Reproduction(paper(metric="note", note="density"), {"x": ("c", "m")})
    with pytest.raises(RunError, match='note: "density" not found in x'):
        compare_with_paper(wrong, [Run.open("x")])


def test_what_was_never_tested_is_told(folder: Path) -> None:
    sheet = compare_with_paper(Reproduction(paper(), {"a": ("c", "m")}), [make(folder / "a", [None])])
    assert sheet.notes == ("left out, because no client was tested: a",)
    assert "| c | m | 68.5 | - | - | 0 |" in sheet.markdown()
