"""Read this first: what a method is, and the words that every method is written in.

A *method* is a frozen dataclass whose fields are its configuration. A *client* is a value that the method defines (a
frozen dataclass of tensors and numbers, or None): the engine stores it, sends it and never looks inside. A *message*
is what really crosses the network. All models are flat vectors; a mask is a vector of bools of the same length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from sparsona.core.layout import Layout, Mask, Vector
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.task import Task
from sparsona.core.topology import Topology
from sparsona.core.training import Ctx, Training
from sparsona.core.wire import Message

Client = Any  # what a device keeps between rounds: a frozen dataclass of tensors and numbers, or None
Server = Any  # what the server keeps between rounds, likewise
# By sender: "server", or the number of a peer, "self" and "all". A peer's message is decoded when it is asked for, so
# that a method which takes in one after the other holds one at a time.
Inbox = Mapping[str | int, Message]
Model = (
    Vector | Callable[[Tensor], Tensor]
)  # what a device predicts with: a vector, or a function from inputs to logits


def of_last_round(inbox: Inbox, ctx: Ctx) -> Iterator[str | int]:
    """Who told something in the round before this one, by the ``round`` in it, and oneself: what is told adds up."""
    for j in sorted(inbox.keys() - {"all"}, key=str):
        if j == "self" or inbox[j].get("round") == ctx.t - 1:
            yield j


class Method(Protocol):
    """What runs on the device."""

    def join(self, k: int, ctx: Ctx) -> Client:
        """The value that client k starts with; its key alone decides it, so it may be made at any time."""

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Model]:
        """One round on the device: the client's new value, what it sends, and the model its training ended with."""

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Model:
        """The model the device would use now, having received this inbox and not yet trained on it."""


@runtime_checkable
class StarMethod(Method, Protocol):
    """A method with a server: clients talk to it alone."""

    def start(self, fleet: int, ctx: Ctx) -> Server:
        """What the server of a fleet of this size begins with."""

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:
        """What the server sends to client k."""

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> Any:
        """What client k answered, checked; a WireError leaves the client out of the round."""

    def merge(self, server: Server, inbox: Iterable[tuple[int, Any]], ctx: Ctx) -> Server:
        """The server after a round; what was read comes one by one in the order of client numbers and is not kept."""


@runtime_checkable
class SharedModel(Protocol):
    """A method whose server holds one model for all, which can be tested beside the personal ones."""

    def shared(self, server: Server) -> Vector:
        """That model."""


@runtime_checkable
class Composed(Protocol):
    """A method whose shared model is not a vector of the task's model, but of several, say."""

    def opened(self, shared: Vector, ctx: Ctx) -> Model:
        """What the shared vector predicts with."""


@runtime_checkable
class Finishing(SharedModel, Protocol):
    """A method whose devices each make a model of their own from the best shared one, once, when all rounds are over.

    The best is that of the round with the highest mean accuracy on validation samples, the latest without any.
    """

    def finish(self, theta: Vector, data: LocalData, ctx: Ctx) -> Model:
        """The device's own model; the context's round is that of the shared one."""


@runtime_checkable
class PeerMethod(Method, Protocol):
    """A method without a server: clients read each other's messages.

    An inbox holds the messages of the neighbours by number, and under "self" the client's own last one, which need not
    be kept twice.
    """

    def check(self, fleet: int, ctx: Ctx) -> None:
        """Raise ValueError if the method does not fit this model or a fleet of so many."""

    def post(self, client: Client, ctx: Ctx) -> Message:
        """What a client that has just joined, and not trained yet, offers the others."""


@runtime_checkable
class Choosy(Protocol):
    """A peer method that not every topology suits."""

    def suits(self, topology: Topology) -> None:
        """Raise ValueError, beginning with the field that is wrong, if this one does not."""


@runtime_checkable
class Voter(Protocol):
    """A peer method whose clients each tell all others one bit a round; inboxes hold those so far under "all"."""

    def vote(self, client: Client) -> bool | None:
        """The bit, after local training; None if there is nothing to be told."""


@runtime_checkable
class Welcoming(Protocol):
    """A method that has its own way to personalise for a newcomer; others tune the whole model that it would use."""

    def welcome(self, client: Client, inbox: Inbox, data: LocalData, epochs: int, ctx: Ctx) -> tuple[Client, Model]:
        """A client that has just joined, after so many passes over its data, and the model it then uses."""


@runtime_checkable
class Portable(Protocol):
    """A method whose personal models are no vectors, but can be taken elsewhere all the same."""

    def module(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> nn.Module:
        """The personal model with all that it needs to predict, apart from this process's one task."""


@runtime_checkable
class Telling(Protocol):
    """A method that has more to tell of a client than its scores."""

    def notes(self, client: Client, ctx: Ctx) -> dict[str, float]:
        """Figures by name, after local training: for the records alone; those named "what: bin" are a histogram."""


@runtime_checkable
class Learning(Protocol):
    """A method whose clients keep something of their own that can be likened to that of others."""

    def learnt(self, client: Client, k: int, ctx: Ctx) -> Vector:
        """What client k has learnt since it joined, in the context of which this is: for figures alone."""


@runtime_checkable
class Remarking(Protocol):
    """A method whose server, too, has more to tell of a client, once its answer is merged."""

    def remarks(self, server: Server, k: int) -> dict[str, float]:
        """Figures by name, of client k in this round: for the records alone."""


__all__ = [
    "Choosy",
    "Client",
    "Composed",
    "Ctx",
    "Finishing",
    "Inbox",
    "Layout",
    "Learning",
    "LocalData",
    "Mask",
    "Message",
    "Method",
    "Model",
    "PeerMethod",
    "Portable",
    "Remarking",
    "Rng",
    "Samples",
    "Server",
    "SharedModel",
    "StarMethod",
    "Task",
    "Telling",
    "Topology",
    "Training",
    "Vector",
    "Voter",
    "Welcoming",
    "of_last_round",
]
