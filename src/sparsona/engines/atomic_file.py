"""Atomic writes: a file is replaced as a whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

_AT_ONCE = 32  # files that are synced together: a disk takes hardly longer for them than for one


def write(path: Path, data: bytes | str, *, private: bool = False) -> None:
    """Replace a file atomically and sync it to disk; only its owner can read a ``private`` one."""
    _put(path, data.encode() if isinstance(data, str) else data, 0o600 if private else 0o666)
    _sync_names(path.parent)


def write_all(files: Iterable[tuple[Path, bytes]]) -> None:
    """Replace many files, each atomically, and sync them to disk; few are in memory at a time."""
    rest, folders = iter(files), set[Path]()
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        while some := list(islice(rest, _AT_ONCE)):
            list(threads.map(lambda file: _put(*file), some))
            folders |= {path.parent for path, _ in some}
    for folder in folders:
        _sync_names(folder)


def _put(path: Path, raw: bytes, mode: int = 0o666) -> None:
    part = path.with_name(path.name + ".part")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as f:
        f.write(raw)
        f.flush()
        os.fsync(f.fileno())
    part.replace(path)


def _sync_names(path: Path) -> None:
    """Have the names in a folder on the disk, too; Windows opens no folders, and writes names itself."""
    if os.name == "nt":
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems do not support it
            raise
    finally:
        os.close(folder)
