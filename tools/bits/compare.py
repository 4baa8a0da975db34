"""Compare the outcomes of a case in two folders: to the byte, or up to what `renames` lists."""

from __future__ import annotations

import csv
import fnmatch
import hashlib
import json
import tomllib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bits import renames

Tables = dict[str, Any]


def differences(case: str, base: Path, new: Path) -> Iterator[str]:
    """What differs between the outcomes of a case, one line per file."""
    for folder, what in ((base, "fails with the base, so the case is wrong"), (new, "fails with the working tree")):
        if (folder / "failure.txt").is_file():
            yield f"{case}: {what}: {_short((folder / 'failure.txt').read_text(), 600)}"
    then = {_renamed_file(name): file for name, file in _files(base).items()}
    now = _files(new)
    for name in sorted(then.keys() | now.keys()):
        if any(fnmatch.fnmatch(f"{case}/{name}", pattern) for pattern in renames.CHANGED_ON_PURPOSE):
            continue
        if name not in now or name not in then:
            yield f"{case}/{name}: only {'the base' if name in then else 'the working tree'} has it"
        elif (line := _difference(then[name], now[name])) is not None:
            yield f"{case}/{name}: {line}"


def _files(folder: Path) -> dict[str, Path]:
    left_out = renames.IGNORED_FILES | {"failure.txt", "r.toml", "mine.npz"}  # the last two are ours
    files = (p for p in folder.rglob("*") if p.is_file() and p.name not in left_out)
    return {p.relative_to(folder).as_posix(): p for p in files}


def _renamed_file(name: str) -> str:
    return "/".join(renames.RENAMED_FILES.get(part, part) for part in name.split("/"))


def _difference(base: Path, new: Path) -> str | None:
    """The first difference between two files; None if there is none."""
    then, now = base.read_bytes(), new.read_bytes()
    if then == now:
        return None
    if new.name == "recipes.json":
        return _recipe_difference(json.loads(then), json.loads(now))
    match new.suffix:
        case ".json":
            old = _base_json(_loaded(then, new.name))
            return first_difference(old, _without_added(old, _new_json(_loaded(now, new.name))))
        case ".jsonl":
            pairs = zip_longest(then.splitlines(), now.splitlines(), fillvalue=b"null")
            for number, (a, b) in enumerate(pairs, start=1):
                old, value = _base_json(json.loads(a)), _new_json(json.loads(b))
                if a != b and (line := first_difference(old, _without_added(old, value))):
                    return f"line {number}: {line}"
            return None
        case ".toml":
            return first_difference(_base_json(tomllib.loads(then.decode())), _new_json(tomllib.loads(now.decode())))
        case ".safetensors":
            return first_difference(_tensors(then, base=True), _tensors(now, base=False))
        case ".csv":
            rows = [[renames.RENAMED_KEYS.get(cell, cell) for cell in row] for row in csv.reader(_lines(then))]
            head, *more = csv.reader(_lines(now))
            kept = [i for i, name in enumerate(head) if name in rows[0] or name not in renames.ADDED_KEYS]
            return first_difference(rows, [[row[i] for i in kept] for row in (head, *more)])
        case ".md" | ".txt":
            return first_difference([_renamed_words(line) for line in _lines(then)], _lines(now))
        case _:
            where = next((i for i, (a, b) in enumerate(zip(then, now, strict=False)) if a != b), "the end of one")
            return f"{len(then)} bytes against {len(now)}; the first difference is at {where}"


def _without_added(base: Any, new: Any) -> Any:
    """A value of the new tree without the keys that are new in it."""
    if isinstance(base, dict) and isinstance(new, dict):
        kept = {k: v for k, v in new.items() if k in base or k not in renames.ADDED_KEYS}
        return {k: _without_added(base.get(k), v) for k, v in kept.items()}
    if isinstance(base, list) and isinstance(new, list) and len(base) == len(new):
        return [_without_added(a, b) for a, b in zip(base, new, strict=True)]
    return new


def _loaded(data: bytes, name: str) -> Any:
    """A JSON file without the keys that are never compared."""
    value = json.loads(data) if data.strip() else None
    left_out = renames.IGNORED_KEYS.get(name, set())
    return {k: v for k, v in value.items() if k not in left_out} if isinstance(value, dict) else value


def _lines(data: bytes) -> list[str]:
    return data.decode().splitlines()


def _is_recipe(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("method"), dict) and "rounds" in value and "name" in value


def _base_json(value: Any) -> Any:
    """A value of the base, spelt as in the new tree; recipes have their fields in alphabetical order."""
    if _is_recipe(value):
        return _sorted(_base_recipe(value))
    if isinstance(value, dict):
        return {renames.RENAMED_KEYS.get(k, k): _base_json(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_base_json(v) for v in value]
    return renames.RENAMED_VALUES.get(value, _renamed_words(value)) if isinstance(value, str) else value


def _renamed_words(text: str) -> str:
    for base, new in renames.RENAMED_WORDS.items():
        text = text.replace(base, new)
    return text


def _new_json(value: Any) -> Any:
    if _is_recipe(value):
        return _sorted(_new_recipe(value))
    if isinstance(value, dict):
        return {k: _new_json(v) for k, v in value.items()}
    return [_new_json(v) for v in value] if isinstance(value, list) else value


def renamed_field(section: str, field: str, method: str) -> str | None:
    """The new dotted path of a recipe's field; None if it was removed."""
    names = [f"{section}.{field}", *([f"{method}.{field}"] if section == "method" else [])]
    if any(name in renames.REMOVED_FIELDS for name in names):
        return None
    return next((renames.RENAMED_FIELDS[n] for n in names if n in renames.RENAMED_FIELDS), f"{section}.{field}")


def _base_recipe(raw: Tables) -> Tables:
    """A resolved recipe of the base as the new tree spells it."""
    result: Tables = {}
    for section, table in raw.items():
        if not isinstance(table, dict) or section == "variants":
            result[section] = table
            continue
        result.setdefault(section, {})
        for field, value in table.items():
            if (path := renamed_field(section, field, raw["method"]["name"])) is not None:
                into, name = path.split(".")
                result.setdefault(into, {})[name] = value
    return result


def _new_recipe(raw: Tables) -> Tables:
    """A resolved recipe of the new tree without fields that are new and have their default."""
    result = {k: dict(v) if isinstance(v, dict) else v for k, v in raw.items()}
    for path, default in renames.ADDED_FIELDS.items():
        section, _, field = path.rpartition(".")
        table = result.get(section, {}) if section else result
        if table.get(field, default) in (default, *renames.ADDED_VALUES.get(path, ())):
            table.pop(field, None)
    for path, (then, now) in renames.CHANGED_DEFAULTS.items():
        section, _, field = path.partition(".")
        if field in (table := result.get(section, {})) and table[field] == now:
            table[field] = then
    if (engine := result.get("engine", {})).get("name") == "local" and "workers" in engine:
        engine["workers"] = renames.WORKERS_OF_LOCAL
    return {k: v for k, v in result.items() if v != {} or raw[k] == {}}


def _sorted(value: Any) -> Any:
    return {k: _sorted(value[k]) for k in sorted(value)} if isinstance(value, dict) else value


def _recipe_difference(base: dict[str, Tables], new: dict[str, Tables]) -> str | None:
    """Every recipe of the base is there, in full as it was; a name that is gone is looked for by its contents."""

    def bare(tables: Tables) -> Tables:
        return {k: v for k, v in tables.items() if k not in renames.IGNORED_FIELDS}

    now = {key: _sorted(bare(_new_recipe(tables))) for key, tables in new.items()}
    by_contents: dict[str, list[str]] = {}
    for key, tables in now.items():
        by_contents.setdefault(json.dumps(tables), []).append(key)
    wrong = []
    for key, tables in base.items():
        then, name = _sorted(bare(_base_recipe(tables))), renamed_recipe(key)
        if name not in now:
            alike = by_contents.get(json.dumps(then), [])
            hint = f'; add to RENAMED_RECIPES: "{key}": "{alike[0]}"' if alike else "; nothing is like it"
            wrong.append(f"{name} is missing{hint}")
        elif line := first_difference(then, now[name]):
            wrong.append(f"{key} is now {name} with {line}")
    return "\n    ".join([f"{len(wrong)} recipes differ", *wrong]) if wrong else None


def renamed_recipe(key: str) -> str:
    """The new name:variant of a recipe of the base."""
    name, _, variant = key.partition(":")
    if key in renames.RENAMED_RECIPES:
        return renames.RENAMED_RECIPES[key]
    for old, now in renames.RENAMED_RECIPES.items():
        begin, star, end = old.partition("*")
        if star and key.startswith(begin) and key.endswith(end) and len(key) >= len(begin) + len(end):
            return now.replace("*", key[len(begin) : len(key) - len(end)])
    return f"{renames.RENAMED_RECIPES.get(name, name)}:{variant}"


def _tensors(data: bytes, base: bool) -> Any:
    """A safetensors file as plain values; that of a state as the tree it stands for, with its tensors in place."""
    size = int.from_bytes(data[:8], "little")
    head, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    about = head.pop("__metadata__", {})
    tensors = {}
    for name, entry in head.items():
        raw = body[slice(*entry["data_offsets"])]
        tensors[name] = f"{entry['dtype']}{entry['shape']} {hashlib.sha256(raw).hexdigest()[:16]}"
    if "tree" in about:
        return _value(json.loads(about["tree"]), tensors, base)
    plain = {"about": about, "tensors": tensors}
    return _sorted(_base_json(plain) if base else plain)  # safetensors writes metadata in any order


def _value(tree: Any, tensors: dict[str, str], base: bool) -> Any:
    """A stored value: dataclasses with their fields in alphabetical order, renamed if they are the base's."""
    if isinstance(tree, list):
        return [_value(v, tensors, base) for v in tree]
    if not isinstance(tree, dict):
        return tree
    if "fields" in tree:
        names = renames.RENAMED_KEYS if base else {}
        fields = {names.get(k, k): _value(v, tensors, base) for k, v in tree["fields"].items()}
        return {"type": _TYPES.get(tree["type"], tree["type"])} | _sorted(fields)
    return {k: tensors[v] if k in ("tensor", "bits") else _value(v, tensors, base) for k, v in tree.items()}


_TYPES = {new: old for old, names in renames.RENAMED_TYPES.items() for new in names}  # every name -> that of the base


def first_difference(base: Any, new: Any, path: str = "") -> str | None:
    """Where two plain values differ first, and how; dicts must have the same order."""
    if isinstance(base, dict) and isinstance(new, dict):
        for key in base.keys() | new.keys() if base.keys() != new.keys() else ():
            if key not in base or key not in new:
                return f"{path}.{key}: only {'the base' if key in base else 'the working tree'} has it"
        for key, value in base.items():
            if line := first_difference(value, new[key], f"{path}.{key}"):
                return line
        return None if list(base) == list(new) else f"{path}: keys in another order"
    if isinstance(base, list) and isinstance(new, list):
        for i, (a, b) in enumerate(zip(base, new, strict=False)):
            if line := first_difference(a, b, f"{path}[{i}]"):
                return line
        return None if len(base) == len(new) else f"{path}: {len(base)} entries against {len(new)}"
    if type(base) is type(new) and (base == new or base != base):
        return None
    return f"{path}: {_short(repr(base))} against {_short(repr(new))}"


def _short(text: str, most: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[:most]}..."
