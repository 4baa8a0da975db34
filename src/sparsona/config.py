"""Recipes: TOML files checked in full before anything runs."""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from sparsona.core.fields import Count, Natural, PositiveShare
from sparsona.data import DataConfig
from sparsona.method import Method
from sparsona.methods import METHODS


class RecipeError(ValueError):
    """A recipe that cannot be run: says which field, which value and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which network the clients train."""

    name: str  # one of `sparsona models`, or "package.module:Class"


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """Who takes part in a round."""

    per_round: Count | None = None  # clients drawn each round; all of them if left out


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """When and how the personal models are tested."""

    every: Count = 1  # rounds between two evaluations; the last round is always evaluated
    points: tuple[Literal["before", "after"], ...] = ("before",)  # before and after local training
    batch: Count = 128
    target: PositiveShare | None = None  # mean accuracy whose cost is reported


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Where the clients run; it never changes a result."""

    name: Literal["local", "pool"] = "pool"
    workers: Count = 2
    checkpoint_every: Count = 1  # rounds between two checkpoints


@dataclass(frozen=True, kw_only=True)
class ResultsConfig:
    """What a run leaves besides its records."""

    figures: bool = True
    models: bool = False  # each client's personal model as safetensors


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a run's result, and where it is computed."""

    name: str
    description: str = ""
    seed: Natural = 1
    rounds: Count
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig
    method: Method
    fleet: FleetConfig = field(default_factory=FleetConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    results: ResultsConfig = field(default_factory=ResultsConfig)


def recipes_dir() -> Path:
    """Where the recipes that come with Sparsona lie: in the package, or beside it in a checkout."""
    here = Path(__file__).resolve().parent
    inside = here / "recipes"
    return inside if inside.is_dir() else here.parent.parent / "recipes"


def recipe_names() -> list[str]:
    """The recipes that come with Sparsona."""
    base = recipes_dir()
    return sorted(p.relative_to(base).with_suffix("").as_posix() for p in base.rglob("*.toml"))


def find(name: str) -> Path:
    """A recipe's file, by path or by name."""
    for path in (Path(name), recipes_dir() / f"{name}.toml"):
        if path.is_file():
            return path
    raise RecipeError(f"recipe {name!r}: no such file or recipe{_nearest(name, recipe_names())}")


def read(name: str) -> dict[str, Any]:
    """A recipe as plain tables, not yet checked."""
    path = find(name)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not valid TOML: {error}") from error


def load(name: str, overrides: Iterable[str] = ()) -> dict[str, Recipe]:
    """The checked runs of a recipe by variant; a recipe without variants is one run, called by the recipe's name."""
    raw = read(name)
    raw.setdefault("name", Path(name).stem)
    variants = raw.pop("variants", None)
    changes = [_override(text) for text in overrides]
    if variants is None:
        return {str(raw["name"]): check(_patched(raw, changes))}
    if not isinstance(variants, dict) or not variants:
        raise RecipeError("variants: must be a table of tables, each with what differs")
    plan = {}
    for variant, table in variants.items():
        if not isinstance(table, dict):
            raise RecipeError(f"variants.{variant} = {table!r}: must be a table of what differs")
        try:
            plan[variant] = check(_patched(_merge(raw, table), changes))
        except RecipeError as error:
            raise RecipeError(f"variant {variant}: {error}") from error
    return plan


def check(raw: Mapping[str, Any]) -> Recipe:
    """A recipe from plain tables; raises RecipeError for whatever is not allowed."""
    raw = dict(raw)
    table = raw.get("method")
    if not isinstance(table, dict) or "name" not in table:
        raise RecipeError(f"method.name is missing; allowed: {', '.join(sorted(METHODS))}")
    name = table["name"]
    if name not in METHODS:
        raise RecipeError(f"method.name = {name!r}: unknown{_nearest(str(name), METHODS)}")
    kind = METHODS[name]
    fields = {k: v for k, v in table.items() if k != "name"}
    method = _build(kind, fields, "method")
    rest = {k: v for k, v in raw.items() if k != "method"}
    _known(Recipe, rest, "", skip=("method",))
    parts = {f.name: rest[f.name] for f in dataclasses.fields(Recipe) if f.name in rest}
    hints = typing.get_type_hints(Recipe, include_extras=True)
    built: dict[str, Any] = {"method": method}
    for key, value in parts.items():
        built[key] = _build(hints[key], value, key)
    missing = [f.name for f in dataclasses.fields(Recipe) if f.name not in built and _required(f)]
    if missing:
        raise RecipeError(f"{missing[0]} is missing")
    recipe = Recipe(**built)
    if recipe.fleet.per_round is not None and recipe.fleet.per_round > recipe.data.clients:
        raise RecipeError(
            f"fleet.per_round = {recipe.fleet.per_round}: must be at most data.clients = {recipe.data.clients}"
        )
    return recipe


def tables(recipe: Recipe) -> dict[str, Any]:
    """A checked recipe as plain tables, with every default written out; ``check`` takes it back."""
    raw = dataclasses.asdict(recipe)
    names = {kind: name for name, kind in METHODS.items()}
    raw["method"] = {"name": names[type(recipe.method)], **raw["method"]}
    plain: dict[str, Any] = json.loads(json.dumps(raw))
    return _without_none(plain)


def to_toml(raw: Mapping[str, Any], prefix: str = "") -> str:
    """Plain tables as TOML."""
    lines = [f"{k} = {_toml(v)}" for k, v in raw.items() if not isinstance(v, dict)]
    for key, value in raw.items():
        if isinstance(value, dict):
            lines += ["", f"[{prefix}{key}]", to_toml(value, f"{prefix}{key}.")]
    return "\n".join(lines).strip() + ("" if prefix else "\n")


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False)  # TOML's strings, numbers and booleans are JSON's


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {k: _without_none(v) if isinstance(v, dict) else v for k, v in table.items() if v is not None}


def _build(kind: Any, value: Any, path: str) -> Any:
    """A value of the given type; unknown keys and values out of range are told in the user's words."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise RecipeError(f"{path} = {value!r}: must be a table")
        _known(kind, value, f"{path}.")
    try:
        # JSON's strict mode takes lists as tuples and 1 as 1.0, but no "5" as 5 and no true as 1
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise RecipeError("; ".join(_say(e, path) for e in error.errors())) from error
    except TypeError as error:
        raise RecipeError(f"{path} = {value!r}: {error}") from error


def _known(kind: Any, table: Mapping[str, Any], prefix: str, skip: tuple[str, ...] = ()) -> None:
    names = [f.name for f in dataclasses.fields(kind)]
    for key in table:
        if key not in names and key not in skip:
            raise RecipeError(f"{prefix}{key}: no such field{_nearest(key, names)}")


def _say(error: Any, path: str) -> str:
    where = ".".join([path, *(str(p) for p in error["loc"])])
    text = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if error["type"] == "missing":
        return f"{where} is missing"
    return f"{where} = {error['input']!r}: must be {text}"


def _nearest(word: str, allowed: Iterable[str]) -> str:
    allowed = sorted(allowed)
    close = difflib.get_close_matches(word, allowed, 1, 0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; allowed: {', '.join(allowed)}"


def _required(f: dataclasses.Field[Any]) -> bool:
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def _override(text: str) -> tuple[list[str], Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"{text!r}: an override is key=value, for example method.lr=0.05")
    try:
        parsed = tomllib.loads(f"v = {value}")["v"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()  # a bare word is a string
    return key.strip().split("."), parsed


def _patched(raw: Mapping[str, Any], changes: Iterable[tuple[list[str], Any]]) -> dict[str, Any]:
    out = _merge(raw, {})
    for keys, value in changes:
        table = out
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise RecipeError(f"{'.'.join(keys)}: {key} is not a table")
        table[keys[-1]] = value
    return out


def _merge(base: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    out = {k: _merge(v, {}) if isinstance(v, dict) else v for k, v in base.items()}
    for key, value in more.items():
        old = out.get(key)
        out[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


__all__ = [
    "EngineConfig",
    "EvaluateConfig",
    "FleetConfig",
    "ModelConfig",
    "Recipe",
    "RecipeError",
    "ResultsConfig",
    "check",
    "find",
    "load",
    "read",
    "recipe_names",
    "recipes_dir",
    "tables",
    "to_toml",
]
