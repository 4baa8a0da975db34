"""Fixtures shared by all tests."""

import os
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tiers import LONG


@pytest.fixture(scope="session")
def sparsona_data() -> Path:
    """The directory of the real data sets; tests that need it are skipped without."""
    named = os.environ.get("SPARSONA_DATA")
    if not named:
        pytest.skip("the environment variable SPARSONA_DATA names no directory of real data sets")
    return Path(named)


os.environ.pop("COLUMNS", None)  # rich would fix its width by it when it is first imported; tests set their own


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long tests into the long tier."""
    for item in items:
        if any(fnmatch(item.nodeid, pattern) for pattern in LONG):
            item.add_marker(pytest.mark.slow)
