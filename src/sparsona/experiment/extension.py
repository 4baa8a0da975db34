"""Extend a run by more rounds, bit-identical to a run that had this number from the start."""

from __future__ import annotations

import dataclasses
import json
import shlex
from typing import Any

import tomli_w

from sparsona.engines.store import Checkpoint, Store
from sparsona.engines.values import dumps, loads, split, types_of
from sparsona.experiment.checking import shown
from sparsona.experiment.checkpoints import PROGRESS, forget_state, reopen, state_file
from sparsona.experiment.evaluator import BEST, is_due
from sparsona.experiment.objects import NO_OBJECTS, Objects, is_ours, method_name
from sparsona.experiment.recipe import Recipe, ready, tables
from sparsona.experiment.results import Row, Run, RunError, write
from sparsona.experiment.setup import newcomers
from sparsona.method import Method, capabilities

_OF_EVALUATION = ("before", "shared", "not_tested")  # what a row has of a round that is evaluated, besides "after"
_OF_THE_END = ("unfinished", "finished")  # what only the last round's row has


def why_not(recipe: Recipe) -> str | None:
    """What of a recipe depends on the number of rounds, so that its run cannot be extended; None if nothing does."""
    kind, able = type(recipe.method), capabilities(recipe.method)
    if able.training is not None and (schedule := able.training.lr_schedule) not in ("constant", "exponential"):
        return f"method.lr_schedule = {shown(schedule)} depends on the number of rounds"
    if able.depends is not None and (reason := able.depends.depends_on_rounds):
        return f"method.{reason}"
    if able.peer is not None and recipe.topology.wait_schedule != "constant":
        return f"topology.wait_schedule = {shown(recipe.topology.wait_schedule)} depends on the number of rounds"
    if not is_ours(kind) and able.stated_by is not kind:  # what another class states does not hold for its hooks
        stated = "None" if able.stated_by is None else f"{able.stated_by.__name__}.depends_on_rounds"
        return (
            f"method.name = {shown(method_name(recipe.method))} does not state whether it depends on the number of "
            "rounds; if its own hooks do not use ctx.rounds, add "
            f"depends_on_rounds = {stated} to the class {kind.__name__}"
        )
    return None


def check_extension(run: Run, rounds: int, objects: Objects = NO_OBJECTS) -> None:
    """Raise RunError if a run cannot have so many rounds, with the reason."""
    known = run.recipe.rounds
    if rounds < known:
        raise RunError(f"rounds: {rounds} is not allowed; expected an int >= {known}, the rounds of {run.path}")
    if rounds == known:
        return
    again = f"start a new run with rounds={rounds}"
    if "fleet_run" in json.loads((run.path / "run.json").read_text()):
        raise RunError(f"{run.path} cannot be extended: it is a fleet run; {again}")
    if reason := why_not(ready(run.recipe, objects)):
        raise RunError(f"{run.path} cannot be extended: {reason}; {again}")
    if run.finished and not (run.path / "state" / PROGRESS).is_file():
        older = f"its state/{PROGRESS} is missing, as in runs of earlier versions"
        raise RunError(f"{run.path} cannot be extended: {older}; {again}")
    if not run.finished and len(run.rounds) == known:
        first = f"sparsona resume {shlex.quote(str(run.path))}"
        raise RunError(f"{run.path} was interrupted after its last round; finish it first: {first}")


def extend(run: Run, rounds: int, objects: Objects = NO_OBJECTS) -> Run:
    """Give a run more rounds, which resuming it then computes."""
    check_extension(run, rounds, objects)
    recipe, path = dataclasses.replace(run.recipe, rounds=rounds), run.path
    if rounds == run.recipe.rounds:
        return run
    if run.finished:
        forget_state(path)  # of an attempt that was killed
        store = Store(state_file(path))
        try:
            _refill(store, run, recipe, ready(run.recipe, objects).method)
        finally:
            store.close()
    else:
        Store(state_file(path)).close()  # refuses if another process is at work on the run
    # Killed up to here, the run is what it was. From here on, resuming it computes the new rounds.
    write(path / "recipe.toml", tomli_w.dumps(tables(recipe)))
    reopen(path)
    return Run(path)


def _refill(store: Store, run: Run, recipe: Recipe, method: Method) -> None:
    """Make the checkpoint of a finished run from the state that it left."""
    state = run.path / "state"
    try:
        progress: dict[str, Any] = json.loads((state / PROGRESS).read_text(encoding="utf-8"))
        server = loads((state / "server.safetensors").read_bytes(), types_of(method))
        store.begin_round()
        adapted = set(newcomers(run.recipe))  # they keep what they adapted at the end, which rounds never see
        for file in sorted(state.glob("client-*.safetensors")):
            if (k := int(file.stem.removeprefix("client-"))) not in adapted:
                store.put(k, file.read_bytes())
        for k, (t, value_nbytes) in progress.pop("messages").items():
            store.put_mail(int(k), t, (state / f"client-{int(k):05d}.message").read_bytes(), value_nbytes)
        store.put_scores({int(k): json.dumps(score) for k, score in progress.pop("latest").items()})
        if progress.get("best") is not None:
            store.put_part(BEST, dumps(loads((state / "best.safetensors").read_bytes(), {})[1]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{run.path} cannot be extended: its state is damaged: {error}") from error
    whole, parts = split(server)
    for name, tensor in parts.items():
        store.put_part(name, dumps(tensor))
    progress |= _shortened(run, is_due(recipe, run.recipe.rounds - 1))
    store.end_round(Checkpoint(run.recipe.rounds, whole, progress))
    store.commit()


def _shortened(run: Run, due: bool) -> dict[str, Any]:
    """Where the last round begins in the journals, and its rows as a longer run has them.

    The last round is always evaluated. In a longer run it is not, unless it is ``due``.
    """
    last = run.recipe.rounds
    left_out = _OF_THE_END if due else (*_OF_EVALUATION, *_OF_THE_END)
    sizes: dict[str, int] = {}
    tail: dict[str, list[Row]] = {}
    for name in ("rounds", "clients"):
        lines = (run.path / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
        rows = [json.loads(line) for line in lines]
        first = next(i for i, row in enumerate(rows) if row["round"] == last)
        sizes[name] = sum(map(len, lines[:first]))
        # what a client scores after training is in its row of every round, and in the round's row only if it is due
        keys = left_out if due or name == "clients" else (*left_out, "after")
        kept = [{key: value for key, value in row.items() if key not in keys} for row in rows[first:]]
        tail[name] = [row for row in kept if name == "rounds" or row.keys() > {"round", "client"}]
    return {"sizes": sizes, "tail": tail}


__all__ = ["check_extension", "extend", "why_not"]
