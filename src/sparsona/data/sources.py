"""Data sets read from the files of their publishers, checked as they are read: no download, no pickle."""

from __future__ import annotations

import gzip
import importlib.util
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sparsona.core.samples import Prepare

ENVIRONMENT = "SPARSONA_DATA"

_MAX_SAMPLES = 2_000_000  # no source is larger; a header that claims more is damaged
_MAX_EXPANSION = 1032  # deflate cannot shrink more than this, so a file's size bounds what it may unpack to
_MAX_SIDE = 512
_CHUNK = 4096  # samples at a time where a whole array would need a second copy

_UNREADABLE = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    MemoryError,
    SyntaxError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    tokenize.TokenError,
)


class DataError(ValueError):
    """A data file is missing, damaged or not what its name says."""


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in two tensors, training samples first, so that a split may cross the border without a copy."""

    name: str
    x: Tensor  # pictures: uint8 [n, height, width, channels]; text: int32 [n, length]
    y: Tensor  # [n] int64
    train: int  # the first so many are the training set, the others the official test set
    class_names: tuple[str, ...]
    shape: tuple[int, ...]  # (channels, height, width) of a picture, (length,) of a text
    prepare: Prepare
    keys: Mapping[str, np.ndarray] = field(default_factory=dict)  # [n] each: who wrote, where taken, about what
    vocabulary: int = 0  # number of token ids of a text

    def __len__(self) -> int:
        return len(self.y)

    @property
    def classes(self) -> int:
        """Number of labels."""
        return len(self.class_names)

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


@dataclass(frozen=True)
class Options:
    """How text is cut: ids from ``vocabulary`` on become 2 ("any other word"), of a review the last tokens stay."""

    vocabulary: int = 10_000
    length: int = 256


@dataclass(frozen=True)
class Source:
    """Where a data set comes from and how its files become tensors."""

    title: str
    url: str  # the publisher's page
    folders: tuple[str, ...]  # below the data directory, the first that has the file wins
    read: Callable[[Files, Options], Dataset]


@dataclass(frozen=True)
class Files:
    """The files of one source below a data directory."""

    name: str
    source: Source
    root: Path | None

    def find(self, file: str) -> Path:
        """The path of a file; a gzip file may also lie there unpacked."""
        names = (file, file.removesuffix(".gz")) if file.endswith(".gz") else (file,)
        offer = f"the data set is published at {self.source.url}"
        if self.root is None:
            raise DataError(
                f"{self.source.title} needs {self.source.folders[0]}/{file}: "
                f"name the data directory (--data-dir or the environment variable {ENVIRONMENT}); {offer}"
            )
        for folder in self.source.folders:
            for candidate in names:
                if (path := self.root / folder / candidate).is_file():
                    return path
        looked = ", ".join(str(self.root / folder) for folder in self.source.folders)
        raise DataError(f"{self.source.title}: no file {file} in {looked}; {offer}")

    def has(self, file: str) -> bool:
        """Whether an optional file is there."""
        return self.root is not None and any((self.root / folder / file).is_file() for folder in self.source.folders)


def load(name: str, root: Path | None = None, *, vocabulary: int = 10_000, length: int = 256) -> Dataset:
    """A data set by name, from ``root`` or else the directory the environment variable SPARSONA_DATA names."""
    if name not in SOURCES:
        raise ValueError(f"source {name!r} is unknown; there are {', '.join(SOURCES)}")
    if vocabulary < 3:
        raise ValueError(f"vocabulary {vocabulary} is too small: ids 0 to 2 are padding, start and any other word")
    if length < 1:
        raise ValueError(f"length {length} must be at least 1")
    if root is None and (named := os.environ.get(ENVIRONMENT)):
        root = Path(named)
    source = SOURCES[name]
    return source.read(Files(name, source, root), Options(vocabulary, length))


# --- idx: MNIST, Fashion-MNIST, EMNIST ---


@contextmanager
def _open_idx(path: Path, magic: int, sides: Sequence[int]) -> Iterator[tuple[BufferedIOBase, int]]:
    """An idx file of bytes behind its checked header, and how many items follow."""
    packed = path.suffix == ".gz"
    with gzip.open(path) if packed else path.open("rb") as stream:
        header = _exactly(stream, 4 * (2 + len(sides)), path)
        found, count, *found_sides = struct.unpack(f">{2 + len(sides)}I", header)
        if found != magic:
            raise DataError(f"{path}: starts with {found:#010x} instead of {magic:#010x}, so it is no such idx file")
        if found_sides != list(sides):
            raise DataError(f"{path}: holds items of size {found_sides} instead of {list(sides)}")
        size = path.stat().st_size * (_MAX_EXPANSION if packed else 1)
        if not 0 < count <= _MAX_SAMPLES or count * int(np.prod(sides)) > size:
            raise DataError(f"{path}: the header claims {count:,} items, which a file of this size cannot hold")
        yield stream, count


def _exactly(stream: BufferedIOBase, size: int, path: Path) -> bytes:
    """The next ``size`` bytes, of which there must be so many."""
    try:
        data = stream.read(size)
    except _UNREADABLE as error:
        raise DataError(f"{path}: cannot be unpacked ({error})") from error
    if len(data) != size:
        raise DataError(f"{path}: ends after {len(data)} of {size} header bytes")
    return data


def _fill(stream: BufferedIOBase, out: np.ndarray, path: Path) -> None:
    """Fill a contiguous array from the rest of a file, which must be exactly as long."""
    assert out.flags.c_contiguous
    flat = memoryview(out.reshape(-1))  # type: ignore[arg-type]
    done = 0
    try:
        while done < len(flat) and (step := stream.readinto(flat[done : done + (1 << 20)])):
            done += step
        more = stream.read(1)  # also reads the checksum at the end of a gzip file
    except _UNREADABLE as error:
        raise DataError(f"{path}: cannot be unpacked ({error})") from error
    if done < len(flat):
        raise DataError(f"{path}: ends after {done:,} of {len(flat):,} bytes")
    if more:
        raise DataError(f"{path}: goes on after the {len(flat):,} bytes its header claims")


def _idx(files: Files, pairs: Sequence[tuple[str, str]], side: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Pictures [n, side, side, 1] and labels [n] of (images, labels) files of training and test, and how many train."""
    found = [(files.find(images), files.find(labels)) for images, labels in pairs]
    counts = []
    for images, labels in found:
        with _open_idx(images, 0x803, (side, side)) as (_, count), _open_idx(labels, 0x801, ()) as (_, named):
            pass
        if count != named:
            raise DataError(f"{images} has {count:,} pictures, but {labels} has {named:,} labels")
        counts.append(count)
    x = np.empty((sum(counts), side, side, 1), np.uint8)
    y = np.empty(sum(counts), np.uint8)
    start = 0
    for (images, labels), count in zip(found, counts, strict=True):
        for path, magic, sides, out in ((images, 0x803, (side, side), x), (labels, 0x801, (), y)):
            with _open_idx(path, magic, sides) as (stream, _):
                _fill(stream, out[start : start + count], path)
        start += count
    return x, y, counts[0]


def _labels(y: np.ndarray, classes: int, where: str, first: int = 0) -> Tensor:
    """Labels as int64 from 0 on, each of which must be a class."""
    wrong = (y < first) | (y >= first + classes)
    if wrong.any():
        at = int(wrong.argmax())
        raise DataError(f"{where}: label {int(y[at])} of sample {at} is not in {first} to {first + classes - 1}")
    return torch.from_numpy(y.astype(np.int64) - first)


def _idx_source(names: tuple[str, ...], mean: float, std: float) -> Callable[[Files, Options], Dataset]:
    def read(files: Files, _: Options) -> Dataset:
        pairs = [(f"{s}-images-idx3-ubyte.gz", f"{s}-labels-idx1-ubyte.gz") for s in ("train", "t10k")]
        x, y, train = _idx(files, pairs, 28)
        keys = {}
        if files.has("writers.npz"):
            path = files.find("writers.npz")
            arrays = _npz(path, {f"{s}_{k}": ("u", 1) for s in ("train", "test") for k in ("writer", "hsf")})
            for key in ("writer", "hsf"):
                both = (arrays[f"train_{key}"], arrays[f"test_{key}"])
                if [len(k) for k in both] != [train, len(y) - train]:
                    raise DataError(f"{path}: names the {key} of {len(both[0])} + {len(both[1])} samples, not of all")
                keys[key] = np.concatenate(both).astype(np.int64)
        prepare = Prepare((mean,), (std,))
        labels = _labels(y, len(names), files.name)
        return Dataset(files.name, torch.from_numpy(x), labels, train, names, (1, 28, 28), prepare, keys)

    return read


def _emnist(
    part: str, names: tuple[str, ...], first: int, mean: float, std: float
) -> Callable[[Files, Options], Dataset]:
    def read(files: Files, _: Options) -> Dataset:
        pairs = [
            (f"emnist-{part}-{s}-images-idx3-ubyte.gz", f"emnist-{part}-{s}-labels-idx1-ubyte.gz")
            for s in ("train", "test")
        ]
        x, y, train = _idx(files, pairs, 28)
        for start in range(0, len(x), _CHUNK):  # EMNIST stores columns before rows
            x[start : start + _CHUNK] = x[start : start + _CHUNK].swapaxes(1, 2).copy()
        labels = _labels(y, len(names), files.name, first)
        return Dataset(files.name, torch.from_numpy(x), labels, train, names, (1, 28, 28), Prepare((mean,), (std,)))

    return read


# --- CIFAR, official binary release ---


def _records(path: Path, label_bytes: int) -> np.ndarray:
    """Records of label bytes, then 1024 red, 1024 green and 1024 blue bytes."""
    size, each = path.stat().st_size, label_bytes + 3072
    if not size or size % each:
        raise DataError(f"{path}: {size:,} bytes are not a whole number of records of {each:,}")
    if size // each > _MAX_SAMPLES:
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


def _cifar10(files: Files, _: Options) -> Dataset:
    paths = [files.find(f"{n}.bin") for n in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")]
    parts = [_records(path, 1) for path in paths]
    for path, part in zip(paths, parts, strict=True):  # the release has six equal files: a cut one shows
        if len(part) != len(parts[0]):
            raise DataError(f"{path}: {len(part):,} records, but {paths[0].name} has {len(parts[0]):,}")
    y = _labels(np.concatenate([part[:, 0] for part in parts]), 10, files.name)
    prepare = Prepare((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    return Dataset(files.name, _pictures(parts, 1), y, 5 * len(parts[0]), CIFAR10, (3, 32, 32), prepare)


def _cifar100(files: Files, _: Options) -> Dataset:
    paths = [files.find("train.bin"), files.find("test.bin")]
    parts = [_records(path, 2) for path in paths]
    train, test = map(len, parts)
    if train != 5 * test:
        raise DataError(f"{paths[0]} has {train:,} records and {paths[1].name} {test:,}: not five times as many")
    coarse, fine = np.concatenate([part[:, :2] for part in parts]).T
    superclass = _labels(coarse, 20, f"{files.name} (coarse)").numpy()
    prepare = Prepare((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    y = _labels(fine, 100, files.name)
    x = _pictures(parts, 2)
    return Dataset(files.name, x, y, train, CIFAR100, (3, 32, 32), prepare, {"superclass": superclass})


# --- npz: IMDB, HAM10000 ---


def _npz(path: Path, wanted: Mapping[str, tuple[str, int]]) -> dict[str, np.ndarray]:
    """Arrays of an npz file by name, each of one of these dtype kinds and this many dimensions."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: _npy(archive, path, name, *form) for name, form in wanted.items()}
    except DataError:
        raise
    except _UNREADABLE as error:
        raise DataError(f"{path}: is damaged or no npz file ({error})") from error


def _npy(archive: zipfile.ZipFile, path: Path, name: str, kinds: str, dimensions: int) -> np.ndarray:
    """One array, whose header is compared with the size of its entry before anything of that size is allocated."""
    if f"{name}.npy" not in archive.namelist():
        raise DataError(f"{path}: has no array {name!r}; it needs one")
    info = archive.getinfo(f"{name}.npy")
    if info.compress_size > path.stat().st_size or info.file_size > _MAX_EXPANSION * info.compress_size + 1024:
        raise DataError(f"{path}: array {name!r} claims {info.file_size:,} bytes, which the file cannot hold")
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise DataError(f"{path}: array {name!r} has the unknown format version {version}")
        if dtype.hasobject or dtype.kind not in kinds or len(shape) != dimensions or min(shape) < 0:
            raise DataError(
                f"{path}: array {name!r} is {dtype} {tuple(shape)}; "
                f"it must have {dimensions} dimensions and a type of kind {' or '.join(kinds)}"
            )
        size = dtype.itemsize
        for side in shape:
            size *= side
        if size != info.file_size - stream.tell():
            raise DataError(
                f"{path}: array {name!r} has {info.file_size - stream.tell():,} bytes for its shape {shape}"
            )
        data = stream.read()  # to the end: the checksum is compared there
    if len(data) != size:
        raise DataError(f"{path}: array {name!r} ends after {len(data):,} of {size:,} bytes")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _imdb(files: Files, options: Options) -> Dataset:
    path = files.find("imdb_tokens.npz")
    forms = {"tokens": "u", "offsets": "iu", "label": "u", "rating": "u", "movie": "u"}
    arrays = _npz(path, {f"{s}_{name}": (kinds, 1) for s in ("train", "test") for name, kinds in forms.items()})
    counts = [len(arrays[f"{s}_label"]) for s in ("train", "test")]
    if min(counts) < 1 or sum(counts) > _MAX_SAMPLES:
        raise DataError(f"{path}: {counts[0]:,} training and {counts[1]:,} test reviews are not what IMDB has")
    x = np.zeros((sum(counts), options.length), np.int32)
    start = 0
    for split, count in zip(("train", "test"), counts, strict=True):
        for name in ("rating", "movie"):
            if len(arrays[f"{split}_{name}"]) != count:
                raise DataError(f"{path}: {len(arrays[f'{split}_{name}']):,} {split}_{name} for {count:,} labels")
        tokens, offsets = arrays[f"{split}_tokens"], arrays[f"{split}_offsets"].astype(np.int64)
        if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != len(tokens) or (np.diff(offsets) < 0).any():
            raise DataError(f"{path}: {split}_offsets must rise from 0 to {len(tokens):,} in {count:,} steps")
        _pad(tokens, offsets, options, x[start : start + count])
        start += count
    y = np.concatenate([arrays["train_label"], arrays["test_label"]])
    keys = {
        k: np.concatenate([arrays[f"{s}_{k}"] for s in ("train", "test")]).astype(np.int64) for k in ("movie", "rating")
    }
    labels = _labels(y, 2, str(path))
    names, shape = ("negative", "positive"), (options.length,)
    return Dataset(
        files.name, torch.from_numpy(x), labels, counts[0], names, shape, Prepare(), keys, options.vocabulary
    )


def _pad(tokens: np.ndarray, offsets: np.ndarray, options: Options, out: np.ndarray) -> None:
    """The last tokens of each review, at the right end of a row of zeros."""
    back = np.arange(-options.length, 0)
    for start in range(0, len(out), _CHUNK):
        rows = out[start : start + _CHUNK]
        first, last = offsets[start : start + len(rows), None], offsets[start + 1 : start + len(rows) + 1, None]
        places = last + back
        held = places >= first
        words = tokens[places[held]].astype(np.int32)
        rows[held] = np.where(words < options.vocabulary, words, 2)


def _ham10000(files: Files, _: Options) -> Dataset:
    path = files.find("ham10000_28.npz")
    keys = ("site", "sex", "localization")
    forms = {"images": ("u", 4), "label": ("u", 1), "test": ("b", 1), "class_names": ("U", 1)}
    arrays = _npz(path, forms | dict.fromkeys(keys, ("u", 1)) | {f"{k}_names": ("U", 1) for k in keys})
    images, count = arrays["images"], len(arrays["label"])
    _, height, width, channels = images.shape
    if images.dtype != np.uint8 or channels != 3 or not (0 < height <= _MAX_SIDE and 0 < width <= _MAX_SIDE):
        raise DataError(f"{path}: images are {images.dtype} {images.shape}; they must be uint8 [n, height, width, 3]")
    for name in ("images", "test", *keys):
        if len(arrays[name]) != count:
            raise DataError(f"{path}: {len(arrays[name]):,} {name} for {count:,} labels")
    train = int((~arrays["test"]).sum())
    if not 0 < train < count:
        raise DataError(f"{path}: the flag test leaves {train:,} of {count:,} samples to train on")
    order = np.argsort(arrays["test"], kind="stable")
    named = {}
    for key in keys:
        codes, names = arrays[key], arrays[f"{key}_names"]
        _labels(codes, len(names), f"{path} ({key})")
        named[key] = names[codes[order]]
    class_names = tuple(str(name) for name in arrays["class_names"])
    y = _labels(arrays["label"][order], len(class_names), str(path))
    prepare = Prepare((0.7640, 0.5460, 0.5704), (0.1387, 0.1498, 0.1665))
    x = torch.from_numpy(images[order])
    return Dataset(files.name, x, y, train, class_names, (3, height, width), prepare, named)


# --- embedded ---


def _digits(files: Files, _: Options) -> Dataset:
    found = importlib.util.find_spec("sklearn")
    places = (found.submodule_search_locations if found else None) or ()
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


DIGITS = tuple("0123456789")
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
BYCLASS = (*DIGITS, *(letter.upper() for letter in LETTERS), *LETTERS)
FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
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

_EMNIST = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
_EMNIST_FOLDERS = ("emnist", "emnist/gzip", "EMNIST/raw")
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html"

SOURCES: dict[str, Source] = {
    "digits": Source("Digits (in scikit-learn)", "https://scikit-learn.org", (), _digits),
    "mnist": Source(
        "MNIST", "http://yann.lecun.com/exdb/mnist/", ("mnist", "MNIST/raw"), _idx_source(DIGITS, 0.1307, 0.3081)
    ),
    "fashion-mnist": Source(
        "Fashion-MNIST",
        "https://github.com/zalandoresearch/fashion-mnist",
        ("fashion-mnist", "FashionMNIST/raw"),
        _idx_source(FASHION, 0.2860, 0.3530),
    ),
    "emnist-letters": Source(
        "EMNIST letters", _EMNIST, _EMNIST_FOLDERS, _emnist("letters", LETTERS, 1, 0.1722, 0.3309)
    ),
    "emnist-byclass": Source(
        "EMNIST by class", _EMNIST, _EMNIST_FOLDERS, _emnist("byclass", BYCLASS, 0, 0.1736, 0.3317)
    ),
    "cifar10": Source("CIFAR-10", _CIFAR, ("cifar-10-batches-bin",), _cifar10),
    "cifar100": Source("CIFAR-100", _CIFAR, ("cifar-100-binary",), _cifar100),
    "imdb": Source("IMDB reviews", "https://ai.stanford.edu/~amaas/data/sentiment/", ("imdb",), _imdb),
    "ham10000": Source("HAM10000", "https://doi.org/10.7910/DVN/DBW86T", ("ham10000-28",), _ham10000),
}
