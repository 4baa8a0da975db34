"""Digits, which come with scikit-learn."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch

from sparsona.core.samples import Prepare
from sparsona.data.dataset import Dataset
from sparsona.data.files import Files, TextOptions

DIGITS = tuple("0123456789")


def read_digits(files: Files, _: TextOptions) -> Dataset:
    """The data set, all of it for training."""
    package = importlib.util.find_spec("sklearn")
    places = (package.submodule_search_locations if package else None) or ()
    table = next((t for t in (Path(p, "datasets", "data", "digits.csv.gz") for p in places) if t.is_file()), None)
    if table is not None:  # importing scikit-learn would take a second, in every worker, and the file a hundredth
        rows = np.loadtxt(table, delimiter=",")
        data, target = rows[:, :-1], rows[:, -1]
    else:
        from sklearn.datasets import load_digits

        data, target = load_digits(return_X_y=True)
    x = np.rint(data * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    y = torch.from_numpy(target.astype(np.int64))
    return Dataset(files.name, torch.from_numpy(x), y, len(y), DIGITS, (1, 8, 8), Prepare((0.3053,), (0.3759,)))
