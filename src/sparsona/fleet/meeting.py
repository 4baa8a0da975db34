"""The nodes of a fleet and their clients: who is online, who speaks for whom, and whose data fit together."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard, get_args

import sparsona
from sparsona.core.objective import Target
from sparsona.data.encoding import PARTS
from sparsona.experiment.recipe import Recipe
from sparsona.fleet import FleetError
from sparsona.fleet.envelope import EnvelopeError, pack, unpack
from sparsona.fleet.transport import Transport

SHARED = ("classes", "shape", "vocabulary", "target", "encoding")  # of their data, what all clients have in common
_MAX_HELLO = 1 << 20
_MAX_DEVICE = 100  # characters of a node's kind of device
_NOTICE = 20.0  # seconds within which a node should learn why it was refused


@dataclass
class Meeting:
    """Which nodes are online, and which node speaks for which client.

    With keys, only a node's key says which client it is. Without, on one machine or by explicit wish, a node is taken
    at its word, and two that say the same are refused.
    """

    transport: Transport
    recipe: Recipe
    head: dict[str, Any]
    keys: dict[str, int] | None  # client by public key
    on_event: Callable[[dict[str, Any]], None]
    _asked: dict[str, tuple[int, str]] = field(default_factory=dict)  # by envelope: node and ask
    _known: dict[int, int] = field(default_factory=dict)  # client by node, as nodes say
    _facts: dict[int, dict[str, Any]] = field(default_factory=dict)  # by client
    _wrong: dict[int, str] = field(default_factory=dict)  # by node
    _rivals: dict[int, int] = field(default_factory=dict)  # by refused node, the other that says the same
    _notices: set[str] = field(default_factory=set)  # envelopes that inform nodes why they were refused
    _others: set[int] = field(default_factory=set)  # clients that have other data than the run began with
    _begun: bool = False  # whether the run continues without the refused nodes
    _spare: set[int] = field(default_factory=set)  # nodes of clients that the recipe does not have

    def seats(self) -> dict[int, int]:
        """By client, the node that speaks for it, among those that are there."""
        nodes = self.transport.nodes()
        if self.keys is not None:
            clients = {node: self.keys.get(key) for node, key in nodes.items()}
        else:
            self._greet(nodes)
            self._listen()
            clients = {node: self._known.get(node) for node in nodes}
        return {k: node for node, k in sorted(clients.items()) if self._takes_part(k) and k not in self._others}

    def meet(self, seconds: float, then: dict[str, Any] | None = None) -> dict[str, Any]:
        """Wait for all clients, or for enough of them after so many seconds, and give what they have in common.

        With it come their samples and the kinds of device that they compute on.

        A run does not start with nodes that do not fit. A resumed run knows what it started with, ``then``, and
        continues with the nodes that fit.
        """
        end = time.monotonic() + seconds
        self._begun = then is not None
        everyone = set(range(self.recipe.data.clients))
        while time.monotonic() < end:
            self._greet(self.transport.nodes())
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
                f"{len(self._facts)} of {len(everyone)} clients are online after {seconds:g} seconds; "
                "expected at least "
                f"{max(self.recipe.fleet.min_answers, 1)}; missing: {_listed(missing)}{others}"
            )
        if missing:
            self.on_event({"event": "not there at the start", "clients": missing})
        else:
            self.on_event({"event": "all clients are connected"})
        self._begun = True
        samples = {k: facts["samples"] for k, facts in sorted(self._facts.items())}
        return common | {"samples": samples, "devices": sorted({facts["device"] for facts in self._facts.values()})}

    def _common(self, then: dict[str, Any] | None) -> dict[str, Any]:
        """What the data of all clients have in common, or had when the run began; a node that differs is refused."""
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
            name = "encoding" if "encoding" in others and "classes" not in others else others[0]
            why = f"client {k}: {name} is {facts[name]}; expected {common[name]}, as {whose} has"
            if name == "encoding":
                why = _other_encoding(f"client {k}", facts[name] or {}, whose, common[name] or {})
            if name == "classes":
                why += " (a node with its own file may need --classes)"
            self._notify([node for node, j in self._known.items() if j == k], why)
            self._wait_for_notices()
            if whose != "the run":
                raise FleetError(why)
            del self._facts[k]
            self._others.add(k)
            self.on_event({"event": "other data", "client": k, "why": why})
        return common

    def _complaints(self) -> str:
        """What is wrong with which nodes."""
        by_reason: dict[str, list[str]] = {}
        keys, clients = self.transport.nodes(), self.keys or {}
        for node, why in sorted(self._wrong.items()):
            k = clients.get(keys.get(node, ""))
            by_reason.setdefault(why, []).append(f"node {node}" if k is None else f"node of client {k}")
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
                self._wrong[node] = "its key is not in the fleet's folder of keys"
                continue
            if self.keys is not None and not self._takes_part(self.keys[key]):
                self._spare.add(node)
                continue
            ask = secrets.token_hex(8)
            number = self.transport.send(node, pack(self.head | {"hello": True, "ask": ask}), self.recipe.fleet.timeout)
            if number is not None:
                self._asked[number] = (node, ask)

    def _listen(self) -> None:
        nodes: dict[int, str] = {}
        for reply in self.transport.receive(set(self._asked)):
            node, ask = self._asked.pop(reply.number, (0, ""))
            if reply.data is None:
                if not reply.gone:
                    self._wrong[node] = reply.why
                continue
            nodes = nodes or self.transport.nodes()
            hello: dict[str, Any] = {}
            try:
                hello = unpack(reply.data, _MAX_HELLO)[0]
                self._welcome(node, nodes.get(node, ""), ask, hello)
            except (EnvelopeError, FleetError) as error:
                self._wrong[node] = str(error)
                if self._begun:  # or the run does not begin, for this reason
                    whose = (self.keys or {}).get(nodes.get(node, ""))
                    who = {"node": node} if whose is None else {"client": whose}
                    self.on_event({"event": "refused", **who, "why": str(error)})
                if "error" not in hello:  # otherwise the node knows, and has said so there
                    self._notify([node], str(error))

    def _notify(self, nodes: list[int], why: str) -> None:
        """Let nodes know why they were refused, for whoever looks after them."""
        for node in nodes:
            number = self.transport.send(node, pack({"refused": why}), _NOTICE)
            if number is not None:
                self._notices.add(number)

    def _wait_for_notices(self) -> None:
        """Let what was sent arrive before this process, and with it the run, ends."""
        end = time.monotonic() + _NOTICE
        while self._notices and time.monotonic() < end:
            self._notices -= {reply.number for reply in self.transport.receive(self._notices)}
            time.sleep(0.1)

    def _welcome(self, node: int, key: str, ask: str, hello: dict[str, Any]) -> None:
        """Check what a node says of itself."""
        k = hello.get("client")
        if self.keys is None and _number(k) and k >= self.recipe.data.clients:
            self._spare.add(node)
            self.on_event({"event": "not asked for", "node": node, "client": k})
            return
        if "error" in hello:
            raise FleetError(str(hello["error"])[:500])
        if hello.get("ask") != ask:
            raise FleetError("it answered another request")
        if hello.get("sparsona") != sparsona.__version__:
            raise FleetError(f"it has Sparsona {hello.get('sparsona')}; expected {sparsona.__version__}, as the server")
        if not self._takes_part(k):
            raise FleetError(
                f"client {k!r} is not in the recipe; expected a client in [0, {self.recipe.data.clients - 1}]"
            )
        if self.keys is not None and self.keys.get(key) != k:
            raise FleetError(
                f"--client is {k}, but its key belongs to client {self.keys.get(key)}; start it with that number"
            )
        others = [
            other for other, j in self._known.items() if j == k and other != node and other in self.transport.nodes()
        ]
        if self.keys is None and others:
            self._rivals[node] = others[0]
            raise FleetError(f"--client is {k}, which node {others[0]} has too; start each node with its own number")
        facts = {key: hello.get(key) for key in ("classes", "shape", "vocabulary", "samples")}
        facts["target"] = hello.get("target", "class")
        facts["encoding"] = hello.get("encoding")
        shape = facts["shape"]
        words = [] if facts["vocabulary"] is None else [facts["vocabulary"]]
        sizes = [facts["classes"], facts["samples"], *words, *(shape if isinstance(shape, list) else [None])]
        known = facts["target"] in get_args(Target) and _digests(facts["encoding"])
        if not known or not all(_number(n) and n > 0 for n in sizes):
            raise FleetError(f"its description of the data is not valid: {facts}")
        device = hello.get("device", "unknown")
        if not isinstance(device, str) or not device.isprintable() or not 0 < len(device) <= _MAX_DEVICE:
            raise FleetError(f"its kind of device is not valid: {str(device)[:_MAX_DEVICE]!r}")
        facts["device"] = device
        self._known[node] = k
        self._facts[k] = facts


def _other_encoding(who: str, mine: dict[str, str], whose: str, theirs: dict[str, str]) -> str:
    """What of two encodings differs, by their digests, and what to do."""
    part = next(name for name in sorted(mine.keys() | theirs.keys()) if mine.get(name) != theirs.get(name))
    fix = "give every node one file: sparsona data SOURCE --encoding FILE, then fleet node --encoding FILE"
    if part == "class names" and mine.keys() | theirs.keys() == {part}:
        fix = "give every node the same --classes, in the same order"
    return f"{who} has data with other {part} than {whose}, so that the same number has two meanings; {fix}"


def _digests(value: Any) -> bool:
    """Whether a value can be the digests of an encoding."""
    if value is None:
        return True
    plain = isinstance(value, dict) and 0 < len(value) <= len(PARTS)
    return plain and all(name in PARTS and isinstance(d, str) and len(d) <= 64 for name, d in value.items())


def _number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _listed(items: Sequence[object]) -> str:
    return ", ".join(map(str, items[:20])) + (", ..." if len(items) > 20 else "")
