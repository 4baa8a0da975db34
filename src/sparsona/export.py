"""A client's personal model as a file: safetensors, or ONNX with everything inside that is needed to predict."""

from __future__ import annotations

import json
import logging
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

from sparsona.config import Recipe, changed, override, tables
from sparsona.core.arithmetic import arithmetic
from sparsona.core.portable import Bases, plain
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.training import Training
from sparsona.core.wire import decode
from sparsona.data import Fleet
from sparsona.data.split import cut, sizes
from sparsona.engines.device import Device, Job
from sparsona.engines.values import loads, types_of
from sparsona.evaluate import metrics
from sparsona.method import Finishing, Inbox, Model, Portable, StarMethod, Vector
from sparsona.results import Run, RunError, write
from sparsona.runner import newcomers, prepare

Told = dict[str, Any]
FORMATS = (".safetensors", ".onnx")
CHANGES = (
    "method.FIELD",
    "fleet.adapt_epochs",
    "data.train_share",
    "data.validation_share",
    "data.test_share",
    "evaluate.batch",
)  # what of a recipe a newcomer may have otherwise
ADAPTED = "adapted as a newcomer's"


@arithmetic()  # as in runs: a newcomer then adapts to the same bits
def export(run: Run, k: int, to: Path, data_dir: Path | None = None) -> Told:
    """Write client k's personal model, tuned if the run tunes models at its end, and tell what was written."""
    _ready(run, to)
    device, fleet = prepare(run.recipe, data_dir)
    if not 0 <= k < fleet.clients:
        raise RunError(f"client = {k}: must be from 0 to {fleet.clients - 1}, as in {run.path}")
    example = fleet.local(k).train.at(torch.tensor([0]))[0]
    new, tuned = k in newcomers(run.recipe), "finished" in run.recipe.evaluate.points
    if tuned and not new:
        t, theta = best(run)
        which = f"tuned at the end from the shared model of round {t + 1}"
        return save_module(
            _module(device, device.finished(theta, t, k)), example, to, about(run.recipe, fleet, k, which)
        )
    client, mail = value(run, device, k), inbox(run, device, k)
    if client is not None and not new and not kept(run, k).is_file():
        warnings.warn(
            f"client {k} took part in no round: its model has the server's weights, but what it keeps for itself, such "
            "as a gate, is untrained; export another client, or run more rounds or with a larger fleet.per_round",
            stacklevel=2,
        )
    module = module_of(device, client, mail, fleet.local(k), k, new=new)
    asked = ' (evaluate.points has no "finished")' if isinstance(device.method, Finishing) else ""
    which = f"as before local training, not tuned at the end{asked}"
    return save_module(module, example, to, about(run.recipe, fleet, k, ADAPTED if new else which))


@arithmetic()
def adapt(
    run: Run, data: Path, to: Path | None = None, overrides: Sequence[str] = (), data_dir: Path | None = None
) -> Told:
    """Let a client join that was never part of a finished run; tell how its model does, and write it."""
    _ready(run, to)
    changes = [override(text) for text in overrides]
    recipe = changed({None: tables(run.recipe)}, None, changes)
    if recipe.model != run.recipe.model or type(recipe.method) is not type(run.recipe.method):
        raise RunError(f"{run.path}: a newcomer uses the run's model and method; only other fields can be changed")
    for keys, _ in changes:
        _may_change(".".join(keys))
    device, fleet = prepare(recipe, data_dir)
    if not isinstance(device.method, StarMethod):
        raise RunError(f"{run.path}: without a server there is nobody whom a newcomer could ask")
    k, (train, validation, test) = fleet.clients, stranger(data, fleet, recipe)
    local = LocalData(train, validation)
    device = replace(device, local=lambda _: local, test=lambda _: test)
    try:
        mail = inbox(run, device, k)
        result = device.handle(Job("adapt", device.rounds - 1, k, None, mail))
    except (KeyError, IndexError) as error:
        fields = tables(recipe)["method"]
        lists = [n for n, v in fields.items() if isinstance(v, (list, tuple)) and len(v) == fleet.clients]
        hint = f"; method.{lists[0]} is a list, so say what this one has: method.{lists[0]}=..." if lists else ""
        what = f"{fields['name']} has nothing for a client {k}, beside the {fleet.clients} of the run{hint}"
        raise RunError(f"{run.path}: {what}") from error
    assert result.score is not None
    told = {"client": k, "train_samples": len(local), **metrics({k: result.score})}
    if to is None:
        return told
    module = module_of(device, None, mail, local, k, new=True)
    return told | save_module(module, train.at(torch.tensor([0]))[0], to, about(recipe, fleet, k, ADAPTED))


def _may_change(key: str) -> None:
    if key in ("method.epochs", "method.finish_epochs"):
        raise RunError(f"{key}: has no effect on a newcomer; the passes that it adapts with are fleet.adapt_epochs")
    if not key.startswith("method.") and key not in CHANGES:
        raise RunError(f"{key}: is the run's, also for a newcomer; allowed: {', '.join(CHANGES)}")


def _ready(run: Run, to: Path | None) -> None:
    if to is not None and to.suffix not in FORMATS:
        raise RunError(f"to = {str(to)!r}: must end with {' or '.join(FORMATS)}")
    assert run.summary  # raises RunError unless it is finished
    if (run.path / "state" / "versions.json").is_file():
        raise RunError(
            f"{run.path} is the run of a fleet: what clients keep, and their data, are on their nodes; with "
            "results.models = true each one's model is in its --home, model.safetensors in the run's folder"
        )


def about(recipe: Recipe, fleet: Fleet, k: int, which: str) -> Told:
    """What a reader of the file needs to know; inputs on the scale 0 to 1 are less the mean, over the std."""
    data = fleet.dataset
    return {
        "client": k,
        "method": tables(recipe)["method"]["name"],
        "model": recipe.model.name,
        "which": which,
        "classes": data.classes,
        "shape": list(data.shape),
        "mean": list(data.prepare.mean),
        "std": list(data.prepare.std),
    }


def stranger(path: Path, fleet: Fleet, recipe: Recipe) -> tuple[Samples, Samples, Samples]:
    """The samples of an .npz file with x and y as the run's data has them, for training, validation and test."""
    where = f"data = {str(path)!r}"
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: torch.from_numpy(np.ascontiguousarray(file[name])) for name in ("x", "y")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise RunError(f"{where}: must be an .npz file with arrays x and y: {error}") from error
    x, y, like = found["x"], found["y"].long(), fleet.dataset
    if x.shape[1:] != like.x.shape[1:] or x.dtype != like.x.dtype:
        want = f"{like.x.dtype} of [n, {', '.join(map(str, like.x.shape[1:]))}]"
        raise RunError(f"{where}: x is {x.dtype} of {list(x.shape)}; as in {like.name}, {want} is needed")
    if y.shape != (len(x),) or not bool(((y >= 0) & (y < like.classes)).all()):
        raise RunError(f"{where}: y must hold a class from 0 to {like.classes - 1} for each of x")
    shares = (recipe.data.train_share, recipe.data.validation_share, recipe.data.test_share)
    assert isinstance(recipe.method, Training)
    trained, needed = recipe.method.step_needs, (0, 2)
    least = next(n for n in count(len(needed)) if sizes(n, shares, needed)[0] >= trained)
    if len(x) < least:
        raise RunError(
            f"{where}: the number of samples is {len(x)}; at least {least} are needed, so that {trained} of them "
            "are there to adapt with and one or more to test with"
        )
    parts = cut(np.arange(len(x)), shares, Rng(recipe.seed, "newcomer"), needed)
    train, validation, test = (Samples(x, y, torch.from_numpy(part), like.prepare) for part in parts)
    return train, validation, test


def kept(run: Run, k: int) -> Path:
    """The file of what client k keeps; there is none if it never took part or its method keeps nothing."""
    return run.path / "state" / f"client-{k:05d}.safetensors"


def value(run: Run, device: Device, k: int) -> Any:
    """What client k keeps at the end of a run."""
    file = kept(run, k)
    if not file.is_file():
        return device.method.join(k, device.ctx(0, "join", k))
    return loads(file.read_bytes(), types_of(device.method))


def best(run: Run) -> tuple[int, Vector]:
    """The round whose shared model was tuned at the end of a run, from 0, and that model."""
    try:
        found: tuple[int, Vector] = loads((run.path / "state" / "best.safetensors").read_bytes(), {})
        return found
    except OSError as error:
        raise RunError(
            f"{run.path} is damaged, or of an earlier version: {error.filename} is missing, the model that was tuned"
        ) from error


def inbox(run: Run, device: Device, k: int) -> Inbox:
    """What client k would receive then."""
    state, t = run.path / "state", device.rounds - 1
    try:
        if isinstance(device.method, StarMethod):
            server = loads((state / "server.safetensors").read_bytes(), types_of(device.method))
            return {"server": device.method.down(server, k, device.ctx(t, "tests", t))}
        return {"self": decode((state / f"client-{k:05d}.message").read_bytes(), max_bytes=1 << 40)}
    except OSError as error:
        raise RunError(f"{run.path} is damaged: {error.strerror}: {error.filename}") from error


def module_of(device: Device, client: Any, inbox: Inbox, data: LocalData, k: int, *, new: bool = False) -> nn.Module:
    """A client's personal model as a module of its own; a newcomer adapts first."""
    t = device.rounds - 1
    if new:
        joined = device.method.join(k, device.ctx(0, "join", k))
        client, model = device.adapted(joined, inbox, data, device.ctx(t, "adapt", k))
        if isinstance(model, (Tensor, Bases)):
            return _module(device, model)
    ctx = device.ctx(t, "personal", t, k)
    if isinstance(device.method, Portable):
        return device.method.module(client, inbox, data, ctx)
    return _module(device, device.method.personal(client, inbox, data, ctx))


def _module(device: Device, model: Model) -> nn.Module:
    assert isinstance(model, (Tensor, Bases)), "models that are neither vectors nor made of them have a module"
    return model.module() if isinstance(model, Bases) else plain(device.task, model)


def save_module(module: nn.Module, example: Tensor, to: Path, about: Told) -> Told:
    """Write a module; what it is goes into the file's own records."""
    records = {name: v if isinstance(v, str) else json.dumps(v) for name, v in about.items()}
    to.parent.mkdir(parents=True, exist_ok=True)
    if to.suffix == ".safetensors":
        state = {name: t.contiguous().clone() for name, t in module.state_dict().items() if t.numel()}
        write(to, save(state, metadata=records))
    else:
        _onnx(module, example, to, records)
    written = {"nbytes": to.stat().st_size, "parameters": sum(p.numel() for p in module.parameters())}
    return about | {"file": str(to)} | written


def _onnx(module: nn.Module, example: Tensor, to: Path, records: dict[str, str]) -> None:
    try:
        import onnx
        import onnxscript  # noqa: F401  # what PyTorch's exporter is written in
    except ImportError as error:
        raise RunError(f"to = {str(to)!r}: ONNX needs pip install 'sparsona[onnx]' ({error})") from error
    two = torch.cat([example, example]).contiguous()  # a batch of one would be taken for a fixed size
    with _quiet():
        program = torch.onnx.export(
            module.eval(),
            (two,),
            input_names=["x"],
            output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    graph = proto.graph
    for part in (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
        del part.metadata_props[:]  # source lines and folders of this machine, often more than the weights
    onnx.helper.set_model_props(proto, records)
    write(to, proto.SerializeToString())


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter has to say of its own code; what stops it is raised."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
