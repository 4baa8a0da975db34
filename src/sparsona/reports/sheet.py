"""Tables of results: the same rows for a terminal, as Markdown, LaTeX, CSV and JSON; rich is imported where used."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal

from sparsona.experiment.task import ACCURACY, Metric

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]

_LATEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    "“": "``",
    '"': "''",
    "[": "{[}",  # behind a line's end it would be an argument of that
    "*": "{*}",
    "±": "$\\pm$",
    "\n": " ",
}
UNKNOWN = "–"  # a value that a run does not know, as it is shown
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
            cells = {k: v if v is None or type(v) in (int, float) else as_text(v) for k, v in row.items()}
            writer.writerow(cells | (dict.fromkeys(late, "not reached") if row.get("target") is not None else {}))
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

    def latex(self) -> str:
        """The rows as a LaTeX table with the rules of booktabs, rounded as in Markdown, with the notes below it."""
        columns = [column for part in self.parts() for column in part]
        lines = [[column.title for column in columns], *([column.show(row) for column in columns] for row in self.rows)]
        head, *body = (f"{' & '.join(map(latex_text, line))} \\\\\n" for line in lines)
        notes = "".join(f"\n\\par\\smallskip Note: {latex_text(note)}\n" for note in self.notes)
        return (
            "% needs \\usepackage{booktabs}\n"
            f"\\begin{{tabular}}{{{''.join('l' if column.words else 'r' for column in columns)}}}\n"
            f"\\toprule\n{head}\\midrule\n{''.join(body)}\\bottomrule\n\\end{{tabular}}\n{notes}"
        )

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


def latex_text(text: str) -> str:
    """A text as LaTeX shows it, with every character that has a meaning there escaped."""
    text = re.sub(r'(^|[\s(\[=])"', r"\1“", text)
    sign = "$-$" if re.match(r"-\d", text) else ""  # of a number, not a hyphen
    return sign + "".join(_LATEX.get(c, c) for c in (text[1:] if sign else text))


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


def counted(number: float) -> str:
    """A number of things, or a mean of such with one decimal, with commas."""
    return f"{number:,.1f}".removesuffix(".0")


def scaled_amount(value: float | None, scale: float) -> str:
    """An amount in a unit, or a dash if it is not known."""
    return UNKNOWN if value is None else amount(value / scale)


def moments(name: str, values: Sequence[float]) -> Row:
    """Mean and standard deviation of some values, None where there are too few."""
    mean = fmean(values) if values else None
    return {f"{name}_mean": mean, f"{name}_std": stdev(values) if len(values) > 1 else None}


def number_ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers in short: 0-2, 5."""
    ranges: list[list[int]] = []
    for n in numbers:
        if ranges and n == ranges[-1][-1] + 1:
            ranges[-1][1:] = [n]
        else:
            ranges.append([n])
    return ", ".join("-".join(map(str, each)) for each in ranges)


def flop_unit(*numbers: float | None) -> tuple[float, str]:
    """The unit that shows the largest of some numbers of operations well; those that are not known do not count."""
    most = max((number for number in numbers if number is not None), default=0)
    for scale, unit in ((1e15, "PFLOP"), (1e12, "TFLOP")):
        if most >= 10 * scale:
            return scale, unit
    return (1e9, "GFLOP") if most >= 1e8 or most == 0 else (1e6, "MFLOP")


def target_columns(rows: Iterable[Row], main: Metric = ACCURACY) -> tuple[str, list[Column]]:
    """What a target is called in titles, "" if no row has one, and the column of targets where they differ."""
    targets = {row["target"] for row in rows}
    if targets == {None}:
        return "", []
    if len(targets) == 1:
        return goal_text(targets.pop(), main), []
    show = round_percent if main.share else "{:g}".format
    return "target", [Column(f"target{main.unit}", lambda r: "" if r["target"] is None else show(r["target"]))]


def goal_text(goal: float, main: Metric = ACCURACY) -> str:
    """A target as it is called in titles and legends."""
    return f"{round_percent(goal)} %" if main.share else f"{goal:g}"


__all__ = [
    "UNKNOWN",
    "Column",
    "Row",
    "Sheet",
    "amount",
    "as_text",
    "counted",
    "flop_unit",
    "goal_text",
    "latex_text",
    "moments",
    "number_ranges",
    "percent",
    "round_percent",
    "scaled_amount",
    "target_columns",
]
