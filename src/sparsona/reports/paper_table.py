"""The table of a reproduction: what the paper prints, what our runs reached, and the difference, cell by cell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import get_args

from sparsona.experiment.checking import shown
from sparsona.experiment.reproduce import TABLE, PaperColumn, PaperRow, PaperTable, Point, Reproduction, Score
from sparsona.experiment.results import Run, RunError, write
from sparsona.reports.costs import busiest
from sparsona.reports.run_rows import evaluated
from sparsona.reports.sheet import Column, Row, Sheet, latex_text, moments


@dataclass(frozen=True)
class CellSheet(Sheet):
    """One row per cell: what is printed, what came out, and the difference, in the units of the paper."""

    decimals: int = 2
    others: tuple[str, ...] = ()  # points that were tested besides the one that is compared

    def parts(self) -> tuple[list[Column], ...]:
        """What is shown of a cell."""
        who = [
            Column("setting", lambda r: str(r["column"]), words=True),
            Column("method", lambda r: str(r["row"]), words=True),
        ]
        return who, [
            Column("paper", lambda r: self._figure(r["printed"], r["printed_std"])),
            Column("ours", lambda r: self._figure(r["mean"], r["std"])),
            Column("difference", lambda r: self._figure(r["difference"], None, "+")),
            *(Column(f"ours {point}", partial(self._at, point)) for point in self.others),
            Column("seeds", lambda r: str(r["seeds"])),
        ]

    def _at(self, point: str, row: Row) -> str:
        return self._figure(row[point], None)

    def _figure(self, value: float | None, std: float | None, sign: str = "") -> str:
        if value is None:
            return "-"
        text = f"{value:{sign}.{self.decimals}f}"
        return text if std is None else f"{text} ± {std:.{self.decimals}f}"


def compare_with_paper(reproduction: Reproduction, runs: Iterable[Run], out: Path | None = None) -> CellSheet:
    """The cells that finished runs are for, with CSV, Markdown and LaTeX in the folder ``out`` if one is given."""
    table = reproduction.table
    runs_of: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.path.name not in reproduction.runs:
            raise RunError(f"{run.path} is not part of this table: {TABLE} does not list it")
        runs_of.setdefault(reproduction.runs[run.path.name], []).append(run)
    others = _others(table, runs_of)
    recipes = {column.name: column.recipe for column in table.columns}
    rows = []
    untested: dict[str, None] = {}
    for i, column in enumerate(table.columns):
        for row in table.rows:
            if members := runs_of.get((column.of or column.name, row.name)):
                cell = table.cell(column, row)
                values = [_value(cell, run) for run in members]
                untested |= {run.path.name: None for run, value in zip(members, values, strict=True) if value is None}
                line = _cell(column, row, i, [value for value in values if value is not None])
                line |= {"recipe": recipes[column.of or column.name]}
                rows.append(line | {point: _mean(cell, point, members) for point in others})
    digits = [_decimals(v) for row in rows for v in (row["printed"], row["printed_std"]) if v is not None]
    notes = tuple(
        _notes(reproduction, rows, [*untested], {run.recipe.seed for each in runs_of.values() for run in each})
    )
    sheet = CellSheet(tuple(rows), notes, (), max(digits, default=2), others)
    if out is None or not rows:
        return sheet
    try:
        out.mkdir(parents=True, exist_ok=True)
        write(out / "table.csv", sheet.csv())
        write(out / "table.md", f"# {table.source}\n\n{table.title}\n\n{sheet.markdown()}")
        write(out / "table.tex", f"% {latex_text(table.source)}: {latex_text(table.title)}\n{sheet.latex()}")
    except OSError as error:
        raise RunError(f"cannot write the table into {out}: {error.strerror}") from error
    return replace(sheet, files=tuple(out / f"table.{suffix}" for suffix in ("csv", "md", "tex")))


def _others(table: PaperTable, runs_of: Mapping[tuple[str, str], Sequence[Run]]) -> tuple[Point, ...]:
    """The points at which all runs were tested, but for the one that all cells are compared at."""
    if table.metric not in get_args(Score):
        return ()
    runs = [run for members in runs_of.values() for run in members]
    own = {
        table.cell(column, row).point or run.point
        for column in table.columns
        for row in table.rows
        for run in runs_of.get((column.of or column.name, row.name), ())
    }
    return tuple(p for p in get_args(Point) if own != {p} and all(p in run.recipe.evaluate.tested for run in runs))


def _mean(cell: PaperTable, point: Point, runs: Sequence[Run]) -> float | None:
    if cell.point == "newcomers":
        return None  # they are tested at no other
    values = [_value(replace(cell, point=point), run) for run in runs]
    return moments("value", [value for value in values if value is not None])["value_mean"]


def _cell(column: PaperColumn, row: PaperRow, place: int, values: Sequence[float]) -> Row:
    printed, deviation = (
        None if not each or each[place] == "-" else float(each[place]) for each in (row.printed, row.deviation)
    )
    of = moments("value", values)
    mean = of["value_mean"]
    return {
        "column": column.name,
        "row": row.name,
        "recipe": column.recipe,
        "variant": row.variant,
        "seeds": len(values),
        "printed": printed,
        "printed_std": deviation,
        "mean": mean,
        "std": of["value_std"],
        "difference": None if mean is None or printed is None else mean - printed,
    }


def _value(table: PaperTable, run: Run) -> float | None:
    """What a run comes to in the units of the table; None if no client was ever tested."""
    total, point = run.summary["total"], table.point or run.point
    if table.metric in get_args(Score):
        once = run.summary.get(point) if point == "newcomers" else None  # when all rounds are over
        scores = [once] if once else [r[point] for r in evaluated(run, point)]
        if not scores:
            return None
        score = max(scores, key=lambda s: s["accuracy"]) if table.round == "best" else scores[-1]
        return 100 * float(score[table.metric.replace(" ", "_")])
    if table.metric == "note":
        notes: dict[str, float] = next((r["notes"] for r in reversed(run.rounds) if r.get("notes")), {})
        if table.note not in notes:
            given = f"; allowed: {', '.join(notes)}" if notes else ", which has no notes"
            raise RunError(f"note: {shown(table.note)} not found in {run.path}{given}")
        return notes[table.note] / table.unit
    if table.metric == "rounds to accuracy":
        aim = (table.target or 0.0) / 100
        return next((float(r["round"]) for r in evaluated(run, point) if r[point]["accuracy"] >= aim), None)
    if table.metric == "busiest node":
        return busiest(run.rounds, run.clients) / table.unit
    if table.metric == "last round flops":
        last = run.rounds[-1]["flops"]
        return None if last is None else last / table.unit
    keys = {"bytes": ("down", "up"), "paper bytes": ("paper_down", "paper_up"), "flops": ("flops",)}[table.metric]
    if any(total[key] is None for key in keys):
        return None
    return float(sum(total[key] for key in keys)) / table.unit


def _decimals(value: float) -> int:
    return len(f"{value:.10g}".partition(".")[2])


def _notes(reproduction: Reproduction, rows: Sequence[Row], untested: Sequence[str], seeds: set[int]) -> Iterator[str]:
    rounds = reproduction.rounds
    if rounds is not None:
        yield f"all runs use rounds = {rounds} instead of the recipes' value; this is not the setting of the paper"
    if seeds != set(reproduction.table.seeds):
        actual, expected = (", ".join(map(str, sorted(each))) for each in (seeds, reproduction.table.seeds))
        yield f"the runs use seeds {actual}; the table asks for {expected}"
    if any(row["std"] is not None for row in rows):
        yield "± is the standard deviation over seeds"
    if untested:
        aim, flops = reproduction.table.target, reproduction.table.metric in ("flops", "last round flops")
        why = (
            f"{aim:g} % was not reached"
            if aim is not None
            else "FLOPs are unknown"
            if flops
            else "no client was tested"
        )
        yield f"left out, because {why}: {', '.join(untested)}"


__all__ = ["CellSheet", "compare_with_paper"]
