"""A newcomer's model keeps to the limits of its method, as the models of members do."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from small import recipe
from sparsona.engines.device import Device
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import star
from sparsona.engines.store import Store
from sparsona.engines.values import loads, types_of
from sparsona.experiment.runner import run
from sparsona.experiment.setup import newcomers, prepare
from sparsona.method import capabilities
from sparsona.methods import METHODS

MEMBER, NEWCOMER, ROUNDS = 0, 1, 3  # both are weak, where there are weak clients
SPARSE: dict[str, dict[str, Any]] = {
    "fedspa": {"density": 0.2},
    "feddst": {"density": 0.2, "interval": 2},
    "subfedavg": {"density": 0.85, "prune_rate": 0.1, "distance": 0.0, "accuracy": 0.0},
    "fedmask": {"keep": 0.3},
    "heterofl": {"keep": 0.25},
    "perfedmask+heterofl": {"width": 0.5, "budget": 0.8},
    "perfedmask": {"budget": 0.8},
    "perfedmask+splitmix": {"bases": 3, "weak_bases": 2, "budget": 0.8},
    "splitmix": {"bases": 3, "weak": 3, "weak_bases": 2},
    "pfedgate": {"keep": 0.4},
}
STARS = sorted(name for name, kind in METHODS.items() if capabilities(kind()).star is not None)


def after_rounds(name: str) -> tuple[Device, Tensor, Tensor, Any, Any, Tensor]:
    """A member's model, a newcomer's, the newcomer's value and inbox, and what it had before it adapted."""
    model = {"name": "digits-cnn" if name.startswith("perfedmask") else "digits-mlp"}  # masks choose among layers
    device, fleet = prepare(recipe(name, method=SPARSE.get(name, {}), rounds=ROUNDS, model=model))
    method, store = device.method, Store()
    hooks = capabilities(method).star
    assert hooks is not None
    server = hooks.start(fleet.clients, device.ctx(0, "start"))
    for t in range(ROUNDS):
        ctx = device.ctx(t, "merge", t)
        server, _ = star(hooks, LocalEngine(device), store, server, t, [MEMBER, 3, 5], ctx, ())
    t = ROUNDS - 1
    kept = store.client(MEMBER)
    client = method.join(MEMBER, device.ctx(0, "join", MEMBER))
    if kept is not None:
        client = loads(kept, types_of(method))
    mail = {k: {"server": hooks.down(server, k, device.ctx(t, "tests", t))} for k in (MEMBER, NEWCOMER)}
    member = device.personal(client, mail[MEMBER], fleet.local(MEMBER), t, MEMBER).vectors()
    joined = method.join(NEWCOMER, device.ctx(0, "join", NEWCOMER))
    before = device.personal(joined, mail[NEWCOMER], fleet.local(NEWCOMER), t, NEWCOMER).vectors()
    value, model = device.adapted(joined, mail[NEWCOMER], fleet.local(NEWCOMER), device.ctx(t, "adapt", NEWCOMER))
    return device, member, model.vectors(), value, mail[NEWCOMER]["server"], before


def nonzeros(device: Device, rows: Tensor) -> list[list[int]]:
    return [device.task.layout.counts(row != 0) for row in rows]


@pytest.mark.parametrize("name", STARS)
def test_a_newcomer_is_as_sparse_as_a_member(name: str) -> None:
    device, member, newcomer, value, _, before = after_rounds(name)
    assert newcomer.shape == member.shape
    if name == "pfedgate":  # its model is made batch by batch
        assert 0 < value.kept <= 0.4
    elif name == "fedmask":  # how many of those held are in use is learnt
        most = [math.ceil(0.3 * n) for n in device.task.layout.sizes]
        scope = device.method.scope(device.ctx(0, "scope"))  # type: ignore[attr-defined]
        for counts in (*nonzeros(device, newcomer), *nonzeros(device, member)):
            assert all(n <= limit for n, limit, masked in zip(counts, most, scope, strict=True) if masked)
        used = newcomer[0] != 0
        assert torch.equal(newcomer[0][used], device.theta0[used])  # weights stay as they were drawn
    else:
        assert nonzeros(device, newcomer) == nonzeros(device, member)
    if len(newcomer) and name != "fedmask":
        assert not torch.equal(newcomer, before)  # it adapted


def test_densities_are_those_of_the_recipe() -> None:
    """Worked out by hand: shares of all weights, of weight tensors, of a tenth pruned a round, and of channels."""
    device, _, newcomer, value, _, _ = after_rounds("fedspa")
    share = float((newcomer != 0).float().mean())
    assert share == pytest.approx(0.2, abs=2 / device.task.layout.dim)
    assert not newcomer[0][~value.mask].any()
    device, _, newcomer, _, message, _ = after_rounds("feddst")
    assert not newcomer[0][~message["model"].mask].any()
    weights = [len(slot.shape) > 1 for slot in device.task.layout.slots]
    kept = sum(n for n, flag in zip(nonzeros(device, newcomer)[0], weights, strict=True) if flag)
    whole = sum(n for n, flag in zip(device.task.layout.sizes, weights, strict=True) if flag)
    assert kept / whole == pytest.approx(0.2, abs=0.001)
    device, _, newcomer, value, _, _ = after_rounds("subfedavg")
    twice = [n - math.ceil(0.1 * (n - 1)) for n in device.task.layout.sizes]
    twice = [n - math.ceil(0.1 * (n - 1)) for n in twice]  # 0.81 is below 0.85, so there is no third pruning
    expected = [t if flag else n for t, n, flag in zip(twice, device.task.layout.sizes, weights, strict=True)]
    assert nonzeros(device, newcomer)[0] == expected == device.task.layout.counts(value.mask)


@pytest.mark.parametrize("name", ["perfedmask", "perfedmask+heterofl", "perfedmask+splitmix"])
def test_a_newcomer_trains_the_layers_of_its_budget_and_the_head(name: str) -> None:
    device, _, newcomer, _, message, before = after_rounds(name)
    layout, layers = device.task.layout, message["layers"].mask.tolist()
    assert any(layers)
    assert not all(layers)  # its budget is less than the whole body
    for old, new in zip(before, newcomer, strict=True):
        changed = layout.counts(old != new)
        for slot, count in zip(layout.slots, changed, strict=True):
            assert (count > 0) == (slot.head or layers[slot.group]), slot.name


@pytest.mark.parametrize("name", ["fedspa", "heterofl"])
def test_models_of_a_run_s_newcomers_are_as_sparse_as_they_say(name: str, tmp_path: Any) -> None:
    from safetensors.torch import load_file

    from sparsona import export

    held = {"per_round": 2, "hold_out": 0.34}
    done = run(recipe(name, rounds=2, method=SPARSE[name], fleet=held), tmp_path / "run")
    new = newcomers(done.recipe)
    zeros = {}
    for k in range(6):
        export(done, k, tmp_path / f"{k}.safetensors")
        tensors = load_file(tmp_path / f"{k}.safetensors").values()
        zeros[k] = sum(int((t == 0).sum()) for t in tensors)
    assert {zeros[k] for k in new} == {zeros[k] for k in range(6) if k not in new}
    assert min(zeros.values()) > 0
