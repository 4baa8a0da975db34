"""pFedGate's baselines by hand, and where they must coincide with simpler ones."""

import math
from dataclasses import replace

import pytest
import torch

from small import recipe
from sparsona.core.layout import Layout, Slot
from sparsona.core.model import plain
from sparsona.core.training import train
from sparsona.core.wire import Bits, Message, Values, WireError
from sparsona.engines.values import dumps, loads, types_of
from sparsona.experiment.recipe import RecipeError
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.methods.fedavg import FedAvg
from sparsona.methods.fedem import Client as Mixture
from sparsona.methods.fedem import FedEM, MixtureModel
from sparsona.methods.fedmask import Client as Scored
from sparsona.methods.fedmask import FedMask
from sparsona.methods.fedrep import FedRep
from sparsona.methods.heterofl import HeteroFL, leading
from sparsona.methods.lgfedavg import LGFedAvg
from sparsona.methods.perfedavg import PerFedAvg
from sparsona.methods.pfedme import Client, PFedMe
from sparsona.papers.sizes import layout_of


def scene(name="fedavg", **fields):
    device, fleet = prepare(recipe(name, method=fields))
    return device, fleet.local(0), device.ctx(0, "local", 0, 0), {"server": Message(theta=Values(device.theta0))}


def stepped(device, data, rounds, parts=None):
    """The initial model after steps of torch's own SGD that go on, one batch each; all weights at once or in turns."""
    model = plain(device.task, device.theta0).train()
    named = dict(model.named_parameters())
    turns = [list(named)] if parts is None else [[n for n in named if n.startswith(p)] for p in parts]
    ways = [torch.optim.SGD([named[n] for n in names], 0.1, 0.9, weight_decay=0.01) for names in turns]
    x, y = data.train.at(torch.arange(len(data)))
    for _ in range(rounds):
        for way in ways:
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            way.step()
    return device.task.layout.flatten({n: p.detach() for n, p in named.items()})


WHOLE = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "batch": 10_000, "epochs": 1}
KEEPERS = {
    "fedavg": {},
    "fedprox": {"mu": 0.0},
    "local": {},
    "lgfedavg": {"share": "head"},
    "ditto": {"mu": 0.0},
    "heterofl": {"keep": 1.0},
    "fedem": {"models": 1},
    "fedrep": {"head_lr": 0.1},
}


@pytest.mark.parametrize("name", KEEPERS)
def test_momentum_that_is_kept_goes_on_as_in_torch(name):
    """Three rounds of one client, all data in one batch: three steps of one optimiser, here three short trainings."""
    results = {}
    for moments in ("client", "round"):
        device, fleet = prepare(recipe(name, method=WHOLE | KEEPERS[name] | {"moments": moments}))
        method, data, client = device.method, fleet.local(0), device.method.join(0, device.ctx(0, "join", 0))
        server = method.start(6, device.ctx(0, "start"))
        for t in range(3):
            ctx = device.ctx(t, "local", t, 0)
            client = loads(dumps(client), types_of(method))  # as it is stored from round to round
            inbox = {"server": method.down(server, 0, ctx)}
            client, message, model = method.local(client, inbox, data, ctx)
            server = method.merge(server, [(0, method.read(server, 0, message, ctx))], ctx)
        found = [model] if torch.is_tensor(model) else []
        found += [server] if torch.is_tensor(server) and len(server) == ctx.layout.dim else []
        assert found
        results[moments] = found
    parts = [ctx.layout.slots[-1].layer, ctx.layout.slots[0].layer] if name == "fedrep" else None
    want = stepped(device, data, 3, parts)
    for kept, anew in zip(*results.values(), strict=True):
        assert torch.allclose(kept, want, atol=2e-6)
        assert (anew - want).abs().max() > 1e-3


def test_fine_tuning_goes_on_from_the_momentum_that_is_kept():
    device, fleet = prepare(recipe("fedavg_ft", method=WHOLE | {"moments": "client"}))
    data, ctx = fleet.local(0), device.ctx(0, "local", 0, 0)
    inbox = {"server": Message(theta=Values(device.theta0))}
    client, message, _ = device.method.local(None, inbox, data, ctx)
    tuned = device.method.personal(client, {"server": message}, data, ctx)
    assert torch.allclose(tuned, stepped(device, data, 2), atol=1e-6)


def test_leading_channels_by_hand():
    """A quarter of the weights is half of each width; 4 channels of 3 positions each leave the first 2, 6 columns."""
    layout = Layout(
        (
            Slot("c.weight", (4, 1, 1, 1), "weight", "c", 0, 1),
            Slot("c.bias", (4,), "bias", "c", 4, 1),
            Slot("l.weight", (2, 12), "weight", "l", 8, 1, head=True),
            Slot("l.bias", (2,), "bias", "l", 32, 1, head=True),
        )
    )
    mask = layout.unflatten(leading(layout, 0.25))
    assert mask["c.weight"].flatten().tolist() == mask["c.bias"].tolist() == [True, True, False, False]
    assert mask["l.weight"].tolist() == [[True] * 6 + [False] * 6] * 2
    assert mask["l.bias"].all()
    assert leading(layout, 1.0).all()


def test_heterofl_keeps_what_it_says():
    share = leading(layout_of("lenet-cifar", 10, (3, 32, 32)), 0.5).float().mean().item()
    assert share == pytest.approx(0.5, abs=0.02)
    device, *_ = scene("heterofl", keep={"values": [1.0, 0.5], "weights": [1, 9]})  # 0.55 on average
    widths = [device.method.join(k, device.ctx(0, "join", k)).keep for k in range(200)]
    assert sum(w == 1 for w in widths) / 200 == pytest.approx(0.1, abs=0.06)


def test_heterofl_at_full_width_is_fedavg():
    device, data, ctx, inbox = scene("heterofl", keep=1.0)
    _, message, _ = HeteroFL(keep=1.0).local(device.method.join(0, ctx), inbox, data, ctx)
    _, want, _ = FedAvg().local(None, inbox, data, ctx)
    assert torch.equal(message["theta"].values, want["theta"].values)


def test_fedrep_trains_head_and_body_in_turns():
    device, data, ctx, _ = scene("fedrep")
    method = FedRep(head_lr=0.05, head_epochs=2)
    head = ctx.layout.head
    server = method.start(6, ctx)
    client, message, theta = method.local(method.join(0, ctx), {"server": method.down(server, 0, ctx)}, data, ctx)
    first = train(FedAvg(lr=0.05), device.theta0, data.train, ctx, purpose="head", epochs=2, move=head)
    assert torch.equal(client.head, first[head])
    assert torch.equal(first[~head], device.theta0[~head])
    assert torch.equal(message["body"].values, theta[~head])
    assert len(message["body"].values) == ctx.layout.dim - 650
    merged = method.merge(server, [(0, method.read(server, 0, message, ctx))], ctx)
    assert torch.equal(method.personal(client, {"server": method.down(merged, 0, ctx)}, data, ctx), theta)


def test_lgfedavg_sends_what_is_shared():
    device, data, ctx, _ = scene("lgfedavg")
    method, head = LGFedAvg(share="head"), ctx.layout.head
    server = method.start(6, ctx)
    client, message, theta = method.local(method.join(0, ctx), {"server": method.down(server, 0, ctx)}, data, ctx)
    assert torch.equal(message["theta"].values, theta[head])
    assert torch.equal(client.own, theta[~head])
    merged = method.merge(server, [(0, method.read(server, 0, message, ctx))], ctx)
    assert torch.equal(merged.theta[~head], device.theta0[~head])
    with pytest.raises(
        ValueError, match='share: "linear" selects all or none of this model; expected a part of its layers'
    ):
        LGFedAvg().start(6, ctx)


def test_lgfedavg_warms_up_as_fedavg():
    _, data, ctx, inbox = scene("lgfedavg")
    method = LGFedAvg(share="head", warmup=1)
    server = method.start(6, ctx)
    client, message, _ = method.local(method.join(0, ctx), {"server": method.down(server, 0, ctx)}, data, ctx)
    _, want, _ = FedAvg().local(None, inbox, data, ctx)
    assert torch.equal(message["theta"].values, want["theta"].values)
    assert client.own is None
    assert run(recipe("lgfedavg", rounds=3, method={"warmup": 1})).summary["before"]["loss"] < 3


def test_pfedme_without_pull_trains_alone():
    device, data, ctx, inbox = scene()
    own, _, _ = PFedMe(mu=0.0).local(Client(None), inbox, data, ctx)
    assert torch.equal(own.theta, train(FedAvg(), device.theta0, data.train, ctx))


def test_pfedme_by_hand():
    """One batch, one inner step: theta = w - lr_p g, for w does not pull itself; then w moves by eta lambda of it."""
    device, data, ctx, inbox = scene()
    method = PFedMe(variant="original", mu=2.0, inner_steps=1, inner_lr=0.5, lr=0.1, batch=10_000)
    _, message, own = method.local(Client(None), inbox, data, ctx)
    (batch,) = data.train.epochs(ctx.rng("train"), 1, 10_000)
    theta = device.theta0 - 0.5 * device.task.gradient_at(device.theta0, batch)
    assert torch.allclose(own, theta, atol=1e-6)
    want = device.theta0 - 0.1 * 2.0 * (device.theta0 - theta)
    assert torch.allclose(message["theta"].values, want, atol=1e-6)
    half = PFedMe(mix=0.5).merge(device.theta0, [(0, (device.theta0 + 2, 5))], ctx)
    assert torch.allclose(half, device.theta0 + 1)


def test_perfedavg_adapts_at_one_rate_whatever_the_schedule_of_the_other():
    """In the last round the outer rate has fallen to a thousandth; the inner one is what it was."""
    tuned = []
    for how in ({"lr_schedule": "exponential", "lr_decay": 0.1}, {}):
        device, fleet = prepare(recipe("perfedavg", method=how))
        ctx, data = device.ctx(device.rounds - 1, "personal", 0), fleet.local(0)
        tuned.append(device.method.personal(None, {"server": Message(theta=Values(device.theta0))}, data, ctx))
    assert torch.equal(*tuned)
    assert not torch.equal(tuned[0], device.theta0)


def test_perfedavg_adapts_by_plain_steps():
    """As its inner step, which it was trained for: one batch, no momentum, no decay."""
    fields = {"inner_lr": 0.5, "batch": 10_000, "momentum": 0.9, "weight_decay": 0.1}
    device, data, ctx, inbox = scene("perfedavg", **fields)
    own = device.method.personal(None, inbox, data, ctx)
    (batch,) = data.train.epochs(ctx.rng("tune"), 1, 10_000)
    expected = device.theta0 - 0.5 * device.task.gradient_at(device.theta0, batch)
    assert torch.allclose(own, expected, atol=1e-6)
    two = PerFedAvg(**fields | {"tune_epochs": 2}).personal(None, inbox, data, ctx)
    again = expected - 0.5 * device.task.gradient_at(expected, batch)
    assert torch.allclose(two, again, atol=1e-5)


def test_perfedavg_by_hand():
    """One batch serves twice: the gradient after a step on it moves the model from where it was."""
    device, data, ctx, _ = scene()
    theta = PerFedAvg(lr=0.2, inner_lr=0.5, batch=10_000).meta_steps(device.theta0, data, ctx)
    (batch,) = data.train.epochs(ctx.rng("train"), 1, 10_000)
    ahead = device.theta0 - 0.5 * device.task.gradient_at(device.theta0, batch)
    assert torch.allclose(theta, device.theta0 - 0.2 * device.task.gradient_at(ahead, batch), atol=1e-6)
    for name, fields in (("perfedavg", {"optimiser": "adam"}), ("pfedme", {"variant": "original", "momentum": 0.9})):
        with pytest.raises(RecipeError, match=list(fields)[-1]):
            recipe(name, method=fields)


def test_fedem_shares_samples_out():
    """Two models, mixture 1/4 and 3/4: each sample goes by pi exp(-loss), the new mixture is the mean of that."""
    device, data, ctx, _ = scene("fedem", models=2)
    method = FedEM(models=2)
    server = method.start(6, ctx)
    a, b = server.split(ctx.layout.dim)
    assert torch.equal(a, device.theta0)
    assert not torch.equal(a, b)
    client, _, _ = method.local(Mixture(torch.tensor([0.25, 0.75])), {"server": method.down(server, 0, ctx)}, data, ctx)
    x, y = data.train.at(torch.arange(len(data)))
    likely = [device.task.logits(h, x).softmax(1)[torch.arange(len(y)), y] for h in (a, b)]
    first = 0.25 * likely[0] / (0.25 * likely[0] + 0.75 * likely[1])
    assert client.mixture.tolist() == pytest.approx([float(first.mean()), 1 - float(first.mean())], abs=1e-5)
    both = MixtureModel(device.task, (a, b), torch.tensor([0.25, 0.75])).logits(x[:1]).exp()
    want = 0.25 * device.task.logits(a, x[:1]).softmax(1) + 0.75 * device.task.logits(b, x[:1]).softmax(1)
    assert torch.allclose(both, want, atol=1e-6)
    assert math.isclose(float(both.sum()), 1, abs_tol=1e-5)


def test_fedem_with_one_model_is_fedavg():
    device, data, ctx, _ = scene()
    method = FedEM(models=1)
    server = method.start(6, ctx)
    _, message, _ = method.local(method.join(0, ctx), {"server": method.down(server, 0, ctx)}, data, ctx)
    want = train(FedAvg(), device.theta0, data.train, ctx, purpose="model 0")
    assert torch.allclose(message["models"].values, want, atol=1e-6)


def test_fedmask_trains_scores_by_hand():
    """One batch, all weights in use: a score falls by lr times gradient times weight times sigmoid's slope."""
    device, data, ctx, _ = scene("fedmask")
    method = FedMask(layers=1, lr=4.0, batch=10_000, keep=0.25)
    server = method.start(6, ctx)
    client, message, theta = method.local(method.join(0, ctx), {"server": method.down(server, 0, ctx)}, data, ctx)
    (batch,) = data.train.epochs(ctx.rng("train"), 1, 10_000)
    head = ctx.layout.slots[-2].where  # the weights of the last layer, 640 of them
    gradient, first = device.task.gradient_at(device.theta0, batch)[head], device.theta0[head]
    slope = 1 / (2 + math.exp(0.01) + math.exp(-0.01))
    scores = 0.01 - 4.0 * slope * gradient * first
    assert torch.allclose(client.scores, scores, atol=1e-6)
    held = client.held
    assert held.sum() == 160
    assert scores[held].min() >= scores[~held].max() - 1e-6
    assert torch.equal(message["mask"].mask, client.scores[held] > 0)
    assert torch.equal(theta[head], first * (held & (client.scores > 0)))
    assert torch.equal(theta[: head.start], device.theta0[: head.start])
    again, message, _ = method.local(
        client, {"server": method.down(server, 0, ctx)}, data, device.ctx(1, "local", 1, 0)
    )
    assert torch.equal(again.held, held)  # fixed for good, and not told twice
    assert message.names == ("mask", "samples")
    assert torch.equal(again.scores[~held], client.scores[~held])


def test_fedmask_averages_what_several_hold():
    """Weights 0 to 3: held by both, by both, by the first, by the second; 1 and 3 samples."""
    _, _, ctx, _ = scene("fedmask")
    method = FedMask(layers=1, score=0.2)
    begin = method.start(6, ctx)
    server = replace(begin, mean=torch.zeros(4), shared=torch.zeros(4, dtype=torch.bool))
    one, two = torch.tensor([1, 1, 1, 0]).bool(), torch.tensor([1, 1, 0, 1]).bool()
    answers = [
        (0, method.read(server, 0, Message(held=Bits(one), mask=Bits(torch.tensor([1, 1, 1]).bool()), samples=1), ctx)),
        (4, method.read(server, 4, Message(held=Bits(two), mask=Bits(torch.tensor([0, 1, 1]).bool()), samples=3), ctx)),
    ]
    server = method.merge(server, answers, ctx)
    assert server.mean.tolist() == [0.25, 1.0, 0.0, 0.0]
    assert server.shared.tolist() == [True, True, False, False]
    mine = Scored(torch.tensor([0.5, 0.5, 0.5, 0.5]), one)
    scores = method.scores(mine, {"server": method.down(server, 0, ctx)})
    assert torch.allclose(scores, torch.tensor([-0.1, 0.2, 0.5, 0.5]))
    with pytest.raises(WireError, match="a mask of 2 over 4 weights, not over 4"):
        method.read(server, 0, Message(mask=Bits(torch.tensor([1, 1]).bool()), samples=1), ctx)


def test_fedmask_refuses_what_does_not_fit(tmp_path, monkeypatch):
    _, _, ctx, _ = scene("fedmask")
    with pytest.raises(ValueError, match="layers: 3 is not allowed; expected an int <= 2"):
        FedMask(layers=3).start(6, ctx)
    with pytest.raises(RecipeError, match="optimiser"):
        recipe("fedmask", method={"optimiser": "adam"})
    lines = ("from torch import nn", "def net(classes):", "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8),")
    (tmp_path / "normed.py").write_text("\n".join((*lines, "        nn.BatchNorm1d(8), nn.Linear(8, classes))\n")))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RecipeError, match=r"method\.name: fedmask does not train weights, .* batch normalisation"):
        run(recipe("fedmask", model={"name": "normed:net"}))
