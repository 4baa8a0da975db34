"""Whole runs with users' data: the same bits on every engine, resumed from anywhere, with names in the results."""

import csv
import json
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from safetensors import safe_open

import sparsona
from command import refused
from engines.test_engines import files
from sparsona.data import DataConfig, Encoding, build, read_encoding, write_encoding
from sparsona.data.encoding import Scale
from sparsona.experiment.loop import Progress
from sparsona.experiment.recipe import Recipe, RecipeError, check, tables
from sparsona.experiment.results import Run, RunError
from sparsona.experiment.runner import resume, run
from sparsona.experiment.setup import newcomers, prepare
from sparsona.methods import METHODS
from sparsona.models.simple import Perceptron

HERE = Path(__file__).parent.parent / "data"
sys.path.append(str(HERE))

import own  # noqa: E402


def recipe(source: Path | str, method: str = "ditto", engine: str = "local", **more: Any) -> Recipe:
    raw: dict[str, Any] = {
        "name": "own",
        "rounds": 2,
        "data": {"source": str(source)},
        "model": {"name": "digits-mlp"},
        "method": {"name": method},
        "engine": {"name": engine},
        "results": {"figures": False},
    }
    for key, value in more.items():
        raw[key] = raw[key] | value if isinstance(raw.get(key), dict) else value
    return check(raw)


SLOW = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("federation", "csv", "encoding")
]  # workers start for seconds


@pytest.fixture(params=["npz", "function", *SLOW])
def source(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The section [data] for a source of each kind."""
    monkeypatch.chdir(HERE)  # where worker processes look for own.py
    encoding = Encoding({"age": Scale(40, 20), "ward": ("c", "b", "a")}, ("yes", "no"))
    write_encoding(encoding, tmp_path / "e.json")
    table = {"source": str(own.table(tmp_path / "a.csv", own.rows())), "label": "died", "client": "hospital"}
    return {
        "npz": {"source": str(own.npz(tmp_path / "a.npz"))},
        "function": {"source": "own:samples", "args": {"n": 60}},
        "federation": {"source": "own:federation"},
        "csv": table,
        "encoding": table | {"encoding": str(tmp_path / "e.json")},
    }[request.param]


def test_the_pool_equals_local_to_the_bit(source: dict[str, Any], tmp_path: Path) -> None:
    run(recipe("", data=source), tmp_path / "local")
    run(recipe("", data=source, engine="pool"), tmp_path / "pool")
    assert files(tmp_path / "pool") == files(tmp_path / "local")


@pytest.mark.slow
@pytest.mark.parametrize("source", ["npz", "function"], indirect=True)
def test_ray_equals_local_to_the_bit(source: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    run(recipe("", data=source), tmp_path / "local")
    run(recipe("", data=source, engine="ray"), tmp_path / "ray")
    assert files(tmp_path / "ray") == files(tmp_path / "local")


def test_a_recipe_leaves_open_what_the_data_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own.npz(tmp_path / "a.npz")
    asked = recipe("a.npz")
    assert asked.data.source == str(tmp_path / "a.npz")
    assert "clients" not in tables(asked)["data"]
    assert check(tables(asked)) == asked
    made = run(asked, tmp_path / "run")
    settled = made.recipe.data
    assert (settled.clients, settled.partition, settled.key, settled.split) == (3, "natural", "client", "ratio")
    assert sparsona.Plan({"own": asked}).resume(tmp_path / "run").runs == (made,)
    with pytest.raises(RecipeError, match="run holds other runs"):
        sparsona.Plan({"own": recipe("a.npz", data={"clients": 2})}).resume(tmp_path / "run")
    with pytest.raises(RecipeError, match=r"fleet\.per_round: 5 is not allowed; expected an int <= data\.clients = 3"):
        run(recipe("a.npz", fleet={"per_round": 5}), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_names_of_clients_are_kept_in_results(tmp_path: Path) -> None:
    asked = recipe(own.npz(tmp_path / "a.npz"))
    made, kept = run(asked, tmp_path / "run"), run(asked)
    assert made.client_names == own.HOSPITALS
    assert [row["name"] for row in made.clients[:3]] == list(own.HOSPITALS)
    assert kept.clients == made.clients
    assert json.loads((tmp_path / "run" / "run.json").read_text())["client_names"] == list(own.HOSPITALS)
    pytest.importorskip("pandas")
    assert list(made.to_pandas("clients")["name"][:3]) == list(own.HOSPITALS)


@pytest.mark.parametrize("field", ["label", "client", "features", "missing", "test"])
def test_an_npz_file_has_no_columns(field: str, tmp_path: Path) -> None:
    file = own.npz(tmp_path / "a.npz")
    given = {"features": ["a"], "missing": "drop"}.get(field, "c")
    with pytest.raises(RecipeError, match=f"data.{field}: not allowed with source = .*, whose arrays are x, y and cli"):
        recipe(file, data={field: given})


@pytest.mark.parametrize("order", [("named", "numbered"), ("numbered", "named")])
def test_runs_with_and_without_names_are_compared(tmp_path: Path, order: tuple[str, str]) -> None:
    run(recipe(own.npz(tmp_path / "a.npz")), tmp_path / "named")
    run(recipe("digits", data={"clients": 3}), tmp_path / "numbered")
    sparsona.compare([tmp_path / name for name in order], out=tmp_path / "both")
    with (tmp_path / "both" / "clients.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows if row["run"] == "named"] == list(own.HOSPITALS)
    assert [row["name"] for row in rows if row["run"] == "numbered"] == ["", "", ""]


def interrupted(asked: Recipe, out: Path, **objects: Any) -> None:
    def stop(step: Progress) -> None:
        if step.round == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sparsona.run(asked, out, on_round=stop, **objects)


def test_a_run_is_resumed_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own.npz(tmp_path / "a.npz")
    run(recipe("a.npz"), tmp_path / "whole")
    interrupted(recipe("a.npz"), tmp_path / "run")
    monkeypatch.chdir("/")
    resume(tmp_path / "run")
    assert files(tmp_path / "run") == files(tmp_path / "whole")
    (tmp_path / "a.npz").unlink()
    assert Run(tmp_path / "run").recipe.data.clients == 3  # a folder is read without its data
    interrupted(recipe(own.npz(tmp_path / "a.npz")), tmp_path / "third")
    (tmp_path / "a.npz").unlink()
    with pytest.raises(ValueError, match=r"a\.npz: cannot be read: no such file"):
        resume(tmp_path / "third")


def test_an_object_is_asked_for_again(tmp_path: Path) -> None:
    federation = own.Counting(3)
    asked = recipe("digits")
    sparsona.run(asked, tmp_path / "whole", data=federation)
    interrupted(asked, tmp_path / "run", data=federation)
    assert Run(tmp_path / "run").recipe.data.source == "<Counting>"
    with pytest.raises(
        ValueError,
        match=r'data\.source: "<Counting>" is a Python object; pass it again, for example sparsona.resume\(out, '
        r"data=",
    ):
        sparsona.resume(tmp_path / "run")
    sparsona.resume(tmp_path / "run", data=federation)
    assert files(tmp_path / "run") == files(tmp_path / "whole")
    with pytest.raises(RecipeError, match=r'engine.name: worker processes of "pool" cannot import the data <Counting>'):
        sparsona.run(recipe("digits", engine="pool"), data=federation)


def test_a_function_given_as_an_object_is_recorded_by_name(tmp_path: Path) -> None:
    made = sparsona.run(recipe("digits"), tmp_path / "run", data=own.samples)
    assert made.recipe.data.source == "own:samples"
    twin = sparsona.run(recipe("own:samples"), tmp_path / "twin")
    assert twin.clients == made.clients
    assert twin.recipe == made.recipe
    assert sparsona.run(recipe("digits"), data=lambda: own.samples()).clients == made.clients


def test_only_drawn_clients_of_a_federation_are_read() -> None:
    federation = own.Counting(1000)
    fleet = {"per_round": 3}
    made = sparsona.run(recipe("digits", method="fedavg", fleet=fleet, evaluate={"points": ["after"]}), data=federation)
    drawn = {k for row in made.rounds for k in row["participants"]}
    assert set(federation.read) == drawn | {0}
    assert len(drawn) <= 6


def test_reading_a_run_imports_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "brought.py").write_text("import numpy as np\ndef data():\n return np.eye(40), np.arange(40) % 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    run(recipe("brought:data", data={"clients": 2}), tmp_path / "run")
    (tmp_path / "brought.py").write_text("raise SystemExit('imported')")
    sys.modules.pop("brought")
    made = Run(tmp_path / "run")
    assert made.recipe.data.source == "brought:data"
    assert sparsona.compare([tmp_path / "run"]) is not None
    assert "brought" not in sys.modules


def test_a_bad_file_is_named_before_anything_is_written(tmp_path: Path) -> None:
    x = own.arrays()["x"].copy()
    x[5] = np.nan
    path = own.npz(tmp_path / "a.npz", x=x)
    text = refused("run", "quickstart", "--only", "shared", f"data.source={path}", "--out", str(tmp_path / "run"))
    assert f"{path}: x has NaN or Inf in sample 5" in text
    assert not (tmp_path / "run").exists()


# --- encodings of runs, newcomers and changes ---

TABLE = {"label": "died", "client": "hospital"}


def of_table(folder: Path, **more: Any) -> Recipe:
    return recipe(own.table(folder / "a.csv", own.rows()), data=TABLE, **more)


def test_a_run_keeps_its_encoding(tmp_path: Path) -> None:
    made = run(of_table(tmp_path), tmp_path / "run")
    known = read_encoding(made.path / "encoding.json")
    assert (list(known.columns), known.classes) == (["age", "dose", "ward"], ("no", "yes"))
    written = sparsona.export(made, 1, tmp_path / "m.safetensors")
    with safe_open(written.file, "pt") as opened:
        assert json.loads(opened.metadata()["encoding"]) == known.json()
    plain = run(recipe(own.npz(tmp_path / "a.npz")), tmp_path / "plain")
    assert not (plain.path / "encoding.json").exists()
    with safe_open(sparsona.export(plain, 1, tmp_path / "p.safetensors").file, "pt") as opened:
        assert "encoding" not in opened.metadata()


def test_a_newcomer_brings_a_table(tmp_path: Path) -> None:
    made = run(of_table(tmp_path), tmp_path / "run")
    known = read_encoding(made.path / "encoding.json")
    mine = [dict(reversed(list(row.items()))) | {"age": row["age"] + 1} for row in own.rows()[:20]]
    found = sparsona.adapt(made, own.table(tmp_path / "mine.csv", mine))
    file = str(made.path / "encoding.json")
    config = DataConfig(str(tmp_path / "mine.csv"), label="died", encoding=file, clients=1, partition="iid")
    as_arrays = build(config, 1).dataset
    np.savez(tmp_path / "mine.npz", x=as_arrays.x, y=as_arrays.y)
    with pytest.warns(UserWarning, match="x is used as it is; expected the standardised and encoded columns"):
        twin = sparsona.adapt(made, tmp_path / "mine.npz")
    assert found.records == twin.records
    assert known.width == as_arrays.shape[0]
    (made.path / "encoding.json").unlink()  # as in runs of earlier versions
    assert sparsona.adapt(made, tmp_path / "mine.csv").records == found.records


def test_a_newcomer_may_bring_a_test_set(tmp_path: Path) -> None:
    made = run(of_table(tmp_path), tmp_path / "run")
    mine = [row | {"test": str(i > 9).lower()} for i, row in enumerate(own.rows()[:20])]
    assert sparsona.adapt(made, own.table(tmp_path / "mine.csv", mine)).train_samples == 9  # and 1 for validation


@pytest.mark.parametrize("kind", ["parquet", "function", "text", "pictures"])
def test_a_newcomer_brings_what_runs_take(kind: str, tmp_path: Path) -> None:
    if kind == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        import pyarrow.parquet as parquet

        made = run(of_table(tmp_path), tmp_path / "run")
        parquet.write_table(pyarrow.Table.from_pylist(own.rows()[:20]), tmp_path / "mine.parquet")
        mine: str | Path = tmp_path / "mine.parquet"
    elif kind == "function":
        made, mine = run(recipe(own.npz(tmp_path / "a.npz")), tmp_path / "run"), "own:samples"
    elif kind == "text":
        (tmp_path / "a.txt").write_text("ab ba abba. " * 300)
        data = {"length": 20, "clients": 2, "partition": "iid"}
        made = run(recipe(tmp_path / "a.txt", data=data, model={"name": "char-cnn"}), tmp_path / "run")
        mine = tmp_path / "mine.txt"
        mine.write_text("abba ba. " * 60)
    else:
        pytest.importorskip("PIL")
        for i in range(60):
            own.picture(tmp_path / "p" / "ab"[i % 2] / f"{i}.png", i, (8, 8))
            own.picture(tmp_path / "mine" / "ba"[i % 2] / f"{i}.png", i, (8, 8))
        data = {"clients": 2, "partition": "iid"}
        made, mine = run(recipe(tmp_path / "p", data=data), tmp_path / "run"), tmp_path / "mine"
    assert sparsona.adapt(made, mine).train_samples > 5


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("category", r"mine\.csv, row 2: z in column 'ward'; .*encoding\.json knows a, b, c"),
        ("class", r"mine\.csv, row 2: gone in column 'died'; expected one of data\.classes, no, yes"),
        ("column", r"mine\.csv: no column 'dose', which .*encoding\.json has"),
        ("text", r'mine\.txt: data\.target: "class" is not allowed for a text file; expected "tokens"'),
        ("name", r'data: source: "nowhere" not found; allowed: '),
        ("built-in", r"digits: is a built-in data set; expected a file, a folder or package\.module:name"),
    ],
)
def test_what_a_newcomer_cannot_bring_is_one_line(kind: str, message: str, tmp_path: Path) -> None:
    made = run(of_table(tmp_path), tmp_path / "run")
    mine: Path | str = tmp_path / "mine.csv"
    rows = own.rows()[:20]
    change = {"category": {"ward": "z"}, "class": {"died": "gone"}}.get(kind, {})
    rows = [{k: v for k, v in (r | change).items() if kind != "column" or k != "dose"} for r in rows]
    own.table(tmp_path / "mine.csv", rows)
    if kind == "text":
        mine = tmp_path / "mine.txt"
        mine.write_text("ab " * 200)
    mine = {"name": "nowhere", "built-in": "digits"}.get(kind, mine)
    with pytest.raises(RunError, match=message) as caught:
        sparsona.adapt(made, mine)
    assert "\n" not in str(caught.value)


def test_a_table_does_not_fit_a_run_on_arrays(tmp_path: Path) -> None:
    made = run(recipe(own.npz(tmp_path / "a.npz")), tmp_path / "run")
    rows = [{f"x{i}": 0.5 * i + k for i in range(4)} | {"label": k % 3} for k in range(20)]
    with pytest.raises(
        RunError, match=r"mine\.csv: is a table, and .*a\.npz is none; give its samples as .*a\.npz has"
    ):
        sparsona.adapt(made, own.table(tmp_path / "mine.csv", rows))


def test_scales_of_a_run_do_not_depend_on_newcomers(tmp_path: Path) -> None:
    asked = of_table(tmp_path, method="fedavg", fleet={"hold_out": 0.34})
    made = run(asked, tmp_path / "run")
    (k,) = newcomers(made.recipe)
    rows = [row | {"age": 10**6} if row["hospital"] == own.HOSPITALS[k] else row for row in own.rows()]
    own.table(tmp_path / "a.csv", rows)
    other = run(asked, tmp_path / "other")
    assert read_encoding(other.path / "encoding.json") == read_encoding(made.path / "encoding.json")
    told = sparsona.show_data(write_recipe(tmp_path, asked), encoding=tmp_path / "e.json")
    assert read_encoding(tmp_path / "e.json") == read_encoding(made.path / "encoding.json")
    assert told.encoding == tmp_path / "e.json"


def write_recipe(folder: Path, asked: Recipe) -> Path:
    (folder / "r.toml").write_text(tomli_w.dumps(tables(asked)))
    return folder / "r.toml"


@pytest.mark.parametrize("what", ["x", "client", "federation"])
def test_changed_inputs_are_noticed(what: str, tmp_path: Path) -> None:
    content = own.arrays()
    if what == "federation":
        federation = own.Counting(3)
        interrupted(recipe("digits"), tmp_path / "run", data=federation)
        own_client = federation.client
        federation.client = lambda k: own_client(k) | {"x": own_client(k)["x"] * 2}  # type: ignore[method-assign]
        with pytest.warns(UserWarning, match="may not be bit-identical: data_checksum was"):
            sparsona.resume(tmp_path / "run", data=federation)
        return
    asked = recipe(own.npz(tmp_path / "a.npz"))
    interrupted(asked, tmp_path / "run")
    changed = content["x"] + 1 if what == "x" else content["client"][::-1]
    own.npz(tmp_path / "a.npz", **{what: changed})
    with pytest.warns(UserWarning, match="may not be bit-identical: data_checksum was"):
        resume(tmp_path / "run")


def test_the_checksum_of_built_in_data_stays(tmp_path: Path) -> None:
    made = run(recipe("digits", data={"clients": 3}), tmp_path / "run")
    labels = prepare(made.recipe)[1].dataset.y.numpy()
    assert json.loads((made.path / "run.json").read_text())["data_checksum"] == zlib.crc32(labels.tobytes())
    assert not (made.path / "encoding.json").exists()


def test_a_path_is_data_too(tmp_path: Path) -> None:
    path = own.npz(tmp_path / "a.npz")
    want = run(recipe(path))
    for given in (path, str(path)):
        made = sparsona.run(recipe("digits"), data=given)
        assert made.clients == want.clients
    assert sparsona.run(recipe("digits"), tmp_path / "run", data=str(path)).recipe.data.source == str(path)
    with pytest.raises(
        ValueError, match=r"h\.cvs: not a folder, and not a known kind of file; expected one that ends with \.npz"
    ):
        sparsona.run(recipe("digits"), data="h.cvs")


def test_arguments_of_a_function_are_named() -> None:
    with pytest.raises(ValueError, match=r'"own:needy" needs the argument n; set it in \[data\.args\], as n = \.\.\.$'):
        run(recipe("own:needy"))
    unknown = r'^data\.args\.clint: no such argument of "own:federation"; did you mean "clients"\?$'
    with pytest.raises(ValueError, match=unknown):
        run(recipe("own:federation", data={"args": {"clint": 3}}))


def test_objects_stand_for_what_a_recipe_would_name(tmp_path: Path) -> None:
    """Columns of a table that is given by keyword; no names of a method, a model and a run are needed."""
    table = own.table(tmp_path / "a.csv", own.rows())
    raw = {"rounds": 1, "data": {"label": "died", "client": "hospital"}, "engine": {"name": "local"}}
    objects: dict[str, Any] = {"method": METHODS["ditto"](), "data": table, "model": Perceptron}
    made = sparsona.run(raw, **objects)
    assert made.recipe.name == "run"
    assert made.client_names == own.HOSPITALS
    assert sparsona.run(sparsona.check_recipe(raw, **objects), **objects).clients == made.clients
    (tmp_path / "a.toml").write_text(tomli_w.dumps(raw))
    assert sparsona.run(tmp_path / "a.toml", **objects).clients == made.clients
    with pytest.raises(RecipeError, match=r'^data.label: .* "digits", .*; set data\.source, or leave it out'):
        sparsona.run(raw, method=METHODS["ditto"](), model=Perceptron)
    with pytest.raises(RecipeError, match=r"^method\.lr is not allowed together with a method given as an object"):
        sparsona.check_recipe(raw | {"method": {"lr": 1.0}}, **objects)


def test_whole_numbers_that_are_no_tokens_are_explained(tmp_path: Path) -> None:
    path = own.npz(tmp_path / "a.npz", x=np.arange(360).reshape(90, 4) % 7)
    with pytest.raises(ValueError, match=r"a\.npz': its whole numbers are taken as token ids; use floats for features"):
        run(recipe(path))


def test_a_loss_of_numbers_names_the_target(tmp_path: Path) -> None:
    path = own.npz(tmp_path / "a.npz")
    wanted = r'task\.loss: "mse" is not allowed; .*, or data\.target = "number" if your whole numbers are amounts'
    with pytest.raises(RecipeError, match=wanted):
        run(recipe(path, task={"loss": "mse", "metrics": ["mae"]}))


def test_reads_of_a_federation_are_told_before_the_first_round() -> None:
    asked = recipe("digits", method="fedavg", fleet={"per_round": 3})
    federation = own.Counting(40)
    heard: list[int] = []
    with pytest.warns(UserWarning, match="each of 2 evaluations reads all 40 clients, 80 reads in all") as caught:
        sparsona.run(asked, data=federation, on_round=lambda step: heard.append(len(caught)))
    assert heard[0] == len([w for w in caught if "reads" in str(w.message)]) == 1
    federation.read.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        few = recipe("digits", method="fedavg", fleet={"per_round": 3}, evaluate={"clients": "participated"})
        made = sparsona.run(few, data=federation)
        sparsona.run(asked, data=own.Counting(20))  # all of them stay in memory
    assert set(federation.read) == {k for row in made.rounds for k in row["participants"]} | {0}
