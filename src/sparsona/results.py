"""A run's folder: what was asked, what happened round by round, and what came of it; nothing in it depends on the clock.

``recipe.toml`` (every default written out), ``run.json`` (versions, seed, model), ``rounds.jsonl`` and
``clients.jsonl`` (appended as they happen), ``summary.json`` (last of all: a run that has it is finished), ``figures/``,
``models/`` on request, ``state/`` (server and client values at the end), and ``timing.jsonl``, the one file that differs
from run to run. While it runs, ``state.sqlite`` holds the checkpoint.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sparsona.config import Recipe, RecipeError, check, tables, to_toml


class RunError(ValueError):
    """A folder that is not what was asked for: not a run, not finished, or already taken."""


def write(path: Path, data: bytes | str) -> None:
    """Replace a file as a whole or not at all."""
    part = path.with_name(path.name + ".part")
    raw = data.encode() if isinstance(data, str) else data
    with part.open("wb") as f:
        f.write(raw)
        f.flush()
        os.fsync(f.fileno())
    part.replace(path)


class Journal:
    """A file of JSON lines that only grows, and can be cut back to where a checkpoint knew it."""

    def __init__(self, path: Path, size: int | None = None) -> None:
        self.path = path
        self._file = path.open("ab")
        if size is not None:
            if size > os.fstat(self._file.fileno()).st_size:
                raise RunError(f"{path} is shorter than its checkpoint says: it was changed by someone else")
            self._file.truncate(size)

    def add(self, *rows: dict[str, Any]) -> None:
        """Append rows."""
        self._file.write(b"".join(json.dumps(r, separators=(",", ":")).encode() + b"\n" for r in rows))
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
        """A new folder for a run."""
        if path.exists() and any(path.iterdir()):
            state = "finished" if (path / "summary.json").exists() else "unfinished"
            raise RunError(
                f"{path} holds a{'n' if state[0] == 'u' else ''} {state} run: choose another folder or resume it"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            write(path / "recipe.toml", to_toml(tables(recipe)))
            write(path / "run.json", json.dumps(about, indent=1) + "\n")
        except OSError as error:
            raise RunError(f"cannot write the run folder {path}: {error.strerror}") from error
        return Run(path)

    @staticmethod
    def open(path: Path) -> Run:
        """An existing run."""
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
        import tomllib

        try:
            return check(tomllib.loads((self.path / "recipe.toml").read_text()))
        except (RecipeError, tomllib.TOMLDecodeError) as error:
            raise RunError(f"{self.path / 'recipe.toml'}: {error}") from error

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The figures at the end."""
        if not self.finished:
            raise RunError(f"{self.path} is not finished: sparsona resume {self.path}")
        summary: dict[str, Any] = json.loads((self.path / "summary.json").read_text())
        return summary

    def rows(self, name: str) -> Iterator[dict[str, Any]]:
        """The rows of rounds.jsonl or clients.jsonl; a last line that was cut off is left out."""
        with (self.path / f"{name}.jsonl").open() as f:
            for line in f:
                if line.endswith("\n"):
                    yield json.loads(line)

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """All rounds so far."""
        return list(self.rows("rounds"))

    @property
    def point(self) -> str:
        """The evaluation point that counts: the first that the recipe names."""
        return self.recipe.evaluate.points[0]

    def client_accuracy(self) -> dict[int, float]:
        """Each client's accuracy at its last evaluation."""
        last: dict[int, float] = {}
        for row in self.rows("clients"):
            score = row.get(self.point)
            if score is not None:
                last[row["client"]] = score["correct"] / score["samples"]
        return dict(sorted(last.items()))


def summarise(recipe: Recipe, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures at the end of a run, from its rows alone."""
    point = recipe.evaluate.points[0]
    evaluated = [r for r in rounds if r.get(point)]
    last = evaluated[-1]
    best = max(evaluated, key=lambda r: (r[point]["accuracy"], -r["round"]))
    summary: dict[str, Any] = {
        "name": recipe.name,
        "rounds": len(rounds),
        "point": point,
        "accuracy": last[point]["accuracy"],
        "best": {"round": best["round"], "accuracy": best[point]["accuracy"]},
        "total": last["total"],
        "left_out": sum(len(r["left_out"]) for r in rounds),
    }
    for p in recipe.evaluate.points:
        summary[p] = next((r[p] for r in reversed(rounds) if r.get(p)), None)
    target = recipe.evaluate.target
    if target is not None:
        hit = next((r for r in evaluated if r[point]["accuracy"] >= target), None)
        reached = None if hit is None else {"round": hit["round"], **hit["total"]}
        summary["target"] = {"accuracy": target, "reached": reached}
    return summary
