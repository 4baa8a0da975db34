"""Sweeps: which runs they make, their file, and resuming them."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from command import call, contents, enter, interrupted, ok, refused
from small import recipe
from sparsona.experiment import sweep
from sparsona.experiment.overrides import parse_options
from sparsona.experiment.recipe import RecipeError, tables
from sparsona.experiment.results import Run, RunError
from sparsona.experiment.sweep import Setting, Sweep, plan


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with two tiny recipes, one of them with variants."""
    enter(tmp_path, monkeypatch)
    raw = tables(recipe(rounds=2, evaluate={"points": ["before"]}, data={"clients": 4, "sample_share": 0.2}))
    raw["method"] = {"name": "fedavg", "lr": 0.1, "batch": 16}  # what all variants have
    Path("small.toml").write_text(tomli_w.dumps(raw))
    ways = {"shared": {"method": {"name": "fedavg"}}, "own": {"method": {"name": "ditto"}}}
    Path("two.toml").write_text(tomli_w.dumps(raw | {"name": "two", "variants": ways}))
    return tmp_path


# -- what is listed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("rounds=20", [20]),
        ("method.density=0.2,0.5", [0.2, 0.5]),
        ("method.search=dst,rsm", ["dst", "rsm"]),
        ("method.search=dst, rsm", ["dst", "rsm"]),
        ("data.x=[1,2]", [[1, 2]]),
        ("data.x=[1,2],[3]", [[1, 2], [3]]),
        ('a={b = 1, c = "}"},{b = 2, c = "x"}', [{"b": 1, "c": "}"}, {"b": 2, "c": "x"}]),
        ('a="x,y"', ["x,y"]),
        ("a='x,y',z", ["x,y", "z"]),
        (r'a="x\",y",z', ['x",y', "z"]),
        ("a=it's,b", ["it's", "b"]),
        ("a=true,1,1.5,word", [True, 1, 1.5, "word"]),
        ('a="",b', ["", "b"]),
        ("a=", [""]),
        ("a=[1,2", ["[1,2"]),
    ],
)
def test_values_are_parted_by_commas_outside_of_brackets_and_quotes(text: str, values: list[Any]) -> None:
    assert parse_options(text)[1] == values


def test_the_product_of_all_values_by_readable_names() -> None:
    recipes, made = plan("small.toml", ["method.lr=0.05,0.1", "rounds=3", "method.lr_schedule=constant,cosine"])
    assert list(recipes) == [
        "lr=0.05 lr_schedule=constant",
        "lr=0.05 lr_schedule=cosine",
        "lr=0.1 lr_schedule=constant",
        "lr=0.1 lr_schedule=cosine",
    ]
    assert [(r.method.lr, r.method.lr_schedule) for r in recipes.values()] == [  # type: ignore[attr-defined]
        (0.05, "constant"),
        (0.05, "cosine"),
        (0.1, "constant"),
        (0.1, "cosine"),
    ]
    assert {r.rounds for r in recipes.values()} == {3}
    assert made.axes == ["method.lr", "method.lr_schedule"]
    assert made.runs["lr=0.1 lr_schedule=cosine"] == Setting(None, {"method.lr": 0.1, "method.lr_schedule": "cosine"})


def test_without_several_values_a_sweep_is_the_recipes_own_runs() -> None:
    assert list(plan("small.toml", ["rounds=3"])[0]) == ["small"]
    assert list(plan("two.toml")[0]) == ["shared", "own"]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["method.name=fedavg,ditto"], ["method=fedavg", "method=ditto"]),
        (["method.batch=8,16", "evaluate.batch=32"], ["batch=8", "batch=16"]),
        (["method.batch=8,16", "evaluate.batch=32,64"], ["method.batch=8 evaluate.batch=32", None, None, None]),
        (["method.lr_steps=[0.5],[0.25,0.75]"], ["lr_steps=[0.5]", "lr_steps=[0.25, 0.75]"]),
        (["description=a/b,a:b,A?B"], ["description=a-b", "description=a-b (2)", "description=A-B (3)"]),
        (["results.models=true,false"], ["models=true", "models=false"]),
    ],
)
def test_names_are_short_and_can_be_folders(arguments: list[str], names: list[str | None]) -> None:
    got = list(plan("small.toml", arguments)[0])
    assert len(got) == len(names)
    assert all(want in (None, name) for want, name in zip(names, got, strict=True))


def test_long_names_are_cut_and_stay_apart() -> None:
    one, two = plan("small.toml", [f"description={'x' * 120},{'x' * 120}y"])[0]
    assert (len(one), one[:14]) == (100, "description=xx")
    assert two.endswith("xx (2)")


def test_variants_are_multiplied_by_what_concerns_them() -> None:
    recipes, made = plan("two.toml", ["variants.own.method.mu=0.1,0.5", "seed=1,2"])
    assert list(recipes) == [
        "shared seed=1",
        "shared seed=2",
        "own mu=0.1 seed=1",
        "own mu=0.1 seed=2",
        "own mu=0.5 seed=1",
        "own mu=0.5 seed=2",
    ]
    assert made.axes == ["seed", "method.mu"]
    assert made.runs["own mu=0.1 seed=2"] == Setting("own", {"method.mu": 0.1, "seed": 2})
    # what is said of one variant goes before what is said of all, for that variant
    recipes, made = plan("two.toml", ["seed=1,2", "variants.own.seed=3"])
    assert {name: r.seed for name, r in recipes.items()} == {"shared seed=1": 1, "shared seed=2": 2, "own": 3}
    assert made.runs["own"] == Setting("own", {})
    assert list(plan("two.toml", ["seed=1,2", "variants.own.seed=3,4"])[0])[2:] == ["own seed=3", "own seed=4"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["seed=1,2,1"], "seed: 1 is listed twice"),
        (["method.lr=0.1,1e-1"], "method.lr: 0.1 is listed twice"),
        (["rounds=2024-01-01,2024-01-01"], "rounds: 2024-01-01 is listed twice"),
        (["method.lr=0.1,,0.2"], "method.lr: 0.1,,0.2 has an empty value between commas"),
        (["seed=1,2,"], "seed: 1,2, has an empty value between commas"),
        (["rounds=3", "rounds=4"], "rounds is given twice"),
        (["seed=1,2", "seed = 3,4"], "seed is given twice"),
        (["seed"], 'override "seed" is not allowed; expected key=value, for example method.lr=0.05'),
        (["method.lr=0.1,0"], "method.lr: 0 is not allowed; expected a float > 0"),
        (["method.lr=0.1,high"], 'method.lr: "high" is not allowed; expected a float > 0'),
        (["sed=1,2"], 'sed: no such field; did you mean "seed"?'),
        (["variants.own.seed=1,2"], "variants: no such field"),
        ([f"seed={','.join(map(str, range(40)))}", f"rounds={','.join(map(str, range(1, 31)))}"], "make 1,200 runs"),
        (["data.clients=4,5000"], "samples are too few for 5,000 clients"),
        (["data.alpha=1,2", 'data={source = "digits", clients = 4}'], "data.alpha: 1 and 2 make the same run"),
    ],
)
def test_what_cannot_be_run_is_told_before_anything_is(folder: Path, arguments: list[str], text: str) -> None:
    before = contents(folder)
    assert text in refused("sweep", "small.toml", *arguments)
    assert contents(folder) == before
    done = call("sweep", "small.toml", *arguments, "--json")
    assert done.exit_code == 2
    assert text in json.loads(done.stdout)["error"]


def test_values_that_cover_what_sets_variants_apart_are_refused() -> None:
    with pytest.raises(
        RecipeError,
        match=r"variants sparsity 0\.2 and sparsity 0\.4 are now the same run: "
        r"an override sets the fields in which they differ",
    ):
        plan("fedspa/small/ablations", ["method.density=0.2,0.3", "seed=1,2"], ["sparsity 0.2", "sparsity 0.4"])


def test_errors_of_variants_name_the_variant() -> None:
    with pytest.raises(RecipeError, match=r"variant shared: method\.mu: no such field.*variants\.NAME\.method\.mu"):
        plan("two.toml", ["method.mu=0.1,0.5"])
    with pytest.raises(RecipeError, match=r'variants\.won\.seed: no such variant; did you mean "own"'):
        plan("two.toml", ["variants.won.seed=1,2"])
    with pytest.raises(RecipeError, match=r"variants\.own is not allowed; expected variants\.NAME\.KEY"):
        plan("two.toml", ["variants.own=1,2"])
    with pytest.raises(RecipeError, match=r"variants\.own\.seed: variant own does not run with only shared"):
        plan("two.toml", ["variants.own.seed=1,2"], ["shared"])
    with pytest.raises(RecipeError, match="overrides: the listed values make 2,000 runs; expected at most 1,000"):
        plan("two.toml", [f"seed={','.join(map(str, range(1000)))}"])


# -- the file ---------------------------------------------------------------------------------------------------------


def test_the_sweep_as_a_file(folder: Path) -> None:
    made = plan("two.toml", ["variants.own.method.mu=0.1,0.5", "seed=1,2"])[1]
    (folder / "sweep.json").write_text(made.json())
    assert Sweep.read(folder) == made
    for text in ("{", "[]", '{"runs": 3}', '{"runs": {"a": 3}}', '{"runs": {"a": {"variant": null}}}'):
        (folder / "sweep.json").write_text(text)
        with pytest.raises(RunError, match=r"sweep\.json is damaged"):
            Sweep.read(folder)


# -- whole sweeps ----------------------------------------------------------------------------------------------------


def test_a_sweep_from_command_to_table_and_on(folder: Path) -> None:
    command = ["small.toml", "method.lr=0.05,0.2", "seed=1,2", "evaluate.target=0.2"]
    done = ok("sweep", *command)
    top = folder / "runs" / "small-sweep-1"
    names = ["lr=0.05 seed=1", "lr=0.05 seed=2", "lr=0.2 seed=1", "lr=0.2 seed=2"]
    assert {p.name for p in top.iterdir()} == {"plan.json", "sweep.json", "compare", *names}
    assert [line for line in done.stderr.splitlines() if line.startswith("run ")] == [
        f"run {i} of 4: {name}" for i, name in enumerate(names, start=1)
    ]
    assert done.stdout.endswith("results: runs/small-sweep-1\ntables and figures: runs/small-sweep-1/compare\n")
    assert "| rounds to 20 % |" in (top / "compare" / "sweep.md").read_text()

    # against the runs' own summaries
    rows = list(csv.DictReader((top / "compare" / "sweep.csv").open()))
    for row, pair in zip(rows, (names[:2], names[2:]), strict=True):
        a, b = (Run.open(top / name).summary for name in pair)
        assert float(row["accuracy_mean"]) == pytest.approx((a["accuracy"] + b["accuracy"]) / 2)
        assert float(row["accuracy_std"]) == pytest.approx(abs(a["accuracy"] - b["accuracy"]) / math.sqrt(2))
        sent = [s["total"]["down"] + s["total"]["up"] for s in (a, b)]
        assert float(row["wire_bytes_mean"]) == sum(sent) / 2
        shown = f"{100 * float(row['accuracy_mean']):.2f} ± {100 * float(row['accuracy_std']):.2f}"
        assert shown in done.stdout
        assert shown in (top / "compare" / "sweep.md").read_text()
    assert [row["method.lr"] for row in rows] == ["0.05", "0.2"]

    # the same command goes on; what is done is not touched
    before = contents(top)
    for path in sorted((top / names[1]).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    again = ok("sweep", *command)
    assert "resuming the sweep in runs/small-sweep-1: 3 of 4 runs finished\n" in again.stderr
    assert [line for line in again.stderr.splitlines() if line.startswith("run ")] == [f"run 2 of 4: {names[1]}"]
    assert again.stdout == done.stdout
    after = contents(top)
    assert after.keys() == before.keys()
    for name, (data, written) in before.items():
        if not name.endswith("timing.jsonl"):
            assert after[name][0] == data
        if name.split("/")[0] in {*names} - {names[1]}:
            assert after[name][1] == written
    assert not (folder / "runs" / "small-sweep-2").exists()

    # so do the same folder, and resume
    assert ok("sweep", *command, "--out", "runs/small-sweep-1").stdout == done.stdout
    (top / "sweep.json").unlink()  # killed just before it was written
    got = json.loads(ok("sweep", *command, "--json").stdout)
    assert set(got) == {"folder", "rows", "notes", "comparison"}
    assert [str(row["accuracy_mean"]) for row in got["rows"]] == [row["accuracy_mean"] for row in rows]
    assert json.loads(ok("resume", "runs/small-sweep-1", "--json").stdout) == got
    resumed = ok("resume", "runs/small-sweep-1")
    assert resumed.stdout == done.stdout
    assert resumed.stderr.count("already finished") == 4

    # another sweep is another folder
    told = refused("sweep", "small.toml", "seed=1,2", "--out", "runs/small-sweep-1")
    assert told == (
        'runs/small-sweep-1 holds another sweep: its run "lr=0.05 seed=1" is not in the new sweep: '
        "method.lr is 0.05 there, "
        "but 0.1 here; choose another folder, or resume it with: sparsona resume runs/small-sweep-1"
    )
    assert "the folder is not empty" in refused("sweep", "small.toml", "seed=1,2", "--out", "runs")
    assert json.loads(ok("sweep", "small.toml", "rounds=1", "--json").stdout)["folder"] == "runs/small-sweep-2"
    (top / "sweep.json").write_text("{")
    assert "sweep.json is damaged" in refused("resume", "runs/small-sweep-1")


def test_a_sweep_is_extended_by_values_seeds_and_variants(folder: Path) -> None:
    few = ["rounds=1", "results.figures=false", "--out", "s"]
    ok("sweep", "two.toml", *few, "--only", "own")
    before = contents(folder / "s" / "own")
    done = ok("sweep", "two.toml", "seed=7,1", *few, "--only", "own")  # 7 is the recipe's own
    assert "resuming the sweep in s: 1 of 1 runs finished, adding 1\n" in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("run ")] == ["run 2 of 2: own seed=1"]
    ok("sweep", "two.toml", "seed=1,7", *few)
    got = json.loads(ok("sweep", "two.toml", "variants.own.method.mu=0.5,0.1", "seed=1,7", *few, "--json").stdout)
    assert [(r["variant"], r["method.mu"], r["seeds"]) for r in got["rows"]] == [
        ("shared", None, 2),
        ("own", 0.5, 2),  # 0.5 is the method's own
        ("own", 0.1, 2),
    ]
    assert contents(folder / "s" / "own") == before
    names = {"own", "own seed=1", "shared seed=1", "shared seed=7", "own mu=0.1 seed=1", "own mu=0.1 seed=7"}
    assert {p.name for p in (folder / "s").iterdir() if p.is_dir()} == names | {"compare"}
    assert json.loads(ok("resume", "s", "--json").stdout) == got
    all_files = contents(folder / "s")
    assert 'its run "shared seed=1" is not in the new sweep: seed is 1 there, but 2 here' in refused(
        "sweep", "two.toml", "seed=2,7", *few
    )
    told = refused("sweep", "two.toml", "seed=1,7", "rounds=2", *few[1:])
    assert 'its run "shared seed=1" is not in the new sweep: rounds is 1 there, but 2 here' in told
    assert "method.mu is 0.1 there, but 0.5 here" in refused("sweep", "two.toml", "seed=1,7", *few)
    assert "data.samples_per_client is not set there, but 9 here" in refused(
        "sweep", "two.toml", "variants.own.method.mu=0.5,0.1", "seed=1,7", "data.samples_per_client=9", *few
    )
    assert contents(folder / "s") == all_files


def test_new_runs_never_take_a_folder_that_is_there() -> None:
    plan_of = lambda *changes: plan("small.toml", [f"description={','.join(changes)}"])  # noqa: E731
    known, _ = plan_of("a/b", "c")
    grown, made = sweep.extended(*plan_of("a:b", "A/B", "a/b", "c"), known)
    assert {name: r.description for name, r in grown.items()} == {
        "description=a-b (2)": "a:b",
        "description=A-B (2) (2)": "A/B",
        "description=a-b": "a/b",
        "description=c": "c",
    }
    assert list(made.runs) == list(grown)


def test_a_plan_killed_while_it_was_extended_goes_on(folder: Path) -> None:
    few = ["rounds=1", "results.figures=false", "--out", "s"]
    ok("sweep", "small.toml", "seed=1,2", *few)
    plan_before = Path("s/plan.json").read_bytes()
    done = ok("sweep", "small.toml", "seed=1,2,3", *few)
    Path("s/plan.json").write_bytes(plan_before)  # the description was written, the plan was not
    assert [row["seeds"] for row in json.loads(ok("resume", "s", "--json").stdout)["rows"]] == [2]
    assert ok("sweep", "small.toml", "seed=1,2,3", *few).stdout == done.stdout
    Path("s/plan.json").write_text("{")
    assert "plan.json is damaged" in refused("sweep", "small.toml", "seed=1,2,3", *few)


def test_sweeps_are_compared_by_their_means(folder: Path) -> None:
    few = ["rounds=1", "results.figures=false"]
    swept = ok("sweep", "small.toml", "seed=1,2", *few, "--out", "s").stdout
    ok("sweep", "two.toml", "seed=1,2", *few, "--out", "deep/s")
    ok("run", "small.toml", "rounds=2", "results.figures=false", "--out", "r")
    assert ok("compare", "s").stdout == swept.replace("results: s\n", "")
    assert "s/compare" in swept
    got = json.loads(ok("compare", "s", "deep/s", "r", "--json", "--device", "gbit_per_s=0.001").stdout)
    assert set(got) == {"rows", "notes", "folder", "device"}
    top = folder.name
    assert [(row["variant"], row["seeds"]) for row in got["rows"]] == [
        (f"{top}/s", 2),
        ("deep/s/shared", 2),
        ("deep/s/own", 2),
        ("r", 1),
    ]
    summaries = [Run.open(f"s/seed={seed}").summary for seed in (1, 2)]
    assert got["rows"][0]["accuracy_mean"] == pytest.approx(sum(s["accuracy"] for s in summaries) / 2)
    assert all(row["cost_seconds_mean"] > 0 for row in got["rows"])
    assert f"the runs differ in rounds: 1 in {top}/s, 1 in deep/s/shared, 1 in deep/s/own, 2 in r" in got["notes"]
    assert (folder / "comparison" / "sweep.csv").is_file()
    assert "s/seed=1 is given twice" in refused("compare", "s", "s/seed=1")
    assert "target: 2 is not allowed; expected a float in (0, 1]" in refused("compare", "s", "--target", "2")
    # run by run, if that is asked for
    for command in (["show", "s"], ["compare", *(str(p) for p in Path("s").iterdir()), "--out", "c"]):
        assert "seed=2" in ok(*command).stdout
    assert (folder / "c" / "gain.png").is_file()


def test_an_interrupted_run_goes_on_from_its_checkpoint(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["two.toml", "variants.own.method.mu=0.1,0.5", "results.figures=false"]
    with interrupted(monkeypatch):
        done = call("sweep", *command, "--out", "a")
    assert done.exit_code == 1
    assert done.stderr.endswith("error: stopped; finished rounds are saved, resume with: sparsona resume a\n")
    assert len(Run.open("a/own mu=0.1").rounds) == 1
    assert not Path("a/own mu=0.5").exists()
    shared = contents(folder / "a" / "shared")
    went_on = ok("sweep", *command, "--out", "a")
    assert contents(folder / "a" / "shared") == shared
    assert "own mu=0.1: round 1/2" not in went_on.stderr
    rows = json.loads(ok("sweep", *command, "--out", "b", "--json").stdout)["rows"]
    assert [(r["variant"], r["method.mu"], r["seeds"]) for r in rows] == [
        ("shared", None, 1),
        ("own", 0.1, 1),
        ("own", 0.5, 1),
    ]
    assert json.loads(ok("resume", "a", "--json").stdout)["rows"] == rows
    for file in ("rounds.jsonl", "clients.jsonl", "summary.json"):
        assert Path("a/own mu=0.1", file).read_bytes() == Path("b/own mu=0.1", file).read_bytes()


def test_a_sweep_in_which_nobody_is_tested_says_so() -> None:
    wild = ["method.lr=1e30", "method.epochs=3", "evaluate.points=['after']", "seed=1,2"]
    done = call("sweep", "small.toml", *wild)
    assert done.exit_code == 1
    assert done.stdout.count("no client was tested") == 2
    assert "results: runs/small-sweep-1\n" in done.stdout
    got = json.loads(call("sweep", "small.toml", *wild, "--json").stdout)
    assert len(got["failures"]) == 2
    assert got["rows"] == []
    assert "comparison" not in got


def test_help_has_examples() -> None:
    text = re.sub(r"\s+", " ", ok("sweep", "--help").stdout)
    assert "sparsona sweep quickstart method.lr=0.05,0.1 seed=1,2,3" in text
