"""The figures of a finished run are there whole or not at all."""

from pathlib import Path

import pytest

from made import FEDAVG, make
from sparsona.api import figures


def test_figures_that_were_cut_short_are_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path / "run", FEDAVG)
    drawn = figures.run_figures

    def killed(*given: object) -> None:
        drawn(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(figures, "run_figures", killed)
    with pytest.raises(KeyboardInterrupt):
        figures.draw(run)
    assert not (run.path / "figures").exists()
    monkeypatch.undo()
    figures.draw(run)
    assert {f.name for f in (run.path / "figures").iterdir()} == {"accuracy.png", "clients.png"}
    assert not (run.path / "figures.part").exists()
