"""What a run can be resumed from: the server's value and the progress of all parts, written with the store's rounds."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from sparsona.engines.device import Device
from sparsona.engines.jobs import Score
from sparsona.engines.rounds import VoteHistory
from sparsona.engines.store import Checkpoint, Store
from sparsona.engines.values import dumps, loads, split, types_of
from sparsona.experiment.evaluator import BEST, Evaluator
from sparsona.experiment.recorder import Recorder
from sparsona.method import Server, capabilities

PROGRESS = "progress.json"  # in the state of a finished run: what more rounds would start from besides the values


@dataclass
class Checkpointer:
    """Saves a run after each round, and restores it."""

    store: Store
    device: Device
    clients: int
    every: int  # rounds from one commit to the next
    evaluator: Evaluator
    recorder: Recorder
    parts: dict[str, Tensor] = field(default_factory=dict)  # of the server's value, as they were last written

    def restore(self) -> tuple[Server, int, VoteHistory]:
        """Go back to the last checkpoint, or to the start: the server's value, the finished rounds and all votes."""
        checkpoint = self.store.checkpoint()
        known = {} if checkpoint is None else checkpoint.progress
        self.recorder.open(known.get("sizes"), self.every, known.get("tail", {}))
        method = self.device.method
        if checkpoint is None:
            ctx = self.device.ctx(0, "start")
            star = capabilities(method).star
            return (None if star is None else star.start(self.clients, ctx)), 0, {}
        progress = checkpoint.progress
        for row in self.recorder.rows:
            self.evaluator.participated |= set(row["participants"]) - set(row["left_out"])
        self.evaluator.latest = {k: Score(*json.loads(score)) for k, score in self.store.scores().items()}
        older = progress.get("latest", {})  # the checkpoint of a version that kept all scores in it
        self.evaluator.new = {int(k): Score(*score) for k, score in older.items()}
        self.evaluator.latest |= self.evaluator.new
        vote_history = {int(t): {int(k): bool(v) for k, v in votes.items()} for t, votes in progress["ballots"].items()}
        server = loads(checkpoint.server, types_of(method), lambda name: loads(self.store.part(name), {}))
        self.parts = split(server)[1]
        if (best := progress.get("best")) is not None:
            self.evaluator.best = best[0], best[1], loads(self.store.part(BEST), {})
        return server, checkpoint.rounds_done, vote_history

    def save(self, server: Server, t: int, vote_history: VoteHistory) -> None:
        """End round t in the store; only the parts of the server's value that changed are written."""
        whole, parts = split(server)
        for name, tensor in parts.items():
            if self.parts.get(name) is not tensor:
                self.store.put_part(name, dumps(tensor))
        self.parts = parts
        self.store.put_scores({k: json.dumps(stored(score)) for k, score in self.evaluator.new.items()})
        self.evaluator.new = {}
        best = self.evaluator.best
        progress = {
            "sizes": self.recorder.sizes(),
            "best": None if best is None else best[:2],
            "ballots": vote_history,
        }
        self.store.end_round(Checkpoint(t + 1, whole, progress))
        if (t + 1) % self.every == 0 or t + 1 == self.device.rounds:
            self.store.commit()


def stored(score: Score) -> list[Any]:
    """A score as it is kept between rounds."""
    fields: list[Any] = [score.correct, score.samples, score.loss]
    return [*fields, score.metrics] if score.metrics else fields


def state_file(folder: Path) -> Path:
    """The file that holds the checkpoint while a run is under way."""
    return folder / "state.sqlite"


def forget_state(folder: Path) -> None:
    """Remove the checkpoint of a run that is finished."""
    for name in ("state.sqlite", "state.sqlite-wal", "state.sqlite-shm"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "state.mail", ignore_errors=True)


def reopen(folder: Path) -> None:
    """Make a finished run an unfinished one that has more rounds to do."""
    shutil.rmtree(folder / "figures", ignore_errors=True)
    (folder / "summary.json").unlink(missing_ok=True)
