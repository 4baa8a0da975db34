"""FedSpa and its baselines: rounds by hand, what never changes, and where methods must coincide."""

import json
import math
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from small import Meddler, recipe
from sparsona.core import masks
from sparsona.core.aggregate import mean
from sparsona.core.layout import Layout
from sparsona.core.masks import Packed
from sparsona.core.model import as_model
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.task import Task
from sparsona.core.topology import cohort
from sparsona.core.training import Ctx, train
from sparsona.core.wire import MaskChange, Message, Values, WireError, decode, encode
from sparsona.engines.local import ClientFailed, LocalEngine
from sparsona.engines.rounds import star
from sparsona.engines.store import Store
from sparsona.engines.values import loads, types_of
from sparsona.experiment.recipe import RecipeError
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.methods.fedspa import Client, FedSpa, Server
from sparsona.methods.subfedavg import Client as SubClient
from sparsona.methods.subfedavg import Server as SubServer
from sparsona.methods.subfedavg import SubFedAvg, below_percentile
from sparsona.methods.subsampling import Subsampling
from sparsona.models import build, example

LN3 = math.log(3)


def bits(*places: int) -> torch.Tensor:
    out = torch.zeros(6, dtype=torch.bool)
    out[list(places)] = True
    return out


def six_weights(x: list[list[float]], y: list[int], rounds: int = 3, t: int = 0):
    """A linear layer from three inputs to two classes: weights 0 1 2 of class 0, then 3 4 5 of class 1."""
    model = nn.Linear(3, 2, bias=False)
    inputs = torch.tensor(x)
    task, _ = Task.of(model, inputs)
    samples = Samples(inputs, torch.tensor(y), torch.arange(len(y)))
    ctx = Ctx(t, rounds, task, torch.zeros(6), Rng(1, "local"), Rng(1, "common"))
    return LocalData(samples, samples), ctx


def test_a_round_by_hand():
    """Lines of Algorithm 1. The learning rate makes the trained logits differ by ln 3, so that p = 3/4 and 1/4."""
    lr = LN3 / 2.5
    method = FedSpa(lr=lr, batch=4, prune_rate=0.5)
    w = torch.tensor([0.0, 0.3, 0.2, -0.4, 0.0, LN3 / 2])
    server = Server(w, {0: Packed.of(bits(0, 2, 4)), 1: Packed.of(bits(0, 1, 5)), 2: Packed.of(bits(1, 2, 3))})

    # client 0 has one sample (1, 2, 0) of class 0
    data, ctx = six_weights([[1.0, 2.0, 0.0]], [0])
    down = method.down(server, 0, ctx)
    assert down["theta"].values.tolist() == pytest.approx([0.0, 0.2, 0.0])  # line 9: weights 0, 2 and 4 travel
    client, up, model = method.local(Client(bits(0, 2, 4)), {"server": down}, data, ctx)
    # lines 13-16: logits 0 and 0, p = 1/2, gradient -1/2 (1, 2, 0) and +1/2 (1, 2, 0), within the mask -1/2, 0 and 1
    assert model.tolist() == pytest.approx([lr / 2, 0, 0.2, 0, -lr, 0])
    # line 17: the update is start less trained; the trained weights travel, the server knows the start
    assert up["theta"].values.tolist() == pytest.approx([lr / 2, 0.2, -lr])
    # line 18: logits lr / 2 and -2 lr differ by ln 3; gradient -1/4 (1, 2, 0) and +1/4 (1, 2, 0). Of 3 ones
    # ceil(0.5 * 3) = 2 go, the smallest: 2 (0.2) and 0 (0.22). Two come: 1 (1/2 as 4, which is alive), then 0 and 3 are
    # equal (1/4) and the lower index wins.
    assert torch.equal(client.mask, bits(0, 1, 4))
    assert torch.equal(up["mask"].apply(bits(0, 2, 4)), bits(0, 1, 4))

    # client 1 has one sample (0, 0, 2) of class 1: logits 0 and ln 3, so the gradient of weight 5 is -1/4 * 2
    data, ctx = six_weights([[0.0, 0.0, 2.0]], [1])
    down = method.down(server, 1, ctx)
    _, second, model = method.local(Client(bits(0, 1, 5)), {"server": down}, data, ctx)
    assert model.tolist() == pytest.approx([0, 0.3, 0, 0, 0, LN3 / 2 + lr / 2])

    inbox = [(k, method.read(server, k, m, ctx)) for k, m in enumerate([up, second])]
    after = method.merge(server, inbox, ctx)
    # line 11: w less half the sum of the updates, wherever a coordinate is in one mask, in both or in none
    want = [lr / 4, 0.3, 0.2, -0.4, -lr / 2, LN3 / 2 + lr / 4]
    assert after.theta.tolist() == pytest.approx(want)
    assert torch.equal(after.masks[0].mask(), bits(0, 1, 4))
    assert torch.equal(after.masks[2].mask(), bits(1, 2, 3))  # line 7: who was not there keeps its mask
    # warm start: weight 1 is new to client 0 and begins at the server's value, not at 0
    assert method.down(after, 0, ctx)["theta"].values.tolist() == pytest.approx([lr / 4, 0.3, -lr / 2])


def test_one_of_two_holds_a_coordinate_and_it_moves_by_half():
    method = FedSpa()
    _, ctx = six_weights([[1.0, 0.0, 0.0]], [0])
    server = Server(torch.zeros(6), {0: Packed.of(bits(0)), 1: Packed.of(bits(1))})
    still = MaskChange(torch.zeros(1, dtype=torch.bool), torch.zeros(5, dtype=torch.bool))
    inbox = [
        (k, method.read(server, k, Message(theta=Values(torch.tensor([v])), mask=still), ctx))
        for k, v in enumerate([3.0, 0.0])
    ]
    assert method.merge(server, inbox, ctx).theta.tolist() == [1.5, 0, 0, 0, 0, 0]


class Net(nn.Module):
    """Tensors of several shapes: some that ERK makes dense, some not."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 25), nn.ReLU(), nn.Linear(25, 3))

    def forward(self, x):
        return self.body(x)


NET = Net()
LAYOUT = Layout.of(NET, torch.zeros(1, 20))


@given(
    seed=st.integers(0, 2**31),
    density=st.floats(0.1, 1.0),
    rate=st.floats(0.0, 1.0),
    rounds=st.integers(1, 40),
    layers=st.sampled_from(["erk", "uniform"]),
    recovery=st.sampled_from(["gradient", "random"]),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_a_search_keeps_its_promises(seed, density, rate, rounds, layers, recovery, data):
    t = data.draw(st.integers(0, rounds - 1))
    method = FedSpa(density=density, prune_rate=rate, layers=layers, recovery=recovery)
    task = Task(Net(), LAYOUT)
    ctx = Ctx(t, rounds, task, torch.zeros(LAYOUT.dim), Rng(seed, "local", t), Rng(seed, "common"))
    mask = method.first(0, ctx)
    theta = (Rng(seed, "theta").uniform(LAYOUT.dim) - 0.5) * mask
    gradient = Rng(seed, "gradient").uniform(LAYOUT.dim) - 0.5
    new = method.searcher()(method, mask, theta, lambda: gradient, ctx)
    assert LAYOUT.counts(new) == LAYOUT.counts(mask)  # ones per tensor; so a dense tensor stays dense
    if t == rounds - 1 and rounds > 1:
        assert torch.equal(new, mask)  # the rate has come down to 0
    assert torch.equal(MaskChange.between(mask, new).apply(mask), new)


@given(seed=st.integers(0, 2**31), momentum=st.sampled_from([0.0, 0.9]), decay=st.sampled_from([0.0, 0.1]))
@settings(max_examples=20, deadline=None)
def test_nothing_outside_the_mask_ever_moves(seed, momentum, decay):
    method = FedSpa(epochs=3, batch=4, momentum=momentum, weight_decay=decay, clip=1.0)
    task = Task(Net(), LAYOUT)
    rng = Rng(seed)
    samples = Samples(rng("x").uniform(12, 20), torch.arange(12) % 3, torch.arange(12))
    ctx = Ctx(0, 5, task, rng("theta").uniform(LAYOUT.dim) - 0.5, rng("local"), rng("common"))
    server = method.start(3, ctx)
    client, message, model = method.local(
        method.join(1, ctx), {"server": method.down(server, 1, ctx)}, LocalData(samples, samples), ctx
    )
    old = method.first(1, ctx)
    assert int(model[~old].count_nonzero()) == 0
    after = method.merge(server, [(1, method.read(server, 1, message, ctx))], ctx)
    assert torch.equal(after.theta[~old], server.theta[~old])
    assert not torch.equal(after.theta[old], server.theta[old])
    assert LAYOUT.counts(client.mask) == LAYOUT.counts(old)


HOW = {"epochs": 2, "momentum": 0.5, "weight_decay": 1e-3, "clip": 1.0, "lr_schedule": "exponential"}


def kept(path, method):
    """A finished run's server."""
    return loads((path / "state" / "server.safetensors").read_bytes(), types_of(method))


def scores(path):
    return [[row[p] for p in ("before", "after", "shared")] for row in map(json.loads, (path / "rounds.jsonl").open())]


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("fedspa", {"density": 1.0, "prune_rate": 0.0}),
        ("fedspa", {"density": 1.0, "search": "rsm", "layers": "uniform"}),
        ("subsampling", {"density": 1.0, "weighting": "uniform"}),
    ],
)
def test_dense_masks_make_it_fedavg_to_the_bit(name, how, tmp_path):
    points = {"evaluate": {"points": ["before", "after", "shared"]}}
    run(recipe("fedavg", rounds=4, method=HOW | {"weighting": "uniform"}, **points), tmp_path / "a")
    run(recipe(name, rounds=4, method=HOW | how, **points), tmp_path / "b")
    assert scores(tmp_path / "a") == scores(tmp_path / "b")
    b = kept(tmp_path / "b", FedSpa())
    assert torch.equal(kept(tmp_path / "a", FedSpa()), b.theta if name == "fedspa" else b)


def test_one_mask_everywhere_is_fedavg_on_the_masked_model(tmp_path):
    r = recipe("fedspa", rounds=3, method={"search": "rsm", **HOW})
    run(r, tmp_path / "rsm")
    device, fleet = prepare(r)
    mask = r.method.first(0, device.ctx(0))
    assert torch.equal(mask, r.method.first(5, device.ctx(0)))
    theta = device.theta0 * mask
    for t in range(3):
        chosen = cohort(6, 3, Rng(7, "cohort", t))
        theta = mean(
            train(r.method, theta, fleet.local(k).train, device.ctx(t, "local", t, k), mask=mask) for k in chosen
        )
    got = kept(tmp_path / "rsm", r.method).theta
    assert torch.equal(got * mask, theta)
    assert torch.equal(got[~mask], device.theta0[~mask])


def test_values_only_go_down_and_the_change_of_the_mask_comes_up():
    """digits-mlp: 64-64-10 with biases, 4,810 parameters; ERK at 1/2 keeps biases and head and 1,691 of 4,096."""
    r = recipe("fedspa")
    device, _ = prepare(r)
    ctx = device.ctx(0, "x")
    counts = device.task.layout.counts(r.method.first(0, ctx))
    assert counts == [1691, 64, 640, 10]
    server = r.method.start(6, ctx)
    down = r.method.down(server, 0, ctx)
    assert down.nbytes == 7 + (1 + 5 + 5) + 1 + 4 * 2405 + 4
    assert down.value_nbytes == 4 * 2405
    total, rsm = run(r).summary["total"], run(recipe("fedspa", method={"search": "rsm"})).summary["total"]
    assert total["down"] == rsm["down"] == 9 * down.nbytes
    assert total["paper_down"] == total["paper_up"] == 9 * 4 * 2405
    # no change: a frame of 1 + 4 + 5, a length of 4, and twice the 9 bytes of a mask without ones
    assert rsm["up"] == rsm["down"] + 9 * (1 + 4 + 5 + 4 + 9 + 9)
    # a change of 846 of 2,405 and as many of 2,405 entries takes at most two bitmaps
    assert rsm["up"] < total["up"] < rsm["up"] + 9 * 2 * 301


def test_the_search_costs_one_dense_batch():
    r, plain = recipe("fedspa"), recipe("fedspa", method={"search": "rsm"})
    device, fleet = prepare(r)
    layout = device.task.layout
    sparse = layout.flops(r.method.first(0, device.ctx(0)))
    sizes = [len(fleet.local(k)) for t in range(3) for k in cohort(6, 3, Rng(7, "cohort", t))]
    assert run(plain).summary["total"]["flops"] == 3 * sparse * sum(sizes)
    searched = 3 * sparse * sum(sizes) + 3 * layout.flops() * sum(min(16, n) for n in sizes)
    assert run(r).summary["total"]["flops"] == searched
    paper = recipe("fedspa", method={"search": "rsm", "charge_search": True})
    assert run(paper).summary["total"]["flops"] == searched


def test_wire_bytes_of_a_whole_run_stay_near_half_of_dense():
    """LeNet5 at density 1/2, masks that change as much as the cosine lets them, in nine rounds."""
    model = build("lenet5", 26, (1, 28, 28))
    layout = Layout.of(model, example(model, (1, 28, 28)))
    mask = masks.random(layout, masks.erk_counts(layout, 0.5), Rng(1))
    dense = Message(theta=Values(torch.zeros(layout.dim)), samples=500).nbytes * 2
    ratios = []
    for t in range(9):
        theta, gradient = Rng(2, t).uniform(layout.dim), Rng(3, t).uniform(layout.dim)
        new = masks.regrow(layout, mask, theta * mask, gradient, masks.cosine(0.5, t, 9))
        down = Message(theta=Values.of(theta, mask))
        up = Message(theta=Values.of(theta, mask), mask=MaskChange.between(mask, new))
        assert decode(encode(up)) == up
        ratios.append((down.nbytes + up.nbytes) / dense)
        mask = new
    assert 0.5 < sum(ratios) / 9 < 0.52
    assert ratios[-1] < 0.5001


def test_same_or_different_first_masks():
    device, _ = prepare(recipe("fedspa"))
    ctx = device.ctx(0)
    same, other = FedSpa(), FedSpa(same_start=False)
    assert torch.equal(same.first(0, ctx), same.first(1, ctx))
    assert len({tuple(other.first(k, ctx).tolist()) for k in range(6)}) == 6
    assert device.task.layout.counts(other.first(0, ctx)) == device.task.layout.counts(other.first(1, ctx))
    elsewhere = replace(ctx, common=Rng(8, "common"))
    assert not torch.equal(same.first(0, ctx), same.first(0, elsewhere))


def test_devices_of_different_strength(tmp_path):
    device, _ = prepare(recipe("fedspa"))
    ctx, layout = device.ctx(0, "x"), device.task.layout

    def densities(spec):
        method = recipe("fedspa", method={"density": spec}).method
        method.start(6, ctx)
        return [masks.density(layout, method.first(k, ctx)) for k in range(6)]

    listed = [0.2, 0.4, 0.5, 0.6, 0.8, 1.0]
    assert densities(listed) == pytest.approx(listed, abs=1e-3)
    between = densities({"low": 0.3, "high": 0.6})
    assert all(0.299 <= d <= 0.6 for d in between)
    assert len(set(between)) == 6
    few = densities({"values": [0.25, 0.5], "weights": [1, 3]})
    assert {round(d, 2) for d in few} == {0.25, 0.5}
    done = run(recipe("fedspa", method={"density": {"low": 0.3, "high": 0.6}}), tmp_path / "run")
    assert done.summary["total"]["up"] < 0.65 * run(recipe("fedavg")).summary["total"]["up"]
    told = {row["client"]: 1 - row["notes"]["sparsity"] for row in done.rows("clients") if "notes" in row}
    assert told == {k: pytest.approx(between[k]) for k in told}  # each client's is in the records


def test_draws_follow_their_weights():
    from sparsona.core.budgets import OneOf, share

    drawn = [share(OneOf((0.25, 0.5), (1, 3)), k, Rng(1, "common")) for k in range(4000)]
    assert sum(d == 0.25 for d in drawn) / 4000 == pytest.approx(0.25, abs=0.03)  # four standard deviations


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"density": 0}, "method.density: 0 is not allowed; expected a float in (0, 1]"),
        ({"density": 1.5}, "method.density: 1.5 is not allowed; expected a float in (0, 1]"),
        ({"density": [0.5, 2.0]}, "method.density[1]: 2.0 is not allowed; expected a float in (0, 1]"),
        (
            {"density": {"low": 0.6, "high": 0.5}},
            "method.density.low: 0.6 is not allowed; expected a float <= high = 0.5",
        ),
        (
            {"density": {"values": [0.5], "weights": [1, 2]}},
            "method.density.weights: a list of 2 is not allowed; expected 1",
        ),
        ({"density": {"low": 0.6}}, "method.density.high is missing"),
        ({"density": {"low": 0.6, "hihg": 0.9}}, 'method.density.hihg: no such field; did you mean "high"?'),
        ({"density": {"low": 0.6, "high": 2}}, "method.density.high: 2 is not allowed; expected a float in (0, 1]"),
        ({"density": {"values": []}}, "method.density.values: [] is not allowed; expected at least one value"),
        (
            {"density": "half"},
            'method.density: "half" is not allowed; expected a float in (0, 1] or list of floats in (0, 1] or table',
        ),
        ({"search": "dts"}, 'method.search: "dts" not found; expected dst, rsm or package.module:name'),
        (
            {"search": "nowhere:f"},
            'method.search: module "nowhere" cannot be imported: it is neither installed nor in the current folder',
        ),
        ({"search": "math:nothing"}, 'method.search: "nothing" not found in module "math"'),
        (
            {"search": "fractions:Fraction"},
            'method.search: "fractions:Fraction" is a class; expected a function or an instance of the class',
        ),
    ],
)
def test_bad_fields_are_told(how, said):
    with pytest.raises(RecipeError) as error:
        recipe("fedspa", method=how)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("name", "how", "said"),
    [
        (
            "fedspa",
            {"density": 0.0001},
            "method.density: 0.0001 leaves hidden.0.weight without any weight; expected about 0.000776 or more",
        ),
        ("fedspa", {"density": [0.5, 0.5]}, "method.density: a list of 2 is not allowed; expected 6 values"),
    ],
)
def test_what_does_not_fit_the_model_or_the_fleet_is_told_before_anything_is_written(name, how, said, tmp_path):
    """ERK gives the head 74 eps entries and 276 eps in all: one of 4,810 is left it from 276 / 74 / 4810 on."""
    with pytest.raises(RecipeError) as error:
        run(recipe(name, method=how), tmp_path / "run")
    assert said in str(error.value)
    assert not (tmp_path / "run").exists()


def test_one_round_searches_at_the_full_rate():
    """T = 1: the cosine has nowhere to go, the rate stays at its start."""
    r = recipe("fedspa", rounds=1, method={"prune_rate": 0.5})
    device, fleet = prepare(r)
    ctx = device.ctx(0, "local", 0, 0)
    server = r.method.start(6, ctx)
    inbox = {"server": r.method.down(server, 0, ctx)}
    _, message, _ = r.method.local(r.method.join(0, ctx), inbox, fleet.local(0), ctx)
    assert int(message["mask"].dropped.count_nonzero()) > 100
    assert run(r).summary["accuracy"] is not None


SHORT = torch.zeros(7, dtype=torch.bool)


def all_of(message: Message, alive: bool) -> MaskChange:
    """The change to a mask of nothing, or of everything."""
    change = message["mask"]
    return MaskChange(torch.full_like(change.dropped, not alive), torch.full_like(change.grown, alive))


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("fedspa", lambda m: Message(theta=m["theta"], mask=MaskChange(SHORT, SHORT)), "does not fit"),
        ("fedspa", lambda m: Message(theta=Values(torch.zeros(5)), mask=m["mask"]), "holds 5 values"),
        ("fedspa", lambda m: Message(theta=m["theta"]), "part 'mask' is NoneType, not MaskChange"),
        ("fedspa", lambda m: Message(theta=m["theta"], mask=all_of(m, False)), "does not keep the number of ones"),
        ("fedspa", lambda m: Message(theta=m["theta"], mask=all_of(m, True)), "does not keep the number of ones"),
        ("fedspa", lambda m: Message(theta=Values(m["theta"].values * math.nan), mask=m["mask"]), "NaN or Inf"),
        ("fedspa", lambda m: Message(theta=Values(m["theta"].values + math.inf), mask=m["mask"]), "NaN or Inf"),
        ("subfedavg", lambda m: Message(theta=m["theta"], mask=MaskChange(SHORT, SHORT)), "does not fit"),
        ("subfedavg", lambda m: Message(theta=Values(torch.zeros(5)), mask=m["mask"]), "holds 5 values"),
        ("subsampling", lambda m: Message(theta=m["theta"], seed=1.5, samples=1), "'seed' is float, not int"),
        ("subsampling", lambda m: Message(theta=Values(torch.zeros(5)), seed=1, samples=1), "holds 5 values"),
        ("fedavg", lambda m: Message(theta=Values(torch.zeros(5)), samples=1), "holds 5 values"),
        ("fedavg", lambda m: Message(theta=m["theta"], samples=0), "part 'samples' is 0"),
        ("fedavg", lambda m: Message(), "part 'theta' is NoneType"),
    ],
)
def test_an_answer_that_does_not_fit_leaves_its_client_out(name, change, why):
    """The round ends as if that client had not been there, and says who it was."""
    device, _ = prepare(recipe(name))
    method, ctx = device.method, device.ctx(0, "merge", 0)
    server = method.start(6, ctx)
    store = Store()
    bad, done = star(method, Meddler(device, change), store, server, 0, [0, 3, 5], ctx, ())
    good, _ = star(method, LocalEngine(device), Store(), server, 0, [0, 5], ctx, ())
    assert list(done.left_out) == [3]
    assert why in done.left_out[3]
    assert torch.equal(method.shared(bad), method.shared(good))
    assert torch.isfinite(method.shared(bad)).all()
    assert store.client(3) is None


OWN = """
import torch

def stay(how, mask, theta, gradient, ctx):
    return mask

def in_place(how, mask, theta, gradient, ctx):
    mask[:] = True
    return mask

def nothing(how, mask, theta, gradient, ctx):
    return None

def empty(how, mask, theta, gradient, ctx):
    return torch.zeros_like(mask)

class Halves:
    def initialise(self, how, density, layout, key):
        return torch.arange(layout.dim) % 2 == 0

    def __call__(self, how, mask, theta, gradient, ctx):
        return ~mask

halves = Halves()
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("mine", None)


def test_a_searcher_that_grows_masks_in_place_hurts_nobody(own, tmp_path):
    for engine in ("local", "pool"):
        run(recipe("fedspa", method={"search": "mine:in_place"}, engine=engine), tmp_path / engine)
    a, b = ((tmp_path / engine / "clients.jsonl").read_bytes() for engine in ("local", "pool"))
    assert a == b


def test_a_searcher_may_choose_where_to_begin(own):
    r = recipe("fedspa", method={"search": "mine:halves"})
    device, _ = prepare(r)
    assert r.method.first(3, device.ctx(0)).tolist()[:4] == [True, False, True, False]
    assert run(r).summary["total"]["paper_down"] == 9 * 4 * 2405


@pytest.mark.parametrize(
    ("name", "said"), [("nothing", "is not a vector of 4810 bools"), ("empty", "without any weight")]
)
def test_a_searcher_that_gives_no_mask_is_told_off(name, said, own):
    with pytest.raises(ClientFailed, match=f'search: "mine:{name}" returned a mask that .*{said}'):
        run(recipe("fedspa", method={"search": f"mine:{name}"}))


def test_a_searcher_of_your_own(own, tmp_path):
    run(recipe("fedspa", method={"search": "mine:stay"}), tmp_path / "a")
    run(recipe("fedspa", method={"search": "rsm"}), tmp_path / "b")
    assert (tmp_path / "a" / "rounds.jsonl").read_bytes() == (tmp_path / "b" / "rounds.jsonl").read_bytes()


def test_the_shared_model_is_tested_beside_the_personal_ones(tmp_path):
    r = recipe("fedspa", evaluate={"points": ["before", "shared"]})
    done = run(r, tmp_path / "run")
    device, _ = prepare(r)
    theta = kept(tmp_path / "run", r.method).theta
    right = [device.score(as_model(device.task, theta), k) for k in range(6)]
    want = sum(s.correct / s.samples for s in right) / 6
    assert done.summary["shared"]["accuracy"] == pytest.approx(want)
    assert done.summary["before"]["accuracy"] != done.summary["shared"]["accuracy"]
    with pytest.raises(
        RecipeError, match=r'evaluate\.points: "shared" is not allowed; the server of local has no shared model'
    ):
        run(recipe("local", evaluate={"points": ["shared"]}))


# -- Sub-FedAvg ------------------------------------------------------------------------------------------------------


def test_the_percentile_as_numpy_counts_it():
    import numpy as np

    for n in (1, 2, 20, 21, 100, 101, 999):
        values = np.arange(n) * 1.7 + 3
        for share in (0.0, 0.05, 0.25, 0.5, 1.0):
            want = int((values < np.percentile(values, 100 * share) - 1e-9).sum())
            assert below_percentile(n, share) == want


def test_sub_fedavg_by_hand():
    """Two samples in one batch, weights so small that the softmax is even: gradients -+1/4 (1, 1, 2), step by step.

    With p = 1/2 throughout (logits of 1e-3 or less), the sample (1, 0, 2) of class 0 and (0, 1, 0) of class 1 give
    class 0 a gradient of -1/4 (1, -1, 2) and class 1 the opposite: each epoch moves weights 0 and 3 by lr / 4, 1 and 4
    by lr / 4, 2 and 5 by lr / 2, towards or away from 0.
    """
    lr = 4e-3
    method = SubFedAvg(prune_rate=0.4, density=0.5, distance=0.0, accuracy=0.0, epochs=2, lr=lr)
    data, ctx = six_weights([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]], [0, 1])
    w = torch.tensor([3.0, 3.5, 4.0, 3.2, 9.0, 9.0]) * 1e-3
    ones = torch.ones(6, dtype=torch.bool)
    client, message, model = method.local(SubClient(ones), {"server": Message(theta=Values(w))}, data, ctx)
    # after an epoch: 4.0, 2.5, 6.0, 2.2, 10, 7: of six alive ceil(0.4 * 5) = 2 go, weights 3 and 1;
    # after another: 5.0, 1.5, 8.0, 1.2, 11, 5: still 3 and 1, so nothing is pruned
    assert model.tolist() == pytest.approx([5e-3, 1.5e-3, 8e-3, 1.2e-3, 11e-3, 5e-3], abs=2e-5)
    assert torch.equal(client.mask, ones)
    w = torch.tensor([2.0, 3.4, 9.0, 9.0, 9.0, 7.0]) * 1e-3
    client, message, model = method.local(SubClient(ones), {"server": Message(theta=Values(w))}, data, ctx)
    # after an epoch 3.0, 2.4, 11, 8, 10, 5: 1 and 0 would go; after another 4.0, 1.4, 13, 7, 11, 3: 1 and 5 do
    late = bits(0, 2, 3, 4)
    assert torch.equal(client.mask, late)
    assert model.tolist() == pytest.approx([4e-3, 0, 13e-3, 7e-3, 11e-3, 0], abs=2e-5)
    assert message["theta"].values.tolist() == pytest.approx([4e-3, 13e-3, 7e-3, 11e-3], abs=2e-5)
    # another round within that mask: what is pruned stays so, and 4 of 6 is above the density, so two more may go
    server = SubServer(torch.full((6,), 5e-3), {0: Packed.of(late)})
    down = method.down(server, 0, ctx)
    assert len(down["theta"].values) == 4
    again, message, model = method.local(client, {"server": down}, data, ctx)
    assert model[1] == model[5] == 0
    assert not bool((again.mask & ~late).any())


@pytest.mark.parametrize(
    ("how", "prunes"),
    [
        ({}, True),
        ({"distance": 1.0}, False),  # candidates never differ by more than everything
        ({"accuracy": 1.0}, False),
        ({"density": 1.0}, False),  # already there
    ],
)
def test_when_sub_fedavg_prunes(how, prunes):
    r = recipe("subfedavg", data={"sample_share": 1.0}, method={"epochs": 4, "accuracy": 0.1} | how)
    device, fleet = prepare(r)
    ctx = device.ctx(0, "local", 0, 0)
    server = r.method.start(6, ctx)
    inbox = {"server": r.method.down(server, 0, ctx)}
    client, message, _ = r.method.local(r.method.join(0, ctx), inbox, fleet.local(0), ctx)
    layout = device.task.layout
    # ceil(0.05 * 4095) = 205 of 4,096 and ceil(0.05 * 639) = 32 of 640 weights go
    assert layout.counts(client.mask) == ([3891, 64, 608, 10] if prunes else [4096, 64, 640, 10])
    assert len(message["theta"].values) == sum(layout.counts(client.mask))


def test_sub_fedavg_averages_over_those_who_hold_a_weight():
    method = SubFedAvg()
    _, ctx = six_weights([[1.0, 0.0, 0.0]], [0])
    server = SubServer(torch.full((6,), 9.0), {})
    all_six = torch.ones(6, dtype=torch.bool)

    def said(mask, *values):
        return Message(mask=MaskChange.between(all_six, mask), theta=Values(torch.tensor(values)))

    messages = [said(bits(0, 1, 2, 4), 1.0, 2.0, 3.0, 4.0), said(bits(0, 1, 5), 3.0, 4.0, 8.0)]
    after = method.merge(server, [(k, method.read(server, k, m, ctx)) for k, m in enumerate(messages)], ctx)
    assert after.theta.tolist() == [2.0, 3.0, 3.0, 9.0, 4.0, 8.0]  # nobody holds weight 3: it stays
    assert torch.equal(after.masks[1].mask(), bits(0, 1, 5))


def test_sub_fedavg_comes_down_to_its_density():
    r = recipe("subfedavg", data={"sample_share": 1.0}, method={"epochs": 2, "prune_rate": 0.1})
    device, _ = prepare(r)
    method, store = r.method, Store()
    server = method.start(6, device.ctx(0, "start"))
    for t in range(25):
        server, _ = star(method, LocalEngine(device), store, server, t, list(range(6)), device.ctx(t, "merge", t), ())
    scope = masks.weights(device.task.layout)
    densities = [masks.density(device.task.layout, server.masks[k].mask(), scope) for k in range(6)]
    assert all(0.44 < d <= 0.5 for d in densities)  # the last pruning starts above 1/2 and takes a tenth


# -- Subsampling -----------------------------------------------------------------------------------------------------


def test_subsampling_sends_half_and_the_rest_counts_as_no_update():
    method = Subsampling(density=0.5, weighting="uniform", lr=0.5)
    data, ctx = six_weights([[1.0, 2.0, 0.0]], [0])
    w = torch.tensor([0.5, -0.5, 0.25, 0.125, -0.25, 1.0])
    _, message, theta = method.local(None, {"server": Message(theta=Values(w))}, data, ctx)
    assert len(message["theta"].values) == 3
    part = method.part(ctx.layout, Rng(message["seed"]))
    after = method.merge(w, [(0, method.read(w, 0, message, ctx))], ctx)
    assert torch.equal(after, torch.where(part, theta, w))
    two = method.merge(w, [(k, method.read(w, k, m, ctx)) for k, m in enumerate([message, message])], ctx)
    assert torch.equal(two, after)
    later = [replace(ctx, t=t, rng=Rng(1, "local", t)) for t in range(20)]
    parts = [method.local(None, {"server": Message(theta=Values(w))}, data, c)[1]["seed"] for c in later]
    assert len(set(parts)) == 20  # drawn anew each round
    assert len({tuple(method.part(ctx.layout, Rng(seed)).tolist()) for seed in parts}) > 10  # of 20 there are


def test_read_refuses_a_seed_that_is_none():
    method = Subsampling()
    _, ctx = six_weights([[1.0, 0.0, 0.0]], [0])
    with pytest.raises(WireError):
        method.read(torch.zeros(6), 0, Message(theta=Values(torch.zeros(3)), samples=1), ctx)
