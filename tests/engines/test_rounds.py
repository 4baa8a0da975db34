"""The round loop without a server, on a gossip method small enough to follow by hand."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from small import recipe
from sparsona.core.aggregate import mean
from sparsona.core.rng import Rng
from sparsona.core.topology import RoundPlan, at_once, full, ordered, ring
from sparsona.core.wire import Message, Values, decode
from sparsona.engines.jobs import Job
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import peers
from sparsona.engines.store import Store
from sparsona.engines.values import loads, types_of
from sparsona.experiment.setup import prepare
from sparsona.method import capabilities


@dataclass(frozen=True)
class Client:
    theta: Tensor


@dataclass(frozen=True)
class Gossip:
    """Client k starts with the constant k, takes the mean with its neighbours and adds 1 as its training."""

    def join(self, k, ctx):
        return Client(torch.full((ctx.layout.dim,), float(k)))

    def post(self, client, ctx):
        return Message(theta=Values(client.theta))

    def local(self, client, inbox, data, ctx):
        theta = mean(inbox[j]["theta"].values for j in sorted(inbox, key=str) if j != "all") + 1
        client = Client(theta)
        return client, self.post(client, ctx), theta

    def personal(self, client, inbox, data, ctx):
        return client.theta


def world():
    device, _ = prepare(recipe())
    device = replace(device, method=Gossip())
    store, engine = Store(), LocalEngine(device)
    for r in engine.map(Job("post", 0, k, None, {}, ("bytes",)) for k in range(3)):
        store.put(r.k, r.client)
        store.put_mail(r.k, -1, r.sent.data, r.sent.value_nbytes)
    return device, store, engine


def values(store):
    return [float(loads(store.client(k), types_of(Gossip())).theta[0]) for k in range(3)]


def test_everybody_at_once_by_hand():
    device, store, engine = world()
    assert capabilities(device.method).peer is device.method
    assert capabilities(device.method).star is None
    assert values(store) == [0.0, 1.0, 2.0]
    _, done = peers(engine, store, 0, at_once(full(3)), {}, 3, ())
    assert values(store) == [2.0, 2.0, 2.0]  # mean(0, 1, 2) + 1
    d = device.task.layout.dim
    size = Message(theta=Values(torch.zeros(d))).nbytes
    assert [(c.down, c.up) for c in done.costs.values()] == [(2 * size, 2 * size)] * 3
    assert [(c.paper_down, c.paper_up) for c in done.costs.values()] == [(8 * d, 8 * d)] * 3
    said = [decode(store.mail(k, 1)[0])["theta"].values[0] for k in range(3)]
    assert said == [2.0, 2.0, 2.0]


def test_waiting_for_fresh_neighbours_by_hand():
    # order 0, 1, 2: 1 waits for 0; 2 waits for 0 and 1; what nobody waits for is last round's
    plan = RoundPlan({0: (1, 2), 1: (0, 2), 2: (0, 1)}, {0: frozenset(), 1: frozenset({0}), 2: frozenset({0, 1})})
    _, store, engine = world()
    peers(engine, store, 0, plan, {}, 3, ())
    # 0: mean(0, 1, 2) + 1 = 2;  1: mean(1, fresh 2, old 2) + 1 = 8/3;  2: mean(2, fresh 2, fresh 8/3) + 1 = 29/9
    assert torch.allclose(torch.tensor(values(store)), torch.tensor([2.0, 8 / 3, 29 / 9]))


def test_who_is_away_neither_trains_nor_is_read_and_comes_back_as_it_was():
    _, store, engine = world()
    peers(engine, store, 0, at_once(full(3), {1}), {}, 3, ())
    assert values(store) == [2.0, 1.0, 2.0]  # mean(0, 2) + 1
    for t in (1, 2):  # client 1's message outlives the rounds that it missed
        peers(engine, store, t, at_once(full(3), {1}), {}, 3, ())
    peers(engine, store, 3, at_once(full(3)), {}, 3, ())
    assert values(store) == [pytest.approx((4 + 1 + 4) / 3 + 1)] * 3


def test_old_mail_is_forgotten():
    _, store, engine = world()
    for t in range(4):
        peers(engine, store, t, ordered(ring(3), Rng(t), 1), {}, 3, ())
    kept = store._do("SELECT k, t FROM mail ORDER BY k, t").fetchall()
    assert kept == [(k, 3) for k in range(3)]


@dataclass(frozen=True)
class Member(Client):
    k: int


VOTES = [  # by round and client
    {0: True, 1: False, 2: True},
    {0: None, 1: None, 2: None},
    {0: False, 2: True},  # 1 is away
    {0: None, 1: True, 2: None},
    {0: None, 1: None, 2: None},
]
HEARD = [  # by round: what all have heard, and of which rounds
    None,
    ([[1, 0, 1]], [0]),
    ([[1, 0, 1]], [0]),  # nobody voted in round 1
    ([[1, 0, 1], [0, 2, 1]], [0, 2]),
    ([[1, 0, 1], [0, 2, 1], [2, 1, 2]], [0, 2, 3]),
]


@dataclass(frozen=True)
class Polling(Gossip):
    """Votes as planned."""

    def local(self, client, inbox, data, ctx):
        if HEARD[ctx.t] is None:
            assert "all" not in inbox
        else:
            votes, rounds = inbox["all"]["votes"], inbox["all"]["rounds"]
            assert (votes.dtype, rounds.dtype) == (torch.uint8, torch.int64)
            assert (votes.tolist(), rounds.tolist()) == HEARD[ctx.t]
        k = client.k if isinstance(client, Member) else int(client.theta[0])
        new, message, theta = super().local(client, inbox, data, ctx)
        vote = VOTES[ctx.t][k]
        return Member(new.theta, k), Message(**message, **({} if vote is None else {"vote": vote})), theta


def test_votes_reach_everybody_and_are_paid_for():
    device, store, _ = world()
    engine = LocalEngine(replace(device, method=Polling()))
    cast, paid = {}, []
    for t, votes in enumerate(VOTES):
        plan = RoundPlan(dict.fromkeys(votes, ()), dict.fromkeys(votes, frozenset()))  # nobody reads anybody
        cast, done = peers(engine, store, t, plan, cast, 3, ())
        paid.append({k: (cost.down, cost.up) for k, cost in done.costs.items()})
        assert done.left_out == {}
    assert cast == {0: {0: True, 1: False, 2: True}, 2: {0: False, 2: True}, 3: {1: True}}
    bit = Message(vote=True).nbytes
    assert paid == [
        {0: (2 * bit, 2 * bit), 1: (2 * bit, 2 * bit), 2: (2 * bit, 2 * bit)},
        {0: (0, 0), 1: (0, 0), 2: (0, 0)},
        {0: (bit, bit), 2: (bit, bit)},
        {0: (bit, 0), 1: (0, 2 * bit), 2: (bit, 0)},  # who does not vote pays nothing, but hears
        {0: (0, 0), 1: (0, 0), 2: (0, 0)},
    ]
