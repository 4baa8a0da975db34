"""The figures of one run: which there are, and that they are the same bytes each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from made import FEDAVG, PNG, make
from sparsona.reports.run_figures import run_figures


def test_run_figures(tmp_path: Path) -> None:
    run = make(tmp_path / "run", FEDAVG, points=["before", "after"], target=0.6, finish=False)
    files = run_figures(run, run.path / "figures")
    assert files == [run.path / "figures" / "accuracy.png", run.path / "figures" / "clients.png"]
    first = [f.read_bytes() for f in files]
    assert all(png.startswith(PNG) for png in first)
    assert [f.read_bytes() for f in run_figures(run, run.path / "figures")] == first
    assert sorted(p.name for p in (run.path / "figures").iterdir()) == ["accuracy.png", "clients.png"]


def test_a_run_not_yet_evaluated_has_no_figures(tmp_path: Path) -> None:
    run = make(tmp_path / "run", [None], finish=False)
    assert run_figures(run, run.path / "figures") == []


def test_figures_do_not_depend_on_the_users_settings(tmp_path: Path) -> None:
    import matplotlib

    run = make(tmp_path / "plain", FEDAVG)
    want = [f.read_bytes() for f in run_figures(run, run.path / "figures")]
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "savefig.dpi": 50}):
        assert [f.read_bytes() for f in run_figures(run, run.path / "figures")] == want
        assert matplotlib.rcParams["font.size"] == 20


def test_workers_do_not_load_matplotlib_and_nobody_loads_pyplot(tmp_path: Path) -> None:
    run = make(tmp_path / "plain", FEDAVG)
    code = (
        "import sys; from pathlib import Path; from sparsona.reports.run_figures import run_figures\n"
        "from sparsona.experiment.results import Run\n"
        "assert 'matplotlib' not in sys.modules\n"
        f"run = Run(Path({str(run.path)!r}))\n"
        "run_figures(run, run.path / 'figures')\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
