"""The figure of waiting."""

from pathlib import Path

import pytest

from made import PNG
from sparsona.papers.waiting import waiting
from sparsona.papers.waiting_figure import waiting_figure


@pytest.mark.parametrize(("neighbours", "waits", "draws"), [([1, 3, 9], [0, 1, 5], 4), ([2], [], 1)])
def test_figure_of_waiting(tmp_path: Path, neighbours: list[int], waits: list[int], draws: int) -> None:
    simulation = waiting(10, neighbours, waits, draws)
    first = waiting_figure(simulation, tmp_path / "a.png").read_bytes()
    assert first.startswith(PNG)
    assert waiting_figure(simulation, tmp_path / "b.png").read_bytes() == first
