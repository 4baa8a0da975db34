"""Where the files of a data set lie, and which reader turns them into tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sparsona.data.dataset import DataError, Dataset

ENVIRONMENT = "SPARSONA_DATA"


@dataclass(frozen=True)
class TextOptions:
    """How text is cut: ids from ``vocabulary`` on become 2 ("any other word"), of a review the last tokens stay."""

    vocabulary: int = 10_000
    length: int = 256


@dataclass(frozen=True)
class Source:
    """Where a data set comes from and how its files become tensors."""

    title: str
    url: str  # the publisher's page
    folders: tuple[str, ...]  # below the data directory, the first that has the file wins
    read: Callable[[Files, TextOptions], Dataset]


@dataclass(frozen=True)
class Files:
    """The files of one source below a data directory."""

    name: str
    source: Source
    root: Path | None

    def find(self, file: str) -> Path:
        """The path of a file; a gzip file may also lie there unpacked."""
        names = (file, file.removesuffix(".gz")) if file.endswith(".gz") else (file,)
        for folder in self._folders:
            for candidate in names:
                if (path := folder / candidate).is_file():
                    return path
        raise self.missing(file)

    def listed(self, folder: str, pattern: str) -> list[Path]:
        """The files of a folder that a pattern fits, in the order of their names; none if there is no such folder."""
        for base in self._folders:
            if paths := sorted(path for path in (base / folder).glob(pattern) if path.is_file()):
                return paths
        return []

    def missing(self, file: str) -> DataError:
        """The error where a file is nowhere."""
        offer = f"the data set is published at {self.source.url}"
        if self.root is None:
            return DataError(
                f"{self.source.title}: {self.source.folders[0]}/{file} not found; "
                f"set the data directory with --data-dir or {ENVIRONMENT}; {offer}"
            )
        return DataError(f"{self.source.title}: {file} not found in {', '.join(map(str, self._folders))}; {offer}")

    def has(self, file: str) -> bool:
        """Whether an optional file is there, packed or not."""
        return any((folder / name).is_file() for folder in self._folders for name in {file, file.removesuffix(".gz")})

    @property
    def _folders(self) -> list[Path]:
        return [] if self.root is None else [self.root / folder for folder in self.source.folders]
