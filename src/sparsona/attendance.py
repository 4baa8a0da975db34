"""Who took part in which rounds and who did not, and why: in words, and as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sparsona import drawing
from sparsona.engines.parcels import one_line
from sparsona.results import Run

_CLIENTS, _REASONS = 10, 3  # that are told in words
_LONGEST = 120  # characters of a reason
_LEFT_OUT, _KINDS = 2, ("not asked", "took part", "left out")  # numbers and names of what a client did in a round


def in_words(run: Run) -> Iterator[str]:
    """A line for each client that was left out or not tested, those with most first, and what else happened."""
    whys: dict[str, dict[str, list[int]]] = {}  # by client and reason, the rounds
    for key, prefix in (("why_left_out", ""), ("not_tested", "not tested: ")):
        for row in run.rounds:
            for k, why in row.get(key, {}).items():
                whys.setdefault(k, {}).setdefault(prefix + why, []).append(row["round"])
    worst = sorted(whys, key=lambda k: (-sum(map(len, whys[k].values())), int(k)))
    for k in worst[:_CLIENTS]:
        told = [f"{_short(why)} ({_spans(rounds)})" for why, rounds in islice(whys[k].items(), _REASONS)]
        more = len(whys[k]) - len(told)
        out = sum(int(k) in row["left_out"] for row in run.rounds)
        asked = sum(int(k) in row["participants"] for row in run.rounds)
        reasons = "; ".join(told) + (f"; {more} more reasons in rounds.jsonl" if more else "")
        yield f"client {k}: {f'left out of {out} of {asked} rounds: ' if out else ''}{reasons}"
    if len(worst) > _CLIENTS:
        yield f"{len(worst) - _CLIENTS} more clients were left out of rounds; rounds.jsonl names them"
    if (run.path / "fleet.jsonl").is_file():
        yield from _besides(list(run.rows("fleet")))


def _besides(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What happened on a fleet that no round tells of."""
    resumed = [event["rounds"] for event in events if event["event"] == "resumed"]
    if resumed:
        yield f"the server went on after {_spans(resumed)}"
    told: dict[str, set[int]] = {}
    for event in events:
        if event["event"] == "began anew":
            told.setdefault(f"client {event['client']} had lost what it kept and began anew", set()).add(event["round"])
        elif event["event"] == "unusable message":
            suspected = event["why"].startswith("suspected")
            what = "may have been" if suspected else "was"
            line = f"client {event['client']}: what it told its peers {what} of no use, says client {event['by']}"
            told.setdefault(line, set()).add(event["round"])
    for line, rounds in islice(told.items(), _CLIENTS):
        yield f"{_short(line)} ({_spans(sorted(rounds))})"
    if len(told) > _CLIENTS:
        yield f"{len(told) - _CLIENTS} more of this kind are in fleet.jsonl"


def _short(why: str) -> str:
    why = one_line(why)  # a device's own words, perhaps
    return why if len(why) <= _LONGEST else f"{why[:_LONGEST]}…"


def _spans(rounds: Sequence[int]) -> str:
    """Rounds in few words: 1, 3-5."""
    spans: list[list[int]] = []
    for t in rounds:
        if spans and t == spans[-1][-1] + 1:
            spans[-1][1:] = [t]
        else:
            spans.append([t])
    return ("round " if len(rounds) == 1 else "rounds ") + ", ".join("-".join(map(str, span)) for span in spans)


def picture(run: Run, path: Path) -> Path | None:
    """Draw clients by rounds, if anybody was left out."""
    if not any(row["left_out"] for row in run.rounds):
        return None
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    clients, rounds = run.recipe.data.clients, len(run.rounds)
    did = np.zeros((clients, rounds), dtype=np.int8)
    for column, row in enumerate(run.rounds):
        did[row["participants"], column] = 1
        did[row["left_out"], column] = _LEFT_OUT
    colours = ["#eeeeee", drawing.BLUE, drawing.ORANGE]
    look: dict[str, Any] = {"interpolation": "nearest", "cmap": ListedColormap(colours), "vmin": 0, "vmax": 2}
    with drawing.figure(path, 8, min(10.0, 1.8 + 0.2 * clients)) as figure:
        ax = figure.add_subplot()
        size = (0.5, rounds + 0.5, clients - 0.5, -0.5)  # rounds count from 1, clients from 0
        ax.imshow(did, aspect="auto", extent=size, **look)
        ax.grid(visible=False)
        if clients <= 40:
            ax.hlines(np.arange(0.5, clients - 1), 0.5, rounds + 0.5, color="white", linewidth=1)
        ax.set_title(f"{run.recipe.name}: who took part", parse_math=False)
        ax.set(xlabel="round", ylabel="client")
        for axis in (ax.xaxis, ax.yaxis):
            drawing.whole_numbers(axis)
        shown = [i for i in range(len(_KINDS)) if (did == i).any()]
        drawing.legend(figure, [Patch(color=colours[i]) for i in shown], [_KINDS[i] for i in shown])
    return path
