"""FedSCR: structures by hand, the threshold that fits a budget, rounds."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from methods.fedpse.test_fedpse import layers, six_weights, traffic
from small import recipe
from sparsona.core.layout import Layout, Slot
from sparsona.core.wire import Bits, Message, Values
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import star
from sparsona.engines.store import Store
from sparsona.engines.values import loads, types_of
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.methods.fedavg import FedAvg
from sparsona.methods.fedscr import FedSCR, calibrated, scores, spread

MATRIX = Layout((Slot("w", (2, 3), "weight", "", 0, 1),))
CONV = Layout((Slot("w", (2, 3, 1, 2), "weight", "", 0, 1), Slot("b", (2,), "bias", "", 12, 1)))


def test_scores_by_hand():
    """Rows (3, 0, 1) and (0, 0.5, 0): sums 4 and 0.5, columns 3, 0.5 and 1, each by its largest."""
    rows, columns = scores(MATRIX, torch.tensor([3.0, 0.0, -1.0, 0.0, 0.5, 0.0]))
    assert rows.tolist() == [1, 0.125]
    assert columns.tolist() == pytest.approx([1, 1 / 6, 1 / 3])
    for found in scores(MATRIX, torch.zeros(6)):
        assert not found.any()


def test_units_of_a_convolution_are_filters_and_channels():
    """In the vector an input channel's entries lie apart; the bias has no units and is always kept."""
    tensor = torch.zeros(2, 3, 1, 2)
    tensor[0, 1], tensor[1, 2] = 2.0, -1.0
    vec = CONV.flatten({"w": tensor, "b": torch.ones(2)})
    filters, channels = scores(CONV, vec)
    assert (filters.tolist(), channels.tolist()) == ([1, 0.5], [0, 1, 0.5])
    mask = CONV.unflatten(spread(CONV, torch.tensor([1, 0, 0, 1, 1]).bool()))
    assert mask["b"].all()
    assert mask["w"].nonzero()[:, :2].unique(dim=0).tolist() == [[0, 1], [0, 2]]
    assert int(mask["w"].sum()) == 4


@pytest.mark.parametrize(
    ("budget", "bar", "kept"),
    [(6, -1.0, 6), (5, 0.125, 3), (3, 0.125, 3), (2, 1 / 6, 2), (1, 1 / 3, 1), (0, 1 / 3, 1)],
)
def test_the_threshold_that_fits_a_budget(budget, bar, kept):
    """Of the matrix above: all 6 entries, the first row's 3, with its two columns 2, with its largest 1, never none."""
    found = scores(MATRIX, torch.tensor([3.0, 0.0, -1.0, 0.0, 0.5, 0.0]))
    assert calibrated(MATRIX, found, budget) == pytest.approx(bar)
    assert int(spread(MATRIX, torch.cat(found) > calibrated(MATRIX, found, budget)).sum()) == kept


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 14), st.booleans())
def test_as_much_as_fits(seed, budget, ties):
    """By trying every threshold: no lower one keeps so little."""
    vec = torch.randn(14, generator=torch.Generator().manual_seed(seed))
    found = scores(CONV, vec.round() if ties else vec)
    bar = calibrated(CONV, found, budget)

    def held(bar: float) -> int:
        return int(spread(CONV, torch.cat(found) > bar).sum())

    below = [-1.0, *(float(s) for s in torch.cat(found) if s < 1)]
    fits = [b for b in below if held(b) <= budget]
    assert bar == (min(fits) if fits else max(below))


def test_an_update_by_hand():
    """p = 0.5 of six entries is three: the first row of the matrix above; what is left out waits."""
    update = torch.tensor([3.0, 0.0, -1.0, 0.0, 0.5, 0.0])
    parts = FedSCR(sparsity=0.5).compress(MATRIX, update)
    assert parts["structures"].mask.tolist() == [1, 0, 1, 1, 1]
    assert parts["values"].values.tolist() == [3, 0, -1]
    assert FedSCR(sparsity=0.5).expand(MATRIX, Message(**parts)).dense().tolist() == [3, 0, -1, 0, 0, 0]
    fixed = FedSCR(sparsity=0.5, threshold=0.2).compress(MATRIX, update)
    assert fixed["structures"].mask.tolist() == [1, 0, 1, 0, 1]
    assert fixed["values"].values.tolist() == [3, -1]


def test_a_round_by_hand():
    """The update (1, 2, 0), (-1, -2, 0): rows alike, columns 1/2, 1 and 0; three of six allow for one column of 2."""
    method = FedSCR(lr=2.0, sparsity=0.5)
    data, ctx = six_weights([[1.0, 2.0, 0.0]], [0])
    server = method.start(1, ctx)
    client, message, _ = method.local(method.join(0, ctx), {"server": Message()}, data, ctx)
    assert message["values"].values.tolist() == pytest.approx([2, -2])
    assert client.residual.tolist() == pytest.approx([1, 0, 0, -1, 0, 0])
    other = Message(
        structures=Bits(torch.tensor([0, 1, 1, 0, 0]).bool()), values=Values(torch.tensor([8.0])), samples=1
    )
    inbox = [(k, method.read(server, k, m, ctx)) for k, m in enumerate((message, other))]
    # the mean 0, 1, 0, 4, -1, 0: rows 1/5 and 1, columns 1, 2/4 and 0; above 1/5 two entries are left
    after = method.merge(server, iter(inbox), ctx)
    assert after.theta.tolist() == pytest.approx([0, 0, 0, 4, -1, 0])
    assert after.residual.tolist() == pytest.approx([0, 1, 0, 0, 0, 0])
    assert torch.equal(method.personal(client, {"server": method.down(after, 0, ctx)}, data, ctx), after.theta)
    dense = FedSCR(lr=2.0, sparsity=0.5, downlink="dense").merge(server, iter(inbox), ctx)
    assert dense.theta.tolist() == pytest.approx([0, 1, 0, 4, -1, 0])
    assert not dense.residual.any()
    fixed = FedSCR(lr=2.0, downlink="dense", threshold=0.9).merge(server, iter(inbox), ctx)
    assert torch.equal(fixed.theta, dense.theta)  # the threshold is the clients'


def test_a_model_of_vectors_alone_travels_whole():
    layout, method = layers(3, 2), FedSCR(sparsity=0.5)
    parts = method.compress(layout, torch.arange(5.0))
    assert (len(parts["structures"].mask), parts["values"].values.tolist()) == (0, [0, 1, 2, 3, 4])
    assert method.expand(layout, Message(**parts)).dense().tolist() == [0, 1, 2, 3, 4]


def test_sparsity_zero_is_fedavg_on_updates_as_fedpse_is(tmp_path):
    """Everything is kept, at both ends: the same models as FedPSE's, to the bit."""
    models = []
    for name in ("fedscr", "fedpse"):
        device, fleet = prepare(recipe(name, method={"sparsity": 0.0}, fleet={"per_round": 6}))
        method, store, server = device.method, Store(), device.method.start(6, device.ctx(0, "start"))
        for t in range(3):
            server, _ = star(
                method, LocalEngine(device), store, server, t, list(range(6)), device.ctx(t, "merge", t), ()
            )
        client = loads(store.client(4), types_of(method))
        inbox = {"server": method.down(server, 4, device.ctx(3))}
        models.append(method.personal(client, inbox, fleet.local(4), device.ctx(3)))
    assert torch.equal(*models)


def test_bytes_of_convnet2_at_nine_tenths():
    """At most the share that others keep, in values; units take a bit each, so that places cost next to nothing."""
    _, dense_values = traffic(FedAvg(lr=0.05, batch=10))
    wire, values = traffic(FedSCR(lr=0.05, batch=10))
    assert 0.08 < values / dense_values <= 3482 / 34_826
    units = 32 + 1 + 64 + 32 + 10 + 1600
    assert (wire - values) / 12 <= math.ceil(units / 8) + 60  # two rounds of three clients, both ways


def test_it_learns(tmp_path):
    r = recipe("fedscr", rounds=15, data={"sample_share": 1.0}, fleet={"per_round": 6}, method={"epochs": 2})
    done = run(r)
    assert done.summary["before"]["accuracy"] > 0.85
