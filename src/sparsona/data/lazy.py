"""A fleet of a federation: clients are read when they are needed, and only the latest stay in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from sparsona.core.rng import Rng
from sparsona.core.text import one_line
from sparsona.data.arrays import from_arrays
from sparsona.data.config import DataConfig
from sparsona.data.dataset import DataError, Dataset
from sparsona.data.federated import Fleet, own_part, resized
from sparsona.data.partition import Part
from sparsona.data.readers.encoding_file import with_known_classes
from sparsona.data.readers.python import Federation, named_arrays

KEPT = 32  # clients in memory at a time
_WHOLE = ("sample_share", "copies", "pool", "merge_keys", "min_samples")  # what needs all samples at once


@dataclass(frozen=True, eq=False)
class LazyFleet(Fleet):
    """A fleet whose clients are read one by one; ``dataset`` is that of its first, for what all have alike."""

    federation: Federation
    numbers: Sequence[int]  # the clients' numbers in the federation

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.numbers)

    @property
    def lazy(self) -> bool:
        """Whether clients are read when they are needed, so that what all of them have is not known."""
        return True

    def held(self, k: int) -> tuple[Dataset, Part]:
        """The samples of client k, and which of them are for what."""
        return self._kept(k)

    @cached_property
    def _kept(self) -> Callable[[int], tuple[Dataset, Part]]:
        return lru_cache(maxsize=KEPT)(self._read)

    @cached_property
    def _alike(self) -> DataConfig:
        """The configuration with what all clients have as the first one has it."""
        vocabulary: Any = self.dataset.vocabulary or None
        return replace(self.config, classes=self.dataset.class_names or None, vocabulary=vocabulary)

    def _read(self, k: int) -> tuple[Dataset, Part]:
        like, config = self.dataset, self._alike
        data = _client(self.federation, self.numbers[k], f"{like.name}: client {self.names[k]}", config)
        if (data.shape, data.target, data.x.dtype) != (like.shape, like.target, like.x.dtype):
            raise DataError(
                f"{data.name}: {data.target} data of {data.x.dtype} {list(data.shape)} is not allowed; expected "
                f"{like.target} data of {like.x.dtype} {list(like.shape)}, as of client {self.names[0]}"
            )
        if _cut(data) != config.split:
            has, first = ("no", "a") if _cut(data) == "ratio" else ("a", "no")
            raise DataError(
                f"{data.name} has {has} test set; expected {first} test set, as client {self.names[0]} has; "
                "give x_test and y_test for all clients or for none"
            )
        return data, own_part(data, config, Rng(self.seed, "data"), k)


def federated(where: str, federation: Federation, config: DataConfig, seed: int) -> LazyFleet:
    """The fleet of a federation, all of its clients or a random choice; its first client is read, and no other."""
    names = _names(where, federation)
    if config.partition not in (None, "natural") or config.key:
        wanted = f'key: "{config.key}"' if config.key else f'partition: "{config.partition}"'
        raise ValueError(
            f"data.{wanted} is not allowed for {where}, which gives the samples of each client; leave it out"
        )
    for field in _WHOLE:
        if getattr(config, field) != getattr(DataConfig, field):
            raise ValueError(f"data.{field} is not allowed for {where}, which is read client by client; leave it out")
    count = len(names) if config.clients is None else config.clients
    if count > len(names):
        raise ValueError(
            f"data.clients: {count:,} is not allowed; expected an int <= {len(names):,}, the clients of {where}"
        )
    rng = Rng(seed, "data")
    numbers = rng("partition")("keys").choice(len(names), count) if count < len(names) else range(count)
    config = with_known_classes(config)
    classes = getattr(federation, "classes", None)
    if config.classes is None and classes is not None:
        config = replace(config, classes=_classes(where, classes))
    first = _client(federation, numbers[0], f"{where}: client {names[numbers[0]]}", config)
    shape = getattr(federation, "shape", None)
    if shape is not None and (not isinstance(shape, Sequence) or tuple(shape) != first.shape):
        raise DataError(
            f"{first.name}: inputs of shape {list(first.shape)} are not allowed; expected shape = {one_line(shape)}"
        )
    cut = _cut(first)
    if config.split not in (None, cut):
        have = "no test sets" if cut == "ratio" else "their own test sets"
        raise ValueError(
            f'data.split: "{config.split}" is not allowed for {where}, whose clients have {have}; expected "{cut}"'
        )
    settled = replace(config, clients=count, partition="natural", split=cut)
    if settled.augment != "none" and not first.prepare.mean:
        raise ValueError(
            f'data.augment: "{settled.augment}" is only for pictures, and {where} has none; expected "none"'
        )
    chosen = tuple(names[i] for i in numbers)
    return LazyFleet(replace(first, name=where), settled, seed, (), chosen, federation, numbers)


def _cut(dataset: Dataset) -> Literal["ratio", "same"]:
    """The split of a client's samples: a share is cut off for tests unless there is a test set."""
    return "ratio" if dataset.train == len(dataset) else "same"


def _names(where: str, federation: Federation) -> Sequence[str]:
    clients = federation.clients
    if isinstance(clients, (int, np.integer)) and not isinstance(clients, bool):
        names: Sequence[str] = tuple(map(str, range(int(clients))))
    else:
        try:
            if isinstance(clients, str):
                raise TypeError("a text is no list of names")
            names = tuple(str(name) for name in clients)  # type: ignore[union-attr]
        except TypeError as error:
            what = "expected a number or a sequence of names"
            raise DataError(f"{where}: clients is {one_line(repr(clients))}; {what}") from error
    if not names:
        raise DataError(f"{where}: clients is empty; expected at least one client")
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise DataError(f"{where}: two clients have the name {twice!r}; rename one")
    return names


def _classes(where: str, classes: Any) -> int | tuple[str, ...]:
    """How many classes a federation has, or their names."""
    if isinstance(classes, (int, np.integer)) and not isinstance(classes, bool) and classes >= 2:
        return int(classes)
    names = tuple(map(str, classes)) if isinstance(classes, Sequence) and not isinstance(classes, str) else ()
    if len(names) < 2 or len(set(names)) < len(names):
        what = "expected an int >= 2, or as many different names"
        raise DataError(f"{where}: classes is {one_line(repr(classes))}; {what}")
    return names


def _client(federation: Federation, number: int, where: str, config: DataConfig) -> Dataset:
    """The samples of one client, read and checked."""
    try:
        value: Any = federation.client(number)
    except Exception as error:  # whatever a stranger's code raises
        raise DataError(f"{where}: cannot be read: {type(error).__name__}: {one_line(error)}") from error
    arrays = named_arrays(where, value)
    if "client" in arrays or "client_test" in arrays:
        raise DataError(f"{where}: array 'client' is not allowed, as all samples belong to this client; leave it out")
    dataset = from_arrays(where, arrays, config)
    return dataset if config.side is None else resized(dataset, config.side)
