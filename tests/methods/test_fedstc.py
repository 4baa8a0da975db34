"""FedSTC: a round by hand, one model on all devices, bytes."""

import math
from dataclasses import replace

import pytest
import torch

from methods.fedpse.test_fedpse import Meddler, bits, layers, six_weights, traffic
from small import recipe
from sparsona.core.rng import Rng
from sparsona.core.topology import cohort
from sparsona.core.wire import Bits, Message, Quantised, Values, encode
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import star
from sparsona.engines.store import Store
from sparsona.engines.values import loads, types_of
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.methods.fedavg import FedAvg
from sparsona.methods.fedstc import FedSTC, of_ternary, ternary


def test_ternary_by_hand():
    """Signs, and each tensor's mean magnitude: (1 + 2 + 3) / 3, nothing, 5."""
    layout, x = layers(4, 2, 2), torch.tensor([1.0, -2.0, 9.0, 3.0, 4.0, 4.0, -5.0, 1.0])
    mask = bits(8, 0, 1, 3, 6)
    signs, sizes = ternary(layout, x, mask)
    assert (signs.negative.tolist(), sizes.tolist()) == ([False, True, False, True], [2.0, 0.0, 5.0])
    assert of_ternary(layout, signs, sizes, mask).tolist() == [2, -2, 2, -5]
    assert signs.nbytes == 8 + 1  # a bit each, and the scale


def sent_by(method: FedSTC, values: dict[int, float], samples: int, ctx) -> Message:
    update = torch.zeros(6)
    update[list(values)] = torch.tensor(list(values.values()))
    return Message(**method.compress(ctx.layout, update), samples=samples)


def test_a_round_by_hand():
    """The update (1, 2, 0, -1, -2, 0) of one sample at rate 2, as in FedPSE's: three of six, at 5/3 each."""
    method = FedSTC(lr=2.0, sparsity=0.5)
    data, ctx = six_weights([[1.0, 2.0, 0.0]], [0])
    server = method.start(2, ctx)
    client, first, model = method.local(method.join(0, ctx), {"server": method.down(server, 0, ctx)}, data, ctx)
    assert model.tolist() == pytest.approx([1, 2, 0, -1, -2, 0])
    assert method.expand(ctx.layout, first).dense().tolist() == pytest.approx([5 / 3, 5 / 3, 0, 0, -5 / 3, 0])
    assert client.residual.tolist() == pytest.approx([-2 / 3, 1 / 3, 0, -1, -1 / 3, 0])
    second = sent_by(method, {3: -1.0, 4: -1.0, 5: 1.0}, 1, ctx)
    inbox = [(k, method.read(server, k, m, ctx)) for k, m in enumerate((first, second))]
    after = method.merge(server, iter(inbox), ctx)
    # the mean 5/6, 5/6, 0, -1/2, -4/3, 1/2: three of six again, at (4/3 + 5/6 + 5/6) / 3 = 1
    assert after.theta.tolist() == pytest.approx([1, 1, 0, 0, -1, 0])
    assert after.residual.tolist() == pytest.approx([-1 / 6, -1 / 6, 0, -1 / 2, -1 / 3, 1 / 2])
    news = method.down(after, 0, ctx)
    assert (set(news), news["sizes"].values.tolist()) == ({"places", "signs", "sizes"}, pytest.approx([1.0]))
    assert torch.equal(method.personal(client, {"server": news}, data, ctx), after.theta)
    # what neither end could say is said in the next round: from the mean of nothing the residual alone is compressed
    silent = sent_by(method, {}, 1, ctx)
    later = method.merge(after, iter([(1, method.read(after, 1, silent, ctx))]), ctx)
    # 1/2 at 3 and 5, 1/3 at 4: at 4/9 each
    assert later.theta.tolist() == pytest.approx([1, 1, 0, -4 / 9, -1 - 4 / 9, 4 / 9])
    # who was not there is told the weights that changed since, from the beginning for one that never was
    assert set(method.down(later, 1, ctx)) == {"places", "signs", "sizes"}
    assert method.down(later, 0, ctx)["weights"].mask.tolist() == [1, 1, 0, 1, 1, 1]  # it has had nothing yet
    assert torch.equal(method.personal(client, {"server": method.down(later, 0, ctx)}, data, ctx), later.theta)
    # one that has version 2, away while client 0 says something twice, is told what moved since, and no more
    there = method.merge(later, iter([(1, method.read(later, 1, silent, ctx))]), ctx)
    away = there
    for _ in range(2):
        away = method.merge(away, iter([(0, method.read(away, 0, sent_by(method, {0: 6.0}, 1, ctx), ctx))]), ctx)
    assert away.seen[1] == there.seen[1] == 2
    assert method.down(away, 1, ctx)["weights"].mask.tolist() == (away.moved > 2).tolist()
    assert not bool((away.moved > 2).all())


def test_the_mean_is_by_samples_or_not():
    for weighting, want in (("samples", [3.0, 1.0]), ("uniform", [2.0, 2.0])):
        method = FedSTC(sparsity=0.0, weighting=weighting)
        _, ctx = six_weights([[1.0, 2.0, 0.0]], [0])
        server = method.start(2, ctx)
        messages = [sent_by(method, {0: 4.0}, 3, ctx), sent_by(method, {1: 4.0}, 1, ctx)]
        after = method.merge(server, iter([(k, method.read(server, k, m, ctx)) for k, m in enumerate(messages)]), ctx)
        assert (after.theta + after.residual)[:2].tolist() == want


def test_zeros_stay_zero_and_counts_round_as_asked():
    layout = layers(11)
    update = torch.zeros(11)
    update[7] = -3.0
    method = FedSTC(sparsity=0.5)
    parts = method.compress(layout, update)
    assert parts["places"].mask.nonzero().flatten().tolist() == [7]
    assert parts["sizes"].values.tolist() == [3.0]  # the mean of what is sent, not of the five that could be
    assert FedSTC(sparsity=0.9).counts(layout) == [1]  # 11 - round(9.9)
    assert FedSTC(sparsity=0.9, rounding="up").counts(layout) == [2]  # ceil(1.1)


@pytest.mark.parametrize("name", ["fedstc", "fedscr"])
def test_all_devices_have_the_servers_model_to_the_bit(name):
    """Ten rounds of three of six: whether it gets the news or what changed meanwhile, a client ends at that model."""
    device, fleet = prepare(recipe(name, rounds=10))
    method, store, server = device.method, Store(), device.method.start(6, device.ctx(0, "start"))
    kinds = set()
    for t in range(10):
        for k in range(6):
            value = store.client(k)
            client = method.join(k, device.ctx(0)) if value is None else loads(value, types_of(method))
            message = method.down(server, k, device.ctx(t))
            kinds.add(tuple(message))
            got = method.personal(client, {"server": message}, fleet.local(k), device.ctx(t))
            assert torch.equal(got, server.theta)
        chosen = cohort(6, 3, Rng(7, "cohort", t))
        server, _ = star(method, LocalEngine(device), store, server, t, chosen, device.ctx(t, "merge", t), ())
    assert len(kinds) == 3  # nothing, the news, weights


def test_nothing_is_lost_between_rounds():
    """One client: all it ever sent and its residual are all its updates; so for the server."""
    method = FedSTC(sparsity=0.9, lr=0.1, batch=16)
    device, fleet = prepare(recipe("fedstc"))
    ctx = device.ctx(0, "local", 0, 0)
    client, server, total = method.join(0, ctx), method.start(1, ctx), torch.zeros(device.task.layout.dim)
    sent = torch.zeros_like(total)
    for t in range(4):
        now = device.ctx(t, "local", t, 0)
        client, message, model = method.local(client, {"server": method.down(server, 0, now)}, fleet.local(0), now)
        total += model - client.theta
        answer = method.read(server, 0, message, now)
        sent += answer[0].dense()
        server = method.merge(server, iter([(0, answer)]), now)
    torch.testing.assert_close(sent + client.residual, total, rtol=0, atol=1e-5)
    torch.testing.assert_close(server.theta - device.theta0 + server.residual, sent, rtol=0, atol=1e-5)
    assert float(client.residual.norm()) > 0.01


def test_bytes_of_convnet2_at_nine_tenths():
    """A place and a sign for each of 3,482 of 34,826 values, and six magnitudes."""
    dense, dense_values = traffic(FedAvg(lr=0.05, batch=10))
    wire, values = traffic(FedSTC(lr=0.05, batch=10))
    assert wire / dense <= 0.025
    assert wire / dense == pytest.approx(0.0181, abs=1e-3)
    assert values / dense_values == pytest.approx((math.ceil(3482 / 8) + 8 + 6 * 4) / (4 * 34_826), abs=1e-4)


def test_a_message_to_the_byte():
    """16 entries, four of them: a bitmap of 2 bytes, a byte of signs, one magnitude."""
    method, layout = FedSTC(sparsity=0.75), layers(16)
    message = Message(**method.compress(layout, torch.tensor([9.0, 8.0, -8.0, 7.0] + [0.5] * 12)))
    places, signs, sizes = 1 + 6 + 5 + 5 + 2, 1 + 5 + 5 + 13 + 1, 1 + 5 + 5 + 1 + 4
    assert message.nbytes == len(encode(message)) == 7 + places + signs + sizes + 4
    assert message.value_nbytes == (8 + 1) + 4


def test_what_it_costs_on_digits():
    total = run(recipe("fedstc", rounds=2, fleet={"per_round": 6})).summary["total"]
    each = 8 + math.ceil((410 + 6 + 64 + 1) / 8) + 4 * 4  # 4,096, 64, 640 and 10 entries
    assert total["paper_up"] <= 2 * 6 * each  # tensors with fewer entries than that other than zero send fewer
    assert total["paper_up"] >= 2 * 6 * (each - 8)
    assert total["paper_down"] <= 6 * each


SHORT = torch.zeros(7, dtype=torch.bool)
NONE = Quantised(SHORT[:0], torch.zeros(0, dtype=torch.uint8), 1.0, 0)


def change(message: Message, **parts) -> Message:
    return Message(**{name: parts.get(name, part) for name, part in message.items()})


@pytest.mark.parametrize(
    ("name", "meddle", "why"),
    [
        ("fedstc", lambda m: change(m, places=Bits(SHORT)), "the update is of 7 entries with 0 bits, not 4810 with 0"),
        ("fedstc", lambda m: change(m, signs=NONE), "or not as many signs"),
        ("fedstc", lambda m: change(m, places=Bits(~torch.zeros(4810, dtype=torch.bool))), "holds [4096, 64, 640, 10]"),
        ("fedstc", lambda m: change(m, signs=replace(m["signs"], scale=2.0)), "the update is of 4810 entries"),
        ("fedstc", lambda m: change(m, sizes=Values(torch.zeros(3))), "part 'sizes' holds 3 values"),
        ("fedstc", lambda m: change(m, sizes=Values(torch.full((4,), math.nan))), "NaN or Inf"),
        ("fedstc", lambda m: Message(samples=1), "part 'places' is NoneType, not Bits"),
        ("fedscr", lambda m: change(m, structures=Bits(SHORT)), "7 flags do not fit 202 units"),
        ("fedscr", lambda m: change(m, values=Values(torch.zeros(5))), "part 'values' holds 5 values"),
        ("fedscr", lambda m: change(m, values=Values(m["values"].values * math.inf)), "NaN or Inf"),
        ("fedscr", lambda m: change(m, samples=0), "part 'samples' is 0"),
    ],
)
def test_an_answer_that_does_not_fit_leaves_its_client_out(name, meddle, why):
    device, _ = prepare(recipe(name))
    method, ctx = device.method, device.ctx(0, "merge", 0)
    server, store = method.start(6, ctx), Store()
    bad, done = star(method, Meddler(device, meddle), store, server, 0, [0, 3, 5], ctx, ())
    good, _ = star(method, LocalEngine(device), Store(), server, 0, [0, 5], ctx, ())
    assert list(done.left_out) == [3]
    assert why in done.left_out[3]
    assert torch.equal(bad.theta, good.theta)
    assert sorted(bad.seen) == [0, 5]
    assert store.client(3) is None
