"""Tables of results: the same rows for a terminal, as Markdown, CSV and JSON; rich is imported where it is used."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]

_NAME = 16  # characters that the first column is left in a table in one part


@dataclass(frozen=True)
class Column:
    """A title and how a row's value is shown under it."""

    title: str
    show: Callable[[Row], str]
    words: bool = False  # not a number


@dataclass(frozen=True)
class Sheet:
    """Rows in raw numbers, and what there is to say about them; subclasses choose what is shown of a row."""

    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()  # what was written

    def parts(self) -> tuple[list[Column], ...]:
        """The columns that set a row apart, then groups of others that are kept together where there is room."""
        raise NotImplementedError

    def json(self) -> list[Row]:
        """The rows as plain values, not rounded; None where there is no value."""
        return [dict(row) for row in self.rows]

    def csv(self) -> str:
        """The rows as comma-separated values, not rounded."""
        text = StringIO()
        writer = csv.DictWriter(text, list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            late = [k for k in row if k.endswith(("_to_target", "_to_target_mean")) and row[k] is None]
            told = {k: v if v is None or type(v) in (int, float) else as_text(v) for k, v in row.items()}
            writer.writerow(told | (dict.fromkeys(late, "not reached") if row.get("target") is not None else {}))
        return text.getvalue()

    def markdown(self) -> str:
        """The rows as a Markdown table, rounded for reading, with the notes below it."""
        columns = [column for part in self.parts() for column in part]
        lines = [
            [column.title for column in columns],
            ["---" if column.words else "---:" for column in columns],
            *([column.show(row).replace("|", "\\|") for column in columns] for row in self.rows),
        ]
        text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        return text + "".join(f"\nNote: {note}\n" for note in self.notes)

    def rich(self, width: int | None = None) -> Table:
        """The rows as a table for a terminal, with the notes below it; in parts if it is wider than ``width``."""
        from rich import get_console
        from rich.table import Table
        from rich.text import Text

        width = get_console().width if width is None else width
        who, *groups = self.parts()
        parts = [[*who, *(column for group in groups for column in group)]]
        if not self._fits(parts[0], width):
            parts = []
            for group in groups:
                parts.append([*who, group[0]])
                for column in group[1:]:
                    if not self._fits([*parts[-1], column], width):
                        parts.append([*who])
                    parts[-1].append(column)
        grid = Table.grid()
        for part in parts:
            grid.add_row(self._table(part, width))
        for note in self.notes:
            grid.add_row(Text(f"Note: {note}"))
        return grid

    def _table(self, columns: Sequence[Column], width: int) -> Table:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for column, space in zip(columns, self._widths(columns, width), strict=True):
            side: Literal["left", "right"] = "left" if column.words else "right"
            table.add_column(Text(column.title), justify=side, width=space, overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(column.show(row)) for column in columns))
        return table

    def _fits(self, columns: Sequence[Column], width: int) -> bool:
        first = columns[0]
        most = max(len(text) for text in (first.title, *map(first.show, self.rows)))
        return self._widths(columns, width)[0] >= min(_NAME, most)

    def _widths(self, columns: Sequence[Column], width: int) -> list[int]:
        """For each column its longest word, for the first what is left: rich itself would cut off a wide table."""
        shown = [[column.title, *(column.show(row) for row in self.rows)] for column in columns]
        spaces = []
        for column, texts in zip(columns[1:], shown[1:], strict=True):
            # a mean and its deviation stay on one line, and so does a name that is not long
            words = [word for text in texts for word in text.replace(" ± ", "_±_").split(" ")]
            names = [text for text in texts if column.words and len(text) <= _NAME]
            spaces.append(max(map(len, words + names)))
        left = width - sum(spaces) - 2 * len(columns)
        return [max(1, min(left, max(map(len, shown[0])))), *spaces]


def as_text(value: Any) -> str:
    """A value as it is shown: a text as it is, others as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def percent(share: float) -> str:
    """A share in percent, with two decimals."""
    return f"{100 * share:.2f}"


def round_percent(share: float) -> str:
    """A share that somebody chose, in percent, with no more decimals than it has."""
    return f"{100 * share:.6g}"


def amount(value: float) -> str:
    """One decimal, or three significant digits where that is more."""
    if value == 0:
        return "0"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:#.3g}"


def flop_unit(most: float) -> tuple[float, str]:
    """The unit that shows the largest of some numbers of operations well."""
    for scale, unit in ((1e15, "PFLOP"), (1e12, "TFLOP")):
        if most >= 10 * scale:
            return scale, unit
    return (1e9, "GFLOP") if most >= 1e8 or most == 0 else (1e6, "MFLOP")


def target_columns(rows: Iterable[Row]) -> tuple[str, list[Column]]:
    """What a target is called in titles, "" if no row has one, and the column that tells targets that differ."""
    targets = {row["target"] for row in rows}
    if targets == {None}:
        return "", []
    if len(targets) == 1:
        return f"{round_percent(targets.pop())} %", []
    return "target", [Column("target %", lambda r: "" if r["target"] is None else round_percent(r["target"]))]


__all__ = [
    "Column",
    "Row",
    "Sheet",
    "amount",
    "as_text",
    "flop_unit",
    "percent",
    "round_percent",
    "target_columns",
]
