"""Which clients took part in which rounds, and why others did not: as text and as a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from sparsona.core.text import one_line
from sparsona.experiment.results import Run
from sparsona.reports import drawing
from sparsona.reports.sheet import counted, number_ranges

_CLIENTS, _REASONS = 10, 3  # that are listed in words
_LONGEST = 120  # characters of a reason
_ALIKE = 1.05  # numbers of clients that differ by less are alike: somebody may be left out
_LEFT_OUT, _KINDS = 2, ("not sampled", "participated", "left out")  # numbers and names of what a client did in a round


def trained(run: Run) -> list[set[int]]:
    """For each round the clients that trained, and whose answer was taken."""
    return [set(row["participants"]) - set(row["left_out"]) for row in run.rounds]


def counts(run: Run) -> dict[str, Any]:
    """How many clients could take part in rounds, how many trained in one on average, and how many never did."""
    recipe, each = run.recipe, trained(run)
    clients = recipe.data.clients - round(recipe.fleet.hold_out * recipe.data.clients)  # newcomers never take part
    return {
        "clients": clients,
        "clients_per_round": fmean(map(len, each)) if each else None,
        "never_trained": clients - len(set[int]().union(*each)),
    }


def unequal(groups: Sequence[Sequence[Run]], names: Sequence[str]) -> Iterator[str]:
    """What keeps groups of runs from equal terms: how many clients train, and how many are tested untrained.

    Both are means over the runs of a group.
    """
    runs = [run for group in groups for run in group]
    per_round = [fmean(fmean(map(len, trained(run))) for run in group) for group in groups]
    if max(per_round) > _ALIKE * min(per_round):
        each = ", ".join(f"{counted(n)} in {name}" for n, name in zip(per_round, names, strict=True))
        hint = ""
        if any(_peers(run) and run.recipe.fleet.peers == "all" for run in runs) and not all(map(_peers, runs)):
            hint = '; with fleet.peers = "drawn", methods without a server also train only fleet.per_round clients'
        yield f"the runs differ in the number of clients that train per round: {each}{hint}"
    untrained = [fmean(map(_tested_untrained, group)) for group in groups]
    if some := [f"{counted(n)} in {name}" for n, name in zip(untrained, names, strict=True) if n]:
        yield (
            f"some clients never trained and are tested in their initial state: {', '.join(some)}; "
            'set evaluate.clients = "participated" to leave them out'
        )


def _tested_untrained(run: Run) -> int:
    """How many clients of a stateful method were tested without having trained."""
    return len(set(run.client_scores()).difference(*trained(run))) if _keeps_state(run) else 0


def _peers(run: Run) -> bool:
    """Whether a run had no server: rounds of peers have a clock."""
    return any("clock" in row for row in run.rounds)


def _keeps_state(run: Run) -> bool:
    """Whether clients keep something between rounds, besides what the server sends them."""
    state = run.path / "state"
    return any(state.glob("client-*")) or (state / "versions.json").is_file()


def in_words(run: Run) -> Iterator[str]:
    """A line for each client that was left out or not tested, those with most first, and what else happened."""
    whys: dict[str, dict[str, list[int]]] = {}  # by client and reason, the rounds
    for key, prefix in (("why_left_out", ""), ("not_tested", "not tested: ")):
        for row in run.rounds:
            for k, why in row.get(key, {}).items():
                whys.setdefault(k, {}).setdefault(prefix + why, []).append(row["round"])
    worst = sorted(whys, key=lambda k: (-sum(map(len, whys[k].values())), int(k)))
    for k in worst[:_CLIENTS]:
        reasons = [f"{_short(why)} ({_rounds(rounds)})" for why, rounds in islice(whys[k].items(), _REASONS)]
        unlisted = len(whys[k]) - len(reasons)
        out = sum(int(k) in row["left_out"] for row in run.rounds)
        asked = sum(int(k) in row["participants"] for row in run.rounds)
        text = "; ".join(reasons) + (f"; {unlisted} more reasons in rounds.jsonl" if unlisted else "")
        name = f" ({run.client_names[int(k)]})" if run.client_names else ""
        yield f"client {k}{name}: {f'left out of {out} of {asked} rounds: ' if out else ''}{text}"
    if len(worst) > _CLIENTS:
        yield f"{len(worst) - _CLIENTS} more clients were left out of rounds; see rounds.jsonl"
    if (run.path / "fleet.jsonl").is_file():
        yield from _besides(list(run.rows("fleet")))


def failure(run: Run) -> str | None:
    """Why a run learnt nothing: every answer of every round was left out; None if some answer counted."""
    if not all(row["participants"] and set(row["participants"]) <= set(row["left_out"]) for row in run.rounds):
        return None
    first = run.rounds[0]
    k, why = next(iter(first["why_left_out"].items()))
    tip = "; a smaller method.lr may help" if why == "NaN or Inf" else ""
    what = f"every answer of all {len(run.rounds)} rounds was left out, so nothing was learnt"
    return f"{what}; in round 1, client {k}: {_short(why)}{tip}"


def _besides(events: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Events of a fleet that are not part of any round."""
    resumed = [event["rounds"] for event in events if event["event"] == "resumed"]
    if resumed:
        yield f"the server resumed after {_rounds(resumed)}"
    lines: dict[str, set[int]] = {}
    for event in events:
        if event["event"] in ("restarted", "began anew"):  # as runs of before 0.2 have it
            lines.setdefault(f"client {event['client']} restarted without its state", set()).add(event["round"])
        elif event["event"] == "unusable message":
            suspected = event["why"].startswith("suspected")
            what = "may have been" if suspected else "was"
            line = f"client {event['client']}: its message to peers {what} unusable, reported by client {event['by']}"
            lines.setdefault(line, set()).add(event["round"])
    for line, rounds in islice(lines.items(), _CLIENTS):
        yield f"{_short(line)} ({_rounds(sorted(rounds))})"
    if len(lines) > _CLIENTS:
        yield f"{len(lines) - _CLIENTS} more such events are in fleet.jsonl"


def _short(why: str) -> str:
    why = one_line(why).replace("begins anew: ", "restarted without its state: ", 1)  # a device's own words, perhaps
    return why if len(why) <= _LONGEST else f"{why[:_LONGEST]}…"


def _rounds(rounds: Sequence[int]) -> str:
    return f"{'round' if len(rounds) == 1 else 'rounds'} {number_ranges(rounds)}"


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
        ax.set_title(f"{run.recipe.name}: participation by round", parse_math=False)
        ax.set(xlabel="round", ylabel="client")
        for axis in (ax.xaxis, ax.yaxis):
            drawing.whole_numbers(axis)
        shown = [i for i in range(len(_KINDS)) if (did == i).any()]
        drawing.legend(figure, [Patch(color=colours[i]) for i in shown], [_KINDS[i] for i in shown])
    return path
