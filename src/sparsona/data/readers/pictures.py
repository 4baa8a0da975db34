"""Folders of pictures: a sub-folder per class, or a CSV file that names file, label and client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sparsona.core.samples import Prepare
from sparsona.data.config import DataConfig
from sparsona.data.dataset import DataError, Dataset
from sparsona.data.readers.csv_file import is_truth, read_table
from sparsona.data.readers.extras import needs
from sparsona.data.readers.tables import TableColumn, from_columns, with_rows

ENDINGS = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"}
_GREY, _COLOUR = {"1", "L", "LA"}, {"P", "RGB", "RGBA", "CMYK", "YCbCr", "PA", "RGBX"}
_FILE = "file"  # the column of picture files


def read_pictures(folder: Path, config: DataConfig) -> Dataset:
    """A data set from a folder: CLASS/NAME.png, or train/CLASS/NAME.png and test/CLASS/NAME.png, or a CSV file."""
    needs("PIL", "pictures", str(folder))
    tables = sorted(folder.glob("*.csv"))
    if len(tables) > 1:
        raise DataError(f"{folder}: has {len(tables)} CSV files; expected one, with columns for file, label and client")
    if tables:
        return _from_table(folder, tables[0], config)
    parts = [part for part in ("train", "test") if (folder / part).is_dir()]
    if parts and parts != ["train", "test"]:
        raise DataError(f"{folder}: has only the folder {parts[0]!r}; expected both train and test, or neither")
    listed = [_by_class(folder / part if part else folder) for part in parts or ("",)]
    files = [file for part in listed for file, _ in part]
    names = np.array([label for part in listed for _, label in part])
    columns = {"label": TableColumn(names), _FILE: TableColumn(np.array([str(file) for file in files]))}
    plain = replace(config, label="label", client=None, features=(_FILE,), test=None, encoding=None)
    labels = from_columns(str(folder), columns, plain)
    return _with_pictures(labels, files, len(listed[0]), config)


def is_pictures(folder: Path) -> bool:
    """Whether a folder holds pictures, at its top or below."""
    return any(path.suffix.lower() in ENDINGS for path in folder.rglob("*"))


def _by_class(folder: Path) -> list[tuple[Path, str]]:
    """The pictures of a folder with a sub-folder per class, in order."""
    files = []
    for sub in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        mine = sorted(path for path in sub.rglob("*") if path.suffix.lower() in ENDINGS)
        if not mine:
            raise DataError(f"{sub}: no pictures; each sub-folder is a class and needs at least one")
        files += [(path, sub.name) for path in mine]
    if not files:
        raise DataError(
            f"{folder}: no pictures; expected sub-folders with pictures, or a CSV file with columns for file and label"
        )
    return files


def _from_table(folder: Path, path: Path, config: DataConfig) -> Dataset:
    table, config = read_table(path), replace(config, features=(_FILE,), encoding=None)
    if config.test is None and "test" in table.header and is_truth(table.texts("test")):
        config = replace(config, test="test")
    if _FILE not in table.header:
        raise DataError(f"{path}: no column {_FILE!r} with the picture of each row; found {', '.join(table.header)}")
    named = table.texts(_FILE)
    inside = folder.resolve()
    for line, name in zip(table.lines, named, strict=True):
        if not (folder / name).resolve().is_relative_to(inside):
            raise DataError(f"{path}, row {line}: picture {name!r} is not allowed; expected a path inside {folder}")
        if not name or not (folder / name).is_file():
            raise DataError(f"{path}, row {line}: picture {name!r} not found in {folder}")
    labels, rows = with_rows(str(path), table.columns(config), config, numbers=table.lines)
    files = [folder / named[row] for row in rows]
    return _with_pictures(replace(labels, name=str(folder)), files, labels.train, config)


def _with_pictures(labels: Dataset, files: Sequence[Path], train: int, config: DataConfig) -> Dataset:
    """A data set of labels with the pictures that they are for."""
    from PIL import Image

    heads = []
    for file in files:
        with _opened(file) as image:
            if image.mode not in _GREY | _COLOUR:
                raise DataError(f"{file}: mode {image.mode} is not supported; save the picture with 8 bits per channel")
            heads.append((image.size, image.mode))
    size = heads[0][0] if config.side is None else (config.side, config.side)
    if config.side is None:
        for file, (other, _) in zip(files, heads, strict=True):
            if other != size:
                raise DataError(
                    f"{file}: {other[0]} x {other[1]} pixels; expected {size[0]} x {size[1]}, as {files[0].name}; "
                    "set data.side to resize all pictures"
                )
    mode = "L" if all(mode in _GREY for _, mode in heads) else "RGB"
    channels = 1 if mode == "L" else 3
    x = np.empty((len(files), size[1], size[0], channels), np.uint8)
    for at, file in enumerate(files):
        with _opened(file) as image:
            try:
                plain = image.convert(mode)
                plain = plain if plain.size == size else plain.resize(size, Image.Resampling.BILINEAR)
                x[at] = np.asarray(plain).reshape(x.shape[1:])
            except (OSError, ValueError, SyntaxError) as error:
                raise DataError(f"{file}: cannot be read as a picture: {error}") from error
    prepare = Prepare((0.5,) * channels, (0.5,) * channels)
    shape = (channels, size[1], size[0])
    return replace(labels, x=torch.from_numpy(x), train=train, shape=shape, prepare=prepare, encode=None)


def _opened(file: Path) -> Any:
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(file)
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError, SyntaxError) as error:
        raise DataError(f"{file}: cannot be read as a picture: {error}") from error
