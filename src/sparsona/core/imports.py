"""Plug-ins by name: one of ours, or a user's own as package.module:name."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import TypeVar, cast

T = TypeVar("T")


def module(field: str, name: str) -> ModuleType:
    """A user's module; whatever goes wrong in it is told as a ValueError that names the field."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever a stranger's module raises
        raise ValueError(f"{field}: module {name!r} cannot be imported: {error}") from error


def imported(field: str, name: str, known: Mapping[str, T]) -> T:
    """What is known by this name, or what package.module:name points to."""
    if name in known:
        return known[name]
    place, colon, leaf = name.partition(":")
    if not colon:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        guess = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{field}: {name!r}; {', '.join(known)} or package.module:name is allowed{guess}")
    found = getattr(module(field, place), leaf, None)
    if isinstance(found, type):
        raise ValueError(f"{field}: {name!r} is a class; an object of it, or a function, is needed")
    if not callable(found):
        raise ValueError(f"{field}: {place!r} has no {leaf!r} that can be called")
    return cast(T, found)
