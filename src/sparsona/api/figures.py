"""The figures of finished runs: those of every run, and those that need what its method's clients have learnt."""

from __future__ import annotations

import shutil

from sparsona.experiment.results import Run
from sparsona.methods.pfedgate.figures import draw_tree
from sparsona.reports.run_figures import run_figures


def draw(run: Run) -> None:
    """Draw the figures of a finished run if its recipe asks for them and they are not there yet."""
    folder, part = run.path / "figures", run.path / "figures.part"
    if not run.recipe.results.figures or folder.is_dir():
        return
    shutil.rmtree(part, ignore_errors=True)  # of a process that was killed while it drew
    run_figures(run, part)
    if (learnt := run.vectors()) is not None:
        part.mkdir(exist_ok=True)
        draw_tree(*learnt, part / "gates.png")
    if part.is_dir():
        part.rename(folder)
