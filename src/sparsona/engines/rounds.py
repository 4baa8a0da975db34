"""The round loops, star and peers: the same for every engine, so that engines cannot differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from sparsona.core.topology import Plan
from sparsona.core.training import Ctx
from sparsona.core.wire import Message, WireError, encode
from sparsona.engines.device import Job, Result, Score, Wants
from sparsona.engines.store import Letter, Store, nbytes
from sparsona.method import Remarking, Server, StarMethod

Ballots = dict[int, dict[int, bool]]  # by round, what each client voted


class TooFew(RuntimeError):
    """A round had fewer answers than it needs; the last checkpoint is intact."""

    def __init__(self, why: str, reset: Mapping[int, str] | None = None) -> None:
        super().__init__(why)
        self.reset = reset or {}  # clients that lost what they kept, and why: as new ones they could answer


class Engine(Protocol):
    """Runs jobs and gives their results in the order of the jobs."""

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The results, in the order of the jobs; simulations draw a bounded number ahead, a fleet a whole cohort."""

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
    forward: int = 0  # the part of them that went forward

    def receives(self, nbytes: int, value_nbytes: int) -> None:
        """Count a message to the client."""
        self.down += nbytes
        self.paper_down += value_nbytes

    def sends(self, nbytes: int, value_nbytes: int) -> None:
        """Count a message from the client."""
        self.up += nbytes
        self.paper_up += value_nbytes


@dataclass
class Round:
    """What happened in a round."""

    t: int
    costs: dict[int, Cost] = field(default_factory=dict)
    scores: dict[int, Score] = field(default_factory=dict)  # right after local training
    left_out: dict[int, str] = field(default_factory=dict)  # clients whose answer was not taken, and why
    notes: dict[int, dict[str, float]] = field(default_factory=dict)  # what the method tells of its clients
    clock: dict[int, tuple[float, float]] = field(default_factory=dict)  # when each would start and finish
    seconds: float = 0.0  # spent on devices
    reset: set[int] = field(default_factory=set)  # clients that lost what they kept, and begin anew after this round
    anew: dict[int, str] = field(default_factory=dict)  # and those that began anew in it, for it needed them, and why

    def enough(self, least: int) -> None:
        """Raise TooFew if fewer answers than these were taken."""
        taken = len(self.costs.keys() - self.left_out.keys())
        if taken < least:
            whys = "; ".join(f"client {k}: {why}" for k, why in sorted(self.left_out.items()))
            reset = {k: self.left_out[k] for k in self.reset}
            raise TooFew(f"round {self.t + 1} has {taken} of at least {least} answers: {whys}", reset)


def star(
    method: StarMethod, engine: Engine, store: Store, server: Server, t: int, chosen: list[int], ctx: Ctx, wants: Wants
) -> tuple[Server, Round]:
    """One round with a server: send to the chosen, let them train, merge what they answer."""
    done = Round(t)

    def jobs() -> Iterator[Job]:
        for k in chosen:
            message = method.down(server, k, ctx)
            done.costs[k] = Cost()
            done.costs[k].receives(message.nbytes, message.value_nbytes)
            yield Job("local", t, k, store.client(k), {"server": message}, wants)

    def answers() -> Iterator[tuple[int, Any]]:
        for result in engine.map(jobs()):
            if not _there(result, done):
                continue
            assert result.message is not None
            done.costs[result.k].sends(result.message.nbytes, result.message.value_nbytes)
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
    if isinstance(method, Remarking):
        for k in done.costs.keys() - done.left_out.keys():
            done.notes[k] = done.notes.get(k, {}) | method.remarks(server, k)
    return server, done


def peers(
    engine: Engine, store: Store, t: int, plan: Plan, ballots: Ballots, fleet: int, wants: Wants
) -> tuple[Ballots, Round]:
    """One round without a server: wave by wave, each client reads fresh or last round's messages of its neighbours.

    What a client sends is passed on as it is, and lies in the store with what it sent before. ``ballots`` are the votes
    of earlier rounds, of which all hear, also who was away; those of this round come with them when they come back.
    """
    done = Round(t, costs={k: Cost() for k in plan.reads})
    heard: dict[str | int, Letter] = {"all": encode(_heard(ballots, fleet))} if ballots else {}
    cast: dict[int, bool] = {}
    mailed: dict[int, list[tuple[int, int, int]]] = {}  # by reader: sender, bytes, bytes of values
    for wave in plan.waves():

        def inbox(k: int) -> dict[str | int, Letter]:
            mail = {"self": store.mail(k, t)[0], **heard}
            mailed[k] = []
            for j in plan.reads[k]:
                mail[j], values = store.mail(j, t + 1 if j in plan.fresh[k] else t)
                mailed[k].append((j, nbytes(mail[j]), values))
            return mail

        def jobs(wave: Iterable[int] = wave) -> Iterator[Job]:
            for k in sorted(wave):
                yield Job("local", t, k, store.client(k), inbox(k), ("bytes", *wants))

        for result in engine.map(jobs()):
            if result.absent is None or result.absent.reached:  # what reached nobody cost nobody
                for j, size, values in mailed.pop(result.k):
                    done.costs[result.k].receives(size, values)
                    done.costs[j].sends(size, values)
            if not _there(result, done):
                continue
            assert result.sent is not None
            if _sound(result, done):
                _keep(result, done, store)
                store.put_mail(result.k, t, result.sent.data, result.sent.value_nbytes)
                if result.vote is not None:
                    cast[result.k] = result.vote
    store.forget_mail(t)
    bit = Message(vote=True).nbytes
    for k, cost in done.costs.items():  # everyone tells everyone else
        cost.receives(bit * (len(cast) - (k in cast)), 0)
        cost.sends(bit * (len(plan.reads) - 1) * (k in cast), 0)
    return (ballots | {t: cast} if cast else ballots), done


def _heard(ballots: Ballots, fleet: int) -> Message:
    """All votes so far, a row for each round in which there were any: 1 yes, 0 no, 2 not there."""
    rows = [[int(votes.get(k, 2)) for k in range(fleet)] for votes in ballots.values()]
    return Message(votes=torch.tensor(rows, dtype=torch.uint8), rounds=torch.tensor(list(ballots)))


def _there(result: Result, done: Round) -> bool:
    """Whether a client answered; on a real fleet one may not, and is left out with the reason."""
    if result.absent is None:
        return True
    done.left_out[result.k] = result.absent.why
    if result.absent.reset:
        done.reset.add(result.k)
    if not result.absent.reached:  # nothing was sent
        done.costs[result.k].down = done.costs[result.k].paper_down = 0
    return False


def _sound(result: Result, done: Round) -> bool:
    """Count what an answer cost; one with NaN or Inf is left out, and its client stays as it was."""
    done.costs[result.k].flops += result.flops
    done.costs[result.k].forward += result.forward
    done.seconds += result.seconds
    if not (result.finite and (result.message is None or result.message.finite())):
        done.left_out[result.k] = "NaN or Inf"
    return result.k not in done.left_out


def _keep(result: Result, done: Round, store: Store) -> None:
    """Take what a client keeps, and its score, into the books."""
    if result.client is not None:
        store.put(result.k, result.client)
    if result.score is not None:
        done.scores[result.k] = result.score
    if result.notes is not None:
        done.notes[result.k] = result.notes
