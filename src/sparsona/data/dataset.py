"""A data set in memory, and the error where its files are not what they should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from torch import Tensor

from sparsona.core.objective import Target as Target
from sparsona.core.samples import Prepare
from sparsona.data.encoding import Encoding

CLIENT = "client"  # the natural key of data that name their clients
DECILES = 10  # groups of numbers that label partitioners divide by


class DataError(ValueError):
    """A data file is missing, damaged or not what its name says."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in two tensors, training samples first, so that a split may cross the border without a copy."""

    name: str
    x: Tensor  # pictures: uint8 [n, height, width, channels]; text: int32 [n, length]
    y: Tensor  # class: int64 [n]; labels: float32 [n, c], 0 or 1; number: float32 [n] or [n, d]; tokens: int64 [n, m]
    train: int  # the first so many are the training set, the others the official test set
    class_names: tuple[str, ...]  # of classes or labels; empty for numbers and tokens
    shape: tuple[int, ...]  # (channels, height, width) of a picture, (length,) of a text
    prepare: Prepare
    keys: Mapping[str, np.ndarray] = field(default_factory=dict)  # [n] each: who wrote, where taken, about what
    vocabulary: int = 0  # number of token ids of a text
    target: Target = "class"  # what a model predicts; token -100 is ignored
    # tables: the data set with inputs that are scaled and encoded by these training samples, and by no others
    encode: Callable[[np.ndarray], Dataset] | None = None
    encoding: Encoding | None = None  # of tables and texts, once their inputs are numbers
    missing_keys: Mapping[str, str] = field(default_factory=dict)  # keys that need other files, and which

    def __len__(self) -> int:
        return len(self.y)

    @property
    def classes(self) -> int:
        """Number of labels."""
        return len(self.class_names)

    @property
    def known(self) -> Encoding | None:
        """How inputs and classes became numbers; None for arrays with classes 0, 1, ..."""
        if self.encoding is None and self.class_names == tuple(map(str, range(self.classes))):
            return None
        return replace(self.encoding or Encoding(), classes=self.class_names)

    @property
    def outputs(self) -> int:
        """Number of outputs that a model needs: classes, labels, numbers, or token ids."""
        if self.target == "tokens":
            return self.vocabulary
        if self.target == "number":
            return 1 if self.y.ndim == 1 else self.y.shape[1]
        return self.classes

    @cached_property
    def strata(self) -> np.ndarray:
        """The group of each sample that label partitioners divide by, int64 [n].

        Its class; its first positive label, or one more than the last where it has none; the decile of its (first)
        number among the training samples; 0 for tokens.
        """
        y = self.y.numpy()
        if self.target == "class":
            return y
        if self.target == "tokens":
            return np.zeros(len(y), np.int64)
        if self.target == "labels":
            return np.where(y.any(1), y.argmax(1), self.classes).astype(np.int64)
        return np.searchsorted(self._decile_edges, y if y.ndim == 1 else y[:, 0], side="right")

    @cached_property
    def stratum_names(self) -> tuple[str, ...]:
        """What each group of samples is called."""
        if self.target == "class":
            return self.class_names
        if self.target == "tokens":
            return ("text",)
        if self.target == "labels":
            return (*self.class_names, "no label")
        edges = [f"{edge:.4g}" for edge in self._decile_edges]
        return (f"below {edges[0]}", *(f"from {edge}" for edge in edges))

    @cached_property
    def _decile_edges(self) -> np.ndarray:
        numbers = self.y_train.numpy()
        return np.quantile(numbers if numbers.ndim == 1 else numbers[:, 0], np.arange(1, DECILES) / DECILES)

    @property
    def x_train(self) -> Tensor:
        """Inputs of the training set."""
        return self.x[: self.train]

    @property
    def y_train(self) -> Tensor:
        """Labels of the training set."""
        return self.y[: self.train]

    @property
    def x_test(self) -> Tensor:
        """Inputs of the official test set, empty if there is none."""
        return self.x[self.train :]

    @property
    def y_test(self) -> Tensor:
        """Labels of the official test set, empty if there is none."""
        return self.y[self.train :]

    def key(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A natural key of the training and of the test samples."""
        return self.keys[name][: self.train], self.keys[name][self.train :]
