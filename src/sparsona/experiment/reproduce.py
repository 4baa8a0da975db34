"""Tables of papers: the file that describes one, the runs it takes, and which cell each run is for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import TypeAdapter

from sparsona.core.fields import Natural, Positive
from sparsona.experiment.checking import check_dataclass, check_name, check_value, nearest, shown
from sparsona.experiment.overrides import parse_override
from sparsona.experiment.plan import rejoin_names, resolve, variants
from sparsona.experiment.recipe import Recipe, RecipeError
from sparsona.experiment.recipe_files import TABLES, read_toml, recipes_dir
from sparsona.experiment.results import RunError

TABLE = "table.json"  # beside plan.json: which cell each run is for

# -- the file --------------------------------------------------------------------------------------------------------

Point = Literal["before", "after", "shared", "finished", "unfinished", "newcomers"]
Score = Literal["accuracy", "accuracy by sample", "bottom decile"]
Metric = Literal[
    Score, "rounds to accuracy", "bytes", "paper bytes", "busiest node", "flops", "last round flops", "note"
]
Figure = float | Literal["-"]  # what is printed in a cell, if anything is


@dataclass(frozen=True, kw_only=True)
class PaperColumn:
    """A setting: a recipe and what is changed in it, or another figure of the runs of another column."""

    name: str
    recipe: str = ""  # a recipe's name, or a file beside the table's
    setting: str = ""  # of a recipe with a [sweep]: what follows the row's variant in the names of its variants
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
    target: float | None = None  # in percent, for metric "rounds to accuracy"
    note: str | None = None  # which one, for metric "note", at the end
    unit: Positive = 1.0  # what the figures printed are counted in, 1e9 for GB; accuracy is in percent
    seeds: tuple[Natural, ...] = (1,)
    columns: tuple[PaperColumn, ...]
    rows: tuple[PaperRow, ...]

    def __post_init__(self) -> None:
        for where, names in (("columns", [c.name for c in self.columns]), ("rows", [r.name for r in self.rows])):
            if not names:
                raise ValueError(f"{where}: [] is not allowed; expected a list of at least one table")
            for i, name in enumerate(names):
                check_name(f"{where}[{i}].name", name)  # runs are called after it
                if name.casefold() in [other.casefold() for other in names[:i]]:
                    raise ValueError(
                        f"{where}[{i}].name: {shown(name)} is given twice; expected a different name for each"
                    )
        for i, row in enumerate(self.rows):
            for what, values in (("printed", row.printed), ("deviation", row.deviation)):
                if len(values) != len(self.columns) and (values or what == "printed"):
                    least = f'expected {len(self.columns)}, one per column, or "-" for none'
                    raise ValueError(f"rows[{i}].{what} has {len(values)} values; {least}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(
                f"seeds: {shown(list(self.seeds))} is not allowed; expected a list of different ints, at least one"
            )
        for i, column in enumerate(self.columns):
            if bool(column.recipe) == bool(column.of):
                raise ValueError(f"columns[{i}] ({column.name}): expected one of recipe and of")
            if column.of and column.changes:
                raise ValueError(
                    f"columns[{i}].changes is not allowed: {column.name} uses the runs of {column.of} without changes"
                )
            if column.of and column.of not in (own := [c.name for c in self.columns if c.recipe]):
                what = f"columns[{i}].of: no column {shown(column.of)} with a recipe"
                raise ValueError(f"{what}{nearest(column.of, own)}")
        scored = self.metric in get_args(Score)
        asked = any(column.metric or column.point for column in self.columns) or any(row.point for row in self.rows)
        reached = self.metric == "rounds to accuracy"
        if reached and (any(column.metric for column in self.columns) or self.unit != 1):
            raise ValueError('metric: "rounds to accuracy" does not use unit and metrics of columns; remove them')
        if not scored and (((asked or self.point is not None) and not reached) or self.round != "last"):
            raise ValueError(f"metric: {shown(self.metric)} does not use point and round; remove them")
        if scored and self.unit != 1:
            raise ValueError(f"unit: {self.unit} is not allowed; accuracy is in percent, leave unit out")
        if reached != (self.target is not None and 0 < self.target <= 100):
            raise ValueError(
                f"target: {shown(self.target)} is not allowed; "
                'expected an accuracy in percent, in (0, 100], if metric is "rounds to accuracy", and none otherwise'
            )
        if (self.metric == "note") != (self.note is not None):
            raise ValueError(
                f"note: {shown(self.note or '')} is not allowed; "
                'expected a field of the summary if metric is "note", and no note otherwise'
            )

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
    raise RecipeError(f"table {shown(name)}: not found{nearest(name, table_names())}")


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
            raise RecipeError(f"{key}: {shown(items)} is not allowed; expected a list of tables")
        built[key] = tuple(check_value(kind, item, f"{key}[{i}]") for i, item in enumerate(items))
    return check_dataclass(PaperTable, {k: v for k, v in raw.items() if k not in built}, **built)


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
        raise RecipeError(f"rounds: {rounds} is not allowed; expected an int >= 1")
    table = load_table(name)
    chosen = _chosen(table, only)
    recipes: dict[str, Recipe] = {}
    cells: dict[str, tuple[str, str]] = {}
    for i, column in enumerate(table.columns):
        if column.of:
            continue
        try:
            for row, seed, recipe in _column(table, column, seeds or table.seeds, rounds):
                if (column.name, row.name) in chosen:
                    run = f"{column.name} {row.name} seed={seed}"
                    check_name("run", run)
                    recipes[run], cells[run] = recipe, (column.name, row.name)
        except RecipeError as error:
            raise RecipeError(f"{find_table(name)}: columns[{i}] ({column.name}): {error}") from error
    return recipes, Reproduction(table, cells, rounds)


def _column(
    table: PaperTable, column: PaperColumn, seeds: Sequence[int], rounds: int | None
) -> Iterator[tuple[PaperRow, int, Recipe]]:
    """The runs of a column, row by row."""
    common = [parse_override(text) for text in column.changes]
    own = [[parse_override(text) for text in row.changes] for row in table.rows]
    raw = variants(column.recipe, keys=[keys for keys, _ in (*common, *(c for each in own for c in each))])
    for i, (row, changes) in enumerate(zip(table.rows, own, strict=True)):
        variant = " ".join(filter(None, [row.variant, column.setting])) or None
        if variant not in raw:
            if None in raw:
                raise RecipeError(f"rows[{i}].variant: {shown(variant)} not found; {column.recipe} has no variants")
            given = " is missing" if variant is None else f": {shown(variant)} not found"
            raise RecipeError(f"rows[{i}].variant{given} in {column.recipe}{nearest(variant or '', map(str, raw))}")
        for seed in seeds:
            overrides = [(["seed"], seed), *([] if rounds is None else [(["rounds"], rounds)])]
            recipe = resolve(raw, variant, [*common, *changes, *overrides])
            for each in table.columns:
                if column.name in (each.name, each.of):
                    _tested(table.cell(each, row).point, column.recipe, recipe)
            yield row, seed, recipe


def _tested(point: Point | None, name: str, recipe: Recipe) -> None:
    """Raise RecipeError if a recipe does not test at this point."""
    if point == "newcomers":
        if not recipe.fleet.hold_out:
            raise RecipeError(
                f'point: "newcomers" needs held-out clients, and {name} has none; set changes = ["fleet.hold_out=0.2"]'
            )
    elif point is not None and point not in recipe.evaluate.tested:
        points = ", ".join(recipe.evaluate.points)
        wanted = f"changes = [\"evaluate.points=['{'finished' if point == 'unfinished' else point}']\"]"
        raise RecipeError(f"point: {shown(point)} is not evaluated by {name}, only {points}; set {wanted}")


def _chosen(table: PaperTable, only: Sequence[str]) -> set[tuple[str, str]]:
    """The cells of the columns and rows that are named; a column also by what its name begins with, up to a dash."""
    columns: set[str] = set()
    rows: set[str] = set()
    for word in rejoin_names(only, {name for r in table.rows for name in (r.name, r.variant) if name}):
        across = {c.of or c.name for c in table.columns if f"{c.name}-".startswith(f"{word}-")}
        down = {r.name for r in table.rows if word in (r.name, r.variant)}
        if not across and not down:
            names = [*(c.name for c in table.columns), *(r.name for r in table.rows)]
            raise RecipeError(f"only: no such column or row {shown(word)}{nearest(word, names)}")
        columns |= across
        rows |= down
    return {
        (c.name, r.name)
        for c in table.columns
        for r in table.rows
        if c.name in (columns or {c.name}) and r.name in (rows or {r.name})
    }


__all__ = [
    "TABLE",
    "Metric",
    "PaperColumn",
    "PaperRow",
    "PaperTable",
    "Point",
    "Reproduction",
    "Score",
    "find_table",
    "load_table",
    "plan",
    "table_names",
]
