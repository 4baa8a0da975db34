"""The data of one node: its own files, or for a trial its part of one data set."""

from __future__ import annotations

import dataclasses
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsona.config import Recipe, check
from sparsona.core.rng import Rng
from sparsona.core.samples import Prepare
from sparsona.data import DataConfig, DataError, Dataset, Fleet, Part, load
from sparsona.data.split import cut
from sparsona.engines.device import Device
from sparsona.engines.station import Build, Refused
from sparsona.runner import bare_device, prepare


@dataclasses.dataclass(frozen=True)
class NodeData:
    """Where a node's samples come from: a file, an official data set, or its part of the recipe's data for a trial."""

    file: Path | None = None  # .npz with x and y
    source: str | None = None  # the name of an official data set that is all this node's own
    data_dir: Path | None = None  # where official data sets lie
    classes: int | None = None  # of a file: how many there are in the whole fleet
    plugins: bool = False  # whether a recipe may name models and functions that are not Sparsona's own

    def builder(self) -> Build:
        """What makes a device of a recipe and a client's number."""

        def build(raw: dict[str, Any], k: int) -> tuple[Device, dict[str, Any]]:
            if not self.plugins:
                _no_plugins({key: raw.get(key) for key in ("model", "method")})
            recipe = check(raw)
            if k >= recipe.data.clients:
                raise Refused(f"this device is client {k}; the recipe has data.clients = {recipe.data.clients}")
            if self.file is None and self.source is None:
                device, fleet = prepare(recipe, self.data_dir)
                return device, _facts(fleet, k)
            fleet = own_fleet(self.dataset(recipe.data), recipe, k)
            data = fleet.dataset
            bare = bare_device(recipe, data.classes, data.shape, data.vocabulary or None)
            device = dataclasses.replace(bare, local=lambda _: fleet.local(0), test=lambda _: fleet.test(0))
            return device, _facts(fleet, 0)

        return build

    def dataset(self, how: DataConfig) -> Dataset:
        """The node's own samples."""
        if self.file is not None:
            return read_npz(self.file, self.classes)
        assert self.source is not None
        return load(self.source, self.data_dir, vocabulary=how.vocabulary, length=how.length)

    def try_out(self) -> None:
        """Raise DataError now, not in a round, if there is nothing to read."""
        if self.file is not None or self.source is not None:
            self.dataset(DataConfig())


def own_fleet(dataset: Dataset, recipe: Recipe, k: int) -> Fleet:
    """A fleet of one: all samples are client k's, cut into train, validation and test by the recipe's shares.

    An official test set, or x_test and y_test of a file, stay what they are.
    """
    how, key = recipe.data, Rng(recipe.seed, "data")("cut", k)
    held = np.arange(dataset.train)
    if len(held) < 2:
        raise DataError(f"{dataset.name} has {len(held)} samples to learn from; at least 2 are needed")
    if dataset.train == len(dataset):
        part = Part(*cut(held, (how.train_share, how.validation_share, how.test_share), key, needed=(0, 2)))
    else:
        train, validation = cut(held, (how.train_share, how.validation_share), key)
        part = Part(train, validation, np.arange(dataset.train, len(dataset)))
    return Fleet(dataset, how, recipe.seed, (part,), (str(k),))


def read_npz(file: Path, classes: int | None = None) -> Dataset:
    """A data set of one's own: x and y, and if there are any x_test, y_test, mean and std.

    x holds pictures as bytes [n, height, width] or [n, height, width, channels], or float32 [n, ...] as the model reads
    them; y holds whole numbers from 0.
    """
    try:
        with np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{file} cannot be read as .npz with x and y: {error}") from error
    for name in ("x", "y"):
        if name not in arrays:
            raise DataError(f"{file} has no {name}; it has {', '.join(arrays) or 'nothing'}")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{file} must have x_test and y_test, or none of them")
    x, train = arrays["x"], len(arrays["x"])
    y = arrays["y"]
    _fits(file, "x", x, "y", y)
    if "x_test" in arrays:
        _fits(file, "x_test", arrays["x_test"], "y_test", arrays["y_test"])
        if arrays["x_test"].shape[1:] != x.shape[1:] or arrays["x_test"].dtype != x.dtype:
            raise DataError(f"{file}: x_test is {_form(arrays['x_test'])}, x is {_form(x)}; they must be alike")
        x, y = np.concatenate([x, arrays["x_test"]]), np.concatenate([y, arrays["y_test"]])
    count = int(y.max()) + 1 if classes is None else classes
    if y.min() < 0 or y.max() >= count:
        raise DataError(
            f"{file}: y goes from {y.min()} to {y.max()}; with {count} classes, 0 to {count - 1} is allowed"
        )
    prepare, shape = _prepared(file, arrays, x)
    if x.dtype == np.uint8 and x.ndim == 3:
        x = x[..., None]
    names = tuple(str(c) for c in range(count))
    labels = torch.from_numpy(y.astype(np.int64))
    return Dataset(str(file), torch.from_numpy(np.ascontiguousarray(x)), labels, train, names, shape, prepare)


def _prepared(file: Path, arrays: dict[str, np.ndarray], x: np.ndarray) -> tuple[Prepare, tuple[int, ...]]:
    if x.dtype != np.uint8:
        return Prepare(), tuple(x.shape[1:])
    channels = 1 if x.ndim == 3 else x.shape[3]
    scale = {}
    for name in ("mean", "std"):
        values = np.atleast_1d(arrays.get(name, np.full(channels, 0.5))).astype(np.float64)
        if values.shape != (channels,) or not np.isfinite(values).all() or (name == "std" and (values <= 0).any()):
            raise DataError(f"{file}: {name} must be {channels} finite numbers on the scale 0 to 1, one per channel")
        scale[name] = tuple(float(v) for v in values)
    return Prepare(scale["mean"], scale["std"]), (channels, *x.shape[1:3])


def _fits(file: Path, x_name: str, x: np.ndarray, y_name: str, y: np.ndarray) -> None:
    picture = x.dtype == np.uint8 and x.ndim in (3, 4)
    if not picture and not (x.dtype == np.float32 and x.ndim >= 2):
        raise DataError(
            f"{file}: {x_name} is {_form(x)}; uint8 [n, height, width] or [n, height, width, channels], or float32 "
            "[n, ...] is allowed"
        )
    if y.ndim != 1 or y.dtype.kind not in "iu" or len(y) != len(x):
        raise DataError(f"{file}: {y_name} is {_form(y)}; {len(x)} whole numbers are needed, one for each of {x_name}")
    if not len(x):
        raise DataError(f"{file}: {x_name} has no samples")
    if not picture and not np.isfinite(x).all():
        raise DataError(f"{file}: {x_name} holds NaN or Inf")


def _form(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"


def _facts(fleet: Fleet, k: int) -> dict[str, Any]:
    """What a server must know to build the same model, and how much there is to learn from."""
    data = fleet.dataset
    return {
        "classes": data.classes,
        "shape": list(data.shape),
        "vocabulary": data.vocabulary or None,
        "samples": int(fleet.train_sizes[k]),
    }


def _no_plugins(value: Any, path: str = "") -> None:
    """Refuse a recipe that names code of its own: who sends it could run anything that is installed here."""
    if isinstance(value, dict):
        for key, item in value.items():
            _no_plugins(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            _no_plugins(item, path)
    elif isinstance(value, str) and ":" in value:  # whatever else it may be, our own names have none
        raise Refused(f"{path} = {value!r} is not Sparsona's own, and this node does not allow that (--allow-plugins)")
