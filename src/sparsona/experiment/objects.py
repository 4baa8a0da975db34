"""What users bring to a run: objects of their own, and the names that recipes record for them."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import os
import sys
import sysconfig
import traceback
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import FunctionType
from typing import Any, cast
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from torch import nn

from sparsona.core.imports import plugin, plugin_names
from sparsona.core.text import one_line
from sparsona.experiment.checking import RecipeError, alternatives, check_plain, check_value, fields_of_today, shown
from sparsona.method import ContractError, Method, capabilities
from sparsona.methods import METHODS


@dataclass(frozen=True)
class Objects:
    """Python objects that a run is given in place of what its recipe names."""

    method: Method | None = None
    data: Any = None
    model: Any = None


NO_OBJECTS = Objects()


@dataclass(frozen=True)
class NamedMethod:
    """A method as a run folder records it: reading a folder imports no plug-in, only running and resuming do."""

    name: str
    fields: dict[str, Any]


_NAMES: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # under which names plug-ins were imported here


def object_name(value: object) -> str:
    """The name a recipe records for a class or function: package.module:name, or <name> if no other process has it."""
    if isinstance(value, (type, FunctionType)) and value in _NAMES:
        return _NAMES[value]
    leaf = str(getattr(value, "__qualname__", type(value).__qualname__))
    place = getattr(value, "__module__", None)
    home = sys.modules.get(str(place))
    try:
        if place != "__main__" and getattr(home, "__spec__", None) is not None and attrgetter(leaf)(home) is value:
            return f"{place}:{leaf}"
    except AttributeError:  # defined in a function
        pass
    return f"<{leaf.rpartition('.')[2].strip('<>')}>"


def is_object(name: str) -> bool:
    """Whether a recorded name stands for an object that only the process that made it has."""
    return name.startswith("<")


def check_engine(field: str, value: object, engine: str) -> None:
    """Raise RecipeError if an engine's worker processes could not import a class or function."""
    name = object_name(value)
    if engine != "local" and is_object(name):
        where = getattr(value, "__module__", "here")
        raise RecipeError(
            f"engine.name: worker processes of {shown(engine)} cannot import {field} {name}, which is defined in "
            f'{where}; move it to the top level of an importable module, or set engine.name = "local"'
        )


def model_name(model: object, engine: str) -> str:
    """The name a recipe records for a model that was given as an object; RecipeError if the engine cannot have it."""
    if not callable(model):  # a module can be called, too
        what = type(model).__name__
        raise RecipeError(
            f"model: {what} is not allowed; expected a torch.nn.Module, or a class or function that returns one"
        )
    check_engine("the model", model, engine)
    return object_name(model)


def model_maker(name: str, objects: Objects) -> str | Callable[..., nn.Module]:
    """What makes the model of a recipe: its name, or the object that was given for it."""
    if not is_object(name):
        return name
    if objects.model is None:
        where = f"model.name: {shown(name)}"
        raise RecipeError(f"{where} is a Python object; pass it again, for example sparsona.resume(out, model=...)")
    if not isinstance(given := objects.model, nn.Module):
        return cast(Callable[..., nn.Module], given)

    def copied() -> nn.Module:
        return copy.deepcopy(given)  # a run must not change the user's own

    copied.__qualname__ = type(given).__qualname__  # errors name it
    return copied


def method_of(table: Mapping[str, Any], *, imports: bool) -> Method:
    """The method that a recipe's table describes; without ``imports``, one that names a plug-in is not built."""
    name, fields = table["name"], {key: value for key, value in table.items() if key != "name"}
    if not imports and isinstance(name, str) and (is_object(name) or any(plugin_names(table))):
        check_plain(fields, "method")
        return cast(Method, NamedMethod(name, fields))
    if not imports and isinstance(name, str) and name in METHODS:
        fields = fields_of_today(METHODS[name], fields)
    return cast(Method, check_value(method_class(name), fields, "method"))


def method_class(name: Any) -> type:
    """The class of a method by its name: one of ours, or a user's own as package.module:Class."""
    if isinstance(name, str) and name in METHODS:
        kind: type = METHODS[name]
        return kind
    where = f"method.name: {shown(name)}"
    if isinstance(name, str) and is_object(name):
        raise RecipeError(f"{where} is a Python object; pass it again, for example sparsona.resume(out, method=...)")
    if not isinstance(name, str) or ":" not in name:
        raise RecipeError(f"{where} not found{alternatives(str(name), METHODS, 'Class', 'sparsona methods')}")
    try:
        kind = plugin("method.name", name)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    check_class(kind, where)
    check_hooks(object.__new__(kind), where)
    try:
        typing.get_type_hints(kind, include_extras=True)
        TypeAdapter(kind)
    except (NameError, TypeError, PydanticUserError) as error:
        what = one_line(str(error).partition("\n")[0])
        raise RecipeError(f"{where}: the types of its fields cannot be checked: {what}") from error
    _NAMES.setdefault(kind, name)
    return kind


def check_class(kind: Any, where: str) -> None:
    """Raise RecipeError unless a user's method is a frozen dataclass that recipes can describe."""
    if kind is type:
        raise RecipeError(f"{where}: is a class; pass an object of it, such as MyMethod(lr=0.1)")
    if not isinstance(kind, type):
        raise RecipeError(f"{where} is of type {type(kind).__name__}; expected a class")
    if not dataclasses.is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        how = "decorate it with @dataclass(frozen=True, kw_only=True)"
        raise RecipeError(f"{where}: {kind.__name__} is not a frozen dataclass; {how}")
    if "__dataclass_params__" not in vars(kind) and (own := inspect.get_annotations(kind)):
        how = "decorate it with @dataclass(frozen=True, kw_only=True)"
        raise RecipeError(f"{where}: {kind.__name__} is not a dataclass, so {next(iter(own))} is not a field; {how}")
    if any(f.name == "name" for f in dataclasses.fields(kind)):
        raise RecipeError(f'{where}: {kind.__name__} has a field "name", which recipes reserve; rename it')


def check_hooks(method: Method, where: str) -> None:
    """Raise RecipeError if the class of a method lacks a hook."""
    try:
        capabilities(method)
    except ContractError as error:
        raise RecipeError(f"{where}: {error}") from error


def check_newcomers(method: Method, where: str) -> None:
    """Raise RecipeError if a method has no way to personalise for a newcomer."""
    able = capabilities(method)
    if able.welcomes is None and able.training is None:
        name = type(method).__name__
        raise RecipeError(
            f"{where}: {name} cannot adapt newcomers; add the hook welcome, or inherit the fields of Training"
        )


def method_table(method: Method) -> dict[str, Any]:
    """A method's name and fields as a recipe has them."""
    fields = method.fields if isinstance(method, NamedMethod) else dataclasses.asdict(cast(Any, method))
    return {"name": method_name(method), **fields}


def method_name(method: Method) -> str:
    """The name by which a recipe knows a method."""
    if isinstance(method, NamedMethod):
        return method.name
    kind = type(method)
    return next((name for name, known in METHODS.items() if known is kind and is_ours(kind)), object_name(kind))


def is_ours(kind: type) -> bool:
    """Whether a class comes with Sparsona, so that every process knows it by its short name."""
    return kind.__module__.startswith("sparsona.")


def error_of_user(error: Exception) -> str | None:
    """An error that was raised in a user's code, with its place there; None if it was raised in ours only."""
    folders = (str(Path(__file__).parents[1]), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
    installed = ("<", *(f"{folder}{os.sep}" for folder in folders))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(installed):
            what = f"{type(error).__name__}: {one_line(error)}; SPARSONA_DEBUG=1 shows the traceback"
            return f"{frame.filename}:{frame.lineno}: {frame.name}: {what}"
    return None
