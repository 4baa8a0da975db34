"""DA-DPFL and DisPFL: a round by hand, what never changes, and where they must coincide."""

import json
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from small import recipe
from sparsona.config import RecipeError
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.task import Task
from sparsona.core.topology import Plan, Topology
from sparsona.core.wire import Message, Sparse, decode, encode, mask_nbytes
from sparsona.engines.device import Device
from sparsona.engines.local import Local
from sparsona.engines.rounds import peers
from sparsona.engines.store import Store
from sparsona.engines.values import dumps, loads, types_of
from sparsona.methods.dadpfl import DADPFL, Client
from sparsona.runner import prepare, run

LN3 = math.log(3)


def bits(*places: int) -> torch.Tensor:
    out = torch.zeros(6, dtype=torch.bool)
    out[list(places)] = True
    return out


def sparse(**values: float) -> Message:
    """A model of six weights, given as w0=..., and a vote against."""
    vec = torch.zeros(6)
    for name, value in values.items():
        vec[int(name[1])] = value
    return Message(model=Sparse.of(vec, bits(*(int(name[1]) for name in values))), still=False)


def test_a_round_of_three_clients_by_hand():
    """A linear layer from three inputs to two classes; client 0 has a sample (0, 1, 0) of class 1, the others zeros."""
    lr = 0.4
    method = DADPFL(lr=lr, batch=4, prune_rate=0.3, density=0.5, threshold=0.0)
    task, _ = Task.of(nn.Linear(3, 2, bias=False), torch.zeros(1, 3))
    x = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    held = [LocalData(*[Samples(x, torch.tensor([1, 0, 0]), torch.tensor([k]))] * 2) for k in range(3)]
    device = Device(method, task, torch.zeros(6), held.__getitem__, lambda k: held[k].train, 1, 1)
    store = Store()
    # the weights that were sent lie in the mask they were trained with; the newest mask is another
    said = [sparse(w0=2.0, w1=4.0, w4=LN3), sparse(w0=4.0, w2=3.0, w5=1.0), sparse(w1=8.0, w2=5.0, w5=3.0)]
    newest = [bits(0, 2, 4), bits(0, 2, 5), bits(1, 4, 5)]
    for k in range(3):
        store.put(k, dumps(Client(k, newest[k])))
        store.put_mail(k, -1, encode(said[k]), said[k].value_nbytes)
    # everybody reads everybody; 1 waits for 0, 2 for nobody
    plan = Plan({0: (1, 2), 1: (0, 2), 2: (0, 1)}, {0: frozenset(), 1: frozenset({0}), 2: frozenset()})
    votes, done = peers(Local(device), store, 0, plan, {}, 3, ())

    def model(k):
        return decode(store.mail(k, 1)[0])["model"]

    def mask(k):
        return loads(store.client(k), types_of(method)).mask

    # client 0: means over those who hold a weight: 0: (2+4)/2, 2: (3+5)/2, 4: ln 3; weights 1 and 5 are not its own.
    # logits 0 and ln 3, so p = 1/4, 3/4 and the gradient of weight 4 is -1/4
    new = LN3 + lr / 4
    assert torch.equal(model(0).mask, bits(0, 2, 4))
    assert model(0).values.tolist() == pytest.approx([3.0, 4.0, new])
    # RigL: of three ones ceil(0.3 * 3) = 1 goes, the smallest, 4; the gradient is as large at 1 as at 4: lowest index
    assert torch.equal(mask(0), bits(0, 1, 2))
    # client 1 waits: it has client 0's weights of this round (0: 3, 2: 4, 4: new) and client 2's of the last.
    # 0: (3 + 4)/2, 2: (4 + 3 + 5)/3, 5: (1 + 3)/2; its sample is all zeros, so nothing moves
    assert model(1).values.tolist() == pytest.approx([3.5, 4.0, 2.0])
    # client 2 does not: 1: (4 + 8)/2, 4: ln 3, 5: (1 + 3)/2
    assert model(2).values.tolist() == pytest.approx([6.0, LN3, 2.0])
    # nobody has a gradient: the smallest goes (5 of client 1, 4 of client 2) and of equals the lowest index comes
    assert torch.equal(mask(1), bits(0, 1, 2))
    assert torch.equal(mask(2), bits(0, 1, 5))
    assert votes == dict.fromkeys(range(3), False)
    kept = loads(store.client(0), types_of(method))
    assert kept.drift == pytest.approx(math.sqrt(9 + 16 + new**2))  # from the initial weights, all zero here
    assert done.costs[0].down == store_len(said[1]) + store_len(said[2]) + 2 * Message(vote=True).nbytes


def store_len(message: Message) -> int:
    return len(encode(message))


ALIKE = {"masked": "weights", "same_start": True, "prune_rate": 0.3, "recovery": "gradient", "momentum": 0.5}


def test_without_waits_and_pruning_it_is_dispfl_to_the_bit(tmp_path):
    still = {"topology": {"max_wait": 0, "neighbours": 3}, "rounds": 4}
    run(recipe("dispfl", method=ALIKE, **still), tmp_path / "a")
    run(recipe("dadpfl", method=ALIKE | {"target": 0.5}, **still), tmp_path / "b")

    def scores(path):
        return [[row[p] for p in ("before", "after")] for row in map(json.loads, (path / "rounds.jsonl").open())]

    assert scores(tmp_path / "a") == scores(tmp_path / "b")
    for k in range(6):
        a, b = (
            loads(
                (tmp_path / run / "state" / f"client-{k:05d}.safetensors").read_bytes(),
                types_of(DADPFL() if run == "b" else recipe("dispfl").method),
            )
            for run in ("a", "b")
        )
        assert torch.equal(a.mask, b.mask)


def test_waiting_for_all_of_a_full_graph_is_one_after_the_other():
    plan = Topology(name="full", max_wait=5).plan(6, 0, 10, Rng(1))
    assert [len(wave) for wave in plan.waves()] == [1] * 6
    assert max(finish for _, finish in plan.clock().values()) == 6


def test_sparsity_never_falls_and_stops_at_the_target(tmp_path):
    r = recipe(
        "dadpfl",
        rounds=16,
        data={"sample_share": 1.0},
        method={"threshold": 10.0, "target": 0.65, "frequency": 2.0, "epochs": 2},
    )
    done = run(r, tmp_path / "run")
    each: dict[int, list[float]] = {}
    for row in done.rows("clients"):
        each.setdefault(row["client"], []).append(row["notes"]["sparsity"])
    for path in each.values():
        assert path == sorted(path)
        assert path[0] == pytest.approx(0.5, abs=1e-3)
        assert path[-1] >= 0.65 - 0.15
        above = [s for s in path if s >= 0.65]
        assert len(set(above)) <= 1  # once at the target, it stays
    assert max(path[-1] for path in each.values()) >= 0.65
    # everybody stands still by this threshold after round 2: all know after it, and prune in rounds 3, 4, 5, ...
    rows = done.rounds
    assert rows[1]["notes"]["still"] == 1.0
    assert rows[1]["notes"]["sparsity"] < rows[2]["notes"]["sparsity"]
    assert rows[0]["notes"]["still"] == 0.0


@pytest.mark.parametrize(
    ("schedule", "rounds"),
    [
        ("next", [151, 267, 356, 425, 478]),
        ("strict", [266, 355, 424, 477]),
        ("reference", [151, 266, 354, 422, 474]),
    ],
)
def test_when_it_prunes(schedule, rounds):
    """t* = 150, c = 1.3, T = 500: the spec's schedule 150, 266, 355, 424, 477, a round later or as it stands."""
    device, _ = prepare(recipe("dadpfl"))
    method = DADPFL(schedule=schedule)
    due = [t + 1 for t in range(500) if method.due(150 if t >= 150 else None, replace(device.ctx(0), t=t, rounds=500))]
    assert due == rounds


def test_votes_of_all_or_of_neighbours():
    device, _ = prepare(recipe("dadpfl"))
    ctx = replace(device.ctx(0), t=7)
    client = Client(0, torch.ones(1, dtype=torch.bool))
    yes, no = Message(still=True), Message(still=False)
    ballot = {"all": Message(votes=torch.tensor([1, 0, 2, 1], dtype=torch.uint8)), "self": no, 1: no}
    assert DADPFL(quorum=0.6).decided(client, ballot, ctx) == 7  # two of the three that were there
    assert DADPFL(quorum=0.7).decided(client, ballot, ctx) is None
    assert DADPFL(quorum=0.5, votes="neighbours").decided(client, {"self": yes, 1: no}, ctx) == 7
    assert DADPFL(quorum=0.6, votes="neighbours").decided(client, {"self": yes, 1: no}, ctx) is None
    assert DADPFL().decided(client, {"self": yes}, ctx) is None  # nothing heard yet
    assert DADPFL().decided(replace(client, since=3), ballot, ctx) == 3


def test_drift_as_the_paper_or_as_its_code_has_it():
    device, _ = prepare(recipe("dadpfl"))
    ctx = device.ctx(0)
    change = torch.zeros(ctx.layout.dim)
    change[:2] = torch.tensor([3.0, 4.0])  # the first tensor
    change[-1] = 2.0  # the last
    assert DADPFL(drift="squared").distance(change, ctx) == pytest.approx(29.0)
    assert DADPFL(drift="layers").distance(change, ctx) == pytest.approx(7.0)


def test_a_ring_with_a_dead_client_goes_on(tmp_path):
    r = recipe("dadpfl", rounds=6, topology={"name": "ring", "max_wait": 1, "absent": 0.4})
    done = run(r, tmp_path / "run")
    assert {len(row["participants"]) for row in done.rounds} != {6}
    assert all(row["left_out"] == [] for row in done.rounds)
    assert done.summary["accuracy"] is not None


def test_a_diverging_client_is_left_out_and_the_others_go_on():
    device, _ = prepare(recipe("dadpfl"))
    method = device.method

    class Sick(Local):
        def map(self, jobs):
            for result in super().map(jobs):
                yield replace(result, finite=result.k != 3)

    store = Store()
    for k in range(6):
        message = method.post(method.join(k, device.ctx(0, "join", k)), device.ctx(0, "post", k))
        store.put_mail(k, -1, encode(message), message.value_nbytes)
    plan = Topology(name="ring", max_wait=2).plan(6, 0, 3, Rng(1))
    _, done = peers(Sick(device), store, 0, plan, {}, 6, ())
    assert done.left_out == {3: "NaN or Inf"}
    first = method.post(method.join(3, device.ctx(0, "join", 3)), device.ctx(0, "post", 3))
    assert store.mail(3, 1)[0] == encode(first)  # what it said before is still read
    assert store.client(3) is None


def test_bytes_of_a_round():
    """digits-mlp, weights alone masked: 2,368 of 4,736 and 74 biases; each of 6 clients reads 2 others."""
    r = recipe("dadpfl", rounds=1)
    device, _ = prepare(r)
    counts = device.task.layout.counts(r.method.first(0, device.ctx(0)))
    assert counts == [1728, 64, 640, 10]
    total = run(r)["total"]
    assert total["paper_down"] == total["paper_up"] == 6 * 2 * 4 * sum(counts)
    # parts "model" (dtype, length of the mask, mask, values) and "still", each with a frame of 1 + 5 + 5
    coded = mask_nbytes(r.method.first(0, device.ctx(0)))
    assert coded <= 5 + math.ceil(4810 / 8)
    model = 7 + (11 + 1 + 4 + coded + 4 * sum(counts)) + (11 + 1) + 4
    votes = 6 * 5 * Message(vote=True).nbytes
    assert total["down"] == total["up"] == 6 * 2 * model + votes


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"topology": {"neighbours": 6}}, "topology.neighbours: 6; fewer than the 6 clients are needed"),
        ({"topology": {"neighbours": 2, "max_wait": 3}}, "topology.max_wait: 3; at most 2"),
        ({"topology": {"name": "ring", "max_wait": 3}}, "topology.max_wait: 3; at most 2"),
        ({"topology": {"name": "edges", "max_wait": 0}}, "topology.pairs: none"),
        (
            {"topology": {"name": "edges", "max_wait": 0, "pairs": [[0, 1], [2, 3], [4, 5]]}},
            "client 2 is not connected with client 0",
        ),
        ({"topology": {"name": "edges", "max_wait": 0, "pairs": [[0, 9]]}}, "topology.pairs: 9; 0 to 5 is allowed"),
        ({"topology": {"name": "edges", "max_wait": 0, "pairs": [[1, 1]]}}, "two different clients are needed, once"),
        ({"topology": {"absent": 1.0}}, "topology.absent = 1.0: must be a number, at least 0 and below 1"),
        ({"topology": {"speed": [0.5]}}, "topology.speed: a list of 1; 6 are needed, one per client"),
        ({"method": {"target": 0.4}}, "target = 0.4 must be at least the initial sparsity, 0.5"),
        ({"method": {"p": 1.0, "q": 1.0}}, "p, q: 1.0, 1.0; 0 < p < q is needed"),
        ({"method": {"frequency": 0.5}}, "frequency = 0.5 must be at least 1"),
    ],
)
def test_bad_input_is_told_before_anything_runs(more, said):
    with pytest.raises(RecipeError) as error:
        recipe("dadpfl", **more)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 1\n1 2\n2 x\n", 'line 3 of {path} is "2 x"; two client numbers are needed'),
        ("0 1 2\n", "line 1"),
        ("0 -1\n", "line 1"),
        ("0 1\n0 1\n", "once"),
        ("0 1\n1 2\n2 3\n3 4\n", "client 5 is not connected"),
    ],
)
def test_edge_lists_that_are_wrong(text, said, tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text(text)
    with pytest.raises(RecipeError) as error:
        recipe("dadpfl", topology={"name": "edges", "edges": str(path), "max_wait": 0})
    assert said.format(path=path) in str(error.value)


def test_an_edge_list_is_read_once_and_kept_in_the_recipe(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text("# a path\n0 1\n1 2\n\n2 3  # and on\n3 4\n4 5\n")
    r = recipe("dadpfl", rounds=1, topology={"name": "edges", "edges": str(path), "max_wait": 1})
    path.unlink()
    assert r.topology.reads(6, 0, Rng(1))[2] == (1, 3)
    done = run(r, tmp_path / "run")
    assert done.recipe.topology.pairs == ((0, 1), (1, 2), (2, 3), (3, 4), (4, 5))


def test_slow_devices_stretch_a_round(tmp_path):
    r = recipe("dispfl", rounds=1, topology={"max_wait": 0, "speed": [1.0, 1.0, 1.0, 1.0, 1.0, 0.25]})
    row = run(r, tmp_path / "run").rounds[0]
    assert row["clock"] == {"length": 4.0, "parallelism": 1.0, "waiting": 0.0}
    waiting = recipe("dispfl", rounds=1, topology={"name": "full", "max_wait": 5})
    row = run(waiting, tmp_path / "full").rounds[0]
    assert row["clock"] == {"length": 6.0, "parallelism": pytest.approx(1 / 6), "waiting": 2.5}
