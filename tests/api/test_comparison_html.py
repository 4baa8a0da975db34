"""What a notebook shows of a comparison."""

from pathlib import Path

from made import FEDAVG, make
from sparsona.api.comparison import compare


def test_names_of_folders_are_escaped(tmp_path: Path) -> None:
    runs = [make(tmp_path / name, FEDAVG) for name in ("<b>x", "y")]
    html = compare([run.path for run in runs], tmp_path / "out")._repr_html_()
    assert "&lt;b&gt;x" in html
    assert "<b>" not in html
