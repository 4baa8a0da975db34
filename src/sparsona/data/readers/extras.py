"""Packages that only some formats need, asked for by name where they are missing."""

from __future__ import annotations

import importlib.util

from sparsona.data.dataset import DataError


def needs(package: str, extra: str, where: str) -> None:
    """Raise DataError with how to install it if a package that a source needs is missing."""
    if importlib.util.find_spec(package) is None:
        raise DataError(
            f"{where}: cannot be read without {package}, which is not installed: pip install 'sparsona[{extra}]'"
        )
