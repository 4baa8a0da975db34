"""Check single values against the types of fields, and say in one sentence what is allowed."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import typing
from collections.abc import Collection, Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt
from pydantic import TypeAdapter, ValidationError
from typing_extensions import Doc

from sparsona.core.budgets import Between
from sparsona.core.text import meant, nearest

COMPARISON = "compare"  # where the variants of a recipe are compared, beside their runs
RENAMED = {"pull": "mu", "pull_as": "proximal"}  # fields that had another name in earlier versions
# fields that earlier versions also recorded of methods which did not use them
_ONCE_IGNORED = {"clip_of", "moments", "weak", "weak_epochs", "optimiser", "beta1", "beta2", "epsilon"}
_FIELD = r"[a-z]\w*(\.\w+|\[\d+\])*: "  # what a sentence about one field of a dataclass starts with
_RANGES = ("literal_error", "greater_than", "greater_than_equal", "less_than", "less_than_equal")

T = TypeVar("T")


class RecipeError(ValueError):
    """A recipe that cannot be run: says which field, which value and what is allowed."""


def check_dataclass(kind: type[T], raw: Mapping[str, Any], **built: Any) -> T:
    """A dataclass from plain values, each checked, and from fields that are built already."""
    check_keys(kind, raw, "")
    hints = typing.get_type_hints(kind, include_extras=True)
    built |= {key: check_value(hints[key], value, key) for key, value in raw.items()}
    names = [f.name for f in dataclasses.fields(kind) if is_required(f)]  # type: ignore[arg-type]
    if missing := [name for name in names if name not in built]:
        raise RecipeError(f"{missing[0]} is missing")
    return kind(**built)


def check_value(kind: Any, value: Any, path: str) -> Any:
    """A value of the given type, or a RecipeError for an unknown key or a value out of range."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise RecipeError(f"{path}: {shown(value)} is not allowed; expected a table")
        check_keys(kind, value, f"{path}.")
        for key, hint in typing.get_type_hints(kind, include_extras=True).items():
            _check_table(hint, value.get(key), f"{path}.{key}")
    check_plain(value, path)
    try:
        # JSON's strict mode takes lists as tuples and 1 as 1.0, but no "5" as 5 and no true as 1
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        # a union reports an error for each of its members: each sentence once
        sentences = dict.fromkeys(_error_sentence(e, kind, path) for e in error.errors())
        raise RecipeError("; ".join(sentences)) from error


def check_keys(kind: Any, table: Mapping[str, Any], prefix: str) -> None:
    """Refuse keys that are no field of a dataclass."""
    names = [f.name for f in dataclasses.fields(kind)]
    for key in table:
        if key not in names:
            now = RENAMED.get(key)
            hint = f'; it is now called "{now}"' if now in names else nearest(key, names)
            raise RecipeError(f"{prefix}{key}: no such field{hint}")


def fields_of_today(kind: type, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """What an earlier version recorded of a dataclass, by today's names; fields that it did not use are left out."""
    names = {f.name for f in dataclasses.fields(kind)}
    known = {now if (now := RENAMED.get(key, key)) in names else key: value for key, value in recorded.items()}
    return {key: value for key, value in known.items() if key in names or key not in _ONCE_IGNORED}


def check_name(where: str, name: str) -> None:
    """Refuse a name that cannot be the name of a run's folder."""
    if not name.strip() or len(name) > 100 or name[0] == "." or re.search(r"[/\\:\x00-\x1f\x7f]", name):
        raise RecipeError(
            f"{where}: {shown(name)} is not allowed; expected a folder name of 1 to 100 characters without slash, "
            "backslash, colon or leading dot"
        )
    if name in (COMPARISON, "plan.json", "sweep.json", "table.json"):
        raise RecipeError(f"{where}: {shown(name)} is reserved for files that Sparsona writes; choose another name")


def is_required(f: dataclasses.Field[Any]) -> bool:
    """Whether a field has no default."""
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def allowed(kind: Any) -> str:
    """What a field of this type takes, in words."""
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return f"{allowed(arguments[0])}{_bounds(arguments[1:])}"
    if origin is Literal:
        return f"{'one of ' if len(arguments) > 1 else ''}{', '.join(map(shown, arguments))}"
    if origin in (Union, UnionType):
        return " or ".join(allowed(a) for a in arguments if a is not NoneType)
    if origin is tuple:
        if arguments[-1] is not Ellipsis:
            return f"[{', '.join(map(allowed, arguments))}]"
        return "list of " + re.sub(r"^(string|int|float)\b", r"\1s", allowed(arguments[0]))
    words = {bool: "true or false", int: "int", float: "float", str: "string"}
    if dataclasses.is_dataclass(kind):
        return f"table with {' and '.join(f.name for f in dataclasses.fields(kind))}"
    return words.get(kind, "table")


def expected(kind: Any) -> str:
    """What a field of this type takes, as the object of a sentence."""
    words = allowed(kind)
    articles = {"int": "an ", "float": "a ", "string": "a ", "list": "a ", "table": "a "}
    return articles.get(words.partition(" ")[0], "") + words


def alternatives(word: str, names: Collection[str], kind: str, see: str = "") -> str:
    """The names closest to a word or, if none is close, some and the form of a plug-in's name.

    The command ``see`` lists all names.
    """
    place, dot, leaf = word.rpartition(".")
    if dot and ":" not in word and all(part.isidentifier() for part in word.split(".")):
        return f"; did you mean {shown(f'{place}:{leaf}')}, a {kind} in module {place}?"
    known = nearest(word, names)
    if known.endswith("?"):
        return known
    return f"{known}, or package.module:{kind}{f'; list all with: {see}' if see else ''}"


def shown(value: Any) -> str:
    """A value on one line, as the user would write it in TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(shown, value)) + "]"
    try:
        return json.dumps(value, ensure_ascii=False)
    except TypeError:  # a date or a time
        return str(value)


def _check_table(kind: Any, value: Any, path: str) -> None:
    """Check a table, in a field that also takes other types, as the dataclass whose fields it names most."""
    if isinstance(value, dict) and (forms := [c for c in _members(kind) if dataclasses.is_dataclass(c)]):
        check_value(max(forms, key=lambda form: sum(f.name in value for f in dataclasses.fields(form))), value, path)


def check_plain(value: Any, path: str) -> None:
    """Refuse values of TOML that no field takes."""
    match value:
        case dict():
            for key, item in value.items():
                check_plain(item, f"{path}.{key}")
        case list() | tuple():
            for i, item in enumerate(value):
                check_plain(item, f"{path}[{i}]")
        case float() if not math.isfinite(value):
            raise RecipeError(f"{path}: {value} is not allowed; expected a finite float")
        case int() if abs(value) >= 2**63:
            raise RecipeError(f"{path}: {value} is not allowed; expected an int in (-2^63, 2^63)")
        case str() if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise RecipeError(f"{path}: {value!r} is not allowed; expected valid Unicode")
        case None | bool() | int() | float() | str():
            pass
        case _:
            raise RecipeError(
                f"{path}: {value} is not allowed; expected a string, a number, true, false, a list or a table"
            )


def _error_sentence(error: Any, kind: Any, path: str) -> str:
    """One of pydantic's errors as a sentence that says what is allowed."""
    where = path
    for step in error["loc"]:
        if dataclasses.is_dataclass(kind) and step in (hints := typing.get_type_hints(kind, include_extras=True)):
            kind, where = hints[step], f"{where}.{step}"
        elif isinstance(step, int):
            items = [a for a in _members(kind) if typing.get_origin(a) is tuple]
            kind, where = typing.get_args(items[0])[0] if items else kind, f"{where}[{step}]"
    what = error["type"]
    if what == "missing":
        return f"{where} is missing"
    if what == "value_error":  # raised by the type itself
        text = str(error["ctx"]["error"])
        return f"{where}{'.' if re.match(_FIELD, text) else ': '}{text}"
    if what.endswith(("_type", "_parsing", "_from_float")) or what in _RANGES:
        return (
            f"{where}: {shown(error['input'])} is not allowed; "
            f"expected {expected(kind)}{_suggestion(error['input'], kind) or _form(where, error['input'], kind)}"
        )
    return f"{where}: {shown(error['input'])} is not allowed; {error['msg'][:1].lower()}{error['msg'][1:]}"


def _members(kind: Any) -> tuple[Any, ...]:
    """The members of a union, or the one type, whatever is documented of it."""
    if typing.get_origin(kind) is Annotated and all(isinstance(part, Doc) for part in typing.get_args(kind)[1:]):
        kind = typing.get_args(kind)[0]
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, UnionType) else (kind,)


def _suggestion(value: Any, kind: Any) -> str:
    """A hint at what was meant, as the end of an error message."""
    words = [w for a in _members(kind) if typing.get_origin(a) is Literal for w in typing.get_args(a)]
    if isinstance(value, (int, float)) and value > 1 and Between in _members(kind):
        return "; a share of 1 is the whole body or model"
    return meant(value, words) if isinstance(value, str) else ""


def _form(where: str, value: Any, kind: Any) -> str:
    """How a list or a table is written on a command line, as the end of an error message about a plain value."""
    if isinstance(value, (list, dict)):
        return ""
    text = str(value).strip()
    text = text[1:-1] if text.startswith("[") and text.endswith("]") else text  # a list whose words lack their quotes
    items = [item.strip() for item in text.split(",")]
    for member in _members(kind):
        if typing.get_origin(member) is tuple:
            numbers = allowed(typing.get_args(member)[0]).startswith(("int", "float"))
            if numbers and all(re.fullmatch(r"[-+.\de]+", item) for item in items):
                return f"; for example {where}='[{', '.join(items)}]'"
            if not numbers and isinstance(value, str):
                return f"; for example {where}='{shown(items)}'"
        if typing.get_origin(member) in (dict, Mapping):
            return f"; for example {where}='{{key = value}}'"
    return ""


def _bounds(metadata: Iterable[Any]) -> str:
    """The bounds of a number, as a comparison or an interval."""
    low = high = None
    for entry in metadata:
        for bound in entry if isinstance(entry, GroupedMetadata) else (entry,):
            match bound:
                case Gt(gt=limit):
                    low = (">", "(", f"{limit:.10g}")
                case Ge(ge=limit):
                    low = (">=", "[", f"{limit:.10g}")
                case Lt(lt=limit):
                    high = ("<", ")", f"{limit:.10g}")
                case Le(le=limit):
                    high = ("<=", "]", f"{limit:.10g}")
    if low and high:
        return f" in {low[1]}{low[2]}, {high[2]}{high[1]}"
    return "".join(f" {one[0]} {one[2]}" for one in (low, high) if one)
