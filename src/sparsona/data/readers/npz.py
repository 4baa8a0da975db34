"""Arrays of npz files, with every header checked before anything of its size is allocated."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sparsona.data.arrays import NAMES, from_arrays
from sparsona.data.config import DataConfig
from sparsona.data.dataset import DataError, Dataset
from sparsona.data.readers.checks import MAX_EXPANSION, UNREADABLE


def read_npz(path: Path, wanted: Mapping[str, tuple[str, int]]) -> dict[str, np.ndarray]:
    """Arrays of an npz file by name, each of one of these dtype kinds and this many dimensions."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: _npy(archive, path, name, *form) for name, form in wanted.items()}
    except DataError:
        raise
    except UNREADABLE as error:
        raise DataError(f"{path}: is damaged or not an .npz file: {error}") from error


def _npy(archive: zipfile.ZipFile, path: Path, name: str, kinds: str = "", dimensions: int = 0) -> np.ndarray:
    """One array, of any kind and dimensions unless they are given.

    Its header is compared with the size of its entry before anything of that size is allocated.
    """
    if f"{name}.npy" not in archive.namelist():
        raise DataError(f"{path}: array {name!r} is missing")
    info = archive.getinfo(f"{name}.npy")
    _check_size(path, info)
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise DataError(f"{path}: array {name!r} has format version {version}, which is not supported")
        if dtype.hasobject and not kinds:
            raise DataError(
                f"{path}: array {name!r} is an array of objects; expected numbers, or texts such as astype('U')"
            )
        fits = not kinds or (not dtype.hasobject and dtype.kind in kinds and len(shape) == dimensions)
        if not fits or min(shape, default=0) < 0:
            raise DataError(
                f"{path}: array {name!r} is {dtype} {tuple(shape)}; "
                f"expected {dimensions} dimensions and a type of kind {' or '.join(kinds)}"
            )
        size = dtype.itemsize
        for side in shape:
            size *= side
        if size != info.file_size - stream.tell():
            raise DataError(
                f"{path}: array {name!r} has {info.file_size - stream.tell():,} bytes for its shape {shape}"
            )
        data, filled = bytearray(size), 0
        while chunk := stream.read(1 << 20):  # to the end: the checksum is compared there
            data[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
    if filled != size:
        raise DataError(f"{path}: array {name!r} ends after {filled:,} of {size:,} bytes")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _check_size(path: Path, info: zipfile.ZipInfo) -> None:
    """Refuse an entry that claims to be larger than what its file can unpack to."""
    if info.compress_size > path.stat().st_size or info.file_size > MAX_EXPANSION * info.compress_size + 1024:
        name = info.filename.removesuffix(".npy")
        raise DataError(f"{path}: array {name!r} claims {info.file_size:,} bytes, more than the file can hold")


def read_own_npz(path: Path, config: DataConfig) -> Dataset:
    """A user's data set: x and y, and optionally client, x_test, y_test, client_test, mean and std."""
    return from_arrays(str(path), own_arrays(path), config)


def own_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a user's .npz file; names and sizes are checked before anything is unpacked."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            names = [info.filename.removesuffix(".npy") for info in entries]
            for at, (name, info) in enumerate(zip(names, entries, strict=True)):
                if name not in NAMES or name in names[:at]:
                    allowed = f"expected {', '.join(NAMES)}, each once"
                    raise DataError(f"{path}: array {name!r} is not allowed; {allowed}")
                _check_size(path, info)
            return {name: _npy(archive, path, name) for name in names}
    except DataError:
        raise
    except UNREADABLE as error:
        raise DataError(f"{path}: cannot be read as .npz with x and y: {error}") from error
