"""Run folders with given scores, whose tables can be worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsona.engines.jobs import Score
from sparsona.experiment.metrics import metrics
from sparsona.experiment.recipe import check
from sparsona.experiment.results import Journal, Run, summarise, write

Scores = Mapping[int, tuple[int, int]]  # client -> correct, samples
COST = {"down": 1_000_000, "up": 500_000, "paper_down": 900_000, "paper_up": 400_000, "flops": 2_000_000_000}
FEDAVG = [
    {0: (5, 10), 1: (5, 10), 2: (10, 20), 3: (20, 40)},  # mean 0.5
    {0: (8, 10), 1: (6, 10), 2: (10, 20), 3: (36, 40)},  # 0.8, 0.6, 0.5, 0.9: mean 0.7
]
DITTO = [
    {0: (9, 10), 1: (6, 10), 2: (8, 20), 3: (32, 40)},  # 0.9, 0.6, 0.4, 0.8: mean 0.675
    {0: (10, 10), 1: (6, 10), 2: (8, 20), 3: (36, 40)},  # 1.0, 0.6, 0.4, 0.9: mean 0.725
]
PNG = b"\x89PNG\r\n\x1a\n"


def make(
    path: Path,
    rounds: Sequence[Scores | None],
    *,
    method: str = "fedavg",
    times: int = 1,
    cost: Mapping[str, int] = COST,
    finish: bool = True,
    points: Sequence[str] = ("before",),
    target: float | None = None,
    recipe: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
) -> Run:
    """A run folder with the given scores by round, None where a round was not evaluated, at the cost ``times`` over.

    Client 0 alone takes part, and bears the cost.
    """
    evaluate = {"points": list(points), "every": len(rounds)} | ({} if target is None else {"target": target})
    raw = {"name": path.name, "rounds": len(rounds), "model": {"name": "digits-mlp"}, "method": {"name": method}}
    checked = check(raw | {"evaluate": evaluate, "data": {"clients": 4, **(data or {})}} | dict(recipe or {}))
    run = Run.create(path, checked, {})
    journals = {name: Journal(path / f"{name}.jsonl") for name in ("rounds", "clients")}
    rows: list[dict[str, Any]] = []
    for i, scores in enumerate(rounds, start=1):
        spent = {name: value * times for name, value in cost.items()}
        total = {name: value * i for name, value in spent.items()}
        row: dict[str, Any] = {"round": i, "participants": [0], "left_out": [], **spent, "total": total}
        told: dict[int, dict[str, Any]] = {0: dict(spent)}
        if scores is not None:
            row |= {p: metrics({k: Score(c, n, 1.0) for k, (c, n) in scores.items()}) for p in points}
            for k, (c, n) in scores.items():
                score = {"correct": c, "samples": n, "loss": 1.0}
                told.setdefault(k, {}).update(dict.fromkeys(points, score))
        journals["clients"].add(*({"round": i, "client": k} | more for k, more in told.items()))
        rows.append(row)
        journals["rounds"].add(row)
    for journal in journals.values():
        journal.close()
    if finish:
        write(path / "summary.json", json.dumps(summarise(checked, rows)))
    return run
