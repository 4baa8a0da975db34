"""The round loop without a server, on a gossip method small enough to follow by hand."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from small import recipe
from sparsona.core.aggregate import mean
from sparsona.core.rng import Rng
from sparsona.core.topology import Plan, at_once, full, ordered, ring
from sparsona.core.wire import Message, Values
from sparsona.engines.device import Job
from sparsona.engines.local import Local
from sparsona.engines.rounds import peers
from sparsona.engines.store import Store
from sparsona.engines.values import loads, types_of
from sparsona.method import PeerMethod, StarMethod
from sparsona.runner import prepare


@dataclass(frozen=True)
class Client:
    theta: Tensor


@dataclass(frozen=True)
class Gossip:
    """Client k starts with the constant k, takes the mean with its neighbours and adds 1 as its training."""

    def join(self, k, ctx):
        return Client(torch.full((ctx.layout.dim,), float(k)))

    def post(self, client):
        return Message(theta=Values(client.theta))

    def local(self, client, inbox, data, ctx):
        theta = mean([client.theta, *(m["theta"].values for _, m in sorted(inbox.items()))]) + 1
        client = Client(theta)
        return client, self.post(client), theta

    def personal(self, client, inbox, data, ctx):
        return client.theta


def world():
    device, _ = prepare(recipe())
    device = replace(device, method=Gossip())
    store, engine = Store(), Local(device)
    mail = {}
    for r in engine.map(Job("post", 0, k, None) for k in range(3)):
        store.put(r.k, r.client)
        mail[r.k] = r.message
    return device, store, engine, mail


def values(store):
    return [float(loads(store.client(k), types_of(Gossip())).theta[0]) for k in range(3)]


def test_everybody_at_once_by_hand():
    device, store, engine, mail = world()
    assert isinstance(device.method, PeerMethod)
    assert not isinstance(device.method, StarMethod)
    assert values(store) == [0.0, 1.0, 2.0]
    mail, done = peers(engine, store, mail, 0, at_once(full(3)), ())
    assert values(store) == [2.0, 2.0, 2.0]  # mean(0, 1, 2) + 1
    size = mail[0].nbytes
    assert [(c.down, c.up) for c in done.costs.values()] == [(2 * size, 2 * size)] * 3
    assert [float(m["theta"].values[0]) for m in mail.values()] == [2.0, 2.0, 2.0]


def test_waiting_for_fresh_neighbours_by_hand():
    # order 0, 1, 2: 1 waits for 0; 2 waits for 0 and 1; what nobody waits for is last round's
    plan = Plan({0: (1, 2), 1: (0, 2), 2: (0, 1)}, {0: frozenset(), 1: frozenset({0}), 2: frozenset({0, 1})})
    _, store, engine, mail = world()
    peers(engine, store, mail, 0, plan, ())
    # 0: mean(0, 1, 2) + 1 = 2;  1: mean(1, fresh 2, old 2) + 1 = 8/3;  2: mean(2, fresh 2, fresh 8/3) + 1 = 29/9
    assert torch.allclose(torch.tensor(values(store)), torch.tensor([2.0, 8 / 3, 29 / 9]))


def test_posting_again_is_what_was_sent():
    """After a resume the mail is made anew from the clients: it must be the same."""
    _, store, engine, mail = world()
    for t in range(2):
        mail, _ = peers(engine, store, mail, t, ordered(ring(3), Rng(t), 1), ())
    again = {r.k: r.message for r in engine.map(Job("post", 2, k, store.client(k)) for k in range(3))}
    assert again == mail
