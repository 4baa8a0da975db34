"""All that the driver uses of Sparsona besides its command line: the newest place first, then those of older trees.

Add a new place when something moves; the outcomes of the base stay valid.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def first(*places: str) -> Any:
    """The first of these that the tree has."""
    for place in places:
        module, _, name = place.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise LookupError(f"none of {', '.join(places)} is there: add its new place to tools/bits/adaptors.py")


def loaded(file: str) -> Any:
    """The checked recipe of a file without variants."""
    return next(iter(first("sparsona.experiment.plan:load", "sparsona.config:load")(file).values()))


def resolved(recipe: Any) -> dict[str, Any]:
    """A checked recipe as plain tables with all defaults."""
    tables: dict[str, Any] = first("sparsona.experiment.recipe:tables", "sparsona.config:tables")(recipe)
    return tables


def table_plan(name: str) -> Mapping[str, Any]:
    """The runs of a paper's table: checked recipes by name."""
    planned = first("sparsona.experiment.reproduce:plan", "sparsona.reproduce:plan")(name)
    plan: Mapping[str, Any] = planned[0] if isinstance(planned, tuple) else planned
    return plan


def world(folder: Path, clients: int) -> Any:
    """A fleet in one process, from the tree's own tests: a Grid of Flower's, with ``run(recipe, out)``."""
    return first("fleet.world:World")(folder, clients)
