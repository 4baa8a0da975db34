"""Recipes: TOML files checked in full before anything runs."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import tomllib
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union

from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt
from pydantic import TypeAdapter, ValidationError

from sparsona.core.budgets import Between
from sparsona.core.fields import Count, Fraction, Natural, Positive, PositiveShare
from sparsona.core.topology import Topology
from sparsona.data import DataConfig
from sparsona.method import Choosy, Method, PeerMethod
from sparsona.methods import METHODS
from sparsona.models import MODELS

TABLES = "tables"  # where a paper's tables lie, beside its recipes
COMPARISON = "compare"  # where the variants of a recipe are compared, beside their runs


class RecipeError(ValueError):
    """A recipe that cannot be run: says which field, which value and what is allowed."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Which network the clients train."""

    name: str  # one of `sparsona models`, or "package.module:Class"
    width: PositiveShare = 1.0  # share of its channels and hidden units, of models that can be narrower


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """Who takes part in a round of a method with a server; without one, all do, and the topology says how."""

    per_round: Count | None = None  # clients drawn each round; all of them if left out
    hold_out: Fraction = 0.0  # share of clients that never take part: newcomers, adapted and tested at the end
    adapt_epochs: Count = 1  # passes over its data with which a newcomer adapts
    timeout: Positive = 600.0  # on a real fleet: seconds in which clients must answer
    min_answers: Count = 1  # on a real fleet: sound answers (without a server: clients there) that a round needs


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """When and how the personal models are tested."""

    every: Count = 1  # rounds between two evaluations; the last round is always evaluated
    points: tuple[Literal["before", "after", "shared", "finished"], ...] = ("before",)  # when, or which model, to test
    batch: Count = 128  # samples at a time
    target: PositiveShare | None = None  # mean accuracy whose cost is reported

    def __post_init__(self) -> None:
        if not self.points or len(set(self.points)) < len(self.points):
            given = shown(list(self.points))
            names = '"before", "after", "shared", "finished"'
            raise ValueError(f"points = {given} must name {names}, each at most once")

    @property
    def tested(self) -> tuple[str, ...]:
        """All that is tested: with models tuned at the end goes the model that they were tuned from."""
        return (*self.points, "unfinished") if "finished" in self.points else self.points


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Where the clients run; it never changes a result."""

    name: Literal["local", "pool", "ray"] = "pool"  # one client at a time here, worker processes, or those of Ray
    workers: Count = 2  # pool, ray: how many processes; one per core is best
    address: str = ""  # ray: of a cluster that runs; without it, one is started on this machine
    checkpoint_every: Count = 1  # rounds between two checkpoints


@dataclass(frozen=True, kw_only=True)
class ResultsConfig:
    """What a run leaves besides its records."""

    figures: bool = True  # draw them
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
    topology: Topology = field(default_factory=Topology)
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
    files = (p for p in base.rglob("*.toml") if p.parent.name != TABLES)
    return sorted(p.relative_to(base).with_suffix("").as_posix() for p in files)


def find(name: str) -> Path:
    """A recipe's file, by path or by name."""
    for path in (Path(name), recipes_dir() / f"{name}.toml"):
        if path.is_file():
            return path
    raise RecipeError(f"recipe {shown(name)}: no such file or recipe{nearest(name, recipe_names())}")


def read(name: str) -> dict[str, Any]:
    """A recipe as plain tables, not yet checked."""
    return read_toml(find(name))


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as plain tables."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin a file with a mark
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not valid TOML: {error}") from error
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read: {error.strerror}") from error


T = TypeVar("T")
Change = tuple[list[str], Any]  # a key in its parts, and its new value


def load(name: str, overrides: Iterable[str] = (), only: Sequence[str] = ()) -> dict[str, Recipe]:
    """The checked runs of a recipe by variant, all or ``only`` some; one without variants is one run of its name."""
    changes = [override(text) for text in overrides]
    raw = variants(name, only, [keys for keys, _ in changes])
    plan = {}
    known: dict[str, str | None] = {}
    for variant in raw:
        recipe = changed(raw, variant, changes)
        told_apart(known, variant, recipe)
        plan[recipe.name if variant is None else variant] = recipe
    return plan


def told_apart(known: dict[str, str | None], variant: str | None, recipe: Recipe) -> None:
    """An error if a recipe is that of another variant: then a change covers what sets the two apart."""
    twin = known.setdefault(json.dumps(tables(recipe)), variant)
    if twin != variant:
        what = "a change covers what sets them apart; choose one by --only"
        raise RecipeError(f"variants {twin} and {variant} have become the same run: {what}")


def variants(
    name: str, only: Sequence[str] = (), keys: Iterable[Sequence[str]] = ()
) -> dict[str | None, dict[str, Any]]:
    """A recipe's plain tables by variant, all or some, not yet checked; None is the one key if it has no variants.

    The keys of changes to come are refused if they are of a variant that is not among these.
    """
    raw = read(name)
    raw.setdefault("name", Path(name).stem)
    differing = raw.pop("variants", None)
    if differing is None:
        if only:
            raise RecipeError(f"only {', '.join(only)}: the recipe has no variants to choose from")
        return {None: raw}
    if not isinstance(differing, dict) or not differing:
        raise RecipeError("variants: must be a table of tables, each with what differs")
    for variant, table in differing.items():
        if not isinstance(table, dict):
            raise RecipeError(f"variants.{variant} = {shown(table)}: must be a table of what differs")
        named(f"variants.{variant}", variant)
    only = whole(only, differing)
    for variant in only:
        if variant not in differing:
            raise RecipeError(f"only {shown(variant)}: no such variant{nearest(variant, differing)}")
    for parts in keys:
        if parts[0] == "variants" and len(parts) < 3:
            raise RecipeError(f"{'.'.join(parts)}: must be variants.NAME.KEY, for a key of one variant")
        if parts[0] == "variants" and parts[1] not in differing:
            raise RecipeError(f"{'.'.join(parts)}: no such variant{nearest(parts[1], differing)}")
        if parts[0] == "variants" and only and parts[1] not in only:
            raise RecipeError(f"{'.'.join(parts)}: variant {parts[1]} is left out by only {', '.join(only)}")
    return {variant: _merge(raw, table) for variant, table in differing.items() if not only or variant in only}


def changed(raw: Mapping[str | None, dict[str, Any]], variant: str | None, changes: Iterable[Change]) -> Recipe:
    """One of a recipe's variants with the changes that are for all or for it, checked."""
    if variant is None:
        return check(_patched(raw[None], changes))
    common: list[Change] = []
    own: list[Change] = []
    for keys, value in changes:
        if keys[0] != "variants":
            common.append((keys, value))
        elif keys[1] == variant:
            own.append((keys[2:], value))
    try:
        return check(_patched(raw[variant], [*common, *own]))
    except RecipeError as error:
        shared = [".".join(keys) for keys, _ in common if keys[0] in ("method", "topology")]
        only = f"to change one variant only: variants.NAME.{shared[0]}=..." if shared else ""
        helps = bool(only) and len(raw) > 1
        names = ", ".join(f'"{name}"' if "." in str(name) else str(name) for name in raw)
        alone = f"; {only}, NAME being one of {names}" if helps else ""
        raise RecipeError(f"variant {variant}: {error}{alone}") from error


def check(raw: Mapping[str, Any]) -> Recipe:
    """A recipe from plain tables; raises RecipeError for whatever is not allowed."""
    if not isinstance(raw, Mapping):
        raise RecipeError(f"a recipe must be a table, not {shown(raw)}")
    table = raw.get("method", {})
    if not isinstance(table, dict):
        raise RecipeError(f"method = {shown(table)}: must be a table")
    if "name" not in table:
        raise RecipeError(f"method.name is missing; allowed: {', '.join(sorted(METHODS))}")
    name = table["name"]
    if not isinstance(name, str) or name not in METHODS:
        raise RecipeError(f"method.name = {shown(name)}: unknown{nearest(str(name), METHODS)}")
    method = checked(METHODS[name], {k: v for k, v in table.items() if k != "name"}, "method")
    rest = {"model": {}} | {k: v for k, v in raw.items() if k != "method"}
    recipe = assembled(Recipe, rest, method=method)
    named("name", recipe.name)
    model = recipe.model.name
    if ":" not in model and model not in MODELS:
        raise RecipeError(
            f"model.name = {shown(model)}: unknown, and not your own package.module:Class{nearest(model, MODELS)}"
        )
    if recipe.data.partition_file:  # so that a run can be resumed from any folder
        file = str(Path(recipe.data.partition_file).resolve())
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, partition_file=file))
    if isinstance(recipe.method, PeerMethod):
        recipe = _connected(recipe)
    _manned(recipe)
    return recipe


def _manned(recipe: Recipe) -> None:
    """Raise RecipeError unless there are enough clients for what is asked of them."""
    fleet, clients = recipe.fleet, recipe.data.clients
    newcomers = round(fleet.hold_out * clients)
    if fleet.hold_out and isinstance(recipe.method, PeerMethod):
        raise RecipeError(f"fleet.hold_out = {fleet.hold_out}: must be 0 for a method without a server")
    if fleet.hold_out and not 0 < newcomers < clients:
        what = f"{newcomers} of data.clients = {clients}; at least one must be held out, and one not"
        raise RecipeError(f"fleet.hold_out = {fleet.hold_out}: that is {what}")
    if fleet.per_round is not None and fleet.per_round > clients - newcomers:
        rest = f" less {newcomers} newcomers" if newcomers else ""
        raise RecipeError(f"fleet.per_round = {fleet.per_round}: must be at most data.clients = {clients}{rest}")


def assembled(kind: type[T], raw: Mapping[str, Any], **built: Any) -> T:
    """A dataclass from plain values, each checked, and from fields that are built already."""
    _known(kind, raw, "")
    hints = typing.get_type_hints(kind, include_extras=True)
    built |= {key: checked(hints[key], value, key) for key, value in raw.items()}
    names = [f.name for f in dataclasses.fields(kind) if required(f)]  # type: ignore[arg-type]
    if missing := [name for name in names if name not in built]:
        raise RecipeError(f"{missing[0]} is missing")
    return kind(**built)


def _connected(recipe: Recipe) -> Recipe:
    """The recipe of a method without a server, with its graph read and checked."""
    topology = recipe.topology
    if topology.edges and topology.name == "edges":
        if topology.pairs:
            raise RecipeError(f"topology.edges = {shown(topology.edges)}: there are pairs already, drop these")
        topology = dataclasses.replace(topology, edges="", pairs=_pairs(Path(topology.edges)))
    try:
        topology.check(recipe.data.clients)
        if isinstance(recipe.method, Choosy):
            recipe.method.suits(topology)
    except ValueError as error:
        raise RecipeError(f"topology.{error}") from error
    return dataclasses.replace(recipe, topology=topology)


def _pairs(path: Path) -> tuple[tuple[int, int], ...]:
    """The pairs of an edge list: two client numbers a line; empty lines and what follows a # do not count."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"topology.edges = {shown(str(path))}: cannot be read: {error}") from error
    found = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if len(words) == 2 and all(w.isascii() and w.isdigit() for w in words):
            found.append((int(words[0]), int(words[1])))
        elif words:
            raise RecipeError(
                f"topology.edges: line {number} of {path} is {shown(line)}; two client numbers are needed"
            )
    return tuple(found)


def tables(recipe: Recipe) -> dict[str, Any]:
    """A checked recipe as plain tables, with every default written out; ``check`` takes it back."""
    raw = dataclasses.asdict(recipe)
    names = {kind: name for name, kind in METHODS.items()}
    raw["method"] = {"name": names[type(recipe.method)], **raw["method"]}
    plain: dict[str, Any] = json.loads(json.dumps(raw))
    return _without_none(plain)


def to_toml(raw: Mapping[str, Any], prefix: str = "") -> str:
    """Plain tables as TOML."""
    lines = [f"{_toml_key(k)} = {_toml(v)}" for k, v in raw.items() if not isinstance(v, dict)]
    for key, value in raw.items():
        if isinstance(value, dict):
            name = prefix + _toml_key(key)
            lines += ["", f"[{name}]", to_toml(value, f"{name}.")]
    return "\n".join(lines).strip() + ("" if prefix else "\n")


def allowed(kind: Any) -> str:
    """What a field of this type takes, in words."""
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is Annotated:
        return ", ".join([allowed(arguments[0]), *filter(None, [" and ".join(_bounds(arguments[1:]))])])
    if origin is Literal:
        return f"one of {', '.join(map(shown, arguments))}"
    if origin in (Union, UnionType):
        return " or ".join(allowed(a) for a in arguments if a is not NoneType)
    if origin is tuple:
        return f"a list, each item {allowed(arguments[0])}"
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    if dataclasses.is_dataclass(kind):
        return f"a table of {' and '.join(f.name for f in dataclasses.fields(kind))}"
    return words.get(kind, "a table")


def required(f: dataclasses.Field[Any]) -> bool:
    """Whether a field has no default."""
    return f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING


def whole(pieces: Sequence[str], names: Collection[str]) -> list[str]:
    """Words that stood between commas, put together again where a name has commas itself; longest names first."""
    found, i = list[str](), 0
    while i < len(pieces):
        ends = range(len(pieces), i, -1)
        i, word = next(((j, w) for j in ends if (w := ", ".join(pieces[i:j])) in names), (i + 1, pieces[i]))
        found.append(word)
    return found


def nearest(word: str, names: Iterable[str]) -> str:
    """The name that was meant, or all that there are, as the end of an error message."""
    names = sorted(names)
    close = difflib.get_close_matches(word, names, 1, 0.5)
    return f"; did you mean {shown(close[0])}?" if close else f"; allowed: {', '.join(names)}"


def _bounds(metadata: Iterable[Any]) -> Iterator[str]:
    """The bounds of a number, in words."""
    for entry in metadata:
        for bound in entry if isinstance(entry, GroupedMetadata) else (entry,):
            match bound:
                case Gt(gt=limit):
                    yield f"above {limit}"
                case Ge(ge=limit):
                    yield f"at least {limit}"
                case Lt(lt=limit):
                    yield f"below {limit}"
                case Le(le=limit):
                    yield f"at most {limit}"


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml(key)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml_key(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    # TOML's strings, numbers and booleans are JSON's, but for one character
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def shown(value: Any) -> str:
    """A value as the user would write it."""
    try:
        return _toml(value)
    except TypeError:
        return str(value)


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {k: _without_none(v) if isinstance(v, dict) else v for k, v in table.items() if v is not None}


def named(where: str, name: str) -> None:
    """Names become folders: they must not lead elsewhere, nor to where something else is kept."""
    if not name.strip() or len(name) > 100 or name[0] == "." or re.search(r"[/\\:\x00-\x1f\x7f]", name):
        raise RecipeError(
            f"{where}: {shown(name)} must be a folder's name: 1 to 100 characters, no slash, colon or leading dot"
        )
    if name in (COMPARISON, "plan.json", "sweep.json", "table.json"):
        raise RecipeError(f"{where}: {shown(name)} is taken by what Sparsona writes itself")


def checked(kind: Any, value: Any, path: str) -> Any:
    """A value of the given type; unknown keys and values out of range are told in the user's words."""
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise RecipeError(f"{path} = {shown(value)}: must be a table")
        _known(kind, value, f"{path}.")
        for key, hint in typing.get_type_hints(kind, include_extras=True).items():
            _as_table(hint, value.get(key), f"{path}.{key}")
    _plain(value, path)
    try:
        # JSON's strict mode takes lists as tuples and 1 as 1.0, but no "5" as 5 and no true as 1
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        told = dict.fromkeys(_say(e, kind, path) for e in error.errors())  # a union complains once for each choice
        raise RecipeError("; ".join(told)) from error


def _as_table(kind: Any, value: Any, path: str) -> None:
    """Check a table that stands where other things may stand too as the kind of table that it is most like."""
    if isinstance(value, dict) and (forms := [c for c in _choices(kind) if dataclasses.is_dataclass(c)]):
        checked(max(forms, key=lambda form: sum(f.name in value for f in dataclasses.fields(form))), value, path)


def _plain(value: Any, path: str) -> None:
    """Refuse what TOML can say but no field takes."""
    match value:
        case dict():
            for key, item in value.items():
                _plain(item, f"{path}.{key}")
        case list() | tuple():
            for i, item in enumerate(value):
                _plain(item, f"{path}[{i}]")
        case float() if not math.isfinite(value):
            raise RecipeError(f"{path} = {value}: must be a finite number")
        case int() if abs(value) >= 2**63:
            raise RecipeError(f"{path} = {value}: must be less than 2^63 in size")
        case str() if not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise RecipeError(f"{path} = {value!r}: must be valid Unicode")
        case None | bool() | int() | float() | str():
            pass
        case _:
            raise RecipeError(f"{path} = {value}: must be a text, a number, true, false, a list or a table")


def _known(kind: Any, table: Mapping[str, Any], prefix: str) -> None:
    names = [f.name for f in dataclasses.fields(kind)]
    for key in table:
        if key not in names:
            raise RecipeError(f"{prefix}{key}: no such field{nearest(key, names)}")


def _say(error: Any, kind: Any, path: str) -> str:
    """One of pydantic's errors as a sentence that says what is allowed."""
    where = path
    for step in error["loc"]:
        if dataclasses.is_dataclass(kind) and step in (hints := typing.get_type_hints(kind, include_extras=True)):
            kind, where = hints[step], f"{where}.{step}"
        elif isinstance(step, int):
            items = [a for a in _choices(kind) if typing.get_origin(a) is tuple]
            kind, where = typing.get_args(items[0])[0] if items else kind, f"{where}[{step}]"
    what = error["type"]
    if what == "missing":
        return f"{where} is missing"
    if what == "value_error":  # raised by the type itself
        return f"{where}: {error['ctx']['error']}"
    if what.endswith(("_type", "_parsing", "_from_float")) or what in _RANGES:
        return f"{where} = {shown(error['input'])}: must be {allowed(kind)}{_guess(error['input'], kind)}"
    return f"{where} = {shown(error['input'])}: {error['msg'][:1].lower()}{error['msg'][1:]}"


_RANGES = ("literal_error", "greater_than", "greater_than_equal", "less_than", "less_than_equal")


def _choices(kind: Any) -> tuple[Any, ...]:
    """The types that a value may have: those of a union, or the one."""
    return typing.get_args(kind) if typing.get_origin(kind) in (Union, UnionType) else (kind,)


def _guess(value: Any, kind: Any) -> str:
    words = [w for a in _choices(kind) if typing.get_origin(a) is Literal for w in typing.get_args(a)]
    close = difflib.get_close_matches(value, words, 1, 0.5) if isinstance(value, str) else []
    if isinstance(value, (int, float)) and value > 1 and Between in _choices(kind):
        return "; it is a share: 1 is the whole body or model"
    return f"; did you mean {shown(close[0])}?" if close else ""


def override(text: str) -> Change:
    """A change as users write it: key=value."""
    keys, value = _assigned(text)
    try:
        parsed = tomllib.loads(f"v = {value}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    return keys, parsed["v"] if list(parsed) == ["v"] else value.strip()  # what is no TOML value is a string


def options(text: str) -> tuple[list[str], list[Any]]:
    """An override's key and the values it lists, key=a,b,c; a comma in brackets or quotes is part of a value."""
    keys, whole = override(text)
    value = _assigned(text)[1]
    key = text[: len(text) - len(value) - 1]
    pieces = _pieces(value)
    if len(pieces) == 1:
        return keys, [whole]
    if not all(piece.strip() for piece in pieces):
        raise RecipeError(f'{".".join(keys)} = {value.strip()}: a value between commas is empty; "" is an empty text')
    return keys, [override(f"{key}={piece}")[1] for piece in pieces]


def _assigned(text: str) -> tuple[list[str], str]:
    """The keys and the value of key=value; a key that holds a dot or an equals sign stands in quotes."""
    found = re.fullmatch(r'((?:"[^"]*"|[^"=])*)=(.*)', text, re.DOTALL)
    keys = (
        [key.strip().strip('"') for key in re.findall(r'(?:"[^"]*"|[^".])+|(?<=\.)$|^(?=\.)', found[1])]
        if found
        else []
    )
    if found is None or not keys or not all(keys) or ".." in found[1]:
        raise RecipeError(f"{shown(text)}: an override is key=value, for example method.lr=0.05")
    return keys, found[2]


def _pieces(text: str) -> list[str]:
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


def _patched(raw: Mapping[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
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
    "COMPARISON",
    "TABLES",
    "EngineConfig",
    "EvaluateConfig",
    "FleetConfig",
    "ModelConfig",
    "Recipe",
    "RecipeError",
    "ResultsConfig",
    "allowed",
    "assembled",
    "changed",
    "check",
    "checked",
    "find",
    "load",
    "named",
    "nearest",
    "options",
    "override",
    "read",
    "read_toml",
    "recipe_names",
    "recipes_dir",
    "required",
    "shown",
    "tables",
    "to_toml",
    "told_apart",
    "variants",
]
