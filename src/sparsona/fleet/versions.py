"""What a device keeps of its client, on its own disk: one file per version, so that a round can be repeated."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from sparsona.engines.atomic_file import write

_FORM = re.compile(r"(\d{1,9})-([0-9a-f]{16})")

MAX_ROLLBACK = 100  # rounds that a server may go back, whatever it says
_ALIKE = 3  # values of one number that stay: a repeated round may have ended differently


class VersionLost(ValueError):
    """The device has not, or no longer, the version that the server speaks of."""


class VersionedState:
    """The versions of one client's value in one run; a version is a number and a digest of the value.

    The server's checkpoint says which version counts. If an answer was left out, or the server went back to an older
    checkpoint, that is not the newest one, so the last few stay.
    """

    def __init__(self, folder: Path, depth: int = 1) -> None:
        self.folder = folder
        self.depth = depth  # rounds that the server may go back

    def get(self, version: str) -> bytes:
        """The value of a version; raises VersionLost if it is not there or not what it was."""
        if not _FORM.fullmatch(version):
            raise VersionLost(f"{version[:40]!r} is not a version")
        file = self._file(version)
        try:
            value = file.read_bytes()
        except FileNotFoundError as error:
            have = ", ".join(self.versions()) or "none at all"
            raise VersionLost(f"version {version} is not on this device, which has {have}") from error
        if version != _name(int(version.partition("-")[0]), value):
            raise VersionLost(f"version {version} on this device is damaged")
        os.utime(file)  # what is used stays
        return value

    def put(self, before: str | None, value: bytes) -> str:
        """Keep a new value, that came of the version before it, and give its version."""
        number = 0 if before is None else int(before.partition("-")[0]) + 1
        version = _name(number, value)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write(self._file(version), value, private=True)
        self._prune(number, {version, before})
        return version

    def _prune(self, newest: int, needed: set[str | None]) -> None:
        """Forget what is too far from the newest, and but a few of those that were made again; clocks may be wrong."""
        for half in self.folder.glob("*.part"):  # of a device that was killed
            half.unlink(missing_ok=True)
        by_number: dict[int, list[Path]] = {}
        for file in self.folder.glob("*.value"):
            if _FORM.fullmatch(file.stem) and file.stem not in needed:
                by_number.setdefault(int(file.stem.partition("-")[0]), []).append(file)
        for number, files in by_number.items():
            files.sort(key=lambda f: f.stat().st_mtime_ns, reverse=True)
            for file in files[_ALIKE if abs(number - newest) <= self.depth + 1 else 0 :]:
                file.unlink(missing_ok=True)

    def versions(self) -> list[str]:
        """The versions that are here."""
        return sorted(file.stem for file in self.folder.glob("*.value"))

    def _file(self, version: str) -> Path:
        return self.folder / f"{version}.value"


def _name(number: int, value: bytes) -> str:
    return f"{number}-{hashlib.sha256(value).hexdigest()[:16]}"
