"""A run's folder: its recipe, its records by round, and its summary; nothing in it depends on the clock.

``recipe.toml`` (every default written out), ``run.json`` (versions, seed, model), ``rounds.jsonl`` and
``clients.jsonl`` (appended as they happen), ``summary.json`` (last of all: a run that has it is finished), ``models/``
on request, ``encoding.json`` (of your own tables and texts: how they became numbers),
``state/`` (server and client values at the end, the shared model that was tuned and its round, each
peer's last message, and in ``progress.json`` what else more rounds need), and ``timing.jsonl``, the one file that
differs from run to run. While it runs, ``state.sqlite`` holds the checkpoint. ``figures/`` are drawn after the run; one
of them needs ``vectors.safetensors``.
A real fleet has ``fleet.jsonl``, its events, and ``state/versions.json`` instead of client values.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tomli_w
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from sparsona.core.text import SUGGESTIONS
from sparsona.data import Encoding, write_encoding
from sparsona.engines.atomic_file import write
from sparsona.experiment.recipe import Recipe, RecipeError, check, tables
from sparsona.experiment.task import ACCURACY, Metric

if TYPE_CHECKING:
    import pandas

Row = dict[str, Any]  # a line of the records
ENCODING = "encoding.json"  # how tables and texts of users became numbers
VECTORS = "vectors.safetensors"  # what each client has learnt, where a figure is to be drawn of it


class RunError(ValueError):
    """Raised for a folder that cannot be used: not a run, not finished, damaged, or already taken."""


def _flaw(path: Path) -> str:
    """Why a path without a recipe.toml is no run folder, and which runs it has instead."""
    if not path.exists():
        return "is not a run folder: no such folder"
    if not path.is_dir():
        return "is not a run folder: it is a file"
    inside = sorted(file.parent for file in path.glob("*/recipe.toml"))
    if not inside:
        return "is not a run folder: it has no recipe.toml"
    names = ", ".join(shlex.quote(str(run)) for run in inside[:SUGGESTIONS])
    more = f" and {len(inside) - SUGGESTIONS} more" if len(inside) > SUGGESTIONS else ""
    return f"holds several runs; give one of them: {names}{more}"


def vacant(path: Path) -> None:
    """Raise RunError unless the folder is new or empty, so that a run can be written into it."""
    try:
        if not path.exists():
            above = next(p for p in path.absolute().parents if p.exists())
            if not above.is_dir():
                raise RunError(f"cannot write into {path}: {above} is a file")
        elif not path.is_dir():
            raise RunError(f"cannot write into {path}: it is a file")
        # a run that was killed while its folder was made leaves no recipe.toml, which is written last
        elif any(p.name not in ("run.json", ENCODING) and p.suffix != ".part" for p in path.iterdir()):
            what = "the folder is not empty; choose another folder"
            if any((path / name).is_file() for name in ("recipe.toml", "plan.json")):
                again = f"sparsona resume {shlex.quote(str(path))}"
                what = f"the folder already holds a run; choose another folder, or resume it with: {again}"
            raise RunError(f"cannot write into {path}: {what}")
    except OSError as error:
        raise RunError(f"cannot write into {path}: {error.strerror}") from error


def plain(value: Any) -> Any:
    """A value as JSON knows it: what is not a finite number becomes None."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def _line(row: Row) -> str:
    """A row as JSON; one that holds numbers which are not finite is the exception, and only that is copied."""
    try:
        return _ENCODER.encode(row)
    except ValueError:
        return _ENCODER.encode(plain(row))


class Journal:
    """A file of JSON lines that only grows, and can be cut back to where a checkpoint knew it."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        self._file = path.open("ab")
        if size is None:  # what a crash cut off in the middle of a line is nothing
            size = path.read_bytes().rfind(b"\n") + 1
            self._file.truncate(size)
        else:
            if size > os.fstat(self._file.fileno()).st_size:
                raise RunError(f"{path} is shorter than recorded in the checkpoint: another program changed it")
            self._file.truncate(size)

    def add(self, *rows: dict[str, Any]) -> None:
        """Append rows."""
        self._file.write("".join(f"{_line(row)}\n" for row in rows).encode())
        self._file.flush()

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True)
class Memory:
    """The records of a run that has no folder."""

    recipe: Recipe
    rounds: list[Row]
    clients: list[Row]
    summary: dict[str, Any]
    names: tuple[str, ...] = ()  # of clients, if the data name them


class Run:
    """A run: its recipe, its rows by round and by client, and its summary, read from its folder or kept in memory."""

    def __init__(self, path: str | Path | None, memory: Memory | None = None) -> None:
        self._path = None if path is None else Path(path)
        self._memory = memory

    def __repr__(self) -> str:
        where = "in memory" if self._path is None else repr(str(self._path))
        return f"Run({where})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and (self is other or (self._path is not None and self._path == other._path))

    def __hash__(self) -> int:
        return id(self) if self._path is None else hash(self._path)

    @property
    def path(self) -> Path:
        """The run's folder."""
        if self._path is None:
            raise RunError("this run has no folder; run it again with out=...")
        return self._path

    @staticmethod
    def in_memory(
        recipe: Recipe, rounds: list[Row], clients: list[Row], summary: dict[str, Any], names: tuple[str, ...] = ()
    ) -> Run:
        """A finished run without a folder."""
        return Run(None, Memory(recipe, [plain(row) for row in rounds], clients, summary, names))

    @staticmethod
    def create(path: Path, recipe: Recipe, about: dict[str, Any], encoding: Encoding | None = None) -> Run:
        """Create a run folder; it counts as a run once it has a recipe.toml."""
        vacant(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            write(path / "run.json", json.dumps(about, indent=1) + "\n")
            if encoding is not None:
                write_encoding(encoding, path / ENCODING)
            write(path / "recipe.toml", tomli_w.dumps(tables(recipe)))
        except OSError as error:
            raise RunError(f"cannot write into {path}: {error.strerror}") from error
        return Run(path)

    @staticmethod
    def open(path: str | Path) -> Run:
        """Open an existing run."""
        path = Path(path)
        if not (path / "recipe.toml").is_file():
            raise RunError(f"{path} {_flaw(path)}")
        return Run(path)

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return self._memory is not None or (self.path / "summary.json").is_file()

    @cached_property
    def recipe(self) -> Recipe:
        """The resolved recipe; a plug-in method stays a name with fields, because reading imports nothing."""
        if self._memory is not None:
            return self._memory.recipe
        file = self.path / "recipe.toml"
        try:
            return check(tomllib.loads(file.read_text(encoding="utf-8")), imports=False)
        except (RecipeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{file} is damaged: {error}") from error

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The results at the end of the run."""
        if self._memory is not None:
            return self._memory.summary
        if not self.finished:
            raise RunError(f"{self.path} is not finished; resume with: sparsona resume {shlex.quote(str(self.path))}")
        file = self.path / "summary.json"
        try:
            summary: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if missing := [key for key in (*_SUMMARY, self.headline.key) if key not in summary]:
                raise RunError(f"{file} is damaged: {missing[0]} is missing")
        except (TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{file} is damaged: {error}") from error
        return summary

    @cached_property
    def client_names(self) -> tuple[str, ...]:
        """The names of clients by number, empty if the data do not name them."""
        if self._memory is not None:
            return self._memory.names
        try:
            return tuple(json.loads((self.path / "run.json").read_text(encoding="utf-8")).get("client_names", ()))
        except (OSError, ValueError, TypeError, AttributeError):  # of an older version, or damaged: names are extra
            return ()

    @cached_property
    def not_in_flops(self) -> tuple[str, ...]:
        """The parameters and operations of the model that FLOPs do not include; empty for a run in memory."""
        if self._memory is not None:
            return ()
        try:
            return tuple(json.loads((self.path / "run.json").read_text(encoding="utf-8")).get("not_in_flops", ()))
        except (OSError, ValueError, TypeError, AttributeError):  # damaged: the numbers are there
            return ()

    def rows(self, name: Literal["rounds", "clients", "timing", "fleet"]) -> Iterator[Row]:
        """The rows of one of the journals; an incomplete last line is skipped.

        Rows of clients have their names, and accuracies beside the counts that the journal holds.
        """
        if name != "clients":
            yield from self._rows(name)
            return
        names = self.client_names
        for row in self._rows(name):
            named = {"round": row["round"], "client": row["client"], "name": names[row["client"]]} if names else {}
            yield named | {key: _with_accuracy(value) for key, value in row.items()}

    def _rows(self, name: str) -> Iterator[Row]:
        if self._memory is not None:
            yield from {"rounds": self._memory.rounds, "clients": self._memory.clients}.get(name, [])
            return
        file = self.path / f"{name}.jsonl"
        try:
            with file.open("rb") as f:
                for number, line in enumerate(f, start=1):
                    if line.endswith(b"\n"):
                        try:
                            yield dict(json.loads(line))
                        except (TypeError, ValueError) as error:
                            raise RunError(f"{file} is damaged in line {number}: {error}") from error
        except FileNotFoundError as error:
            if self.finished:  # one that has just begun has no rows yet
                raise RunError(f"{self.path} is damaged: {file.name} is missing") from error

    @cached_property
    def rounds(self) -> list[Row]:
        """One row per round so far."""
        return list(self.rows("rounds"))

    @cached_property
    def clients(self) -> list[Row]:
        """One row per client and round so far."""
        return list(self.rows("clients"))

    def to_pandas(self, rows: Literal["rounds", "clients"] = "rounds") -> pandas.DataFrame:
        """The rows as a table, with dotted columns such as ``before.accuracy``; needs pandas."""
        try:
            import pandas
        except ImportError as error:
            raise RunError(
                f"to_pandas needs pandas, which is not installed: pip install 'sparsona[pandas]' ({error})"
            ) from error
        return pandas.json_normalize(list(self.rows(rows)))

    @property
    def point(self) -> str:
        """The main evaluation point: the first one in the recipe."""
        return self.recipe.evaluate.points[0]

    def vectors(self) -> tuple[dict[int, Tensor], NDArray[Any]] | None:
        """A vector of what each client has learnt, and label counts [clients, classes]; None if not written."""
        file = self.path / VECTORS
        if not file.is_file():
            return None
        tensors = load_file(file)
        labels = tensors.pop("labels").numpy()
        return {int(name.removeprefix("client-")): vector for name, vector in tensors.items()}, labels

    @property
    def headline(self) -> Metric:
        """The headline metric, which selects the best round; accuracy by default."""
        return self.recipe.task.main

    @property
    def tested(self) -> bool:
        """Whether a finished run has a headline: some client was tested, and the metric is defined for it."""
        return self.summary[self.headline.key] is not None

    @property
    def why_untested(self) -> str:
        """Why a finished run has no headline: no client was tested, or the metric is undefined for all of them."""
        row = self.summary[self.point]
        if row is None:
            return "no client was tested"
        measured = dict.fromkeys((ACCURACY, *self.recipe.task.measured))
        defined = [f"{m.title} {m.text(row[m.key])}" for m in measured if row.get(m.key) is not None]
        others = f" ({', '.join(defined)})" if defined else ""
        return f"{self.headline.title} is undefined for every client{others}"

    def client_scores(self, metric: Metric | None = None) -> dict[int, float]:
        """The headline (or another metric) of each client at its last evaluation; clients without one are left out."""
        last: dict[int, float | None] = {}
        metric = self.headline if metric is None else metric
        for row in self.rows("clients"):
            score = row.get(self.point)
            if score is not None and score["samples"]:
                last[row["client"]] = score.get(metric.key)
        return {k: value for k, value in sorted(last.items()) if value is not None}

    def client_accuracy(self) -> dict[int, float]:
        """Each client's accuracy at its last evaluation; clients without test samples have none."""
        return self.client_scores(ACCURACY)


def _with_accuracy(score: Any) -> Any:
    """A client's score with its accuracy; whatever else a row holds as it is."""
    if not isinstance(score, dict) or score.get("correct") is None or not score.get("samples"):
        return score
    return {"accuracy": score["correct"] / score["samples"], **score}


_SUMMARY = ("name", "rounds", "point", "best", "total", "left_out")


def summarise(recipe: Recipe, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The results at the end of a run, computed from its rows; None where no client was tested."""
    point, main = recipe.evaluate.points[0], recipe.task.main
    evaluated = [r for r in rounds if r.get(point)]
    best = max(evaluated, key=lambda r: (main.rank(r[point][main.key]), -r["round"]), default=None)
    summary: dict[str, Any] = {
        "name": recipe.name,
        "rounds": len(rounds),
        "point": point,
        main.key: evaluated[-1][point][main.key] if evaluated else None,
        "best": None if best is None else {"round": best["round"], main.key: best[point][main.key]},
        "total": rounds[-1]["total"],
        "left_out": sum(len(r["left_out"]) for r in rounds),
    }
    for p in recipe.evaluate.tested:
        summary[p] = next((r[p] for r in reversed(rounds) if r.get(p)), None)
    target = recipe.evaluate.target
    if target is not None:
        hit = next((r for r in evaluated if main.reached(r[point][main.key], target)), None)
        reached = None if hit is None else {"round": hit["round"], **hit["total"]}
        summary["target"] = {main.key: target, "reached": reached}
    finite: dict[str, Any] = plain(summary)
    return finite
