"""PerFedMask, FedBABU and FedNova by hand, and where they must coincide."""

import dataclasses
import json
import warnings
from importlib.util import find_spec

import pytest
import torch

from small import recipe
from sparsona.core.rng import Rng
from sparsona.core.task import Task
from sparsona.core.wire import Bits, Message, Values, WireError
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import star
from sparsona.engines.store import Store
from sparsona.experiment.plan import load
from sparsona.experiment.recipe import RecipeError
from sparsona.experiment.runner import resume, run
from sparsona.experiment.setup import prepare
from sparsona.methods.fedavg import FedAvg
from sparsona.methods.fedbabu import FedBABU
from sparsona.methods.fednova import FedNova, reach
from sparsona.methods.heterofl import leading
from sparsona.methods.perfedmask.perfedmask import PerFedMask, Server
from sparsona.models import MODELS, Entry
from sparsona.reports.comparison import compare
from tiers import tiered

SAME = ("rounds.jsonl", "clients.jsonl")
HARD = {"lr": 0.1, "batch": 16, "momentum": 0.9, "weight_decay": 0.01}
BUDGET = {"strong": 0.5, "budget": 0.2}
FINISHED = {"evaluate": {"points": ["finished", "before"]}, "model": {"name": "digits-cnn"}}


def small(name="perfedmask", **more):
    method = {**HARD, **(BUDGET if name.startswith("perfedmask") else {}), **more.pop("method", {})}
    return recipe(name, method=method, **(FINISHED | more))


def accuracies(path):
    rows = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    return [(r["before"], r["validation"], r.get("finished")) for r in rows]


def test_full_budgets_are_fedbabu(tmp_path):
    run(small(method={"strong": 1.0}), tmp_path / "a")
    run(small("fedbabu"), tmp_path / "b")
    assert accuracies(tmp_path / "a") == accuracies(tmp_path / "b")


@pytest.mark.parametrize("model", ["digits-cnn", "normalised"])
def test_full_budgets_train_the_weights_of_fedbabu(model, monkeypatch):
    """To the bit, with running statistics as well."""

    def normalised(classes, shape):
        conv, norm = torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4)
        return torch.nn.Sequential(conv, norm, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, classes))

    monkeypatch.setitem(MODELS, "normalised", Entry(normalised, (1, 8, 8), 10, ""))
    ends = []
    for name, how in (("perfedmask", {"strong": 1.0}), ("fedbabu", {})):
        device, fleet = prepare(small(name, method=how, model={"name": model}))
        method, store = device.method, Store()
        server = method.start(fleet.clients, device.ctx(0, "start"))
        for t in range(2):
            server, _ = star(method, LocalEngine(device), store, server, t, [0, 2, 5], device.ctx(t, "merge", t), ())
        ends.append(method.shared(server))
        moved = (ends[-1] != device.theta0)[~device.task.layout.head]
        assert moved.float().mean() > 0.5
    assert torch.equal(*ends)


@pytest.mark.parametrize(
    ("name", "how"),
    tiered(
        [
            ("perfedmask", {}),
            ("fedbabu", {}),
            ("fednova", {"weak": 3, "weak_epochs": 2}),
            ("splitmix", {"weak": 3, "bases": 2}),
            ("perfedmask+heterofl", {"width": 0.5}),
            ("perfedmask+splitmix", {"bases": 2}),
        ]
    ),
)
def test_engines_agree_and_a_killed_run_goes_on(name, how, tmp_path):
    evaluate = {"points": ["finished", "before", "shared"]}
    one, other = (small(name, method=how, engine=engine, evaluate=evaluate) for engine in ("local", "pool"))
    run(one, tmp_path / "local")
    run(other, tmp_path / "pool")

    class Stop(Exception):
        pass

    def stop(step):
        if step.round == 2:
            raise Stop

    with pytest.raises(Stop):
        run(one, tmp_path / "killed", on_round=stop)
    resume(tmp_path / "killed")
    for name in (*SAME, "state/server.safetensors", "summary.json"):
        want = (tmp_path / "local" / name).read_bytes()
        assert (tmp_path / "pool" / name).read_bytes() == want, name
        assert (tmp_path / "killed" / name).read_bytes() == want, name


def scene(**more):
    device, fleet = prepare(small(method=more))
    method = device.method
    return device, fleet, method, method.start(fleet.clients, device.ctx(0, "start"))


def test_frozen_layers_never_move():
    """Not by gradients, not by decay, not by momentum; the head neither."""
    device, fleet, method, server = scene(epochs=3)
    layout = device.task.layout
    ctx = device.ctx(0, "local", 0, 0)
    trained = []
    for k in range(fleet.clients):
        inbox = {"server": method.down(server, k, ctx)}
        _, message, theta = method.local(None, inbox, fleet.local(k), ctx)
        move = method.moving(layout, server.layers[k])
        assert torch.equal(theta[~move], device.theta0[~move])
        assert not move[layout.head].any()
        assert len(message["theta"].values) == move.sum() <= (0.2 if k < 3 else 1.0) * sum(layout.groups)
        assert (theta != device.theta0)[move].float().mean() > 0.5
        trained.append(int(move.sum()))
    assert trained[3:] == [sum(layout.groups)] * 3
    assert 0 < max(trained[:3]) < sum(layout.groups)


def test_an_entry_is_averaged_over_those_who_train_it_and_kept_if_nobody_does():
    device, _, method, server = scene()
    layout = device.task.layout
    layers = torch.zeros(2, len(layout.groups), dtype=torch.bool)
    layers[0, 0] = layers[1, 0] = layers[1, 1] = True
    server = Server(server.theta, layers)
    ctx = device.ctx(0, "merge", 0)
    answers = []
    for k, (value, samples) in enumerate(((1.0, 30), (5.0, 10))):
        size = int(method.moving(layout, layers[k]).sum())
        message = Message(theta=Values(torch.full((size,), value)), samples=samples)
        answers.append((k, method.read(server, k, message, ctx)))
    merged = method.merge(server, iter(answers), ctx).theta
    flags = [False] * len(layout.groups)
    first, second = (layout.grouped([*flags[:i], True, *flags[i + 1 :]]) for i in (0, 1))
    assert (merged[first] == 2.0).all()  # (30 * 1 + 10 * 5) / 40
    assert (merged[second] == 5.0).all()
    rest = ~(first | second)
    assert torch.equal(merged[rest], server.theta[rest])


def test_a_message_that_does_not_fit_is_refused():
    device, fleet, method, server = scene()
    ctx = device.ctx(0, "merge", 0)
    with pytest.raises(WireError):
        method.read(server, 0, Message(theta=Values(torch.zeros(3)), samples=1), ctx)
    wrong = Message(theta=method.down(server, 0, ctx)["theta"], layers=Bits(torch.ones(9, dtype=torch.bool)))
    with pytest.raises(WireError, match="9 layers"):
        method.local(None, {"server": wrong}, fleet.local(0), ctx)


def test_without_a_frozen_head_it_is_one_more_layer():
    device, _, method, server = scene(freeze_head=False, strong=1.0)
    layout = device.task.layout
    assert sum(method.layers(layout)) == layout.params
    assert server.layers.shape == (6, len(layout.groups) + 1)
    assert method.moving(layout, server.layers[0]).all()


def test_of_equal_layers_the_upper_is_trained():
    """Layers of 16, 16 and 40, and a weak budget of 16, for which the last is too large.

    Both weak devices take the same layer, at 1/4 each; on one each they would be at 1/3. Either layer is as good, and
    by the optimiser it is the upper one, whose steps cost less.
    """
    model = torch.nn.Sequential(*(torch.nn.Linear(i, o, bias=False) for i, o in ((4, 4), (4, 4), (4, 10), (10, 2))))
    task, _ = Task.of(model, torch.zeros(1, 4))
    for solver, weak in (("optimised", [False, True, False]), ("sequential", [True, False, False])):
        found = PerFedMask(budget=0.23, solver=solver).design(4, task.layout, Rng(1))
        assert found.problem.budgets == (16, 16, 72, 72)  # 16.56, rounded down
        assert found.masks.tolist() == [weak, weak, [True] * 3, [True] * 3]


def test_the_best_round_is_kept_and_tuned(tmp_path):
    run(small(rounds=4), tmp_path / "a")
    rows = [json.loads(line) for line in (tmp_path / "a" / "rounds.jsonl").read_text().splitlines()]
    assert ["finished" in r for r in rows] == [False, False, False, True]
    assert all(0 <= r["validation"]["accuracy"] <= 1 for r in rows)
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert summary["accuracy"] == rows[-1]["finished"]["accuracy"] >= rows[-1]["before"]["accuracy"]


def test_before_and_after_tuning_are_of_the_best_round(tmp_path):
    """At this learning rate the last round is not the best: the model of the best one is tested, tuned and not."""
    how = {"rounds": 6, "evaluate": {"points": ["finished", "shared"]}}
    done = run(small(method={"lr": 0.4}, **how), tmp_path / "a")
    best = max(done.rounds, key=lambda r: (r["validation"]["accuracy"], -r["round"]))
    assert best["round"] < 6
    assert best["shared"] != done.rounds[-1]["shared"]
    assert done.summary["unfinished"] == done.rounds[-1]["unfinished"] == best["shared"]
    assert not any("unfinished" in r for r in done.rounds[:-1])
    table = compare([done])
    assert table.rows[0]["unfinished_accuracy"] == best["shared"]["accuracy"]
    headings = [column.title for part in table.parts() for column in part]
    assert "before fine-tuning %" in headings
    assert "shared model %" not in headings


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("perfedmask", {}),
        ("heterofl", {}),
        ("splitmix", {"bases": 2}),
        ("perfedmask+heterofl", {"width": 0.5}),
        ("perfedmask+splitmix", {"bases": 2}),
    ],
)
def test_without_tuning_after_is_before(name, how, tmp_path):
    done = run(small(name, method=how | {"finish_epochs": 0}, evaluate={"points": ["finished"]}), tmp_path / "a")
    assert done.summary["unfinished"] == done.summary["finished"]
    last = {row["client"]: row for row in done.rows("clients") if "finished" in row}
    assert len(last) == 6
    assert all(row["unfinished"] == row["finished"] for row in last.values())


def test_tuning_moves_the_whole_model():
    device, fleet, method, _ = scene()
    tuned = method.finish(device.theta0, fleet.local(0), device.ctx(2, "finish", 0))
    assert (tuned != device.theta0)[device.task.layout.head].all()
    none = dataclasses.replace(method, finish_epochs=0)
    assert torch.equal(none.finish(device.theta0, fleet.local(0), device.ctx(2, "finish", 0)), device.theta0)


def test_a_budget_below_the_smallest_layer_trains_nothing_and_says_so():
    device, fleet = prepare(small(method={"budget": 0.0001}))
    with pytest.warns(UserWarning, match=r"3 of 6 clients \(0, 1, 2\), which train nothing"):
        server = device.method.start(fleet.clients, device.ctx(0, "start"))
    ctx = device.ctx(0, "local", 0, 0)
    flops = device.task.flops
    inbox = {"server": device.method.down(server, 0, ctx)}
    _, message, theta = device.method.local(None, inbox, fleet.local(0), ctx)
    assert torch.equal(theta, device.theta0)
    assert len(message["theta"].values) == 0
    assert device.task.flops == flops


@pytest.mark.parametrize(("share", "budget"), [(0.29, 29), (0.299, 29), (0.285, 28), (0.3, 30)])
def test_budgets_are_whole_parameters_that_do_not_exceed_the_share(share, budget):
    """0.29 * 100 is 28.999..., but 0.29 of 100 is 29."""
    task, _ = Task.of(
        torch.nn.Sequential(torch.nn.Linear(10, 10, bias=False), torch.nn.Linear(10, 2)), torch.zeros(1, 10)
    )
    with pytest.warns(UserWarning, match="which train nothing"):
        found = PerFedMask(budget=share).design(2, task.layout, Rng(1))
    assert found.problem.budgets == (budget, 100)


def test_an_able_device_that_a_solver_leaves_idle_is_named():
    """Layers of 80, 16 and 8, and 17 to train: the first is too large, and sequential masks end there."""
    model = torch.nn.Sequential(*(torch.nn.Linear(i, o, bias=False) for i, o in ((10, 8), (8, 2), (2, 4), (4, 2))))
    task, _ = Task.of(model, torch.zeros(1, 10))
    with pytest.warns(
        UserWarning, match=r'"sequential" selects no layer, .* 1 of 2 clients \(0\), which train nothing'
    ):
        found = PerFedMask(budget=0.16, solver="sequential").design(2, task.layout, Rng(1))
    assert found.trained == [0, 104]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert PerFedMask(budget=0.16).design(2, task.layout, Rng(1)).trained == [16, 104]


def test_layers_that_nobody_trains_are_named():
    """Layers of 80, 16 and 8; 17 to train, and no device is strong."""
    model = torch.nn.Sequential(*(torch.nn.Linear(i, o, bias=False) for i, o in ((10, 8), (8, 2), (2, 4), (4, 2))))
    task, _ = Task.of(model, torch.zeros(1, 10))
    with pytest.warns(UserWarning, match=r"no client trains layers 0, 2 \(counted from 0\)"):
        PerFedMask(budget=0.16, strong=0).design(2, task.layout, Rng(1))


def test_a_model_that_is_all_head_is_refused():
    task, _ = Task.of(torch.nn.Linear(4, 2), torch.zeros(1, 4))
    with pytest.raises(ValueError, match="freeze_head: true is not allowed; expected false"):
        PerFedMask().design(2, task.layout, Rng(1))


def test_a_run_warns_of_idle_clients_once(tmp_path):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run(small(method={"budget": 0.0001}, rounds=1), tmp_path / "a")
    assert sum("which train nothing" in str(w.message) for w in told) == 1


def test_refinement_is_a_field():
    if find_spec("ortools") is None:
        pytest.skip("ortools is not installed")
    layout = prepare(small(model={"name": "digits-deep"}))[0].task.layout
    plain, better, best = (
        PerFedMask(budget=0.6, **how).design(6, layout, Rng(1))
        for how in ({"solver": "sequential"}, {"solver": "sequential", "refine": 5.0}, {})
    )
    assert plain.objective > better.objective == pytest.approx(best.objective)
    assert better.proven


def test_missing_or_tools_are_told_by_the_field(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ortools.sat.python", None)
    with pytest.raises(
        RecipeError, match=r"method\.refine: needs OR-tools, which is not installed: pip install 'sparsona\[cpsat\]'"
    ):
        run(small(method={"refine": 1.0, "budget": 0.37}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"refine": -1.0}, r"method.refine: -1.0 is not allowed; expected a float >= 0"),
        ({"strong": 1.5}, r"method\.strong: 1\.5 is not allowed; expected a float in \[0, 1\]"),
        ({"strong": -0.1}, r"method\.strong: -0\.1 is not allowed; expected a float in \[0, 1\]"),
        (
            {"budget": 1.2},
            r"method.budget: 1.2 is not allowed; expected a float in \(0, 1\] .*; a share of 1 is the whole body",
        ),
        ({"budget": [0.5, 0.5]}, r"method\.budget: a list of 2 is not allowed; expected 6 values"),
        ({"solver": "sequental"}, r'did you mean "sequential"'),
    ],
)
def test_bad_fields_are_refused(changes, says):
    with pytest.raises(RecipeError, match=says):
        run(small(method=changes))


@pytest.mark.parametrize("name", ["perfedmask", "fedbabu"])
def test_a_model_without_a_head_is_refused(name):
    task, theta0 = Task.of(torch.nn.Conv2d(1, 10, 8), torch.zeros(1, 1, 8, 8))
    device, _ = prepare(small(name))
    ctx = dataclasses.replace(device.ctx(0, "start"), task=task, theta0=theta0)
    with pytest.raises(
        ValueError,
        match="name: the method freezes the head, and this model has none; set head_name in the model's class",
    ):
        device.method.start(6, ctx)


def test_a_missing_solver_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cvxpy", None)
    with pytest.raises(RecipeError, match=r"pip install 'sparsona\[sca\]'"):
        run(small(method={"solver": "sca", "draws": 3, "budget": 0.31}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"),
    [
        # 21,626 parameters, 330 of them the head's; at half the width 6,594, 170 of them the head's
        (
            "main",
            {
                "fedavg": 21_626,
                "fedprox": 21_626,
                "fednova": 21_626,
                "fedbabu": 21_296,
                "heterofl": (21_626 + 6_594) / 2,
                "splitmix": 1.5 * 6_594,
            },
        ),
        ("combined", {}),
    ],
)
def test_tables_of_small_recipes_tell_all_that_the_papers_do(name, values, tmp_path):
    """Accuracy before and after tuning, trained values, and operations forward and backward, for every variant."""
    few = ["rounds=1", "method.epochs=1", "results.figures=false"]
    only = ["all-devices"] if name == "main" else []
    plan = load(f"perfedmask/small/{name}", few, only)
    runs = [run(r, tmp_path / v.removesuffix(" all-devices")) for v, r in plan.items()]
    rows = {row["name"]: row for row in compare(runs).json()}
    for row in rows.values():
        assert 0 < row["accuracy"] < 1
        assert 0 < row["unfinished_accuracy"] < 1
        assert 0 < row["values_up"] <= 21_626
        whole = row["name"] in ("fedavg", "fedprox", "fednova", "heterofl", "splitmix")
        assert (row["backward_flops"] == 2 * row["forward_flops"]) is whole
        assert row["backward_flops"] > row["forward_flops"] / 2
    assert {v: rows[v]["values_up"] for v in values} == values
    assert len(rows) == (7 if values else 6)
    half = {"perfedmask": 21_296, "perfedmask-heterofl": 21_296, "perfedmask-splitmix": 2 * 6_424}
    weak = {"perfedmask": 6_388, "perfedmask-heterofl": 1_927, "perfedmask-splitmix": 1_927}  # 0.3 of the body
    for v in half.keys() & rows.keys():
        assert half[v] / 2 < rows[v]["values_up"] <= (half[v] + weak[v]) / 2


def test_heterofl_is_tuned_at_the_end_as_a_whole():
    device, fleet = prepare(recipe("heterofl", model={"name": "digits-cnn"}))
    tuned = device.method.finish(device.theta0, fleet.local(0), device.ctx(2, "finish", 0))
    beyond = ~leading(device.task.layout, 0.5)  # what a client of half the weights does not hold
    assert (tuned != device.theta0)[beyond].float().mean() > 0.5


def test_finishing_needs_a_method_that_does():
    with pytest.raises(
        RecipeError, match=r'evaluate\.points: "finished" is not allowed; local does not fine-tune models at the end'
    ):
        run(recipe("local", evaluate={"points": ["finished"]}))


def test_fednova_by_hand():
    """Steps 36 and 18 with momentum 0.9, as in the paper; and the sum itself: the last gradient of n counts once."""
    assert reach(36, 0.9) == pytest.approx(272.0276, abs=1e-4)
    assert reach(18, 0.9) == pytest.approx(103.5085, abs=1e-4)
    assert reach(7, 0.0) == 7
    assert reach(3, 0.5) == pytest.approx(1 + 1.5 + 1.75)
    assert reach(3, 1.0) == 6


def test_fednova_merges_by_hand():
    device, _ = prepare(recipe("fednova"))
    ctx, d = device.ctx(0, "merge", 0), device.task.layout.dim
    server = torch.zeros(d)
    answers = []
    for k, (value, steps) in enumerate(((-4.0, 4), (-1.0, 2))):  # d = 1 and 0.5, tau_eff = 3: by 3 * 0.75
        message = Message(theta=Values(torch.full((d,), value)), samples=10, steps=steps)
        answers.append((k, FedNova().read(server, k, message, ctx)))
    assert torch.equal(FedNova().merge(server, iter(answers), ctx), torch.full((d,), -2.25))


def test_fednova_of_equal_steps_is_fedavg():
    device, _ = prepare(recipe("fednova"))
    ctx, d = device.ctx(0, "merge", 0), device.task.layout.dim
    server, models = torch.randn(d), [torch.randn(d) for _ in range(3)]
    nova = [(k, (m, 5 + k, 7)) for k, m in enumerate(models)]
    avg = [(k, (m, 5 + k)) for k, m in enumerate(models)]
    how = {"momentum": 0.9}
    merged = FedNova(**how).merge(server, iter(nova), ctx), FedAvg(**how).merge(server, iter(avg), ctx)
    torch.testing.assert_close(*merged)


def test_fednova_counts_its_steps():
    device, fleet = prepare(recipe("fednova"))
    ctx, data = device.ctx(0, "local", 0, 0), fleet.local(0)
    for how in ({}, {"drop_last": True}, {"batch": 10_000, "drop_last": True}):
        method = FedNova(epochs=3, **({"batch": 16} | how))
        _, message, _ = method.local(None, {"server": Message(theta=Values(device.theta0))}, data, ctx)
        batches = data.train.epochs(ctx.rng, 3, method.batch, drop_last=method.drop_last)
        assert message["steps"] == sum(1 for _ in batches)


@pytest.mark.parametrize("kind", [FedAvg, FedNova, FedBABU])
def test_weak_clients_make_fewer_passes(kind):
    device, fleet = prepare(recipe())
    how = kind(epochs=4, weak=2, weak_epochs=2, batch=16)
    spent = []
    for k in (1, 2):
        before = device.task.flops
        inbox = {"server": how.down(device.theta0, k, device.ctx(0, "down"))}
        how.local(None, inbox, fleet.local(0), device.ctx(0, "local", 0, 0))
        spent.append(device.task.flops - before)
    assert 2 * spent[0] == spent[1]


def test_solvers_reach_the_recipe():
    for solver in ("sequential", "random", "random_best_of"):
        _, _, method, server = scene(solver=solver, draws=5, budget=0.31)
        assert server.layers[3:].all()
        assert isinstance(method, PerFedMask)
