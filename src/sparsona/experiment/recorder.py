"""The rows of a run: one per round, one per client and round, appended to journals or kept in memory."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sparsona.engines.atomic_file import write
from sparsona.engines.jobs import Score
from sparsona.engines.rounds import RoundResult
from sparsona.experiment.metrics import metrics
from sparsona.experiment.results import Journal, Row, Run, RunError, plain
from sparsona.experiment.task import TaskConfig

_COSTS = ("down", "up", "paper_down", "paper_up", "flops", "forward")


@dataclass
class Recorder:
    """Writes down what happened in each round."""

    folder: Run | None  # without one, the rows stay in memory
    task: TaskConfig = field(default_factory=TaskConfig)
    devices: Sequence[str] = ()  # the kinds that compute
    rows: list[Row] = field(default_factory=list)  # of rounds
    client_rows: list[Row] = field(default_factory=list)  # without a folder only
    journals: dict[str, Journal] = field(default_factory=dict)

    def open(
        self, sizes: Mapping[str, int] | None, checkpoint_every: int, tail: Mapping[str, Sequence[Row]] | None = None
    ) -> None:
        """Open the journals and cut them back to the ``sizes`` that the checkpoint knew; None if there is none.

        The rows of ``tail`` follow: the last round of a run that was finished once, and has more rounds now.
        """
        if self.folder is None:
            return
        path = self.folder.path
        rounds = path / "rounds.jsonl"
        known = rounds.read_bytes().count(b"\n") if rounds.exists() else 0
        if sizes is None and known > checkpoint_every:
            raise RunError(f"{path} cannot be resumed: state.sqlite is missing; start a new run in another folder")
        for name in ("rounds", "clients"):
            self.journals[name] = Journal(path / f"{name}.jsonl", (sizes or {}).get(name, 0))
            self.journals[name].add(*(tail or {}).get(name, ()))
        self.journals["timing"] = Journal(path / "timing.jsonl")  # what was spent stays spent
        if sizes is not None:
            self.rows = list(self.folder.rows("rounds"))

    def sizes(self) -> dict[str, int]:
        """The lengths of the journals that a checkpoint can cut back."""
        return {name: journal.size for name, journal in self.journals.items() if name != "timing"}

    def record(
        self,
        outcome: RoundResult,
        scores: Mapping[str, Mapping[int, Score]],
        latest: Mapping[int, Score],
        untested: Mapping[int, str],
    ) -> Row:
        """Append a round; ``latest`` are the scores after local training if the round was evaluated."""
        self.note_devices()
        spent = {name: _sum(getattr(c, name) for c in outcome.costs.values()) for name in _COSTS}
        before = self.rows[-1]["total"] if self.rows else dict.fromkeys(_COSTS, 0)
        row: Row = {
            "round": outcome.t + 1,
            "participants": sorted(outcome.costs),
            "left_out": sorted(outcome.left_out),
            **spent,
            "total": {name: _sum((before.get(name, 0), spent[name])) for name in _COSTS},
        }
        if outcome.left_out:
            row["why_left_out"] = {str(k): why for k, why in sorted(outcome.left_out.items())}
        if outcome.restarted:
            row["restarted"] = {str(k): why for k, why in sorted(outcome.restarted.items())}
        if untested:
            row["not_tested"] = {str(k): why for k, why in sorted(untested.items())}
        if outcome.notes:
            row["notes"] = mean_notes(outcome.notes)
        if outcome.clock:
            row["clock"] = _clock(outcome.clock)
        for point in ("before", "shared", "validation", "unfinished", "finished"):
            if scores.get(point):
                row[point] = metrics(scores[point], self.task)
        if latest:
            row["after"] = metrics(latest, self.task)
        if training := of_training(outcome.trained):
            row["training"] = training
        self.rows.append(row)
        if self.folder is None:
            self.client_rows.extend(plain(each) for each in _client_rows(outcome, scores))
        else:
            self.journals["rounds"].add(row)
            self.journals["clients"].add(*_client_rows(outcome, scores))
        return row

    def note_devices(self) -> None:
        """Add the kinds of device that compute to those that run.json names."""
        devices, self.devices = self.devices, ()  # once
        if self.folder is None or not devices:
            return
        file = self.folder.path / "run.json"
        about = json.loads(file.read_text(encoding="utf-8"))
        known = devices_of(about)
        if new := [kind for kind in devices if kind not in known]:
            write(file, json.dumps(about | {"devices": [*known, *new]}, indent=1) + "\n")

    def time(self, t: int, seconds: float, device_seconds: float) -> None:
        """Append what a round took to the one journal that differs from run to run."""
        if "timing" in self.journals:
            self.journals["timing"].add({"round": t + 1, "seconds": seconds, "device_seconds": device_seconds})

    def close(self) -> None:
        """Close the journals."""
        for journal in self.journals.values():
            journal.close()


def devices_of(about: Mapping[str, Any]) -> list[str]:
    """The kinds of device that run.json says computed a run, the first ones first.

    Earlier versions named one, or none where it was the CPU; of the nodes of a fleet they did not know.
    """
    earlier = "unknown" if "fleet_run" in about else "cpu"
    return list(about.get("devices") or [about.get("device", earlier)])


def _sum(values: Iterable[int | None]) -> int | None:
    """The sum of costs; None if one of them is not known."""
    total = 0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def mean_notes(notes: Mapping[int, Mapping[str, float]]) -> dict[str, float]:
    """Each note's mean over the clients that have it, in the order of the client with most notes."""
    fullest = max(notes.values(), key=len)  # the first of them, where all have the same
    values = {name: [notes[k][name] for k in sorted(notes) if name in notes[k]] for name in fullest}
    return {name: sum(each) / len(each) for name, each in values.items()}


def of_training(scores: Mapping[int, Score]) -> dict[str, float | int]:
    """Mean loss and accuracy on training samples, over the clients that trained; nothing if none did."""
    some = [scores[k] for k in sorted(scores) if scores[k].samples]
    if not some:
        return {}
    row: dict[str, float | int] = {"loss": sum(s.loss / s.samples for s in some) / len(some)}
    right = [s.correct / s.samples for s in some if s.correct is not None]
    return row | ({"accuracy": sum(right) / len(right)} if right else {}) | {"clients": len(some)}


def _clock(clock: Mapping[int, tuple[float, float]]) -> dict[str, float]:
    """A round in simulated time: its length, the share of clients that start at once, the mean wait."""
    starts = [start for start, _ in clock.values()]
    return {
        "length": max(finish for _, finish in clock.values()),
        "parallelism": sum(start == 0 for start in starts) / len(starts),
        "waiting": sum(starts) / len(starts),
    }


def _client_rows(outcome: RoundResult, scores: Mapping[str, Mapping[int, Score]]) -> Iterator[Row]:
    for k in sorted(outcome.costs.keys() | {k for of_point in scores.values() for k in of_point}):
        row: dict[str, Any] = {"round": outcome.t + 1, "client": k}
        if k in outcome.costs:
            row |= asdict(outcome.costs[k])
        if k in outcome.trained:
            row["training"] = outcome.trained[k].row()
        if k in outcome.notes:
            row["notes"] = outcome.notes[k]
        if k in outcome.clock:
            row["start"], row["finish"] = outcome.clock[k]
        yield row | {point: of_point[k].row() for point, of_point in scores.items() if k in of_point}
