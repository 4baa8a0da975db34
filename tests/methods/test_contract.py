"""What every method promises, checked for all of them."""

import copy
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from small import recipe
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData
from sparsona.core.topology import at_once, ordered, ring
from sparsona.core.wire import Message, decode, encode
from sparsona.engines.device import Job
from sparsona.engines.local import Local
from sparsona.engines.rounds import Round, peers, star
from sparsona.engines.store import Store
from sparsona.engines.values import dumps, loads, types_of
from sparsona.method import PeerMethod, StarMethod
from sparsona.methods import METHODS
from sparsona.runner import prepare, run

pytestmark = pytest.mark.parametrize("name", sorted(METHODS))


def tensors(value: Any) -> list[Tensor]:
    """All tensors inside a value."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Message):
        return [t for part in value.values() for t in tensors(part)]
    if dataclasses.is_dataclass(value):
        return [t for f in dataclasses.fields(value) for t in tensors(getattr(value, f.name))]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors(v)]
    if isinstance(value, (tuple, list)):
        return [t for v in value for t in tensors(v)]
    return []


def scene(name: str, **more: Any):
    r = recipe(name, **more)
    device, fleet = prepare(r)
    method = device.method
    assert isinstance(method, StarMethod) != isinstance(method, PeerMethod)
    server = method.start(fleet.clients, device.ctx(0, "start")) if isinstance(method, StarMethod) else None
    return r, device, fleet, method, server


def first_round(device, fleet, method, server, k=0):
    client = method.join(k, device.ctx(0, "join", k))
    inbox = down(device, method, server, k)
    return client, inbox, method.local(client, inbox, fleet.local(k), device.ctx(0, "local", 0, k))


def down(device, method, server, k=0, own=None):
    """What reaches client k: of the server, or of two peers that have just joined; ``own`` is what it sent last."""
    if isinstance(method, StarMethod):
        return {"server": method.down(server, k, device.ctx(0, "down"))}

    def post(j):
        return method.post(method.join(j, device.ctx(0, "join", j)), device.ctx(0, "post", j))

    others = {j: post(j) for j in ((k + 1) % 6, (k + 4) % 6)}
    return {"self": post(k) if own is None else own, **others}


def logits(model, device, fleet, k=0):
    """What a model, be it a vector or a function, makes of a client's samples."""
    x, _ = fleet.local(k).train.at(torch.arange(8))
    return device.task.logits(model, x) if isinstance(model, Tensor) else model(x)


def merge(device, method, server, message, t=0):
    if not isinstance(method, StarMethod):
        return None
    ctx = device.ctx(t, "merge", t)
    return method.merge(server, iter([(0, method.read(server, 0, message, ctx))]), ctx)


def test_inputs_are_unchanged(name):
    _, device, fleet, method, server = scene(name)
    client, message = method.join(0, device.ctx(0, "join", 0)), None
    for t in range(2):  # the second round starts from a client that has something to keep
        inbox = down(device, method, server, own=message)
        kept = [t.clone() for t in tensors((server, client, list(inbox.values()), device.theta0))]
        new, message, _ = method.local(client, inbox, fleet.local(0), device.ctx(t, "local", t, 0))
        sent = [t.clone() for t in tensors(message)]
        merged = merge(device, method, server, message, t)
        method.personal(new, down(device, method, merged, own=message), fleet.local(0), device.ctx(t, "personal", t, 0))
        for before, now in zip(kept, tensors((server, client, list(inbox.values()), device.theta0)), strict=True):
            assert torch.equal(before, now)
        for before, now in zip(sent, tensors(message), strict=True):
            assert torch.equal(before, now)
        client, server = new, merged


def test_same_key_same_bits(name):
    _, device, fleet, method, server = scene(name)
    _, _, (a, m, model) = first_round(device, fleet, method, server)
    first_round(device, fleet, method, server, k=1)  # somebody else in between
    _, _, (b, n, again) = first_round(device, fleet, method, server)
    assert dumps(a) == dumps(b)
    assert encode(m) == encode(n)
    assert torch.equal(logits(model, device, fleet), logits(again, device, fleet))


def test_client_order_is_irrelevant(name):
    """Clients may be run in any order: what each does depends on nobody else."""
    _, device, _, method, server = scene(name)

    class Backwards(Local):
        def map(self, jobs):
            jobs = list(jobs)
            done = [self.device.handle(job) for job in reversed(jobs)]
            return iter(reversed(done))

    outcomes = []
    for engine in (Local(device), Backwards(device)):
        state, store = server, Store()
        if isinstance(method, PeerMethod):
            for k in range(6):
                joined = method.join(k, device.ctx(0, "join", k))
                message = method.post(joined, device.ctx(0, "post", k))
                store.put_mail(k, -1, encode(message), message.value_nbytes)
        for t in range(2):
            if isinstance(method, StarMethod):
                state, _ = star(method, engine, store, state, t, [0, 2, 3, 5], device.ctx(t, "merge", t), ())
            else:
                peers(engine, store, t, ordered(ring(6), Rng(t), 1), {}, 6, ())
        mail = [] if isinstance(method, StarMethod) else [store.mail(k, 2) for k in range(6)]
        outcomes.append((dumps(state), [store.client(k) for k in range(6)], mail))
    assert outcomes[0] == outcomes[1]


def test_values_and_messages_survive_their_journey(name):
    _, device, fleet, method, server = scene(name)
    types = types_of(method)
    _, _, (client, message, _) = first_round(device, fleet, method, server)
    assert dumps(loads(dumps(client), types)) == dumps(client)
    assert dumps(loads(dumps(server), types)) == dumps(server)
    for m in (message, *down(device, method, server).values()):
        assert len(encode(m)) == m.nbytes
        assert encode(decode(encode(m))) == encode(m)


def test_works_through_bytes_as_it_does_on_objects(name):
    _, device, fleet, method, server = scene(name)
    client, inbox, (new, message, _) = first_round(device, fleet, method, server)
    types = types_of(method)
    far = {sender: decode(encode(m)) for sender, m in inbox.items()}
    there, back, _ = method.local(loads(dumps(client), types), far, fleet.local(0), device.ctx(0, "local", 0, 0))
    assert dumps(there) == dumps(new)
    assert encode(back) == encode(message)


STILL = {"fedmask": {"method": {"lr": 1e-9}}}  # the first round gains most: likened to pruning without learning


def test_loss_falls(name):
    alike = {"data": {"sample_share": 1.0}, "fleet": {"per_round": 6}}
    done = run(recipe(name, rounds=12, **alike))
    first = run(recipe(name, rounds=1, **alike, **STILL.get(name, {})))
    assert done["before"]["loss"] < 0.7 * first["before"]["loss"]
    assert done["before"]["accuracy"] > 0.7
    if name in STILL:
        assert first["before"]["accuracy"] < 0.3


def test_survives_a_client_with_one_sample(name):
    _, device, fleet, method, server = scene(name)
    data = fleet.local(0)
    lonely = LocalData(dataclasses.replace(data.train, index=data.train.index[:1]), data.validation)
    client = method.join(0, device.ctx(0, "join", 0))
    inbox = down(device, method, server)
    new, message, model = method.local(client, inbox, lonely, device.ctx(0, "local", 0, 0))
    assert message.finite()
    merged = merge(device, method, server, message)
    after = method.personal(new, down(device, method, merged, own=message), lonely, device.ctx(0, "personal", 0, 0))
    for found in (model, after):
        assert torch.isfinite(logits(found, device, fleet)).all()


def test_a_round_without_answers_changes_nothing(name):
    _, device, _, method, server = scene(name)
    if isinstance(method, PeerMethod):  # nobody to answer: everybody away is a round of nothing
        assert peers(Local(device), Store(), 0, at_once(ring(6), range(6)), {}, 6, ()) == ({}, Round(0))
        return
    merged = method.merge(server, iter(()), device.ctx(0, "merge", 0))
    assert dumps(merged) == dumps(server)


def test_configuration_is_frozen(name):
    method = METHODS[name]()
    assert dataclasses.is_dataclass(method)
    assert copy.deepcopy(method) == method
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.lr = 1.0


def test_a_late_joiner_is_the_same_client(name):
    """Joining is keyed: a client that joins in round 5 is what it would have been in round 0."""
    _, device, _, method, server = scene(name)
    early = device.handle(Job("evaluate", 0, 3, None, down(device, method, server, 3)))
    joined = method.join(3, device.ctx(0, "join", 3))
    stored = None if joined is None else dumps(joined)
    late = device.handle(Job("evaluate", 0, 3, stored, down(device, method, server, 3)))
    assert early.score == late.score
