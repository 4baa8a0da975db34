"""Plans of recipes with a [sweep], runs that learn nothing, and folders of single variants."""

import json
from pathlib import Path

import pytest

import sparsona
from command import call, ok
from sparsona.experiment.checking import RecipeError
from sparsona.experiment.plan import load_settings
from sparsona.experiment.sweep import Setting

RECIPE = """
rounds = 1
data = { source = "digits", clients = 3, sample_share = 0.1 }
model = { name = "digits-mlp" }
engine = { name = "local" }
results = { figures = false }
[variants.shared.method]
name = "fedavg"
[variants.own.method]
name = "local"
[sweep]
seed = [1, 2]
[sweep.labels.even.data]
partition = "iid"
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text(RECIPE)


def test_what_a_sweep_of_a_recipe_sets() -> None:
    assert load_settings("r.toml", only=["own"]) == {
        "own seed=1 even": Setting("own", {"seed": 1, "labels": "even"}),
        "own seed=2 even": Setting("own", {"seed": 2, "labels": "even"}),
    }
    assert load_settings("r.toml", ["seed=3"], ["own"]) == {"own even": Setting("own", {"labels": "even"})}
    assert load_settings("quickstart") == {}


def test_seeds_of_a_recipe_are_means_not_rows() -> None:
    got = json.loads(ok("run", "r.toml", "--out", "out", "--json").stdout)
    assert [(row["variant"], row["labels"], row["seeds"]) for row in got["rows"]] == [
        ("shared", "even", 2),
        ("own", "even", 2),
    ]
    both = [sparsona.Run.open(f"out/own seed={n} even").summary["accuracy"] for n in (1, 2)]
    assert got["rows"][1]["accuracy_mean"] == pytest.approx(sum(both) / 2)
    assert got["rows"][1]["accuracy_std"] == pytest.approx(abs(both[0] - both[1]) / 2**0.5)
    assert "gains" not in got
    assert not Path("out/compare/gain.png").exists()
    assert sparsona.load("r.toml").resume("out", on_round=lambda _: pytest.fail("nothing is left")).summarised


def test_a_sweep_on_top_of_a_recipes_own_knows_its_seeds() -> None:
    plan = sparsona.plan_sweep("r.toml", ["method.batch=8,16"], ["own"])
    assert [run.name for run in plan.runs] == [
        "own seed=1 labels=even batch=8",
        "own seed=1 labels=even batch=16",
        "own seed=2 labels=even batch=8",
        "own seed=2 labels=even batch=16",
    ]


@pytest.mark.parametrize("method", ["fedavg", "dfedavgm"])
def test_a_run_that_learns_nothing_fails(method: str) -> None:
    changes = [
        f"method.name={method}",
        "method.lr=1e30",
        "method.epochs=4",
        "topology.max_wait=0",
        "topology.neighbours=1",
        "seed=1",
    ]
    Path("one.toml").write_text(RECIPE.split("[variants")[0])
    done = call("run", "one.toml", *changes, "--out", "out")
    assert done.exit_code == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("error: out: every answer of all 1 rounds was left out, so nothing was learnt; in round 1")
    assert line.endswith("client 0: NaN or Inf; a smaller method.lr may help")
    again = call("resume", "out", "--json")
    assert again.exit_code == 1
    assert len(json.loads(again.stdout)["failures"]) == 1


def test_a_plan_resumes_the_folder_of_one_variant() -> None:
    ok("run", "r.toml", "seed=1", "--only", "own", "--out", "one")
    assert sparsona.Run.open("one").recipe.name == "r-own even"
    for only in ([], ["own"]):
        assert len(sparsona.load("r.toml", ["seed=1"], only).resume("one")) == 1
    with pytest.raises(sparsona.RecipeError, match="one holds other runs"):
        sparsona.load("r.toml", ["seed=2"]).resume("one")


@pytest.mark.parametrize(
    ("recipe", "name"), [("quickstart", "quickstart"), ("fedspa/small/main", "fedspa-small-main"), ("r.toml", "r")]
)
def test_names_of_recipes(recipe: str, name: str) -> None:
    plan = sparsona.load(recipe)
    assert plan.name == name
    assert plan.free_folder() == Path("runs") / f"{name}-1"


def test_a_file_called_main_is_named_after_its_folder() -> None:
    Path("study").mkdir()
    Path("study/main.toml").write_text(RECIPE)
    assert sparsona.load("study/main.toml").name == "study-main"


@pytest.mark.parametrize(
    "words", [("export", "--client", "0", "--to", "x.onnx"), ("adapt", "--data", "x.npz"), ("show",), ("resume",)]
)
def test_a_folder_of_several_runs_names_them(words: tuple[str, ...]) -> None:
    for name in ("a b", "c"):
        Path("plan", name).mkdir(parents=True)
        Path("plan", name, "recipe.toml").touch()
    line = call(words[0], "plan", *words[1:]).stderr
    assert line == "error: plan holds several runs; give one of them: 'plan/a b', plan/c\n"
    if words != ("show",):  # which takes other names too
        assert call(words[0], "no", *words[1:]).stderr == "error: no is not a run folder: no such folder\n"


VARIANTS = """
rounds = 1
data = { source = "digits", clients = 3, sample_share = 0.1 }
engine = { name = "local" }
results = { figures = false }
method = { name = "fedavg" }
[model]
name = "digits-mlp"
args = { hidden = [4] }
[variants.first]
method.epochs = 2
[variants.second]
"""


def test_variants_of_a_model_with_arguments_run() -> None:
    Path("v.toml").write_text(VARIANTS)
    runs = sparsona.load("v.toml").run("out")
    assert [run.path.name for run in runs] == ["first", "second"]
    assert json.loads((Path("out") / "second" / "run.json").read_text())["parameters"] == 64 * 4 + 4 + 4 * 10 + 10


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('method.lr_schedule = "math:nothing"', 'second: method.lr_schedule: "nothing" not found in module "math"'),
        (
            'method = { optimiser = "AdamW", optimiser_args = { betas = [2.0, 0.9] } }',
            "second: method.optimiser_args: {'betas': (2.0, 0.9)} is not allowed by torch.optim.AdamW: Invalid beta",
        ),
        (
            'task.loss = "mse"',
            'second: task.loss: "mse" is not allowed; it needs targets that are numbers, and the data has classes; use',
        ),
        (
            'task.metrics = ["r2"]',
            'second: task.metrics: "r2" is not allowed; it needs targets that are numbers, and the data has classes;',
        ),
    ],
)
def test_a_bad_second_variant_is_refused_before_anything_runs(bad: str, message: str) -> None:
    Path("v.toml").write_text(f"{VARIANTS}{bad}\n")
    plan = sparsona.load("v.toml")
    for refuse in (plan.run, plan.dry_run):
        with pytest.raises(RecipeError) as error:
            refuse("out")
        assert str(error.value).startswith(message)
    assert not Path("out").exists()
