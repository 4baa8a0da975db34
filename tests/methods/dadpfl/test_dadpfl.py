"""DA-DPFL and DisPFL: a round by hand, what never changes, and where they must coincide."""

import json
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from small import recipe
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.task import Task
from sparsona.core.topology import RoundPlan, Topology
from sparsona.core.training import Ctx
from sparsona.core.wire import Message, Sparse, decode, encode, mask_nbytes
from sparsona.engines.device import Device
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import peers
from sparsona.engines.store import Store
from sparsona.engines.values import dumps, loads, types_of
from sparsona.experiment.recipe import RecipeError
from sparsona.experiment.results import Run
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.methods.dadpfl.dadpfl import DADPFL, Client

LN3 = math.log(3)


def bits(*places: int) -> torch.Tensor:
    out = torch.zeros(6, dtype=torch.bool)
    out[list(places)] = True
    return out


def sparse(**values: float) -> Message:
    """A model of six weights, given as w0=..."""
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
    plan = RoundPlan({0: (1, 2), 1: (0, 2), 2: (0, 1)}, {0: frozenset(), 1: frozenset({0}), 2: frozenset()})
    votes, done = peers(LocalEngine(device), store, 0, plan, {}, 3, ())

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
    assert votes == {0: dict.fromkeys(range(3), False)}  # by round
    kept = loads(store.client(0), types_of(method))
    assert kept.drift == pytest.approx(math.sqrt(9 + 16 + new**2))  # from the initial weights, all zero here
    assert done.costs[0].down == store_len(said[1]) + store_len(said[2]) + 2 * Message(vote=True).nbytes


def store_len(message: Message) -> int:
    return len(encode(message))


@dataclass(frozen=True, kw_only=True)
class Given(DADPFL):
    """With a first mask that is known."""

    def first(self, k, ctx):
        return bits(0, 1, 4)


LATER = [0.08, 0.0, 0.02, 0.005, 1.62, 0.00125]  # what training ends with: 4, 0, 1, 1/4, 81 and 1/16 fiftieths


def later(method, client=None, heard=None, *, t=2, rounds=4):
    """A later round of client 0, whose newest mask lacks weight 1; it has one sample (0, 1, 0) of class 1.

    Weight 4 starts at ln 3 and weight 1 at 0: p = 1/4 and 3/4, the gradient of 4 is -1/4. The rest does not move.
    """
    x = torch.tensor([[0.0, 1.0, 0.0]])
    task, _ = Task.of(nn.Linear(3, 2, bias=False), x)
    only = Samples(x, torch.tensor([1]), torch.tensor([0]))
    theta0 = torch.tensor([0.08, 0.5, 0.7, -0.3, 0.62, 0.9])
    ctx = Ctx(t, rounds, task, theta0, Rng(1, "local"), Rng(1, "common"))
    own = sparse(w0=0.06, w1=5.0, w2=0.02, w3=0.005, w4=LN3)
    inbox = {"self": own, 3: sparse(w0=0.10, w5=0.00125)} | (heard or {})
    return method.local(client or Client(0, bits(0, 2, 3, 4, 5)), inbox, LocalData(only, only), ctx)


def at_later(kind=Given, **how):
    return kind(lr=4 * (1.62 - LN3), batch=4, prune_rate=0.3, **how)


@pytest.mark.parametrize(
    ("how", "left", "newest"),
    [
        # kept are (sum of roots)^2 / sum, rounded up: roots 2, 1, 1/2, 9, 1/4 give 12.75^2 / 86.3125 = 1.88, so 2 of 5
        ({}, (0, 4), (1, 4)),
        ({"each": "neuron"}, (0, 2, 3, 4), (0, 1, 2, 4)),  # 3^2 / 5 = 1.8: 2 of 2; 9.75^2 / 81.3125 = 1.17: 2 of 3
        ({"gamma": 0.7}, (0, 2, 4), (0, 1, 4)),  # 0.7 of the 3 that are spare, so 2 go
        ({"slack": 1.0, "gamma": 0.25}, (0, 2, 3, 4), (0, 1, 2, 4)),  # 1.88 / 2^2, so 4 are spare; of 3 none would go
        ({"cap": 0.25}, (0, 2, 3, 4), (0, 1, 2, 4)),  # a quarter of 5 at most, so 1 goes
        ({"p": 0.25}, (0, 2, 4), (0, 1, 4)),  # 5 (3.075 / 17.26)^(1/3) = 2.81
        ({"q": 0.75}, (0, 2, 4), (0, 1, 4)),  # 5 (6.503 / 11.54)^1.5 = 2.11
        ({"delay": 1}, (0, 2, 3, 4, 5), (0, 1, 2, 3, 4)),  # not before round 3
        ({"target": 0.5}, (0, 4), (1, 4)),  # 1/6 of the weights are zero, that is below it
        ({"target": 0.16, "density": 1.0}, (0, 2, 3, 4, 5), (0, 1, 2, 3, 4)),  # and this is reached
        ({"target": 1 / 6 - 1e-9, "density": 1.0}, (0, 2, 3, 4, 5), (0, 1, 2, 3, 4)),
        ({"schedule": "strict"}, (0, 2, 3, 4, 5), (0, 1, 2, 3, 4)),  # after t* = 2 that is 2 + ceil(2 / 1.3) = 4
    ],
)
def test_a_later_round_by_hand(how, left, newest):
    """t* = 2 is known, so round 2 prunes. Then of up to 6 ones RigL drops ceil(0.15 n) = 1, the smallest, and grows 1.

    The gradient is largest at 1 and at 4, which is alive.
    """
    before = Client(0, bits(0, 2, 3, 4, 5), drift=1.0, scale=0.5, since=2)
    client, message, model = later(at_later(**how), before)
    want = torch.tensor(LATER) * bits(*left)
    assert model.tolist() == pytest.approx(want.tolist(), abs=1e-6)
    assert torch.equal(message["model"].mask, bits(*left))
    assert torch.equal(message["model"].dense(), model)
    assert model[~bits(*left)].tolist() == [0.0] * (6 - len(left))
    assert int(client.mask.sum()) == len(left)
    assert torch.equal(client.mask, bits(*newest))
    assert client.since == 2
    # drift is that of the trained weights, before any were pruned
    assert client.drift == pytest.approx(math.sqrt(MOVED), rel=1e-5)
    assert client.scale == 0.5


# from theta0 within the first mask, (0.08, 0.5, 0, 0, 0.62, 0), to LATER: 0, -0.5, 0.02, 0.005, 1 and 0.00125
MOVED = 0.25 + 0.0004 + 0.000025 + 1 + 0.0000015625  # 1.2504265625, whose root is 1.1182248


@pytest.mark.parametrize(
    ("form", "last", "drift", "score", "still"),
    [
        ("squared", 1.0, 1.2504266, 0.5008531, False),
        ("squared", 1.2, 1.2504266, 0.1008531, True),
        ("squared", 1.5, 1.2504266, 0.4991469, False),
        ("layers", 1.0, 1.1182248, 0.2364496, True),
        ("layers", 1.5, 1.1182248, 0.7635504, False),
    ],
)
def test_score_and_vote_by_hand(form, last, drift, score, still):
    """How much the drift changed, |drift - last| / 0.5; a yes below 0.3."""
    before = Client(0, bits(0, 2, 3, 4, 5), drift=last, scale=0.5)
    method = at_later(drift=form, threshold=0.3)
    client, message, _ = later(method, before)
    assert client.drift == pytest.approx(drift, rel=1e-5)
    assert client.score == pytest.approx(score, rel=1e-4)
    assert client.scale == 0.5
    assert message["vote"] is still
    assert method.report(client, None, 0, ctx_of(2)).figures["score"] == client.score
    assert message.keys() == {"model", "vote"}
    assert torch.equal(message["model"].mask, bits(0, 2, 3, 4, 5))  # without t* nothing is pruned
    # with the votes of neighbours alone it is in the message, and nobody else is told
    method = at_later(drift=form, threshold=0.3, votes="neighbours")
    told = {"self": sparse(w0=0.06, w2=0.02, w3=0.005, w4=LN3), 3: sparse(w0=0.10, w5=0.00125)}
    told = {j: Message(model=m["model"], still=False) for j, m in told.items()}
    client, message, _ = later(method, before, told)
    assert message["still"] is still
    assert "vote" not in message


def ctx_of(t):
    task, _ = Task.of(nn.Linear(3, 2, bias=False), torch.zeros(1, 3))
    return Ctx(t, 4, task, torch.zeros(6), Rng(1, "local"), Rng(1, "common"))


@pytest.mark.parametrize("t", [0, 2])
def test_the_first_round_that_a_client_trains_in_is_its_scale(t):
    """Whichever it is; so its vote there is no, whatever the threshold, and its score is defined from the next on."""
    method = at_later(threshold=10.0)
    joined = replace(method.join(0, ctx_of(0)), mask=bits(0, 2, 3, 4, 5))
    client, message, _ = later(method, joined, t=t)
    assert (client.scale, client.drift) == (pytest.approx(math.sqrt(MOVED), rel=1e-5),) * 2
    assert client.score == 1.0
    assert message["vote"] is False
    # the next round moves within another mask, (0, 1, 2, 3, 4); weight 1 begins at 5 and falls
    again, message, _ = later(method, replace(client, drift=0.4), t=t + 1)
    assert again.scale == client.scale
    assert again.score == pytest.approx(abs(again.drift - 0.4) / math.sqrt(MOVED), rel=1e-5)
    assert again.score != 1.0
    assert message["vote"] is True


@pytest.mark.parametrize(("target", "left"), [(0.45, 3), (0.5, 3), (0.55, 2)])
def test_the_target_is_one_of_the_masked_tensors(target, left):
    """Three of six weights are zero, but of all eight parameters, with two biases, that is 3/8: below 0.45."""
    task, _ = Task.of(nn.Linear(3, 2), torch.zeros(1, 3))
    only = Samples(torch.zeros(1, 3), torch.tensor([0]), torch.tensor([0]))
    ctx = Ctx(2, 4, task, torch.zeros(8), Rng(1, "local"), Rng(1, "common"))
    mask = torch.tensor([1, 0, 1, 0, 1, 0, 1, 1], dtype=torch.bool)
    said = Message(model=Sparse(mask, torch.tensor([1.0, 1.0, 64.0, 0.5, 0.5])))  # (1 + 1 + 8)^2 / 66 = 1.5: 2 of 3
    method = DADPFL(batch=4, density=0.6, target=target, masked="weights")
    client, message, _ = method.local(Client(0, mask, 1.0, 1.0, since=2), {"self": said}, LocalData(only, only), ctx)
    assert ctx.layout.counts(message["model"].mask) == [left, 2]
    assert ctx.layout.counts(client.mask) == [left, 2]
    assert method.report(client, None, 0, ctx).figures["sparsity"] == pytest.approx(1 - left / 6)


@pytest.mark.parametrize(("t", "moved"), [(0, 30), (1, 26), (2, 15), (3, 5)])
def test_the_prune_rate_reaches_nothing_after_the_last_round(t, moved):
    """0.15 (1 + cos(pi t / 4)) of 100 ones: 30, 25.6, 15 and, in the last of four rounds, 4.39 in hundredths."""
    task, _ = Task.of(nn.Linear(20, 10, bias=False), torch.zeros(1, 20))
    only = Samples(torch.zeros(1, 20), torch.tensor([0]), torch.tensor([0]))
    ctx = Ctx(t, 4, task, torch.zeros(200), Rng(1, "local"), Rng(1, "common"))
    mask = torch.arange(200) >= 100
    said = Message(model=Sparse(mask, torch.arange(1.0, 101.0)))
    method = DADPFL(batch=4, prune_rate=0.3)
    client, _, _ = method.local(Client(0, mask), {"self": said}, LocalData(only, only), ctx)
    # the smallest go, and where no gradient is, the lowest places come
    places = torch.arange(200)
    assert torch.equal(client.mask, (places < moved) | (places >= 100 + moved))


@pytest.mark.parametrize(("how", "different"), [({}, 1), ({"same_start": True}, 1), ({"same_start": False}, 6)])
def test_first_masks(how, different):
    device, _ = prepare(recipe("dadpfl", method=how))
    method = device.method
    clients = [method.join(k, device.ctx(0, "join", k)) for k in range(6)]
    assert len({client.mask.numpy().tobytes() for client in clients}) == different
    said = [method.post(client, device.ctx(0, "post", k)) for k, client in enumerate(clients)]
    assert len({encode(message) for message in said}) == different
    for client, message in zip(clients, said, strict=True):
        assert torch.equal(message["model"].dense(), device.theta0 * client.mask)
    assert DADPFL().same_start
    assert not recipe("dispfl").method.same_start


ALIKE = {"masked": "weights", "same_start": True, "prune_rate": 0.3, "recovery": "gradient", "momentum": 0.5}


def test_without_waits_and_pruning_it_is_dispfl_to_the_bit(tmp_path):
    still = {"topology": {"max_wait": 0, "neighbours": 3}, "rounds": 4}
    run(recipe("dispfl", method=ALIKE, **still), tmp_path / "a")
    run(recipe("dadpfl", method=ALIKE | {"target": 0.5}, **still), tmp_path / "b")

    def scores(path):
        return [[row[p] for p in ("before", "after")] for row in map(json.loads, (path / "rounds.jsonl").open())]

    assert scores(tmp_path / "a") == scores(tmp_path / "b")
    start = prepare(recipe("dadpfl", method=ALIKE))[0].theta0
    for k in range(6):
        a, b = kept(tmp_path / "a", recipe("dispfl").method)[k], kept(tmp_path / "b", DADPFL())[k]
        assert torch.equal(a.mask, b.mask)
        one, other = (said(tmp_path / name, k)["model"] for name in "ab")
        assert one == other  # mask and weights, to the bit
        assert not torch.equal(one.dense(), start * one.mask)


def kept(path, method):
    """What the clients of a finished run keep, by number."""
    files = sorted((path / "state").glob("client-*.safetensors"))
    return {int(file.stem.removeprefix("client-")): loads(file.read_bytes(), types_of(method)) for file in files}


def said(path, k):
    """What a client of a finished run told last."""
    return decode((path / "state" / f"client-{k:05d}.message").read_bytes())


@pytest.mark.parametrize("name", ["dispfl", "dadpfl"])
def test_what_is_stored_is_sparse(name, tmp_path):
    """Half of 4,736 weights and 74 biases as floats are 0.51 of the dense model, two masks 0.06."""
    how = {"masked": "weights", "density": 0.5}
    run(recipe(name, rounds=2, method=how), tmp_path / "run")
    for k in range(6):
        files = list((tmp_path / "run" / "state").glob(f"client-{k:05d}.*"))
        assert {file.suffix for file in files} == {".safetensors", ".message"}
        assert 0.5 < sum(file.stat().st_size for file in files) / (4 * 4810) < 0.6


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
        last = path.index(path[-1])  # the last pruning
        assert path[last] >= 0.65
        assert 0.5 < path[last - 1] < 0.65  # until the target is reached, and no further
    assert len(each) == 6
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


@pytest.mark.parametrize(
    ("quorum", "since"),
    [
        (1 / 4, 3),  # one of the three that were there in round 2, counted from 0: t* = 3
        (1 / 3, 3),
        (0.34, 5),
        (0.6, 5),  # two of the three in round 4
        (0.7, 6),  # all in round 5
        (1.0, 6),
    ],
)
@pytest.mark.parametrize("t", [6, 9])
def test_the_votes_of_all(quorum, since, t):
    """Whoever was away hears later, and knows the same t*."""
    votes = torch.tensor([[0, 0, 2, 1], [1, 0, 2, 1], [1, 1, 1, 1]], dtype=torch.uint8)
    heard = Message(votes=votes, rounds=torch.tensor([2, 4, 5]))
    method = at_later(quorum=quorum)
    client, message, _ = later(method, None, {"all": heard}, t=t, rounds=20)
    assert client.since == since
    assert "vote" not in message  # it is known now
    assert "still" not in message
    early = Message(votes=votes[:1], rounds=torch.tensor([2]))
    client, message, _ = later(method, None, {"all": early}, t=t, rounds=20)
    assert client.since == (3 if quorum <= 1 / 3 else None)
    assert ("vote" in message) == (client.since is None)


def test_votes_that_are_known_or_not_there():
    method = at_later()
    assert later(method)[0].since is None  # nothing heard yet
    heard = Message(votes=torch.ones(1, 4, dtype=torch.uint8), rounds=torch.tensor([7]))
    known = Client(0, bits(0, 2, 3, 4, 5), since=3)
    assert later(method, known, {"all": heard}, t=9, rounds=20)[0].since == 3  # once known it stays


@pytest.mark.parametrize(("quorum", "since"), [(0.5, 7), (0.6, None)])
def test_the_votes_of_neighbours(quorum, since):
    method = at_later(quorum=quorum, votes="neighbours")
    own, other = sparse(w0=1.0, w4=LN3)["model"], sparse(w0=3.0)["model"]
    told = {"self": Message(model=own, still=True), 3: Message(model=other, still=False)}
    client, message, _ = later(method, None, told, t=7, rounds=20)
    assert client.since == since
    assert "vote" not in message
    assert isinstance(message["still"], bool)
    assert method.post(client, ctx_of(0))["still"] is False
    assert "still" not in at_later().post(client, ctx_of(0))


@pytest.mark.parametrize("quorum", [0.5, 0.7])
def test_who_was_away_knows_the_same_first_pruning(quorum, tmp_path):
    """With this threshold all vote yes from the second round on that they are there, so who is there decides t*."""
    r = recipe("dadpfl", rounds=10, seed=10, topology={"absent": 0.5, "max_wait": 0}, method={"quorum": quorum})
    run(r, tmp_path / "run")
    there = [set(row["participants"]) for row in Run(tmp_path / "run").rounds]
    trained = [set().union(*there[:t]) for t in range(10)]
    shares = [len(now & before) / len(now) for now, before in zip(there, trained, strict=True)]
    first = 1 + next(t for t, share in enumerate(shares) if share >= quorum)
    assert there[first] != set(range(6))  # somebody is away when it could be known
    know = set().union(*there[first:])
    want = {k: first if k in know else None for k in range(6)}
    assert {k: client.since for k, client in kept(tmp_path / "run", r.method).items()} == want
    assert first == {0.5: 2, 0.7: 5}[quorum]
    assert len(know) == {0.5: 6, 0.7: 5}[quorum]


def bytes_of(**how):
    """Bytes received in each of four rounds without any pruning."""
    rows = []
    method = {"target": 0.5} | how
    run(recipe("dadpfl", rounds=4, method=method), on_round=lambda step: rows.append(step.row))
    assert {row["notes"]["sparsity"] for row in rows} == {0.5}
    assert all(row["up"] == row["down"] for row in rows)
    return [row["down"] for row in rows]


BALLOT = 6 * 5 * Message(vote=True).nbytes  # everyone tells everyone else
STILL = 6 * 2 * (1 + 5 + 5 + 1)  # a part that each of two neighbours sends


def test_neighbours_alone_are_told_in_the_message():
    everyone, neighbours = bytes_of(threshold=0.0), bytes_of(threshold=0.0, votes="neighbours")
    assert [a - b for a, b in zip(everyone, neighbours, strict=True)] == [BALLOT - STILL] * 4
    assert Message(model=1, still=True).nbytes - Message(model=1).nbytes == STILL / 12


def test_once_the_first_pruning_is_known_nobody_votes():
    """All say yes in the second round, and all hear of it before the third ends."""
    never, soon = bytes_of(threshold=0.0), bytes_of(threshold=10.0)
    assert [a - b for a, b in zip(never, soon, strict=True)] == [0, 0, BALLOT, BALLOT]


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

    class Sick(LocalEngine):
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
    total = run(r).summary["total"]
    assert total["paper_down"] == total["paper_up"] == 6 * 2 * 4 * sum(counts)
    # the part "model" (dtype, length of the mask, mask, values) with a frame of 1 + 5 + 5
    coded = mask_nbytes(r.method.first(0, device.ctx(0)))
    assert coded <= 5 + math.ceil(4810 / 8)
    model = 7 + (11 + 1 + 4 + coded + 4 * sum(counts)) + 4
    votes = 6 * 5 * Message(vote=True).nbytes
    assert total["down"] == total["up"] == 6 * 2 * model + votes


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"topology": {"neighbours": 6}}, "topology.neighbours: 6 is not allowed; expected an int < 6"),
        ({"topology": {"neighbours": 2, "max_wait": 3}}, "topology.max_wait: 3 is not allowed; expected an int <= 2"),
        ({"topology": {"name": "ring", "max_wait": 3}}, "topology.max_wait: 3 is not allowed; expected an int <= 2"),
        (
            {"topology": {"name": "edges", "max_wait": 0}},
            'topology.pairs: missing; name = "edges" needs a file (edges) or pairs',
        ),
        (
            {"topology": {"name": "edges", "max_wait": 0, "pairs": [[0, 1], [2, 3], [4, 5]]}},
            "topology.pairs: client 2 is not connected to client 0; expected a connected graph",
        ),
        (
            {"topology": {"name": "edges", "max_wait": 0, "pairs": [[0, 9]]}},
            "topology.pairs: [0, 9] is not allowed; expected clients in [0, 5]",
        ),
        (
            {"topology": {"name": "edges", "max_wait": 0, "pairs": [[1, 1]]}},
            "topology.pairs: [1, 1] is not allowed; expected two different clients, and each pair once",
        ),
        ({"topology": {"absent": 1.0}}, "topology.absent: 1.0 is not allowed; expected a float in [0, 1)"),
        ({"topology": {"speed": [0.5]}}, "topology.speed: a list of 1 is not allowed; expected 6 values"),
        ({"method": {"target": 0.4}}, "method.target: 0.4 is not allowed; expected a float >= 0.5"),
        ({"method": {"p": 1.0, "q": 1.0}}, "method: p, q: 1.0, 1.0 are not allowed; expected 0 < p < q"),
        ({"method": {"frequency": 0.5}}, "method.frequency: 0.5 is not allowed; expected a float >= 1"),
    ],
)
def test_bad_input_is_told_before_anything_runs(more, said):
    with pytest.raises(RecipeError) as error:
        recipe("dadpfl", **more)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0 1\n1 2\n2 x\n", '{path}, line 3: "2 x" is not allowed; expected two client numbers'),
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
