"""Tables of papers: what their files may say, which runs they make, what is told of them, and going on."""

from __future__ import annotations

import csv
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command import call, contents, enter, interrupted, ok, refused
from small import recipe
from sparsona.config import RecipeError, recipe_names, tables, to_toml
from sparsona.report import compare
from sparsona.reproduce import PaperTable, Reproduction, load_table, plan, result, table_names
from sparsona.results import Run, RunError
from test_report import DITTO, FEDAVG, make

TABLE = """
title = "accuracy in percent"
source = "Nobody, Table 1"
seeds = [1, 2]
columns = [
  { name = "mild",      recipe = "two.toml" },
  { name = "skewed-10", recipe = "two.toml", changes = ["data.alpha=0.1"] },
]

[[rows]]
name = "FedAvg"
variant = "shared"
printed   = [50.5, "-"]
deviation = [ 1.5, "-"]

[[rows]]
name = "Ditto |"
variant = "own"
changes = ["method.pull=0.1"]
printed = [60, 70.25]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a tiny recipe of two variants, and a table of it in another."""
    enter(tmp_path, monkeypatch)
    raw = tables(recipe(rounds=2, evaluate={"points": ["before"]}, data={"clients": 4, "sample_share": 0.2}))
    ways = {"shared": {"method": {"name": "fedavg"}}, "own": {"method": {"name": "ditto"}}}
    Path("paper").mkdir()
    Path("paper/two.toml").write_text(to_toml(raw | {"name": "two", "variants": ways}))
    Path("paper/plain.toml").write_text(to_toml(raw))
    Path("paper/table.toml").write_text(TABLE)
    return tmp_path


def saved(**changes: Any) -> str:
    """The table with other lines: each replaces the first that begins with its key."""
    text = TABLE
    for key, value in changes.items():
        text, n = re.subn(rf"(?m)^{key} *= .*$", f"{key} = {value}", text, count=1)
        if not n:
            text = f"{key} = {value}\n{text}"
    Path("paper/new.toml").write_text(text)
    return "paper/new.toml"


# -- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", table_names())
def test_every_table_that_comes_with_us_can_be_run(name: str) -> None:
    recipes, made = plan(name)
    table = made.table
    own = [column for column in table.columns if column.recipe]
    assert len(recipes) == len(own) * len(table.rows) * len(table.seeds)
    assert list(made.runs) == list(recipes)
    printed = [figure for row in table.rows for figure in row.printed]
    assert all(0 < figure < 100 for figure in printed if figure != "-")


def test_tables_are_no_recipes() -> None:
    assert {"fedspa/table1", "dadpfl/table1", "dadpfl/table3"} <= set(table_names())
    assert not [name for name in recipe_names() if "table" in name]
    listed = json.loads(ok("reproduce", "--json").stdout)
    assert list(listed) == table_names()
    assert listed["dadpfl/table3"].startswith("DA-DPFL, Table III: ")
    assert "dadpfl/table3" in ok("reproduce").stdout


def test_runs_are_named_after_cells_and_seeds() -> None:
    recipes, made = plan("paper/table.toml", seeds=[3], rounds=5)
    assert list(recipes) == [
        "mild FedAvg seed=3",
        "mild Ditto | seed=3",
        "skewed-10 FedAvg seed=3",
        "skewed-10 Ditto | seed=3",
    ]
    last = recipes["skewed-10 Ditto | seed=3"]
    assert (last.seed, last.rounds, last.data.alpha, last.method.pull) == (3, 5, 0.1, 0.1)  # type: ignore[attr-defined]
    assert made.runs["mild FedAvg seed=3"] == ("mild", "FedAvg")
    assert recipes["mild FedAvg seed=3"].data.alpha == 0.5


@pytest.mark.parametrize(
    ("only", "count"),
    [(["mild"], 4), (["skewed"], 4), (["own"], 4), (["FedAvg", "mild"], 2), (["mild", "skewed-10"], 8), ([], 8)],
)
def test_only_takes_columns_and_rows(only: list[str], count: int) -> None:
    assert len(plan("paper/table.toml", only)[0]) == count


def test_only_must_be_known() -> None:
    with pytest.raises(RecipeError, match=r'only "skew": no such column or row; did you mean "skewed-10"'):
        plan("paper/table.toml", ["skew"])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"titel": '"x"'}, 'paper/new.toml: titel: no such field; did you mean "title"?'),
        ({"title": "3"}, "title = 3: must be a text"),
        ({"seeds": "[]"}, "seeds = []: must be at least one"),
        ({"seeds": "[1, 1]"}, "seeds = [1, 1]: must be at least one, each another"),
        ({"seeds": "[-1]"}, "seeds[0] = -1: must be a whole number, at least 0"),
        ({"metric": '"acuracy"'}, 'metric = "acuracy": must be one of "accuracy"'),
        ({"metric": '"flops"', "round": '"best"'}, 'metric = "flops": point and round are for accuracy only'),
        ({"metric": '"flops"', "variant": '"own"\\npoint = "before"'}, "point and round are for accuracy only"),
        ({"metric": '"note"'}, 'note = "": must be given for metric "note", and for no other'),
        ({"note": '"sparsity"'}, 'note = "sparsity": must be given for metric "note"'),
        ({"unit": "1e9"}, "unit = 1000000000.0: accuracy is in percent and takes no unit"),
        ({"unit": "0"}, "unit = 0: must be a number, above 0"),
        ({"printed": "[1]"}, 'rows[0].printed has 1 values: must be 2, one for each column, "-" for none'),
        ({"deviation": "[1, 2, 3]"}, "rows[0].deviation has 3 values: must be 2"),
        ({"printed": '[1, "x"]'}, 'rows[0].printed[1] = "x": must be a number or one of "-"'),
        ({"variant": '"shred"'}, 'rows[0].variant = "shred" is no variant: '),
        ({"variant": '"shred"'}, 'did you mean "shared"?'),
        ({"name": '"a/b"'}, "rows[0].name: "),
        ({"name": '"Ditto |"'}, 'rows[1].name = "Ditto |": given twice; each must have its own'),
        ({"changes": '["method.pul=0.1"]'}, "columns[0] (mild): variant own: method.pul: no such field"),
        ({"changes": '["method.pull"]'}, "an override is key=value"),
        ({"changes": '["variants.odd.seed=1"]'}, "variants.odd.seed: no such variant"),
        ({"point": '"after"'}, 'point = "after": paper/two.toml is tested before only'),
        ({"point": '"afte"'}, 'point = "afte": must be one of'),
    ],
)
def test_what_a_table_may_not_say_is_told_before_anything_is_run(
    folder: Path, changes: dict[str, str], text: str
) -> None:
    name = saved(**changes)
    before = contents(folder)
    assert text in refused("reproduce", name)
    assert contents(folder) == before
    done = call("reproduce", name, "--json", "--dry-run")
    assert done.exit_code == 2
    assert text in json.loads(done.stdout)["error"]


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ('"two.toml" }', '"tow.toml" }', 'columns[0] (mild): recipe "tow.toml": no such file or recipe'),
        ('"two.toml" }', '"plain.toml" }', 'rows[0].variant = "shared": paper/plain.toml has no variants'),
        ('recipe = "two.toml" }', 'recip = "two.toml" }', 'columns[0].recip: no such field; did you mean "recipe"?'),
        ('variant = "shared"\n', "", "rows[0].variant is missing: paper/two.toml; allowed: own, shared"),
        ('name = "skewed-10"', 'name = "Mild"', 'columns[1].name = "Mild": given twice'),
        ('recipe = "two.toml" }', "changes = [] }", "columns[0] (mild): must have either a recipe, or be of another"),
        ('"two.toml" }', '"two.toml", of = "x" }', "columns[0] (mild): must have either a recipe, or be of another"),
        ('recipe = "two.toml" }', 'of = "skewed" }', 'no such column with a recipe; did you mean "skewed-10"?'),
        ('recipe = "two.toml" }', 'of = "mild" }', 'columns[0].of = "mild": no such column with a recipe; allowed: s'),
        ('recipe = "two.toml", ch', 'of = "mild", ch', "columns[1].changes: skewed-10 has the runs of mild, as they"),
        ('"two.toml" }', '"two.toml", point = "newcomers" }', 'point = "newcomers": paper/two.toml has none; chan'),
        ('"two.toml" }', '"two.toml", metric = "flops" }', 'columns[0].metric = "flops": must be one of "accuracy"'),
        ('variant = "own"', 'variant = "own"\npoint = "after"', 'point = "after": paper/two.toml is tested before on'),
        ("[[rows]]", "[[row]]", "row: no such field"),
        ("columns = [", "columns = 3\nx = [", "columns = 3: must be a list of tables"),
        ('source = "Nobody, Table 1"', "", "source is missing"),
        ("seeds = [1, 2]", "seeds = [1, 2", "not valid TOML"),
    ],
)  # fmt: skip
def test_what_is_missing_or_unknown_is_told_with_the_file(old: str, new: str, text: str) -> None:
    Path("paper/new.toml").write_text(TABLE.replace(old, new))
    told = refused("reproduce", "paper/new.toml")
    assert text in told
    assert told.startswith("paper/new.toml: ")
    assert told.count("new.toml: ") == 1
    assert not Path("runs").exists()


def test_bad_options() -> None:
    assert 'table "fedspa/tabel1": no such file or table; did you mean "fedspa/table1"?' in refused(
        "reproduce", "fedspa/tabel1"
    )
    assert refused("reproduce", "paper/table.toml", "--rounds", "0") == (
        "rounds = 0: must be a whole number, at least 1"
    )
    assert 'seeds = "1,x": must be different whole numbers' in refused(
        "reproduce", "paper/table.toml", "--seeds", "1,x"
    )
    assert "seed = -1: must be a whole number" in refused("reproduce", "paper/table.toml", "--seeds=-1")
    assert 'only "x": no such column or row; allowed: Ditto |, FedAvg, mild, skewed-10' in refused(
        "reproduce", "paper/table.toml", "--only", "x"
    )
    assert "mild Ditto | seed=1: MNIST needs mnist/" in refused("reproduce", saved(changes='["data.source=mnist"]'))
    Path("taken").mkdir()
    Path("taken/file").write_text("mine")
    assert "it is not empty" in refused("reproduce", "paper/table.toml", "--out", "taken")
    assert not Path("runs").exists()


# -- the result ------------------------------------------------------------------------------------------------------


def paper(**more: Any) -> PaperTable:
    """A table of one row and one column."""
    printed = json.dumps(more.pop("printed", [68.5]))
    file = Path("paper/one.toml")
    text = to_toml({"title": "t", "source": "s", **more})
    file.write_text(f'{text}[[columns]]\nname = "c"\nrecipe = "r"\n[[rows]]\nname = "m"\nprinted = {printed}\n')
    return load_table(str(file))


def test_differences_worked_out_by_hand(folder: Path) -> None:
    runs = [make(folder / "one", FEDAVG), make(folder / "two", DITTO, method="ditto", recipe={"seed": 2})]
    made = Reproduction(paper(seeds=[1, 2]), {"one": ("c", "m"), "two": ("c", "m")})
    sheet = result(made, runs)
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
    alone = result(made, runs[:1])
    assert (alone.json()[0]["std"], alone.json()[0]["difference"]) == (None, pytest.approx(1.5))
    assert alone.notes == ("seeds 1, where the table asks for 1, 2",)
    with pytest.raises(RunError, match="is not of this table"):
        result(made, [make(folder / "three", FEDAVG)])


@pytest.mark.parametrize(
    ("more", "value"),
    [
        ({"metric": "bytes", "unit": 1e6}, 3.0),
        ({"metric": "paper bytes", "unit": 1e6}, 2.6),
        ({"metric": "flops", "unit": 1e9}, 4.0),
        ({"metric": "accuracy"}, 50.0),
        ({"metric": "accuracy", "round": "best"}, 70.0),
        ({"metric": "accuracy by sample"}, 50.0),
        ({"metric": "accuracy by sample", "round": "best"}, 75.0),  # 60 of 80
    ],
)
def test_what_can_be_measured(folder: Path, more: dict[str, Any], value: float) -> None:
    run = make(folder / "one", FEDAVG[::-1])
    (row,) = result(Reproduction(paper(**more), {"one": ("c", "m")}), [run]).json()
    assert row["mean"] == pytest.approx(value)


def test_the_bottom_decile_of_the_best_round_is_that_of_the_round_with_the_best_mean(folder: Path) -> None:
    run = make(folder / "one", [{0: (9, 10), 1: (2, 10)}, {0: (5, 10), 1: (5, 10)}])
    for when, value in (("last", 50.0), ("best", 20.0)):
        (row,) = result(Reproduction(paper(metric="bottom decile", round=when), {"one": ("c", "m")}), [run]).json()
        assert row["mean"] == pytest.approx(value)


def test_points_beside_the_one_that_is_compared(folder: Path) -> None:
    Path("paper/x.toml").write_text(to_toml(tables(recipe(rounds=2)) | {"name": "x"}))  # tested before and after
    ok("run", "paper/x.toml", "--out", "x")
    last = Run.open("x").rounds[-1]
    made = Reproduction(paper(point="after"), {"x": ("c", "m")})
    sheet = result(made, [Run.open("x")])
    (row,) = sheet.json()
    assert last["after"]["accuracy"] != last["before"]["accuracy"]
    assert row["mean"] == pytest.approx(100 * last["after"]["accuracy"])
    assert row["before"] == pytest.approx(100 * last["before"]["accuracy"])
    assert sheet.markdown().startswith("| setting | method | paper | ours | difference | ours before | seeds |\n")
    assert f"| {row['before']:.1f} | 1 |" in sheet.markdown()
    table = paper()
    own = replace(table, rows=(replace(table.rows[0], point="after"),))  # the row's, where the table has none
    assert result(Reproduction(own, made.runs), [Run.open("x")]).json() == sheet.json()
    assert compare([Run.open("x")]).rows[0]["after_accuracy"] == last["after"]["accuracy"]
    (row,) = result(Reproduction(paper(metric="flops"), made.runs), [Run.open("x")]).json()
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
    sheet = result(made, runs)
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


def test_a_plan_of_which_a_run_has_not_begun_can_be_shown(folder: Path) -> None:
    ok("reproduce", "paper/table.toml", "--rounds", "1", "--only", "mild", "--out", "half")
    gone = sorted(p for p in Path("half").iterdir() if (p / "recipe.toml").is_file())[0]
    shutil.rmtree(gone)
    told = ok("show", "half").stdout
    assert "go on with: sparsona resume half" in told


def test_a_note_at_the_end(folder: Path) -> None:
    Path("paper/x.toml").write_text(to_toml(tables(recipe("fedspa", rounds=1)) | {"name": "x"}))
    ok("run", "paper/x.toml", "--out", "x")
    made = Reproduction(paper(metric="note", note="sparsity", printed=["-"]), {"x": ("c", "m")})
    (row,) = result(made, [Run.open("x")]).json()
    assert row["mean"] == pytest.approx(0.5, abs=0.01)
    assert (row["printed"], row["difference"]) == (None, None)
    assert "| c | m | - | 0.50 | - | 1 |" in result(made, [Run.open("x")]).markdown()
    wrong = Reproduction(paper(metric="note", note="density"), {"x": ("c", "m")})
    with pytest.raises(RunError, match='note = "density": x has sparsity'):
        result(wrong, [Run.open("x")])


def test_what_was_never_tested_is_told(folder: Path) -> None:
    sheet = result(Reproduction(paper(), {"a": ("c", "m")}), [make(folder / "a", [None])])
    assert sheet.notes == ("no client was ever tested in a: left out",)
    assert "| c | m | 68.5 | - | - | 0 |" in sheet.markdown()


# -- whole tables ----------------------------------------------------------------------------------------------------


def test_a_table_from_command_to_cells_and_on(folder: Path) -> None:
    command = ["reproduce", "paper/table.toml"]
    dry = ok(*command, "--dry-run").stdout
    assert "mild Ditto | seed=2: 0 of 2 rounds done\n" in dry
    assert dry.endswith("0 of 8 runs are done, 8 would be run into runs/table\n")
    assert not Path("runs").exists()

    done = ok(*command)
    top = folder / "runs" / "table"
    names = [f"{c} {r} seed={s}" for c in ("mild", "skewed-10") for r in ("FedAvg", "Ditto |") for s in (1, 2)]
    assert {p.name for p in top.iterdir()} == {"plan.json", "table.json", "compare", *names}
    assert [line for line in done.stderr.splitlines() if line.startswith("run ")] == [
        f"run {i} of 8: {name}" for i, name in enumerate(names, start=1)
    ]
    assert done.stdout.startswith("Nobody, Table 1: accuracy in percent\n")
    assert done.stdout.endswith("results: runs/table\ntables: runs/table/compare\n")

    # against the runs' own summaries
    rows = list(csv.DictReader((top / "compare" / "table.csv").open()))
    assert [(row["column"], row["row"], row["printed"], row["printed_std"]) for row in rows] == [
        ("mild", "FedAvg", "50.5", "1.5"),
        ("mild", "Ditto |", "60.0", ""),
        ("skewed-10", "FedAvg", "", ""),
        ("skewed-10", "Ditto |", "70.25", ""),
    ]
    written = (top / "compare" / "table.md").read_text()
    assert written.startswith("# Nobody, Table 1\n\naccuracy in percent\n\n| setting | method |")
    for row, pair in zip(rows, (names[:2], names[2:4], names[4:6], names[6:]), strict=True):
        a, b = (100 * Run.open(top / name).summary["accuracy"] for name in pair)
        assert float(row["mean"]) == pytest.approx((a + b) / 2)
        assert float(row["std"]) == pytest.approx(abs(a - b) / 2**0.5)
        shown = f"{float(row['mean']):.2f} ± {float(row['std']):.2f}"
        assert shown in done.stdout
        assert shown in written
        if row["printed"]:
            assert float(row["difference"]) == pytest.approx((a + b) / 2 - float(row["printed"]))
            assert f"{float(row['difference']):+.2f}" in done.stdout
    assert "| mild | FedAvg | 50.50 ± 1.50 |" in written
    assert re.search(r"^\| skewed-10 \| FedAvg \| - \| .* \| - \| 2 \|$", written, re.MULTILINE)

    # the same again runs nothing and says the same
    before = {name: data for name, data in contents(top).items() if not name.startswith(("compare/", "table", "plan"))}
    again = ok(*command)
    assert again.stdout == done.stdout
    assert again.stderr.count("already done") == 8
    assert ok("resume", "runs/table").stdout == done.stdout
    after = contents(top)
    assert {name: after[name] for name in before} == before
    got = json.loads(ok(*command, "--json").stdout)
    assert set(got) == {"folder", "source", "title", "rows", "notes", "comparison"}
    assert [row["mean"] for row in got["rows"]] == [float(row["mean"]) for row in rows]
    dry_run = json.loads(ok(*command, "--dry-run", "--json").stdout)
    assert (dry_run["folder"], dry_run["done"], len(dry_run["runs"])) == ("runs/table", 8, 8)

    # a part of it, more seeds, fewer rounds
    part = ok(*command, "--only", "mild,own", "--seeds", "2,3")
    assert [line for line in part.stderr.splitlines() if line.startswith("run ")] == ["run 2 of 2: mild Ditto | seed=3"]
    assert "Note: seeds 2, 3, where the table asks for 1, 2" in part.stdout
    assert "FedAvg" not in part.stdout
    assert [r["seeds"] for r in json.loads(ok("resume", "runs/table", "--json").stdout)["rows"]] == [2, 3, 2, 2]
    short = ok(*command, "--rounds", "1", "--only", "mild", "--seeds", "1")
    assert "rounds = 1 in every run instead of the recipes' own: this is not the setting of the paper" in short.stdout
    assert "results: runs/table-1-rounds\n" in short.stdout
    assert {p.name for p in (folder / "runs").iterdir()} == {"table", "table-1-rounds"}
    assert refused(*command, "--rounds", "1", "--out", "runs/table") == (
        "runs/table: the number of rounds is the recipes' own there, but 1 here; choose another folder with --out"
    )

    # other commands take its runs as any others
    assert "mild FedAvg seed=1" in ok("compare", "runs/table").stdout
    assert ok("compare", *(str(p) for p in sorted(top.iterdir())), "--out", "c").stdout

    # what does not go with what is there
    other = saved(source='"Nobody, Table 2"')
    assert "the table is Nobody, Table 1 there, but Nobody, Table 2 here" in refused(
        "reproduce", other, "--out", "runs/table"
    )
    assert 'its run "mild Ditto | seed=1" is another: method.pull is 0.1 there, but 0.3 here' in refused(
        "reproduce", saved(changes='["method.pull=0.3"]'), "--out", "runs/table"
    )
    (top / "table.json").write_text("{")
    assert "table.json is damaged" in refused(*command)
    (top / "table.json").unlink()
    assert "runs/table holds other runs" in refused(*command, "--only", "mild")


def test_killed_half_way_it_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["reproduce", "paper/table.toml", "--seeds", "1"]
    with interrupted(monkeypatch):
        done = call(*command, "--out", "a")
    assert done.exit_code == 1
    assert done.stderr.endswith("error: stopped; what was done is saved, go on with: sparsona resume a\n")
    dry = ok(*command, "--out", "a", "--dry-run").stdout
    assert "mild Ditto | seed=1: 1 of 2 rounds done\n" in dry
    assert dry.endswith("1 of 4 runs are done, 3 would be run into a\n")
    first = contents(folder / "a" / "mild FedAvg seed=1")
    Path("a/table.json").unlink()  # as if killed just before it was written
    went_on = ok(*command, "--out", "a")
    assert contents(folder / "a" / "mild FedAvg seed=1") == first
    whole = ok(*command, "--out", "b")
    assert went_on.stdout.replace("results: a\ntables: a/", "results: b\ntables: b/") == whole.stdout
    for file in ("compare/table.csv", "compare/table.md", "mild Ditto | seed=1/rounds.jsonl"):
        assert Path("a", file).read_bytes() == Path("b", file).read_bytes()


def test_help_has_examples() -> None:
    text = re.sub(r"\s+", " ", ok("reproduce", "--help").stdout)
    assert "sparsona reproduce fedspa/table1 --only emnist,dst --seeds 1,2" in text
