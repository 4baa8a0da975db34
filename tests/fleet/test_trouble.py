"""What goes wrong on a fleet is named, and never mixed in."""

import json
import re
import shutil
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sparsona[flower]'")

import torch

import sparsona
from fleet.test_fleet import files
from fleet.world import World
from small import recipe
from sparsona.core.wire import Bits, Message, Values, encode
from sparsona.engines.device import Device
from sparsona.engines.rounds import TooFew
from sparsona.experiment.results import Run
from sparsona.experiment.runner import run
from sparsona.fleet import FleetError
from sparsona.fleet.data import NodeData
from sparsona.fleet.envelope import pack, unpack
from sparsona.fleet.flower import GridTransport, _content, _data
from tiers import tiered


def everyone(name="ditto", /, **more):
    """A recipe in which all take part, and nobody is waited for long."""
    fleet = {"per_round": 6, "timeout": 0.5, **more.pop("fleet", {})}
    return recipe(name, fleet=fleet, **more)


def events(path):
    return [json.loads(line) for line in (path / "fleet.jsonl").read_text().splitlines()]


def trained(path):
    """Which of its versions the server takes each client to have."""
    versions = json.loads((path / "state" / "versions.json").read_text())
    return [int(versions[k].partition("-")[0]) for k in sorted(versions, key=int)]


def answers(data, kind="local"):
    """Whether an envelope is a job of this kind, and its round."""
    head, _ = unpack(data)
    return head["t"] if head.get("kind") == kind else None


def liar(change, rounds=(1,)):
    """Client 2 changes what it answers in some rounds."""

    def lie(k, data, answer):
        if k == 2 and answers(data) in rounds:
            head, blobs = unpack(answer)
            return change(head, [bytes(b) for b in blobs])
        return answer

    return lie


def message(value, size):
    return encode(Message(theta=Values(torch.full((size,), value)), samples=5))


LIES = {
    "garbage": (lambda head, blobs: b"garbage" * 100, "not an envelope"),
    "nothing": (lambda head, blobs: b"", "0 bytes are too few for an envelope"),
    "half": (lambda head, blobs: pack(head, blobs)[:-9], "bytes follow the head"),
    "not a message": (
        lambda head, blobs: pack(head, [b"x" * len(blobs[0])]),
        "the bytes do not start with a message header",
    ),
    "a small message of a large mask": (
        lambda head, blobs: pack(head, [encode(Message(theta=Bits(torch.zeros(1 << 24, dtype=torch.bool))))]),
        "needs 16777216 bytes, but the limit leaves",
    ),
    "NaN": (lambda head, blobs: pack(head, [message(float("nan"), 4810)]), "NaN or Inf"),
    "shape": (lambda head, blobs: pack(head, [message(1.0, 7)]), "theta"),
    "other client": (lambda head, blobs: pack(head | {"k": 1}, blobs), "k is 1, not 2"),
    "old round": (lambda head, blobs: pack(head | {"t": 0}, blobs), "t is 0, not 1"),
    "other run": (lambda head, blobs: pack(head | {"run": "x"}, blobs), "run is 'x'"),
    "old version": (lambda head, blobs: pack(head | {"from": None}, blobs), "from is None"),
    "next version": (lambda head, blobs: pack(head | {"version": "9-" + "0" * 16}, blobs), "version '9-"),
    "replay": (lambda head, blobs: pack(head | {"ask": "0" * 16}, blobs), "ask is '0000"),
    "flops": (lambda head, blobs: pack(head | {"flops": -1}, blobs), "flops -1"),
    "score": (
        lambda head, blobs: pack(head | {"score": {"correct": 9, "samples": 1, "loss": 0.0}}, blobs),
        "9 correct of 1",
    ),
    "metric": (
        lambda head, blobs: pack(head | {"score": head["score"] | {"metrics": {"auc": 1.0}}}, blobs),
        "'auc', which is no metric of this run",
    ),
    "no correct": (
        lambda head, blobs: pack(head | {"score": head["score"] | {"correct": None}}, blobs),
        "None correct, which does not fit the targets",
    ),
    "bytes alone": (
        lambda head, blobs: pack(head | {"spoke": False, "sent": 5}, blobs),
        "an answer without a message, or with its message in another form than wanted",
    ),
    "no message": (
        lambda head, blobs: pack(head | {"spoke": False}),
        "an answer without a message, or with its message in another form than wanted",
    ),
    "huge seconds": (lambda head, blobs: pack(head | {"seconds": 10**400}, blobs), "seconds 10"),
    "huge notes": (
        lambda head, blobs: pack(head | {"notes": {"x": -(10**400)}}, blobs),
        "notes: the value is not allowed",
    ),
    "no score": (lambda head, blobs: pack(head | {"score": None}, blobs), "without the score"),
    "notes": (lambda head, blobs: pack(head | {"notes": {"x": "y"}}, blobs), "notes: the value is not allowed"),
    "silence": (lambda head, blobs: None, "no answer within 0.5 seconds"),
    "error": (lambda head, blobs: pack(head | {"error": "out of memory"}), "out of memory"),
}


@pytest.mark.parametrize("what", LIES)
def test_who_lies_is_left_out_and_named(what, tmp_path):
    change, told = LIES[what]
    world = World(tmp_path, 6, lie=liar(change))
    done = world.run(everyone(), tmp_path / "fleet")
    assert [row["left_out"] for row in done.rounds] == [[], [2], []]
    why = done.rounds[1]["why_left_out"]["2"]

    assert re.search(told, why), why
    assert {"event": "left out", "client": 2, "round": 2, "why": why}.items() <= events(tmp_path / "fleet")[-1].items()
    assert done.summary["before"]["loss"] < 10  # nothing of it was mixed in


def test_a_peer_whose_message_can_be_read_by_the_server_is_left_out(tmp_path):
    """Among peers only bytes count, so that what the server would decode is not what was asked for."""
    world = World(tmp_path, 6, lie=liar(lambda head, blobs: pack(head | {"spoke": True, "sent": None}, blobs)))
    done = world.run(everyone("dadpfl"), tmp_path / "fleet")
    assert [row["left_out"] for row in done.rounds] == [[], [2], []]
    left = done.rounds[1]["why_left_out"]["2"]
    assert "an answer without a message, or with its message in another form than wanted" in left


def test_a_peer_whose_message_is_too_large_for_its_neighbours_is_left_out(tmp_path):
    """It would be passed on to all of them, and they could not take it."""
    most = 64 * 4810 + (1 << 20)
    world = World(tmp_path, 6, lie=liar(lambda head, blobs: pack(head, [blobs[0] + bytes(most + 1 - len(blobs[0]))])))
    done = world.run(everyone("dadpfl"), tmp_path / "fleet")
    assert [row["left_out"] for row in done.rounds] == [[], [2], []]
    assert done.rounds[1]["why_left_out"]["2"] == f"a message of {most + 1:,} bytes; at most {most:,} can be of use"


def test_an_answer_that_flower_cannot_read_is_its_senders_affair(tmp_path):
    """Flower forgets answers when it hands them out: whoever came together with that one is not to be asked again."""
    world = World(tmp_path, 6)
    broken, asked, pull = set(), [], world.pull_messages

    def lie(k, data, answer):
        if answers(data) == 1:
            asked.append(k)
            if k == 2:
                broken.add(k)
        return answer

    def pull_messages(numbers):
        messages = pull(numbers)
        if broken and any(m.metadata.src_node_id == 1002 for m in messages):
            broken.clear()
            raise ValueError("no such class")
        return messages

    world.lie, world.pull_messages = lie, pull_messages
    done = world.run(everyone(), tmp_path / "fleet")
    assert [row["left_out"] for row in done.rounds] == [[], [2], []]
    assert done.rounds[1]["why_left_out"]["2"] == "an answer that Flower cannot read: ValueError: no such class"
    assert asked == [0, 1, 2, 3, 4, 5]


def test_a_server_that_cannot_be_reached_is_not_a_nodes_affair():
    import httpx

    class Gone:
        def pull_messages(self, numbers):
            raise httpx.ConnectError("refused")

    with pytest.raises(httpx.ConnectError):
        list(GridTransport(Gone()).receive({"1", "2"}))


class Slow:
    """A Grid whose answers a test lets go, and that counts how many are asked for at a time."""

    def __init__(self, stuck=()):
        self.stuck, self.go = set(stuck), threading.Event()
        self.now, self.most, self.asked, self.lock = 0, 0, 0, threading.Lock()

    def push_messages(self, messages):
        return [str(m.metadata.dst_node_id) for m in messages]

    def pull_messages(self, numbers):
        with self.lock:
            self.now, self.asked = self.now + 1, self.asked + 1
            self.most = max(self.most, self.now)
        if self.stuck.intersection(numbers):
            self.go.wait(60)
        time.sleep(0.01)
        with self.lock:
            self.now -= 1
        (number,) = numbers
        about = SimpleNamespace(reply_to_message_id=number, src_node_id=int(number))
        return [SimpleNamespace(metadata=about, has_error=lambda: False, content={"0": {"parcel": b"x"}})]


def test_answers_are_fetched_some_at_a_time_and_not_ahead_of_who_takes_them():
    grid = Slow()
    post, numbers = GridTransport(grid), {str(i) for i in range(1, 41)}
    replies = post.receive(numbers)
    next(replies)
    time.sleep(0.5)
    assert 1 < grid.most <= grid.asked <= 32  # sixteen, and as many when the first have come
    assert len({reply.number for reply in replies}) == 39


def test_who_asks_for_some_answers_does_not_take_others():
    """As when nodes without keys are greeted while a round waits; what nobody asks for in time is dropped."""
    grid = Slow(stuck={"1", "2"})
    post = GridTransport(grid)
    numbers = {post.send(1, b"x", 60.0), post.send(2, b"x", 1.0)}
    assert list(post.receive(numbers)) == []
    grid.go.set()
    time.sleep(1.2)
    assert [reply.node for reply in post.receive({post.send(3, b"x", 60.0)})] == [3]
    assert list(post._out) == ["1"]
    assert [reply.node for reply in post.receive({"1"})] == [1]


def test_those_who_wait_the_longest_are_asked_first():
    """Sixteen hold all places; of the others, those that were not asked before come first."""
    grid = Slow(stuck={str(i) for i in range(1, 33)})
    post = GridTransport(grid)
    numbers = {post.send(node, b"x", 60.0) for node in range(1, 41)}
    got = set()
    for _ in range(3):
        got |= {reply.node for reply in post.receive(numbers)}
    assert got < set(range(33, 41))
    grid.go.set()
    end = time.monotonic() + 30
    while len(got) < 40 and time.monotonic() < end:
        got |= {reply.node for reply in post.receive(numbers - {str(node) for node in got})}
    assert got == set(range(1, 41))


def test_an_answer_that_takes_long_to_upload_holds_up_nobody_else():
    """Flower hands it out when its upload has begun; a node that is still at it is not asked anything else."""
    grid = Slow(stuck={"3"})
    post = GridTransport(grid)
    numbers = {post.send(node, b"x", 60.0) for node in range(1, 6)}
    got, end = set(), time.monotonic() + 30
    while len(got) < 4 and time.monotonic() < end:
        got |= {reply.node for reply in post.receive(numbers - {str(node) for node in got})}
    assert got == {1, 2, 4, 5}
    assert list(post.receive({"3"})) == []
    assert not grid.go.is_set()
    assert post.send(3, b"x", 60.0) is None
    assert post.send(4, b"x", 60.0) == "4"
    grid.go.set()
    assert [reply.node for reply in post.receive({"3"})] == [3]
    assert post.send(3, b"x", 60.0) == "3"


def test_envelopes_travel_in_pieces():
    """Flower gives a sender three minutes for each object."""
    data = bytes(range(256)) * (5 << 14)  # 20 MB and more
    content = _content(data)
    assert max(len(record["parcel"]) for record in content.values()) == 2 << 20
    assert len(content) == 10
    assert _data(SimpleNamespace(content=content)) == data
    assert _data(SimpleNamespace(content=_content(b""))) == b""
    for bad in ({"0": {"x": b"x"}}, {"0": {"parcel": b"x"}, "1": {"parcel": 7}}):
        assert _data(SimpleNamespace(content=bad)) == b""


def test_a_round_of_peers_with_too_few_answers_ends_the_run_and_it_can_go_on(tmp_path):
    r = everyone("dadpfl", fleet={"min_answers": 5})
    world = World(tmp_path, 6, lie=lambda k, data, answer: None if k > 2 and answers(data) == 1 else answer)
    with pytest.raises(
        TooFew,
        match=r"round 2 has 3 answers; expected at least fleet\.min_answers = 5: client 3: no answer within 0\.5",
    ):
        world.run(r, tmp_path / "fleet")
    assert len(Run.open(tmp_path / "fleet").rounds) == 1
    world.lie = lambda k, data, answer: answer
    assert world.run(r, tmp_path / "fleet").finished
    run(r, tmp_path / "local")
    assert files(tmp_path / "fleet") | world.values(tmp_path / "fleet") == files(tmp_path / "local")


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), 1e308])
def test_who_is_missing_from_a_test_is_named(loss, tmp_path):
    def lie(k, data, answer):
        if k == 2 and answers(data, "evaluate") == 1:
            head, _ = unpack(answer)
            return pack(head | {"score": head["score"] | {"loss": loss}})
        return answer

    done = World(tmp_path, 6, lie=lie).run(everyone(), tmp_path / "fleet")
    told = [row.get("not_tested", {}) for row in done.rounds]
    assert [list(row) for row in told] == [[], ["2"], []]
    assert "with loss" in told[1]["2"]
    assert [row["before"]["clients"] for row in done.rounds] == [6, 5, 6]
    assert all(0 < row["before"]["loss"] < 10 for row in done.rounds)
    (event,) = [e for e in events(tmp_path / "fleet") if e["event"] == "not tested"]
    assert {"client": 2, "round": 2, "job": "evaluate", "why": told[1]["2"]}.items() <= event.items()


def test_one_who_is_left_out_goes_on_from_where_the_server_knows_it(tmp_path):
    """The device trained and kept a new value, but its answer was lost: both go on from the value before."""
    world = World(tmp_path, 6, lie=liar(LIES["silence"][0]))
    done = world.run(everyone(rounds=4), tmp_path / "fleet")
    assert [row["left_out"] for row in done.rounds] == [[], [2], [], []]
    assert trained(tmp_path / "fleet") == [3, 3, 2, 3, 3, 3]


def test_who_is_away_is_not_waited_for_and_comes_back_as_it_was(tmp_path):
    world = World(tmp_path, 6)
    real = world.get_nodes
    seen = []

    def nodes():
        status = Run(tmp_path / "fleet").rows("rounds") if (tmp_path / "fleet" / "rounds.jsonl").is_file() else []
        seen[:] = status
        world.away = {4} if len(seen) == 1 else set()
        return real()

    world.get_nodes = nodes
    done = world.run(everyone(rounds=3, fleet={"timeout": 60.0}), tmp_path / "fleet")
    assert [row["why_left_out"] for row in done.rounds if row["left_out"]] == [{"4": "not there"}]
    assert done.rounds[1]["down"] == done.rounds[0]["down"] * 5 // 6  # nothing was sent to it


def lose_state(world, t):
    """Client 2 loses all that it keeps in round t, once."""
    struck = []

    def lie(k, data, answer):
        if k == 2 and answers(data) == t and not struck:
            struck.append(k)
            for folder in (world.folder / "node-2").iterdir():
                shutil.rmtree(folder)
            return world.runtimes[2].answer(data)
        return answer

    world.lie = lie


def test_a_device_that_lost_its_part_of_a_model_is_sent_the_whole_one(tmp_path):
    """After its warm-up LG-FedAvg sends those that it has met the shared part alone; this one has no other part."""
    world = World(tmp_path, 6)
    lose_state(world, 2)
    method = {"share": "head", "warmup": 1}
    done = world.run(everyone("lgfedavg", rounds=4, method=method), tmp_path / "fleet")
    down = {(row["round"], row["client"]): row["down"] for row in done.rows("clients")}
    assert down[4, 2] == down[1, 2] > 2 * down[4, 1]


@pytest.mark.parametrize(
    "method", ["ditto", "fedspa", "fedpse", "fedstc", "subfedavg", "fedmask", "lgfedavg", "dadpfl"]
)
def test_a_device_that_lost_its_state_begins_anew_on_both_sides(method, tmp_path):
    world = World(tmp_path, 6)
    lose_state(world, 1)
    done = world.run(everyone(method, rounds=4), tmp_path / "fleet")
    assert [row["left_out"] for row in done.rounds] == [[], [2], [], []]
    assert done.rounds[1]["why_left_out"]["2"].startswith("restarted without its state: version 0-")
    versions = json.loads((tmp_path / "fleet" / "state" / "versions.json").read_text())
    assert versions["2"].startswith("1-")  # two rounds since
    assert versions["1"].startswith("3-")


@pytest.mark.parametrize("method", ["ditto", "fedspa", "dadpfl"])
def test_a_device_that_lost_its_state_does_not_stop_a_run_that_needs_it(method, tmp_path):
    """As a new client it can answer: the round is done once more, with all."""
    world = World(tmp_path, 6)
    lose_state(world, 1)
    r = everyone(method, rounds=4, fleet={"min_answers": 6})
    done = world.run(r, tmp_path / "fleet")
    assert [row["left_out"] for row in done.rounds] == [[], [], [], []]
    assert [list(row.get("restarted", {})) for row in done.rounds] == [[], ["2"], [], []]
    (event,) = [e for e in events(tmp_path / "fleet") if e["event"] == "restarted"]
    assert (event["client"], event["round"]) == (2, 2)
    assert event["why"].startswith("restarted without its state: version 0-")
    assert trained(tmp_path / "fleet") == [3, 3, 2, 3, 3, 3]


def test_a_device_that_loses_its_state_again_and_again_ends_the_run(tmp_path):
    world = World(tmp_path, 6)

    def lie(k, data, answer):
        if k == 2 and (t := answers(data)) is not None and t > 0:
            head, _ = unpack(answer)
            return pack({key: head[key] for key in ("run", "ask", "t", "kind", "k")} | {"lost": "all"})
        return answer

    world.lie = lie
    with pytest.raises(
        TooFew, match="round 2 has 5 answers; expected at least 6: client 2: restarted without its state: all"
    ):
        world.run(everyone(fleet={"min_answers": 6}), tmp_path / "fleet")


def test_a_damaged_value_is_not_used(tmp_path):
    def lie(k, data, answer):
        if k == 2 and answers(data) == 1:
            for file in (tmp_path / "node-2").glob("*/0-*.value"):
                file.write_bytes(b"x" + file.read_bytes()[1:])
            return world.runtimes[2].answer(data)
        return answer

    world = World(tmp_path, 6, lie=lie)
    done = world.run(everyone(), tmp_path / "fleet")
    assert "is damaged" in done.rounds[1]["why_left_out"]["2"]


@pytest.mark.parametrize("method", tiered(["ditto", "fedspa", "dadpfl"], short=["dadpfl"]))
def test_a_server_that_died_goes_on_from_an_older_checkpoint(method, tmp_path):
    """Devices are ahead of the checkpoint: they do those rounds again, and the end is the same to the bit."""
    r = everyone(method, rounds=6, checkpoint_every=3)
    run(r, tmp_path / "local")
    world = World(tmp_path, 6)
    dead = []

    class Killed(BaseException):
        pass

    def lie(k, data, answer):
        if k == 5 and answers(data) == 4 and not dead:
            dead.append(k)
            raise Killed
        return answer

    world.lie = lie
    from sparsona.engines.store import Store

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "rescue", lambda self: None)  # as if killed: nothing is saved at the last moment
        with pytest.raises(Killed):
            world.run(r, tmp_path / "fleet")
    assert len(Run(tmp_path / "fleet").rounds) == 4
    world.run(r, tmp_path / "fleet")
    assert files(tmp_path / "fleet") | world.values(tmp_path / "fleet") == files(tmp_path / "local")
    assert "resumed" in [e["event"] for e in events(tmp_path / "fleet")]


def test_a_run_goes_on_only_as_what_it_began_as(tmp_path):
    r, out = everyone(), tmp_path / "fleet"
    world = World(tmp_path, 6, lie=lambda k, data, answer: None if answers(data) == 1 else answer)
    with pytest.raises(TooFew):
        world.run(replace(r, fleet=replace(r.fleet, timeout=0.1)), out)
    told = json.loads((out / "run.json").read_text())
    world.lie = lambda k, data, answer: answer
    for key in ("classes", "parameters"):
        (out / "run.json").write_text(json.dumps(told | {key: 7}))
        with pytest.raises(FleetError, match=rf"fleet: {key} was 7 at the start, and the fleet has \d+"):
            world.run(r, out)
    (out / "run.json").write_text(json.dumps({"sparsona": "0.1"}))
    with pytest.raises(FleetError, match=r"fleet is not a fleet run; resume it with: sparsona resume .*fleet"):
        world.run(r, out)
    (out / "run.json").write_text(json.dumps(told | {"sparsona": "0.0.1"}))
    assert world.run(r, out).finished
    assert any("sparsona was 0.0.1" in e.get("what", "") for e in events(out))
    world.away = set(range(6))
    assert world.run(r, out, wait=0.1).finished  # nobody is needed for what is done


def test_the_status_is_of_this_run_from_the_start_and_counts_on_after_a_crash(tmp_path):
    status, seen = tmp_path / "status.json", []
    status.write_text(json.dumps({"run": "another", "round": 9, "clients": {"0": {"down": 1, "up": 1, "seen": 1}}}))

    def look(k, data, answer):
        told = json.loads(status.read_text())
        seen.append((told["run"], told["round"], told["clients"].get("0", {}).get("up", 0)))
        return None if answers(data) == 1 and len(seen) < 40 else answer

    world = World(tmp_path, 6, lie=look)
    r = everyone(fleet={"timeout": 0.1})
    with pytest.raises(TooFew):
        world.run(r, tmp_path / "fleet", status=str(status))
    name = json.loads((tmp_path / "fleet" / "run.json").read_text())["fleet_run"]
    assert seen[0] == (name, 0, 0)
    assert seen[-1][:2] == (name, 1)
    before = seen[-1][2]
    assert before > 0
    world.lie = lambda k, data, answer: answer
    world.run(r, tmp_path / "fleet", status=str(status))
    assert json.loads(status.read_text())["clients"]["0"]["up"] > 1.5 * before


def test_too_few_answers(tmp_path):
    world = World(tmp_path, 6, lie=lambda k, data, answer: None if k > 2 and answers(data) == 1 else answer)
    with pytest.raises(
        TooFew, match=r"round 2 has 3 answers; expected at least 4: client 3: no answer within 0\.1 seconds"
    ):
        world.run(everyone(fleet={"min_answers": 4, "timeout": 0.1}), tmp_path / "fleet")
    assert len(Run(tmp_path / "fleet").rounds) == 1
    world.lie = lambda k, data, answer: answer
    world.run(everyone(), tmp_path / "fleet")  # goes on
    assert Run(tmp_path / "fleet").finished


@pytest.mark.parametrize("what", ["NaN", "shape"])
def test_what_cannot_be_used_is_no_answer(what, tmp_path):
    world = World(tmp_path, 6, lie=liar(LIES[what][0]))
    with pytest.raises(TooFew, match=r"round 2 has 5 answers; expected at least fleet\.min_answers = 6: client 2: "):
        world.run(everyone(fleet={"min_answers": 6}), tmp_path / "fleet")
    assert len(Run(tmp_path / "fleet").rounds) == 1


def test_more_rounds_between_checkpoints_than_devices_keep_are_refused(tmp_path):
    with pytest.raises(
        FleetError, match=r"engine.checkpoint_every: 101 is not allowed; expected an int <= 100 on a fleet"
    ):
        World(tmp_path, 6).run(everyone(checkpoint_every=101), tmp_path / "fleet")


PEER_LIES = {
    "garbage": ("dadpfl", b"garbage", "too few for a message"),
    "shape": ("dadpfl", encode(Message(model=Values(torch.ones(7)))), "model is Values of part, not Sparse of 4810"),
    "NaN": ("dadpfl", encode(Message(model=Values(torch.full((4810,), float("nan"))))), "NaN or Inf"),
    "other parts": ("dadpfl", message(1.0, 4810), "the parts are theta, samples, not model"),
    "no parts": ("dispfl", encode(Message()), "the parts are none, not model"),
    "wrong count": ("gossipfl", encode(Message(theta=Values(torch.ones(7)), round=2)), "suspected: "),
}


@pytest.mark.parametrize("what", PEER_LIES)
def test_a_peer_that_lies_to_its_neighbours_is_named_by_them_and_nobody_else_is_left_out(what, tmp_path):
    method, bad, told = PEER_LIES[what]
    world = World(tmp_path, 6, lie=liar(lambda head, blobs: pack(head, [bad])))
    done = world.run(everyone(method, rounds=4), tmp_path / "fleet")
    found = [e for e in events(tmp_path / "fleet") if e["event"] == "unusable message" and e["by"] != 2]
    assert "2" in {e["client"] for e in found}
    assert {e["round"] for e in found} >= {3}
    assert {e["why"] for e in found if told not in e["why"]} == set()
    if not told.startswith("suspected"):
        assert {e["client"] for e in found} == {"2"}
    assert all(set(row["left_out"]) <= {2} for row in done.rounds)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("x"), RuntimeError("MPS backend out of memory"), MemoryError()]
)
def test_a_node_without_memory_blames_no_peer_and_says_what_its_owner_can_do(error, tmp_path, monkeypatch):
    """It has room again as soon as it is asked once more, as a job without peers' messages would be."""
    world, asked = World(tmp_path, 6), []
    handle = Device.handle

    def full(device, job):
        if (job.kind, job.t, job.k) == ("local", 1, 2):
            asked.append(sum(isinstance(j, int) for j in job.inbox))
            if len(asked) == 1:
                raise error
        return handle(device, job)

    monkeypatch.setattr(Device, "handle", full)
    done = world.run(everyone("dadpfl"), tmp_path / "fleet")
    assert len(asked) == 1
    assert asked[0] > 0  # peers there were
    assert not [e for e in events(tmp_path / "fleet") if e["event"] == "unusable message"]
    assert [row["left_out"] for row in done.rounds] == [[], [2], []]
    why = done.rounds[1]["why_left_out"]["2"]
    advice = (
        "the GPU is out of memory; start this node with --device cpu, or lower method.batch or evaluate.batch in a "
    )
    assert why == ("MemoryError:" if isinstance(error, MemoryError) else f"{advice}new run")


def on_device(kinds):
    """Nodes say that they have these kinds of device."""

    def lie(k, data, answer):
        head, blobs = unpack(answer)
        return pack(head | {"device": kinds.get(k, "cpu")}, blobs) if "shape" in head else answer

    return lie


def test_a_fleet_records_its_kinds_of_device_and_says_when_it_goes_on_with_others(tmp_path):
    def stop_after(count):
        def lie(k, data, answer):
            if answers(data) == count:
                raise KeyboardInterrupt
            return on_device(kinds)(k, data, answer)

        return lie

    kinds, about = {1: "cuda: NVIDIA A100", 2: "mps"}, tmp_path / "fleet" / "run.json"
    world = World(tmp_path, 6, lie=stop_after(1))
    with pytest.raises(KeyboardInterrupt):
        world.run(everyone(rounds=4), tmp_path / "fleet")
    facts = json.loads(about.read_text())
    assert (facts["devices"], facts["precision"]) == (["cpu", "cuda: NVIDIA A100", "mps"], "float32")
    kinds, world.lie = {2: "mps", 3: "cuda: Tesla T4"}, stop_after(2)
    with pytest.raises(KeyboardInterrupt):
        world.run(everyone(rounds=4), tmp_path / "fleet")
    (event,) = (e for e in events(tmp_path / "fleet") if e["event"] == "began differently")
    assert event["what"] == "devices was cpu, cuda: NVIDIA A100, mps, is cpu, cuda: Tesla T4, mps"
    assert json.loads(about.read_text())["devices"] == ["cpu", "cuda: NVIDIA A100", "mps", "cuda: Tesla T4"]
    kinds, world.lie = {1: "cuda: NVIDIA A100", 2: "mps", 3: "cuda: Tesla T4"}, on_device(kinds)
    assert world.run(everyone(rounds=4), tmp_path / "fleet").finished


def test_nodes_say_their_kind_of_device_when_they_meet(tmp_path):
    world = World(tmp_path, 2)
    world.run(everyone(data={"clients": 2}, fleet={"per_round": 2}), tmp_path / "fleet")
    assert json.loads((tmp_path / "fleet" / "run.json").read_text())["devices"] == ["cpu"]


@pytest.mark.parametrize("kind", ["x" * 101, "", 7, None, ["cpu"], "two\nlines", "\x1b[31m"])
def test_a_kind_of_device_that_cannot_be_is_refused(kind, tmp_path):
    world = World(tmp_path, 6, lie=on_device({2: kind}))
    with pytest.raises(FleetError, match=r"^node of client 2: its kind of device is not valid: ") as told:
        world.run(everyone(), tmp_path / "fleet")
    assert len(str(told.value)) < 200


def test_a_fleet_of_a_version_that_did_not_record_devices_goes_on(tmp_path):
    def stop(k, data, answer):
        if answers(data) == 1:
            raise KeyboardInterrupt
        return answer

    world = World(tmp_path, 6, lie=stop)
    with pytest.raises(KeyboardInterrupt):
        world.run(everyone(), tmp_path / "fleet")
    about = tmp_path / "fleet" / "run.json"
    facts = json.loads(about.read_text())
    about.write_text(json.dumps({key: facts[key] for key in facts if key not in ("devices", "precision")}))
    world.lie = lambda k, data, answer: answer
    assert world.run(everyone(), tmp_path / "fleet").finished
    (event,) = (e for e in events(tmp_path / "fleet") if e["event"] == "began differently")
    assert event["what"] == "devices was unknown, is cpu"
    assert json.loads(about.read_text())["devices"] == ["unknown", "cpu"]


def test_two_nodes_with_one_client(tmp_path):
    world = World(tmp_path, 6, keyed=False)
    world.runtimes[4].client = 1
    with pytest.raises(FleetError, match=r"--client is 1, which node \d+ has too; start each node with its own number"):
        world.run(everyone(), tmp_path / "fleet")
    assert not (tmp_path / "fleet").exists()


def test_without_keys_a_node_that_was_started_again_is_taken_when_its_old_self_is_gone(tmp_path):
    """Flower shows the old one for about a minute longer, under another number."""
    world = World(tmp_path, 7, keyed=False, away={6})
    world.runtimes[6] = world.runtimes[1]
    real = world.get_nodes

    def nodes():
        done = len(Run(tmp_path / "fleet").rounds) if (tmp_path / "fleet" / "rounds.jsonl").is_file() else 0
        world.away = {0: {6}, 1: set()}.get(done, {1})  # both in round 2, the new one alone from round 3 on
        return real()

    world.get_nodes = nodes
    done = world.run(everyone(rounds=4), tmp_path / "fleet")
    assert [row["left_out"] for row in done.rounds] == [[], [], [], []]
    assert [e["node"] for e in events(tmp_path / "fleet") if e["event"] == "refused"] == [1006]


def test_a_node_speaks_for_its_own_client_alone(tmp_path):
    world = World(tmp_path, 6)
    world.runtimes[4].client = 1
    with pytest.raises(
        FleetError, match="node of client 4: --client is 1, but its key belongs to client 4; start it with that number"
    ):
        world.run(everyone(), tmp_path / "fleet")


def test_without_keys_nodes_are_taken_at_their_word(tmp_path):
    r = everyone()
    run(r, tmp_path / "local")
    world = World(tmp_path, 6, keyed=False)
    world.runtimes.reverse()
    world.run(r, tmp_path / "fleet")
    state = {n: d for n, d in files(tmp_path / "local").items() if "client-" not in n}
    assert {n: d for n, d in files(tmp_path / "fleet").items() if "client-" not in n} == state


@pytest.mark.parametrize("keyed", [True, False])
def test_nodes_that_a_recipe_does_not_ask_for_do_not_matter(keyed, tmp_path):
    r = everyone(data={"clients": 4}, fleet={"per_round": 4})
    run(r, tmp_path / "local")
    world = World(tmp_path, 6, keyed=keyed)
    world.run(r, tmp_path / "fleet")
    assert files(tmp_path / "fleet") | world.values(tmp_path / "fleet") == files(tmp_path / "local")
    assert not list((tmp_path / "node-5").glob("*"))


def test_nodes_that_a_recipe_does_not_ask_for_do_not_make_a_round_of_peers(tmp_path):
    """Three of four are needed, and two of them are there, beside two others."""
    world = World(tmp_path, 6)
    real = world.get_nodes

    def nodes():
        world.away = {2, 3} if (tmp_path / "fleet" / "rounds.jsonl").is_file() else set()
        return real()

    world.get_nodes = nodes
    r = everyone("dadpfl", data={"clients": 4}, fleet={"per_round": 4, "min_answers": 3, "timeout": 0.2})
    with pytest.raises(TooFew, match="round 1: 2 clients are online; expected at least 3"):
        world.run(r, tmp_path / "fleet", wait=1)


def test_another_version_of_sparsona(tmp_path):
    world = World(tmp_path, 6)
    world.runtimes[3].version = "0.0.9"
    with pytest.raises(
        FleetError,
        match=r"node of client 3: this node has Sparsona 0\.0\.9, the server .*; install the same version",
    ):
        world.run(everyone(), tmp_path / "fleet")


def heard(world):
    """What client runtimes say to whoever looks after them, by client."""
    lines = [[] for _ in world.runtimes]
    for runtime, told in zip(world.runtimes, lines, strict=True):
        runtime.report = told.append
    return lines


def test_a_refusal_is_told_on_the_node_too_and_once(tmp_path):
    world = World(tmp_path, 6)
    lines = heard(world)
    world.runtimes[3].version = "0.0.9"
    for _ in range(2):
        with pytest.raises(
            FleetError,
            match=r"node of client 3: this node has Sparsona 0\.0\.9, the server .*; install the same version",
        ):
            world.run(everyone(), tmp_path / "fleet")
    (line,) = lines[3]
    assert line == f"this node has Sparsona 0.0.9, the server {sparsona.__version__}; install the same version"
    world.runtimes[3].version = world.runtimes[2].version
    world.runtimes[4].client = 1
    with pytest.raises(FleetError, match="--client is 1, but its key belongs to client 4"):
        world.run(everyone(), tmp_path / "fleet")
    assert lines[4] == [
        "the server refuses this node: --client is 1, but its key belongs to client 4; start it with that number"
    ]
    assert lines[5] == []


@pytest.mark.parametrize(
    ("source", "model", "told"),
    [
        ("fashion-mnist", "lenet", "fashion-mnist"),
        ("digits", "lenet", 'model "lenet" cannot be'),
    ],
)
def test_data_that_are_not_there_or_do_not_fit_are_told_on_the_node(source, model, told, tmp_path):
    world = World(tmp_path, 6, data=NodeData(data_dir=tmp_path / "empty"))
    lines = heard(world)
    r = everyone(data={"source": source})
    with pytest.raises(FleetError, match=told):
        world.run(replace(r, model=replace(r.model, name=model)), tmp_path / "fleet")
    assert [told in " ".join(line) for line in lines] == [True] * 6


def test_two_nodes_with_one_client_are_told_on_the_node_that_is_refused(tmp_path):
    world = World(tmp_path, 6, keyed=False)
    world.runtimes[4].client = 1
    lines = heard(world)
    with pytest.raises(FleetError):
        world.run(everyone(), tmp_path / "fleet")
    told = "the server refuses this node: --client is 1, which node "
    fix = " has too; start each node with its own number"
    assert sorted(map(tuple, lines))[:5] == [()] * 5
    assert (lines[1], lines[4]) in (([], [f"{told}1001{fix}"]), ([f"{told}1004{fix}"], []))  # whoever is heard first


def test_other_classes_are_told_on_the_node(tmp_path):
    world = World(tmp_path, 6)
    lines, build = heard(world), world.runtimes[4].build
    world.runtimes[4].build = lambda raw, k: (build(raw, k)[0], build(raw, k)[1] | {"classes": 9})
    with pytest.raises(FleetError, match="client 4: classes is 9; expected 10"):
        world.run(everyone(), tmp_path / "fleet")
    assert "client 4: classes is 9; expected" in lines[4][0]


def test_a_run_goes_on_without_a_node_that_has_other_data_by_now(tmp_path):
    world = World(tmp_path, 6, lie=lambda k, data, answer: None if answers(data) == 1 else answer)
    with pytest.raises(TooFew):
        world.run(everyone(fleet={"timeout": 0.1}), tmp_path / "fleet")
    world.lie = lambda k, data, answer: answer
    lines, build = heard(world), world.runtimes[0].build
    world.runtimes[0].build = lambda raw, k: (build(raw, k)[0], build(raw, k)[1] | {"shape": [3, 8, 8]})
    world.runtimes[0]._built = None  # as when it was started again
    done = world.run(everyone(), tmp_path / "fleet")
    assert done.finished
    assert [row["left_out"] for row in done.rounds] == [[], [0], [0]]  # it does not count
    (event,) = [e for e in events(tmp_path / "fleet") if e["event"] == "other data"]
    assert event["why"] == "client 0: shape is [3, 8, 8]; expected [1, 8, 8], as the run has"
    assert event["why"] in lines[0][0]


@pytest.mark.parametrize("lie", [{"vocabulary": "many"}, {"classes": 0}, {"shape": 8}, {"samples": 1 << 40}])
def test_data_that_cannot_be(lie, tmp_path):
    world = World(tmp_path, 6)
    build = world.runtimes[4].build
    world.runtimes[4].build = lambda raw, k: (build(raw, k)[0], build(raw, k)[1] | lie)
    with pytest.raises(
        FleetError,
        match=r"node of client 4: its description of the data is not valid: ",
    ):
        world.run(everyone(), tmp_path / "fleet")


def test_nobody_is_there(tmp_path):
    world = World(tmp_path, 6, away={0, 1, 2, 3, 4, 5})
    with pytest.raises(
        FleetError, match=r"0 of 6 clients are online after 0\.2 seconds; expected at least 1; missing: 0, 1, 2, 3"
    ):
        world.run(everyone(), tmp_path / "fleet", wait=0.2)


def test_what_was_sent_to_nobody_is_on_nobodys_account(tmp_path):
    done = World(tmp_path, 6, away={5}).run(everyone("dispfl"), tmp_path / "fleet", wait=0.2)
    assert [row["left_out"] for row in done.rounds] == [[5]] * 3
    assert [row["up"] for row in done.rounds] == [row["down"] for row in done.rounds]


def test_some_are_not_there_at_the_start(tmp_path):
    world = World(tmp_path, 6, away={5})
    done = world.run(everyone(), tmp_path / "fleet", wait=0.2)
    assert [row["left_out"] for row in done.rounds] == [[5]] * 3
    assert events(tmp_path / "fleet")[0]["event"] == "not there at the start"


def test_a_model_that_does_not_fit_the_data(tmp_path):
    world = World(tmp_path, 6)
    r = everyone()
    order = world.order(r, tmp_path / "fleet")
    order["recipe"]["model"]["name"] = "lenet"
    from sparsona.fleet.coordinator import run_order

    with pytest.raises(
        FleetError,
        match=r'^node of client 0, .*client 5: model "lenet" cannot be built for [^;]*$',
    ):
        run_order(GridTransport(world), order, tmp_path)


@pytest.mark.parametrize("name", ["os:system", "this: x", "this:", ":x", "os.path:join:x"])
def test_code_of_others_is_not_loaded_unless_allowed(name, tmp_path, monkeypatch):
    world = World(tmp_path, 6)
    r = everyone()
    monkeypatch.delitem(sys.modules, "this", raising=False)
    with pytest.raises(FleetError, match=rf"model.name: \"{re.escape(name)}\" is a plug-in.*--allow-plugins"):
        world.run(replace(r, model=replace(r.model, name=name)), tmp_path / "fleet")
    assert "this" not in sys.modules


@pytest.mark.parametrize(
    ("error", "told"), [(ValueError("bad"), "bad"), (KeyError("x"), "KeyError: 'x'"), (None, None)]
)
def test_what_went_wrong_is_told_to_whoever_waits_but_not_that_the_way_broke(error, told, tmp_path, monkeypatch):
    import httpx

    from sparsona.fleet import coordinator

    def fail(*_):
        raise error or httpx.ConnectError("refused")

    monkeypatch.setattr(coordinator, "run_order", fail)
    (tmp_path / "order.json").write_text("{}")
    with pytest.raises(type(error) if error else httpx.ConnectError):
        coordinator.main(None, {"order": str(tmp_path)})
    assert not (tmp_path / "done").exists()
    if told is None:
        assert not (tmp_path / "error").exists()  # it is started again
    else:
        assert (tmp_path / "error").read_text().splitlines()[0] == told
