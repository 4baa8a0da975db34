"""Split-Mix, and PerFedMask with it and with HeteroFL: by hand, and where they must coincide with what they are of."""

import math

import pytest
import torch

from small import recipe
from sparsona.core.model import Ensemble
from sparsona.core.rng import Rng
from sparsona.core.task import Task
from sparsona.core.wire import Bits, Message, Values, WireError
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import star
from sparsona.engines.store import Store
from sparsona.experiment.recipe import RecipeError
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.methods.heterofl import leading
from sparsona.methods.splitmix import SplitMix, first_bases, rotation
from sparsona.papers.sizes import layout_of

DEEP = {"model": {"name": "digits-deep"}}
HARD = {"momentum": 0.9, "weight_decay": 0.01}


def scene(name, **how):
    device, fleet = prepare(recipe(name, method={**HARD, **how}, **DEEP))
    return device, fleet, device.method, device.method.start(fleet.clients, device.ctx(0, "start"))


def trained(name, rounds=2, **how):
    """The shared model after some rounds with four of six clients."""
    device, _, method, server = scene(name, **how)
    store = Store()
    for t in range(rounds):
        server, _ = star(method, LocalEngine(device), store, server, t, [0, 1, 3, 5], device.ctx(t, "merge", t), ())
    return method.shared(server).flatten()


def test_bases_are_trained_in_turns():
    common = Rng(1, "common")
    order = common("bases").permutation(4).tolist()
    for k in range(3):
        visited = [rotation(4, 1, k, t, common).nonzero().item() for t in range(4)]
        assert visited == [order[(k + t) % 4] for t in range(4)]  # each once
    assert torch.stack([rotation(4, 1, k, 2, common) for k in range(4)]).sum(0).tolist() == [1, 1, 1, 1]
    assert torch.stack([rotation(4, 2, 0, t, common) for t in range(2)]).sum(0).tolist() == [1, 1, 1, 1]
    assert rotation(4, 3, 1, 0, common).sum() == 3
    assert rotation(4, 4, 3, 9, common).all()


def test_bases_begin_with_values_of_their_own():
    device, _ = prepare(recipe("splitmix"))
    ctx = device.ctx(0, "start")
    rows = first_bases(3, ctx)
    assert torch.equal(rows[0], device.theta0)
    assert not torch.equal(rows[1], rows[2])
    assert torch.equal(rows, first_bases(3, device.ctx(5, "elsewhere")))
    assert rows[1].std() == pytest.approx(float(rows[0].std()), rel=0.1)


def test_the_mixture_is_the_mean_of_logits():
    device, fleet = prepare(recipe("splitmix"))
    x, _ = fleet.local(0).train.at(torch.arange(4))
    rows = first_bases(2, device.ctx(0, "start"))
    both = [device.task.logits(row, x) for row in rows]
    torch.testing.assert_close(Ensemble(device.task, rows).logits(x), (both[0] + both[1]) / 2)


def test_each_base_is_averaged_over_its_trainers():
    device, _ = prepare(recipe("splitmix"))
    method, ctx, d = SplitMix(bases=2, weak=2), device.ctx(0, "merge", 0), device.task.layout.dim
    server = torch.zeros(2 * d)
    weak = [method.chosen(k, ctx) for k in (0, 1)]  # one base each, not the same
    assert (weak[0] ^ weak[1]).all()
    answers = []
    for k, (value, samples) in enumerate(((1.0, 30), (3.0, 10), (5.0, 10))):  # the last is strong and trains both
        size = int(method.chosen(k, ctx).sum()) * d
        message = Message(theta=Values(torch.full((size,), value)), samples=samples)
        answers.append((k, method.read(server, k, message, ctx)))
    merged = method.merge(server, iter(answers), ctx).view(2, d)
    assert (merged[weak[0]] == 2.0).all()  # (30 * 1 + 10 * 5) / 40
    assert (merged[weak[1]] == 4.0).all()  # (10 * 3 + 10 * 5) / 20
    only = method.merge(server, iter(answers[:1]), ctx).view(2, d)
    assert (only[weak[1]] == 0).all()  # nobody trained it


def test_one_base_is_fedavg():
    assert torch.equal(trained("splitmix", bases=1, weak=0), trained("fedavg"))


def test_one_base_is_perfedmask():
    how = {"strong": 0.5, "budget": 0.3}
    assert torch.equal(trained("perfedmask+splitmix", bases=1, **how), trained("perfedmask", **how))


def test_the_whole_width_is_perfedmask():
    how = {"strong": 0.5, "budget": 0.3}
    assert torch.equal(trained("perfedmask+heterofl", width=1.0, **how), trained("perfedmask", **how))


def test_with_nothing_frozen_it_is_heterofl():
    hetero = trained("heterofl", keep=[0.25] * 3 + [1.0] * 3)
    assert torch.equal(trained("perfedmask+heterofl", width=0.5, budget=1.0, freeze_head=False), hetero)


def test_outputs_of_narrow_layers_are_divided_in_training_by_hand():
    """Weights 0.5 and 0, no bias but one of 1 in the second layer, head 3, input 1, label 1; width 1/2.

    Divided twice: the first layer gives 0.5 / 0.5 = 1, the second (0 + 1) / 0.5 = 2, the logit is 6. With s the error
    of the logit, the head's gradient is 2 s; the bias's is 3 s / 0.5; the second weight's the same, its input being 1;
    the first one's is 0, since the second weight is.
    """
    model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, False))
    task, _ = Task.of(model, torch.zeros(1, 1))
    theta = torch.tensor([0.5, 0.0, 1.0, 3.0])
    batch = torch.ones(1, 1), torch.ones(1, dtype=torch.long)
    task.load(theta)
    with task.scaled(0.5):
        assert task.model(batch[0]).item() == 6.0
        found = [float(g) for g in task.gradients(batch)]
    s = 1 / (1 + math.exp(-6)) - 1
    assert found == pytest.approx([0.0, 6 * s, 6 * s, 2 * s], rel=1e-4)
    assert task.logits(theta, batch[0]).item() == 3.0  # outside nothing is divided


def test_a_model_with_normalisation_needs_no_division():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    task, theta = Task.of(model, torch.zeros(2, 2))
    task.load(theta)
    x = torch.randn(4, 2)
    want = task.model(x)
    with task.scaled(0.5):
        assert torch.equal(task.model(x), want)


def test_the_scaler_is_for_narrow_clients_alone():
    plain, scaled = (trained("heterofl", keep=0.25, scaler=s) for s in (False, True))
    assert not torch.equal(plain, scaled)
    plain, scaled = (trained("heterofl", keep=1.0, scaler=s) for s in (False, True))
    assert torch.equal(plain, scaled)


def test_masks_within_a_narrow_part():
    """Width a half of 64-96-64-48-32 is 32-48-32-24-16: of its 6,424 parameters 0.3 may be trained, and are."""
    device, fleet, method, server = scene("perfedmask+heterofl", width=0.5, strong=0.5, budget=0.3)
    layout = device.task.layout
    assert method.layers(layout) == (2080, 1584, 1568, 792, 400)
    ctx, part = device.ctx(0, "local", 0, 0), leading(layout, 0.25)
    for k in range(6):
        inbox = {"server": method.down(server, k, ctx)}
        before = method.personal(None, inbox, fleet.local(k), ctx)
        _, message, theta = method.local(None, inbox, fleet.local(k), ctx)
        moved, sent = theta != before, len(message["theta"].values)
        assert not moved[layout.head].any()
        if k < 3:
            assert 0 < sent <= 0.3 * 6424
            assert not moved[~part].any()
            assert (theta[~part] == 0).all()
        else:
            assert sent == sum(layout.groups)


def test_masks_in_each_base():
    device, fleet, method, server = scene("perfedmask+splitmix", bases=2, strong=0.5, budget=0.3)
    layout, ctx = device.task.layout, device.ctx(0, "local", 0, 0)
    heads = first_bases(2, ctx)[:, layout.head]
    for k, bases in ((0, 1), (5, 2)):
        inbox = {"server": method.down(server, k, ctx)}
        assert len(inbox["server"]["theta"].values) == bases * sum(layout.groups)
        _, message, _ = method.local(None, inbox, fleet.local(k), ctx)
        move = method.moving(layout, server.layers[k])
        assert len(message["theta"].values) == bases * int(move.sum())
        answer = method.read(server, k, message, ctx)
        merged = method.merge(server, iter([(k, answer)]), ctx).theta.view(2, -1)
        changed = merged != server.theta.view(2, -1)
        assert torch.equal(merged[:, layout.head], heads)
        assert not changed[:, ~move].any()
        assert changed.any(1).sum() == bases
    assert 0 < int(method.moving(layout, server.layers[0]).sum()) <= 0.3 * sum(layout.groups)


def test_leading_channels_are_as_many_as_a_narrow_model_has():
    """Of the paper's models, by the counts of their narrow forms."""
    assert leading(layout_of("preresnet18", 10, (3, 32, 32)), 1 / 64).sum() == 176_178
    assert leading(layout_of("mobilenet", 100, (3, 32, 32)), 1 / 16).sum() == 238_772


def test_tuning_moves_all_bases():
    device, fleet, method, server = scene("splitmix", bases=2)
    tuned = method.finish(method.shared(server), fleet.local(0), device.ctx(1, "finish", 0))
    assert not (tuned == method.shared(server)).all(1).any()


def test_messages_that_do_not_fit_are_refused():
    device, fleet, method, server = scene("splitmix", bases=2, weak=6)
    ctx = device.ctx(0, "merge", 0)
    with pytest.raises(WireError, match="holds 3 values"):
        method.read(server, 0, Message(theta=Values(torch.zeros(3)), samples=1), ctx)
    for chosen in (torch.zeros(2, dtype=torch.bool), torch.ones(3, dtype=torch.bool)):
        wrong = Message(theta=Values(server), bases=Bits(chosen))
        with pytest.raises(WireError, match="bases were sent, not some of 2"):
            method.local(None, {"server": wrong}, fleet.local(0), ctx)
    device, fleet, method, server = scene("perfedmask+heterofl")
    wide = method.down(server, 0, ctx)
    wrong = Message(theta=wide["theta"], layers=wide["layers"], width=1.5)
    with pytest.raises(WireError, match=r"a width of 1\.5"):
        method.local(None, {"server": wrong}, fleet.local(0), ctx)


@pytest.mark.parametrize(
    ("name", "how", "says"),
    [
        ("splitmix", {"weak_bases": 9}, r"method\.weak_bases: 9 is not allowed; expected an int <= bases = 8"),
        (
            "perfedmask+splitmix",
            {"weak_bases": 9},
            r"method\.weak_bases: 9 is not allowed; expected an int <= bases = 8",
        ),
        ("perfedmask+heterofl", {"width": 0.0}, r"method.width: 0.0 is not allowed; expected a float in \(0, 1\]"),
        (
            "perfedmask+splitmix",
            {"budget": [0.5] * 6},
            r"method\.budget: a list is not allowed with bases; expected a float or a table that it is drawn from",
        ),
        (
            "perfedmask+heterofl",
            {"budget": [0.5] * 6},
            r"method\.budget: a list is not allowed with width; expected a float or a table that it is drawn from",
        ),
    ],
)
def test_bad_fields_are_refused(name, how, says):
    with pytest.raises(RecipeError, match=says):
        run(recipe(name, method={"bases": 8, **how} if "splitmix" in name else how))
