"""Parquet files and Arrow tables: columns with types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sparsona.data.config import DataConfig
from sparsona.data.dataset import DataError, Dataset
from sparsona.data.readers.extras import needs
from sparsona.data.readers.tables import TableColumn, exact, from_columns, roles


def read_parquet(path: Path, config: DataConfig) -> Dataset:
    """A data set from a Parquet file."""
    needs("pyarrow", "parquet", str(path))
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path).read()
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"{path}: cannot be read as Parquet: {error}") from error
    return from_columns(str(path), arrow_columns(str(path), table, config), config)


def arrow_columns(where: str, table: Any, config: DataConfig) -> dict[str, TableColumn]:
    """The columns of an Arrow table that are numbers, booleans or texts; others must be left out of the features."""
    import pyarrow.types as types

    names = table.column_names
    if double := [name for at, name in enumerate(names) if name in names[:at]]:
        raise DataError(f"{where}: two columns have the name {double[0]!r}; rename one")
    known = roles(where, names, config)
    columns = {}
    for name in names:
        if name not in known.used:
            continue
        values = table[name].combine_chunks()
        kind = values.type
        if types.is_dictionary(kind):
            values, kind = values.cast(kind.value_type), kind.value_type
        if known.as_text(name) and types.is_integer(kind):
            columns[name] = TableColumn(
                np.array(["" if v is None else str(v) for v in values.to_pylist()], dtype=np.str_)
            )
        elif types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
            plain = values.to_pylist()
            numbers = np.array([np.nan if v is None else float(v) for v in plain], np.float64)
            named = known.named(name) and not types.is_floating(kind)
            ids = exact([int(v or 0) for v in plain]) if named else None
            columns[name] = TableColumn(numbers, not types.is_floating(kind), ids, types.is_boolean(kind))
        elif types.is_string(kind) or types.is_large_string(kind):
            columns[name] = TableColumn(np.array([v or "" for v in values.to_pylist()], dtype=np.str_))
        else:
            raise DataError(
                f"{where}: column {name!r} is {kind}; expected numbers, booleans or strings; leave it out of "
                "data.features"
            )
    return columns
