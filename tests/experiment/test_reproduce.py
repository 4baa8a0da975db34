"""Tables of papers: what their files may say, which runs they make, and resuming them."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from command import call, contents, enter, interrupted, ok, refused
from small import recipe
from sparsona.experiment.recipe import RecipeError, tables
from sparsona.experiment.recipe_files import recipe_names
from sparsona.experiment.reproduce import plan, table_names
from sparsona.experiment.results import Run

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
changes = ["method.mu=0.1"]
printed = [60, 70.25]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a tiny recipe of two variants, and a table of it in another."""
    enter(tmp_path, monkeypatch)
    raw = tables(recipe(rounds=2, evaluate={"points": ["before"]}, data={"clients": 4, "sample_share": 0.2}))
    raw["method"] = {"name": "fedavg", "lr": 0.1, "batch": 16}  # what all variants have
    ways = {"shared": {"method": {"name": "fedavg"}}, "own": {"method": {"name": "ditto"}}}
    Path("paper").mkdir()
    Path("paper/two.toml").write_text(tomli_w.dumps(raw | {"name": "two", "variants": ways}))
    Path("paper/plain.toml").write_text(tomli_w.dumps(raw))
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
    assert (last.seed, last.rounds, last.data.alpha, last.method.mu) == (3, 5, 0.1, 0.1)  # type: ignore[attr-defined]
    assert made.runs["mild FedAvg seed=3"] == ("mild", "FedAvg")
    assert recipes["mild FedAvg seed=3"].data.alpha == 0.5


@pytest.mark.parametrize(
    ("only", "count"),
    [(["mild"], 4), (["skewed"], 4), (["own"], 4), (["FedAvg", "mild"], 2), (["mild", "skewed-10"], 8), ([], 8)],
)
def test_only_takes_columns_and_rows(only: list[str], count: int) -> None:
    assert len(plan("paper/table.toml", only)[0]) == count


def test_only_must_be_known() -> None:
    with pytest.raises(RecipeError, match='only: no such column or row "skew"; did you mean "skewed-10"'):
        plan("paper/table.toml", ["skew"])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"titel": '"x"'}, 'paper/new.toml: titel: no such field; did you mean "title"?'),
        ({"title": "3"}, "title: 3 is not allowed; expected a string"),
        ({"seeds": "[]"}, "paper/new.toml: seeds: [] is not allowed; expected a list of different ints, at least one"),
        (
            {"seeds": "[1, 1]"},
            "paper/new.toml: seeds: [1, 1] is not allowed; expected a list of different ints, at least one",
        ),
        ({"seeds": "[-1]"}, "seeds[0]: -1 is not allowed; expected an int >= 0"),
        ({"metric": '"acuracy"'}, 'metric: "acuracy" is not allowed; expected one of "accuracy"'),
        ({"metric": '"flops"', "round": '"best"'}, 'paper/new.toml: metric: "flops" does not use point and round'),
        (
            {"metric": '"flops"', "variant": '"own"\\npoint = "before"'},
            'paper/new.toml: metric: "flops" does not use point and round',
        ),
        (
            {"metric": '"note"'},
            'paper/new.toml: note: "" is not allowed; expected a field of the summary if metric is "note", and no note',
        ),
        (
            {"note": '"sparsity"'},
            'paper/new.toml: note: "sparsity" is not allowed; '
            'expected a field of the summary if metric is "note", and no',
        ),
        ({"unit": "1e9"}, "paper/new.toml: unit: 1000000000.0 is not allowed"),
        ({"unit": "0"}, "unit: 0 is not allowed; expected a float > 0"),
        ({"printed": "[1]"}, "paper/new.toml: rows[0].printed has 1 values; expected 2"),
        ({"deviation": "[1, 2, 3]"}, "paper/new.toml: rows[0].deviation has 3 values; expected 2"),
        ({"printed": '[1, "x"]'}, 'paper/new.toml: rows[0].printed[1]: "x" is not allowed; expected a float or "-"'),
        (
            {"variant": '"shred"'},
            'paper/new.toml: columns[0] (mild): rows[0].variant: "shred" not found in paper/two.toml',
        ),
        ({"variant": '"shred"'}, 'did you mean "shared"?'),
        ({"name": '"a/b"'}, "rows[0].name: "),
        (
            {"name": '"Ditto |"'},
            'paper/new.toml: rows[1].name: "Ditto |" is given twice',
        ),
        ({"changes": '["method.pul=0.1"]'}, "columns[0] (mild): variant own: method.pul: no such field"),
        (
            {"changes": '["method.mu"]'},
            'paper/new.toml: columns[0] (mild): override "method.mu" is not allowed; expected key=value, for example',
        ),
        ({"changes": '["variants.odd.seed=1"]'}, "variants.odd.seed: no such variant"),
        (
            {"point": '"after"'},
            'columns[0] (mild): point: "after" is not evaluated',
        ),
        ({"point": '"afte"'}, 'point: "afte" is not allowed; expected one of'),
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
        ('"two.toml" }', '"tow.toml" }', 'paper/new.toml: columns[0] (mild): recipe "tow.toml": not found'),
        ('"two.toml" }', '"plain.toml" }', 'paper/new.toml: columns[0] (mild): rows[0].variant: "shared" not found'),
        ('recipe = "two.toml" }', 'recip = "two.toml" }', 'columns[0].recip: no such field; did you mean "recipe"?'),
        ('variant = "shared"\n', "", "paper/new.toml: columns[0] (mild): rows[0].variant is missing in paper/two.toml"),
        ('name = "skewed-10"', 'name = "Mild"', 'columns[1].name: "Mild" is given twice'),
        ('recipe = "two.toml" }', "changes = [] }", "paper/new.toml: columns[0] (mild): expected one of recipe and of"),
        ('"two.toml" }', '"two.toml", of = "x" }', "paper/new.toml: columns[0] (mild): expected one of recipe and of"),
        ('recipe = "two.toml" }', 'of = "skewed" }', 'paper/new.toml: columns[0].of: no column "skewed" with a recipe'),
        ('recipe = "two.toml" }', 'of = "mild" }', 'paper/new.toml: columns[0].of: no column "mild" with a recipe'),
        ('recipe = "two.toml", ch', 'of = "mild", ch', "paper/new.toml: columns[1].changes is not allowed: skewed-10"),
        ('"two.toml" }', '"two.toml", point = "newcomers" }', 'columns[0] (mild): point: "newcomers" needs held-out'),
        ('"two.toml" }', '"two.toml", metric = "flops" }', 'columns[0].metric: "flops" is not allowed; expected one'),
        ('variant = "own"', 'variant = "own"\npoint = "after"', 'columns[0] (mild): point: "after" is not evaluated'),
        ("[[rows]]", "[[row]]", "row: no such field"),
        ("columns = [", "columns = 3\nx = [", "columns: 3 is not allowed; expected a list of tables"),
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
    assert 'table "fedspa/tabel1": not found; did you mean "fedspa/table1"?' in refused("reproduce", "fedspa/tabel1")
    assert refused("reproduce", "paper/table.toml", "--rounds", "0") == (
        "rounds: 0 is not allowed; expected an int >= 1"
    )
    assert 'seeds: "1,x" is not allowed; expected different ints, comma-separated' in refused(
        "reproduce", "paper/table.toml", "--seeds", "1,x"
    )
    assert "seed: -1 is not allowed; expected an int >= 0" in refused("reproduce", "paper/table.toml", "--seeds=-1")
    assert 'only: no such column or row "x"; allowed: Ditto |, FedAvg, mild, skewed-10' in refused(
        "reproduce", "paper/table.toml", "--only", "x"
    )
    assert "mild Ditto | seed=1: MNIST: mnist/" in refused("reproduce", saved(changes='["data.source=mnist"]'))
    Path("taken").mkdir()
    Path("taken/file").write_text("mine")
    assert "cannot write into taken: the folder is not empty; choose another folder" in refused(
        "reproduce", "paper/table.toml", "--out", "taken"
    )
    assert not Path("runs").exists()


# -- whole tables ----------------------------------------------------------------------------------------------------


def test_a_table_from_command_to_cells_and_on(folder: Path) -> None:
    command = ["reproduce", "paper/table.toml"]
    dry = ok(*command, "--dry-run").stdout
    assert re.search(r"mild Ditto \| seed=2 .* 2 .* 0/2 ", dry)
    assert dry.endswith("0 of 8 runs are finished, 8 would run in runs/table\n")
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
    assert again.stderr.count("already finished") == 8
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
    assert "Note: the runs use seeds 2, 3; the table asks for 1, 2" in part.stdout
    assert "FedAvg" not in part.stdout
    assert [r["seeds"] for r in json.loads(ok("resume", "runs/table", "--json").stdout)["rows"]] == [2, 3, 2, 2]
    short = ok(*command, "--rounds", "1", "--only", "mild", "--seeds", "1")
    assert "all runs use rounds = 1 instead of the recipes' value; this is not the setting of the paper" in short.stdout
    assert "results: runs/table-1-rounds\n" in short.stdout
    assert {p.name for p in (folder / "runs").iterdir()} == {"table", "table-1-rounds"}
    assert refused(*command, "--rounds", "1", "--out", "runs/table") == (
        "runs/table holds other runs: the number of rounds is the recipes' own there, but 1 here; "
        "choose another folder with --out"
    )

    # other commands take its runs as any others
    assert "mild FedAvg seed=1" in ok("compare", "runs/table").stdout
    assert ok("compare", *(str(p) for p in sorted(top.iterdir())), "--out", "c").stdout

    # what does not go with what is there
    other = saved(source='"Nobody, Table 2"')
    assert "the table is Nobody, Table 1 there, but Nobody, Table 2 here" in refused(
        "reproduce", other, "--out", "runs/table"
    )
    assert 'in "mild Ditto | seed=1", method.mu is 0.1 there, but 0.3 here' in refused(
        "reproduce", saved(changes='["method.mu=0.3"]'), "--out", "runs/table"
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
    assert done.stderr.endswith("error: stopped; finished rounds are saved, resume with: sparsona resume a\n")
    dry = ok(*command, "--out", "a", "--dry-run").stdout
    assert re.search(r"mild Ditto \| seed=1 .* 1 .* 1/2 ", dry)
    assert dry.endswith("1 of 4 runs are finished, 3 would run in a\n")
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


def test_a_plan_of_which_a_run_has_not_begun_can_be_shown(folder: Path) -> None:
    ok("reproduce", "paper/table.toml", "--rounds", "1", "--only", "mild", "--out", "half")
    gone = sorted(p for p in Path("half").iterdir() if (p / "recipe.toml").is_file())[0]
    shutil.rmtree(gone)
    told = ok("show", "half").stdout
    assert "resume with: sparsona resume half" in told
