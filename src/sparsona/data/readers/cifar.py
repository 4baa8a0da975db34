"""CIFAR-10 and CIFAR-100: the official binary releases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sparsona.core.samples import Prepare
from sparsona.data.dataset import DataError, Dataset
from sparsona.data.files import Files, TextOptions
from sparsona.data.readers.checks import MAX_SAMPLES, checked_labels

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""
CIFAR100 = tuple(_CIFAR100.split())


def read_cifar10(files: Files, _: TextOptions) -> Dataset:
    """CIFAR-10 from its six files."""
    paths = [files.find(f"{n}.bin") for n in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")]
    parts = [_records(path, 1) for path in paths]
    for path, part in zip(paths, parts, strict=True):  # the release has six equal files: a cut one shows
        if len(part) != len(parts[0]):
            raise DataError(f"{path}: {len(part):,} records; expected {len(parts[0]):,}, as in {paths[0].name}")
    y = checked_labels(np.concatenate([part[:, 0] for part in parts]), 10, files.name)
    prepare = Prepare((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    return Dataset(files.name, _pictures(parts, 1), y, 5 * len(parts[0]), CIFAR10, (3, 32, 32), prepare)


def read_cifar100(files: Files, _: TextOptions) -> Dataset:
    """CIFAR-100 from its two files, with superclasses as a natural key."""
    paths = [files.find("train.bin"), files.find("test.bin")]
    parts = [_records(path, 2) for path in paths]
    train, test = map(len, parts)
    if train != 5 * test:
        raise DataError(f"{paths[0]}: {train:,} records; expected five times those of {paths[1].name}, {test:,}")
    coarse, fine = np.concatenate([part[:, :2] for part in parts]).T
    superclass = checked_labels(coarse, 20, f"{files.name} (coarse)").numpy()
    prepare = Prepare((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    y = checked_labels(fine, 100, files.name)
    x = _pictures(parts, 2)
    return Dataset(files.name, x, y, train, CIFAR100, (3, 32, 32), prepare, {"superclass": superclass})


def _records(path: Path, label_bytes: int) -> np.ndarray:
    """Records of label bytes, then 1024 red, 1024 green and 1024 blue bytes."""
    size, each = path.stat().st_size, label_bytes + 3072
    if not size or size % each:
        raise DataError(f"{path}: {size:,} bytes; expected a multiple of {each:,}, the size of a record")
    if size // each > MAX_SAMPLES:
        raise DataError(f"{path}: {size // each:,} records are more than CIFAR has")
    records = np.fromfile(path, np.uint8)
    if len(records) != size:
        raise DataError(f"{path}: ends after {len(records):,} of {size:,} bytes")
    return records.reshape(-1, each)


def _pictures(parts: Sequence[np.ndarray], label_bytes: int) -> Tensor:
    """All records as [n, 32, 32, 3]."""
    x = np.empty((sum(map(len, parts)), 32, 32, 3), np.uint8)
    start = 0
    for part in parts:
        x[start : start + len(part)] = part[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        start += len(part)
    return torch.from_numpy(x)
