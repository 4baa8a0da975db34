"""Histograms in a run's notes, worked out by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from sparsona.experiment.results import Run
from sparsona.reports.note_figures import draw_histograms, histograms


def noted(path: Path, *notes: dict[str, float] | None) -> Run:
    """A run folder whose rounds have these notes."""
    path.mkdir()
    rows = [{"round": i + 1} | ({} if each is None else {"notes": each}) for i, each in enumerate(notes)]
    (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Run(path)


def test_histograms_by_hand(tmp_path: Path) -> None:
    notes = ({"sent": 1.0, "w: low": 0.25, "w: high": 0.75}, {"sent": 1.0, "w: low": 0.5, "w: high": 0.5})
    run = noted(tmp_path / "a", None, notes[0], None, notes[1])
    assert list(histograms(run)) == ["w"]
    names, shares = histograms(run)["w"]
    assert names == ["low", "high"]
    nan = math.nan
    np.testing.assert_array_equal(shares, [[nan, 0.25, nan, 0.5], [nan, 0.75, nan, 0.5]])
    assert draw_histograms(run, tmp_path / "h.png") == tmp_path / "h.png"
    assert draw_histograms(noted(tmp_path / "b", {"sent": 1.0}, None), tmp_path / "none.png") is None
    assert not (tmp_path / "none.png").exists()
