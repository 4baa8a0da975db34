"""Sparsona: one small, personal model per device.

>>> import sparsona
>>> plan = sparsona.load("quickstart", ["rounds=5"])
>>> run = sparsona.run(plan["personal"], out="runs/mine")
"""

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("sparsona")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+source"

# fetched when first asked for, so that a worker process or a look at one module does not import everything
_HOMES = {
    "METHODS": "sparsona.methods",
    "MODELS": "sparsona.models",
    "Recipe": "sparsona.config",
    "RecipeError": "sparsona.config",
    "Run": "sparsona.results",
    "RunError": "sparsona.results",
    "check": "sparsona.config",
    "compare": "sparsona.report",
    "load": "sparsona.config",
    "resume": "sparsona.runner",
    "run": "sparsona.runner",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'sparsona' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
