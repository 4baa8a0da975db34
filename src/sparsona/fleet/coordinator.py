"""The server's side of a run, in the process that Flower starts for it: meet the nodes, then the ordinary loop."""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sparsona
from sparsona.core.text import one_line
from sparsona.engines.rounds import TooFew
from sparsona.engines.store import StoreError
from sparsona.experiment.loop import Progress
from sparsona.experiment.recipe import Recipe, check, tables
from sparsona.experiment.recorder import devices_of
from sparsona.experiment.results import Run, write
from sparsona.experiment.runner import drive
from sparsona.experiment.setup import DataForm, bare_device
from sparsona.experiment.weights import pinned
from sparsona.fleet import FleetError
from sparsona.fleet.engine import FleetEngine
from sparsona.fleet.meeting import SHARED, Meeting
from sparsona.fleet.status import EventLog, RunStatus
from sparsona.fleet.transport import Transport
from sparsona.fleet.versions import MAX_ROLLBACK

_THE_WAY = ("httpx", "httpcore", "flwr")  # whose errors mean that the SuperLink cannot be reached


def main(transport: Transport, config: dict[str, Any]) -> None:
    """Carry out an order; whoever gave it reads in its folder what came of it."""
    order = Path(str(config["order"]))
    write(order / "pid", str(os.getpid()))
    try:
        run_order(transport, json.loads((order / "order.json").read_text()), order)
        write(order / "done", "")
    except Exception as error:  # the process that waits must know, whatever it is
        if type(error).__module__.partition(".")[0] in _THE_WAY or isinstance(error, ConnectionError):
            raise  # the server is gone and nothing is wrong with the run: as if killed, so that it is started again
        known = isinstance(error, (ValueError, StoreError, TooFew))
        reason = one_line(error if known else f"{type(error).__name__}: {error}")
        write(order / "error", reason + ("" if known else f"\n{traceback.format_exc()}"))
        raise


def run_order(transport: Transport, order: dict[str, Any], work: Path) -> Run:
    """Run an order's recipe with the nodes of a fleet into the order's folder, or resume it."""
    if (plugins := order.get("plugins", "")) not in ("", *sys.path):
        sys.path.append(plugins)  # last, as in the process that gave the order
    recipe, folder = check(order["recipe"]), Path(order["folder"])
    run = f"{re.sub('[^a-z0-9]+', '-', recipe.name.lower())[:40]}-{secrets.token_hex(8)}".lstrip("-")
    then = _as_it_began(folder)
    if then is not None:
        run, recipe = then["fleet_run"], Run.open(folder).recipe
        if Run.open(folder).finished:
            return Run.open(folder)
    if recipe.engine.checkpoint_every > MAX_ROLLBACK:
        raise FleetError(
            f"engine.checkpoint_every: {recipe.engine.checkpoint_every} is not allowed; "
            f"expected an int <= {MAX_ROLLBACK} on a fleet, "
            "as nodes keep at most as many rounds for a server that resumes from a checkpoint"
        )
    log = EventLog(folder, work / "events.jsonl")
    log.open()  # the folder exists if the run is resumed
    head = {
        "run": run,
        "recipe": tables(_pinned(recipe)),
        "sparsona": sparsona.__version__,
        "depth": recipe.engine.checkpoint_every,
    }
    keys = None if order["keys"] is None else {str(key): int(k) for key, k in order["keys"].items()}
    meeting = Meeting(transport, recipe, head, keys, log.add)
    status = RunStatus(order.get("status"), run, folder, recipe.rounds)
    status.write(0 if then is None else len(Run.open(folder).rounds))
    facts = meeting.meet(float(order["wait"]), then)
    form = DataForm(facts["classes"], tuple(facts["shape"]), facts["vocabulary"], facts["target"])
    device = bare_device(recipe, form)
    engine = FleetEngine(
        *(transport, meeting.seats, device, head, recipe.fleet.timeout, recipe.fleet.min_answers),
        max_bytes=order["max_bytes"],
        on_event=log.add,
        traffic=status.traffic,
    )
    about = {
        "sparsona": sparsona.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "devices": facts["devices"],
        "precision": recipe.engine.precision,
        "seed": recipe.seed,
        "clients": recipe.data.clients,
        "parameters": device.task.layout.params,
        "forward_flops": device.task.layout.flops(),
        "not_in_flops": list(device.task.layout.uncounted),
        "train_samples": sum(facts["samples"].values()),
        **{key: facts[key] for key in SHARED if facts[key] != "class" and (key != "encoding" or facts[key])},
        "fleet_run": run,
    }
    if recipe.fleet.sampler == "samples":  # all rounds draw by what the run began with
        about["client_samples"] = (then or {}).get("client_samples") or _all_sizes(
            facts["samples"], recipe.data.clients
        )

    def listen(step: Progress) -> None:
        log.open()
        for k, why in step.row.get("why_left_out", {}).items():
            log.add({"event": "left out", "client": int(k), "round": step.round, "why": why})
        for k, why in step.row.get("restarted", {}).items():
            log.add({"event": "restarted", "client": int(k), "round": step.round, "why": why})
        status.write(step.round)

    if then is not None:
        log.open()
        _compare(folder, then, about, log.add)
        log.add({"event": "resumed", "rounds": len(Run.open(folder).rounds)})
    try:
        return drive(recipe, engine, device, folder, about, listen, lambda: about["client_samples"])
    finally:
        log.open()
        log.close()


def _all_sizes(samples: dict[int, int], clients: int) -> list[int]:
    """How many training samples each client has, as its node says."""
    if missing := sorted(set(range(clients)) - samples.keys()):
        raise FleetError(
            f'fleet.sampler: "samples" needs the sizes of all clients, and client {missing[0]} is offline; '
            "start its node, or use another sampler"
        )
    return [samples[k] for k in range(clients)]


def _pinned(recipe: Recipe) -> Recipe:
    """The recipe as nodes get it: with the digest of the weights that it starts from, which theirs must have."""
    if recipe.model.weights is None:
        return recipe
    return replace(recipe, model=replace(recipe.model, weights=pinned(recipe.model.weights)))


def _as_it_began(folder: Path) -> dict[str, Any] | None:
    """What run.json records of a fleet's run to resume; None if there is none yet."""
    if not (folder / "recipe.toml").is_file():
        return None
    try:
        then: dict[str, Any] = json.loads((folder / "run.json").read_text())
    except (OSError, ValueError) as error:
        raise FleetError(f"{folder / 'run.json'} is damaged: {error}") from error
    if "fleet_run" not in then:
        raise FleetError(f"{folder} is not a fleet run; resume it with: sparsona resume {folder}")
    return then


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _compare(
    folder: Path, then: dict[str, Any], now: dict[str, Any], on_event: Callable[[dict[str, Any]], None]
) -> None:
    """Refuse to resume with another model; report other differences, after which results may differ."""
    then = {"precision": "float32"} | then | {"devices": sorted(devices_of(then))}
    changed = {key: value for key, value in now.items() if then.get(key) != value}
    for key in ("clients", *SHARED, "parameters"):
        if key in then and then[key] != now.get(key):
            raise FleetError(
                f"{folder}: {key} was {then[key]} at the start, and the fleet has {now.get(key)}; "
                "use a fleet with the same"
            )
    if changed:
        what = "; ".join(f"{key} was {_shown(then.get(key))}, is {_shown(value)}" for key, value in changed.items())
        on_event({"event": "began differently", "what": what})
