"""FedPSE: its three steps and a round by hand, what never changes, and where it must coincide with FedAvg."""

import json
import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from data import official
from small import Meddler, recipe
from sparsona.core import masks
from sparsona.core.aggregate import Mean, elementwise_mean
from sparsona.core.layout import Layout, Slot
from sparsona.core.masks import PackedSparse
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.task import Task
from sparsona.core.training import Ctx, train
from sparsona.core.wire import Message, Sparse
from sparsona.data import DataError
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import star
from sparsona.engines.store import Store
from sparsona.engines.values import loads, types_of
from sparsona.experiment.recipe import RecipeError
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.methods.fedavg import FedAvg
from sparsona.methods.fedpse.correlation import cosine
from sparsona.methods.fedpse.fedpse import FedPSE, Server
from sparsona.methods.fedpse.selection import downstream, miscount, upstream
from sparsona.models import build
from tiers import tiered


def layers(*sizes: int) -> Layout:
    """Tensors with one dimension of these sizes."""
    return Layout(tuple(Slot(f"{i}", (n,), "weight", "", sum(sizes[:i]), 1) for i, n in enumerate(sizes)))


def bits(size: int, *places: int) -> torch.Tensor:
    out = torch.zeros(size, dtype=torch.bool)
    out[list(places)] = True
    return out


def sparse(size: int, values: dict[int, float]) -> Sparse:
    return Sparse(bits(size, *values), torch.tensor([values[i] for i in sorted(values)]))


def six_weights(x: list[list[float]], y: list[int], t: int = 0):
    """A linear layer from three inputs to two classes: weights 0 1 2 of class 0, then 3 4 5 of class 1."""
    inputs = torch.tensor(x)
    task, _ = Task.of(nn.Linear(3, 2, bias=False), inputs)
    samples = Samples(inputs, torch.tensor(y), torch.arange(len(y)))
    ctx = Ctx(t, 3, task, torch.zeros(6), Rng(1, "local"), Rng(1, "common"))
    return LocalData(samples, samples), ctx


def value_of(path, method, k):
    return loads((path / "state" / f"client-{k:05d}.safetensors").read_bytes(), types_of(method))


# -- UPS -------------------------------------------------------------------------------------------------------------


def test_upstream_by_hand():
    """Tensors of 4, 1 and 5: n - round(0.5 n) is 2, 1 and 3; of the equal magnitudes 3 and -3 the lower index stays."""
    update = torch.tensor([1.0, -3.0, 3.0, 3.0, 0.25, 0.0, -9.0, 7.0, 0.0, 8.0])
    sent, residual = upstream(layers(4, 1, 5), update, 0.5)
    assert sent.dense().tolist() == [0, -3, 3, 0, 0.25, 0, -9, 7, 0, 8]
    assert residual.tolist() == [1, 0, 0, 3, 0, 0, 0, 0, 0, 0]
    whole, rest = upstream(layers(4, 1, 5), update, 0.5, "model")  # 10 - 5: the largest five of all
    assert whole.dense().tolist() == [0, -3, 3, 0, 0, 0, -9, 7, 0, 8]
    assert rest.tolist() == [1, 0, 0, 3, 0.25, 0, 0, 0, 0, 0]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.0, 1.0, -1.0, 2.0, 1e-40, 3e38]), min_size=1, max_size=9), min_size=1),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(["layer", "model"]),
)
def test_upstream_keeps_its_number_and_loses_nothing(tensors, sparsity, each):
    """Ties, zeros, layers of one weight: exactly as many as are due, and sent plus residual is the update, exactly."""
    layout = layers(*map(len, tensors))
    update = torch.tensor([x for tensor in tensors for x in tensor])
    sent, residual = upstream(layout, update, sparsity, each)
    sizes = layout.sizes if each == "layer" else [layout.dim]
    assert [int(m.sum()) for (m,) in masks.pieces(layout, each, sent.mask)] == [
        max(1, n - round(sparsity * n)) for n in sizes
    ]
    assert torch.equal(sent.dense() + residual, update)
    assert not residual[sent.mask].any()
    for m, u in masks.pieces(layout, each, sent.mask, update.abs()):
        assert m.all() or u[m].min() >= u[~m].max()


# -- EWA -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("updates", "want"),
    [
        (({1: 1.0}, {0: 2.0}, {1: 3.0}), [2.0, 2.0]),  # Appendix A, IID
        (({1: 2.0}, {0: 3.0}, {1: 4.0}), [3.0, 3.0]),  # and not
    ],
)
def test_appendix_a(updates, want):
    assert elementwise_mean(layers(2), [(sparse(2, u), 1) for u in updates]).tolist() == want


def test_elementwise_weights_by_samples_and_is_zero_where_nobody_sent():
    sent = [(sparse(4, {0: 1.0, 1: 2.0}), 1), (sparse(4, {1: 6.0, 2: -5.0}), 3)]
    assert elementwise_mean(layers(4), sent).tolist() == [1.0, 5.0, -5.0, 0.0]  # (1 * 2 + 3 * 6) / 4


def test_a_zero_that_fills_up_does_not_count_but_one_of_a_whole_tensor_does():
    """One client has no other entry to send than 4 at place 1, and fills up with place 0; tensor two travels whole."""
    layout = layers(3, 2)
    fills, other = sparse(5, {0: 0.0, 1: 4.0, 3: 0.0, 4: 2.0}), sparse(5, {0: 6.0, 1: 2.0, 3: 8.0, 4: 2.0})
    assert elementwise_mean(layout, [(fills, 1), (other, 1)]).tolist() == [6.0, 3.0, 0.0, 4.0, 2.0]
    # where entries compete in the whole model, a tensor that is chosen whole by chance is not one that travels whole
    zeros, some = sparse(4, {0: 0.0, 1: 0.0}), sparse(4, {0: 6.0, 1: 2.0})
    assert elementwise_mean(layers(1, 3), [(zeros, 1), (some, 1)], "model").tolist() == [6.0, 2.0, 0.0, 0.0]
    assert elementwise_mean(layers(1, 3), [(zeros, 1), (some, 1)]).tolist() == [3.0, 2.0, 0.0, 0.0]
    full = [(Sparse(torch.ones(4).bool(), torch.tensor(v)), 1) for v in ([0.0, 2.0, 0.0, 4.0], [2.0, 0.0, 0.0, 0.0])]
    assert elementwise_mean(layers(1, 3), full, "model").tolist() == [1.0, 1.0, 0.0, 2.0]


# -- DPS -------------------------------------------------------------------------------------------------------------


def test_distances_zero_a_half_and_one():
    """M_s = {0, 1, 2} and M_i = {2, 3, 4}: the server's, one of each, the client's."""
    server, client = bits(6, 0, 1, 2), bits(6, 2, 3, 4)
    seen = set()
    for seed in range(40):
        assert torch.equal(masks.mixed(server, client, 0.0, Rng(seed)), server)
        assert torch.equal(masks.mixed(server, client, 1.0, Rng(seed)), client)
        half = masks.mixed(server, client, 0.5, Rng(seed))
        assert (bool(half[2]), int(half[:2].sum()), int(half[3:5].sum()), bool(half[5])) == (True, 1, 1, False)
        seen.add(tuple(half.tolist()))
    assert len(seen) == 4  # each pair of draws occurs


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12), st.floats(0, 1), st.integers(0, 2**32)
)
def test_as_many_places_as_the_server_has(pairs, share, seed):
    """Also where the two have nothing in common, or the client has fewer places than it could be given."""
    server, client = torch.tensor(pairs).unbind(1)
    got = masks.mixed(server, client, share, Rng(seed))
    assert int(got.sum()) == int(server.sum())
    assert bool(got[server & client].all())
    assert not bool((got & ~(server | client)).any())
    rest, own = int((server & ~client).sum()), int((client & ~server).sum())
    assert int((got & ~server).sum()) == min(round(share * rest), own)


def test_downstream_piece_by_piece():
    """Alike in the first tensor and opposed in the second: the server's places there, the client's here."""
    layout = layers(3, 3)
    top, update = sparse(6, {0: 2.0, 1: 1.0, 3: 1.0, 4: 4.0}), sparse(6, {0: 4.0, 2: 0.1, 3: -8.0, 5: 0.1})
    # cosines: 8 / (sqrt(5) 4.00) = 0.89, so round(0.05 * 1) = 0; -8 / (sqrt(17) 8.00) = -0.24, so round(0.62 * 1) = 1
    assert downstream(layout, top, update, Rng(1)).tolist() == [1, 1, 0, 1, 0, 1]
    # as one: 8 - 8 = 0, so one of two
    got = downstream(layout, top, update, Rng(1), "model")
    assert (got[[0, 3]].tolist(), int(got[[1, 4]].sum()), int(got[[2, 5]].sum())) == ([1, 1], 1, 1)
    # zeros that fill up are nobody's choice: the server's places alone
    nothing = sparse(6, {1: 0.0, 2: 0.0, 3: 0.0, 5: 0.0})
    assert downstream(layout, top, nothing, Rng(1), "model").tolist() == [1, 1, 0, 1, 1, 0]
    # one with two entries of its own, 4 in common with the server: 5, not the zeros that fill up
    single = sparse(6, {2: 0.0, 3: 0.0, 4: -1.0, 5: -0.5})
    # cosine -4 / (sqrt(22) sqrt(1.25)) = -0.76: round(0.88 * 3) = 3 of its own, of which there is one
    got = downstream(layout, top, single, Rng(1), "model").tolist()
    assert (got[2], got[4], got[5], got[0] + got[1] + got[3]) == (0, 1, 1, 2)


def test_a_correlation_decides_whose_places_are_sent():
    """Alike: the server's places; opposed: the client's; the correlation alone says which, also in a merge."""
    layout, top, update = layers(6), sparse(6, {0: 3.0, 1: 2.0, 2: 1.0}), sparse(6, {2: 1.0, 3: 5.0, 4: 6.0})
    assert torch.equal(downstream(layout, top, update, Rng(1), correlation=lambda a, b: 1.0), top.mask)
    assert torch.equal(downstream(layout, top, update, Rng(1), correlation=lambda a, b: -1.0), update.mask)


def test_pieces_are_drawn_each_by_itself():
    """Two tensors alike in everything but their place: over many keys the halves drawn are not always the same."""
    layout, top = layers(8, 8), sparse(16, dict.fromkeys((0, 1, 2, 3, 8, 9, 10, 11), 1.0))
    update = sparse(16, dict.fromkeys((4, 5, 6, 7, 12, 13, 14, 15), 1.0))
    drawn = [downstream(layout, top, update, Rng(seed)).view(2, 8) for seed in range(20)]
    assert any(not torch.equal(*both) for both in drawn)


# -- a round ---------------------------------------------------------------------------------------------------------


def test_a_round_by_hand():
    """One sample (1, 2, 0) of class 0, weights of zero: p = 1/2, so that at rate 2 the update is +-(1, 2, 0)."""
    method = FedPSE(lr=2.0, sparsity=0.5)
    data, ctx = six_weights([[1.0, 2.0, 0.0]], [0])
    client, server = method.join(0, ctx), method.start(2, ctx)
    first, up, model = method.local(client, {"server": method.down(server, 0, ctx)}, data, ctx)
    assert model.tolist() == pytest.approx([1, 2, 0, -1, -2, 0])
    # three of six: both 2s, and of the 1s that of lower index; the other waits
    assert up["update"].dense().tolist() == pytest.approx([1, 2, 0, 0, -2, 0])
    assert first.residual.tolist() == pytest.approx([0, 0, 0, -1, 0, 0])
    assert first.base.tolist() == [0] * 6  # the training itself is not carried over

    ups = {0: sparse(6, {0: 4.0, 1: -2.0, 2: 1.0}), 1: sparse(6, {2: 3.0, 3: 6.0, 4: -5.0})}
    inbox = [
        (k, method.read(server, k, Message(update=u, samples=n), ctx))
        for (k, u), n in zip(ups.items(), (1, 3), strict=True)
    ]
    after = method.merge(server, iter(inbox), ctx)
    # EWA: 4, -2, (1 + 3 * 3) / 4 = 2.5, 6, -5, 0; its largest three: 6, -5, 4
    # client 0: cosine 16 / sqrt(77 * 21), distance 0.301: it has 0 in common, round(0.602) = 1 of 1, 2 and one of 3, 4
    down = method.down(after, 0, ctx)["update"]
    places = down.mask.tolist()
    assert (places[0], sum(places[1:3]), sum(places[3:5]), places[5]) == (True, 1, 1, False)
    assert torch.equal(down.values, torch.tensor([4.0, -2.0, 2.5, 6.0, -5.0, 0.0])[down.mask])  # of the whole average
    assert method.report(None, after, 0, ctx).figures == {
        "distance": pytest.approx(0.5 - 0.5 * 16 / math.sqrt(77 * 21))
    }
    # client 1: cosine 61 / sqrt(77 * 70), distance 0.085: 3 and 4 in common, round(0.085) = 0 of its own
    down = method.down(after, 1, ctx)["update"]
    assert down.dense().tolist() == [4, 0, 0, 6, -5, 0]
    # the next round begins at the base plus what came
    assert method.personal(first, {"server": method.down(after, 1, ctx)}, data, ctx).tolist() == [4, 0, 0, 6, -5, 0]

    # from a base that came down as (1, 0, 0, 1, 0, 0) the logits are equal again: the same update, plus the residual
    equal = Message(update=sparse(6, {0: 1.0, 1: 0.0, 3: 1.0}))
    second, up, model = method.local(first, {"server": equal}, data, ctx)
    assert model.tolist() == pytest.approx([2, 2, 0, 0, -2, 0])
    assert second.base.tolist() == [1, 0, 0, 1, 0, 0]
    assert up["update"].dense().tolist() == pytest.approx([0, 2, 0, -2, -2, 0])  # 1, 2, 0, -1 - 1, -2, 0
    assert second.residual.tolist() == pytest.approx([1, 0, 0, 0, 0, 0])


def merged(how: FedPSE, fleet: int = 2) -> Server:
    """What the server of the round by hand comes to."""
    _, ctx = six_weights([[1.0, 2.0, 0.0]], [0])
    server = how.start(fleet, ctx)
    none = torch.zeros(0)
    first = (sparse(6, {0: 4.0, 1: -2.0, 2: 1.0}), 1, none)
    second = (sparse(6, {2: 3.0, 3: 6.0, 4: -5.0}), 3, none)
    return how.merge(server, iter(enumerate((first, second))), ctx)


NUMBERS = st.sampled_from([0.0, 0.0, 1.0, -1.0, 2.0, 1e-3])


@settings(deadline=None)
@given(st.data(), st.floats(0, 1, exclude_max=True), st.sampled_from(["layer", "model"]), st.booleans())
def test_every_message_holds_its_number(data, sparsity, each, ewa):
    """Up and down, whatever the updates: ties, zeros, layers of one weight, nothing in common."""
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    layout, method = layers(*sizes), FedPSE(sparsity=sparsity, scope=each, elementwise=ewa)
    ctx = Ctx(0, 3, SimpleNamespace(layout=layout), torch.zeros(layout.dim), Rng(1, "merge"), Rng(1, "common"))
    server, inbox = method.start(3, ctx), []
    for k in range(3):
        update = torch.tensor(data.draw(st.lists(NUMBERS, min_size=layout.dim, max_size=layout.dim)))
        message = Message(update=upstream(layout, update, sparsity, each)[0], samples=k + 1)
        inbox.append((k, method.read(server, k, message, ctx)))
    after = method.merge(server, iter(inbox), ctx)
    for k in range(3):
        down = method.down(after, k, ctx)["update"]
        assert miscount(layout, down.mask, sparsity, each) == ""
        assert torch.isfinite(down.values).all()
        assert 0 <= after.distances[k] <= 1


def test_without_each_of_its_steps():
    """Without EWA the sums 4, -2, 10, 18, -15, 0 are divided by 4; without DPS all receive the largest three."""
    plain = merged(FedPSE(sparsity=0.5, elementwise=False, personalise=False))
    for k in (0, 1):
        assert plain.pending[k].sparse().dense().tolist() == [0, 0, 2.5, 4.5, -3.75, 0]
    shared = merged(FedPSE(sparsity=0.5, personalise=False))
    for k in (0, 1):
        assert shared.pending[k].sparse().dense().tolist() == [4, 0, 0, 6, -5, 0]
    assert shared.distances == merged(FedPSE(sparsity=0.5)).distances  # they are told all the same


def test_one_client_gets_its_own_update_back():
    method = FedPSE(lr=2.0, sparsity=0.5)
    data, ctx = six_weights([[1.0, 2.0, 0.0]], [0])
    server = method.start(1, ctx)
    _, up, _ = method.local(method.join(0, ctx), {"server": Message()}, data, ctx)
    after = method.merge(server, iter([(0, method.read(server, 0, up, ctx))]), ctx)
    assert method.down(after, 0, ctx)["update"] == up["update"]
    assert after.distances[0] == pytest.approx(0, abs=1e-9)


def test_clients_with_links_of_their_own(tmp_path):
    """Each sends and receives by its own p: of 4,096, 64, 640 and 10 entries."""
    sparsities = [0.0, 0.5, 0.9, 0.99, 0.9, 0.5]
    r = recipe("fedpse", method={"sparsity": sparsities}, fleet={"per_round": 6}, rounds=2)
    done = run(r, tmp_path / "run")
    rows = [row for row in done.rows("clients") if row["round"] == 2]
    counts = [sum(masks.kept(n, p) for n in (4096, 64, 640, 10)) for p in sparsities]
    assert counts[:4] == [4810, 2405, 481, 41 + 1 + 6 + 1]
    assert [row["paper_up"] // 4 for row in rows] == [row["paper_down"] // 4 for row in rows] == counts
    for method in ({"sparsity": {"low": 0.0, "high": 0.5}}, {"sparsity": {"values": [0.0, 0.5], "weights": [1, 3]}}):
        how = recipe("fedpse", method=method).method
        device, _ = prepare(r)
        drawn = [how.sparsity_of(k, device.ctx(0)) for k in range(200)]
        assert 0 <= min(drawn) < max(drawn) <= 0.5
        assert abs(sum(drawn) / 200 - (0.25 if "low" in method["sparsity"] else 0.375)) < 0.04


# -- FedAvg ----------------------------------------------------------------------------------------------------------


def test_sparsity_zero_is_fedavg_on_updates():
    """To the bit: everybody's base is one model, moved by the mean of the updates by samples. Three rounds."""
    device, fleet = prepare(recipe("fedpse", method={"sparsity": 0.0}, fleet={"per_round": 6}))
    method, store, theta = device.method, Store(), device.theta0
    server = method.start(6, device.ctx(0, "start"))
    for t in range(3):
        mean = Mean(device.task.layout.dim)
        for k in range(6):
            trained = train(method, theta, fleet.local(k).train, device.ctx(t, "local", t, k))
            mean.add(trained - theta, len(fleet.local(k)))
        theta = theta + mean.value()
        server, done = star(
            method, LocalEngine(device), store, server, t, list(range(6)), device.ctx(t, "merge", t), ()
        )
        assert not done.left_out
        for k in range(6):
            client = loads(store.client(k), types_of(method))
            inbox = {"server": method.down(server, k, device.ctx(t))}
            assert torch.equal(method.personal(client, inbox, fleet.local(k), device.ctx(t)), theta)
            assert not client.residual.any()


def test_sparsity_zero_is_fedavg_up_to_rounding(tmp_path):
    """FedAvg here averages weights, which rounds elsewhere than averaging updates does."""
    whole = {"fleet": {"per_round": 6}, "results": {"models": True}, "rounds": 5}
    run(recipe("fedavg", **whole), tmp_path / "a")
    run(recipe("fedpse", method={"sparsity": 0.0}, **whole), tmp_path / "b")
    from safetensors.torch import load_file

    for k in range(6):
        a, b = (load_file(tmp_path / x / "models" / f"client-{k:05d}.safetensors") for x in ("a", "b"))
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=0, atol=2e-6)


# -- taking part -----------------------------------------------------------------------------------------------------


def test_who_is_away_for_ten_rounds_comes_back_as_it_was():
    device, fleet = prepare(recipe("fedpse", rounds=20))
    method, store, engine = device.method, Store(), LocalEngine(device)
    server = method.start(6, device.ctx(0, "start"))

    def go(server, t, chosen):
        return star(method, engine, store, server, t, chosen, device.ctx(t, "merge", t), ())[0]

    server = go(server, 0, [0, 1, 2, 3])
    kept, waiting = store.client(3), method.down(server, 3, device.ctx(0))
    for t in range(1, 11):
        server = go(server, t, [0, 1, 2])
    assert store.client(3) == kept
    assert method.down(server, 3, device.ctx(11)) == waiting
    server = go(server, 11, [0, 3])
    before, after = (loads(x, types_of(method)) for x in (kept, store.client(3)))
    assert torch.equal(after.base, before.base + waiting["update"].dense())
    trained = train(method, after.base, fleet.local(3).train, device.ctx(11, "local", 11, 3))
    update = trained - after.base + before.residual
    _, rest = upstream(device.task.layout, update, 0.9)
    assert torch.equal(after.residual, rest)
    assert method.down(server, 3, device.ctx(12)) != waiting
    late = method.down(server, 4, device.ctx(12))
    assert len(late) == 0  # who never took part has the common initial model


def test_distances_are_in_the_records(tmp_path):
    done = run(recipe("fedpse"), tmp_path / "run")
    told = [row["notes"]["distance"] for row in done.rows("clients") if "notes" in row]
    assert len(told) == 9  # three rounds of three
    assert all(0 < d < 0.5 for d in told)
    rows = list(done.rows("rounds"))
    assert rows[0]["notes"]["distance"] == pytest.approx(sum(told[:3]) / 3)


# -- what travels ----------------------------------------------------------------------------------------------------


def traffic(method, rounds: int = 3) -> tuple[int, int]:
    """Bytes up and down of three clients with ConvNet2 and twenty samples each, after the first round; values alone."""
    torch.manual_seed(0)
    task, theta0 = Task.of(build("convnet2", 10, (1, 28, 28)), torch.zeros(1, 1, 28, 28))
    samples = Samples(torch.rand(60, 1, 28, 28), torch.arange(60) % 10, torch.arange(60))
    ctx = Ctx(0, rounds, task, theta0, Rng(1, "local"), Rng(1, "common"))
    server, clients = method.start(3, ctx), {k: method.join(k, ctx) for k in range(3)}
    wire = values = 0
    for t in range(rounds):
        now, answers = replace(ctx, t=t), []
        for k in clients:
            part = replace(samples, index=torch.arange(20 * k, 20 * k + 20))
            down = method.down(server, k, now)
            clients[k], up, _ = method.local(
                clients[k], {"server": down}, LocalData(part, part), replace(now, rng=Rng(1, t, k))
            )
            answers.append((k, method.read(server, k, up, now)))
            if t > 0:  # only then does every message hold something
                wire += down.nbytes + up.nbytes
                values += down.value_nbytes + up.value_nbytes
        server = method.merge(server, iter(answers), now)
    return wire, values


def test_bytes_of_convnet2_at_nine_tenths():
    """3,482 of 34,826 values both ways, with their places; FedAvg sends all, both ways."""
    dense, dense_values = traffic(FedAvg(lr=0.05, batch=10))
    wire, values = traffic(FedPSE(lr=0.05, batch=10))
    assert dense_values == 2 * 3 * 2 * 4 * 34_826
    assert values == 2 * 3 * 2 * 4 * 3482
    assert values / dense_values == pytest.approx(0.09998, abs=1e-5)
    assert wire / dense <= 0.125
    assert wire / dense == pytest.approx(0.115, abs=2e-3)


# -- Adam, batch norm ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedpse", "fedstc", "fedscr", "fedavg", "fedprox", "fedavg_ft", "subsampling"])
def test_moments_are_kept_if_asked_for(name, tmp_path):
    how = {"optimiser": "adam", "lr": 0.003, "epochs": 2}
    everyone = {"fleet": {"per_round": 6}, "rounds": 2}
    kept = recipe(name, method=how | {"moments": "client"}, **everyone)
    a, b = run(kept, tmp_path / "kept"), run(recipe(name, method=how, **everyone), tmp_path / "anew")
    first, second = (next(iter(x.rows("rounds")))["after"] for x in (a, b))
    assert first == second  # the first round begins anew for both
    assert a.summary["after"] != b.summary["after"]
    _, fleet = prepare(kept)
    for k in range(6):
        value = value_of(tmp_path / "kept", kept.method, k)
        moments = getattr(value, "moments", value)
        assert moments.steps == 2 * 2 * math.ceil(len(fleet.local(k)) / 16)
        assert moments.mean.shape == moments.square.shape == (4810,)


@pytest.mark.parametrize("name", tiered(["fedpse", "fedavg"], short=["fedpse"]))
def test_moments_that_are_kept_are_the_same_in_worker_processes(name, tmp_path):
    for engine in ("local", "pool"):
        run(recipe(name, method={"optimiser": "adam", "moments": "client"}, engine=engine), tmp_path / engine)
    for file in ("clients.jsonl", "rounds.jsonl", "state/client-00002.safetensors"):
        assert (tmp_path / "local" / file).read_bytes() == (tmp_path / "pool" / file).read_bytes()


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        ("pfedme", {"momentum": 0.9, "moments": "client"}, "method.moments: no such field"),
        ("fednova", {"momentum": 0.9, "moments": "client"}, "method.moments: no such field"),
        ("fedspa", {"optimiser": "adam", "moments": "client"}, "method.moments: no such field"),
        ("fedpse", {"moments": "client"}, 'method.moments: "client" is not allowed; expected "round"'),
        (
            "fedpse",
            {"optimiser": "adam", "momentum": 0.9},
            'momentum: 0.9 is not allowed; expected 0 with optimiser = "adam"',
        ),
        (
            "fedpse",
            {"optimiser": "adma"},
            'method.optimiser: "adma" not found; expected "sgd", "adam" or a class of torch.optim',
        ),
        ("fedpse", {"beta2": 1.0}, "method.beta2: 1.0 is not allowed; expected a float in [0, 1)"),
        ("fedpse", {"sparsity": 1.0}, "method.sparsity: 1.0 is not allowed; expected a float in [0, 1)"),
        ("fedpse", {"sparsity": -0.1}, "method.sparsity: -0.1 is not allowed; expected a float in [0, 1)"),
        ("fedpse", {"sparsity": [0.5, 1.0]}, "method.sparsity[1]: 1.0 is not allowed; expected a float in [0, 1)"),
        (
            "fedpse",
            {"sparsity": {"low": 0.9, "high": 0.5}},
            "method.sparsity.low: 0.9 is not allowed; expected a float <= high = 0.5",
        ),
        (
            "fedpse",
            {"sparsity": {"low": 0.5, "high": 1.0}},
            "method.sparsity.high: 1.0 is not allowed; expected a float in [0, 1)",
        ),
        (
            "fedpse",
            {"sparsity": {"values": []}},
            "method.sparsity.values: [] is not allowed; expected at least one value",
        ),
        ("fedpse", {"scope": "filter"}, 'method.scope: "filter" is not allowed; expected one of "layer", "model"'),
        (
            "fedpse",
            {"correlation": "cosin"},
            'method.correlation: "cosin" not found; expected cosine, pearson, signs or package.module:name',
        ),
        (
            "fedpse",
            {"correlation": "nowhere:f"},
            'method.correlation: module "nowhere" cannot be imported: it is neither installed nor in the current',
        ),
        ("fedstc", {"sparsity": 1.0}, "method.sparsity: 1.0 is not allowed; expected a float in [0, 1)"),
        ("fedscr", {"sparsity": -1.0}, "method.sparsity: -1.0 is not allowed; expected a float in [0, 1)"),
        ("fedscr", {"threshold": 1.5}, "method.threshold: 1.5 is not allowed; expected a float in [0, 1]"),
    ],
)
def test_what_is_not_allowed_is_told(name, how, said):
    with pytest.raises(RecipeError) as error:
        recipe(name, method=how)
    assert said in str(error.value)


def test_a_list_that_does_not_fit_the_fleet_is_told_before_anything_is_written(tmp_path):
    with pytest.raises(RecipeError, match=r"method\.sparsity: a list of 2 is not allowed; expected 6 values"):
        run(recipe("fedpse", method={"sparsity": [0.5, 0.9]}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self, classes, shape):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(64)
        self.head = torch.nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.norm(x.flatten(1)))

def halves(a, b):
    return 0.0

def wild(a, b):
    return 3.0

def opposed(a, b):
    return -1.0

def same(a, b):
    return 1.0
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "mypse.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("mypse", None)


@pytest.mark.parametrize("name", ["fedpse", "fedstc", "fedscr"])
def test_running_statistics_of_batch_norm(name, own, tmp_path):
    """FedPSE's clients keep their own, or send them whole; where the model is shared, so are they."""
    net = {"model": {"name": "mypse:Net"}, "fleet": {"per_round": 6}, "results": {"models": True}}
    from safetensors.torch import load_file

    def means(path):
        return [load_file(path / "models" / f"client-{k:05d}.safetensors")["norm.running_mean"] for k in range(6)]

    r = recipe(name, **net)
    done = run(r, tmp_path / "run")
    found = means(tmp_path / "run")
    shared = all(torch.equal(found[0], other) for other in found)
    if name != "fedpse":
        assert shared
        assert done.summary["total"]["paper_up"] > 3 * 6 * 4 * 128
        return
    assert not shared
    for k in range(6):
        assert torch.equal(found[k], value_of(tmp_path / "run", r.method, k).base[-128:-64])
    averaged = run(recipe(name, method={"running": "averaged"}, **net), tmp_path / "averaged")
    both = averaged.summary["total"], done.summary["total"]
    assert both[0]["paper_up"] - both[1]["paper_up"] == 3 * 6 * 4 * 128
    assert both[0]["paper_down"] - both[1]["paper_down"] == 2 * 6 * 4 * 128  # not in the first round
    found = means(tmp_path / "averaged")
    assert all(torch.equal(found[0], other) for other in found)


@pytest.mark.parametrize("name", ["fedpse", "fedstc", "fedscr"])
def test_running_statistics_are_averaged_by_samples(name, own):
    """Two clients with 1 and 3 samples by their word: a quarter of one's, three quarters of the other's."""
    more = {"running": "averaged"} if name == "fedpse" else {}
    device, fleet = prepare(recipe(name, model={"name": "mypse:Net"}, method=more))
    method, ctx, n = device.method, device.ctx(0, "merge", 0), device.task.layout.params
    server, inbox, theirs = method.start(6, ctx), [], []
    for k, samples in enumerate((1, 3)):
        now = device.ctx(0, "local", 0, k)
        _, message, model = method.local(method.join(k, now), {"server": Message()}, fleet.local(k), now)
        theirs.append(model[n:].double())
        inbox.append((k, method.read(server, k, Message(**{**message, "samples": samples}), ctx)))
    after = method.merge(server, iter(inbox), ctx)
    want = ((theirs[0] + 3 * theirs[1]) / 4).float()
    assert not torch.equal(theirs[0], theirs[1])
    torch.testing.assert_close(method.down(after, 0, ctx)["running"].values, want)
    got = method.personal(method.join(0, ctx), {"server": method.down(after, 0, ctx)}, fleet.local(0), ctx)
    torch.testing.assert_close(got[n:], want)


# -- IMDB ------------------------------------------------------------------------------------------------------------


def reviews(**more) -> dict:
    data = {"source": "imdb", "partition": "lambda", "split": "same", "train_share": 1.0, "validation_share": 0.0}
    return {"data": data | more, "model": {"name": "imdb"}, "fleet": {"per_round": None}}


def test_imdb_end_to_end_on_a_few_reviews(tmp_path):
    """Three reviews to learn from and two to test, labels sorted among two clients: 5 words of 16 numbers, 17 more."""
    official.npz(tmp_path / "imdb" / "imdb_tokens.npz", official.imdb_arrays())
    few = reviews(clients=2, noniid=1.0, vocabulary=30, length=4, min_samples=1, sample_share=1.0)
    r = recipe("fedpse", method={"optimiser": "adam", "moments": "client"}, **few)
    done = run(r, tmp_path / "run", data_dir=tmp_path)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["parameters"] == 30 * 16 + 16 + 1
    assert done.summary["total"]["paper_up"] == 3 * 2 * 4 * (48 + 2 + 1)
    assert done.summary["after"]["clients"] == 2


@pytest.mark.slow
def test_imdb_is_learnt(sparsona_data):
    few = reviews(clients=2, noniid=1.0, sample_share=0.2)
    how = {"optimiser": "adam", "moments": "client", "lr": 0.01, "batch": 64}
    try:
        done = run(recipe("fedpse", method=how, rounds=4, **few))
    except DataError as error:
        pytest.skip(str(error))
    assert done.summary["after"]["accuracy"] > 0.95  # one label each
    mixed = run(recipe("fedpse", method=how, rounds=20, **reviews(clients=2, noniid=0.0, sample_share=0.4)))
    assert mixed.summary["before"]["accuracy"] > 0.8


# -- correlations ----------------------------------------------------------------------------------------------------


def test_a_correlation_of_your_own(own, tmp_path):
    """One that finds nothing alike: halves of what the two do not have in common."""
    run(recipe("fedpse", method={"correlation": "mypse:halves"}), tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "clients.jsonl").read_text().splitlines()]
    assert {row["notes"]["distance"] for row in rows if "notes" in row} == {0.5}
    with pytest.raises(ValueError, match=r"correlation: wild returned 3\.0; expected a float in \[-1, 1\]"):
        run(recipe("fedpse", method={"correlation": "mypse:wild"}))


def test_a_correlation_of_your_own_decides_in_a_merge(own):
    """By the round by hand: opposed, each client gets the average at its own places; alike, at the server's."""
    apart = merged(FedPSE(sparsity=0.5, correlation="mypse:opposed")).pending
    assert [apart[k].sparse().dense().tolist() for k in (0, 1)] == [[4, -2, 2.5, 0, 0, 0], [0, 0, 2.5, 6, -5, 0]]
    alike = merged(FedPSE(sparsity=0.5, correlation="mypse:same")).pending
    assert [alike[k].sparse().dense().tolist() for k in (0, 1)] == [[4, 0, 0, 6, -5, 0]] * 2


def test_other_correlations_find_other_distances():
    """Updates of the round by hand: centred, and by signs, where 1 of 5 entries agrees and 2 of 4."""
    a, b = (merged(FedPSE(sparsity=0.5, correlation=name)).distances for name in ("signs", "pearson"))
    assert (a[0], a[1]) == (pytest.approx(0.5 - 0.5 / 5), pytest.approx(0.5 - 0.5 * 2 / 4))
    # means 5/6 and 1/2: (16 - 6 * 5/12) / sqrt((77 - 6 * 25/36) (21 - 6/4))
    assert b[0] == pytest.approx(0.5 - 0.5 * 13.5 / math.sqrt((77 - 25 / 6) * 19.5))


# -- what goes wrong -------------------------------------------------------------------------------------------------


def one_less(message: Message) -> Sparse:
    update = message["update"]
    return Sparse.of(update.dense(), masks.top(update.mask.float(), len(update.values) - 1))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: Message(samples=3), "part 'update' is NoneType, not Sparse"),
        (lambda m: Message(update=sparse(6, {0: 1.0}), samples=3), "is of 6 entries of torch.float32, not 4810"),
        (lambda m: Message(update=one_less(m), samples=3), "the update holds 0 of 10 entries, not 1"),
        (lambda m: Message(update=m["update"], samples=0), "part 'samples' is 0"),
        (
            lambda m: Message(update=Sparse(m["update"].mask, m["update"].values.half()), samples=3),
            "of torch.float16, not 4810 of torch.float32",
        ),
        (lambda m: Message(update=Sparse(m["update"].mask, m["update"].values * math.nan), samples=3), "NaN or Inf"),
    ],
)
def test_an_answer_that_does_not_fit_leaves_its_client_out(change, why):
    """The round ends as if that client had not been there, and says who it was."""
    device, _ = prepare(recipe("fedpse"))
    method, ctx, store = device.method, device.ctx(0, "merge", 0), Store()
    server = method.start(6, ctx)
    bad, done = star(method, Meddler(device, change), store, server, 0, [0, 3, 5], ctx, ())
    good, _ = star(method, LocalEngine(device), Store(), server, 0, [0, 5], ctx, ())
    assert list(done.left_out) == [3]
    assert why in done.left_out[3]
    assert sorted(bad.pending) == [0, 5]
    for k in (0, 5):
        assert bad.pending[k].sparse() == good.pending[k].sparse()
    assert store.client(3) is None


@pytest.mark.parametrize("name", ["fedpse", "fedstc", "fedscr"])
def test_who_diverges_is_left_out_and_the_run_goes_on(name, tmp_path, monkeypatch):
    """Client 2 trains to NaN in the second round, and stays as it was; in the third it is back."""
    r = recipe(name, fleet={"per_round": 6})
    whole = type(r.method).local

    def local(self, client, inbox, data, ctx):
        if ctx.rng.key[-2:] == (1, 2):
            self = replace(self, lr=1e38, batch=1, epochs=3)
        return whole(self, client, inbox, data, ctx)

    monkeypatch.setattr(type(r.method), "local", local)
    rows = list(run(r, tmp_path / "run").rows("rounds"))
    assert [row["left_out"] for row in rows] == [[], [2], []]
    run(replace(r, rounds=1), tmp_path / "one")
    run(replace(r, rounds=2), tmp_path / "two")
    state = [(tmp_path / path / "state" / "client-00002.safetensors").read_bytes() for path in ("one", "two")]
    assert state[0] == state[1]
    assert rows[1]["why_left_out"] == {"2": "NaN or Inf"}
    assert rows[2]["after"]["clients"] == 6
    assert math.isfinite(rows[2]["after"]["loss"])


@pytest.mark.parametrize("name", ["fedpse", "fedstc", "fedscr"])
def test_an_update_of_nothing(name):
    """A client whose training changes nothing sends zeros, which move nobody, and receives what others found."""
    device, fleet = prepare(recipe(name))
    method, ctx = device.method, device.ctx(0, "merge", 0)
    server = method.start(6, ctx)
    still = replace(method, lr=1e-45)
    client, silent, model = still.local(method.join(0, ctx), {"server": Message()}, fleet.local(0), ctx)
    assert torch.equal(model, device.theta0)
    assert not client.residual.any()
    _, other, _ = method.local(method.join(1, ctx), {"server": Message()}, fleet.local(1), ctx)
    both = method.merge(server, iter([(k, method.read(server, k, m, ctx)) for k, m in enumerate((silent, other))]), ctx)
    moved = method.personal(client, {"server": method.down(both, 0, ctx)}, fleet.local(0), ctx)
    assert torch.isfinite(moved).all()
    assert not torch.equal(moved, device.theta0)
    alone = method.merge(server, iter([(0, method.read(server, 0, silent, ctx))]), ctx)
    assert torch.equal(
        method.personal(client, {"server": method.down(alone, 0, ctx)}, fleet.local(0), ctx), device.theta0
    )
    if name == "fedpse":  # the average is that of the other alone, but in tensors that travel whole
        got = both.pending[1].sparse()
        assert torch.equal(got.dense(), other["update"].dense())
        assert alone.distances[0] == 0.5


@pytest.mark.parametrize(("size", "sparsity"), [(4, 1.0), (4, -0.1), (3, 0.5), (5, math.nan)])
@pytest.mark.parametrize("each", ["layer", "model"])
def test_what_upstream_cannot_take_is_told(size, sparsity, each):
    with pytest.raises(
        ValueError, match=rf"vec, sparsity: \({size},\), {sparsity} are not allowed; expected a vector of 4 entries"
    ):
        upstream(layers(1, 3), torch.ones(size), sparsity, each)


def test_a_layer_of_one_weight_always_travels():
    layout = layers(1, 20)
    sent, residual = upstream(layout, torch.arange(21.0), 0.99)
    assert sent.mask.nonzero().flatten().tolist() == [0, 20]
    assert residual[0] == 0


def test_what_the_server_keeps_is_packed():
    kept = PackedSparse.of_sparse(sparse(20, {3: 1.0, 19: -2.0}))
    assert kept.bits.numel() == 3
    assert kept.sparse() == sparse(20, {3: 1.0, 19: -2.0})


def test_method_is_usable_in_pieces():
    """UPS, EWA and DPS by hand give what a server's merge gives."""
    layout, ups = layers(6), [sparse(6, {0: 4.0, 1: -2.0, 2: 1.0}), sparse(6, {2: 3.0, 3: 6.0, 4: -5.0})]
    average = elementwise_mean(layout, zip(ups, (1, 3), strict=True))
    top, _ = upstream(layout, average, 0.5)
    _, ctx = six_weights([[1.0, 2.0, 0.0]], [0])
    for k, pending in merged(FedPSE(sparsity=0.5)).pending.items():
        mask = downstream(layout, top, ups[k], ctx.rng("down", k), "layer", cosine)
        assert pending.sparse() == Sparse.of(average, mask)
