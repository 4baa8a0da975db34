"""What Python code of the user's gives: arrays, a torch Dataset, or a federation that is read client by client."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from sparsona.core.imports import plugin
from sparsona.core.text import nearest, one_line
from sparsona.data.arrays import from_arrays
from sparsona.data.config import DataConfig
from sparsona.data.dataset import DataError, Dataset
from sparsona.data.readers.encoding_file import with_known_classes

_PARTS = ("x", "y", "client")  # of a sample
_FORMS = "arrays (x, y), a dict with x and y, a torch Dataset, or an object with clients and client(k)"


class Federation(Protocol):
    """Data of many clients, each loaded on demand.

    ``classes`` (a number or names) and ``shape`` (of one input) are optional; without them, client 0 is read for them.
    """

    clients: int | Sequence[str]

    def client(self, k: int) -> Any:
        """The samples of client k: (x, y), a dict with x, y and optionally x_test and y_test, or a torch Dataset."""


def call(config: DataConfig, seed: int, root: Path | None, value: Any = None) -> Any:
    """What package.module:name or an object gives: itself, or what it returns.

    A function is called with [data.args], and with seed and root if it asks for them.
    """
    where = f'data.source: "{config.source}"'
    if value is None and config.given:
        raise DataError(f"{where} is a Python object; pass it again, for example sparsona.resume(out, data=...)")
    target = plugin(where, config.source) if value is None else value
    if not callable(target) or (is_federation(target) and not isinstance(target, type)):
        if config.args:
            raise DataError(f"{where} is not callable, so data.args is not allowed; leave it out")
        return target
    given = dict(config.args or {})
    try:
        takes = inspect.signature(target).parameters
    except (TypeError, ValueError):  # a builtin
        takes = MappingProxyType({})
    given |= {k: v for k, v in (("seed", seed), ("root", root)) if k in takes and k not in given}
    _check_args(config.source, given, takes)
    try:
        return target(**given)
    except Exception as error:  # whatever a stranger's function raises
        raise DataError(f"{where} failed: {type(error).__name__}: {one_line(error)}") from error


def _check_args(source: str, given: Mapping[str, Any], takes: Mapping[str, inspect.Parameter]) -> None:
    """Refuse arguments that a function does not take, and ask for those that it needs."""
    kinds = {parameter.kind for parameter in takes.values()}
    named = [n for n, p in takes.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for key in given:
        if takes and key not in named and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise DataError(f'data.args.{key}: no such argument of "{source}"{nearest(key, named)}')
    for name in named:
        if takes[name].default is inspect.Parameter.empty and name not in given:
            how = f"set it in [data.args], as {name} = ..."
            raise DataError(f'data.source: "{source}" needs the argument {name}; {how}')


def is_federation(value: Any) -> bool:
    """Whether a value gives its data client by client."""
    return hasattr(value, "clients") and callable(getattr(value, "client", None))


def from_value(where: str, value: Any, config: DataConfig) -> Dataset:
    """A data set from what a function gives, unless that is a federation."""
    return from_arrays(where, named_arrays(where, value), with_known_classes(config))


def named_arrays(where: str, value: Any) -> dict[str, Any]:
    """Arrays by name from a pair, a dict or a torch Dataset."""
    if isinstance(value, Mapping):
        return {str(name): _array(where, str(name), item) for name, item in value.items()}
    if isinstance(value, IterableDataset):
        raise DataError(
            f"{where} returns an IterableDataset; expected a map-style Dataset with __len__ and __getitem__"
        )
    if hasattr(value, "columns") and not isinstance(value, TorchDataset):
        raise DataError(
            f"{where} returns a table, {type(value).__name__}; expected arrays, such as "
            "(df[features].to_numpy(), df[label].to_numpy())"
        )
    if isinstance(value, TorchDataset) or (hasattr(value, "__getitem__") and not isinstance(value, (tuple, list))):
        return _stacked(where, value)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return {"x": _array(where, "x", value[0]), "y": _array(where, "y", value[1])}
    raise DataError(f"{where} returns {type(value).__name__}; expected {_FORMS}")


def _stacked(where: str, dataset: Any) -> dict[str, Any]:
    """All samples of a torch Dataset, each (x, y) or (x, y, client)."""
    try:
        count = len(dataset)
    except TypeError as error:
        raise DataError(f"{where} returns {type(dataset).__name__} without __len__; expected {_FORMS}") from error
    if not count:
        raise DataError(f"{where} has no samples; expected at least one")
    rows = []
    for at in range(count):
        try:
            sample = dataset[at]
        except Exception as error:  # whatever a stranger's code raises
            raise DataError(
                f"{where}, sample {at}: cannot be read: {type(error).__name__}: {one_line(error)}"
            ) from error
        if not isinstance(sample, (tuple, list)) or len(sample) not in (2, 3):
            raise DataError(
                f"{where}, sample {at}: {type(sample).__name__} is not allowed; expected (x, y) or (x, y, client)"
            )
        rows.append([_array(where, f"{n} of sample {at}", part) for n, part in zip(_PARTS, sample, strict=False)])
        if len(sample) != len(rows[0]):
            raise DataError(f"{where}, sample {at}: {len(sample)} parts; expected {len(rows[0])}, as sample 0")
        for name, mine, first in zip(_PARTS, rows[-1], rows[0], strict=False):
            if mine.shape != first.shape:
                what = f"{name} has shape {list(mine.shape)}; expected {list(first.shape)}, as sample 0"
                raise DataError(f"{where}, sample {at}: {what}")
    return {name: np.stack(each) for name, each in zip(_PARTS, zip(*rows, strict=True), strict=False)}


def _array(where: str, name: str, value: Any) -> np.ndarray:
    """A value as an array; what NumPy cannot hold is an error that names it."""
    try:
        if not isinstance(value, Tensor):
            return np.asarray(value)
        if value.layout != torch.strided:
            raise DataError(f"{where}: {name} is a sparse tensor; expected a dense one, such as {name}.to_dense()")
        value = value.detach().cpu()
        plain: np.ndarray = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        return plain
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{where}: {name} is not an array of one shape: {one_line(error)}") from error
