"""The contract of methods: the example in its docstring runs, and what a method lacks is named."""

import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

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


def test_capabilities_follow_from_hooks():
    peer = hooks(*DEVICE_HOOKS, "post", "report", "check")
    able = capabilities(peer)
    assert able.peer is able.reports is able.checks is peer
    assert (able.star, able.shares, able.finetunes, able.welcomes, able.forgets) == (None,) * 5
