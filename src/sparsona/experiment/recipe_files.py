"""Recipe files: where they are, how they are read, and what they inherit from one another."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import sparsona
from sparsona.experiment.checking import RecipeError, nearest, shown
from sparsona.experiment.overrides import merged, split_key

TABLES = "tables"  # where a paper's tables lie, beside its recipes


def recipes_dir() -> Path:
    """The folder of the recipes that come with Sparsona: in the package, or beside it in a checkout."""
    package = Path(sparsona.__file__).resolve().parent
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parent.parent / "recipes"


def recipe_names() -> list[str]:
    """The names of the recipes that come with Sparsona."""
    base = recipes_dir()
    files = (p for p in base.rglob("*.toml") if p.parent.name != TABLES)
    return sorted(p.relative_to(base).with_suffix("").as_posix() for p in files)


def find(name: str) -> Path:
    """A recipe's file, by path or by name."""
    for path in (Path(name), recipes_dir() / f"{name}.toml"):
        if path.is_file():
            return path
    raise RecipeError(f"recipe {shown(name)}: not found{nearest(name, recipe_names())}")


def default_name(name: str) -> str:
    """What a recipe is called that does not say: after its path among ours, else after its file."""
    path = find(name).resolve()
    if path.is_relative_to(base := recipes_dir().resolve()):
        return "-".join(path.relative_to(base).with_suffix("").parts)
    return f"{path.parent.name}-main" if path.stem == "main" and path.parent.name else path.stem


def read(name: str) -> dict[str, Any]:
    """A recipe as plain tables with what it inherits, not yet checked."""
    return _inherited(find(name), ())


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain tables."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors write a byte order mark
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not valid TOML: {error}") from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error


def _inherited(path: Path, heirs: tuple[Path, ...]) -> dict[str, Any]:
    """A file's tables merged over those of the recipe that it extends; ``heirs`` are the files that led here."""
    raw = read_toml(path)
    parent, without = raw.pop("extends", None), raw.pop("without", [])
    if parent is None:
        if without:
            raise RecipeError(f"{path}: without: {shown(without)} is only allowed together with extends")
        return raw
    if not isinstance(parent, str):
        raise RecipeError(f"{path}: extends: {shown(parent)} is not allowed; expected the name of a recipe or a path")
    if not isinstance(without, list) or not all(isinstance(key, str) for key in without):
        raise RecipeError(
            f'{path}: without: {shown(without)} is not allowed; expected a list of keys, such as ["variants.NAME"]'
        )
    origin = path.resolve()
    beside = path.parent / parent
    try:
        file = beside if beside.is_file() else find(parent)
    except RecipeError as error:
        raise RecipeError(f"{path}: extends: {error}") from error
    if file.resolve() in (*heirs, origin):
        chain = " -> ".join(p.name for p in (*heirs, origin, file))
        raise RecipeError(
            f"{path}: extends: {shown(parent)} is not allowed; the recipes extend each other in a cycle, {chain}"
        )
    base = _inherited(file, (*heirs, origin))
    base.pop("name", None)
    for key in without:
        _drop(base, key, f"{path}: without: {shown(key)} is not allowed")
    return merged(base, raw)


def _drop(raw: dict[str, Any], key: str, where: str) -> None:
    """Delete a dotted key from plain tables."""
    *parents, last = split_key(key) or [key]
    table: Any = raw
    for depth, part in enumerate((*parents, last)):
        if not isinstance(table, dict) or part not in table:
            names = nearest(part, table) if isinstance(table, dict) else ""
            raise RecipeError(f"{where}; the parent recipe has no such key{names}")
        if depth < len(parents):
            table = table[part]
    del table[last]
