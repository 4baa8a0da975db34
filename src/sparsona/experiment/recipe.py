"""The recipe schema: all settings of a run, checked in full before anything runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from typing_extensions import Doc

from sparsona.core.fields import Count, Fraction, Natural, Positive, PositiveShare
from sparsona.core.topology import Topology
from sparsona.data import OPEN, DataConfig
from sparsona.experiment.checking import RecipeError, alternatives, check_dataclass, check_keys, check_name, shown
from sparsona.experiment.engine import DECIDING, EngineConfig, check_placement
from sparsona.experiment.objects import (
    NO_OBJECTS,
    NamedMethod,
    Objects,
    check_class,
    check_engine,
    check_hooks,
    check_newcomers,
    is_object,
    is_ours,
    method_name,
    method_of,
    method_table,
    model_name,
    object_name,
)
from sparsona.experiment.task import TaskConfig
from sparsona.experiment.weights import absolute
from sparsona.method import Method, capabilities
from sparsona.methods import METHODS
from sparsona.models import MODELS

SAMPLERS = ("uniform", "samples", "poisson", "trace")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The model that the clients train."""

    name: Annotated[str, Doc('a model listed by `sparsona models`, or a class or function as "package.module:name"')]
    width: Annotated[
        PositiveShare, Doc("width multiplier: fraction of the channels and hidden units, for models that support it")
    ] = 1.0
    weights: Annotated[str | None, Doc("safetensors file with the initial weights, such as an exported model")] = None
    args: Annotated[dict[str, Any] | None, Doc("keyword arguments of the model class or function")] = field(
        default=None, hash=False
    )


@dataclass(frozen=True, kw_only=True)
class FleetConfig:
    """The clients that take part in a round. [topology] sets who talks to whom in methods without a server."""

    per_round: Annotated[Count | None, Doc("clients sampled per round; unset: all clients")] = None
    sampler: Annotated[
        str, Doc("client sampler: uniform, samples (by data size), poisson, trace, or package.module:function")
    ] = "uniform"
    trace: Annotated[str, Doc("trace: CSV file of client availability; columns client,from,to, in rounds")] = ""
    peers: Annotated[
        Literal["all", "drawn"], Doc("without a server: all clients train in every round, or only the sampled ones")
    ] = "all"
    hold_out: Annotated[
        Fraction, Doc("fraction of clients excluded from training; they adapt and are tested after the last round")
    ] = 0.0
    adapt_epochs: Annotated[Count, Doc("local epochs for adapting each held-out client")] = 1
    timeout: Annotated[Positive, Doc("real fleet: time limit for clients to answer, in seconds")] = 600.0
    min_answers: Annotated[
        Count, Doc("real fleet: minimum valid answers per round (without a server: clients present)")
    ] = 1


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """When and how models are tested."""

    every: Annotated[Count, Doc("evaluate every N rounds, and always after the last one")] = 1
    points: Annotated[
        tuple[Literal["before", "after", "shared", "finished"], ...],
        Doc("what to test: before or after local training, the shared model, the fine-tuned models"),
    ] = ("before",)
    clients: Annotated[
        Literal["all", "participated"] | Count,
        Doc("clients to test: all, those that have participated, or a fixed random sample of this size"),
    ] = "all"
    samples: Annotated[
        Literal["test", "validation"],
        Doc("samples that scores are measured on; use validation to choose settings"),
    ] = "test"
    batch: Annotated[Count, Doc("batch size for evaluation")] = 128
    target: Annotated[float | None, Doc("target accuracy (or headline metric): report the cost of reaching it")] = None

    def __post_init__(self) -> None:
        if not self.points or len(set(self.points)) < len(self.points):
            given = shown(list(self.points))
            names = '"before", "after", "shared", "finished"'
            raise ValueError(f"points: {given} is not allowed; expected a list of {names}, each at most once")

    @property
    def tested(self) -> tuple[str, ...]:
        """All that is tested: with models tuned at the end goes the model that they were tuned from."""
        return (*self.points, "unfinished") if "finished" in self.points else self.points


@dataclass(frozen=True, kw_only=True)
class ResultsConfig:
    """The files that a run writes in addition to its records."""

    figures: Annotated[bool, Doc("write figures (PNG) at the end of the run")] = True
    models: Annotated[bool, Doc("write each client's personal model as a safetensors file")] = False


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides a run's result, and where it is computed."""

    name: Annotated[str, Doc("names the run folder; default: the name of the file")]
    description: Annotated[str, Doc("shown by `sparsona recipes`")] = ""
    seed: Annotated[Natural, Doc("decides every random draw")] = 1
    rounds: Annotated[Count, Doc("how many rounds to train")]
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig
    method: Method
    task: TaskConfig = field(default_factory=TaskConfig)
    fleet: FleetConfig = field(default_factory=FleetConfig)
    topology: Topology = field(default_factory=Topology)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    results: ResultsConfig = field(default_factory=ResultsConfig)


def check(raw: Mapping[str, Any], *, imports: bool = True, objects: Objects = NO_OBJECTS) -> Recipe:
    """A recipe from plain tables; raises RecipeError if anything in it is not allowed.

    Without ``imports``, for reading only, a method that names a plug-in stays a name with fields, and fields may have
    the names of earlier versions. ``objects`` stand for what the tables would name.
    """
    if not isinstance(raw, Mapping):
        raise RecipeError(f"recipe: {shown(raw)} is not allowed; expected a table")
    check_keys(Recipe, raw, "")
    method = _method(raw.get("method", {}), imports, objects)
    rest = {"name": "run", **_named(raw, objects)}
    recipe = check_dataclass(Recipe, {k: v for k, v in rest.items() if k != "method"}, method=method)
    check_name("name", recipe.name)
    model = recipe.model.name
    if ":" not in model and model not in MODELS and not is_object(model):
        raise RecipeError(
            f"model.name: {shown(model)} not found{alternatives(model, MODELS, 'Class', 'sparsona models')}"
        )
    try:
        recipe.task.main.check_target("evaluate.target", recipe.evaluate.target)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    recipe = dataclasses.replace(recipe, data=located(recipe.data))
    if recipe.model.weights is not None:
        started = dataclasses.replace(recipe.model, weights=absolute(recipe.model.weights))
        recipe = dataclasses.replace(recipe, model=started)
    if recipe.data.partition_file:  # so that a run can be resumed from any folder
        file = str(Path(recipe.data.partition_file).resolve())
        recipe = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, partition_file=file))
    recipe = _check_sampler(recipe)
    check_placement(recipe.engine)
    if isinstance(method, NamedMethod):
        return recipe
    return _check_method(recipe, f"method.name = {shown(method_name(method))}")


def _method(table: Any, imports: bool, objects: Objects) -> Method:
    """The method that is given as an object, or else the one that the section [method] describes."""
    if not isinstance(table, dict):
        raise RecipeError(f"method: {shown(table)} is not allowed; expected a table")
    if objects.method is None:
        if "name" not in table:
            what = alternatives("", METHODS, "Class", "sparsona methods")
            raise RecipeError(f"method.name is missing{what}")
        return method_of(table, imports=imports)
    if table and "name" not in table:
        key = next(iter(table))
        raise RecipeError(
            f"method.{key} is not allowed together with a method given as an object; set it there, {key}=..."
        )
    check_class(type(objects.method), "method")
    return objects.method


def _named(raw: Mapping[str, Any], objects: Objects) -> dict[str, Any]:
    """The tables of a recipe with the names of objects that are given in place of a source or a model."""
    named: dict[str, Any] = {"model": {}, **raw}
    if objects.data is not None and isinstance(table := named.get("data", {}), dict):
        path = isinstance(objects.data, (str, Path))
        named["data"] = {**table, "source": str(objects.data) if path else object_name(objects.data)}
    if objects.model is not None and isinstance(table := named["model"], dict):
        named["model"] = {**table, "name": object_name(objects.model)}
    if named["model"] == {}:
        raise RecipeError(f"model.name is missing{alternatives('', MODELS, 'Class', 'sparsona models')}")
    return named


def ready(recipe: Recipe, objects: Objects = NO_OBJECTS) -> Recipe:
    """The recipe as it can be run: with what was given as objects, or with its plug-in imported."""
    if isinstance(objects.data, (str, Path)):
        recipe = dataclasses.replace(recipe, data=located(recipe.data.with_object(str(objects.data))))
    elif objects.data is not None:
        name = object_name(objects.data)
        check_engine("the data", objects.data, recipe.engine.name)
        recipe = dataclasses.replace(recipe, data=recipe.data.with_object(name))
    if objects.model is not None:
        named = dataclasses.replace(recipe.model, name=model_name(objects.model, recipe.engine.name))
        recipe = dataclasses.replace(recipe, model=named)
    if objects.method is None and isinstance(recipe.method, NamedMethod):
        return check(tables(recipe))
    method = recipe.method if objects.method is None else objects.method
    if objects.method is None and is_ours(type(method)):
        return recipe
    check_class(type(method), "method")
    recipe = _check_method(dataclasses.replace(recipe, method=method), "method")
    check_engine("the method", type(method), recipe.engine.name)
    if recipe.engine.name != "local":  # worker processes build the method from the recipe
        method_of(tables(recipe)["method"], imports=True)
    return recipe


def with_data(recipe: Recipe, config: DataConfig) -> Recipe:
    """The recipe with its data as they turned out to be when they were read, checked against the number of clients."""
    if recipe.data == config:
        return recipe
    return _check_method(dataclasses.replace(recipe, data=config), "method")


def same_run(recorded: Recipe, asked: Recipe) -> bool:
    """Whether a run's recipe is the one that is asked for, under any name; it may leave open what its data decided."""
    data = asked.data
    left = {name: value for name in OPEN if (value := getattr(data, name)) in (None, "")}
    known = dataclasses.replace(recorded, data=dataclasses.replace(recorded.data, **left))
    return deciding(known) == deciding(asked)


def deciding(recipe: Recipe) -> dict[str, Any]:
    """The tables of a recipe without its name, and without where its clients run: equal ones give equal results."""
    table = tables(recipe)
    del table["name"]
    table["engine"] = {key: table["engine"][key] for key in DECIDING}
    return table


def tables(recipe: Recipe) -> dict[str, Any]:
    """A checked recipe as plain tables, with every default written out; ``check`` takes it back."""
    raw = dataclasses.asdict(dataclasses.replace(recipe, method=cast(Any, None)))
    raw["method"] = method_table(recipe.method)
    plain: dict[str, Any] = json.loads(json.dumps(raw, default=object_name))  # an object's fields may hold anything
    return _without_none(plain)


def _check_method(recipe: Recipe, where: str) -> Recipe:
    """The recipe of a method that has its hooks, and that fits the topology and the clients."""
    check_hooks(recipe.method, where)
    if capabilities(recipe.method).peer is not None:
        recipe = _check_topology(recipe)
    _check_clients(recipe)
    return recipe


def located(config: DataConfig) -> DataConfig:
    """The section [data] with the whole path of a user's file; RecipeError if there can be no such source."""
    try:
        settled = config.located()
    except ValueError as error:
        raise RecipeError(f"data.{error}") from error
    columns = [
        name for name in ("label", "client", "features", "missing", "test") if getattr(settled, name) is not None
    ]
    if columns and Path(settled.source).suffix == ".npz":
        what = f"not allowed with source = {shown(settled.source)}, whose arrays are x, y and client; leave it out"
        raise RecipeError(f"data.{columns[0]}: {what}")
    return settled


def _check_clients(recipe: Recipe) -> None:
    """Raise RecipeError unless there are enough clients for what is asked of them."""
    fleet, clients = recipe.fleet, recipe.data.clients
    if clients is None:  # known when the data are read
        return
    newcomers = round(fleet.hold_out * clients)
    if fleet.hold_out and capabilities(recipe.method).peer is not None:
        raise RecipeError(f"fleet.hold_out: {fleet.hold_out} is not allowed; expected 0, as the method has no server")
    if fleet.hold_out:
        check_newcomers(recipe.method, f"fleet.hold_out: {fleet.hold_out} is not allowed")
    if fleet.hold_out and not 0 < newcomers < clients:
        what = (
            f"it holds out {newcomers} of data.clients = {clients}; at least one must be held out, and one must remain"
        )
        raise RecipeError(f"fleet.hold_out: {fleet.hold_out} is not allowed; {what}")
    tested = recipe.evaluate.clients
    for path, count in (("fleet.per_round", fleet.per_round), ("evaluate.clients", tested)):
        if isinstance(count, int) and count > clients - newcomers:
            rest = f" less {newcomers} newcomers" if newcomers else ""
            raise RecipeError(f"{path}: {count} is not allowed; expected an int <= data.clients = {clients}{rest}")


def _check_sampler(recipe: Recipe) -> Recipe:
    """The recipe with the full path of its trace, so that a run can be resumed from any folder."""
    fleet = recipe.fleet
    if ":" not in fleet.sampler and fleet.sampler not in SAMPLERS:
        raise RecipeError(
            f"fleet.sampler: {shown(fleet.sampler)} not found{alternatives(fleet.sampler, SAMPLERS, 'function')}"
        )
    if (fleet.sampler == "trace") != bool(fleet.trace):
        fix = "expected the path of a CSV file" if fleet.sampler == "trace" else 'set fleet.sampler = "trace" to use it'
        raise RecipeError(
            f"fleet.trace: {shown(fleet.trace)} is not allowed with fleet.sampler = {shown(fleet.sampler)}; {fix}"
        )
    if fleet.sampler in ("samples", "poisson") and fleet.per_round is None:
        raise RecipeError(f"fleet.sampler: {shown(fleet.sampler)} needs fleet.per_round, the number of clients to draw")
    if not fleet.trace:
        return recipe
    return dataclasses.replace(recipe, fleet=dataclasses.replace(fleet, trace=str(Path(fleet.trace).resolve())))


def _check_topology(recipe: Recipe) -> Recipe:
    """The recipe of a method without a server, with its graph read from its file and checked."""
    topology, sampler = recipe.topology, recipe.fleet.sampler
    if sampler != "uniform" and recipe.fleet.peers == "all":
        raise RecipeError(
            f'fleet.sampler: {shown(sampler)} is not allowed with fleet.peers = "all", '
            "where every client trains in every "
            'round; set fleet.peers = "drawn"'
        )
    if topology.edges and topology.name == "edges":
        if topology.pairs:
            raise RecipeError(
                f"topology.edges: {shown(topology.edges)} is not allowed together with topology.pairs; "
                "remove one of them"
            )
        topology = dataclasses.replace(topology, edges="", pairs=_read_edges(Path(topology.edges)))
    if recipe.data.clients is None:  # known when the data are read
        return dataclasses.replace(recipe, topology=topology)
    try:
        topology.check(recipe.data.clients)
    except ValueError as error:
        raise RecipeError(f"topology.{error}") from error
    checks = capabilities(recipe.method).checks
    try:
        if checks is not None:
            checks.check(recipe.data.clients, topology, None)
    except ValueError as error:
        raise RecipeError(str(error) if str(error).startswith("topology.") else f"method.{error}") from error
    try:
        if checks is not None and recipe.fleet.peers == "drawn":  # some are away, as with topology.absent
            checks.check(recipe.data.clients, dataclasses.replace(topology, absent=0.5), None)
    except ValueError as error:
        raise RecipeError(
            f'fleet.peers: "drawn" is not allowed; expected "all", as {str(error).rpartition(", as ")[2]}'
        ) from error
    return dataclasses.replace(recipe, topology=topology)


def _read_edges(path: Path) -> tuple[tuple[int, int], ...]:
    """The pairs of an edge list: two client numbers a line; empty lines and what follows a # do not count."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"topology.edges: {shown(str(path))} cannot be read: {error}") from error
    pairs = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if len(words) == 2 and all(w.isascii() and w.isdigit() for w in words):
            pairs.append((int(words[0]), int(words[1])))
        elif words:
            raise RecipeError(
                f"topology.edges: {path}, line {number}: {shown(line)} is not allowed; expected two client numbers"
            )
    return tuple(pairs)


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {k: _without_none(v) if isinstance(v, dict) else v for k, v in table.items() if v is not None}


__all__ = [
    "EngineConfig",
    "EvaluateConfig",
    "FleetConfig",
    "ModelConfig",
    "Recipe",
    "RecipeError",
    "ResultsConfig",
    "TaskConfig",
    "check",
    "deciding",
    "located",
    "ready",
    "same_run",
    "tables",
    "with_data",
]
