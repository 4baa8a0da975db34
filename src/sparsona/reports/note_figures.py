"""The figures of notes, what methods report of their clients in each round: values as lines, histograms as maps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsona.experiment.results import Run
from sparsona.reports import drawing

BIN = ": "  # notes named "what: bin" are one histogram of what, in the order of the notes


def note_names(runs: Sequence[Run]) -> list[str]:
    """The names of all notes of some runs except histograms, which have a separate figure."""
    every = dict.fromkeys(name for run in runs for name in run.rounds[0].get("notes", {}))
    return [name for name in every if BIN not in name]


def draw_notes(runs: Sequence[Run], names: Sequence[str], notes: Sequence[str], path: Path) -> Path:
    """Draw notes over the rounds, such as sparsity, one panel each."""
    with drawing.figure(path, 8, 0.6 + 2.2 * len(notes)) as figure:
        handles: dict[int, Any] = {}
        for ax, what in zip(figure.subplots(len(notes), 1, sharex=True, squeeze=False).flat, notes, strict=True):
            for i, run in enumerate(runs):
                rows = [r for r in run.rounds if what in r.get("notes", {})]
                if rows:
                    x, y = [r["round"] for r in rows], [r["notes"][what] for r in rows]
                    handles[i] = ax.plot(x, y, **drawing.look(i, len(rows)))[0]
            ax.set_title(f"{what}, mean over clients", parse_math=False)
            drawing.round_axis(ax)
        ax.set_xlabel("round")
        drawing.legend(figure, [handles[i] for i in sorted(handles)], [names[i] for i in sorted(handles)])
    return path


def histograms(run: Run) -> dict[str, tuple[list[str], NDArray[np.float64]]]:
    """Each histogram in a run's notes: the names of its bins, and shares [bins, rounds], NaN for rounds without it."""
    bins: dict[str, list[str]] = {}
    for name in next((row["notes"] for row in run.rounds if row.get("notes")), {}):
        if BIN in name:
            what, level = name.split(BIN, 1)
            bins.setdefault(what, []).append(level)
    return {what: (levels, _shares(run, what, levels)) for what, levels in bins.items()}


def _shares(run: Run, what: str, levels: list[str]) -> NDArray[np.float64]:
    rows = [[row.get("notes", {}).get(f"{what}{BIN}{level}", np.nan) for row in run.rounds] for level in levels]
    return np.array(rows, dtype=np.float64)


def draw_histograms(run: Run, path: Path) -> Path | None:
    """Draw them over the rounds, if there are any."""
    shown = histograms(run)
    if not shown:
        return None
    with drawing.figure(path, 8, 0.6 + 3.4 * len(shown)) as figure:
        axes = figure.subplots(len(shown), 1, squeeze=False).flat
        for ax, (what, (levels, shares)) in zip(axes, shown.items(), strict=True):
            ends = (0.5, shares.shape[1] + 0.5, -0.5, len(levels) - 0.5)
            image = ax.imshow(100 * shares, aspect="auto", origin="lower", extent=ends, cmap="Blues", vmin=0)
            ax.set_yticks(range(len(levels)), levels)
            ax.grid(visible=False)
            ax.set_title(f"{what}, mean over clients", parse_math=False)
            ax.set_xlabel("round")
            drawing.round_axis(ax)
            figure.colorbar(image, ax=ax, label="share (%)")
    return path


__all__ = ["BIN", "draw_histograms", "draw_notes", "histograms", "note_names"]
