"""Everything that a command does is a typed function or method; ``import sparsona`` offers them."""

import ast
import builtins
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

import sparsona
from small import recipe
from sparsona import cli
from sparsona.api import catalogue, comparison, fleet, layer_masks, models, reproduction, run_list, runs, sweeps
from sparsona.experiment.results import RunError
from sparsona.methods import METHODS

COMMANDS: dict[str, Callable[..., object]] = {
    "run": runs.Plan.run,
    "sweep": sweeps.sweep,
    "reproduce": reproduction.reproduce,
    "resume": runs.resume_all,
    "compare": comparison.compare,
    "export": models.export,
    "adapt": models.adapt,
    "methods": catalogue.list_methods,
    "models": catalogue.list_models,
    "recipes": catalogue.list_recipes,
    "runs": run_list.list_runs,
    "show": catalogue.show,
    "data": catalogue.data,
    "masks": layer_masks.masks,
    "topology": catalogue.topology,
    "check": catalogue.check,
    "fleet trial": fleet.trial,
    "fleet keys": fleet.make_keys,
    "fleet server": fleet.serve,
    "fleet node": fleet.node,
    "fleet run": fleet.run,
    "fleet status": fleet.status,
}


def test_every_command_has_a_function() -> None:
    group = typer.main.get_command(cli.app)
    names = []
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        names += [name] if inner is None else [f"{name} {each}" for each in inner]
    assert sorted(names) == sorted(COMMANDS)
    assert all(function.__doc__ for function in COMMANDS.values())


def test_every_name_can_be_loaded() -> None:
    for name in sparsona.__all__:
        assert getattr(sparsona, name) is not None
    with pytest.raises(AttributeError, match="nosuch"):
        _ = sparsona.nosuch


def test_type_checkers_see_every_name() -> None:
    tree = ast.parse(Path(sparsona.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.asname or alias.name for node in block.body for alias in node.names}
    assert imported | {"__version__"} == {*sparsona.__all__, "__version__"}


def test_the_command_line_names_no_method() -> None:
    for file in Path(cli.__file__).parent.glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        imports = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        assert not [name for name in imports if name.startswith("sparsona.methods")], file
        words = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not words & set(METHODS), file


def test_a_run_without_a_folder_has_the_rows_of_one_with_a_folder(tmp_path: Path) -> None:
    r = recipe("ditto")
    written, kept = sparsona.run(r, tmp_path / "run"), sparsona.run(r)
    assert kept.rounds == written.rounds
    assert kept.clients == written.clients
    assert kept.summary == written.summary
    assert kept.recipe == written.recipe
    assert kept.finished
    assert repr(kept) == "Run(in memory)"
    assert len({kept, sparsona.Run(tmp_path / "run"), written}) == 2
    with pytest.raises(RunError, match="no folder"):
        _ = kept.path


def test_a_plan_calls_back_before_runs_and_after_rounds(tmp_path: Path) -> None:
    plan = sparsona.load("quickstart", ["rounds=2", "data.clients=4", "fleet.per_round=2", "engine.name=local"])
    plan = sparsona.Plan({name: plan[name] for name in ("shared", "alone")})
    begun: list[str] = []
    rounds: list[int] = []
    result = plan.run(
        tmp_path / "out", on_run=lambda s: begun.append(s.name), on_round=lambda s: rounds.append(s.round)
    )
    assert begun == ["shared", "alone"]
    assert rounds == [1, 2, 1, 2]
    assert result.table is not None
    assert [row["name"] for row in result.table.rows] == ["shared", "alone"]
    assert (tmp_path / "out" / "shared" / "figures" / "accuracy.png").is_file()
    again = plan.resume(tmp_path / "out", on_round=lambda s: pytest.fail("nothing is left"))
    assert again.table == result.table
    assert repr(again) == f"RunSet(2 runs in {str(tmp_path / 'out')!r})"
    compared = sparsona.compare([tmp_path / "out" / "alone", result.runs[0]], tmp_path / "c")
    assert [row["name"] for row in compared.table.rows] == ["alone", "shared"]


def test_rows_as_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    run = sparsona.run(recipe("fedavg", rounds=2))
    pandas = pytest.importorskip("pandas")
    frame = run.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["round"]) == [1, 2]
    assert list(frame["total.up"]) == [row["total"]["up"] for row in run.rounds]
    clients = run.to_pandas("clients")
    assert len(clients) == len(run.clients)
    mean = clients[clients["round"] == 2]["before.accuracy"].mean()
    assert mean == pytest.approx(run.summary["accuracy"])

    real = builtins.__import__

    def without_pandas(name: str, *arguments: object) -> object:
        if name == "pandas":
            raise ImportError("no pandas")
        return real(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(RunError, match=r"sparsona\[pandas\]"):
        run.to_pandas()
