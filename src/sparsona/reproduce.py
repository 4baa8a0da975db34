"""Whole tables of papers: which runs they take, and what came of them beside what is printed, cell by cell."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import TypeAdapter

from sparsona.config import (
    TABLES,
    Recipe,
    RecipeError,
    assembled,
    changed,
    checked,
    named,
    nearest,
    override,
    read_toml,
    recipes_dir,
    shown,
    variants,
    whole,
)
from sparsona.core.fields import Natural, Positive
from sparsona.report import evaluated
from sparsona.results import Run, RunError, write
from sparsona.sheet import Column, Row, Sheet
from sparsona.sweep import moments

TABLE = "table.json"  # beside plan.json: which cell each run is for

# -- the file --------------------------------------------------------------------------------------------------------

Point = Literal["before", "after", "shared", "finished", "unfinished", "newcomers"]
Score = Literal["accuracy", "accuracy by sample", "bottom decile"]
Metric = Literal[Score, "bytes", "paper bytes", "flops", "note"]
Figure = float | Literal["-"]  # what is printed in a cell, if anything is


@dataclass(frozen=True, kw_only=True)
class PaperColumn:
    """A setting: a recipe and what is changed in it, or another figure of the runs of another column."""

    name: str
    recipe: str = ""  # a recipe's name, or a file beside the table's
    changes: tuple[str, ...] = ()  # key=value, as on the command line
    of: str | None = None  # instead of a recipe: the column whose runs these are
    metric: Score | None = None  # the table's if left out
    point: Point | None = None  # the row's if left out


@dataclass(frozen=True, kw_only=True)
class PaperRow:
    """A method: a variant of the recipes, and the figures that are printed for it."""

    name: str
    variant: str | None = None  # none for recipes without variants
    changes: tuple[str, ...] = ()
    point: Point | None = None  # the table's if left out
    printed: tuple[Figure, ...]  # one for each column
    deviation: tuple[Figure, ...] = ()  # what is printed behind a ±


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table of a paper: rows of methods, columns of settings, and what is measured."""

    title: str
    source: str  # the paper, and the table's number in it
    metric: Metric = "accuracy"
    point: Point | None = None  # of accuracy: the recipe's first if left out
    round: Literal["last", "best"] = "last"  # of accuracy
    note: str | None = None  # which one, for metric "note", at the end
    unit: Positive = 1.0  # what the figures printed are counted in, 1e9 for GB; accuracy is in percent
    seeds: tuple[Natural, ...] = (1,)
    columns: tuple[PaperColumn, ...]
    rows: tuple[PaperRow, ...]

    def __post_init__(self) -> None:
        for where, names in (("columns", [c.name for c in self.columns]), ("rows", [r.name for r in self.rows])):
            if not names:
                raise ValueError(f"{where} = []: must be at least one")
            for i, name in enumerate(names):
                named(f"{where}[{i}].name", name)  # runs are called after it
                if name.casefold() in [other.casefold() for other in names[:i]]:
                    raise ValueError(f"{where}[{i}].name = {shown(name)}: given twice; each must have its own")
        for i, row in enumerate(self.rows):
            for what, values in (("printed", row.printed), ("deviation", row.deviation)):
                if len(values) != len(self.columns) and (values or what == "printed"):
                    least = f'must be {len(self.columns)}, one for each column, "-" for none'
                    raise ValueError(f"rows[{i}].{what} has {len(values)} values: {least}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds = {shown(list(self.seeds))}: must be at least one, each another")
        for i, column in enumerate(self.columns):
            if bool(column.recipe) == bool(column.of):
                raise ValueError(f"columns[{i}] ({column.name}): must have either a recipe, or be of another column")
            if column.of and column.changes:
                raise ValueError(f"columns[{i}].changes: {column.name} has the runs of {column.of}, as they are there")
            if column.of and column.of not in (own := [c.name for c in self.columns if c.recipe]):
                what = f"columns[{i}].of = {shown(column.of)}: no such column with a recipe"
                raise ValueError(f"{what}{nearest(column.of, own)}")
        scored = self.metric in get_args(Score)
        asked = any(column.metric or column.point for column in self.columns) or any(row.point for row in self.rows)
        if not scored and (asked or self.point is not None or self.round != "last"):
            raise ValueError(f"metric = {shown(self.metric)}: point and round are for accuracy only")
        if scored and self.unit != 1:
            raise ValueError(f"unit = {self.unit}: accuracy is in percent and takes no unit")
        if (self.metric == "note") != (self.note is not None):
            raise ValueError(f'note = {shown(self.note or "")}: must be given for metric "note", and for no other')

    def cell(self, column: PaperColumn, row: PaperRow) -> PaperTable:
        """The table with what one of its cells measures."""
        return replace(self, metric=column.metric or self.metric, point=column.point or row.point or self.point)


def table_names() -> list[str]:
    """The tables that come with Sparsona: paper/table."""
    base = recipes_dir()
    files = (p.relative_to(base) for p in base.rglob("*.toml") if p.parent.name == TABLES)
    return sorted((file.parent.parent / file.stem).as_posix() for file in files)


def find_table(name: str) -> Path:
    """A table's file, by path or by name."""
    paper, _, table = name.rpartition("/")
    for path in (Path(name), recipes_dir() / paper / TABLES / f"{table}.toml"):
        if path.is_file():
            return path
    raise RecipeError(f"table {shown(name)}: no such file or table{nearest(name, table_names())}")


def load_table(name: str) -> PaperTable:
    """A table whose every field is checked, and whose recipes are those beside it or those of ours."""
    path = find_table(name)
    try:
        table = _table(read_toml(path))
    except ValueError as error:
        text = str(error)
        raise RecipeError(text if text.startswith(f"{path}: ") else f"{path}: {text}") from error
    beside = {column.recipe: path.parent / column.recipe for column in table.columns}
    columns = (
        replace(c, recipe=str(file) if (file := beside[c.recipe]).is_file() else c.recipe) for c in table.columns
    )
    return replace(table, columns=tuple(columns))


def _table(raw: Mapping[str, Any]) -> PaperTable:
    built: dict[str, Any] = {}
    for key, kind in (("columns", PaperColumn), ("rows", PaperRow)):
        items = raw.get(key, [])
        if not isinstance(items, list):
            raise RecipeError(f"{key} = {shown(items)}: must be a list of tables")
        built[key] = tuple(checked(kind, item, f"{key}[{i}]") for i, item in enumerate(items))
    return assembled(PaperTable, {k: v for k, v in raw.items() if k not in built}, **built)


# -- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reproduction:
    """Which cell of a table each run is for, by the names of their folders."""

    table: PaperTable
    runs: Mapping[str, tuple[str, str]]  # column and row
    rounds: int | None = None  # instead of the recipes' own

    def json(self) -> str:
        """The reproduction as a file."""
        table = TypeAdapter(PaperTable).dump_python(self.table, mode="json", exclude_none=True)
        return json.dumps({"table": table, "rounds": self.rounds, "runs": self.runs}, indent=1) + "\n"

    @staticmethod
    def read(folder: Path) -> Reproduction:
        """The reproduction that a folder holds."""
        file = folder / TABLE
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))
            runs = {str(name): (str(column), str(row)) for name, (column, row) in raw["runs"].items()}
            return Reproduction(_table(raw["table"]), runs, raw["rounds"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{file} is damaged: {type(error).__name__} {error}") from error


def plan(
    name: str, only: Sequence[str] = (), seeds: Sequence[int] = (), rounds: int | None = None
) -> tuple[dict[str, Recipe], Reproduction]:
    """The checked runs of a table, all or those of ``only`` some columns and rows, by the names of their folders."""
    if rounds is not None and rounds < 1:
        raise RecipeError(f"rounds = {rounds}: must be a whole number, at least 1")
    table = load_table(name)
    chosen = _chosen(table, only)
    found: dict[str, Recipe] = {}
    cells: dict[str, tuple[str, str]] = {}
    for i, column in enumerate(table.columns):
        if column.of:
            continue
        try:
            for row, seed, recipe in _column(table, column, seeds or table.seeds, rounds):
                if (column.name, row.name) in chosen:
                    run = f"{column.name} {row.name} seed={seed}"
                    named("run", run)
                    found[run], cells[run] = recipe, (column.name, row.name)
        except RecipeError as error:
            raise RecipeError(f"{find_table(name)}: columns[{i}] ({column.name}): {error}") from error
    return found, Reproduction(table, cells, rounds)


def _column(
    table: PaperTable, column: PaperColumn, seeds: Sequence[int], rounds: int | None
) -> Iterator[tuple[PaperRow, int, Recipe]]:
    """The runs of a column, row by row."""
    common = [override(text) for text in column.changes]
    own = [[override(text) for text in row.changes] for row in table.rows]
    raw = variants(column.recipe, keys=[keys for keys, _ in (*common, *(c for each in own for c in each))])
    for i, (row, changes) in enumerate(zip(table.rows, own, strict=True)):
        if row.variant not in raw:
            if None in raw:
                raise RecipeError(f"rows[{i}].variant = {shown(row.variant)}: {column.recipe} has no variants")
            given = "is missing" if row.variant is None else f"= {shown(row.variant)} is no variant"
            raise RecipeError(f"rows[{i}].variant {given}: {column.recipe}{nearest(row.variant or '', map(str, raw))}")
        for seed in seeds:
            more = [(["seed"], seed), *([] if rounds is None else [(["rounds"], rounds)])]
            recipe = changed(raw, row.variant, [*common, *changes, *more])
            for each in table.columns:
                if column.name in (each.name, each.of):
                    _tested(table.cell(each, row).point, column.recipe, recipe)
            yield row, seed, recipe


def _tested(point: Point | None, name: str, recipe: Recipe) -> None:
    """Raise RecipeError if a recipe does not test at this point."""
    if point == "newcomers":
        if not recipe.fleet.hold_out:
            raise RecipeError(f'point = "newcomers": {name} has none; changes = ["fleet.hold_out=0.2"]')
    elif point is not None and point not in recipe.evaluate.tested:
        points = ", ".join(recipe.evaluate.points)
        wanted = f"changes = [\"evaluate.points=['{'finished' if point == 'unfinished' else point}']\"]"
        raise RecipeError(f"point = {shown(point)}: {name} is tested {points} only; {wanted}")


def _chosen(table: PaperTable, only: Sequence[str]) -> set[tuple[str, str]]:
    """The cells of the columns and rows that are named; a column also by what its name begins with, up to a dash."""
    columns: set[str] = set()
    rows: set[str] = set()
    for word in whole(only, {name for r in table.rows for name in (r.name, r.variant) if name}):
        across = {c.of or c.name for c in table.columns if f"{c.name}-".startswith(f"{word}-")}
        down = {r.name for r in table.rows if word in (r.name, r.variant)}
        if not across and not down:
            names = [*(c.name for c in table.columns), *(r.name for r in table.rows)]
            raise RecipeError(f"only {shown(word)}: no such column or row{nearest(word, names)}")
        columns |= across
        rows |= down
    return {
        (c.name, r.name)
        for c in table.columns
        for r in table.rows
        if c.name in (columns or {c.name}) and r.name in (rows or {r.name})
    }


# -- the result ------------------------------------------------------------------------------------------------------


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


def result(made: Reproduction, runs: Iterable[Run], out: Path | None = None) -> CellSheet:
    """The cells that finished runs are for, with CSV and Markdown in the folder ``out`` if one is given."""
    table = made.table
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        if run.path.name not in made.runs:
            raise RunError(f"{run.path} is not of this table: {TABLE} does not name it")
        found.setdefault(made.runs[run.path.name], []).append(run)
    others = _others(table, found)
    recipes = {column.name: column.recipe for column in table.columns}
    rows = []
    untested: dict[str, None] = {}
    for i, column in enumerate(table.columns):
        for row in table.rows:
            if members := found.get((column.of or column.name, row.name)):
                cell = table.cell(column, row)
                values = [_value(cell, run) for run in members]
                untested |= {run.path.name: None for run, value in zip(members, values, strict=True) if value is None}
                told = _cell(column, row, i, [value for value in values if value is not None])
                told |= {"recipe": recipes[column.of or column.name]}
                rows.append(told | {point: _mean(cell, point, members) for point in others})
    digits = [_decimals(v) for row in rows for v in (row["printed"], row["printed_std"]) if v is not None]
    notes = tuple(_notes(made, rows, [*untested], {run.recipe.seed for each in found.values() for run in each}))
    sheet = CellSheet(tuple(rows), notes, (), max(digits, default=2), others)
    if out is None or not rows:
        return sheet
    try:
        out.mkdir(parents=True, exist_ok=True)
        write(out / "table.csv", sheet.csv())
        write(out / "table.md", f"# {table.source}\n\n{table.title}\n\n{sheet.markdown()}")
    except OSError as error:
        raise RunError(f"cannot write the table into {out}: {error.strerror}") from error
    return replace(sheet, files=(out / "table.csv", out / "table.md"))


def _others(table: PaperTable, found: Mapping[tuple[str, str], Sequence[Run]]) -> tuple[Point, ...]:
    """The points at which all runs were tested, but for the one that all cells are compared at."""
    if table.metric not in get_args(Score):
        return ()
    runs = [run for members in found.values() for run in members]
    own = {
        table.cell(column, row).point or run.point
        for column in table.columns
        for row in table.rows
        for run in found.get((column.of or column.name, row.name), ())
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
    total = run.summary["total"]
    if table.metric in get_args(Score):
        point = table.point or run.point
        once = run.summary.get(point) if point == "newcomers" else None  # when all rounds are over
        scores = [once] if once else [r[point] for r in evaluated(run, point)]
        if not scores:
            return None
        score = max(scores, key=lambda s: s["accuracy"]) if table.round == "best" else scores[-1]
        return 100 * float(score[table.metric.replace(" ", "_")])
    if table.metric == "note":
        notes: dict[str, float] = next((r["notes"] for r in reversed(run.rounds) if r.get("notes")), {})
        if table.note not in notes:
            told = f"has {', '.join(notes)}" if notes else "has none"
            raise RunError(f"note = {shown(table.note)}: {run.path} {told}")
        return notes[table.note] / table.unit
    keys = {"bytes": ("down", "up"), "paper bytes": ("paper_down", "paper_up"), "flops": ("flops",)}[table.metric]
    return float(sum(total[key] for key in keys)) / table.unit


def _decimals(value: float) -> int:
    return len(f"{value:.10g}".partition(".")[2])


def _notes(made: Reproduction, rows: Sequence[Row], untested: Sequence[str], seeds: set[int]) -> Iterator[str]:
    if made.rounds is not None:
        yield f"rounds = {made.rounds} in every run instead of the recipes' own: this is not the setting of the paper"
    if seeds != set(made.table.seeds):
        given, asked = (", ".join(map(str, sorted(each))) for each in (seeds, made.table.seeds))
        yield f"seeds {given}, where the table asks for {asked}"
    if any(row["std"] is not None for row in rows):
        yield "± is the standard deviation over seeds"
    if untested:
        yield f"no client was ever tested in {', '.join(untested)}: left out"


__all__ = [
    "TABLE",
    "CellSheet",
    "PaperColumn",
    "PaperRow",
    "PaperTable",
    "Reproduction",
    "find_table",
    "load_table",
    "plan",
    "result",
    "table_names",
]
