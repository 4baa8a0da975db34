"""A client's personal model as a file: safetensors, or ONNX with everything inside that is needed to predict."""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
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

from sparsona.core.arithmetic import arithmetic
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.wire import decode
from sparsona.data import (
    SOURCE_NAMES,
    DataConfig,
    DataError,
    Dataset,
    Encoding,
    Fleet,
    read_source,
    read_value,
    resized,
    write_encoding,
)
from sparsona.data.arrays import from_arrays
from sparsona.data.readers.npz import own_arrays
from sparsona.data.split import cut, sizes
from sparsona.engines.device import Device
from sparsona.engines.jobs import Job
from sparsona.engines.values import loads, types_of
from sparsona.experiment.metrics import metrics
from sparsona.experiment.objects import NO_OBJECTS, Objects, check_newcomers, method_name
from sparsona.experiment.overrides import parse_override
from sparsona.experiment.plan import resolve
from sparsona.experiment.recipe import Recipe, ready, tables
from sparsona.experiment.results import ENCODING, Run, RunError, write
from sparsona.experiment.setup import newcomers, prepare
from sparsona.method import Inbox, Vector, capabilities

Summary = dict[str, Any]
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
def export(run: Run, k: int, to: Path, data_dir: Path | None = None, objects: Objects = NO_OBJECTS) -> Summary:
    """Write client k's personal model, fine-tuned if the run fine-tunes at its end, and describe what was written."""
    _ready(run, to)
    device, fleet = prepare(run.recipe, data_dir, objects)
    if not 0 <= k < fleet.clients:
        raise RunError(
            f"client: {k} is not allowed; expected an int in [0, {fleet.clients - 1}], a client of {run.path}"
        )
    example = fleet.local(k).train.at(torch.tensor([0]))[0]
    new, tuned = k in newcomers(run.recipe), "finished" in run.recipe.evaluate.points
    if tuned and not new:
        t, theta = best(run)
        which = f"tuned at the end from the shared model of round {t + 1}"
        module = device.finished(device.rows(theta), t, k).module()
        return save_module(module, example, to, about(run.recipe, fleet, k, which))
    client, mail = value(run, device, k), inbox(run, device, k)
    if client is not None and not new and not kept(run, k).is_file():
        warnings.warn(
            f"client {k} took part in no round, so its local state, such as a gate, is untrained; "
            "export another client, "
            "run more rounds, or set a larger fleet.per_round",
            stacklevel=2,
        )
    module = module_of(device, client, mail, fleet.local(k), k, new=new)
    asked = ' (evaluate.points has no "finished")' if capabilities(device.method).finetunes is not None else ""
    which = f"as before local training, not tuned at the end{asked}"
    return save_module(module, example, to, about(run.recipe, fleet, k, ADAPTED if new else which))


@arithmetic()
def adapt(
    run: Run,
    data: str | Path,
    to: Path | None = None,
    overrides: Sequence[str] = (),
    data_dir: Path | None = None,
    objects: Objects = NO_OBJECTS,
) -> Summary:
    """Let a new client join a finished run, report its model's accuracy, and write the model."""
    _ready(run, to)
    changes = [parse_override(text) for text in overrides]
    recipe = run.recipe if not changes else resolve({None: tables(run.recipe)}, None, changes)
    recipe = ready(recipe, objects)
    if recipe.model != run.recipe.model or method_name(recipe.method) != method_name(run.recipe.method):
        raise RunError(
            f"{run.path}: the model and the name of the method are fixed for a newcomer; allowed: {', '.join(CHANGES)}"
        )
    for keys, _ in changes:
        _may_change(".".join(keys))
    device, fleet = prepare(recipe, data_dir, objects)
    if capabilities(device.method).star is None:
        raise RunError(
            f"{run.path}: the method has no server, so a newcomer cannot adapt; use a run of a method with a server"
        )
    check_newcomers(device.method, str(run.path))
    with _encoding_file(run, fleet) as encoding:
        k, (train, validation, test) = fleet.clients, stranger(data, fleet, recipe, encoding, data_dir)
    local = LocalData(train, validation)
    device = replace(device, local=lambda _: local, test=lambda _: test)
    try:
        mail = inbox(run, device, k)
        result = device.handle(Job("adapt", device.rounds - 1, k, None, mail))
    except (KeyError, IndexError) as error:
        fields = tables(recipe)["method"]
        lists = [n for n, v in fields.items() if isinstance(v, (list, tuple)) and len(v) == fleet.clients]
        hint = f"; method.{lists[0]} is a list; set the newcomer's value with method.{lists[0]}=..." if lists else ""
        what = (
            f"{fields['name']} cannot adapt client {k}, which is not among the {fleet.clients} clients of the run{hint}"
        )
        raise RunError(f"{run.path}: {what}") from error
    assert result.score is not None
    summary = {"client": k, "train_samples": len(local), **metrics({k: result.score}, recipe.task)}
    if to is None:
        return summary
    module = module_of(device, None, mail, local, k, new=True)
    return summary | save_module(module, train.at(torch.tensor([0]))[0], to, about(recipe, fleet, k, ADAPTED))


def _may_change(key: str) -> None:
    if key in ("method.epochs", "method.finish_epochs"):
        raise RunError(f"{key}: has no effect on a newcomer; set fleet.adapt_epochs instead")
    if not key.startswith("method.") and key not in CHANGES:
        raise RunError(f"{key}: cannot change for a newcomer; allowed: {', '.join(CHANGES)}")


def _ready(run: Run, to: Path | None) -> None:
    if to is not None and to.suffix not in FORMATS:
        raise RunError(f'to: "{to}" is not allowed; expected a path that ends with {" or ".join(FORMATS)}')
    assert run.summary  # raises RunError unless it is finished
    if (run.path / "state" / "versions.json").is_file():
        raise RunError(
            f"{run.path} is a fleet run, so the clients' states and data are on their nodes; with "
            "results.models = true, each node writes its model to the run's folder in its --home, model.safetensors"
        )


def about(recipe: Recipe, fleet: Fleet, k: int, which: str) -> Summary:
    """What a reader of the file needs to know; inputs on the scale 0 to 1 are standardised with mean and std."""
    data = fleet.dataset
    return {
        "client": k,
        "method": tables(recipe)["method"]["name"],
        "model": recipe.model.name,
        "which": which,
        "classes": data.outputs,
        **({} if data.target == "class" else {"target": data.target}),
        "shape": list(data.shape),
        "mean": list(data.prepare.mean),
        "std": list(data.prepare.std),
        **({} if fleet.encoding is None else {"encoding": fleet.encoding.json()}),
    }


def stranger(
    source: str | Path, fleet: Fleet, recipe: Recipe, encoding: Path | None = None, data_dir: Path | None = None
) -> tuple[Samples, Samples, Samples]:
    """The samples of a newcomer for training, validation and test, from any source that a run takes.

    Columns, classes and tokens are as in the run; ``encoding`` is the file that says how they became numbers.
    """
    like = fleet.dataset
    try:
        own, given = _read(source, fleet, recipe, encoding, data_dir)
    except DataError as error:
        raise RunError(str(error)) from error
    tested = own.train < len(own)
    shares, needed = _check_count(source, recipe, own.train, tested=tested)
    for name, mine, theirs in (("x", own.x, like.x), ("y", own.y, like.y)):
        if mine.shape[1:] != theirs.shape[1:] or mine.dtype != theirs.dtype:
            want = f"{theirs.dtype} of [{', '.join(['n', *map(str, theirs.shape[1:])])}]"
            what = "the standardised and encoded columns, " if like.encoding is not None and name == "x" else ""
            raise RunError(f"{source}: {name} is {given[name]}; expected {what}{want}, as in {like.name}")
    if like.encoding is not None and own.encoding is None:
        what = "standardised and encoded columns" if like.encoding.columns else "token ids"
        warnings.warn(f"{source}: x is used as it is; expected the {what} of {like.name}", stacklevel=2)
    parts = cut(np.arange(own.train), shares, Rng(recipe.seed, "newcomer"), needed)
    if tested:
        parts.append(np.arange(own.train, len(own)))
    train, validation, test = (Samples(own.x, own.y, torch.from_numpy(part), like.prepare) for part in parts)
    return train, validation, test


def _check_count(
    source: str | Path, recipe: Recipe, samples: int, *, tested: bool
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """The shares to cut a newcomer's samples by and the pieces that need one, if there are samples enough.

    With samples that are ``tested`` already, none are cut off for tests.
    """
    data = recipe.data
    shares: tuple[float, ...] = (data.train_share, data.validation_share, data.test_share)
    needed: tuple[int, ...] = (0, 2)
    if tested:
        shares, needed = shares[:2], (0,)
    training = capabilities(recipe.method).training
    trained = 1 if training is None else training.step_needs
    least = next(n for n in count(len(needed)) if sizes(n, shares, needed)[0] >= trained)
    if samples < least:
        more = "" if tested else " and at least one to test with"
        raise RunError(
            f"{source}: {samples} samples are too few; expected at least {least}, so that {trained} remain to adapt "
            f"with{more}"
        )
    return shares, needed


def _read(
    source: str | Path, fleet: Fleet, recipe: Recipe, encoding: Path | None, data_dir: Path | None
) -> tuple[Dataset, dict[str, str]]:
    """A newcomer's data set as the run's data are, and the types and sizes of x and y as errors name them."""
    like, data = fleet.dataset, recipe.data
    words: Any = like.vocabulary or None
    length: Any = like.shape[0] if words else None
    if str(source) in SOURCE_NAMES:
        raise RunError(f"{source}: is a built-in data set; expected a file, a folder or package.module:name")
    try:
        form = DataConfig(
            *(str(source),),
            target=like.target,
            classes=like.class_names or None,
            vocabulary=words,
            length=length,
            label=data.label,
            features=data.features,
            missing=data.missing,
            side=data.side,
            encoding=None if encoding is None else str(encoding),
        ).located()
    except ValueError as error:
        raise RunError(f"data: {error}") from error
    if form.plugin:
        own = read_value(form, recipe.seed, data_dir)
    elif Path(source).suffix.lower() == ".npz":
        arrays = {n: a for n, a in own_arrays(Path(source)).items() if n in ("x", "y", "x_test", "y_test")}
        if "x" in arrays and arrays["x"].ndim and not len(arrays["x"]):
            _check_count(source, recipe, 0, tested="x_test" in arrays)
        own = from_arrays(str(source), arrays, form)
        given = {name: f"{arrays[name].dtype} of shape {list(arrays[name].shape)}" for name in ("x", "y")}
        return own if data.side is None else resized(own, data.side), given
    else:
        own = read_source(form)
    known = like.encoding or Encoding()
    if own.encode is not None:
        if not known.columns:
            raise RunError(f"{source}: is a table, and {like.name} is none; give its samples as {like.name} has them")
        own = own.encode(np.arange(0))  # by the file
    elif own.encoding is not None and not known.alphabet:
        raise RunError(f"{source}: is a text, and {like.name} is none; give its samples as {like.name} has them")
    own = own if data.side is None else resized(own, data.side)
    return own, {name: f"{str(t.dtype)[6:]} of shape {list(t.shape)}" for name, t in (("x", own.x), ("y", own.y))}


@contextmanager
def _encoding_file(run: Run, fleet: Fleet) -> Iterator[Path | None]:
    """The file of a run's encoding; for a run that has none, such as one on a fleet, that of its data today."""
    if (run.path / ENCODING).is_file() or fleet.encoding is None:
        yield run.path / ENCODING if (run.path / ENCODING).is_file() else None
        return
    with tempfile.TemporaryDirectory() as folder:
        write_encoding(fleet.encoding, Path(folder) / ENCODING)
        yield Path(folder) / ENCODING


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
        round_and_model: tuple[int, Vector] = loads((run.path / "state" / "best.safetensors").read_bytes(), {})
        return round_and_model
    except OSError as error:
        raise RunError(
            f"{run.path} is damaged or comes from an earlier version: the fine-tuned model {error.filename} is missing"
        ) from error


def inbox(run: Run, device: Device, k: int) -> Inbox:
    """What client k would receive then."""
    state, t = run.path / "state", device.rounds - 1
    try:
        if (star := capabilities(device.method).star) is not None:
            server = loads((state / "server.safetensors").read_bytes(), types_of(device.method))
            return {"server": star.down(server, k, device.ctx(t, "tests", t))}
        return {"self": decode((state / f"client-{k:05d}.message").read_bytes(), max_bytes=1 << 40)}
    except OSError as error:
        raise RunError(f"{run.path} is damaged: {error.strerror}: {error.filename}") from error


def module_of(device: Device, client: Any, inbox: Inbox, data: LocalData, k: int, *, new: bool = False) -> nn.Module:
    """A client's personal model as a standalone module; a newcomer adapts first."""
    t = device.rounds - 1
    if new:
        joined = device.method.join(k, device.ctx(0, "join", k))
        _, model = device.adapted(joined, inbox, data, device.ctx(t, "adapt", k))
        return model.module()
    return device.personal(client, inbox, data, t, k).module()


def save_module(module: nn.Module, example: Tensor, to: Path, about: Summary) -> Summary:
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
        raise RunError(
            f"to: \"{to}\" needs ONNX, which is not installed: pip install 'sparsona[onnx]' ({error})"
        ) from error
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
    """Silence the exporter's warnings about its own code; errors are still raised."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
