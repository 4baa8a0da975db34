"""The list of run folders says how far each is, and imports nothing that a run folder names."""

import json
import sys
from pathlib import Path

import pytest

import sparsona
from command import ok, refused
from small import recipe


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished run, one that was stopped, a plan of two of which none has begun, and three damaged ones."""
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "runs"
    sparsona.run(recipe("fedavg", rounds=2), runs / "whole")

    def stop(step: sparsona.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sparsona.run(recipe("ditto", rounds=3), runs / "deep" / "stopped", on_round=stop)
    (runs / "plan").mkdir()
    (runs / "plan" / "plan.json").write_text('{"one": {}, "two": {}}')
    for name, file, text in (
        ("toml", "recipe.toml", "rounds = "),
        ("lost", "rounds.jsonl", ""),
        ("short", "recipe.toml", 'name = "x"\nrounds = 3\n[method]\nname = "fedavg"\n'),
    ):
        (runs / "bad" / name).mkdir(parents=True)
        (runs / "bad" / name / file).write_text(text)
    (runs / "bad" / "short" / "summary.json").write_text('{"accuracy": 0.5}')
    (runs / "bad" / "short" / "rounds.jsonl").write_text("{}\n")
    return runs


def test_list(folder: Path) -> None:
    listed = sparsona.list_runs()
    states = {run.path.relative_to("runs").as_posix(): (run.state, run.rounds_done, run.rounds) for run in listed}
    assert states == {
        "bad/lost": ("damaged", 0, None),
        "bad/short": ("damaged", 0, None),
        "bad/toml": ("damaged", 0, None),
        "deep/stopped": ("unfinished", 1, 3),
        "plan/one": ("not begun", 0, None),
        "plan/two": ("not begun", 0, None),
        "whole": ("finished", 2, 2),
    }
    whole = listed.runs[-1]
    assert (whole.recipe, whole.method) == ("small", "fedavg")
    assert (whole.headline, whole.score) == ("accuracy", sparsona.Run.open(folder / "whole").summary["accuracy"])
    flaws = [run.flaw for run in listed]
    assert flaws[:2] == ["recipe.toml is missing", "ValueError finished with 1 of 3 rounds"]


def test_the_command(folder: Path) -> None:
    shown = ok("runs").stdout
    line = next(line for line in shown.splitlines() if "deep/stopped" in line)
    assert [cell.strip() for cell in line.split("│")[1:6]] == ["deep/stopped", "ditto", "1/3", "unfinished", ""]
    assert "runs/bad/lost is damaged: recipe.toml is missing" in shown
    rows = json.loads(ok("runs", "runs/whole", "--json").stdout)["runs"]
    assert [(row["path"], row["state"]) for row in rows] == [("runs/whole", "finished")]
    assert refused("runs", "nowhere").startswith(
        "nowhere: no such folder; expected a folder with runs, by default runs/"
    )


def test_nothing_is_imported(folder: Path) -> None:
    toml = folder / "whole" / "recipe.toml"
    toml.write_text(toml.read_text().replace('name = "fedavg"', 'name = "a_plug_in:Mine"'))
    Path("a_plug_in.py").write_text("raise SystemExit")
    assert sparsona.list_runs().runs[-1].method == "a_plug_in:Mine"
    assert "a_plug_in" not in sys.modules


def test_the_headline_is_shown_in_its_unit(folder: Path) -> None:
    path = folder / "whole"
    accuracy = json.loads((path / "summary.json").read_text())["accuracy"]
    assert "┃ accuracy % ┃" in (shown := ok("runs").stdout)
    assert f" {100 * accuracy:.2f} │" in shown
    toml = (path / "recipe.toml").read_text()
    (path / "recipe.toml").write_text(toml.replace('loss = "cross_entropy"', 'loss = "mse"'))
    (path / "summary.json").write_text('{"rmse": 1.25}')
    whole = sparsona.list_runs().runs[-1]
    assert (whole.state, whole.headline, whole.score) == ("finished", "rmse", 1.25)
    assert "headline" in (shown := ok("runs").stdout)  # runs of several: each names its own
    assert "RMSE 1.25 │" in shown
    (path / "recipe.toml").write_text(toml.replace('headline = ""', 'headline = "-a_plug_in:cost"'))
    (path / "summary.json").write_text('{"cost": 3.5}')
    assert "┃ cost ┃" in (shown := ok("runs", "runs/whole").stdout)
    assert "│  3.5 │" in shown
