"""From a recipe to a finished run, and from an interrupted run to its end."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparsona.core.arithmetic import arithmetic
from sparsona.data import Fleet
from sparsona.data.lazy import KEPT
from sparsona.engines.device import Device
from sparsona.engines.local import ClientFailed, out_of_memory, reason
from sparsona.engines.pool import WorkerDied
from sparsona.engines.rounds import Engine
from sparsona.engines.store import Store
from sparsona.experiment.checkpoints import Checkpointer, forget_state, reopen, state_file
from sparsona.experiment.engine import moved
from sparsona.experiment.evaluator import Evaluator, is_due
from sparsona.experiment.extension import check_extension, extend
from sparsona.experiment.loop import Loop, OnRound
from sparsona.experiment.objects import NO_OBJECTS, Objects
from sparsona.experiment.outcome import Outcome
from sparsona.experiment.recipe import Recipe, RecipeError, ready, tables, with_data
from sparsona.experiment.recorder import Recorder, devices_of
from sparsona.experiment.results import Row, Run, RunError
from sparsona.experiment.sampling import Sizes, sampling_of
from sparsona.experiment.setup import about as describe
from sparsona.experiment.setup import members, names_of, open_engine, sizes_of, verify
from sparsona.experiment.sweep import difference

_EARLIER = {"precision": "float32"}  # what runs have of versions that did not say


def run(
    recipe: Recipe,
    out: str | Path | None = None,
    *,
    data_dir: Path | None = None,
    on_round: OnRound | None = None,
    objects: Objects = NO_OBJECTS,
) -> Run:
    """Run a recipe into the folder ``out``; without a folder, the finished run keeps its rows in memory."""
    recipe = ready(recipe, objects)
    with _opened(recipe, data_dir, objects) as (engine, device, fleet):
        recipe = with_data(recipe, fleet.config)
        verify(recipe, device, fleet.clients, sizes_of(fleet), names_of(fleet))
        about = _about(recipe, engine, device, fleet)
        folder = None if out is None else Run.create(Path(out), recipe, about, fleet.encoding)
        _warn_of_reads(recipe, fleet)
        return _run(recipe, engine, device, fleet.clients, folder, on_round, fleet, sizes_of(fleet))


def resume(
    out: str | Path,
    *,
    data_dir: Path | None = None,
    on_round: OnRound | None = None,
    objects: Objects = NO_OBJECTS,
    engine: Mapping[str, Any] | None = None,
    rounds: int | None = None,
) -> Run:
    """Resume an interrupted run from its last checkpoint; a finished one is left as it is, or extended to ``rounds``.

    ``engine`` has fields of [engine] to change, of those that do not change results: the recipe stays as recorded.
    Nothing is written before data, model and engine are built.
    """
    folder = Run.open(Path(out))
    rounds = folder.recipe.rounds if rounds is None else rounds
    check_extension(folder, rounds, objects)
    if folder.finished and folder.summary["rounds"] == rounds:
        forget_state(folder.path)  # it may have been killed just before
        return folder
    if "fleet_run" in json.loads((folder.path / "run.json").read_text()):
        again = f"sparsona fleet run SERVER {shlex.quote(str(out))}"
        raise RunError(f"{out} is a fleet run, whose nodes keep the clients' states; resume it with: {again}")
    asked = replace(folder.recipe, rounds=rounds, engine=moved(folder.recipe.engine, engine or {}))
    recipe = ready(asked, objects)
    for what, given in (("method", objects.method), ("model", objects.model)):
        if given is not None and tables(recipe)[what] != tables(folder.recipe)[what]:
            raise RunError(f"{out} was run with another {what}: {difference(asked, [recipe])}")
    with _opened(recipe, data_dir, objects) as (opened, device, fleet):
        about, sizes = _about(recipe, opened, device, fleet), sizes_of(fleet)
        verify(recipe, device, fleet.clients, sizes, names_of(fleet))
        folder = extend(folder, rounds, objects)
        reopen(folder.path)  # it may have been killed while it was extended
        _warn_of_changes(folder, about)
        return _run(recipe, opened, device, fleet.clients, folder, on_round, fleet, sizes, devices=about["devices"])


def drive(
    recipe: Recipe,
    engine: Engine,
    device: Device,
    out: Path,
    about: dict[str, Any],
    on_round: OnRound | None = None,
    sizes: Sizes | None = None,
) -> Run:
    """Run a recipe on a fleet whose clients keep their own values, or resume such a run."""
    with arithmetic():
        if (out / "recipe.toml").is_file():
            folder = Run.open(out)
            if folder.finished:
                return folder
        else:
            verify(recipe, device, recipe.data.clients, sizes)
            folder = Run.create(out, recipe, about)
        clients, devices = recipe.data.clients, about["devices"]
        return _run(folder.recipe, engine, device, clients, folder, on_round, sizes=sizes, away=True, devices=devices)


def _about(recipe: Recipe, engine: Engine, device: Device, fleet: Fleet) -> dict[str, Any]:
    """What run.json records of a run; the workers of a cluster say themselves what they compute on."""
    facts = describe(recipe, device, fleet)
    kind = facts.pop("device")
    return facts | {"devices": [engine.kind or kind]}


@contextmanager
def _opened(recipe: Recipe, data_dir: Path | None, objects: Objects) -> Iterator[tuple[Engine, Device, Fleet]]:
    """The engine of a recipe; RecipeError if the model does not fit on the GPU where this process moves it."""
    try:
        with open_engine(recipe, data_dir, objects) as parts:
            yield parts
    except (ClientFailed, WorkerDied):  # which say it of a job or a worker
        raise
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
        raise RecipeError(f"engine.device: {reason(error)}") from error


def _run(
    recipe: Recipe,
    engine: Engine,
    device: Device,
    clients: int,
    folder: Run | None,
    on_round: OnRound | None,
    data: Fleet | None = None,
    sizes: Sizes | None = None,
    *,
    away: bool = False,
    devices: Sequence[str] = (),
) -> Run:
    """Put the parts of a run together, and let them run to the end."""
    store = Store(None if folder is None else state_file(folder.path))
    recorder = Recorder(folder, recipe.task, devices)
    labels = None if data is None or data.lazy else data.label_counts
    names = () if data is None else tuple(names_of(data))
    try:
        sampling = sampling_of(recipe, members(recipe, clients), sizes, names)
        evaluator = Evaluator(recipe, engine, device, store, list(sampling.members))
        checkpointer = Checkpointer(store, device, clients, recipe.engine.checkpoint_every, evaluator, recorder)
        loop = Loop(recipe, engine, device, clients, sampling, store, evaluator, recorder, checkpointer, on_round, away)
        server = loop.run()
        recorder.note_devices()  # what follows is computed too
        _warn_of_nobody(recipe, recorder.rows)
        return Outcome(recipe, device, clients, store, evaluator, labels, away, names).write(server, recorder)
    except BaseException:
        store.rescue()  # whatever stopped us, keep the rounds that are whole
        raise
    finally:
        store.close()
        recorder.close()


def _warn_of_reads(recipe: Recipe, fleet: Fleet) -> None:
    """Warn of tests that read all clients of a federation, more than stay in memory, every time."""
    count, tested = len(members(recipe, fleet.clients)), recipe.evaluate.clients
    if fleet.lazy and tested == "all" and set(recipe.evaluate.points) != {"after"} and count > KEPT:
        times = len([t for t in range(recipe.rounds) if is_due(recipe, t)])
        warnings.warn(
            f"{fleet.dataset.name}: each of {times:,} evaluations reads all {count:,} clients, {times * count:,} reads"
            ' in all; evaluate.clients = "participated" or a number tests few, evaluate.points = ["after"] who trains',
            stacklevel=3,
        )


def _warn_of_nobody(recipe: Recipe, rows: Sequence[Row]) -> None:
    """Warn of a run whose sampler never chose a client."""
    if not any(row["participants"] for row in rows):
        source = recipe.fleet.trace or recipe.fleet.sampler
        warnings.warn(
            f"no client trained in any of the {len(rows)} rounds, so nothing was learnt: fleet.sampler chose nobody; "
            f"check {source}",
            stacklevel=4,
        )


def _warn_of_changes(folder: Run, now: dict[str, Any]) -> None:
    """Warn of changes since the run began, because its result may then not be bit-identical."""
    then = _EARLIER | json.loads((folder.path / "run.json").read_text())
    before, here = devices_of(then), now["devices"]
    changed = [f"device was {', then '.join(before)}, is {', '.join(here)}"] if before != here else []
    rest = {key: value for key, value in now.items() if key != "devices"}
    changed += [f"{key} was {then.get(key)}, is {value}" for key, value in rest.items() if then.get(key) != value]
    if changed:
        warnings.warn(
            f"{folder.path} was started in another environment, so results may not be bit-identical: "
            f"{'; '.join(changed)}",
            stacklevel=3,
        )
