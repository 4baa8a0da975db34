"""The server's side alone, with a way that can do anything: order, memory, nodes that go, answers that come twice."""

import time
from dataclasses import dataclass, field

import pytest
import torch

from small import recipe
from sparsona.core.wire import Message, Values
from sparsona.engines.codec import result_parts
from sparsona.engines.jobs import Job, Result
from sparsona.experiment.setup import DataForm, bare_device
from sparsona.fleet import engine as fleet_engine
from sparsona.fleet.engine import FleetEngine
from sparsona.fleet.envelope import pack, unpack
from sparsona.fleet.transport import Reply

DEVICE = bare_device(recipe(), DataForm(10, (1, 8, 8)))
THETA = Message(theta=Values(torch.zeros(DEVICE.task.layout.dim)))


def answer(data, **more):
    """What an honest device answers."""
    head, _ = unpack(data)
    told, blobs = result_parts(Result(head["k"], message=Message(theta=Values(torch.ones(3)))))
    return pack(told | {key: head[key] for key in ("run", "ask", "t", "kind", "k")} | {"from": None} | more, blobs)


@dataclass
class Way:
    """A Transport whose answers a test decides."""

    sent: list = field(default_factory=list)  # node and envelope
    due: list = field(default_factory=list)  # lists of replies, one for each look
    away: set = field(default_factory=set)

    def nodes(self):
        return {}

    def seats(self):
        return {k: 1000 + k for k in range(4) if k not in self.away}

    def send(self, node, data, seconds):
        self.sent.append((node, data))
        return str(len(self.sent) - 1)

    def receive(self, numbers):
        return self.due.pop(0)(numbers) if self.due else []

    def replies(self, *places, **more):
        return [Reply(str(i), self.sent[i][0], answer(self.sent[i][1]), **more) for i in places]


def engine(way, **more):
    return FleetEngine(way, way.seats, DEVICE, {"run": "r"}, **{"timeout": 5.0, "poll": 0.001} | more)


def jobs(count=4):
    return (Job("local", 0, k, None, {"server": THETA}) for k in range(count))


def test_results_are_given_as_soon_as_those_before_them_are_there():
    way = Way()
    way.due = [lambda n: way.replies(1), lambda n: way.replies(0), lambda n: way.replies(3, 2)]
    results = engine(way).map(jobs())
    assert next(results).k == 0
    assert len(way.due) == 1  # the others were not waited for
    assert [r.k for r in results] == [1, 2, 3]


def test_envelopes_are_not_kept():
    way = Way()
    way.due = [lambda n: way.replies(0, 1, 2, 3)]
    results = engine(way).map(jobs())
    next(results)
    asked = results.gi_frame.f_locals["asked"]
    assert len(asked) == 4
    assert not any(isinstance(value, bytes) for one in asked for value in vars(one).values())
    assert not asked[0].job.inbox  # nor messages, once they are answered


def test_an_answer_that_comes_twice_counts_once():
    way = Way()
    way.due = [lambda n: way.replies(0, 0, 1), lambda n: way.replies(0, 2, 2, 3)]
    served = engine(way)
    assert [r.absent for r in served.map(jobs())] == [None] * 4


def test_a_node_that_went_is_asked_again_while_others_are_at_work_and_not_waited_for_otherwise(monkeypatch):
    monkeypatch.setattr(fleet_engine, "_LOOK", 0.0)
    way = Way()
    way.due = [
        lambda n: [*way.replies(0, 1), Reply("2", 1002, None, "Node Unavailable", gone=True)],
        lambda n: [],
        lambda n: way.replies(4),  # the same client again
        lambda n: way.replies(3),
    ]
    assert [r.absent for r in engine(way).map(jobs())] == [None] * 4
    assert [node for node, _ in way.sent] == [1000, 1001, 1002, 1003, 1002]
    way = Way()
    way.due = [lambda n: [*way.replies(0, 1, 3), Reply("2", 1002, None, "Node Unavailable", gone=True)]]
    why = [r.absent for r in engine(way).map(jobs())][2]
    assert (why.why, why.reached) == ("Node Unavailable", True)


def test_who_was_never_there_was_sent_nothing():
    way = Way(away={2})
    way.due = [lambda n: way.replies(0, 1, 2)]
    why = [r.absent for r in engine(way).map(jobs())][2]
    assert (why.why, why.reached) == ("not there", False)


def test_what_came_while_the_results_were_taken_is_in_time():
    way = Way()
    way.due = [lambda n: way.replies(0), lambda n: way.replies(1, 2, 3)]
    served = engine(way, timeout=0.2)
    results = served.map(jobs())
    first = next(results)
    time.sleep(0.4)
    assert [r.absent for r in (first, *results)] == [None] * 4


@pytest.mark.parametrize("node", [1001, 0])
def test_a_node_cannot_answer_for_another(node):
    way = Way()
    way.due = [lambda n: [Reply("0", node, answer(way.sent[0][1]))]]
    (result,) = engine(way, least=0).map(jobs(1))
    assert result.absent.why == f"node {node} answered for node 1000"


def test_an_answer_that_comes_when_its_round_is_over_is_taken_for_no_other():
    way = Way()
    way.due = [lambda n: way.replies(0), *[lambda n: []] * 1000]
    late = engine(way, timeout=0.5, least=0)
    assert [r.absent and r.absent.why for r in late.map(jobs(2))] == [None, "no answer within 0.5 seconds"]
    old = way.replies(1)
    way.due = [lambda n: [*old, *way.replies(2)], lambda n: [Reply("3", 1001, old[0].data)]]
    why = [r.absent and r.absent.why for r in late.map(jobs(2))]
    assert why[0] is None
    assert "an answer to something else: ask is " in why[1]
