"""Overrides: changes of a recipe as users type them, and tables with changes applied."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from sparsona.core.fields import Count
from sparsona.experiment.checking import RecipeError, check_value, shown

Change = tuple[list[str], Any]  # a key in its parts, and its new value


def parse_override(text: str) -> Change:
    """A change as users write it: key=value."""
    keys, value = _split_assignment(text)
    try:
        parsed = tomllib.loads(f"v = {value}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    return keys, parsed["v"] if list(parsed) == ["v"] else value.strip()  # what is no TOML value is a string


def parse_resume(overrides: Iterable[str]) -> tuple[int | None, dict[str, Any]]:
    """The changes that a run takes which has begun: rounds=N, None without any, and fields of [engine]."""
    rounds: int | None = None
    engine: dict[str, Any] = {}
    for keys, value in map(parse_override, overrides):
        if keys == ["rounds"]:
            rounds = check_value(Count, value, "rounds")
        elif len(keys) == 2 and keys[0] == "engine":
            engine[keys[1]] = value
        else:
            key = ".".join(keys)
            raise RecipeError(
                f"{key}: cannot change in a run that has started; only rounds=N and fields of [engine] are allowed"
            )
    return rounds, engine


def parse_options(text: str) -> tuple[list[str], list[Any]]:
    """An override's key and the values it lists, key=a,b,c; a comma in brackets or quotes is part of a value."""
    keys, whole = parse_override(text)
    value = _split_assignment(text)[1]
    key = text[: len(text) - len(value) - 1]
    pieces = _split_commas(value)
    if len(pieces) == 1:
        return keys, [whole]
    if not all(piece.strip() for piece in pieces):
        raise RecipeError(
            f'{".".join(keys)}: {value.strip()} has an empty value between commas; write "" for an empty string'
        )
    return keys, [parse_override(f"{key}={piece}")[1] for piece in pieces]


def split_key(key: str) -> list[str]:
    """The parts of a dotted key, of which some may stand in quotes; none if it is not well-formed."""
    parts = [part.strip().strip('"') for part in re.findall(r'(?:"[^"]*"|[^".])+|(?<=\.)$|^(?=\.)', key)]
    return parts if all(parts) and ".." not in key else []


def patched(raw: Mapping[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
    """A copy of plain tables with changes applied."""
    out = merged(raw, {})
    for keys, value in changes:
        table = out
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise RecipeError(f"{'.'.join(keys)}: {key} is {shown(table)}, not a table; only a table has keys")
        table[keys[-1]] = value
    return out


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of plain tables with the values of others, which win; tables merge key by key."""
    out = {k: merged(v, {}) if isinstance(v, dict) else v for k, v in base.items()}
    for key, value in changes.items():
        old = out.get(key)
        out[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return out


def _split_assignment(text: str) -> tuple[list[str], str]:
    """The keys and the value of key=value; a key that holds a dot or an equals sign stands in quotes."""
    match = re.fullmatch(r'((?:"[^"]*"|[^"=])*)=(.*)', text, re.DOTALL)
    keys = split_key(match[1]) if match else []
    if match is None or not keys:
        raise RecipeError(f"override {shown(text)} is not allowed; expected key=value, for example method.lr=0.05")
    return keys, match[2]


def _split_commas(text: str) -> list[str]:
    """A text cut at its commas, but not within a bracket or a quote that a value begins with."""
    pieces = [""]
    closing: list[str] = []  # what is open, innermost last
    escaped = False
    for c in text:
        quoted = bool(closing) and closing[-1] in "\"'"
        if c == "," and not closing:
            pieces.append("")
            continue
        if escaped:
            escaped = False
        elif quoted and c == "\\":
            escaped = closing[-1] == '"'
        elif closing and c == closing[-1]:
            closing.pop()
        elif not quoted and c in _CLOSING and (closing or not pieces[-1].strip()):
            closing.append(_CLOSING[c])
        pieces[-1] += c
    return pieces


_CLOSING = {"[": "]", "{": "}", '"': '"', "'": "'"}
