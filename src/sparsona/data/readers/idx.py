"""MNIST, Fashion-MNIST and EMNIST: idx files of the official releases, packed or not. QMNIST names MNIST's writers."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedIOBase
from pathlib import Path

import numpy as np
import torch

from sparsona.core.samples import Prepare
from sparsona.data.dataset import DataError, Dataset
from sparsona.data.files import Files, TextOptions
from sparsona.data.readers.checks import CHUNK, MAX_EXPANSION, MAX_SAMPLES, UNREADABLE, checked_labels
from sparsona.data.readers.npz import read_npz

DIGITS = tuple("0123456789")
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
BYCLASS = (*DIGITS, *(letter.upper() for letter in LETTERS), *LETTERS)
FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)


WRITERS = tuple(f"qmnist-{split}-labels-idx2-int.gz" for split in ("train", "test"))
_QMNIST = "https://github.com/facebookresearch/qmnist"
_COLUMNS = {"hsf": 1, "writer": 2}  # of the 8 in QMNIST's labels; column 0 is the class


def mnist_reader(
    names: tuple[str, ...], mean: float, std: float, *, writers: bool = False
) -> Callable[[Files, TextOptions], Dataset]:
    """A reader of MNIST's four files, for these classes; with the keys of ``writers`` if QMNIST's labels are there."""

    def read(files: Files, _: TextOptions) -> Dataset:
        pairs = [(f"{s}-images-idx3-ubyte.gz", f"{s}-labels-idx1-ubyte.gz") for s in ("train", "t10k")]
        x, y, train = _read_pairs(files, pairs, 28)
        labels = checked_labels(y, len(names), files.name)
        data = Dataset(files.name, torch.from_numpy(x), labels, train, names, (1, 28, 28), Prepare((mean,), (std,)))
        return _with_writers(data, files, y) if writers else data

    return read


def _with_writers(data: Dataset, files: Files, y: np.ndarray) -> Dataset:
    """MNIST with who wrote each digit, from QMNIST's labels or a file writers.npz; without them, what is missing."""
    parts = (y[: data.train], y[data.train :])
    if all(files.has(name) for name in WRITERS):
        tables = [_qmnist(files.find(name), part) for name, part in zip(WRITERS, parts, strict=True)]
        return replace(data, keys={key: np.concatenate([t[:, at] for t in tables]) for key, at in _COLUMNS.items()})
    if not files.has("writers.npz"):
        lacking = " and ".join(name for name in WRITERS if not files.has(name))
        needed = f"needs {lacking} beside MNIST's files; QMNIST is published at {_QMNIST}"
        return replace(data, missing_keys=dict.fromkeys(_COLUMNS, needed))
    path = files.find("writers.npz")
    arrays = read_npz(path, {f"{s}_{k}": ("u", 1) for s in ("train", "test") for k in _COLUMNS})
    for name, array in arrays.items():
        count = len(parts[0] if name.startswith("train") else parts[1])
        if len(array) != count:
            raise DataError(f"{path}: {len(array):,} {name}; expected {count:,}, one per digit")
    both = {key: (arrays[f"train_{key}"], arrays[f"test_{key}"]) for key in _COLUMNS}
    return replace(data, keys={key: np.concatenate(each).astype(np.int64) for key, each in both.items()})


def _qmnist(path: Path, y: np.ndarray) -> np.ndarray:
    """The first rows [n, 8] of a file of QMNIST's extended labels, whose classes must be those of MNIST.

    QMNIST's test set has 60,000 digits, of which the first 10,000 are those of MNIST.
    """
    with _open_idx(path, 0xC02, (8,)) as (stream, count):
        if count < len(y):
            raise DataError(f"{path}: {count:,} rows; expected {len(y):,} or more, one per digit")
        table = np.empty((count, 8), ">i4")
        _fill(stream, table.view(np.uint8), path)
    rows = table[: len(y)].astype(np.int64)
    if (wrong := rows[:, 0] != y).any():
        at = int(wrong.argmax())
        raise DataError(f"{path}: digit {at} is a {rows[at, 0]}, in MNIST a {y[at]}; expected the same digits")
    return rows


def emnist_reader(
    part: str, names: tuple[str, ...], first: int, mean: float, std: float
) -> Callable[[Files, TextOptions], Dataset]:
    """A reader of a part of EMNIST whose labels count from ``first``."""

    def read(files: Files, _: TextOptions) -> Dataset:
        pairs = [
            (f"emnist-{part}-{s}-images-idx3-ubyte.gz", f"emnist-{part}-{s}-labels-idx1-ubyte.gz")
            for s in ("train", "test")
        ]
        x, y, train = _read_pairs(files, pairs, 28)
        for start in range(0, len(x), CHUNK):  # EMNIST stores columns before rows
            x[start : start + CHUNK] = x[start : start + CHUNK].swapaxes(1, 2).copy()
        labels = checked_labels(y, len(names), files.name, first)
        return Dataset(files.name, torch.from_numpy(x), labels, train, names, (1, 28, 28), Prepare((mean,), (std,)))

    return read


def _read_pairs(files: Files, pairs: Sequence[tuple[str, str]], side: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Pictures [n, side, side, 1] and labels [n] of (images, labels) files of training and test, and how many train."""
    paths = [(files.find(images), files.find(labels)) for images, labels in pairs]
    counts = []
    for images, labels in paths:
        with _open_idx(images, 0x803, (side, side)) as (_, count), _open_idx(labels, 0x801, ()) as (_, named):
            pass
        if count != named:
            raise DataError(f"{images}: {count:,} pictures; expected {named:,}, as {labels} has labels")
        counts.append(count)
    x = np.empty((sum(counts), side, side, 1), np.uint8)
    y = np.empty(sum(counts), np.uint8)
    start = 0
    for (images, labels), count in zip(paths, counts, strict=True):
        for path, magic, sides, out in ((images, 0x803, (side, side), x), (labels, 0x801, (), y)):
            with _open_idx(path, magic, sides) as (stream, _):
                _fill(stream, out[start : start + count], path)
        start += count
    return x, y, counts[0]


@contextmanager
def _open_idx(path: Path, magic: int, sides: Sequence[int]) -> Iterator[tuple[BufferedIOBase, int]]:
    """An idx file of bytes behind its checked header, and how many items follow."""
    packed = path.suffix == ".gz"
    with gzip.open(path) if packed else path.open("rb") as stream:
        header = _exactly(stream, 4 * (2 + len(sides)), path)
        start, count, *item_sides = struct.unpack(f">{2 + len(sides)}I", header)
        if start != magic:
            raise DataError(f"{path}: starts with {start:#010x}; expected {magic:#010x} of an idx file")
        if item_sides != list(sides):
            raise DataError(f"{path}: items of size {item_sides}; expected {list(sides)}")
        size = path.stat().st_size * (MAX_EXPANSION if packed else 1)
        if not 0 < count <= MAX_SAMPLES or count * int(np.prod(sides)) > size:
            raise DataError(f"{path}: the header claims {count:,} items, more than a file of this size can hold")
        yield stream, count


def _exactly(stream: BufferedIOBase, size: int, path: Path) -> bytes:
    """The next ``size`` bytes, of which there must be so many."""
    try:
        data = stream.read(size)
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be unpacked: {error}") from error
    if len(data) != size:
        raise DataError(f"{path}: ends after {len(data)} of {size} header bytes")
    return data


def _fill(stream: BufferedIOBase, out: np.ndarray, path: Path) -> None:
    """Fill a contiguous array from the rest of a file, which must be exactly as long."""
    assert out.flags.c_contiguous
    flat = memoryview(out.reshape(-1))  # type: ignore[arg-type]
    filled = 0
    try:
        while filled < len(flat) and (step := stream.readinto(flat[filled : filled + (1 << 20)])):
            filled += step
        trailing = stream.read(1)  # also reads the checksum at the end of a gzip file
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be unpacked: {error}") from error
    if filled < len(flat):
        raise DataError(f"{path}: ends after {filled:,} of {len(flat):,} bytes")
    if trailing:
        raise DataError(f"{path}: is longer than the {len(flat):,} bytes that its header claims")
