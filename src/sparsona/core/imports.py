"""Plug-ins by name: one of ours, or a user's own as package.module:name. Nothing else imports users' code."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from sparsona.core.text import one_line

T = TypeVar("T")


def module(field: str, name: str) -> ModuleType:
    """Import a user's module, installed or in the current folder; any error in it is a ValueError naming the field."""
    # Last, so that nothing there hides what is installed, and only now, so that nothing there is imported by chance.
    # A worker process starts in its parent's folder, and so searches the same one.
    if "" not in sys.path and (folder := str(Path.cwd())) not in sys.path:
        sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever a stranger's module raises
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            what = "it is neither installed nor in the current folder"
        else:
            what = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f'{field}: module "{name}" cannot be imported: {what}') from error


def plugin(field: str, name: str) -> Any:
    """What package.module:name points to."""
    place, _, leaf = name.partition(":")
    if place.endswith(".py"):
        dotted = ".".join(part for part in place[:-3].replace("\\", "/").split("/") if part not in ("", "."))
        raise ValueError(f'{field}: "{name}" names a file; expected "{dotted}:{leaf}"')
    home = module(field, place)
    try:
        return attrgetter(leaf)(home)
    except AttributeError as error:
        near = difflib.get_close_matches(leaf, vars(home), n=1, cutoff=0.6)
        guess = f'; did you mean "{near[0]}"?' if near else ""
        raise ValueError(f'{field}: "{leaf}" not found in module "{place}"{guess}') from error


def imported(field: str, name: str, known: Mapping[str, T], *, classes: bool = False) -> T:
    """What is known by this name, or the function that package.module:name points to, or the class if ``classes``."""
    if name in known:
        return known[name]
    place, colon, leaf = name.partition(":")
    if not colon:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        guess = f'; did you mean "{near[0]}"?' if near else ""
        raise ValueError(f'{field}: "{name}" not found; expected {", ".join(known)} or package.module:name{guess}')
    target = plugin(field, name)
    if isinstance(target, type) and not classes:
        raise ValueError(f'{field}: "{name}" is a class; expected a function or an instance of the class')
    if not callable(target):
        raise ValueError(f'{field}: "{leaf}" of module "{place}" is not callable; expected a function')
    return cast(T, target)


def plugin_names(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every text in plain tables that names a user's code, with its key; our own names have no colon."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from plugin_names(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from plugin_names(item, path)
    elif isinstance(value, str) and ":" in value:
        yield path, value
