"""BEER against its matrices, and its compressor."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from small import recipe
from sparsona.core.rng import Rng
from sparsona.core.topology import Topology
from sparsona.core.wire import Message, encode
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import peers
from sparsona.engines.store import Store
from sparsona.engines.values import loads, types_of
from sparsona.experiment.recipe import RecipeError
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.methods.beer import Beer, quantise


def test_quantised_on_average_right_but_for_the_contraction():
    x = torch.tensor([3.0, -4.0, 0.0, 0.5])
    norm, levels = float(x.norm()), 4
    tau = 1 + min(4 / 16, 2 / 4)
    draws = torch.stack([quantise(x, 2, Rng(i)).values for i in range(4000)])
    # level s |x_i| / |x| is 2.38, 3.18 (cut off at 3), 0, 0.4, rounded up or down at random
    want = norm / (levels * tau) * torch.tensor([levels * 3 / norm, -3.0, 0.0, levels * 0.5 / norm])
    assert torch.allclose(draws.mean(0), want, atol=0.05)
    steps = norm / (levels * tau)
    assert torch.allclose(draws / steps, (draws / steps).round(), atol=1e-4)
    assert quantise(torch.zeros(3), 8, Rng(1)).values.tolist() == [0, 0, 0]


def test_steps_bring_the_surrogate_nearer():
    """The compressor is a contraction: h follows x."""
    x, h = torch.randn(500, generator=torch.Generator().manual_seed(1)), torch.zeros(500)
    far = [float((x - h).norm())]
    for i in range(20):
        h = h + quantise(x - h, 4, Rng(i)).values
        far.append(float((x - h).norm()))
    assert all(b < a for a, b in pairwise(far))
    assert far[-1] < 0.05 * far[0]


def test_three_rounds_are_those_of_the_matrices():
    """X, H, V, G with a column per client; the steps that travelled are taken from the clients themselves."""
    r = recipe("beer", method={"tune": False, "gamma": 0.3, "step": 0.1}, topology={"name": "ring", "max_wait": 0})
    device, fleet = prepare(r)
    method: Beer = r.method
    store, engine = Store(), LocalEngine(device)
    for k in range(6):
        store.put_mail(k, -1, encode(Message()), 0)
    reads = Topology(name="ring").reads(6, 0, Rng(1))
    mix = torch.zeros(6, 6, dtype=torch.float64)
    for k, js in reads.items():
        mix[[k, *js], k] = 1 / 3
    x = device.theta0.double().repeat(6, 1).T
    h, g, v, before = x.clone(), torch.zeros_like(x), None, None

    def gradients(at, t):
        def one(k):
            batch = fleet.local(k).train.batch(device.ctx(t, "local", t, k).rng("gradient"), method.batch)
            return device.task.gradient_at(at[:, k].float(), batch).double()

        return torch.stack([one(k) for k in range(6)], dim=1)

    for t in range(3):
        peers(engine, store, t, Topology(name="ring").plan(6, t, 3, Rng(1)), {}, 6, ())
        clients = [loads(store.client(k), types_of(method)) for k in range(6)]
        if v is None:
            v = before = gradients(x, t)
        x = x + method.gamma * (h @ mix - h) - method.step * v
        now = gradients(x, t)
        v = v + method.gamma * (g @ mix - g) + now - before
        before = now
        for k, client in enumerate(clients):
            assert torch.allclose(client.x.double(), x[:, k], atol=1e-5)
            assert torch.allclose(client.v.double(), v[:, k], atol=1e-5)
        h, g = (torch.stack([getattr(c, n).double() for c in clients], dim=1) for n in ("h", "g"))


def test_a_sign_and_a_byte_each_for_two_vectors():
    total = run(recipe("beer", rounds=2, topology={"name": "ring", "max_wait": 0})).summary["total"]
    d = 4810
    each = 8 + -(-d // 8) + d  # a scale, signs, levels
    assert total["paper_up"] == total["paper_down"] == 6 * 2 * 2 * each  # the first round has nothing to send yet
    whole = 7 + 2 * (1 + 1 + 5 + 13 + each - 8) + (1 + 5 + 5 + 8) + 4  # two vectors, and the round
    assert total["up"] == 6 * 2 * (Message().nbytes + whole)


@pytest.mark.parametrize(
    ("topology", "said"),
    [
        ({"name": "mutual", "fixed": False, "max_wait": 0}, "topology.fixed"),
        ({"name": "random", "fixed": True, "max_wait": 0}, 'topology.name: "random" is not allowed; expected "mutual"'),
        ({"name": "ring", "max_wait": 1}, "topology.max_wait"),
        ({"name": "ring", "max_wait": 0, "absent": 0.1}, "topology.absent"),
    ],
)
def test_it_needs_a_graph_that_stays(topology, said):
    with pytest.raises(RecipeError, match=f"^{said}"):
        recipe("beer", topology=topology)


def test_a_fixed_mutual_graph_will_do():
    done = run(recipe("beer", topology={"name": "mutual", "neighbours": 2, "fixed": True, "max_wait": 0}))
    assert done.summary["accuracy"] is not None
    assert replace(recipe("beer").method, bits=4).bits == 4
