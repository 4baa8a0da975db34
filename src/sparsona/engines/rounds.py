"""The round loops, star and peers: the same for every engine, so that engines cannot differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from sparsona.core.topology import Plan
from sparsona.core.training import Ctx
from sparsona.core.wire import Message, WireError
from sparsona.engines.device import Job, Result, Score, Wants
from sparsona.engines.store import Store
from sparsona.method import Server, StarMethod


class Engine(Protocol):
    """Runs jobs and gives their results in the order of the jobs."""

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The results, in the order of the jobs; only a bounded number of jobs is drawn ahead."""

    def close(self) -> None:
        """Stop whatever the engine started."""


@dataclass
class Cost:
    """What one client's round cost: bytes really encoded, bytes by the papers' accounting, operations."""

    down: int = 0
    up: int = 0
    paper_down: int = 0
    paper_up: int = 0
    flops: int = 0

    def receives(self, message: Message) -> None:
        """Count a message to the client."""
        self.down += message.nbytes
        self.paper_down += message.value_nbytes

    def sends(self, message: Message) -> None:
        """Count a message from the client."""
        self.up += message.nbytes
        self.paper_up += message.value_nbytes


@dataclass
class Round:
    """What happened in a round."""

    t: int
    costs: dict[int, Cost] = field(default_factory=dict)
    scores: dict[int, Score] = field(default_factory=dict)  # right after local training
    left_out: dict[int, str] = field(default_factory=dict)  # clients whose answer was not taken, and why
    seconds: float = 0.0  # spent on devices


def star(
    method: StarMethod, engine: Engine, store: Store, server: Server, t: int, chosen: list[int], ctx: Ctx, wants: Wants
) -> tuple[Server, Round]:
    """One round with a server: send to the chosen, let them train, merge what they answer."""
    done = Round(t)

    def jobs() -> Iterator[Job]:
        for k in chosen:
            message = method.down(server, k, ctx)
            done.costs[k] = Cost()
            done.costs[k].receives(message)
            yield Job("local", t, k, store.client(k), {"server": message}, wants)

    def answers() -> Iterator[tuple[int, Any]]:
        for result in engine.map(jobs()):
            assert result.message is not None
            done.costs[result.k].sends(result.message)
            if _sound(result, done):
                try:
                    answer = method.read(server, result.k, result.message, ctx)
                except WireError as error:
                    done.left_out[result.k] = str(error)
                    continue
                _keep(result, done, store)
                yield result.k, answer

    inbox = answers()
    server = method.merge(server, inbox, ctx)
    for _ in inbox:  # a merge that looks at some only still lets all clients finish
        pass
    return server, done


def peers(
    engine: Engine, store: Store, mail: dict[int, Message], t: int, plan: Plan, wants: Wants
) -> tuple[dict[int, Message], Round]:
    """One round without a server: wave by wave, each client reads fresh or last round's messages of its neighbours."""
    done = Round(t, costs={k: Cost() for k in plan.reads})
    fresh: dict[int, Message] = {}
    for wave in plan.waves():

        def jobs(wave: Iterable[int] = wave) -> Iterator[Job]:
            for k in sorted(wave):
                inbox: dict[str | int, Message] = {}
                for j in plan.reads[k]:
                    inbox[j] = fresh.get(j, mail[j]) if j in plan.fresh[k] else mail[j]
                    done.costs[k].receives(inbox[j])
                    done.costs.setdefault(j, Cost()).sends(inbox[j])
                yield Job("local", t, k, store.client(k), inbox, wants)

        for result in engine.map(jobs()):
            if _sound(result, done):
                _keep(result, done, store)
                assert result.message is not None
                fresh[result.k] = result.message
    return mail | fresh, done


def _sound(result: Result, done: Round) -> bool:
    """Count what an answer cost; one with NaN or Inf is left out, and its client stays as it was."""
    assert result.message is not None
    done.costs[result.k].flops += result.flops
    done.seconds += result.seconds
    if not (result.finite and result.message.finite()):
        done.left_out[result.k] = "NaN or Inf"
    return result.k not in done.left_out


def _keep(result: Result, done: Round, store: Store) -> None:
    """Take what a client keeps, and its score, into the books."""
    if result.client is not None:
        store.put(result.k, result.client)
    if result.score is not None:
        done.scores[result.k] = result.score
