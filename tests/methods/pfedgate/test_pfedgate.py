"""pFedGate: the spec's oracles on whole rounds, budgets, messages, and what it refuses."""

import dataclasses

import pytest
import torch

from small import recipe
from sparsona.core.objective import Objective
from sparsona.core.samples import LocalData
from sparsona.core.wire import Bits, Message, Values, WireError, encode
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import star
from sparsona.engines.store import Store
from sparsona.engines.values import loads, types_of
from sparsona.experiment.plan import load
from sparsona.experiment.recipe import RecipeError
from sparsona.experiment.recipe_files import recipe_names
from sparsona.experiment.recorder import mean_notes
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.methods.fedavg import FedAvg
from sparsona.methods.pfedgate.blocks import cut, flat
from sparsona.methods.pfedgate.pfedgate import PFedGate


def scene(**fields):
    device, fleet = prepare(recipe("pfedgate", method={"epochs": 2, **fields}))
    method = device.method
    client = method.join(0, device.ctx(0, "join", 0))
    inbox = {"server": method.down(method.start(6, device.ctx(0, "start")), 0, device.ctx(0, "down"))}
    return device, fleet, method, client, inbox


def trained(**fields):
    device, fleet, method, client, inbox = scene(**fields)
    return device, method, client, *method.local(client, inbox, fleet.local(0), device.ctx(0, "local", 0, 0))


@pytest.mark.parametrize("split", ["flat", "even", "rows", "channels"])
@pytest.mark.parametrize("keep", [0.5, 0.3])
def test_kept_and_sent(split, keep):
    blocks = 10 if split == "rows" else 5  # the head is an eighth of this model, and always kept by rows
    device, method, _, new, message, _ = trained(split=split, keep=keep, blocks=blocks)
    assert 0.1 < new.kept <= keep
    assert new.kept <= new.sent + 1e-9 <= 1 + 1e-9  # a mean of equal shares may be one bit off
    assert len(message["theta"].values) == round(new.sent * device.task.layout.params)
    notes = method.report(new, None, 0, device.ctx(0, "x")).figures
    assert (notes.pop("sparsity"), notes.pop("sent")) == (1 - new.kept, new.sent)
    assert len(notes) == 11
    assert sum(notes.values()) == pytest.approx(1)
    assert notes["gate weights: dropped"] > 0


def test_an_update_is_where_blocks_were_kept():
    """With momentum and decay, too, nothing else moves."""
    device, method, _, _, message, _ = trained(momentum=0.9, weight_decay=0.1, keep=0.3, epochs=1, batch=64)
    ctx = device.ctx(0, "merge", 0)
    blocks = method.gated(0.3, ctx).blocks
    mask = blocks.spread(message["blocks"].mask)
    assert not mask.all()
    server = method.merge(device.theta0, [(0, method.read(device.theta0, 0, message, ctx))], ctx)
    assert torch.equal(server[~mask], device.theta0[~mask])
    moved = torch.bincount(blocks.index, weights=(server != device.theta0).double()) > 0
    assert torch.equal(moved, message["blocks"].mask)


def test_all_blocks_are_kept_at_one():
    _, _, _, new, message, _ = trained(keep=1.0)
    assert (new.kept, new.sent) == (1.0, 1.0)
    assert message["blocks"].mask.all()


def test_gates_stay_at_home():
    """What is sent has the size of the blocks and nothing else, and says the same of equal models under other gates."""
    device, fleet, method, client, inbox = scene(
        keep=1.0, sigmoid=False, pre_norm=False, post_norm=False, lr_gate=1e-30
    )
    task = method.gated(1.0, device.ctx(0, "x")).gate
    sent = []
    for importance in (0.25, 0.75):  # G says nothing where all is kept, so only the gate itself differs
        gate = torch.zeros_like(client.gate)
        bias = task.layout.unflatten(gate)["linear.bias"]
        bias[: len(bias) // 2], bias[len(bias) // 2 :] = importance, 1.0
        still = dataclasses.replace(client, gate=gate)
        new, message, _ = method.local(still, inbox, fleet.local(0), device.ctx(0, "local", 0, 0))
        assert torch.allclose(new.gate, gate, rtol=0, atol=1e-20)
        sent.append(encode(message))
    assert sent[0] == sent[1]
    other = method.join(1, device.ctx(0, "join", 1))
    assert not torch.equal(client.gate, other.gate)


def test_aggregation_toy():
    """Blocks 0, 2 from client 1, blocks 1, 2 from 2, 0, 1 from 3, all from 4: each is the mean over its senders."""
    device, _ = prepare(recipe("pfedgate", method={"keep": 0.9, "blocks": 3}))
    method, ctx, d = device.method, device.ctx(0, "merge", 0), device.task.layout.dim
    blocks = method.gated(0.9, ctx).blocks
    senders = {0: (0, 2), 1: (1, 2), 2: (0, 1), 3: (0, 1, 2)}
    samples = {0: 10, 1: 20, 2: 30, 3: 40}
    inbox = []
    for k, own in senders.items():
        chosen = torch.zeros(len(blocks), dtype=torch.bool)
        chosen[list(own)] = True
        values = Values.of(torch.full((d,), k + 1.0), blocks.spread(chosen, d))
        inbox.append(
            (k, method.read(device.theta0, k, Message(blocks=Bits(chosen), theta=values, samples=samples[k]), ctx))
        )
    server = method.merge(device.theta0, inbox, ctx)
    means = [(10 * 1 + 30 * 3 + 40 * 4) / 80, (20 * 2 + 30 * 3 + 40 * 4) / 90, (10 * 1 + 20 * 2 + 40 * 4) / 70]
    for number, mean in enumerate(means):
        assert torch.allclose(server[blocks.index == number], torch.tensor(mean))
    rest = blocks.index > 2
    assert torch.equal(server[rest], device.theta0[rest])
    dense = PFedGate(keep=0.9, blocks=3, aggregation="dense").merge(device.theta0, inbox, ctx)
    first = blocks.index == 0
    assert torch.allclose(dense[first], (10 + 90 + 160 + 20 * device.theta0[first]) / 100)
    assert torch.allclose(dense[rest], device.theta0[rest])


def test_a_gate_that_always_says_one_is_fedavg():
    """With M held at 1 and nothing dropped, the model is trained as FedAvg trains it."""
    device, fleet, method, client, inbox = scene(
        keep=1.0, sigmoid=False, pre_norm=False, post_norm=False, lr_gate=1e-30
    )
    gate = torch.zeros_like(client.gate)
    task = method.gated(1.0, device.ctx(0, "x")).gate
    views = task.layout.unflatten(gate)
    views["linear.bias"].fill_(1.0)
    still = dataclasses.replace(client, gate=gate)
    _, message, _ = method.local(still, inbox, fleet.local(0), device.ctx(0, "local", 0, 0))
    how = {"lr": method.lr, "batch": method.batch, "epochs": 2, "momentum": method.momentum, "clip": 10.0}
    _, want, _ = FedAvg(**how).local(None, inbox, fleet.local(0), device.ctx(0, "local", 0, 0))
    assert torch.allclose(message["theta"].values, want["theta"].values, atol=1e-5)


def test_momentum_stays_with_the_client_or_not():
    assert trained(momentum=0.9)[3].model_velocity is not None
    new = trained(momentum=0.9, velocity="round")[3]
    assert new.model_velocity is None
    assert new.gate_velocity is None
    assert trained(momentum=0.0)[3].gate_velocity is None


@pytest.mark.parametrize(
    "fields",
    [
        {"pre_norm": False},
        {"post_norm": False},
        {"sigmoid": False, "lr": 0.05},  # unbounded weights need smaller steps
        {"adapt": "client"},
        {"shared_branch": True},
        {"st_kept_only": True},
        {"gate_start": "common"},
        {"momentum_on": "all"},
        {"selector": "exact", "budget": "exact"},
        {"selector": "greedy_ratio"},
        {"keep": {"low": 0.2, "high": 1.0}},
        {"keep": {"values": [0.3, 0.1], "weights": [1, 1]}},
        {"keep": [1.0, 0.5, 0.5, 0.3, 0.3, 0.1]},
        {"blocks": 200},
    ],
    ids=str,
)
def test_options_train(fields):
    """Each option gives another run than none, and a client's model is better after five passes over its own data."""
    device, fleet, method, client, inbox = scene(**fields, epochs=5)
    x, y = fleet.local(0).train.at(torch.arange(len(fleet.local(0))))
    before = method.personal(client, inbox, fleet.local(0), device.ctx(0, "personal", 0, 0)).logits(x)
    _, message, model = method.local(client, inbox, fleet.local(0), device.ctx(0, "local", 0, 0))
    assert (
        Objective()(model.logits(x), y) < Objective()(before, y) - 0.04
    )  # many blocks, or unbounded weights, begin slowly
    plain = trained(epochs=5)[4]
    assert not torch.equal(message["theta"].values, plain["theta"].values)


def test_client_wise_adaptation_sees_no_batch():
    """Predictions for a sample are then the same in any company."""
    device, fleet, method, client, inbox = scene(adapt="client")
    new, _, model = method.local(client, inbox, fleet.local(0), device.ctx(0, "local", 0, 0))
    x, _ = fleet.local(0).train.at(torch.arange(8))
    assert torch.allclose(model.logits(x)[:1], model.logits(x[:1]), atol=1e-6)
    again = method.personal(new, inbox, fleet.local(0), device.ctx(0, "personal", 0, 0))
    assert again.logits(x).shape == (8, 10)


def test_gates_that_start_alike():
    device, _, method, _, _ = scene(gate_start="common")
    first, second = (method.join(k, device.ctx(0, "join", k)).gate for k in (0, 1))
    assert torch.equal(first, second)
    own = scene()[2]
    assert not torch.equal(own.join(0, device.ctx(0, "join", 0)).gate, own.join(1, device.ctx(0, "join", 1)).gate)


def test_momentum_on_all_weights_moves_dropped_blocks_and_sends_them():
    """In the first step no block has momentum yet, so decay alone moves dropped ones: by lr times decay."""
    fields = {"momentum": 0.9, "weight_decay": 0.1, "lr": 0.5, "batch": 1000, "epochs": 1}
    device, fleet, method, client, inbox = scene(momentum_on="all", **fields)
    theta = inbox["server"]["theta"].values
    new, message, _ = method.local(client, inbox, fleet.local(0), device.ctx(0, "local", 0, 0))
    kept = trained(**fields)[4]["blocks"].mask
    assert message["blocks"].mask.all()
    assert not kept.all()
    dropped = ~method.gated(client.keep, device.ctx(0, "x")).blocks.spread(kept, device.task.layout.dim)
    expected = theta[dropped] * (1 - 0.5 * 0.1)
    assert torch.allclose(message["theta"].values[dropped], expected, atol=1e-7)
    assert new.sent == 1.0


def test_relu_on_logits_in_training_and_export():
    device, fleet, method, client, inbox = scene(relu_logits=True)
    _, _, model = method.local(client, inbox, fleet.local(0), device.ctx(0, "local", 0, 0))
    x, _ = fleet.local(0).train.at(torch.arange(len(fleet.local(0))))
    logits = model.logits(x)
    assert logits.min() == 0
    assert (logits > 0).any()
    with torch.no_grad():
        assert torch.allclose(model.module()(x), logits, atol=1e-5)


def test_a_batch_of_one_is_not_trained_on_but_predicted():
    device, fleet, method, client, inbox = scene()
    data = fleet.local(0)
    lonely = LocalData(dataclasses.replace(data.train, index=data.train.index[:1]), data.validation)
    new, message, model = method.local(client, inbox, lonely, device.ctx(0, "local", 0, 0))
    assert torch.equal(new.gate, client.gate)
    assert not message["blocks"].mask.any()
    assert model.logits(data.train.at(torch.tensor([0]))[0]).shape == (1, 10)
    assert method.report(new, None, 0, device.ctx(0, "x")).figures == {"sent": 0.0}


def test_means_of_notes_are_over_those_who_tell():
    notes = {2: {"sent": 0.0}, 0: {"sparsity": 0.5, "sent": 0.75}, 1: {"sparsity": 0.25, "sent": 0.75}}
    assert mean_notes(notes) == {"sparsity": 0.375, "sent": 0.5}


def test_the_gate_of_a_newcomer_learns_as_fast_as_all_gates_began():
    """However far the learning rate of the others has fallen, and here it has fallen to a millionth."""
    gates = []
    for how in ({"lr_schedule": "exponential", "lr_decay": 1e-3}, {}):
        device, fleet, method, client, inbox = scene(**how)
        new, _ = method.welcome(client, inbox, fleet.local(0), 2, device.ctx(device.rounds - 1, "adapt", 0))
        gates.append(new.gate)
    assert torch.equal(*gates)
    assert (gates[0] - client.gate).abs().max() > 0.01


def test_prediction_does_not_move_anything():
    *_, new, _, model = trained()
    x = torch.rand(5, 1, 8, 8)
    want, gate = model.logits(x), new.gate.clone()
    model.logits(torch.rand(9, 1, 8, 8))
    assert torch.equal(model.logits(x), want)
    assert torch.equal(new.gate, gate)
    assert not want.requires_grad


def test_messages_that_do_not_fit_are_refused():
    device, method, _, _, message, _ = trained()
    ctx = device.ctx(0, "merge", 0)
    with pytest.raises(WireError, match="flags of 3 blocks, not of 20"):
        method.read(device.theta0, 0, Message(**dict(message) | {"blocks": Bits(torch.ones(3).bool())}), ctx)
    with pytest.raises(WireError, match="part 'theta'"):
        method.read(device.theta0, 0, Message(**dict(message) | {"theta": Values(torch.zeros(3))}), ctx)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"keep": 0.0}, "keep"),
        ({"keep": 1.2}, "keep"),
        ({"keep": [0.5, -0.1]}, "keep"),
        ({"blocks": 0}, "blocks"),
        ({"split": "diagonal"}, "split"),
        ({"selector": "lucky"}, "selector"),
        ({"optimiser": "adam"}, "optimiser"),
        ({"batch": 1}, "batch: 1 is not allowed; expected an int >= 2"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(fields, what):
    with pytest.raises(RecipeError, match=f"method.*{what}"):
        recipe("pfedgate", method=fields)


def test_a_budget_that_does_not_fit_is_refused_before_the_run(tmp_path):
    cases = (
        # at 0.01 first blocks hold 40, 1, 6 and 1 of 4096, 64, 640 and 10 entries, and 48 are allowed
        (
            {"keep": 0.0005},
            r"method\.keep: 0\.0005 of 4,810 entries is 2, but the first blocks have 5 and are always kept; expected",
        ),
        # rows of the head, 650 in all, and a fifth of 64 units of 65 each: 1430 of 4810 is more than 0.29
        ({"keep": 0.25, "split": "rows"}, r"expected about 0\.3 or more"),
        ({"keep": [0.5]}, "keep: a list of 1 is not allowed; expected 6"),
        ({"blocks": 1}, r"method\.blocks: 1 is not allowed with keep < 1; expected an int >= 2"),
    )
    for fields, why in cases:
        with pytest.raises(ValueError, match=why):
            run(recipe("pfedgate", method=fields), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_rounds_by_devices_of_different_strength():
    device, _ = prepare(recipe("pfedgate", method={"keep": [1.0, 0.5, 0.5, 0.3, 0.3, 0.1]}))
    method, store = device.method, Store()
    server = method.start(6, device.ctx(0, "start"))
    star(method, LocalEngine(device), store, server, 0, list(range(6)), device.ctx(0, "merge", 0), ())
    for k, keep in enumerate(method.keep):
        client = loads(store.client(k), types_of(method))
        assert client.keep == keep
        assert 0 < client.kept <= keep


def test_operations_are_of_what_is_kept_and_of_the_gate():
    device, fleet, method, client, inbox = scene(keep=1.0, epochs=1)
    before = device.task.flops
    method.local(client, inbox, fleet.local(0), device.ctx(0, "local", 0, 0))
    n = len(fleet.local(0)) - (len(fleet.local(0)) % method.batch == 1)
    gate = 2 * 64 * 40 + 40  # 64 inputs, 20 blocks in two branches
    model = 2 * (64 * 64 + 64 * 10) + 64 + 10
    assert device.task.flops - before == 3 * n * (gate + model)


def own_splitter(layout, blocks, least):
    """Two blocks per tensor, whatever is asked for."""
    return flat(layout, 2, least)


def greedy_for_all(values, sizes, capacity):
    """Takes everything, whatever there is room for."""
    return sizes > 0


def vague(values, sizes, capacity):
    """Numbers of blocks instead of flags."""
    return [0]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"split": "os:getcwd"}, "split: getcwd failed: TypeError"),
        ({"split": "builtins:max"}, "split: max failed: TypeError"),
        ({"split": "builtins:print"}, r"method\.split: print returned NoneType; expected Blocks"),
        # linear layers at 0.5: round(0.3 (3277 + 52 + 512 + 8)) = 1155 of what is in no first block
        (
            {"selector": f"{__name__}:greedy_for_all"},
            r"method\.selector: greedy_for_all selected 3,849 entries; expected at most 1,155",
        ),
        (
            {"selector": f"{__name__}:vague"},
            r"method\.selector: vague returned another value; expected an array of 16 bools",
        ),
        ({"selector": "os:getcwd"}, "selector: getcwd failed: TypeError"),
    ],
    ids=str,
)
def test_plug_ins_that_do_not_work_are_refused_before_the_run(fields, why, tmp_path):
    with pytest.raises(ValueError, match=why):
        run(recipe("pfedgate", method=fields), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_splitter_of_ones_own():
    device, _ = prepare(recipe("pfedgate", method={"split": f"{__name__}:own_splitter"}))
    assert len(device.method.gated(0.5, device.ctx(0, "x")).blocks) == 8
    layout = device.task.layout.trained
    assert cut(flat, layout, 5, 0.2) is cut(flat, layout, 5, 0.2)


ROWS = {"split": "rows", "budget": "layers", "blocks": 10}  # what benchmarks/gate.py measures


@pytest.mark.parametrize(
    ("model", "keep", "how", "classes"),
    [
        ("digits-lenet", 0.5, {}, 10),
        ("digits-lenet", 0.3, {}, 10),
        ("digits-cnn", 0.5, {}, 4),
        ("digits-cnn", 0.3, {}, 2),
        ("digits-lenet", 0.5, ROWS, 10),
        ("digits-lenet", 0.3, ROWS, 10),
        ("digits-cnn", 0.5, ROWS, 10),
    ],
)
def test_classes_that_a_budget_leaves(model, keep, how, classes):
    """Beside a hidden layer the head is kept whole, whatever the gate says; alone it loses its classes two by two.

    Of rows it is always kept.
    """
    device, _ = prepare(recipe("pfedgate", model={"name": model}, method={"keep": keep, **how}))
    gated = device.method.gated(keep, device.ctx(0, "x"))
    for seed in range(5):
        chosen = gated.choose(torch.rand(len(gated.blocks), generator=torch.Generator().manual_seed(seed)))
        rows = gated.blocks.layout.unflatten(gated.blocks.spread(chosen))["head.weight"]
        assert int(rows.all(1).sum()) == int(rows.any(1).sum()) == classes


@pytest.mark.parametrize("keep", [0.5, 0.3])
def test_gates_over_rows_have_a_choice(keep):
    device, _ = prepare(recipe("pfedgate", model={"name": "digits-lenet"}, method={"keep": keep, **ROWS}))
    gated = device.method.gated(keep, device.ctx(0, "x"))
    drawn = torch.rand(20, len(gated.blocks), generator=torch.Generator().manual_seed(1))
    assert len({tuple(gated.choose(importance).tolist()) for importance in drawn}) > 10


@pytest.mark.slow
def test_what_the_benchmark_measures_learns():
    done = run(load("pfedgate/small/blocks", ["rounds=25"])["row-blocks-per-layer"]).summary
    assert done["after"]["accuracy"] > 0.9


@pytest.mark.slow
def test_newcomers_of_the_small_recipe_do_nearly_as_well_as_members():
    done = run(load("pfedgate/small/participation", ["rounds=16"])["pfedgate-s-0.5 fifth-newcomers"]).summary
    assert done["before"]["accuracy"] > 0.9
    assert done["newcomers"]["accuracy"] > 0.8


RATES = {  # Table 7, by data set and s: of the model, of the gate
    "emnist-byclass": {1.0: (0.1, 0.1), 0.5: (0.1, 0.1), 0.3: (0.03, 0.5)},
    "mnist": {1.0: (0.1, 0.1), 0.5: (0.1, 0.05), 0.3: (0.3, 0.05)},  # FEMNIST's, for MNIST by writer
    "cifar10": {1.0: (0.03, 0.05), 0.5: (0.03, 1.5), 0.3: (0.03, 1.5)},
    "cifar100": {1.0: (0.1, 1.5), 0.5: (0.03, 1.5), 0.3: (0.05, 0.5)},
}
UNPRINTED = {0.7: 0.5, 0.1: 0.3}  # they have those of a neighbour


@pytest.mark.parametrize("name", [n for n in recipe_names() if n.startswith("pfedgate/") and "/small/" not in n])
def test_recipes_at_the_papers_scale_have_its_learning_rates(name):
    found = [(r.data.source, r.method) for r in load(name).values() if isinstance(r.method, PFedGate)]
    if name == "pfedgate/gate-starts":  # gates that start open have rates of their own
        found = [(source, method) for source, method in found if method.open == 0.5]
    assert found
    for source, method in found:
        keep = method.keep if isinstance(method.keep, float) else 0.5  # mixed budgets learn at one rate
        assert (method.lr, method.lr_gate) == RATES[source][UNPRINTED.get(keep, keep)]


def test_budgets_of_first_blocks_alone_are_told(tmp_path):
    with pytest.warns(
        UserWarning, match=r"method.keep: 0.1 only has room for the first blocks.* of the head 1 of 10 outputs"
    ):
        run(load("pfedgate/small/ablations", ["rounds=1"])["s-0.1 epochs=4"], tmp_path / "run")
