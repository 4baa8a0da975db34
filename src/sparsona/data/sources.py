"""Where data come from: data sets by name, in the files of their publishers, and files and folders of users."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sparsona.core.text import nearest
from sparsona.data.config import DataConfig
from sparsona.data.dataset import DataError, Dataset
from sparsona.data.files import ENVIRONMENT, Files, Source, TextOptions
from sparsona.data.readers.cifar import read_cifar10, read_cifar100
from sparsona.data.readers.csv_file import read_csv
from sparsona.data.readers.digits import read_digits
from sparsona.data.readers.encoding_file import with_known_classes
from sparsona.data.readers.ham10000 import read_ham10000
from sparsona.data.readers.hugging_face import is_saved, read_saved
from sparsona.data.readers.idx import BYCLASS, DIGITS, FASHION, LETTERS, emnist_reader, mnist_reader
from sparsona.data.readers.imdb import read_imdb
from sparsona.data.readers.leaf import read_femnist, read_shakespeare
from sparsona.data.readers.npz import read_own_npz
from sparsona.data.readers.parquet import read_parquet
from sparsona.data.readers.pictures import is_pictures, read_pictures
from sparsona.data.readers.text import is_texts, read_text

_EMNIST = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
_EMNIST_FOLDERS = ("emnist", "emnist/gzip", "EMNIST/raw")
_LEAF = "https://github.com/TalwalkarLab/leaf"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html"

SOURCES: dict[str, Source] = {
    "digits": Source("Digits (in scikit-learn)", "https://scikit-learn.org", (), read_digits),
    "mnist": Source(
        "MNIST",
        "http://yann.lecun.com/exdb/mnist/",
        ("mnist", "MNIST/raw"),
        mnist_reader(DIGITS, 0.1307, 0.3081, writers=True),
    ),
    "fashion-mnist": Source(
        "Fashion-MNIST",
        "https://github.com/zalandoresearch/fashion-mnist",
        ("fashion-mnist", "FashionMNIST/raw"),
        mnist_reader(FASHION, 0.2860, 0.3530),
    ),
    "emnist-letters": Source(
        "EMNIST letters", _EMNIST, _EMNIST_FOLDERS, emnist_reader("letters", LETTERS, 1, 0.1722, 0.3309)
    ),
    "emnist-byclass": Source(
        "EMNIST by class", _EMNIST, _EMNIST_FOLDERS, emnist_reader("byclass", BYCLASS, 0, 0.1736, 0.3317)
    ),
    "femnist": Source("FEMNIST", _LEAF, ("femnist", "femnist/data"), read_femnist),
    "cifar10": Source("CIFAR-10", _CIFAR, ("cifar-10-batches-bin",), read_cifar10),
    "cifar100": Source("CIFAR-100", _CIFAR, ("cifar-100-binary",), read_cifar100),
    "imdb": Source("IMDB reviews", "https://ai.stanford.edu/~amaas/data/sentiment/", ("imdb",), read_imdb),
    "shakespeare": Source("Shakespeare", _LEAF, ("shakespeare", "shakespeare/data"), read_shakespeare),
    "ham10000": Source("HAM10000", "https://doi.org/10.7910/DVN/DBW86T", ("ham10000-28",), read_ham10000),
}

FILES: dict[str, Callable[[Path, DataConfig], Dataset]] = {  # by the end of a file's name
    ".npz": read_own_npz,
    ".csv": read_csv,
    ".parquet": read_parquet,
    ".txt": read_text,
}


def read_source(config: DataConfig, root: Path | None = None) -> Dataset:
    """The data set of a configuration: one of ours, or a user's file or folder."""
    if config.built_in:
        return load(config.source, root, vocabulary=config.vocabulary, length=config.length)
    config = with_known_classes(config)
    path = Path(config.source)
    if path.is_dir():
        return _read_folder(path, config)
    if path.suffix.lower() not in FILES:
        raise DataError(
            f"{path}: not a folder, and not a known kind of file; expected one that ends with {', '.join(FILES)}"
        )
    if not path.is_file():
        raise DataError(f"{path}: cannot be read: no such file")
    return FILES[path.suffix.lower()](path, config)


def _read_folder(folder: Path, config: DataConfig) -> Dataset:
    if is_saved(folder):
        return read_saved(folder, config)
    if is_texts(folder) and not is_pictures(folder):
        return read_text(folder, config)
    if is_pictures(folder):
        return read_pictures(folder, config)
    raise DataError(
        f"{folder}: no data; expected pictures, .txt files or a data set saved with Hugging Face's save_to_disk"
    )


def load(name: str, root: Path | None = None, *, vocabulary: int | None = None, length: int | None = None) -> Dataset:
    """A data set by name, from ``root`` or else the directory the environment variable SPARSONA_DATA names."""
    if name not in SOURCES:
        raise ValueError(f'data.source: "{name}" not found{nearest(name, SOURCES)}')
    default = DataConfig(source=name)
    vocabulary = default.vocabulary if vocabulary is None else vocabulary
    length = default.length if length is None else length
    if vocabulary < 3:
        raise ValueError(
            f"data.vocabulary: {vocabulary} is not allowed; expected an int >= 3, as ids 0 to 2 are reserved"
        )
    if length < 1:
        raise ValueError(f"data.length: {length} is not allowed; expected an int >= 1")
    if root is None and (named := os.environ.get(ENVIRONMENT)):
        root = Path(named)
    source = SOURCES[name]
    return source.read(Files(name, source, root), TextOptions(vocabulary, length))
