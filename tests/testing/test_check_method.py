"""The contract test catches methods that break a promise, and names the hook."""

import random
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from sparsona.core.training import train
from sparsona.core.wire import Values
from sparsona.method import ContractError, Message, Report
from sparsona.methods.ditto import Ditto
from sparsona.methods.fedavg import FedAvg
from sparsona.methods.local import Local
from sparsona.testing import check_method


@dataclass(frozen=True, kw_only=True)
class MutatesMessage(FedAvg):
    def local(self, client, inbox, data, ctx):
        theta = inbox["server"]["theta"].values
        theta += 0.1  # in place
        return client, Message(theta=Values(theta.clone()), samples=len(data)), theta


@dataclass(frozen=True, kw_only=True)
class MutatesData(FedAvg):
    def local(self, client, inbox, data, ctx):
        data.train.index.copy_(data.train.index.flip(0))
        return super().local(client, inbox, data, ctx)


@dataclass(frozen=True, kw_only=True)
class MutatesServer(FedAvg):
    def merge(self, server, inbox, ctx):
        return server.copy_(super().merge(server, inbox, ctx))


@dataclass(frozen=True, kw_only=True)
class DrawsGlobally(FedAvg):
    def local(self, client, inbox, data, ctx):
        client, _, theta = super().local(client, inbox, data, ctx)
        theta = theta + 0.01 * torch.randn(len(theta))
        return client, Message(theta=Values(theta), samples=len(data)), theta


@dataclass(frozen=True, kw_only=True)
class JoinsByChance(Ditto):
    def join(self, k, ctx):
        return replace(super().join(k, ctx), theta=ctx.theta0 * random.random())


@dataclass(frozen=True, kw_only=True)
class ReadsTheClock(FedAvg):
    def personal(self, client, inbox, data, ctx):
        return super().personal(client, inbox, data, ctx) * (
            1 + time.perf_counter() % 1
        )  # of a large float32, a millisecond would be lost


@dataclass(frozen=True, kw_only=True)
class MergesByChance(FedAvg):
    def merge(self, server, inbox, ctx):
        return super().merge(server, inbox, ctx) + float(np.random.default_rng().random())


@dataclass(frozen=True, kw_only=True)
class KeepsBetweenCalls(FedAvg):
    calls: ClassVar[list[int]] = []

    def local(self, client, inbox, data, ctx):
        self.calls.append(len(data))
        theta = train(self, inbox["server"]["theta"].values, data.train, ctx)
        theta = theta * (1 + len(self.calls))
        return None, Message(theta=Values(theta), samples=len(data)), theta


@dataclass(frozen=True)
class Keeps:
    history: Any


@dataclass(frozen=True, kw_only=True)
class KeepsAList(FedAvg):
    def local(self, client, inbox, data, ctx):
        _, message, theta = super().local(None, inbox, data, ctx)
        return Keeps([theta]), message, theta


@dataclass(frozen=True, kw_only=True)
class SendsTooMuch(FedAvg):
    def local(self, client, inbox, data, ctx):
        client, message, theta = super().local(client, inbox, data, ctx)
        return client, Message(**message, log=torch.zeros(100, ctx.layout.dim)), theta


@dataclass(frozen=True, kw_only=True)
class SendsADict(FedAvg):
    def local(self, client, inbox, data, ctx):
        client, _, theta = super().local(client, inbox, data, ctx)
        return client, {"theta": theta}, theta


@dataclass(frozen=True, kw_only=True)
class RefusesItself(FedAvg):
    def read(self, server, k, message, ctx):
        return message.floats("theta", ctx.layout.dim + 1), 1


@dataclass(frozen=True, kw_only=True)
class ForgetsTheModel(FedAvg):
    def merge(self, server, inbox, ctx):
        answers = [theta for _, (theta, _) in inbox]
        return torch.stack(answers).mean(0) if answers else torch.zeros_like(server)


@dataclass(frozen=True, kw_only=True)
class GivesLogits(FedAvg):
    def personal(self, client, inbox, data, ctx):
        return torch.zeros(10)


@dataclass(frozen=True, kw_only=True)
class DividesByZero(FedAvg):
    def local(self, client, inbox, data, ctx):
        client, _, theta = super().local(client, inbox, data, ctx)
        theta = theta / (len(data) - 1)
        return client, Message(theta=Values(theta), samples=len(data)), theta


@dataclass(frozen=True, kw_only=True)
class SaysNothing(FedAvg):
    def report(self, client, server, k, ctx):
        return {"loss": 1.0}


@dataclass(frozen=True, kw_only=True)
class ReportsWell(FedAvg):
    def report(self, client, server, k, ctx):
        return Report({"loss": 1.0})


@dataclass(frozen=True, kw_only=True, eq=False)
class NotItsCopy(FedAvg):
    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass(frozen=True, kw_only=True)
class LooksAtIdentity(FedAvg):
    """Sends the model it was sent if it is the very same object, which holds in one process only."""

    seen: ClassVar[dict[int, Any]] = {}

    def down(self, server, k, ctx):
        self.seen[0] = server
        return super().down(server, k, ctx)

    def local(self, client, inbox, data, ctx):
        client, _, theta = super().local(client, inbox, data, ctx)
        if inbox["server"]["theta"].values is not self.seen.get(0):
            theta = theta * 2
        return client, Message(theta=Values(theta), samples=len(data)), theta


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (MutatesMessage, "MutatesMessage.local changes its argument inbox; make a copy"),
        (MutatesData, "MutatesData.local changes its argument data"),
        (MutatesServer, "MutatesServer.merge changes its argument server"),
        (DrawsGlobally, "DrawsGlobally.local gives another result"),
        (JoinsByChance, "JoinsByChance.join gives another result"),
        (ReadsTheClock, "ReadsTheClock.personal gives another result"),
        (MergesByChance, "MergesByChance.merge gives another result for the same arguments; draw only from ctx.rng"),
        (KeepsBetweenCalls, "KeepsBetweenCalls.local gives another result"),
        (KeepsAList, "KeepsAList.local returns a value that cannot be stored and read back.* list"),
        (SendsTooMuch, r"SendsTooMuch.local sends [\d,]+ bytes, more than 16 dense models"),
        (SendsADict, "SendsADict.local must return the client's new value, a Message"),
        (RefusesItself, r"RefusesItself.read refuses what RefusesItself.local sent: part 'theta' holds \d+ values"),
        (ForgetsTheModel, "ForgetsTheModel.merge must return the server as it was if nobody answered"),
        (GivesLogits, r"GivesLogits.personal returns a model of torch.float32 \[10\]; a vector"),
        (DividesByZero, "DividesByZero.local sends NaN or Inf for a client with one sample"),
        (SaysNothing, "SaysNothing.report must return a Report, not dict"),
        (NotItsCopy, "a copy of NotItsCopy is not equal to it"),
        (LooksAtIdentity, "LooksAtIdentity.local gives another result if client and messages were sent as bytes"),
    ],
)
def test_a_broken_promise_is_named(method, text):
    with pytest.raises(AssertionError, match=text) as caught:
        check_method(method())
    assert "\n" not in str(caught.value)


def test_a_missing_hook_is_a_contract_error():
    @dataclass(frozen=True)
    class Half:
        def join(self, k, ctx):
            return None

    with pytest.raises(
        ContractError, match="Half lacks hooks: add start, down, read, merge for a method with a server, or post"
    ):
        check_method(Half())


@pytest.mark.parametrize("given", [FedAvg, "my_module:FedAvg"])
def test_a_class_or_a_name_is_no_method(given):
    with pytest.raises(ContractError, match=r"is a class or a name; expected an instance, such as FedAvg\(\)"):
        check_method(given)


def test_a_method_must_be_a_frozen_dataclass():
    class Plain(FedAvg):  # inherits the fields, and is still a frozen dataclass
        pass

    check_method(Plain())

    class Loose:
        join = local = personal = post = lambda self, *arguments: None

    with pytest.raises(AssertionError, match="method: Loose is not a frozen dataclass"):
        check_method(Loose())


@pytest.mark.parametrize("method", [Ditto(), Local(), ReportsWell()], ids=lambda m: type(m).__name__)
def test_sound_methods_pass(method):
    check_method(method)


def test_methods_of_functions_pass_with_their_own_clients():
    """As in a notebook: neither the method nor its client can be imported by name."""

    @dataclass(frozen=True)
    class Kept:
        rounds: int
        parts: dict[str, Any] = field(default_factory=dict)

    @dataclass(frozen=True, kw_only=True)
    class Mine(FedAvg):
        def local(self, client, inbox, data, ctx):
            _, message, theta = super().local(None, inbox, data, ctx)
            return Kept(1 if client is None else client.rounds + 1, {"theta": theta}), message, theta

    check_method(Mine(), learns=True)
    with pytest.raises(
        AssertionError,
        match=r'engine\.name: worker processes of "pool" cannot import the method <Mine>, '
        r"which is defined in test_check_method",
    ):
        check_method(Mine(), engines=["pool"])


@dataclass(frozen=True, kw_only=True)
class DiffersInWorkers(FedAvg):
    def local(self, client, inbox, data, ctx):
        client, _, theta = super().local(client, inbox, data, ctx)
        if Path(sys.argv[0]).name == "worker.py":
            theta = theta * 2
        return client, Message(theta=Values(theta), samples=len(data)), theta


@pytest.mark.slow
def test_engines_are_compared():
    check_method(Ditto(), engines=["pool"])
    text = r'DiffersInWorkers gives another result with engine "pool" than with "local" \(clients.jsonl, rounds'
    with pytest.raises(AssertionError, match=text):
        check_method(DiffersInWorkers(), engines=["pool"])


@dataclass(frozen=True, kw_only=True)
class NeverLearns(FedAvg):
    def merge(self, server: Any, inbox: Iterable[Any], ctx: Any) -> Any:
        for _ in inbox:
            pass
        return server


def test_a_method_that_does_not_learn():
    with pytest.raises(AssertionError, match=r"NeverLearns does not learn: its loss goes from 2\.\d+ to 2\.\d+"):
        check_method(NeverLearns(), learns=True)
