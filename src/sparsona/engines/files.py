"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, data: bytes | str) -> None:
    """Replace a file as a whole or not at all."""
    part = path.with_name(path.name + ".part")
    raw = data.encode() if isinstance(data, str) else data
    with part.open("wb") as f:
        f.write(raw)
        f.flush()
        os.fsync(f.fileno())
    part.replace(path)
