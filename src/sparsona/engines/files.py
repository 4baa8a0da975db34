"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def write(path: Path, data: bytes | str, *, private: bool = False) -> None:
    """Replace a file, if ``private`` one for its owner alone, as a whole or not at all; it is on the disk then."""
    part = path.with_name(path.name + ".part")
    raw = data.encode() if isinstance(data, str) else data
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666), "wb") as f:
        f.write(raw)
        f.flush()
        os.fsync(f.fileno())
    part.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)  # the name, too, must be on the disk
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems know no such thing
            raise
    finally:
        os.close(folder)
