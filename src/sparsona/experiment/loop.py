"""The rounds of a run: train, aggregate, evaluate, record, checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from sparsona.core.rng import Rng
from sparsona.engines.device import Device
from sparsona.engines.jobs import Job, Wants
from sparsona.engines.rounds import Engine, RoundResult, TooFew, VoteHistory, peers, star
from sparsona.engines.store import Store
from sparsona.experiment.checkpoints import Checkpointer
from sparsona.experiment.evaluator import Evaluator
from sparsona.experiment.recipe import Recipe
from sparsona.experiment.recorder import Recorder
from sparsona.experiment.results import Row
from sparsona.experiment.sampling import Sampling
from sparsona.method import Server, capabilities


@dataclass(frozen=True)
class Progress:
    """Passed to ``on_round`` after every round.

    Attributes:
        round: The round that has just ended, from 1.
        rounds: Number of rounds of the run.
        row: The round's row in rounds.jsonl: participants, scores if the round was tested, bytes and FLOPs.
        seconds: How long the round took, with tests and checkpoint.
    """

    round: int
    rounds: int
    row: Row
    seconds: float


OnRound = Callable[[Progress], None]


@dataclass
class Loop:
    """Leads a run from its last checkpoint to the end of its last round."""

    recipe: Recipe
    engine: Engine
    device: Device
    clients: int
    sampling: Sampling
    store: Store
    evaluator: Evaluator
    recorder: Recorder
    checkpointer: Checkpointer
    on_round: OnRound | None = None
    away: bool = False  # clients' values stay on their devices, and the store has their versions
    vote_history: VoteHistory = field(default_factory=dict)  # all votes of earlier rounds

    def run(self) -> Server:
        """Run the rounds that are left, and give the server's value."""
        server, first, self.vote_history = self.checkpointer.restore()
        for t in range(first, self.recipe.rounds):
            server = self._round(server, t)
        return server

    def _round(self, server: Server, t: int) -> Server:
        began = time.perf_counter()
        self.store.begin_round()
        self.evaluator.untested = {}
        server, outcome = self._train(server, t)
        self.evaluator.participated |= outcome.costs.keys() - outcome.left_out.keys()
        for k in sorted(outcome.reset):
            server = self._reset(server, t, k)
        scores = self.evaluator.evaluate(server, t, outcome.scores)
        latest = self.evaluator.latest if self.evaluator.due(t) else {}
        row = self.recorder.record(outcome, scores, latest, self.evaluator.untested)
        self.checkpointer.save(server, t, self.vote_history)
        seconds = time.perf_counter() - began
        self.recorder.time(t, seconds, outcome.seconds)
        if self.on_round is not None:
            self.on_round(Progress(t + 1, self.recipe.rounds, row, seconds))
        return server

    def _train(self, server: Server, t: int) -> tuple[Server, RoundResult]:
        """Train and aggregate; if too few answer because some lost their state, retry with these as new clients."""
        restarted: dict[int, str] = {}
        while True:
            try:
                begun = server
                for k in sorted(restarted):
                    begun = self._reset(begun, t - 1, k)
                merged, outcome = self._exchange(begun, t)
            except TooFew as error:
                if error.reset.keys() <= restarted.keys():
                    raise
                restarted |= error.reset
                self.store.back()
            else:
                return merged, replace(outcome, restarted=restarted)

    def _exchange(self, server: Server, t: int) -> tuple[Server, RoundResult]:
        """Send, train and aggregate, with a server or among peers."""
        recipe, method = self.recipe, capabilities(self.device.method).star
        wants: Wants = ("score",) if "after" in recipe.evaluate.points else ()
        vote_history = self.vote_history
        if method is not None:
            ctx, chosen = self.device.ctx(t, "merge", t), self.sampling.chosen(t)
            server, outcome = star(method, self.engine, self.store, server, t, chosen, ctx, wants)
        else:
            everyone, key = self.clients, Rng(recipe.seed, "topology")
            plan = recipe.topology.plan(everyone, t, recipe.rounds, key, self.sampling.away(t))
            if t == 0:
                self._post(-1, range(everyone))
            vote_history, outcome = peers(self.engine, self.store, t, plan, self.vote_history, everyone, wants)
            outcome.clock = plan.clock(recipe.topology.times(everyone, key))
        if self.away:
            outcome.enough(min(recipe.fleet.min_answers, len(outcome.costs)))
        self.vote_history = vote_history
        return server, outcome

    def _post(self, t: int, clients: Iterable[int]) -> None:
        """Let clients join a fleet without a server and send their first message."""
        for result in self.engine.map(Job("post", 0, k, None, {}, ("bytes",)) for k in clients):
            assert result.sent is not None
            if result.client is not None:
                self.store.put(result.k, result.client)
            self.store.put_mail(result.k, t, result.sent.data, result.sent.value_nbytes)

    def _reset(self, server: Server, t: int, k: int) -> Server:
        """Make client k, which lost its state, a new client on both sides, so that no states are mixed."""
        self.store.drop(k)
        able = capabilities(self.device.method)
        if able.peer is not None:
            self._post(t, [k])
        return server if able.forgets is None else able.forgets.forget(server, k)
