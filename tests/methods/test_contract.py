"""What every method promises, checked for all of them by ``sparsona.testing``, which anybody can call."""

import dataclasses
from typing import Any

import pytest

from small import recipe
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import star
from sparsona.engines.store import Store
from sparsona.engines.values import dumps
from sparsona.experiment.runner import run
from sparsona.method import capabilities
from sparsona.methods import METHODS
from sparsona.testing import CHECKS, Scene
from tiers import tiered

every_method = pytest.mark.parametrize("name", sorted(METHODS))


def scene(name: str, **more: Any) -> Scene:
    r = recipe(name, **more)
    return Scene.of(r.method, r)


@every_method
@pytest.mark.parametrize("check", CHECKS)
def test_every_method_keeps_the_contract(name, check):
    CHECKS[check](scene(name))


STILL = {"fedmask": {"method": {"lr": 1e-9}}}  # the first round gains most: likened to pruning without learning


@pytest.mark.parametrize("name", tiered(sorted(METHODS)))
def test_loss_falls(name):
    alike = {"data": {"sample_share": 1.0}, "fleet": {"per_round": 6}}
    done = run(recipe(name, rounds=12, **alike)).summary
    first = run(recipe(name, rounds=1, **alike, **STILL.get(name, {}))).summary
    assert done["before"]["loss"] < 0.7 * first["before"]["loss"]
    assert done["before"]["accuracy"] > 0.7
    if name in STILL:
        assert first["before"]["accuracy"] < 0.3


WARM = {"lgfedavg": {"method": {"warmup": 1}}}  # what makes a server keep something of its clients


def unmet(server: Any, k: int) -> Any:
    """A server without all that lies in a dict under client k, or in a tuple of client numbers."""
    if not dataclasses.is_dataclass(server):
        return server
    fields = {f.name: getattr(server, f.name) for f in dataclasses.fields(server)}
    for field, value in fields.items():
        if isinstance(value, dict):
            fields[field] = {j: v for j, v in value.items() if j != k}
        elif isinstance(value, tuple):
            fields[field] = tuple(j for j in value if j != k)
    return type(server)(**fields)


@every_method
def test_a_forgotten_client_is_one_the_server_never_met(name):
    """For servers of ours, whose dicts and tuples are all by client: nothing of client 1 is left."""
    s = scene(name, **WARM.get(name, {}))
    able, server, store = capabilities(s.method), s.start(), Store()
    if able.star is None:
        assert able.forgets is None
        return
    for t in range(3):
        ctx = s.device.ctx(t, "merge", t)
        server, _ = star(able.star, LocalEngine(s.device), store, server, t, [0, 1, 2], ctx, ())
    forgotten = server if able.forgets is None else able.forgets.forget(server, 1)
    assert dumps(forgotten) == dumps(unmet(server, 1))
    if able.forgets is not None:
        assert dumps(forgotten) != dumps(server)
