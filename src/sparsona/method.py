"""Read this first: the interface of a method, and the terms that every method uses.

A *method* is a frozen dataclass whose fields are its configuration. A *client* is a value that the method defines (a
frozen dataclass of tensors and numbers, or None): the engine stores it, sends it and never looks inside. A *message*
is what really crosses the network. All models are flat vectors; a mask is a vector of bools of the same length.

A method implements hooks; there are 14. Every method has ``join``, ``local`` and ``personal``, which run on the device.
With a server it adds ``start``, ``down``, ``read`` and ``merge``; without one, ``post``. The others are optional.
A complete method, FedAvg whose clients predict with a mix of the shared model and their own:

    @dataclass(frozen=True)
    class Client:
        theta: Vector  # the model it trained last

    @dataclass(frozen=True, kw_only=True)
    class HalfWay(Training):
        own: float = 0.5  # weight of its own model in the mix that a client predicts with

        def join(self, k, ctx):
            return None  # a client that has not trained yet keeps nothing

        def local(self, client, inbox, data, ctx):
            theta = train(self, inbox["server"]["theta"].values, data.train, ctx)
            return Client(theta), Message(theta=Values(theta), samples=len(data)), theta

        def personal(self, client, inbox, data, ctx):
            shared = inbox["server"]["theta"].values
            return shared if client is None else shared.lerp(client.theta, self.own)

        def start(self, clients, ctx):
            return ctx.theta0

        def down(self, server, k, ctx):
            return Message(theta=Values(server))

        def read(self, server, k, message, ctx):
            return message.floats("theta", ctx.layout.dim), message.whole("samples", 1)

        def merge(self, server, inbox, ctx):
            mean = Mean(ctx.layout.dim)
            for k, (theta, samples) in inbox:
                mean.add(theta, samples)
            return mean.value(otherwise=server)

``tests/test_method.py`` runs it. ``train`` is in ``core.training``, ``Values`` in ``core.wire``, ``Mean`` in
``core.aggregate``; this module exports the other names. Hooks are pure: they change none of their arguments, and draw
only from ``ctx.rng`` and ``ctx.common``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from torch import Tensor

from sparsona.core.layout import Layout, Mask, Vector
from sparsona.core.model import Model, Predictor
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.task import Task
from sparsona.core.topology import Topology
from sparsona.core.training import Ctx, SgdTraining, Training
from sparsona.core.wire import Message

Client = Any  # what a device keeps between rounds: a frozen dataclass of tensors and numbers, or None
Server = Any  # what the server keeps between rounds, likewise
# By sender: "server", or the number of a peer, "self" and "all". A peer's message is decoded on access, so a method
# that processes one message after the other holds only one at a time.
Inbox = Mapping[str | int, Message]
VOTE = "vote"  # the part of a peer's message that goes to everybody and not to its neighbours


@dataclass(frozen=True)
class Report:
    """Values that a method reports for a client in addition to its scores; they are not part of any message."""

    figures: dict[str, float] = field(default_factory=dict)  # for the records; those named "what: bin" are a histogram
    private: Vector | None = None  # what the client never sends, for the figure that clusters clients; None: not in it


class Method(Protocol):
    """The hooks that run on the device."""

    def join(self, k: int, ctx: Ctx) -> Client:
        """The initial value of client k.

        Called on the device before each job of a client that keeps nothing yet, and wherever a client that has just
        joined is needed: by the server of a fleet for the first messages of peers, by dry runs, for export, and after
        the last round for ``report``. The value depends only on its key, so it can be made at any time and more than
        once.
        """

    def local(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Message, Predictor]:
        """Train for one round; return the client's new value, its message and the trained model.

        Called on the device once in each round in which the client takes part. Without a server, the inbox holds the
        messages of the neighbours by number, the client's own last one under "self", and under "all" the votes of
        earlier rounds, if any: a row of ``votes`` for each of ``rounds``, 1 for yes, 0 for no, 2 for no vote. A bool
        named ``vote`` in such a message is the client's vote; neighbours get the message without it.
        """

    def personal(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> Predictor:
        """The model that the device would use now, after receiving this inbox and before training.

        Called on the device at every evaluation, for export, and to adapt a newcomer if the method has no ``welcome``.
        Without a server, the inbox then holds only "self".
        """


class StarMethod(Method, Protocol):
    """A method with a server: clients exchange messages only with it."""

    def start(self, clients: int, ctx: Ctx) -> Server:
        """The initial value of the server, for this number of clients.

        Called on the server before the first round, and whenever a recipe is checked before a run, dry runs included.
        To reject a recipe, raise a ValueError that begins with the name of a field.
        """

    def down(self, server: Server, k: int, ctx: Ctx) -> Message:
        """The server's message to client k.

        Called on the server before the client trains, is tested with its personal model or adapts as a newcomer; also
        for export and in dry runs. Tests and fine-tuning of the shared model send that model instead.
        """

    def read(self, server: Server, k: int, message: Message, ctx: Ctx) -> Any:
        """The checked answer of client k; raise a WireError to leave the client out of the round.

        Called on the server when an answer arrives, with the value that the server had at the start of the round.
        """

    def merge(self, server: Server, inbox: Iterable[tuple[int, Any]], ctx: Ctx) -> Server:
        """The new value of the server after a round, from the results of ``read`` in the order of client numbers.

        Called on the server once per round. Clients train while ``merge`` iterates: each answer arrives when its client
        has finished, and is not kept unless ``merge`` keeps it. There may be no answers at all.
        """


class PeerMethod(Method, Protocol):
    """A method without a server: clients exchange messages with each other."""

    def post(self, client: Client, ctx: Ctx) -> Message:
        """The first message of a client, which has joined but not trained yet.

        Called before the first round, and again if the device loses its state. On a fleet, the server calls it instead
        of the device, since the message follows from the client's key; a device may call it to check what peers send.
        Dry runs call it for client 0.
        """


class Checks(Protocol):
    """A method without a server that does not support every model, number of clients or topology."""

    def check(self, clients: int, topology: Topology, ctx: Ctx | None) -> None:
        """Raise a ValueError that begins with ``topology.FIELD`` or a field of the method if it is not supported.

        Called without a context when a recipe is read, and with a context whenever it is checked before a run. A method
        with a server raises it in ``start`` instead.
        """


class SharesModel(Protocol):
    """A method whose server holds a shared model, which can be tested in addition to the personal models."""

    def shared(self, server: Server) -> Tensor:
        """The shared model: a vector [d], or several as rows [n, d] that predict by the mean of their logits.

        Called on the server at evaluations if ``evaluate.points`` has "shared", in every round if it has "finished".
        """


class Finetunes(SharesModel, Protocol):
    """A method whose devices fine-tune the best shared model once, after the last round.

    The best model is that of the round with the best mean validation score; without validation samples, the last one.
    """

    def finish(self, shared: Tensor, data: LocalData, ctx: Ctx) -> Predictor:
        """The fine-tuned model of the device; the context's round is that of the shared model.

        Called on the device after the last round and for export, if ``evaluate.points`` has "finished".
        """


class Welcomes(Protocol):
    """A method with a server and its own way to adapt to a new client; by default, all of its model is fine-tuned.

    A method that limits a client's model by a mask, a width or a budget needs it, so that the limits hold there too.
    """

    def welcome(self, client: Client, inbox: Inbox, data: LocalData, epochs: int, ctx: Ctx) -> tuple[Client, Predictor]:
        """Adapt a client that has just joined for ``epochs`` local epochs; return its new value and its model.

        Called on the device after the last round, for held-out clients, also when one is exported, and for new clients
        (``sparsona adapt``).
        """


class Reports(Protocol):
    """A method that reports values for each client in addition to its scores."""

    def report(self, client: Client | None, server: Server | None, k: int, ctx: Ctx) -> Report:
        """The report on client k, as far as it is known here.

        Called on the device after ``local`` with the client's new value and no server; then on the server after
        ``merge`` with the server's new value and no client, for each client whose answer was read. The server's
        figures are added to those of the device.

        Called again after the last round for each client that keeps a value, if figures are drawn, but not on a fleet
        or where clients are read on demand: with that value, then with what ``join`` returns, which may be None. Both
        calls have the context of ``join``, so ``ctx.t`` is 0. The figure that clusters clients shows by how much
        ``private`` differs; nothing else of these reports is used.
        """


class Forgets(Protocol):
    """A method whose server keeps state for each client."""

    def forget(self, server: Server, k: int) -> Server:
        """The value of the server without its state for client k.

        Called on the server when a device has lost its state and joins again.
        """


class DependsOnRounds(Protocol):
    """A method that states whether its rounds depend on how many there are. This is not a hook but an attribute.

    Built-in methods without it do not depend on ``ctx.rounds``, except by ``lr_schedule``, which is known. The class of
    a user's method states it itself, even if it inherits the attribute; otherwise its runs cannot be extended.
    """

    @property
    def depends_on_rounds(self) -> str | None:
        """What uses ``ctx.rounds`` besides ``lr_schedule``, beginning with a field; None if nothing does."""


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of a method: the method itself under each name, or None if it lacks what is named."""

    star: StarMethod | None  # exactly one of these two
    peer: PeerMethod | None
    checks: Checks | None
    shares: SharesModel | None
    finetunes: Finetunes | None
    welcomes: Welcomes | None
    reports: Reports | None
    forgets: Forgets | None
    training: SgdTraining | None  # the fields of local training
    depends: DependsOnRounds | None
    stated_by: type | None  # the class that states it


class ContractError(TypeError):
    """Raised if a method lacks a hook, or has hooks that do not go together."""


DEVICE_HOOKS = ("join", "local", "personal")
STAR_HOOKS = ("start", "down", "read", "merge")
PEER_HOOKS = ("post",)
OPTIONAL_STAR_HOOKS = ("shared", "finish", "welcome", "forget")
OPTIONAL_PEER_HOOKS = ("check",)
OPTIONAL_HOOKS = (*OPTIONAL_STAR_HOOKS, *OPTIONAL_PEER_HOOKS, "report")


def capabilities(method: Method) -> Capabilities:
    """The capabilities of a method, from the hooks of its class; raises ContractError if they do not fit together."""
    name, itself = type(method).__name__, cast(Any, method)
    has = {hook for hook in (*DEVICE_HOOKS, *STAR_HOOKS, *PEER_HOOKS, *OPTIONAL_HOOKS) if _defines(method, hook)}
    star, peer = has & {*STAR_HOOKS}, has & {*PEER_HOOKS}
    if star and peer:
        raise ContractError(
            f"{name} has {_list(star)}, for a method with a server, and {_list(peer)}, for one without; remove one"
        )
    if not star and not peer:
        raise ContractError(
            f"{name} lacks hooks: add {', '.join(STAR_HOOKS)} for a method with a server, or post for one without"
        )
    if unused := has & {*(OPTIONAL_PEER_HOOKS if star else OPTIONAL_STAR_HOOKS)}:
        kind = "without" if star else "with"
        raise ContractError(
            f"{name} has {_list(unused)}, which would never be called: only for a method {kind} a server; "
            f"{'raise the ValueError in start' if star else 'remove it'}, or rename it if it is no hook"
        )
    if missing := [hook for hook in (*DEVICE_HOOKS, *(STAR_HOOKS if star else PEER_HOOKS)) if hook not in has]:
        raise ContractError(f"{name} lacks the hooks {', '.join(missing)}")
    if "finish" in has and "shared" not in has:
        raise ContractError(f"{name} lacks the hook shared, whose model finish starts from")
    stated_by = next((base for base in type(method).__mro__ if "depends_on_rounds" in vars(base)), None)
    return Capabilities(
        star=itself if star else None,
        peer=itself if peer else None,
        checks=itself if "check" in has else None,
        shares=itself if "shared" in has else None,
        finetunes=itself if "finish" in has else None,
        welcomes=itself if "welcome" in has else None,
        reports=itself if "report" in has else None,
        forgets=itself if "forget" in has else None,
        training=method if isinstance(method, SgdTraining) else None,
        depends=itself if stated_by else None,
        stated_by=stated_by,
    )


def _defines(method: Method, hook: str) -> bool:
    return callable(getattr(type(method), hook, None))


def _list(hooks: set[str]) -> str:
    return ", ".join(sorted(hooks))


def of_last_round(inbox: Inbox, ctx: Ctx) -> Iterator[str | int]:
    """The senders of messages of the previous round, by the ``round`` in them, and "self"; for messages that add up."""
    for j in sorted(inbox.keys() - {"all"}, key=str):
        if j == "self" or inbox[j].get("round") == ctx.t - 1:
            yield j


__all__ = [
    "VOTE",
    "Capabilities",
    "Checks",
    "Client",
    "ContractError",
    "Ctx",
    "DependsOnRounds",
    "Finetunes",
    "Forgets",
    "Inbox",
    "Layout",
    "LocalData",
    "Mask",
    "Message",
    "Method",
    "Model",
    "PeerMethod",
    "Predictor",
    "Report",
    "Reports",
    "Rng",
    "Samples",
    "Server",
    "SharesModel",
    "StarMethod",
    "Task",
    "Topology",
    "Training",
    "Vector",
    "Welcomes",
    "capabilities",
    "of_last_round",
]
