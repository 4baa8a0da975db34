"""GossipFL, DFedAvgM and DFedSAM: rounds by hand, where they must coincide with something simpler, and their bytes."""

import copy
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from small import recipe
from sparsona.core.aggregate import mean, weighted_mean
from sparsona.core.descent import descend
from sparsona.core.model import as_model
from sparsona.core.optimiser import SGD
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.task import Task
from sparsona.core.training import Ctx, train
from sparsona.core.wire import Message, Values, decode, encode
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import peers
from sparsona.engines.store import Store
from sparsona.engines.values import loads, types_of
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.methods.dfedavgm import Client as Moved
from sparsona.methods.dfedavgm import DFedAvgM
from sparsona.methods.dfedsam import DFedSAM
from sparsona.methods.gossipfl import Client as Gossiper
from sparsona.methods.gossipfl import GossipFL

LN3 = math.log(3)


def bits(*places: int) -> torch.Tensor:
    out = torch.zeros(6, dtype=torch.bool)
    out[list(places)] = True
    return out


def six_weights(x: list[float], y: int, t: int = 0):
    """A linear layer from three inputs to two classes, with one sample: weights 0 1 2 of class 0, then 3 4 5."""
    inputs = torch.tensor([x])
    task, _ = Task.of(nn.Linear(3, 2, bias=False), inputs)
    samples = Samples(inputs, torch.tensor([y]), torch.arange(1))
    ctx = Ctx(t, 9, task, torch.zeros(6), Rng(1, "local"), Rng(1, "common"))
    return LocalData(samples, samples), ctx


def values(*numbers: float) -> Values:
    return Values(torch.tensor(numbers))


def half(*numbers: float) -> Values:
    return Values(torch.tensor(numbers, dtype=torch.float16))


# -- GossipFL --------------------------------------------------------------------------------------------------------


class Known(GossipFL):
    """Parts that are given instead of drawn."""

    def selected(self, t, ctx):
        return {1: bits(0, 1, 4), 2: bits(0, 2, 5)}[t]


def test_a_round_of_gossip_by_hand():
    method, own = Known(lr=0.4), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    data, ctx = six_weights([LN3, 0.0, 0.0], 0, t=1)
    inbox = {
        "self": Message(theta=values(0.0, 0.0, 0.0), round=1),  # its own model is kept whole: not read
        3: Message(theta=values(3.0, 4.0, 8.0), round=1),
        12: Message(theta=values(5.0, 6.0, -1.0), round=1),
        "all": Message(votes=torch.zeros(3)),
    }
    client, message, model = method.local(Gossiper(own), inbox, data, ctx)
    # weights 0, 1 and 4 become the mean of three; the others stay: 3, 4, 3 | 4, 4, 6. The logits 3 ln 3 and 4 ln 3
    # give p = 1/4, 3/4, so the gradients of weights 0 and 3 are -+ 3/4 ln 3
    assert model.tolist() == pytest.approx([3 + 0.3 * LN3, 4, 3, 4 - 0.3 * LN3, 4, 6])
    assert torch.equal(client.theta, model)
    assert message == Message(theta=Values(model[[0, 2, 5]]), round=2)
    assert torch.equal(method.personal(client, {}, data, ctx), model)


def test_a_message_of_another_round_counts_where_both_parts_hold():
    method, own = Known(), torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    _, ctx = six_weights([1.0, 0.0, 0.0], 0, t=1)
    ctx = replace(ctx, theta0=torch.full((6,), 9.0))
    fresh = {"self": Message(), 4: Message(theta=values(7.0, 8.0, 9.0), round=2)}
    assert method.gathered(own, fresh, ctx).tolist() == [4.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    new = {"self": Message(), 4: Message()}  # has not trained yet: it is at the common initial model
    assert method.gathered(own, new, ctx).tolist() == [5.0, 5.5, 3.0, 4.0, 7.0, 6.0]


def test_parts_are_shared_by_all_and_drawn_anew_each_round():
    device, _ = prepare(recipe("gossipfl"))
    method, layout = GossipFL(keep=0.3), device.task.layout
    here, there = (method.selected(4, device.ctx(4, "local", 4, k)) for k in (0, 5))
    assert torch.equal(here, there)
    first, biases, head, more = layout.counts(here)
    assert (biases, more) == (64, 10)  # always whole
    for n, size in ((first, 4096), (head, 640)):
        assert abs(n - 0.3 * size) < 4 * math.sqrt(0.21 * size)
    other = method.selected(5, device.ctx(4, "local", 4, 0))
    assert int((here & other)[:4096].sum()) == pytest.approx(0.09 * 4096, abs=80)
    assert GossipFL(keep=1.0).selected(0, device.ctx(0)).all()


def states(path, method):
    """What the six clients of a finished run keep."""
    files = [path / "state" / f"client-{k:05d}.safetensors" for k in range(6)]
    return [loads(f.read_bytes(), types_of(method)) for f in files]


FULL = {"name": "full", "max_wait": 0}


def test_keeping_all_on_a_full_graph_is_plain_averaging_to_the_bit(tmp_path):
    r = recipe("gossipfl", method={"keep": 1.0, "epochs": 2, "momentum": 0.5}, topology=FULL)
    run(r, tmp_path / "run")
    device, fleet = prepare(r)
    models = [device.theta0] * 6
    for t in range(3):
        starts = [mean([models[k], *(m for j, m in enumerate(models) if j != k)]) for k in range(6)]
        models = [train(r.method, starts[k], fleet.local(k).train, device.ctx(t, "local", t, k)) for k in range(6)]
    for client, theta in zip(states(tmp_path / "run", r.method), models, strict=True):
        assert torch.equal(client.theta, theta)


def test_bytes_of_gossip():
    """Six clients in groups of three: each reads two. At first there is nothing to say: header and checksum alone."""
    r = recipe("gossipfl", rounds=2, topology={"name": "groups", "neighbours": 2, "max_wait": 0})
    device, _ = prepare(r)
    total = run(r).summary["total"]
    sent = int(r.method.selected(1, device.ctx(1)).sum())
    assert total["paper_down"] == total["paper_up"] == 6 * 2 * 4 * sent
    # parts "theta" (dtype, values) and "round" (8 bytes), each with a frame of 1 + 5 + 5
    assert total["down"] == total["up"] == 6 * 2 * (11 + 7 + (11 + 1 + 4 * sent) + (11 + 8) + 4)


# -- DFedAvgM --------------------------------------------------------------------------------------------------------


def test_a_round_of_updates_by_hand():
    method = DFedAvgM(lr=0.1)
    data, ctx = six_weights([1.0, 2.0, 0.0], 0, t=1)
    client = Moved(torch.tensor([0.0, 1.0, 2.0, 0.625, 1.0, 0.0]))
    inbox = {
        "self": Message(update=half(1.0, 0.0, 0.0, 0.0, 0.0, 4.0), samples=1),
        5: Message(update=half(0.5, 0.0, 0.0, 0.0, 0.0, 0.0), samples=3, round=0),
        2: Message(),  # has not trained yet: it has no update
        3: Message(update=half(9.0, 9.0, 9.0, 9.0, 9.0, 9.0), samples=3, round=-1),  # was away: taken in before
    }
    new, message, model = method.local(client, inbox, data, ctx)
    # (1 * 1 + 3 * 0.5) / 4 = 0.625 and (1 * 4 + 3 * 0) / 4 = 1
    start = torch.tensor([0.625, 1.0, 2.0, 0.625, 1.0, 1.0])
    assert torch.equal(new.start, start)
    # equal logits: the gradient is -+ 1/2 (1, 2, 0); the first step of momentum is a plain one
    update = [0.05, 0.1, 0.0, -0.05, -0.1, 0.0]
    assert (model - start).tolist() == pytest.approx(update, abs=1e-6)
    # the nearest halves: 0.05 is 1638.4 / 2^15, 0.1 is 1638.4 / 2^14
    rounded = [1638 / 2**15, 1638 / 2**14, 0.0, -1638 / 2**15, -1638 / 2**14, 0.0]
    assert message["update"].values.dtype == torch.float16
    assert message["update"].values.tolist() == rounded
    assert message["samples"] == 1
    later = method.personal(new, {"self": message}, data, ctx)
    assert torch.equal(later, start + torch.tensor(rounded))
    # alone, the next round begins where its own rounded update leads: counted once
    again, _, _ = method.local(new, {"self": message}, data, replace(ctx, t=2))
    assert torch.equal(again.start, later)


def test_an_update_too_large_for_half_precision_is_not_finite():
    data, ctx = six_weights([1.0, 2.0, 0.0], 0)
    _, message, model = DFedAvgM(lr=1e6).local(None, {"self": Message()}, data, ctx)
    assert torch.isfinite(model).all()
    assert not message.finite()  # so that the engine leaves its client out


def test_on_a_full_graph_models_move_by_the_mean_of_updates(tmp_path):
    r = recipe("dfedavgm", method={"epochs": 2}, topology=FULL)
    assert r.method.momentum == 0.9
    done = run(r, tmp_path / "run")
    device, fleet = prepare(r)
    starts, updates = [device.theta0] * 6, []
    sizes = [len(fleet.local(k)) for k in range(6)]
    for t in range(3):
        if updates:
            orders = [[*(j for j in range(6) if j != k), k] for k in range(6)]
            steps = [weighted_mean([updates[j] for j in o], [sizes[j] for j in o]) for o in orders]
            starts = [x + step for x, step in zip(starts, steps, strict=True)]
        models = [train(r.method, starts[k], fleet.local(k).train, device.ctx(t, "local", t, k)) for k in range(6)]
        updates = [(m - x).half() for m, x in zip(models, starts, strict=True)]
    for client, start in zip(states(tmp_path / "run", r.method), starts, strict=True):
        assert torch.equal(client.start, start)
        assert torch.allclose(client.start, starts[0], atol=1e-6)  # everybody hears the same
    right = [device.score(as_model(device.task, m), k) for k, m in enumerate(models)]
    assert done.rounds[-1]["after"]["accuracy"] == pytest.approx(sum(s.correct / s.samples for s in right) / 6)


def test_bytes_of_updates():
    total = run(recipe("dfedavgm", rounds=2)).summary["total"]
    assert total["paper_down"] == total["paper_up"] == sent_twice("dfedavgm") * 2 * 4810
    update = 7 + (1 + 6 + 5 + 1 + 2 * 4810) + (1 + 7 + 5 + 8) + (1 + 5 + 5 + 8) + 4  # values, samples, round
    assert total["down"] == total["up"] == (24 - sent_twice("dfedavgm")) * 11 + sent_twice("dfedavgm") * update


def sent_twice(name: str) -> int:
    """Of the 24 messages read in two rounds, those of clients that have trained: fresh ones in the first, then all."""
    r = recipe(name, rounds=2)
    plan = r.topology.plan(6, 0, 2, Rng(7, "topology"))
    return 12 + sum(len(js) for js in plan.fresh.values())


# -- DFedSAM ---------------------------------------------------------------------------------------------------------


def test_a_round_of_models_by_hand():
    """Along the slope first: with rho = ln 3 / sqrt(2) the logits of (1, 0, 0) move ln 3 apart."""
    method = DFedSAM(lr=0.5, rho=LN3 / math.sqrt(2))
    data, ctx = six_weights([1.0, 0.0, 0.0], 0, t=1)
    inbox = {
        "self": Message(theta=values(1.0, 0.0, 0.0, 2.0, 0.0, 4.0), samples=1),
        5: Message(theta=values(1.0, 0.0, 4.0, 0.0, 0.0, 0.0), samples=1),
        2: Message(theta=values(1.0, 8.0, 0.0, 1.0, 0.0, 0.0), samples=2),
        3: Message(),  # has not trained yet
        "all": Message(votes=torch.zeros(3)),
    }
    client, message, model = method.local(None, inbox, data, ctx)
    # the mean is 1, 4, 1 | 1, 0, 1; its logits are equal, so the gradient -1/2 and 1/2 of norm 1/sqrt(2) leads along
    # (-1, 1) / sqrt(2) times rho: logits 1 - ln 3 / 2 and 1 + ln 3 / 2. There p = 1/4, 3/4: the gradient is -+ 3/4
    assert model.tolist() == pytest.approx([1 + 0.375, 4, 1, 1 - 0.375, 0, 1])
    assert client is None  # its model is in its own last message
    assert message == Message(theta=Values(model), samples=1)
    assert torch.equal(method.personal(None, {"self": message}, data, ctx), model)
    assert torch.equal(method.personal(None, {"self": Message()}, data, ctx), ctx.theta0)


class Net(nn.Module):
    def __init__(self, norm: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4) if norm else nn.Identity()
        self.fc = nn.Linear(100, 3)

    def forward(self, x):
        return self.fc(F.relu(self.norm(self.conv(x))).flatten(1))


def net(norm: bool = False):
    torch.manual_seed(0)
    model = Net(norm)
    plain = copy.deepcopy(model)
    task, theta0 = Task.of(model, torch.zeros(1, 2, 5, 5))
    g = torch.Generator().manual_seed(1)
    x, y = torch.randn(20, 2, 5, 5, generator=g), torch.randint(0, 3, (20,), generator=g)
    return task, theta0, plain, Samples(x, y, torch.arange(20)).epochs(Rng(5), 2, 8)


def sharpness_aware(model, batches, rho, gates, **options):
    """SAM as it is usually written; running statistics count each batch once, and what has gate 0 is left alone."""
    optimiser = torch.optim.SGD(model.parameters(), 0.1, **options)
    for x, y in batches:
        old = {n: p.detach().clone() for n, p in model.named_parameters()}
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        norm = torch.stack([(p.grad * gates[n]).norm() for n, p in model.named_parameters()]).norm()
        kept = {n: b.clone() for n, b in model.named_buffers()}
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.add_(rho * p.grad * gates[n] / (norm + 1e-12))
        optimiser.zero_grad()
        F.cross_entropy(model(x), y).backward()
        with torch.no_grad():
            for n, p in model.named_parameters():
                p.copy_(old[n])
                p.grad.mul_(gates[n])
            for n, b in model.named_buffers():
                b.copy_(kept[n])
        optimiser.step()


def sgd(task, theta, batches, *, mask=None, move=None, pull=None, sam=0.0, **how):
    return descend(task, theta, batches, SGD(**how), mask=mask, move=move, pull=pull, sam=sam)[0]


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "weight_decay": 0.05}])
@pytest.mark.parametrize("norm", [False, True])
def test_sam_equals_its_usual_implementation(options, norm):
    task, theta0, plain, batches = net(norm)
    sharpness_aware(plain, batches, 0.5, {n: torch.ones_like(p) for n, p in plain.named_parameters()}, **options)
    got = sgd(task, theta0, batches, lr=0.1, sam=0.5, **options)
    want = task.layout.flatten(dict(plain.state_dict()))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(got, sgd(task, theta0, batches, lr=0.1, **options), atol=1e-3)


@pytest.mark.parametrize("gate", ["mask", "move"])
def test_sam_climbs_within_what_may_move(gate):
    task, theta0, plain, batches = net()
    part = Rng(3).uniform(task.layout.dim) < 0.5
    start = theta0 * part if gate == "mask" else theta0
    plain.load_state_dict({n: v.clone() for n, v in task.layout.unflatten(start).items()})
    gates = {n: v.float() for n, v in task.layout.unflatten(part).items()}
    sharpness_aware(plain, batches, 0.5, gates, momentum=0.9)
    got = sgd(task, theta0, batches, lr=0.1, momentum=0.9, sam=0.5, **{gate: part})
    torch.testing.assert_close(got, task.layout.flatten(dict(plain.state_dict())), rtol=1e-4, atol=1e-5)
    assert torch.equal(got[~part], start[~part])


def test_sam_costs_twice():
    task, theta0, _, batches = net()
    sgd(task, theta0, batches, lr=0.1)
    once = task.flops
    sgd(task, theta0, batches, lr=0.1, sam=0.1)
    assert task.flops == 3 * once
    sharp, flat = run(recipe("dfedsam")).summary["total"], run(recipe("dfedsam", method={"rho": 0.0})).summary["total"]
    assert sharp["flops"] == 2 * flat["flops"]


def test_without_rho_it_is_decentralised_fedavg_to_the_bit():
    """Also with neighbours that differ from client to client and round to round, some of them waited for."""
    r = recipe("dfedsam", method={"rho": 0.0, "epochs": 2})
    assert r.method.momentum == 0.9
    device, fleet = prepare(r)
    store, models, sizes = Store(), [device.theta0] * 6, [len(fleet.local(k)) for k in range(6)]
    for k in range(6):
        store.put_mail(k, -1, *said(r.method.post(None, device.ctx(0))))
    trained: set[int] = set()
    for t in range(3):
        plan = r.topology.plan(6, t, 3, Rng(t))
        peers(LocalEngine(device), store, t, plan, {}, 6, ())
        old, before = list(models), set(trained)
        for wave in plan.waves():
            for k in wave:
                heard = [j for j in (*plan.reads[k], k) if j in before or j in plan.fresh[k]]
                given = [models[j] if j in plan.fresh[k] else old[j] for j in heard]
                start = weighted_mean(given, [sizes[j] for j in heard]) if heard else device.theta0
                models[k] = train(r.method, start, fleet.local(k).train, device.ctx(t, "local", t, k))
                trained.add(k)
    for k in range(6):
        assert torch.equal(decode(store.mail(k, 3)[0])["theta"].values, models[k])


def said(message: Message) -> tuple[bytes, int]:
    return encode(message), message.value_nbytes


def test_on_a_full_graph_without_rho_it_is_fedavg(tmp_path):
    how = {"epochs": 2, "momentum": 0.9}
    done = run(recipe("dfedsam", method=how | {"rho": 0.0}, topology=FULL), tmp_path / "a")
    star = run(recipe("fedavg", method=how, fleet={"per_round": 6}), tmp_path / "b")
    for ours, theirs in zip(done.rounds, star.rounds, strict=True):
        assert ours["after"]["loss"] == pytest.approx(theirs["after"]["loss"], rel=1e-4)
        assert ours["after"]["accuracy"] == pytest.approx(theirs["after"]["accuracy"])


def test_bytes_of_models():
    total, heard = run(recipe("dfedsam", rounds=2)).summary["total"], sent_twice("dfedsam")
    assert total["paper_down"] == total["paper_up"] == heard * 4 * 4810
    model = 7 + (1 + 5 + 5 + 1 + 4 * 4810) + (1 + 7 + 5 + 8) + 4
    assert total["down"] == total["up"] == (24 - heard) * 11 + heard * model


# -- all three -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gossipfl", "dfedavgm", "dfedsam"])
def test_who_is_away_does_not_stop_the_others(name, tmp_path):
    r = recipe(name, rounds=5, topology={"name": "ring", "max_wait": int(name != "dfedavgm"), "absent": 0.5})
    done = run(r, tmp_path / "run")
    assert len({tuple(row["participants"]) for row in done.rounds}) > 2
    assert all(row["left_out"] == [] for row in done.rounds)
    assert done.rounds[-1]["before"]["loss"] < done.rounds[0]["before"]["loss"]
