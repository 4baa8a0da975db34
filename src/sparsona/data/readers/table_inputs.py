"""Columns of tables as inputs: numbers are standardised, texts become an input for each of their values."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from sparsona.data.dataset import DataError
from sparsona.data.encoding import Encoding, Scale

_MAX_INPUTS = 100_000  # columns after encoding; more is an identifier that was taken for a category
MAX_BYTES = 1 << 30  # of the inputs that texts become; more is an identifier, too


def learnt(where: str, columns: Mapping[str, np.ndarray], training: np.ndarray) -> Encoding:
    """The encoding of columns, float64 [n] or str [n], by what the training samples have."""
    forms: dict[str, Scale | tuple[str, ...]] = {
        name: _categories(values, training) if values.dtype.kind == "U" else _scale(values, training)
        for name, values in columns.items()
    }
    return checked_size(where, Encoding(forms), len(next(iter(columns.values()))) if columns else 0)


def checked_size(where: str, encoding: Encoding, rows: int) -> Encoding:
    """The encoding, unless so many rows would be too large with it; DataError names the column at fault."""
    known = {name: form for name, form in encoding.columns.items() if not isinstance(form, Scale)}
    texts = sum(map(len, known.values()))
    if encoding.width > _MAX_INPUTS and not known:
        raise DataError(f"{where}: {encoding.width:,} columns; expected at most {_MAX_INPUTS:,} in data.features")
    if encoding.width > _MAX_INPUTS or 4 * texts * rows > MAX_BYTES:
        name = max(known, key=lambda each: len(known[each]))
        size = f"{4 * texts * rows / (1 << 30):.1f} GiB as inputs of {rows:,} rows"
        raise DataError(
            f"{where}: column {name!r} has {len(known[name]):,} different strings, too many to encode ({size}, "
            f"expected at most {MAX_BYTES / (1 << 30):g}); leave it out of data.features"
        )
    return encoding


def encoded(
    where: str,
    columns: Mapping[str, np.ndarray],
    encoding: Encoding,
    numbers: np.ndarray,
    file: str | None = None,
) -> np.ndarray:
    """The inputs of columns, float32 [n, width].

    A text that the encoding does not know is all zeros, or with an encoding ``file`` an error that names one of the
    ``numbers`` of rows.
    """
    x = np.zeros((len(numbers), encoding.width), np.float32)
    at = 0
    for name, form in encoding.columns.items():
        values = columns[name]
        if isinstance(form, Scale):
            if values.dtype.kind == "U":
                row, odd = _first_text(values, numbers)
                raise DataError(f"{where}, row {row}: {odd!s} in column {name!r}; expected a number, as {file} has")
            if form.std:
                x[:, at] = (np.where(np.isnan(values), form.mean, values) - form.mean) / form.std
            at += 1
            continue
        if values.dtype.kind != "U":
            raise DataError(f"{where}: column {name!r} has numbers; {file} has texts there: {_some(form)}")
        order = np.argsort(np.array(form)) if form else np.zeros(0, np.int64)
        ordered = np.array(form)[order] if form else np.zeros(0, "U1")
        places = np.searchsorted(ordered, values).clip(max=max(len(form) - 1, 0))
        seen = ordered[places] == values if form else np.zeros(len(values), np.bool_)
        if file is not None and (strange := ~seen & (values != "")).any():
            first = int(strange.argmax())
            raise DataError(
                f"{where}, row {numbers[first]}: {values[first]!s} in column {name!r}; {file} knows {_some(form)}: "
                "drop the row, or add the text to the file of every node before a run begins"
            )
        x[np.flatnonzero(seen), at + order[places[seen]]] = 1
        at += len(form)
    return x


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _first_text(values: np.ndarray, numbers: np.ndarray) -> tuple[int, str]:
    """The row of the first text that is no number, and the text."""
    for number, value in zip(numbers.tolist(), values.tolist(), strict=True):
        try:
            float(value or 0)
        except ValueError:
            return number, value
    return int(numbers[0]), str(values[0])


def _categories(values: np.ndarray, training: np.ndarray) -> tuple[str, ...]:
    return tuple(str(value) for value in np.unique(values[training]) if value)


def _scale(values: np.ndarray, training: np.ndarray) -> Scale:
    """Mean and standard deviation of the training samples; a column that is constant in training has no scale."""
    seen = values[training]
    seen = seen[~np.isnan(seen)]
    mean = math.fsum(seen) / len(seen) if len(seen) else 0.0
    if not len(seen) or seen.min() == seen.max():  # rounding would give 0.1, 0.1, 0.1 a spread of about 1e-17
        return Scale(mean, 0.0)
    return Scale(mean, math.sqrt(math.fsum((seen - mean) ** 2) / len(seen)) or 1.0)
