"""The server's side of a run, in the process that Flower starts for it: meet the nodes, then the ordinary loop."""

from __future__ import annotations

import json
import os
import platform
import re
import secrets
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import torch

import sparsona
from sparsona.config import Recipe, check, tables
from sparsona.engines.keep import DEEPEST
from sparsona.engines.parcels import ParcelError, one_line, pack, unpack
from sparsona.engines.remote import Post, Remote
from sparsona.engines.rounds import TooFew
from sparsona.engines.store import StoreError
from sparsona.fleet import FleetError
from sparsona.results import Journal, Run, write
from sparsona.runner import Progress, bare_device, drive

SHARED = ("classes", "shape", "vocabulary")  # of their data, what all clients have in common
_MOST_HELLO = 1 << 20
_NOTICE = 20.0  # seconds within which a node should have heard why it was refused
_THE_WAY = ("httpx", "httpcore", "flwr")  # whose errors tell that the SuperLink cannot be reached


def main(post: Post, config: dict[str, Any]) -> None:
    """Carry out an order; whoever gave it reads in its folder what came of it."""
    order = Path(str(config["order"]))
    write(order / "pid", str(os.getpid()))
    try:
        serve(post, json.loads((order / "order.json").read_text()), order)
        write(order / "done", "")
    except Exception as error:  # the process that waits must hear of it, whatever it is
        if type(error).__module__.partition(".")[0] in _THE_WAY or isinstance(error, ConnectionError):
            raise  # the server is gone and nothing is wrong with the run: as if killed, so that it is started again
        known = isinstance(error, (ValueError, StoreError, TooFew))
        told = one_line(error if known else f"{type(error).__name__}: {error}")
        write(order / "error", told + ("" if known else f"\n{traceback.format_exc()}"))
        raise


def serve(post: Post, order: dict[str, Any], work: Path) -> Run:
    """Run an order's recipe with the nodes of a fleet into the order's folder, or go on with it."""
    recipe, folder = check(order["recipe"]), Path(order["folder"])
    run = f"{re.sub('[^a-z0-9]+', '-', recipe.name.lower())[:40]}-{secrets.token_hex(8)}".lstrip("-")
    then = _as_it_began(folder)
    if then is not None:
        run, recipe = then["fleet_run"], Run.open(folder).recipe
        if Run.open(folder).finished:
            return Run.open(folder)
    if recipe.engine.checkpoint_every > DEEPEST:
        raise FleetError(
            f"engine.checkpoint_every = {recipe.engine.checkpoint_every}: must be at most {DEEPEST} on a fleet, for "
            "devices keep no more rounds for a server that goes back to its checkpoint"
        )
    log = _Log(folder, work / "events.jsonl")
    log.open()  # there is a folder if the run goes on
    head = {
        "run": run,
        "recipe": tables(recipe),
        "sparsona": sparsona.__version__,
        "depth": recipe.engine.checkpoint_every,
    }
    keys = None if order["keys"] is None else {str(key): int(k) for key, k in order["keys"].items()}
    meeting = Meeting(post, recipe, head, keys, log.add)
    status = _Status(order.get("status"), run, folder, recipe.rounds)
    status.write(0 if then is None else len(Run.open(folder).rounds))
    facts = meeting.meet(float(order["wait"]), then)
    device = bare_device(recipe, facts["classes"], tuple(facts["shape"]), facts["vocabulary"])
    engine = Remote(
        *(post, meeting.seats, device, head, recipe.fleet.timeout, recipe.fleet.min_answers, order["most"], log.add),
        traffic=status.traffic,
    )
    about = {
        "sparsona": sparsona.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "seed": recipe.seed,
        "clients": recipe.data.clients,
        "parameters": device.task.layout.params,
        "forward_flops": device.task.layout.flops(),
        "not_in_flops": device.task.layout.uncounted,
        "train_samples": facts["samples"],
        **{key: facts[key] for key in SHARED},
        "fleet_run": run,
    }

    def listen(step: Progress) -> None:
        log.open()
        for k, why in step.row.get("why_left_out", {}).items():
            log.add({"event": "left out", "client": int(k), "round": step.round, "why": why})
        for k, why in step.row.get("began_anew", {}).items():
            log.add({"event": "began anew", "client": int(k), "round": step.round, "why": why})
        status.write(step.round)

    if then is not None:
        log.open()
        _compare(folder, then, about, log.add)
        log.add({"event": "resumed", "rounds": len(Run.open(folder).rounds)})
    try:
        return drive(recipe, engine, device, folder, about, listen)
    finally:
        log.open()
        log.close()


def _as_it_began(folder: Path) -> dict[str, Any] | None:
    """What run.json tells of a fleet's run that is to go on; None if there is none yet."""
    if not (folder / "recipe.toml").is_file():
        return None
    try:
        then: dict[str, Any] = json.loads((folder / "run.json").read_text())
    except (OSError, ValueError) as error:
        raise FleetError(f"{folder / 'run.json'} is damaged: {error}") from error
    if "fleet_run" not in then:
        raise FleetError(f"{folder} is not the run of a fleet; go on with: sparsona resume {folder}")
    return then


def _compare(folder: Path, then: dict[str, Any], now: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> None:
    """Refuse to go on with another model; say what else is not as it was, for then its end may not be the same."""
    changed = {key: value for key, value in now.items() if then.get(key) != value}
    for key in ("clients", *SHARED, "parameters"):
        if key in changed and key in then:
            raise FleetError(f"{folder} began with {then.get(key)} {key}, and the fleet has {now[key]}")
    if changed:
        what = "; ".join(f"{key} was {then.get(key)}, is {value}" for key, value in changed.items())
        tell({"event": "began differently", "what": what})


@dataclass
class Meeting:
    """Who is there, and which node speaks for which client.

    With keys, a node's key alone says which client it is. Without, on one machine or by explicit wish, a node is taken
    at its word, and two that say the same are refused.
    """

    post: Post
    recipe: Recipe
    head: dict[str, Any]
    keys: dict[str, int] | None  # client by public key
    tell: Callable[[dict[str, Any]], None]
    _asked: dict[str, tuple[int, str]] = field(default_factory=dict)  # by parcel: node and ask
    _known: dict[int, int] = field(default_factory=dict)  # client by node, as nodes said
    _facts: dict[int, dict[str, Any]] = field(default_factory=dict)  # by client
    _wrong: dict[int, str] = field(default_factory=dict)  # by node
    _rivals: dict[int, int] = field(default_factory=dict)  # by refused node, the other that says the same
    _notices: set[str] = field(default_factory=set)  # parcels that tell nodes why they were refused
    _others: set[int] = field(default_factory=set)  # clients that have other data than the run began with
    _begun: bool = False  # whether the run goes on without those that are refused
    _spare: set[int] = field(default_factory=set)  # nodes of clients that the recipe does not have

    def seats(self) -> dict[int, int]:
        """By client, the node that speaks for it, among those that are there."""
        nodes = self.post.nodes()
        if self.keys is not None:
            clients = {node: self.keys.get(key) for node, key in nodes.items()}
        else:
            self._greet(nodes)
            self._listen()
            clients = {node: self._known.get(node) for node in nodes}
        return {k: node for node, k in sorted(clients.items()) if self._takes_part(k) and k not in self._others}

    def meet(self, seconds: float, then: dict[str, Any] | None = None) -> dict[str, Any]:
        """Wait for all clients, or for enough of them after so many seconds, and give what they have in common.

        A run does not begin with nodes that do not fit. One that goes on knows what it began with, ``then``, and goes
        on with those that do.
        """
        end = time.monotonic() + seconds
        self._begun = then is not None
        everyone = set(range(self.recipe.data.clients))
        while time.monotonic() < end:
            self._greet(self.post.nodes())
            self._listen()
            if self._wrong and then is None:
                self._wait_for_notices()
                raise FleetError(self._complaints())
            if self._facts.keys() >= everyone:
                break
            time.sleep(0.5)
        common = self._common(then)
        missing = sorted(everyone - self._facts.keys())
        if len(self._facts) < self.recipe.fleet.min_answers or not self._facts:
            others = f"; {self._complaints()}" if self._wrong else ""
            raise FleetError(
                f"after {seconds:g} seconds {len(self._facts)} of {len(everyone)} clients are there, and at least "
                f"{max(self.recipe.fleet.min_answers, 1)} are needed; missing: {_listed(missing)}{others}"
            )
        if missing:
            self.tell({"event": "not there at the start", "clients": missing})
        else:
            self.tell({"event": "all clients are there"})
        self._begun = True
        return common | {"samples": sum(facts["samples"] for facts in self._facts.values())}

    def _common(self, then: dict[str, Any] | None) -> dict[str, Any]:
        """What the data of all clients have in common, or had when the run began; who differs is told so."""
        if not self._facts:
            return {}
        first = min(self._facts)
        common = {key: self._facts[first][key] for key in SHARED}
        whose = f"client {first}"
        if then is not None:
            began = {key: then.get(key, value) for key, value in common.items()}
            if any(facts.items() >= began.items() for facts in self._facts.values()):  # or it was another fleet
                common, whose = began, "the run"
        for k, facts in sorted(self._facts.items()):
            others = [key for key in SHARED if facts[key] != common[key]]
            if not others:
                continue
            name = others[0]
            why = f"client {k} has data with {name} {facts[name]}, {whose} with {common[name]}; all must have the same"
            if name == "classes":
                why += " (a node with a file of its own may need --classes)"
            self._notify([node for node, j in self._known.items() if j == k], why)
            self._wait_for_notices()
            if whose != "the run":
                raise FleetError(why)
            del self._facts[k]
            self._others.add(k)
            self.tell({"event": "other data", "client": k, "why": why})
        return common

    def _complaints(self) -> str:
        """What is wrong with which nodes."""
        by_reason: dict[str, list[str]] = {}
        keys, clients = self.post.nodes(), self.keys or {}
        for node, why in sorted(self._wrong.items()):
            k = clients.get(keys.get(node, ""))
            by_reason.setdefault(why, []).append(f"node {node}" if k is None else f"the node of client {k}")
        return "; ".join(f"{_listed(nodes)}: {why}" for why, nodes in by_reason.items())

    def _takes_part(self, k: Any) -> TypeGuard[int]:
        return _number(k) and k < self.recipe.data.clients

    def _greet(self, nodes: dict[int, str]) -> None:
        """Say hello to nodes that have not been asked yet, or were refused for another one that is gone by now."""
        for node in [node for node, other in self._rivals.items() if other not in nodes]:
            del self._rivals[node], self._wrong[node]
        asked = {node for node, _ in self._asked.values()} | self._known.keys() | self._wrong.keys() | self._spare
        for node, key in nodes.items():
            if node in asked:
                continue
            if self.keys is not None and key not in self.keys:
                self._wrong[node] = "it is registered with a key that is not among the fleet's"
                continue
            if self.keys is not None and not self._takes_part(self.keys[key]):
                self._spare.add(node)
                continue
            ask = secrets.token_hex(8)
            number = self.post.send(node, pack(self.head | {"hello": True, "ask": ask}), self.recipe.fleet.timeout)
            if number is not None:
                self._asked[number] = (node, ask)

    def _listen(self) -> None:
        nodes: dict[int, str] = {}
        for reply in self.post.receive(set(self._asked)):
            node, ask = self._asked.pop(reply.number, (0, ""))
            if reply.data is None:
                if not reply.gone:
                    self._wrong[node] = reply.why
                continue
            nodes = nodes or self.post.nodes()
            said: dict[str, Any] = {}
            try:
                said = unpack(reply.data, _MOST_HELLO)[0]
                self._welcome(node, nodes.get(node, ""), ask, said)
            except (ParcelError, FleetError) as error:
                self._wrong[node] = str(error)
                if self._begun:  # or the run does not begin, for this reason
                    whose = (self.keys or {}).get(nodes.get(node, ""))
                    who = {"node": node} if whose is None else {"client": whose}
                    self.tell({"event": "refused", **who, "why": str(error)})
                if "error" not in said:  # or it knows, and has said so there
                    self._notify([node], str(error))

    def _notify(self, nodes: list[int], why: str) -> None:
        """Let nodes know why they were refused, for whoever looks after them."""
        for node in nodes:
            number = self.post.send(node, pack({"refused": why}), _NOTICE)
            if number is not None:
                self._notices.add(number)

    def _wait_for_notices(self) -> None:
        """Let what was sent arrive before this process, and with it the run, ends."""
        end = time.monotonic() + _NOTICE
        while self._notices and time.monotonic() < end:
            self._notices -= {reply.number for reply in self.post.receive(self._notices)}
            time.sleep(0.1)

    def _welcome(self, node: int, key: str, ask: str, said: dict[str, Any]) -> None:
        """Check what a node says of itself."""
        k = said.get("client")
        if self.keys is None and _number(k) and k >= self.recipe.data.clients:
            self._spare.add(node)
            self.tell({"event": "not asked for", "node": node, "client": k})
            return
        if "error" in said:
            raise FleetError(str(said["error"])[:500])
        if said.get("ask") != ask:
            raise FleetError("it answered something else")
        if said.get("sparsona") != sparsona.__version__:
            raise FleetError(f"it has Sparsona {said.get('sparsona')}, the server {sparsona.__version__}")
        if not self._takes_part(k):
            raise FleetError(f"client {k!r}; the recipe has clients 0 to {self.recipe.data.clients - 1}")
        if self.keys is not None and self.keys.get(key) != k:
            raise FleetError(f"it speaks for client {k}, but its key is that of client {self.keys.get(key)}")
        others = [other for other, j in self._known.items() if j == k and other != node and other in self.post.nodes()]
        if self.keys is None and others:
            self._rivals[node] = others[0]
            raise FleetError(f"it says that it is client {k}, and so does node {others[0]}")
        facts = {key: said.get(key) for key in ("classes", "shape", "vocabulary", "samples")}
        shape = facts["shape"]
        words = [] if facts["vocabulary"] is None else [facts["vocabulary"]]
        sizes = [facts["classes"], facts["samples"], *words, *(shape if isinstance(shape, list) else [None])]
        if not all(_number(n) and n > 0 for n in sizes):
            raise FleetError(f"it speaks of data that cannot be: {facts}")
        self._known[node] = k
        self._facts[k] = facts


def _number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


class _Status:
    """What a run tells of itself while it is at work; one that goes on counts on from what it told last."""

    def __init__(self, path: str | None, run: str, folder: Path, rounds: int) -> None:
        self._path = None if path is None else Path(path)
        self._about = {"run": run, "folder": str(folder), "rounds": rounds}
        self.traffic: dict[int, dict[str, Any]] = {}  # by client: when last seen, bytes
        with suppress(OSError, ValueError, KeyError):
            told = json.loads(self._path.read_text()) if self._path is not None else {}
            if told["run"] == run:
                self.traffic = {int(k): seen for k, seen in told["clients"].items()}

    def write(self, done: int) -> None:
        """Tell how far it is."""
        clients = {str(k): seen for k, seen in sorted(self.traffic.items())}
        if self._path is not None:
            told = self._about | {"round": done, "state": "at work", "time": time.time(), "clients": clients}
            tell_status(self._path, told)


def tell_status(path: Path, told: dict[str, Any]) -> None:
    """Replace what ``fleet status`` reads; runs of one server share it, and none may fail for it."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with suppress(OSError):
        part.write_text(json.dumps(told) + "\n")
        part.replace(path)


class _Log:
    """What happened besides the rounds: fleet.jsonl in the run's folder, once there is one."""

    def __init__(self, folder: Path, told: Path) -> None:
        self._folder = folder
        self._told = told  # the same at once, for whoever waits
        self._journal: Journal | None = None
        self._early: list[dict[str, Any]] = []

    def open(self) -> None:
        """Begin to write, if the run's folder is there."""
        if self._journal is None and (self._folder / "recipe.toml").is_file():
            self._journal = Journal(self._folder / "fleet.jsonl")
            self._journal.add(*self._early)

    def add(self, event: dict[str, Any]) -> None:
        """Note an event."""
        row = {"time": round(time.time(), 3)} | event
        with self._told.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if self._journal is None:
            self._early.append(row)
        else:
            self._journal.add(row)

    def close(self) -> None:
        """Close the file."""
        if self._journal is not None:
            self._journal.close()


def _listed(things: Sequence[object]) -> str:
    return ", ".join(map(str, things[:20])) + (", ..." if len(things) > 20 else "")
