"""Which models are tested on which samples, and when: every score of a run but those of local training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from torch import Tensor

from sparsona.core.rng import Rng
from sparsona.core.wire import Message, Values
from sparsona.engines.device import Device
from sparsona.engines.jobs import Job, Raw, Result, Score, Wants
from sparsona.engines.rounds import Engine
from sparsona.engines.store import Store
from sparsona.engines.values import dumps
from sparsona.experiment.metrics import metrics
from sparsona.experiment.recipe import Recipe
from sparsona.experiment.setup import newcomers
from sparsona.method import Inbox, Server, capabilities

Scores = dict[str, dict[int, Score]]  # by evaluation point, then by client
BEST = "best"  # the store's part that holds the best shared model


def is_due(recipe: Recipe, t: int) -> bool:
    """Whether round t of a run ends with an evaluation."""
    return (t + 1) % recipe.evaluate.every == 0 or t + 1 == recipe.rounds


@dataclass
class Evaluator:
    """Tests the clients' models; it remembers the best shared model and each client's last score after training."""

    recipe: Recipe
    engine: Engine
    device: Device
    store: Store
    members: list[int]  # the clients that are no newcomers
    participated: set[int] = field(default_factory=set)  # the clients whose answer was taken in some round so far
    latest: dict[int, Score] = field(default_factory=dict)  # each client's score after its last local training
    new: dict[int, Score] = field(default_factory=dict)  # those of them that no checkpoint has yet
    untested: dict[int, str] = field(default_factory=dict)  # in this round: who gave no score, and why
    best: tuple[int, float, Tensor] | None = None  # round, headline in validation and shared model, if it is tuned

    def due(self, t: int) -> bool:
        """Whether round t ends with an evaluation."""
        return is_due(self.recipe, t)

    def evaluate(self, server: Server, t: int, after: dict[int, Score]) -> Scores:
        """All scores of round t; ``after`` are those that came with local training."""
        if self.recipe.evaluate.clients != "all":
            after = {k: after[k] for k in self.tested() if k in after}
        self.latest |= after
        self.new |= after
        scores = self._at_points(server, t) if self.due(t) else {}
        scores["after"] = after
        if "finished" in self.recipe.evaluate.points:
            scores["validation"] = self._validate(server, t)
            if t + 1 == self.recipe.rounds:
                scores["unfinished"] = self._scores(self._unfinished())
                scores["finished"] = self._scores(self._finishes(self.tested()))
        return scores

    def tested(self) -> list[int]:
        """The clients that are tested now."""
        which = self.recipe.evaluate.clients
        if isinstance(which, int):
            return [self.members[place] for place in Rng(self.recipe.seed, "tested").choice(len(self.members), which)]
        return self.members if which == "all" else sorted(self.participated)

    def models(self, server: Server) -> Iterator[Result]:
        """Every client's personal model at the end of the run, fine-tuned if the recipe says so."""
        finished = "finished" in self.recipe.evaluate.points
        return self.engine.map(
            self._finishes(self.members, ("model",))
            if finished
            else self._tests(self.members, server, self.recipe.rounds - 1, ("model",))
        )

    def adapt(self, server: Server) -> dict[int, Result]:
        """Let the clients that were held out join at the end of the run."""
        star, t = capabilities(self.device.method).star, self.recipe.rounds - 1
        if star is None:
            return {}
        ctx = self.device.ctx(t, "tests", t)
        jobs = (Job("adapt", t, k, None, {"server": star.down(server, k, ctx)}) for k in newcomers(self.recipe))
        return {result.k: result for result in self.engine.map(jobs)}

    def _at_points(self, server: Server, t: int) -> Scores:
        """Every client's personal model, and the shared one if wanted, on its own test samples."""
        jobs: dict[str, Iterator[Job]] = {}
        if "before" in self.recipe.evaluate.points:
            jobs["before"] = self._tests(self.tested(), server, t)
        if "shared" in self.recipe.evaluate.points:
            model: Inbox = {"server": Message(theta=Values(self.device.shared(server)))}
            jobs["shared"] = (Job("shared", t, k, None, model) for k in self.tested())
        return {point: self._scores(of_point) for point, of_point in jobs.items()}

    def _validate(self, server: Server, t: int) -> dict[int, Score]:
        """Test the shared model on every client's validation samples, and keep it if none was better."""
        theta = self.device.shared(server)
        message = Message(theta=Values(theta))
        jobs = (Job("validate", t, k, None, {"server": message}) for k in self.tested())
        scores = self._scores(jobs)
        main = self.recipe.task.main
        value = metrics(scores, self.recipe.task).get(main.key, 0.0)
        untested = not any(s.samples for s in scores.values())
        if self.best is None or untested or main.rank(value) > main.rank(self.best[1]):
            self.best = t, value, theta
            self.store.put_part(BEST, dumps(theta))
        return scores

    def _unfinished(self) -> Iterator[Job]:
        """Tests of the model that is fine-tuned, as it is: that of the last round may be another."""
        assert self.best is not None
        t, _, theta = self.best
        message = Message(theta=Values(theta))
        return (Job("shared", t, k, None, {"server": message}) for k in self.tested())

    def _finishes(self, clients: Iterable[int], wants: Wants = ()) -> Iterator[Job]:
        assert self.best is not None
        t, _, theta = self.best
        message = Message(theta=Values(theta))
        for k in clients:
            yield Job("finish", t, k, None, {"server": message}, wants)

    def _tests(self, clients: Iterable[int], server: Server, t: int, wants: Wants = ()) -> Iterator[Job]:
        ctx, star = self.device.ctx(t, "tests", t), capabilities(self.device.method).star
        for k in clients:
            inbox: dict[str | int, Raw]
            if star is not None:
                inbox = {"server": star.down(server, k, ctx)}
            else:
                inbox = {"self": self.store.mail(k, t + 1)[0]}
            yield Job("evaluate", t, k, self.store.client(k), inbox, wants, self.store.version(k))

    def _scores(self, jobs: Iterable[Job]) -> dict[int, Score]:
        """The scores of tests; on a real fleet some may be missing, and are recorded with the round."""
        scores = {}
        for result in self.engine.map(jobs):
            if result.absent is not None:
                self.untested[result.k] = result.absent.why
            elif result.score is not None:
                scores[result.k] = result.score
        return scores
