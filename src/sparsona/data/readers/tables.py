"""Tables: columns of numbers and texts become inputs, by what the training samples know of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from sparsona.core.samples import Prepare
from sparsona.data.arrays import class_labels, text_labels
from sparsona.data.config import DataConfig
from sparsona.data.dataset import CLIENT, DataError, Dataset, Target
from sparsona.data.encoding import Encoding, Scale
from sparsona.data.readers.encoding_file import encoding_of
from sparsona.data.readers.table_inputs import checked_size, encoded, learnt

_TEST = "test"  # the column that marks test rows unless it is something else


@dataclass(frozen=True, eq=False)
class TableColumn:
    """A column: floats with NaN, or texts with "", where a value is missing."""

    values: np.ndarray  # float64 [n] or str [n]
    whole: bool = False  # numbers: whether the file has whole numbers only
    ids: np.ndarray | None = None  # numbers that name a class or a client: int64 or str [n], exactly as in the file
    truth: bool = False  # numbers: whether the file has true and false only

    @property
    def text(self) -> bool:
        """Whether it holds texts and not numbers."""
        return self.values.dtype.kind == "U"

    @property
    def names(self) -> np.ndarray:
        """What names classes or clients, exactly: texts or whole numbers, which floats would merge from 2**53 on."""
        if self.ids is not None:
            return self.ids
        return self.values if self.text else self.values.astype(np.int64)

    @property
    def missing(self) -> np.ndarray:
        """Where values are missing."""
        lacks: np.ndarray = self.values == "" if self.text else np.isnan(self.values)
        return lacks

    @property
    def not_numbers(self) -> np.ndarray:
        """Which of its texts are there, but are not numbers."""
        return np.array([not _is_number(text) for text in self.values.tolist()], np.bool_) & ~self.missing

    def at(self, rows: np.ndarray) -> TableColumn:
        """Some rows of it."""
        return TableColumn(self.values[rows], self.whole, None if self.ids is None else self.ids[rows])

    def followed_by(self, other: TableColumn) -> TableColumn:
        """The column with the rows of another below."""
        ids = None
        if self.ids is not None and other.ids is not None:
            ids = np.concatenate([self.ids, other.ids])  # a text on one side makes texts of both
        return TableColumn(np.concatenate([self.values, other.values]), self.whole and other.whole, ids)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def exact(values: Sequence[str | int]) -> np.ndarray:
    """Whole numbers of a file as int64, or as texts if one is not written plainly ("007") or does not fit."""
    texts = [str(value) for value in values]
    try:
        numbers = np.array([int(text) for text in texts], np.int64)
    except OverflowError:
        return np.array(texts)
    plain = all(str(number) == text for number, text in zip(numbers.tolist(), texts, strict=True))
    return numbers if plain else np.array(texts)


@dataclass(frozen=True)
class TableRoles:
    """What the columns of a table are for."""

    labels: tuple[str, ...]
    client: str | None
    features: tuple[str, ...]
    test: str | None  # marks test rows
    maybe: bool  # whether the test column is one only if it holds true and false, and else one like others
    encoding: Encoding | None  # of a file

    @property
    def used(self) -> set[str]:
        """The columns that are read."""
        return {*self.labels, *self.features, *(name for name in (self.client, self.test) if name)}

    def named(self, column: str) -> bool:
        """Whether its values name classes or clients, and must be kept exactly."""
        return column in self.labels or column == self.client

    def as_text(self, column: str) -> bool:
        """Whether an encoding file has categories for it, so that "7" is one too."""
        form = None if self.encoding is None else self.encoding.columns.get(column)
        return form is not None and not isinstance(form, Scale) and column in self.features

    def fix_of_texts(self, column: str, config: DataConfig) -> str | None:
        """What a user can do about texts among numbers in a column; None if texts may be meant there."""
        if column in self.labels:
            if config.target == "class" or isinstance(config.classes, tuple):
                return None
            if config.target is not None or len(self.labels) > 1:
                return "correct the value"
            return 'correct the value, or set data.target = "class" if the column holds names of classes'
        if column in self.features and self.encoding is None:
            return "correct the value, or list the column's categories in a data.encoding file"
        return None


def from_columns(
    where: str,
    columns: Mapping[str, TableColumn],
    config: DataConfig,
    *,
    train: int | None = None,
    numbers: np.ndarray | None = None,
) -> Dataset:
    """A data set from columns, of which the first ``train`` rows are for training, or those that a column marks.

    Errors name rows by ``numbers``, by default from 1.

    Numbers are standardised with the mean and standard deviation of the training samples of all clients. Texts
    become one input for each value that the training samples have, so that an unseen value is all zeros. With
    data.encoding both are as the file says, and an unseen value is an error.
    """
    return with_rows(where, columns, config, train=train, numbers=numbers)[0]


def with_rows(
    where: str,
    columns: Mapping[str, TableColumn],
    config: DataConfig,
    *,
    train: int | None = None,
    numbers: np.ndarray | None = None,
) -> tuple[Dataset, np.ndarray]:
    """The data set of ``from_columns``, and which row each of its samples is."""
    if not columns or not len(next(iter(columns.values())).values):
        raise DataError(f"{where}: no rows; expected at least one")
    known = roles(where, list(columns), config)
    labels, who = known.labels, known.client
    rows = np.arange(len(columns[labels[0]].values))
    numbers = rows + 1 if numbers is None else numbers
    marks = _marks(where, known, columns, numbers, parts=train is not None)
    features = tuple(name for name in known.features if marks is None or name != known.test)
    if not features:
        raise DataError(
            f"{where}: no columns besides {', '.join(map(repr, columns))}; expected at least one input column"
        )
    for name in (*labels, *([who] if who else ())):
        lacks = columns[name].missing
        if lacks.any():
            raise DataError(f"{where}, row {numbers[lacks.argmax()]}: no value in column {name!r}")
    lacking = {name: columns[name].missing for name in features if columns[name].missing.any()}
    if lacking and config.missing is None:
        name, lacks = min(lacking.items(), key=lambda item: int(item[1].argmax()))
        raise DataError(
            f'{where}, row {numbers[lacks.argmax()]}: no value in column {name!r}; set data.missing = "mean" '
            'to replace missing values, or "drop" to drop their rows'
        )
    if lacking and config.missing == "drop":
        whole = ~np.any(list(lacking.values()), axis=0)
        if not whole.any():
            raise DataError(
                f'{where}: data.missing: "drop" leaves no row, as each lacks a value; use "mean", '
                "or fewer data.features"
            )
        train = None if train is None else int(whole[:train].sum())
        rows = np.flatnonzero(whole)
    if marks is not None:
        tested = marks[rows]
        rows, train = np.concatenate([rows[~tested], rows[tested]]), int((~tested).sum())
        if not train:
            raise DataError(f"{where}: column {known.test!r} marks every row as a test row; expected rows to train on")
    for name in features:
        values = columns[name].values
        if not columns[name].text and np.isinf(values).any():
            raise DataError(
                f"{where}, row {numbers[np.isinf(values).argmax()]}: infinite value in column {name!r}; "
                "expected finite numbers"
            )
    target, y, names = _labels(where, {name: columns[name].at(rows) for name in labels}, config, numbers[rows])
    keys = {}
    if who is not None:
        column = columns[who].at(rows)
        if not column.text and not column.whole:
            raise DataError(f"{where}: column {who!r} has fractions; expected ints or strings as clients")
        keys[CLIENT] = column.names
        if marks is not None and (strange := ~np.isin(column.names[train:], column.names[:train])).any():
            at = int(train or 0) + int(strange.argmax())
            raise DataError(
                f"{where}, row {numbers[rows[at]]}: a test row of {column.names[at]!s}, who has no training rows"
            )
    inputs = {name: columns[name].values[rows] for name in features}
    count = len(rows) if train is None else train
    raw = Dataset(
        *(where, torch.empty(len(rows), 0), torch.from_numpy(y), count, names, (0,), Prepare(), keys),
        target=target,
    )

    def encode(training: np.ndarray) -> Dataset:
        fixed = None if known.encoding is None else checked_size(where, known.encoding, len(rows))
        encoding = learnt(where, inputs, training) if fixed is None else replace(fixed, classes=())
        file = None if fixed is None else config.encoding
        x = torch.from_numpy(encoded(where, inputs, encoding, numbers[rows], file))
        return replace(raw, x=x, shape=(encoding.width,), encode=None, encoding=encoding)

    return replace(raw, encode=encode), rows


def _marks(
    where: str, known: TableRoles, columns: Mapping[str, TableColumn], numbers: np.ndarray, *, parts: bool
) -> np.ndarray | None:
    """Which rows are test rows, if a column says so."""
    if known.test is None or (known.maybe and (parts or not columns[known.test].truth)):
        return None
    if parts:
        raise DataError(f"{where}: has a part test already; leave data.test = {known.test!r} out")
    column = columns[known.test]
    marks = np.char.lower(column.values) if column.text else column.values
    wrong = ~np.isin(marks, ("0", "1", "false", "true") if column.text else (0, 1))
    if wrong.any():
        at = int(wrong.argmax())
        value = str(column.values[at]) if column.text else f"{column.values[at]:g}"
        raise DataError(
            f"{where}, row {numbers[at]}: {value} in column {known.test!r}; expected 0, or 1 for a test row"
        )
    test_rows: np.ndarray = column.values == 1
    return test_rows


def roles(where: str, columns: Sequence[str], config: DataConfig) -> TableRoles:
    """The columns to predict, the one that names clients, the inputs, and the one that marks test rows."""
    labels = config.label or "label"
    labels = (labels,) if isinstance(labels, str) else labels
    who = config.client or (CLIENT if CLIENT in columns else None)
    encoding = encoding_of(config)
    asked = (
        ("label", labels),
        ("client", (who,) if who else ()),
        ("features", config.features or ()),
        ("test", (config.test,) if config.test else ()),
    )
    for field, names in asked:
        for name in names:
            if name not in columns:
                raise DataError(
                    f"{where}: data.{field}: no column {name!r}; expected one of {', '.join(map(repr, columns))}"
                )
    if who in labels:
        raise DataError(f"{where}: column {who!r} is both data.label and data.client; expected different columns")
    if config.test is not None and config.test in (*labels, who, *(config.features or ())):
        raise DataError(f"{where}: column {config.test!r} marks test rows; it cannot be a label, a client or a feature")
    features = config.features or tuple(name for name in columns if name not in (*labels, who, config.test))
    if both := [name for name in features if name in labels]:
        raise DataError(f"{where}: column {both[0]!r} is both in data.label and in data.features; remove it from one")
    if encoding is not None:
        features = _known_features(where, columns, config, encoding)
    if not features:
        raise DataError(
            f"{where}: no columns besides {', '.join(map(repr, columns))}; expected at least one input column"
        )
    test, maybe = config.test, False
    if test is None and config.features is None and _TEST in columns and _TEST not in (*labels, who):
        maybe = encoding is None or _TEST not in encoding.columns
        test = _TEST if maybe else None
    return TableRoles(labels, who, features, test, maybe, encoding)


def _known_features(where: str, columns: Sequence[str], config: DataConfig, encoding: Encoding) -> tuple[str, ...]:
    """The inputs of an encoding file, in its order."""
    known = tuple(encoding.columns)
    if not known:
        raise DataError(f"{config.encoding}: has no columns, which a table such as {where} needs")
    if config.features is not None and set(config.features) != set(known):
        raise DataError(
            f"{config.encoding}: has the columns {', '.join(known)}, data.features has {', '.join(config.features)}; "
            "leave data.features out"
        )
    for name in known:
        if name not in columns:
            raise DataError(f"{where}: no column {name!r}, which {config.encoding} has; expected all of its columns")
    return known


def _labels(
    where: str, columns: Mapping[str, TableColumn], config: DataConfig, numbers: np.ndarray
) -> tuple[Target, np.ndarray, tuple[str, ...]]:
    """What is predicted; ``numbers`` are the rows that errors name."""
    several = len(columns) > 1
    target = config.target or _guessed(columns)
    if target == "tokens":
        raise DataError(
            f'{where}: data.target: "tokens" is not allowed for a table; expected "class", "labels" or "number"'
        )
    if target == "class":
        if several:
            raise DataError(
                f'{where}: data.label has {len(columns)} columns; expected one for target "class", or set data.target'
            )
        ((name, column),) = columns.items()
        return target, *_classes(where, name, column, config.classes, numbers)
    for name, column in columns.items():
        if column.text:
            at = int(column.not_numbers.argmax())
            raise DataError(f"{where}, row {numbers[at]}: {column.values[at]!s} in column {name!r}; expected numbers")
    values = np.stack([column.values for column in columns.values()], axis=1)
    if not np.isfinite(values).all():
        at = int((~np.isfinite(values).all(1)).argmax())
        raise DataError(
            f"{where}, row {numbers[at]}: infinite value in a column of data.label; expected finite numbers"
        )
    if target == "labels":
        wrong = ~np.isin(values, (0, 1))
        if wrong.any():
            row, at = np.argwhere(wrong)[0]
            name = list(columns)[at]
            raise DataError(
                f"{where}, row {numbers[row]}: {values[row, at]:g} in column {name!r}; expected a label of 0 or 1"
            )
        return target, values.astype(np.float32), tuple(columns)
    return target, (values if several else values[:, 0]).astype(np.float32), ()


def _guessed(columns: Mapping[str, TableColumn]) -> Target:
    each = list(columns.values())
    if len(each) == 1:
        return "class" if each[0].text or each[0].whole else "number"
    return "labels" if all(not c.text and np.isin(c.values, (0, 1)).all() for c in each) else "number"


def _classes(
    where: str, name: str, column: TableColumn, classes: int | tuple[str, ...] | None, numbers: np.ndarray
) -> tuple[np.ndarray, tuple[str, ...]]:
    """A column as classes: whole numbers below a given count, given names, or all values that occur, in their order."""
    if not column.text and not column.whole and (odd := (column.values % 1 != 0) | (abs(column.values) >= 2**53)).any():
        at = int(odd.argmax())
        raise DataError(
            f"{where}, row {numbers[at]}: {column.values[at]:g} in column {name!r}; expected an int as class"
        )
    values = column.names
    if isinstance(classes, int) and values.dtype.kind != "U":
        return class_labels(where, values, classes, lambda at: f"row {numbers[at]} of column {name!r}")
    return text_labels(
        *(where, f"column {name!r}", values, classes),
        place=lambda at, text: f", row {numbers[at]}: {text} in column {name!r}",
    )
