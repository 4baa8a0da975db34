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
        offer = f"the data set is published at {self.source.url}"
        if self.root is None:
            raise DataError(
                f"{self.source.title}: {self.source.folders[0]}/{file} not found; "
                f"set the data directory with --data-dir or {ENVIRONMENT}; {offer}"
            )
        for folder in self.source.folders:
            for candidate in names:
                if (path := self.root / folder / candidate).is_file():
                    return path
        looked = ", ".join(str(self.root / folder) for folder in self.source.folders)
        raise DataError(f"{self.source.title}: {file} not found in {looked}; {offer}")

    def has(self, file: str) -> bool:
        """Whether an optional file is there, packed or not."""
        names = {file, file.removesuffix(".gz")}
        return self.root is not None and any(
            (self.root / folder / name).is_file() for folder in self.source.folders for name in names
        )
