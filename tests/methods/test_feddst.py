"""FedDST: a round by hand, what never changes, where it is FedAvg, its bytes, and answers that do not fit."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from small import recipe
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.task import Task
from sparsona.core.topology import cohort
from sparsona.core.training import Ctx
from sparsona.core.wire import MaskChange, Message, Sparse, Values, WireError, mask_nbytes
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import star
from sparsona.engines.store import Store
from sparsona.engines.values import loads, types_of
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.methods.feddst import FedDST, Server

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
    ctx = Ctx(t, 9, task, torch.ones(6), Rng(1, "local"), Rng(1, "common"))
    return LocalData(samples, samples), ctx


SERVER = Server(torch.tensor([0.5, -0.1, 0.0, 0.0, 0.0, 0.5]), bits(0, 1, 5))


def answers(method):
    """Two clients of a round that readjusts: their messages and models."""
    # client 0: logits 1 and 1, so the gradient is -+ 1/2 (2, 0, 2); client 1: logits -ln 3 and 0, so it is +- 1/4 x
    scenes = [six_weights([2.0, 0.0, 2.0], 0), six_weights([0.0, 10 * LN3, 0.0], 1)]
    down = {"server": method.down(SERVER, 0, scenes[0][1])}
    return [method.local(None, down, data, ctx)[1:] for data, ctx in scenes], scenes[0][1]


def test_a_round_by_hand():
    method = FedDST(lr=1 / 16, interval=1, prune_rate=0.3)
    ((up, model), (second, other)), ctx = answers(method)
    assert method.counts(ctx) == [3]
    # client 0: of three ceil(0.3 * 3) = 1 goes, the smallest: 1. The gradient is 1 at 0, 2, 3 and 5: of those that are
    # off, 2 has the lowest index. It starts from 0, and what was dropped is 0
    assert torch.equal(up["mask"].apply(SERVER.mask), bits(0, 2, 5))
    assert model.tolist() == pytest.approx([0.5 + 1 / 16, 0, 1 / 16, 0, 0, 0.5 - 1 / 16])
    assert up["theta"].values.tolist() == pytest.approx([0.5 + 1 / 16, 1 / 16, 0.5 - 1 / 16])
    # client 1: 1 goes as well, and comes back: the gradient is largest at 1 and 4. It keeps its weight
    assert torch.equal(second["mask"].apply(SERVER.mask), bits(0, 1, 5))
    moved = -0.1 - 2.5 * LN3 / 16
    assert other.tolist() == pytest.approx([0.5, moved, 0, 0, 0, 0.5])
    # server: 0: (9/16 + 1/2) / 2, 1: client 1 alone, 2: client 0 alone, 5: (7/16 + 1/2) / 2; the largest three stay
    inbox = [(k, method.read(SERVER, k, m, ctx)) for k, m in enumerate([up, second])]
    after = method.merge(SERVER, inbox, ctx)
    assert torch.equal(after.mask, bits(0, 1, 5))
    assert after.theta.tolist() == pytest.approx([17 / 32, moved, 0, 0, 0, 15 / 32])
    assert torch.equal(method.shared(after), after.theta)


def test_what_all_have_dropped_is_gone():
    """Weight 1, of size 0.1, is larger on the server than the 1/16 of the one that client 0 grew in its place."""
    method = FedDST(lr=1 / 16, interval=1, prune_rate=0.3)
    ((up, model), _), ctx = answers(method)
    after = method.merge(SERVER, [(0, method.read(SERVER, 0, up, ctx))], ctx)
    assert torch.equal(after.mask, bits(0, 2, 5))
    assert torch.equal(after.theta, model)


def test_between_readjustments_the_mask_stays_also_where_weights_are_zero():
    method = FedDST(lr=1 / 16)
    data, ctx = six_weights([2.0, 0.0, 2.0], 0)
    server = Server(torch.tensor([0.0, 0.0, 0.0, 0.5, 0.0, 0.5]), bits(3, 4, 5))  # 4 is held, and 0 like 0 to 2
    _, message, _ = method.local(None, {"server": method.down(server, 0, ctx)}, data, ctx)
    assert message.names == ("theta",)
    after = method.merge(server, [(0, method.read(server, 0, message, ctx))], ctx)
    assert torch.equal(after.mask, server.mask)
    assert after.theta[3] != 0.5


@pytest.mark.parametrize(("interval", "rounds"), [(1, [1, 2, 3, 4, 5, 6, 7]), (3, [3, 6]), (5, [5]), (8, [])])
def test_when_it_readjusts(interval, rounds):
    _, ctx = six_weights([1.0, 0.0, 0.0], 0)
    assert [t + 1 for t in range(7) if FedDST(interval=interval).readjusts(replace(ctx, t=t))] == rounds


def rounds_of(r, store=None):
    """The server after each round of a recipe."""
    device, _ = prepare(r)
    server, store = r.method.start(6, device.ctx(0, "start")), store or Store()
    out = [server]
    for t in range(r.rounds):
        chosen = cohort(6, 3, Rng(7, "cohort", t))
        server, done = star(r.method, LocalEngine(device), store, server, t, chosen, device.ctx(t, "merge", t), ())
        assert done.left_out == {}
        out.append(server)
    return out, device


@pytest.mark.parametrize("recovery", ["gradient", "random"])
@pytest.mark.parametrize(("masked", "counts"), [("weights", [1728, 64, 640, 10]), ("all", [1691, 64, 640, 10])])
def test_the_model_stays_sparse_and_its_mask_moves_on_time(recovery, masked, counts):
    r = recipe("feddst", rounds=6, method={"interval": 3, "recovery": recovery, "masked": masked})
    servers, device = rounds_of(r)
    for server in servers:
        assert device.task.layout.counts(server.mask) == counts
        assert int(server.theta[~server.mask].count_nonzero()) == 0
    changed = [not torch.equal(a.mask, b.mask) for a, b in pairwise(servers)]
    assert changed == [False, False, True, False, False, True]
    assert torch.equal(servers[0].theta, device.theta0 * servers[0].mask)


def test_dense_it_is_fedavg_to_the_bit(tmp_path):
    how = {"epochs": 2, "momentum": 0.5, "weight_decay": 1e-3, "clip": 1.0, "lr_schedule": "exponential"}
    points = {"evaluate": {"points": ["before", "after", "shared"]}}
    run(recipe("fedavg", rounds=4, method=how | {"weighting": "uniform"}, **points), tmp_path / "a")
    run(recipe("feddst", rounds=4, method=how | {"density": 1.0, "interval": 2}, **points), tmp_path / "b")

    def kept(name):
        return loads((tmp_path / name / "state" / "server.safetensors").read_bytes(), types_of(FedDST()))

    def scores(name):
        rows = map(json.loads, (tmp_path / name / "rounds.jsonl").open())
        return [[row[p] for p in ("before", "after", "shared")] for row in rows]

    assert torch.equal(kept("a"), kept("b").theta)
    assert scores("a") == scores("b")


def test_bytes_and_operations_of_two_rounds():
    """digits-mlp, weights alone masked: 2,442 of 4,810 are kept. The second round readjusts."""
    r = recipe("feddst", rounds=2, method={"interval": 2})
    device, fleet = prepare(r)
    (first, then, _), _ = rounds_of(r)
    layout, method = device.task.layout, r.method

    def down(mask):  # the part "model": frame, dtype, length of the mask, mask, values
        return 7 + (1 + 5 + 5 + 1 + 4 + mask_nbytes(mask) + 4 * 2442) + 4

    up, want = 7 + (1 + 5 + 5 + 1 + 4 * 2442) + 4, 0
    for k in cohort(6, 3, Rng(7, "cohort", 1)):
        ctx = device.ctx(1, "local", 1, k)
        _, message, _ = method.local(None, {"server": method.down(then, k, ctx)}, fleet.local(k), ctx)
        change = message["mask"]
        # 0.15 of 1,728 weights, rounded up, are dropped, and some come back; ERK leaves the head dense, and so it stays
        assert 200 < int(change.dropped.count_nonzero()) == int(change.grown.count_nonzero()) <= 260
        want += up + (1 + 4 + 5 + 4 + mask_nbytes(change.dropped) + mask_nbytes(change.grown))
    total = run(r).summary["total"]
    assert total["down"] == 3 * down(first.mask) + 3 * down(then.mask)
    assert total["up"] == 3 * up + want
    assert total["paper_down"] == total["paper_up"] == 6 * 4 * 2442
    sizes = [[len(fleet.local(k)) for k in cohort(6, 3, Rng(7, "cohort", t))] for t in range(2)]
    trained = 3 * layout.flops(first.mask) * sum(map(sum, sizes))
    searched = 3 * layout.flops() * sum(min(16, n) for n in sizes[1])  # one dense batch each
    assert total["flops"] == trained + searched
    random = run(recipe("feddst", rounds=2, method={"interval": 2, "recovery": "random"})).summary["total"]
    assert random["flops"] == trained


STILL = MaskChange.between(SERVER.mask, SERVER.mask)
VALUES = Values(torch.zeros(3))


@pytest.mark.parametrize(
    ("message", "interval", "said"),
    [
        (Message(), 5, "part 'theta' is NoneType, not Values"),
        (Message(theta=torch.zeros(3)), 5, "part 'theta' is Tensor, not Values"),
        (Message(theta=Values(torch.zeros(2))), 5, "holds 2 values"),
        (Message(theta=Values(torch.zeros(6))), 5, "holds 6 values"),
        (Message(theta=Values(torch.zeros(3, dtype=torch.float16))), 5, "of torch.float16"),
        (Message(theta=VALUES), 1, "part 'mask' is NoneType, not MaskChange"),
        (Message(mask=STILL), 1, "part 'theta' is NoneType, not Values"),
        (Message(theta=Sparse.of(torch.zeros(6), SERVER.mask), mask=STILL), 1, "part 'theta' is Sparse, not Values"),
        (Message(theta=Values(torch.zeros(4)), mask=STILL), 1, "holds 4 values"),
        (Message(theta=VALUES, mask=MaskChange(bits(), bits())), 1, "does not fit"),
        (
            Message(theta=Values(torch.zeros(4)), mask=MaskChange.between(SERVER.mask, bits(0, 1, 2, 5))),
            1,
            r"part 'mask' leaves \[4\] weights in the tensors, not \[3\]",
        ),
    ],
)
def test_answers_that_do_not_fit_are_refused(message, interval, said):
    method = FedDST(interval=interval)
    _, ctx = six_weights([1.0, 0.0, 0.0], 0)
    with pytest.raises(WireError, match=said):
        method.read(SERVER, 0, message, ctx)


def test_a_density_too_low_for_the_model_is_refused():
    device, _ = prepare(recipe("feddst"))
    with pytest.raises(
        ValueError,
        match=r"density: 0\.0001 leaves hidden\.0\.weight without any weight; expected about 0\.000577 or more",
    ):
        FedDST(density=0.0001).start(6, device.ctx(0))
