"""Folders that Hugging Face ``datasets`` saved with ``save_to_disk``: pictures, token ids, or tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sparsona.core.text import one_line
from sparsona.data.arrays import from_arrays
from sparsona.data.config import DataConfig
from sparsona.data.dataset import CLIENT, DataError, Dataset
from sparsona.data.readers.extras import needs
from sparsona.data.readers.parquet import arrow_columns
from sparsona.data.readers.tables import TableColumn, from_columns

_TOKENS = "input_ids"  # what tokenisers call token ids


def is_saved(folder: Path) -> bool:
    """Whether a folder was written by ``save_to_disk``."""
    return any((folder / name).is_file() for name in ("dataset_dict.json", "state.json"))


def read_saved(folder: Path, config: DataConfig) -> Dataset:
    """A data set from a saved one, or from the parts train and test of several; other parts are left out."""
    needs("datasets", "huggingface", str(folder))
    import datasets

    try:
        saved = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: cannot be read as a saved Hugging Face data set: {error}") from error
    parts: dict[str, Any] = dict(saved) if isinstance(saved, dict) else {"train": saved}
    if "train" not in parts:
        raise DataError(f'{folder}: split "train" is missing; found {", ".join(parts) or "none"}')
    parts = {name: parts[name] for name in ("train", "test") if name in parts}
    for name, part in parts.items():
        if not len(part):
            raise DataError(f"{folder}: split {name!r} has no rows")
    where, features = str(folder), parts["train"].features
    label = config.label or "label"
    names = getattr(features.get(label), "names", None) if isinstance(label, str) else None
    inputs = _inputs(where, features, config, (label,) if isinstance(label, str) else label)
    if inputs is None:
        return _from_tables(where, parts, config, label, names)
    config = replace(config, classes=config.classes or (tuple(names) if names else None))
    who = config.client or (CLIENT if CLIENT in features else None)
    arrays: dict[str, Any] = {}
    length = config.length or max(_longest(part, inputs) for part in parts.values())
    for name, part in parts.items():
        for column in (inputs, *((label,) if isinstance(label, str) else label), *([who] if who else ())):
            if column not in part.column_names:
                raise DataError(f"{where}: split {name!r} lacks the column {column!r} of split 'train'")
        end = "" if name == "train" else "_test"
        arrays[f"x{end}"] = _values(f"{where} ({name})", part, inputs, length)
        y = _targets(where, part, label, length)
        arrays[f"y{end}"] = y if names is None else _named(f"{where} ({name})", str(label), y, names)
        if who is not None:
            arrays[f"client{end}"] = _plain(where, part, who)
    return from_arrays(where, arrays, config)


def _inputs(where: str, features: Mapping[str, Any], config: DataConfig, labels: tuple[str, ...]) -> str | None:
    """The column of pictures or lists that is the input; None if the columns are those of a table."""
    import datasets

    for name in (*labels, *([config.client] if config.client else ()), *(config.features or ())):
        if name not in features:
            raise DataError(f"{where}: no column {name!r}; found {', '.join(map(repr, features))}")
    wanted = config.features or tuple(name for name in features if name not in labels and name != config.client)
    large = [name for name in wanted if not isinstance(features[name], (datasets.Value, datasets.ClassLabel))]
    if _TOKENS in large and config.features is None:
        return _TOKENS
    if len(large) > 1 or (large and config.features is not None and len(wanted) > 1):
        raise DataError(
            f"{where}: columns {', '.join(map(repr, large))} cannot form one input; choose one with data.features"
        )
    return large[0] if large else None


def _longest(part: Any, name: str) -> int:
    """The most entries that a row has, of a column of lists."""
    values = part[name] if any(isinstance(part[at][name], list) for at in range(min(len(part), 2))) else []
    return max((len(value) for value in values if isinstance(value, list)), default=1) or 1


def _values(where: str, part: Any, name: str, length: int) -> np.ndarray:
    """Pictures as bytes, token ids cut to their last or padded in front, or floats."""
    rows: list[np.ndarray] = []
    for at in range(len(part)):
        try:
            value = part[at][name]
        except (OSError, ValueError, SyntaxError) as error:
            raise DataError(f"{where}, row {at}: the picture in column {name!r} cannot be read: {error}") from error
        if value is None:
            raise DataError(f"{where}, row {at}: no value in column {name!r}")
        if isinstance(value, list) and not value:
            raise DataError(f"{where}, row {at}: empty list in column {name!r}; drop the row")
        if isinstance(value, list) and None in value:
            raise DataError(f"{where}, row {at}: no value at place {value.index(None)} of column {name!r}")
        if isinstance(value, list) and isinstance(value[0], int):
            row = np.zeros(length, np.int64)
            row[length - min(length, len(value)) :] = value[-length:]
        elif hasattr(value, "convert"):  # a picture
            row = np.asarray(value if value.mode in ("L", "RGB") else value.convert("RGB"))
        else:
            try:
                row = np.asarray(value, np.float32)
            except (TypeError, ValueError) as error:
                raise DataError(f"{where}, row {at}: {name!r} is not an array of numbers: {one_line(error)}") from error
        if rows and row.shape != rows[0].shape:
            raise DataError(
                f"{where}, row {at}: {name!r} is {list(row.shape)}; expected {list(rows[0].shape)}, "
                "as in row 0; resize it"
            )
        rows.append(row)
    return np.stack(rows)


def _targets(where: str, part: Any, label: str | tuple[str, ...], length: int) -> np.ndarray:
    if not isinstance(label, str):
        return np.stack([_plain(where, part, name) for name in label], axis=1)
    if len(part) and isinstance(part[0][label], list):  # next tokens, as language models have them
        y = np.full((len(part), length), -100, np.int64)
        for at, (row, value) in enumerate(zip(y, part[label], strict=True)):
            if not isinstance(value, list) or not value or not all(isinstance(token, int) for token in value):
                raise DataError(f"{where}, row {at}: no list of token ids in column {label!r}")
            row[length - min(length, len(value)) :] = value[-length:]
        return y
    return _plain(where, part, label)


def _named(where: str, label: str, codes: np.ndarray, names: list[str]) -> np.ndarray:
    """Numbers of classes as their names, which data.classes may have in another order."""
    wrong = (codes < 0) | (codes >= len(names))
    if wrong.any():
        at = int(wrong.argmax())
        raise DataError(
            f"{where}, row {at}: {int(codes[at])} in column {label!r}; expected a class in [0, {len(names) - 1}]"
        )
    return np.array(names)[codes]


def _plain(where: str, part: Any, name: str) -> np.ndarray:
    values = part[name][:]
    for at, value in enumerate(values):
        if value is None:
            raise DataError(f"{where}, row {at}: no value in column {name!r}")
    try:
        return np.array(list(values))
    except ValueError as error:  # lists of different lengths
        raise DataError(f"{where}: column {name!r} is not an array of one shape: {one_line(error)}") from error


def _from_tables(
    where: str, parts: Mapping[str, Any], config: DataConfig, label: str | tuple[str, ...], names: list[str] | None
) -> Dataset:
    columns: dict[str, TableColumn] = {}
    for part_name, part in parts.items():
        if lacking := [name for name in columns if name not in part.column_names]:
            raise DataError(f"{where}: split {part_name!r} lacks the column {lacking[0]!r} of split 'train'")
        for name, column in arrow_columns(where, part.with_format("arrow")[:], config).items():
            if name == label and names:
                lacks = column.missing
                if lacks.any():
                    raise DataError(f"{where} ({part_name}), row {int(lacks.argmax())}: no value in column {name!r}")
                codes = column.names
                column = TableColumn(np.array([names[c] if 0 <= c < len(names) else "" for c in codes]))
            old = columns.get(name)
            columns[name] = column if old is None else old.followed_by(column)
    rows = np.arange(sum(map(len, parts.values())))
    return from_columns(where, columns, config, train=len(parts["train"]), numbers=rows)
