"""A method in a tiny fleet, whose hooks are called one by one."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sparsona.core.model import as_model
from sparsona.core.samples import LocalData, Samples
from sparsona.core.training import Ctx
from sparsona.core.wire import Message, WireError, encode
from sparsona.data import Fleet
from sparsona.engines.device import Device
from sparsona.engines.values import dumps, loads, types_of
from sparsona.experiment.objects import Objects
from sparsona.experiment.recipe import Recipe, check, ready
from sparsona.experiment.setup import prepare, verify
from sparsona.method import VOTE, Client, Method, Server, capabilities

TINY: dict[str, Any] = {
    "name": "contract",
    "rounds": 3,
    "seed": 7,
    "data": {"source": "digits", "clients": 6, "alpha": 0.5, "sample_share": 0.3},
    "model": {"name": "digits-mlp"},
    "method": {"name": "fedavg"},
    "fleet": {"per_round": 3},
    "topology": {"neighbours": 2, "max_wait": 1, "fixed": False},  # without a server
    "evaluate": {"points": ["before", "after"]},
    "engine": {"name": "local"},
    "results": {"figures": False},
}  # six clients with digits, three a round


def require(holds: bool, text: str) -> None:
    """Raise AssertionError unless a promise holds; unlike ``assert``, also under ``python -O``."""
    if not holds:
        raise AssertionError(text)


@dataclass(frozen=True)
class Scene:
    """A method with its device, data and clients, before the first round."""

    recipe: Recipe
    device: Device
    fleet: Fleet

    @staticmethod
    def of(method: Method, recipe: Recipe | None = None) -> Scene:
        """The scene of a method, with the data, model and topology of a recipe; by default of a tiny one."""
        recipe = check(TINY) if recipe is None else recipe
        recipe = replace(recipe, engine=replace(recipe.engine, name="local"))
        recipe = ready(recipe, Objects(method))
        device, fleet = prepare(recipe)
        verify(recipe, device, fleet.clients)
        return Scene(recipe, device, fleet)

    @property
    def method(self) -> Any:
        """The method."""
        return self.device.method

    @property
    def name(self) -> str:
        """What messages call the method."""
        return type(self.device.method).__name__

    @property
    def has_server(self) -> bool:
        """Whether it is a method with a server."""
        return capabilities(self.device.method).star is not None

    def call(self, hook: str, *arguments: Any) -> Any:
        """What a hook returns; AssertionError if it changes one of its arguments."""
        function = getattr(self.method, hook)
        names = [*inspect.signature(function).parameters]
        before = [fingerprint(a) for a in arguments]
        result = function(*arguments)
        for name, argument, then in zip(names, arguments, before, strict=False):
            require(
                fingerprint(argument) == then,
                f"{self.name}.{hook} changes its argument {name}; make a copy, and change that",
            )
        return result

    def stored(self, hook: str, value: Any) -> Any:
        """A client or server that a hook returned; AssertionError unless it can be stored and read back."""
        try:
            back = loads(dumps(value), types_of(self.method))
        except (TypeError, ValueError) as error:
            why = str(error).removeprefix("not a stored value, or a damaged one: ")
            raise AssertionError(
                f"{self.name}.{hook} returns a value that cannot be stored and read back: {why}; use only "
                "tensors, numbers, texts, tuples, dicts, None and frozen dataclasses of the method's module"
            ) from error
        require(
            type(back) is type(value), f"{self.name}.{hook}: its value is read back as another {type(back).__name__}"
        )
        return value

    def start(self) -> Server:
        """The server before the first round; None without one."""
        if not self.has_server:
            return None
        return self.stored("start", self.call("start", self.fleet.clients, self.device.ctx(0, "start")))

    def join(self, k: int = 0) -> Client:
        """Client k as it joins."""
        return self.stored("join", self.call("join", k, self.device.ctx(0, "join", k)))

    def inbox(self, server: Server, k: int = 0, own: Message | None = None) -> dict[str | int, Message]:
        """What reaches client k: of the server, or of two peers that have just joined; ``own`` is what it sent last."""
        if self.has_server:
            return {"server": self._message("down", server, k, self.device.ctx(0, "down"))}
        n = self.fleet.clients
        inbox: dict[str | int, Message] = {"self": self.post(k) if own is None else without_vote(own)}
        return inbox | {j: self.post(j) for j in ((k + 1) % n, (k + 4) % n) if j != k}

    def post(self, k: int) -> Message:
        """What peer k offers before it has trained."""
        return self._message("post", self.join(k), self.device.ctx(0, "post", k))

    def local(
        self, client: Client, inbox: Mapping[str | int, Message], t: int = 0, k: int = 0, data: LocalData | None = None
    ) -> tuple[Client, Message, Any]:
        """One round of client k."""
        data = self.fleet.local(k) if data is None else data
        result = self.call("local", client, inbox, data, self.device.ctx(t, "local", t, k))
        require(
            isinstance(result, tuple) and len(result) == 3 and isinstance(result[1], Message),
            f"{self.name}.local must return the client's new value, a Message, and the model its training ended with",
        )
        value, message, model = result
        return self.stored("local", value), message, model

    def merge(self, server: Server, message: Message, t: int = 0, k: int = 0) -> Server:
        """The server after a round in which client k answered; None without a server."""
        if not self.has_server:
            return None
        ctx = self.device.ctx(t, "merge", t)
        try:
            answer = self.call("read", server, k, message, ctx)
        except WireError as error:
            raise AssertionError(f"{self.name}.read refuses what {self.name}.local sent: {error}") from error
        return self.stored("merge", self.call("merge", server, iter([(k, answer)]), ctx))

    def personal(
        self, client: Client, server: Server, message: Message, t: int = 0, k: int = 0, data: LocalData | None = None
    ) -> Any:
        """The model of client k at an evaluation: a peer then has what it sent last, and nothing else."""
        inbox = self.inbox(server, k) if self.has_server else {"self": without_vote(message)}
        data = self.fleet.local(k) if data is None else data
        return self.call("personal", client, inbox, data, self.device.ctx(t, "personal", t, k))

    def first_round(self, server: Server, k: int = 0) -> tuple[Client, Message, Any]:
        """Client k joins and trains."""
        return self.local(self.join(k), self.inbox(server, k), k=k)

    def logits(self, hook: str, model: Any, k: int = 0) -> Tensor:
        """What a model that a hook returned makes of a client's samples."""
        dim = self.device.task.layout.dim
        if isinstance(model, Tensor):
            require(
                model.dim() in (1, 2) and model.shape[-1] == dim and model.dtype == torch.float32,
                f"{self.name}.{hook} returns a model of {model.dtype} {list(model.shape)}; "
                f"a vector of float32 [{dim}], or several as rows [n, {dim}], is needed",
            )
        places = torch.arange(min(8, len(self.fleet.local(k))))
        return as_model(self.device.task, model).logits(self.fleet.local(k).train.at(places)[0])

    def _message(self, hook: str, *arguments: Any) -> Message:
        message: Message = self.call(hook, *arguments)
        require(isinstance(message, Message), f"{self.name}.{hook} must return a Message, not {type(message).__name__}")
        return message


def without_vote(message: Message) -> Message:
    """What neighbours get of a peer's message."""
    return Message(**{name: part for name, part in message.items() if name != VOTE})


def fingerprint(value: Any) -> Any:
    """What an argument of a hook holds, to tell whether it was changed."""
    match value:
        case Message():
            return encode(value)
        case Tensor():
            return value.numpy().tobytes()
        case Samples():
            return tuple(fingerprint(part) for part in (value.x, value.y, value.index))
        case LocalData():
            return fingerprint(value.train), fingerprint(value.validation)
        case Ctx():
            return fingerprint(value.theta0), value.t, value.rng, value.common
        case Mapping() if all(isinstance(item, Message) for item in value.values()):
            return [(key, encode(item)) for key, item in value.items()]
        case Iterable() if not isinstance(value, (str, tuple, dict)):
            return None  # the answers that merge draws from
        case _:
            return dumps(value)
