"""The round loops, star and peers: the same for every engine, so that engines cannot differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from sparsona.core.topology import RoundPlan
from sparsona.core.training import Ctx
from sparsona.core.wire import Message, WireError, encode
from sparsona.engines.jobs import Job, Result, Score, Wants
from sparsona.engines.store import Letter, Store, nbytes
from sparsona.method import VOTE, ContractError, Server, StarMethod, capabilities

VoteHistory = dict[int, dict[int, bool]]  # by round, what each client voted


class TooFew(RuntimeError):
    """A round had fewer answers than it needs; the last checkpoint is intact."""

    def __init__(self, why: str, reset: Mapping[int, str] | None = None) -> None:
        super().__init__(why)
        self.reset = reset or {}  # clients that lost what they kept, and why: as new ones they could answer


class Engine(Protocol):
    """Runs jobs and gives their results in the order of the jobs."""

    kind: str  # of the devices of its workers; empty where they are as the recipe says

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The results, in the order of the jobs; simulations draw a bounded number ahead, a fleet a whole cohort."""

    def close(self) -> None:
        """Stop whatever the engine started."""


@dataclass
class ClientCost:
    """What one client's round cost: bytes really encoded, bytes by the papers' accounting, operations."""

    down: int = 0
    up: int = 0
    paper_down: int = 0
    paper_up: int = 0
    flops: int | None = 0  # None: not known
    forward: int | None = 0  # the part of them that went forward

    def receives(self, nbytes: int, value_nbytes: int) -> None:
        """Count a message to the client."""
        self.down += nbytes
        self.paper_down += value_nbytes

    def sends(self, nbytes: int, value_nbytes: int) -> None:
        """Count a message from the client."""
        self.up += nbytes
        self.paper_up += value_nbytes

    def computes(self, flops: int | None, forward: int | None) -> None:
        """Count what the client computed; once it is not known, the sum is not."""
        self.flops = None if self.flops is None or flops is None else self.flops + flops
        self.forward = None if self.forward is None or forward is None else self.forward + forward


@dataclass
class RoundResult:
    """What happened in a round."""

    t: int
    costs: dict[int, ClientCost] = field(default_factory=dict)
    scores: dict[int, Score] = field(default_factory=dict)  # right after local training
    trained: dict[int, Score] = field(default_factory=dict)  # on the training samples, while training
    left_out: dict[int, str] = field(default_factory=dict)  # clients whose answer was not taken, and why
    notes: dict[int, dict[str, float]] = field(default_factory=dict)  # what the method reports of its clients
    clock: dict[int, tuple[float, float]] = field(default_factory=dict)  # when each would start and finish
    seconds: float = 0.0  # spent on devices
    reset: set[int] = field(default_factory=set)  # clients that lost what they kept, and restart after this round
    restarted: dict[int, str] = field(default_factory=dict)  # clients that restarted in it, for it needed them, and why

    def enough(self, least: int) -> None:
        """Raise TooFew if fewer answers than these were taken."""
        taken = len(self.costs.keys() - self.left_out.keys())
        if taken < least:
            whys = "; ".join(f"client {k}: {why}" for k, why in sorted(self.left_out.items()))
            reset = {k: self.left_out[k] for k in self.reset}
            raise TooFew(
                f"round {self.t + 1} has {taken} answers; expected at least fleet.min_answers = {least}: {whys}", reset
            )


def star(
    method: StarMethod, engine: Engine, store: Store, server: Server, t: int, chosen: list[int], ctx: Ctx, wants: Wants
) -> tuple[Server, RoundResult]:
    """One round with a server: send to the chosen, let them train, merge what they answer."""
    outcome = RoundResult(t)

    def jobs() -> Iterator[Job]:
        for k in chosen:
            message = method.down(server, k, ctx)
            if not isinstance(message, Message):
                what = f"{type(method).__name__}.down returned {type(message).__name__}"
                raise ContractError(f"{what}; expected a Message")
            outcome.costs[k] = ClientCost()
            outcome.costs[k].receives(message.nbytes, message.value_nbytes)
            yield Job("local", t, k, store.client(k), {"server": message}, wants, store.version(k))

    def answers() -> Iterator[tuple[int, Any]]:
        for result in engine.map(jobs()):
            if not _answered(result, outcome):
                continue
            assert result.message is not None
            outcome.costs[result.k].sends(result.message.nbytes, result.message.value_nbytes)
            if _is_sound(result, outcome):
                try:
                    answer = method.read(server, result.k, result.message, ctx)
                except WireError as error:
                    outcome.left_out[result.k] = str(error)
                    continue
                _keep(result, outcome, store)
                yield result.k, answer

    inbox, before = answers(), server
    server = method.merge(server, inbox, ctx)
    if server is None and before is not None:
        raise ContractError(f"{type(method).__name__}.merge returned None; expected the server's new value")
    for _ in inbox:  # a merge that looks at some only still lets all clients finish
        pass
    reports = capabilities(method).reports
    if reports is not None:
        for k in outcome.costs.keys() - outcome.left_out.keys():
            if figures := reports.report(None, server, k, ctx).figures:
                outcome.notes[k] = outcome.notes.get(k, {}) | figures
    return server, outcome


def peers(
    engine: Engine, store: Store, t: int, plan: RoundPlan, vote_history: VoteHistory, clients: int, wants: Wants
) -> tuple[VoteHistory, RoundResult]:
    """One round without a server: wave by wave, each client reads fresh or last round's messages of its neighbours.

    What a client sends is passed on as it is, and lies in the store with what it sent before. All clients get the
    ``vote_history`` of earlier rounds, also those that were away; the votes of this round come with it in the next.
    """
    outcome = RoundResult(t, costs={k: ClientCost() for k in plan.reads})
    past_votes: dict[str | int, Letter] = {"all": encode(_votes_message(vote_history, clients))} if vote_history else {}
    votes_cast: dict[int, bool] = {}
    mailed: dict[int, list[tuple[int, int, int]]] = {}  # by reader: sender, bytes, bytes of values
    for wave in plan.waves():

        def inbox(k: int) -> dict[str | int, Letter]:
            mail = {"self": store.mail(k, t)[0], **past_votes}
            mailed[k] = []
            for j in plan.reads[k]:
                mail[j], values = store.mail(j, t + 1 if j in plan.fresh[k] else t)
                mailed[k].append((j, nbytes(mail[j]), values))
            return mail

        def jobs(wave: Iterable[int] = wave) -> Iterator[Job]:
            for k in sorted(wave):
                yield Job("local", t, k, store.client(k), inbox(k), ("bytes", *wants), store.version(k))

        for result in engine.map(jobs()):
            if result.absent is None or result.absent.reached:  # what reached nobody cost nobody
                for j, size, values in mailed.pop(result.k):
                    outcome.costs[result.k].receives(size, values)
                    outcome.costs[j].sends(size, values)
            if not _answered(result, outcome):
                continue
            assert result.sent is not None
            if _is_sound(result, outcome):
                _keep(result, outcome, store)
                store.put_mail(result.k, t, result.sent.data, result.sent.value_nbytes)
                if result.vote is not None:
                    votes_cast[result.k] = result.vote
    store.forget_mail(t)
    bit = Message(**{VOTE: True}).nbytes
    for k, cost in outcome.costs.items():  # every client sends to every other
        cost.receives(bit * (len(votes_cast) - (k in votes_cast)), 0)
        cost.sends(bit * (len(plan.reads) - 1) * (k in votes_cast), 0)
    return (vote_history | {t: votes_cast} if votes_cast else vote_history), outcome


def _votes_message(vote_history: VoteHistory, clients: int) -> Message:
    """All votes so far, a row for each round in which there were any: 1 yes, 0 no, 2 not there."""
    rows = [[int(votes.get(k, 2)) for k in range(clients)] for votes in vote_history.values()]
    return Message(votes=torch.tensor(rows, dtype=torch.uint8), rounds=torch.tensor(list(vote_history)))


def _answered(result: Result, outcome: RoundResult) -> bool:
    """Whether a client answered; on a real fleet one may not, and is left out with the reason."""
    if result.absent is None:
        return True
    outcome.left_out[result.k] = result.absent.why
    if result.absent.reset:
        outcome.reset.add(result.k)
    if not result.absent.reached:  # nothing was sent
        outcome.costs[result.k].down = outcome.costs[result.k].paper_down = 0
    return False


def _is_sound(result: Result, outcome: RoundResult) -> bool:
    """Count what an answer cost; one with NaN or Inf is left out, and its client stays as it was."""
    outcome.costs[result.k].computes(result.flops, result.forward)
    outcome.seconds += result.seconds
    if not (result.finite and (result.message is None or result.message.finite())):
        outcome.left_out[result.k] = "NaN or Inf"
    return result.k not in outcome.left_out


def _keep(result: Result, outcome: RoundResult, store: Store) -> None:
    """Take what a client keeps, and its score, into the books."""
    if result.client is not None:
        store.put(result.k, result.client)
    if result.version is not None:
        store.put_version(result.k, result.version)
    if result.score is not None:
        outcome.scores[result.k] = result.score
    if result.trained is not None:
        outcome.trained[result.k] = result.trained
    if result.notes is not None:
        outcome.notes[result.k] = result.notes
