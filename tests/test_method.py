"""The contract of methods: the example in its docstring runs, and what a method lacks is named."""

import inspect
import re
import sys
import textwrap
import types
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

import sparsona
import sparsona.method as contract
from small import recipe
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import star
from sparsona.engines.store import Store
from sparsona.experiment.metrics import metrics
from sparsona.experiment.setup import prepare
from sparsona.method import (
    DEVICE_HOOKS,
    OPTIONAL_HOOKS,
    PEER_HOOKS,
    STAR_HOOKS,
    ContractError,
    capabilities,
)
from sparsona.methods.dispfl import DisPFL
from sparsona.methods.fedavg import FedAvg
from sparsona.methods.fedspa import FedSpa
from sparsona.methods.pfedgate.pfedgate import PFedGate

IMPORTS = """
from dataclasses import dataclass
from sparsona.core.aggregate import Mean
from sparsona.core.training import Training, train
from sparsona.core.wire import Message, Values
from sparsona.method import Vector
"""


@pytest.fixture
def toy() -> Iterator[types.ModuleType]:
    """The method of the docstring, as a module."""
    block = re.search(r"\n\n((?:    .*\n|\n)+)", str(contract.__doc__))
    assert block is not None
    module = types.ModuleType("toy")
    sys.modules["toy"] = module
    exec(IMPORTS + textwrap.dedent(block[1]), vars(module))
    yield module
    del sys.modules["toy"]


def test_the_example_learns(toy):
    device, _ = prepare(recipe("fedavg", data={"sample_share": 1.0}))
    device = replace(device, method=toy.HalfWay(lr=0.1, batch=16))
    server, store, losses = device.theta0, Store(), []
    method = capabilities(device.method).star
    assert method is not None
    for t in range(6):
        server, outcome = star(
            method, LocalEngine(device), store, server, t, list(range(6)), device.ctx(t, "merge", t), ("score",)
        )
        assert outcome.left_out == {}
        losses.append(metrics(outcome.scores)["loss"])
    assert losses[-1] < 0.7 * losses[0]
    client = device.method.local(None, {"server": method.down(server, 0, device.ctx(6, "down"))}, *_rest(device))[0]
    inbox = {"server": method.down(server, 0, device.ctx(6, "down"))}
    mixed = device.personal(client, inbox, device.local(0), 6, 0).vectors()[0]
    assert mixed.tolist() == pytest.approx(((server + client.theta) / 2).tolist(), abs=1e-6)


def _rest(device: Any) -> tuple[Any, Any]:
    return device.local(0), device.ctx(6, "local", 6, 0)


def test_the_contract_is_small():
    assert len({*DEVICE_HOOKS, *STAR_HOOKS, *PEER_HOOKS, *OPTIONAL_HOOKS}) == 14
    assert len(DEVICE_HOOKS + STAR_HOOKS) == 7
    assert len(DEVICE_HOOKS + PEER_HOOKS) == 4
    hooks = set()
    for _, protocol in inspect.getmembers(contract, inspect.isclass):
        if getattr(protocol, "_is_protocol", False) and protocol.__module__ == contract.__name__:
            for name, hook in vars(protocol).items():
                if inspect.isfunction(hook) and not name.startswith("_"):
                    hooks.add(name)
                    assert "Called " in str(hook.__doc__), name
    assert hooks == {*DEVICE_HOOKS, *STAR_HOOKS, *PEER_HOOKS, *OPTIONAL_HOOKS}


@dataclass(frozen=True)
class Bare:
    """A method that can do nothing."""


def hooks(*names: str) -> Any:
    """A method with these hooks."""
    return type("Some", (Bare,), {name: lambda self: None for name in names})()


@pytest.mark.parametrize("missing", [*DEVICE_HOOKS, *STAR_HOOKS])
def test_a_missing_hook_is_named(missing):
    with pytest.raises(ContractError, match=f"Some lacks the hooks {missing}$"):
        capabilities(hooks(*({*DEVICE_HOOKS, *STAR_HOOKS} - {missing})))


def test_hooks_that_do_not_go_together_are_refused():
    for names in (DEVICE_HOOKS, (*DEVICE_HOOKS, *STAR_HOOKS, "post"), (*DEVICE_HOOKS, *STAR_HOOKS, "finish")):
        with pytest.raises(ContractError):
            capabilities(hooks(*names))


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ((*STAR_HOOKS, "check"), "Some has check, which would never be called: only for a method without a server"),
        (("post", "shared"), "Some has shared, which would never be called: only for a method with a server"),
        (("post", "shared", "finish"), "Some has finish, shared, which would never be called"),
        (("post", "welcome"), "Some has welcome, which would never be called"),
        (("post", "forget"), "Some has forget, which would never be called"),
    ],
)
def test_hooks_that_would_never_be_called_are_refused(names, error):
    with pytest.raises(ContractError, match=error):
        capabilities(hooks(*DEVICE_HOOKS, *names))


def test_capabilities_follow_from_hooks():
    peer = hooks(*DEVICE_HOOKS, "post", "report", "check")
    able = capabilities(peer)
    assert able.peer is able.reports is able.checks is peer
    assert (able.star, able.shares, able.finetunes, able.welcomes, able.forgets) == (None,) * 5
    assert (able.training, able.depends) == (None, None)
    trains = FedSpa()
    assert capabilities(trains).training is capabilities(trains).depends is trains


def spied(base: type, calls: list[tuple[Any, ...]]) -> Any:
    """A class of methods that note which hook was called in which round, and for which client."""

    def noting(hook: str) -> Any:
        inner = getattr(base, hook)
        names = list(inspect.signature(inner).parameters)[1:]

        def outer(self: Any, *arguments: Any) -> Any:
            given = dict(zip(names, arguments, strict=True))
            t = getattr(given.get("ctx"), "t", None)
            calls.append((hook, t, given.get("client"), given.get("server")))
            return inner(self, *arguments)

        return outer

    known = {*DEVICE_HOOKS, *STAR_HOOKS, *PEER_HOOKS, *OPTIONAL_HOOKS} - {"read", "merge"}
    return type("Spied", (base,), {hook: noting(hook) for hook in known if hasattr(base, hook)})


def test_hooks_of_a_method_with_a_server_are_called_when_they_say():
    calls: list[tuple[Any, ...]] = []
    data, fleet = {"clients": 6, "validation_share": 0.2}, {"per_round": 3, "hold_out": 0.34}
    given = {"data": data, "fleet": fleet, "evaluate": {"points": ["before", "shared", "finished"], "every": 2}}
    sparsona.run(recipe("fedavg", rounds=3, **given), method=spied(FedAvg, calls)(lr=0.1, batch=16))
    times = Counter((hook, t) for hook, t, *_ in calls)
    newcomers, members, tests = 2, 4, (1, 2)  # the last round is evaluated, too
    for t in range(3):
        tested = members if t in tests else 0
        assert times["local", t] == 3
        assert times["down", t] == 3 + tested + (newcomers if t == 2 else 0)  # none for the shared model
        assert times["personal", t] == tested + (newcomers if t == 2 else 0)  # they adapt without a hook of their own
    assert times["shared", None] == 3 + len(tests)  # validation in each round
    assert sum(n for (hook, _), n in times.items() if hook == "finish") == members
    assert {t for hook, t in times if hook == "join"} == {0}


def test_hooks_of_a_method_without_a_server_are_called_when_they_say(tmp_path):
    calls: list[tuple[Any, ...]] = []
    method = spied(DisPFL, calls)(lr=0.1, batch=16)
    sparsona.run(recipe("dispfl", rounds=2, results={"figures": True}), tmp_path / "run", method=method)
    times = Counter((hook, t) for hook, t, *_ in calls)
    assert {key: n for key, n in times.items() if key[0] in ("join", "post", "local", "report")} == {
        ("join", 0): 6,
        ("post", 0): 6,
        ("local", 0): 6,
        ("local", 1): 6,
        ("report", 0): 6 + 6,  # after local training, and after the last round with the context of join
        ("report", 1): 6,
    }


def test_a_report_may_be_asked_of_a_client_that_has_just_joined(tmp_path):
    calls: list[tuple[Any, ...]] = []
    method = spied(PFedGate, calls)(lr=0.1, batch=16)
    given = {"fleet": {"per_round": 6}, "results": {"figures": True}}
    sparsona.run(recipe("pfedgate", rounds=1, **given), tmp_path / "run", method=method)
    reports = [(t, client is None, server is None) for hook, t, client, server in calls if hook == "report"]
    assert Counter(reports) == {(0, False, True): 6 + 2 * 6, (0, True, False): 6}
