"""A run's folder: what was asked, what happened round by round, what came of it; nothing in it depends on the clock.

``recipe.toml`` (every default written out), ``run.json`` (versions, seed, model), ``rounds.jsonl`` and
``clients.jsonl`` (appended as they happen), ``summary.json`` (last of all: a run that has it is finished),
``figures/``, ``models/`` on request, ``state/`` (server and client values at the end, the shared model that was tuned
and its round, and what each peer told last), and ``timing.jsonl``, the one file that differs from run to run. While it
runs, ``state.sqlite`` holds the checkpoint.
Of a real fleet there is ``fleet.jsonl``, what happened besides, and ``state/versions.json`` instead of client values.
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
from typing import Any

from sparsona.config import Recipe, RecipeError, check, tables, to_toml
from sparsona.engines.files import write


class RunError(ValueError):
    """A folder that is not what was asked for: not a run, not finished, or already taken."""


def vacant(path: Path) -> None:
    """Raise RunError unless a run may be written into this folder: it is new, or holds nothing yet."""
    try:
        if not path.exists():
            above = next(p for p in path.absolute().parents if p.exists())
            if not above.is_dir():
                raise RunError(f"cannot write into {path}: {above} is a file")
        elif not path.is_dir():
            raise RunError(f"cannot write into {path}: it is a file")
        # a run that was killed while its folder was made leaves no recipe.toml, which is written last
        elif any(p.name != "run.json" and p.suffix != ".part" for p in path.iterdir()):
            what = "it is not empty; choose another folder"
            if any((path / name).is_file() for name in ("recipe.toml", "plan.json")):
                again = f"sparsona resume {shlex.quote(str(path))}"
                what = f"it holds a run already; choose another folder, or go on with it: {again}"
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
                raise RunError(f"{path} is shorter than its checkpoint says: it was changed by someone else")
            self._file.truncate(size)

    def add(self, *rows: dict[str, Any]) -> None:
        """Append rows."""
        lines = (json.dumps(plain(r), separators=(",", ":"), allow_nan=False) for r in rows)
        self._file.write("".join(f"{line}\n" for line in lines).encode())
        self._file.flush()

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True)
class Run:
    """A run's folder, read back."""

    path: Path

    @staticmethod
    def create(path: Path, recipe: Recipe, about: dict[str, Any]) -> Run:
        """A new folder for a run; it is one once it has its recipe.toml."""
        vacant(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            write(path / "run.json", json.dumps(about, indent=1) + "\n")
            write(path / "recipe.toml", to_toml(tables(recipe)))
        except OSError as error:
            raise RunError(f"cannot write into {path}: {error.strerror}") from error
        return Run(path)

    @staticmethod
    def open(path: str | Path) -> Run:
        """An existing run."""
        path = Path(path)
        if not (path / "recipe.toml").is_file():
            raise RunError(f"{path} is not a run folder: it has no recipe.toml")
        return Run(path)

    @property
    def finished(self) -> bool:
        """Whether the run is complete."""
        return (self.path / "summary.json").is_file()

    @cached_property
    def recipe(self) -> Recipe:
        """The resolved recipe."""
        file = self.path / "recipe.toml"
        try:
            return check(tomllib.loads(file.read_text(encoding="utf-8")))
        except (RecipeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{file} is damaged: {error}") from error

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The figures at the end."""
        if not self.finished:
            raise RunError(f"{self.path} is not finished; go on with: sparsona resume {shlex.quote(str(self.path))}")
        file = self.path / "summary.json"
        try:
            summary: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if missing := [key for key in _SUMMARY if key not in summary]:
                raise RunError(f"{file} is damaged: {missing[0]} is missing")
        except (TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{file} is damaged: {error}") from error
        return summary

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """The rows of rounds.jsonl or clients.jsonl; a last line that was cut off is left out."""
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
                raise RunError(f"{self.path} is damaged: it has no {file.name}") from error

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """All rounds so far."""
        return list(self.rows("rounds"))

    @property
    def point(self) -> str:
        """The evaluation point that counts: the first that the recipe names."""
        return self.recipe.evaluate.points[0]

    def client_accuracy(self) -> dict[int, float]:
        """Each client's accuracy at its last evaluation; clients without test samples have none."""
        last: dict[int, float] = {}
        for row in self.rows("clients"):
            score = row.get(self.point)
            if score is not None and score["samples"]:
                last[row["client"]] = score["correct"] / score["samples"]
        return dict(sorted(last.items()))


_SUMMARY = ("name", "rounds", "point", "accuracy", "best", "total", "left_out")


def summarise(recipe: Recipe, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures at the end of a run, from its rows alone; None where no client was ever tested."""
    point = recipe.evaluate.points[0]
    evaluated = [r for r in rounds if r.get(point)]
    best = max(evaluated, key=lambda r: (r[point]["accuracy"], -r["round"]), default=None)
    summary: dict[str, Any] = {
        "name": recipe.name,
        "rounds": len(rounds),
        "point": point,
        "accuracy": evaluated[-1][point]["accuracy"] if evaluated else None,
        "best": None if best is None else {"round": best["round"], "accuracy": best[point]["accuracy"]},
        "total": rounds[-1]["total"],
        "left_out": sum(len(r["left_out"]) for r in rounds),
    }
    for p in recipe.evaluate.tested:
        summary[p] = next((r[p] for r in reversed(rounds) if r.get(p)), None)
    target = recipe.evaluate.target
    if target is not None:
        hit = next((r for r in evaluated if r[point]["accuracy"] >= target), None)
        reached = None if hit is None else {"round": hit["round"], **hit["total"]}
        summary["target"] = {"accuracy": target, "reached": reached}
    finite: dict[str, Any] = plain(summary)
    return finite
