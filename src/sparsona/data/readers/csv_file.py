"""CSV files: a header, then rows; a column is numbers if all of its values are."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsona.data.config import DataConfig
from sparsona.data.dataset import DataError, Dataset
from sparsona.data.readers.tables import TableColumn, exact, from_columns, roles

_MISSING = {"", "na", "n/a", "nan", "null", "none"}
_TRUTH = {"true": "1", "false": "0"}


@dataclass(frozen=True, eq=False)
class CsvTable:
    """The header and the rows of a CSV file, as texts."""

    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: np.ndarray  # where each row begins, as an editor counts lines

    def columns(self, config: DataConfig) -> dict[str, TableColumn]:
        """The columns that the configuration uses, by name."""
        known = roles(str(self.path), self.header, config)
        columns = {
            name: _column(self.texts(name), named=known.named(name), as_text=known.as_text(name))
            for name in self.header
            if name in known.used
        }
        for name, column in columns.items():
            if column.text and (fix := known.fix_of_texts(name, config)):
                self._check_texts(name, column, fix)
        return columns

    def texts(self, name: str) -> list[str]:
        """A column as it is written, without spaces around values."""
        at = self.header.index(name)
        return [row[at].strip() for row in self.rows]

    def _check_texts(self, name: str, column: TableColumn, fix: str) -> None:
        """Refuse a column of texts if more than half of its values are numbers: the others are likely mistakes."""
        odd = column.not_numbers
        values = int((~column.missing).sum())
        numbers = values - int(odd.sum())
        if 2 * numbers > values:
            at = int(odd.argmax())
            raise DataError(
                f"{self.path}, row {self.lines[at]}: {column.values[at]!s} in column {name!r}, "
                f"where {numbers} of {values} values are numbers; {fix}"
            )


def read_csv(path: Path, config: DataConfig) -> Dataset:
    """A data set from a CSV file; errors name rows by their line in the file."""
    table = read_table(path)
    return from_columns(str(path), table.columns(config), config, numbers=table.lines)


def read_table(path: Path) -> CsvTable:
    """The rows of a CSV file; blank lines are left out."""
    rows, lines, last = [], [], 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            sample = file.read(1 << 16)
            file.seek(0)
            reader = csv.reader(file, delimiter=_delimiter(sample), strict=True)
            for row in reader:
                if row:
                    rows.append(row)
                    lines.append(last + 1)
                last = reader.line_num
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, row {_undecodable(path)}: text that is not UTF-8; expected UTF-8: save the file in this encoding"
        ) from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV: {error}") from error
    if not rows:
        raise DataError(f"{path}: the file is empty; expected a header line and rows")
    header = [name.strip() for name in rows[0]]
    for at, name in enumerate(header):
        if not name:
            raise DataError(f"{path}: column {at + 1} has no name; expected names in the first line")
        if name in header[:at]:
            raise DataError(f"{path}: two columns have the name {name!r}; rename one")
    if len(rows) == 1:
        raise DataError(f"{path}: the file has a header, but no rows")
    for line, row in zip(lines, rows, strict=True):
        if len(row) != len(header):
            raise DataError(f"{path}, row {line}: {len(row)} values; expected {len(header)}, one per column")
    return CsvTable(path, header, rows[1:], np.array(lines[1:]))


def _undecodable(path: Path) -> int:
    """The first line of a file that is not UTF-8."""
    content = path.read_bytes()
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return content.count(b"\n", 0, error.start) + 1
    return 1


def _delimiter(sample: str) -> str:
    """A semicolon or a tab if the first line has more of them than commas."""
    first = sample.partition("\n")[0]
    return max(",;\t", key=first.count)


def is_truth(texts: list[str]) -> bool:
    """Whether a column is true and false only."""
    return all(text.lower() in _TRUTH for text in texts)


def _column(texts: list[str], *, named: bool, as_text: bool = False) -> TableColumn:
    """Numbers, with true and false as 1 and 0, if all values are; else texts. ``named`` keeps exact names too."""
    lower = [text.lower() for text in texts]
    present = [text not in _MISSING for text in lower]
    plain = [_TRUTH.get(text, text) for text in lower]
    if as_text:
        return TableColumn(np.array([text if there else "" for text, there in zip(texts, present, strict=True)]))
    try:
        values = np.array([float(text) if there else np.nan for text, there in zip(plain, present, strict=True)])
    except ValueError:
        return TableColumn(np.array([text if there else "" for text, there in zip(texts, present, strict=True)]))
    if not any(present):
        return TableColumn(values)
    whole = all(text.lstrip("+-").isdigit() for text, there in zip(plain, present, strict=True) if there)
    ids = (
        exact([text if there else "0" for text, there in zip(plain, present, strict=True)]) if named and whole else None
    )
    return TableColumn(values, whole, ids, is_truth(texts))
