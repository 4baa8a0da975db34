"""List run folders and their progress, without importing or computing anything."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from sparsona.api.folders import PLAN
from sparsona.experiment.checking import check_value
from sparsona.experiment.results import RunError
from sparsona.experiment.task import TaskConfig, metric_of
from sparsona.reports.display import Part, text_table

State = Literal["finished", "unfinished", "not begun", "damaged"]


@dataclass(frozen=True)
class RunInfo:
    """A summary of a run folder; None stands for values that its files do not have."""

    path: Path
    state: State
    recipe: str | None = None
    method: str | None = None
    rounds_done: int = 0
    rounds: int | None = None  # asked for
    headline: str | None = None  # the metric that decides what is best
    score: float | None = None  # the headline of a finished run
    changed: datetime | None = None  # when its last round was written
    flaw: str = ""  # of a damaged folder

    def json(self) -> dict[str, Any]:
        """The run as plain values."""
        changed = None if self.changed is None else self.changed.isoformat(timespec="seconds")
        return asdict(self) | {"path": str(self.path), "changed": changed}


@dataclass(frozen=True, repr=False)
class RunList:
    """The run folders below a folder, by path."""

    folder: Path
    runs: tuple[RunInfo, ...]

    def __repr__(self) -> str:
        return f"RunList({len(self.runs)} runs in {str(self.folder)!r})"

    def __iter__(self) -> Iterator[RunInfo]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def json(self) -> dict[str, Any]:
        """The runs as plain values."""
        return {"folder": str(self.folder), "runs": [run.json() for run in self]}

    def render(self, width: int) -> Iterator[Part]:
        """A row per run, and a line per damaged folder."""
        if not self.runs:
            yield f"no runs in {self.folder}"
            return
        metrics = {metric_of(run.headline) for run in self if run.headline}
        headline = metrics.pop().heading if len(metrics) == 1 else "headline"
        columns = ("run", "method", "rounds", "state", headline, "last change")
        cells = (_cells(run, self.folder, named=headline == "headline") for run in self)
        yield text_table(columns, cells, right={"rounds", headline})
        for run in self:
            if run.flaw:
                yield f"{run.path} is damaged: {run.flaw}"


def list_runs(folder: str | Path = "runs") -> RunList:
    """List all run folders below a folder, including damaged ones. No plug-in is imported."""
    top = Path(folder)
    if not top.is_dir():
        raise RunError(f"{top}: no such folder; expected a folder with runs, by default runs/")
    runs: dict[Path, RunInfo] = {}
    for file in (*top.rglob("recipe.toml"), *top.rglob("rounds.jsonl")):
        runs.setdefault(file.parent, _look(file.parent))
    for file in top.rglob(PLAN):
        for path in _planned(file):
            runs.setdefault(path, RunInfo(path, "not begun"))
    return RunList(top, tuple(runs[path] for path in sorted(runs)))


def _look(path: Path) -> RunInfo:
    """What the files of a run folder say."""
    try:
        return _read(path)
    except FileNotFoundError as error:
        return RunInfo(path, "damaged", flaw=f"{Path(error.filename).name} is missing")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return RunInfo(path, "damaged", flaw=f"{type(error).__name__} {error}")


def _read(path: Path) -> RunInfo:
    recipe = tomllib.loads((path / "recipe.toml").read_text(encoding="utf-8"))
    journal, summary = path / "rounds.jsonl", path / "summary.json"
    finished = summary.is_file()
    begun = finished or journal.is_file()
    task: TaskConfig = check_value(TaskConfig, recipe.get("task", {}), "task")
    score = json.loads(summary.read_text(encoding="utf-8"))[task.main.key] if finished else None
    rounds_done = journal.read_bytes().count(b"\n") if begun else 0
    if finished and rounds_done < recipe["rounds"]:
        raise ValueError(f"finished with {rounds_done} of {recipe['rounds']} rounds")
    return RunInfo(
        path,
        "finished" if finished else "unfinished",
        str(recipe["name"]),
        str(recipe["method"]["name"]),
        rounds_done,
        int(recipe["rounds"]),
        task.main.source or task.main.key,
        None if score is None else float(score),
        datetime.fromtimestamp((journal if begun else path / "recipe.toml").stat().st_mtime),
    )


def _planned(file: Path) -> list[Path]:
    """The runs that a folder of several was made for; none if its plan cannot be read."""
    try:
        return [file.parent / str(name) for name in json.loads(file.read_text(encoding="utf-8"))]
    except ValueError:
        return []


def _cells(run: RunInfo, folder: Path, named: bool) -> tuple[str, ...]:
    asked = "" if run.rounds is None else f"{run.rounds_done}/{run.rounds}"
    score = ""
    if run.headline is not None and run.score is not None:
        metric = metric_of(run.headline)
        score = f"{metric.title} {metric.text(run.score, 2)}" if named else metric.cell(run.score)
    changed = "" if run.changed is None else f"{run.changed:%Y-%m-%d %H:%M}"
    name = run.path.name if run.path == folder else str(run.path.relative_to(folder))
    return name, run.method or "", asked, run.state, score, changed


__all__ = ["RunInfo", "RunList", "list_runs"]
