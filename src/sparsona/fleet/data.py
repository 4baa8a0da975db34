"""The data of one node: its own files, or for a trial its part of one data set."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from sparsona.core.imports import plugin_names
from sparsona.core.rng import Rng
from sparsona.data import (
    DataConfig,
    DataError,
    Dataset,
    Encoding,
    Fleet,
    own_part,
    read_encoding,
    read_source,
    read_value,
    resized,
)
from sparsona.data.encoding import Scale
from sparsona.engines.device import Device
from sparsona.engines.hardware import Machine, devices_of
from sparsona.experiment.recipe import Recipe, check
from sparsona.experiment.setup import DataForm, bare_device, check_validation, prepare
from sparsona.fleet.client_runtime import Build, Refused

_ALL_AT_ONCE = (".npz", ".txt")  # files that can be read without a recipe; tables need to know their columns


@dataclasses.dataclass(frozen=True)
class NodeData:
    """Where a node's samples come from: its own, an official data set, or its part of the recipe's data for a trial."""

    file: str | Path | None = None  # a file, a folder or package.module:name, as data.source takes them
    source: str | None = None  # the name of an official data set that is all this node's own
    data_dir: Path | None = None  # where official data sets lie
    classes: int | tuple[str, ...] | None = None  # of its own data: those of the whole fleet, a number or names
    encoding: str | Path | None = (
        None  # of its own data: the file of scales, categories and classes that all nodes have
    )
    plugins: bool = False  # whether a recipe may name code that is not Sparsona's own
    device: str = "auto"  # what it trains on

    def builder(self) -> Build:
        """What makes a device of a recipe and a client's number."""

        def build(raw: dict[str, Any], k: int) -> tuple[Device, dict[str, Any]]:
            if not self.plugins:
                _no_plugins(raw)
            recipe = check(raw)
            if recipe.data.clients is None or k >= recipe.data.clients:
                raise Refused(f"this node is client {k}; expected a client below data.clients = {recipe.data.clients}")
            if self.file is None and self.source is None:
                device, fleet = prepare(recipe, self.data_dir, where=self.place())
                return device, _facts(fleet, k, fleet.encoding)
            fleet = own_fleet(self.dataset(recipe.data, data_seed(recipe)), recipe, k)
            if self.encoding is None:
                _no_texts(fleet.dataset)
            if recipe.evaluate.samples == "validation":
                check_validation(fleet)
            bare = bare_device(recipe, DataForm.of(fleet), self.place())
            device = dataclasses.replace(bare, local=lambda _: fleet.local(0), test=lambda _: fleet.test(0))
            return device, _facts(fleet, 0, None if self.file is None else fleet.dataset.known)

        return build

    def dataset(self, config: DataConfig, seed: int = 0) -> Dataset:
        """The node's own samples; columns and the like are as the recipe says."""
        if self.file is None:
            assert self.source is not None
            named = DataConfig(self.source, vocabulary=config.vocabulary, length=config.length)
            return read_source(named, self.data_dir)
        file = None if self.encoding is None else str(self.encoding)
        own = dataclasses.replace(config.with_object(str(self.file)), args=None, encoding=file).located()
        own = dataclasses.replace(own, classes=self.classes or own.classes)
        dataset = read_value(own, seed, self.data_dir) if own.plugin else read_source(own)
        names = tuple(str(c) for c in range(dataset.classes))
        known = own.classes is not None or (own.encoding is not None and read_encoding(Path(own.encoding)).classes)
        if dataset.target == "class" and not known and dataset.class_names != names:
            raise DataError(
                f"{dataset.name}: the labels are {', '.join(dataset.class_names[:5])}, "
                "and other nodes may have different "
                "ones; list the classes of the whole fleet with --classes a,b,c or data.classes in the recipe"
            )
        return dataset

    def place(self) -> torch.device:
        """The device that the node trains on; raises ValueError if it is not here."""
        return torch.device(devices_of(self.device, Machine.here())[0])

    def try_out(self) -> None:
        """Raise ValueError now, not in a round, if there is nothing to read, or no such device."""
        self.place()
        if self.source is not None or (self.file is not None and Path(self.file).suffix in _ALL_AT_ONCE):
            self.dataset(DataConfig())
        elif self.file is not None and ":" not in str(self.file) and not Path(self.file).exists():
            raise DataError(f"{self.file}: cannot be read: no such file or folder")


def _no_texts(dataset: Dataset) -> None:
    """Refuse columns of texts that this node alone has encoded."""
    columns = {} if dataset.encoding is None else dataset.encoding.columns
    for name, form in columns.items():
        if not isinstance(form, Scale):
            raise DataError(
                f"{dataset.name}: column {name!r} holds texts, and other nodes may have other ones; give every node "
                "one file: sparsona data SOURCE --encoding FILE, then fleet node --encoding FILE"
            )


def data_seed(recipe: Recipe) -> int:
    """The seed of partition and splits."""
    return recipe.seed if recipe.data.seed is None else recipe.data.seed


def own_fleet(dataset: Dataset, recipe: Recipe, k: int) -> Fleet:
    """A fleet of one: all samples are client k's, cut into train, validation and test by the recipe's shares.

    An official test set, or x_test and y_test of a file, stay what they are.
    """
    seed = data_seed(recipe)
    if recipe.data.side is not None:
        dataset = resized(dataset, recipe.data.side)
    part = own_part(dataset, recipe.data, Rng(seed, "data"), k)
    data = dataset if dataset.encode is None else dataset.encode(part.train)
    return Fleet(data, recipe.data, seed, (part,), (str(k),))


def _facts(fleet: Fleet, k: int, encoding: Encoding | None) -> dict[str, Any]:
    """What a server must know to build the same model, and how much there is to learn from."""
    data = fleet.dataset
    return {
        "classes": data.outputs,
        "shape": list(data.shape),
        "vocabulary": data.vocabulary or None,
        "target": data.target,
        **({} if encoding is None else {"encoding": encoding.digests()}),
        "samples": len(fleet.local(k)),
    }


def _no_plugins(raw: dict[str, Any]) -> None:
    """Refuse a recipe that names user code: its sender could run anything that is installed here."""
    data = raw.get("data")
    named = {key: raw.get(key) for key in ("model", "method", "task")}
    named["data"] = {"source": data.get("source")} if isinstance(data, dict) else None
    for path, name in plugin_names(named):
        raise Refused(
            f'{path}: "{name}" is a plug-in, and this node does not allow plug-ins; start it with --allow-plugins'
        )
