"""What a run needs before its first round: data, model, device and engine, all from the recipe."""

from __future__ import annotations

import importlib.util
import json
import platform
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

import sparsona
from sparsona.core.arithmetic import arithmetic
from sparsona.core.layout import CPU
from sparsona.core.model import as_model
from sparsona.core.objective import Objective, Target
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.task import Task
from sparsona.core.text import one_line
from sparsona.core.training import try_out
from sparsona.data import Fleet, build
from sparsona.engines.device import Device
from sparsona.engines.hardware import Machine, device_kind, worker_bytes, workers_of
from sparsona.engines.local import LocalEngine
from sparsona.engines.pool import PoolEngine
from sparsona.engines.rounds import Engine
from sparsona.experiment.engine import devices_for
from sparsona.experiment.objects import NO_OBJECTS, Objects, model_maker
from sparsona.experiment.recipe import Recipe, RecipeError, check, ready, tables, with_data
from sparsona.experiment.sampling import Sizes, sampling_of, trace_checksum
from sparsona.experiment.scoring import measures_of, objective_of
from sparsona.experiment.weights import start_from
from sparsona.method import capabilities
from sparsona.models import build as build_model
from sparsona.models import example

if TYPE_CHECKING:
    from sparsona.engines.ray import RayEngine

_WORKER = "sparsona.experiment.setup:worker_device"


@dataclass(frozen=True)
class DataForm:
    """What a model must fit: the number of outputs, the shape of one input, and what is predicted."""

    outputs: int
    shape: tuple[int, ...]
    vocabulary: int | None = None
    target: Target = "class"
    probe: Tensor | None = None  # a few samples that a model is tried on, where they are at hand
    targets: Tensor | None = None  # of the probe

    @staticmethod
    def of(fleet: Fleet) -> DataForm:
        """The form of a fleet's data, with samples of its first client."""
        data, train = fleet.dataset, fleet.local(0).train
        probe, targets = train.at(torch.arange(min(2, len(train)))) if len(train) else (None, None)
        return DataForm(data.outputs, data.shape, data.vocabulary or None, data.target, probe, targets)


def prepare(
    recipe: Recipe, data_dir: Path | None = None, objects: Objects = NO_OBJECTS, where: torch.device = CPU
) -> tuple[Device, Fleet]:
    """Build the device side of a recipe: data, model and method, the same in every process."""
    recipe = ready(recipe, objects)
    given = objects.data if recipe.data.given else None
    fleet = build(recipe.data, recipe.seed, data_dir, given, lambda count: held_out(recipe, count))
    return _device_of(recipe, fleet, objects, where), fleet


def worker_device(recipe: dict[str, Any], data_dir: str | None, device: str = "cpu", sharing: int = 1) -> Device:
    """Build the device of a worker process from plain values; so many workers share what the device may keep."""
    warnings.simplefilter("ignore")  # the parent repeats them
    checked = check(recipe)
    place = replace(checked.engine, name="pool", device=device)  # on a cluster, it is this machine that has to have it
    where = torch.device(devices_for(place)[0])
    built = prepare(checked, None if data_dir is None else Path(data_dir), where=where)[0]
    return replace(built, cache=built.cache // sharing)


def bare_device(recipe: Recipe, form: DataForm, where: torch.device = CPU) -> Device:
    """Build a device without data: for a server, the initial model and the method."""
    return _device(ready(recipe), form, _no_data, _no_data, where=where)


def newcomers(recipe: Recipe) -> list[int]:
    """The clients that are held out of every round."""
    return held_out(recipe, recipe.data.clients)


def held_out(recipe: Recipe, clients: int) -> list[int]:
    """Those of so many clients that are held out."""
    return choose_newcomers(recipe.seed, recipe.fleet.hold_out, clients)


def choose_newcomers(seed: int, share: float, clients: int) -> list[int]:
    """A share of the clients, drawn once for a run."""
    count = round(share * clients)
    return sorted(Rng(seed, "newcomers").permutation(clients)[:count].tolist())


def members(recipe: Recipe, clients: int) -> list[int]:
    """The clients that may take part in rounds."""
    return sorted(set(range(clients)) - set(held_out(recipe, clients)))


def sizes_of(fleet: Fleet) -> Sizes | None:
    """How many training samples each client has, counted when asked for; None where all clients would be read."""
    return None if fleet.lazy else lambda: [int(n) for n in fleet.train_sizes]


def names_of(fleet: Fleet) -> Sequence[str]:
    """What the data call the clients, if they do."""
    return fleet.names if fleet.named else ()


def verify(recipe: Recipe, device: Device, clients: int, sizes: Sizes | None = None, names: Sequence[str] = ()) -> None:
    """Raise RecipeError if the method does not fit the model, the clients, the topology or what is to be evaluated.

    The device may be that of another recipe with the same data, seed, model and task. ``sizes`` gives the numbers of
    the clients' training samples, if they are known, and ``names`` what the data call the clients, if they do.
    """
    _try_out(recipe)
    sampling = sampling_of(recipe, members(recipe, clients), sizes, names)
    if sampling.own is not None:  # it may fail, so ask it now
        sampling.chosen(0)
    able = capabilities(recipe.method)
    if "shared" in recipe.evaluate.points and able.shares is None:
        name = tables(recipe)["method"]["name"]
        raise RecipeError(f'evaluate.points: "shared" is not allowed; the server of {name} has no shared model')
    if "finished" in recipe.evaluate.points and able.finetunes is None:
        name = tables(recipe)["method"]["name"]
        raise RecipeError(f'evaluate.points: "finished" is not allowed; {name} does not fine-tune models at the end')
    try:
        if able.star is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the run repeats them when it starts
                able.star.start(clients, device.ctx(0, "start"))
        elif able.checks is not None:
            able.checks.check(clients, recipe.topology, device.ctx(0, "start"))
    except ValueError as error:
        raise RecipeError(str(error) if str(error).startswith("topology.") else f"method.{error}") from error


def about(recipe: Recipe, device: Device, fleet: Fleet) -> dict[str, Any]:
    """What a reader needs to repeat or judge a run, besides the recipe."""
    facts = {
        "sparsona": sparsona.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "device": device_kind(devices_for(recipe.engine)),
        "precision": recipe.engine.precision,
        "seed": recipe.seed,
        "clients": fleet.clients,
        "parameters": device.task.layout.params,
        "forward_flops": device.task.layout.flops(),
        "not_in_flops": list(device.task.layout.uncounted),
    }
    if not fleet.lazy:  # or all clients would be read
        facts["train_samples"] = int(fleet.train_sizes.sum())
    if not fleet.lazy or not fleet.config.built_in:
        facts["data_checksum"] = checksum(fleet)
    if recipe.model.weights is not None:
        facts["weights_checksum"] = zlib.crc32(device.theta0.numpy().tobytes())
    if fleet.named:
        facts["client_names"] = list(fleet.names)
    if recipe.fleet.trace:
        facts["trace_checksum"] = trace_checksum(Path(recipe.fleet.trace))
    return facts


def checksum(fleet: Fleet) -> int:
    """A number that shows whether data have changed: labels, and of a user's data inputs, clients and classes too.

    Of a federation it is that of the first client, because no other is read.
    """
    data = fleet.dataset
    total = zlib.crc32(data.y.numpy().tobytes())
    if fleet.config.built_in:
        return total
    total = zlib.crc32(np.ascontiguousarray(data.x.numpy()).reshape(-1).view(np.uint8).data, total)
    for key in data.keys.values():
        total = zlib.crc32(key.tobytes(), total)
    return zlib.crc32(json.dumps([data.train, data.class_names, fleet.names[:1]]).encode(), total)


@contextmanager
def open_engine(
    recipe: Recipe, data_dir: Path | None, objects: Objects = NO_OBJECTS, where: torch.device | None = None
) -> Iterator[tuple[Engine, Device, Fleet]]:
    """Start the engine a recipe asks for, and stop it at the end.

    Jobs of the engine "local" run on ``where``, if it is given, and not on the recipe's device. The device beside the
    engine is the server's: it lies on the host.
    """
    engine: Engine | None = None
    recipe = ready(recipe, objects)
    with arithmetic():
        try:
            devices = devices_for(recipe.engine)
            device, fleet = prepare(recipe, data_dir, objects)
            if recipe.engine.name == "local":
                where = where or torch.device(devices[0])
                engine = LocalEngine(device if where == CPU else _device_of(recipe, fleet, objects, where))
            else:
                engine = workers = _workers(recipe, devices, device, fleet, data_dir)
                workers.ready()
            yield engine, device, fleet
        finally:
            if engine is not None:
                engine.close()


def check_place(recipe: Recipe, device: Device, fleet: Fleet) -> None:
    """Raise RecipeError if the recipe's devices are not here, or not so many workers fit."""
    devices = devices_for(recipe.engine)
    if recipe.engine.name == "pool":
        count_workers(recipe, devices, device, fleet)
    elif recipe.engine.name == "ray":
        _check_ray()


def count_workers(recipe: Recipe, devices: Sequence[str], device: Device, fleet: Fleet) -> int:
    """How many worker processes a run has on this machine; RecipeError for more than it can hold."""
    recipe = with_data(recipe, fleet.config)  # which knows how many clients there are
    clients = len(members(recipe, fleet.clients))
    drawn = capabilities(recipe.method).star is not None or recipe.fleet.peers == "drawn"
    at_once = min(recipe.fleet.per_round or clients, clients) if drawn else clients
    data = 0 if fleet.lazy else fleet.dataset.x.nbytes
    each = worker_bytes(device.task.layout.dim, data)
    try:
        return workers_of(recipe.engine.workers, devices, at_once, Machine.here(), each)
    except ValueError as error:
        raise RecipeError(f"engine.{error}") from error


def _workers(
    recipe: Recipe, devices: tuple[str, ...], device: Device, fleet: Fleet, data_dir: Path | None
) -> PoolEngine | RayEngine:
    options = recipe.engine
    if options.name == "ray" and options.address:
        count = fleet.clients if options.workers == "auto" else options.workers * len(devices)
    else:
        count = count_workers(recipe, devices, device, fleet)
    arguments = {
        "recipe": tables(recipe),
        "data_dir": None if data_dir is None else str(data_dir),
        "sharing": -(-count // len(devices)),
    }
    if options.name == "pool":
        return PoolEngine(count, _WORKER, arguments, devices)
    _check_ray()
    from sparsona.engines.ray import RayEngine  # slow to import, and optional

    return RayEngine(count, _WORKER, arguments, options.address, devices, fewer=options.workers == "auto")


def _check_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise RecipeError("engine.name: \"ray\" needs Ray, which is not installed: pip install 'sparsona[ray]'")


def _device_of(recipe: Recipe, fleet: Fleet, objects: Objects, where: torch.device) -> Device:
    if recipe.evaluate.samples == "validation":
        check_validation(fleet)
    device = _device(recipe, DataForm.of(fleet), fleet.local, fleet.test, objects, where)
    if any(metric.source for metric in recipe.task.measured):  # a user's metric may fail, so score one client now
        device.score(as_model(device.task, device.theta0), 0)
    return device


def check_validation(fleet: Fleet) -> None:
    """Raise RecipeError if a client has no validation samples; of a federation, only the first client is read."""
    for k in range(1 if fleet.lazy else fleet.clients):
        if not len(fleet.held(k)[1].validation):
            what = f"client {k} has no validation samples; set data.validation_share"
            raise RecipeError(f'evaluate.samples: "validation" is not allowed; {what}')


def _device(
    recipe: Recipe,
    form: DataForm,
    local: Callable[[int], LocalData],
    test: Callable[[int], Samples],
    objects: Objects = NO_OBJECTS,
    where: torch.device = CPU,
) -> Device:
    _try_out(recipe)
    objective, measures = objective_of(recipe.task, form.target), measures_of(recipe.task, form.target)
    config = recipe.model
    with Rng(recipe.seed, "init").everywhere():
        try:
            model = build_model(
                model_maker(config.name, objects),
                *(form.outputs, form.shape, form.vocabulary, config.width, form.target),
                args=config.args,
                probe=form.probe,
            )
        except ValueError as error:
            if form.vocabulary is None or form.target == "tokens" or recipe.data.built_in:
                raise
            what = "its whole numbers are taken as token ids; use floats for features"
            raise ValueError(f"{error}; data.source = {recipe.data.source!r}: {what}") from error
    one = example(model, form.shape) if form.probe is None else form.probe[:1]
    task, theta0 = Task.of(model, one, objective, where, recipe.engine.precision)
    if config.weights is not None:
        theta0 = start_from(config.weights, task.layout, model, theta0)
    if callable(objective.loss) and form.probe is not None and form.targets is not None:
        _try_loss(objective, task.logits(theta0, form.probe.to(where)), form.targets.to(where))
    rounds, batch, epochs = recipe.rounds, recipe.evaluate.batch, recipe.fleet.adapt_epochs
    cache = int(recipe.engine.device_cache * 1e9)
    return Device(
        *(recipe.method, task, theta0, local, test, recipe.seed, rounds, batch, epochs, measures),
        cache=cache,
        tf32=recipe.engine.tf32,
        on_validation=recipe.evaluate.samples == "validation",
    )


def _try_out(recipe: Recipe) -> None:
    """Raise RecipeError if the local training of a method cannot work as it is configured."""
    training = capabilities(recipe.method).training
    try:
        if training is not None:
            try_out(training, recipe.rounds)
    except ValueError as error:
        raise RecipeError(f"method.{error}") from error


def _try_loss(objective: Objective, outputs: Tensor, targets: Tensor) -> None:
    """Raise RecipeError if a user's loss fails on a few samples, or has no gradient."""
    try:
        torch.autograd.grad(objective(outputs.requires_grad_(), targets), outputs)
    except ValueError as error:
        raise RecipeError(str(error)) from error
    except RuntimeError as error:
        raise RecipeError(f"task.loss: the function's losses have no gradient: {one_line(error)}") from error


def _no_data(k: int) -> Any:
    raise AssertionError(f"the server has no data of client {k}")
