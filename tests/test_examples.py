"""The scripts in examples/ run, and pages of the docs show them as they are."""

import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

# what a script prints; each stays below a few seconds, needs no network and writes into the current folder only
SCRIPTS = {
    "hugging_face_folder.py": r"6 clients, writer 0, writer 1, \.\.\.: \d+\.\d% accuracy",
    "own_csv_hospitals.py": r"Aachen: 85 to train.*\nBergen: [\s\S]*fedavg: \d+\.\d% .*\nfedspa: \d+\.\d% ",
    "own_npz.py": r"fedavg: \d+\.\d% \(machine 0 \d+%, .*\nditto: \d+\.\d% \(machine 0",
    "pandas_and_callback.py": r"(?s)round 1 of 12: .*good enough; .*\n +12 +0\.\d+ +\d+\nbest client: \d, worst",
    "own_sampler.py": r"round 1: clients \[\d*[02468], \d*[02468], \d*[02468]\]\n[\s\S]*accuracy \d+\.\d%\n",
    "own_method.py": r"own = 0\.0: accuracy \d+\.\d%\nown = 0\.5: accuracy \d+\.\d%\nown = 1\.0: accuracy \d+\.\d%\n",
    "characters.py": r"round 8: perplexity 1\.\d, 9\d% of characters right\n",
    "multi_label.py": r"macro F1 \d+\.\d%, AUC 9\d\.\d%, all labels right \d+\.\d%\n",
    "own_metric.py": r"accuracy 9\d\.\d%, confidence in errors 0\.\d+, undefined for .*\n",
    "transformer.py": r"\d+\.\d% accuracy, 1\.\d+ GFLOP\n\d+\.\d% after one round from the model of Ada\n",
    "regression_table.py": r"fedavg: RMSE 1\.\d+, R2 -?0\.\d+, .*\nditto: RMSE 0\.\d+, R2 0\.9\d, .* town 0\.\d+\n",
}

NEEDS = {"hugging_face_folder.py": "datasets"}  # optional packages


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_runs(name: str, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    (scratch / name).write_text((EXAMPLES / name).read_text())  # where worker processes and recipes find it by name
    runpy.run_path(name, run_name="__main__")
    assert re.search(SCRIPTS[name], capsys.readouterr().out)


@pytest.mark.slow
def test_the_notebook_runs(scratch: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # what it shows is computed, not stored
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    shown = [str(out.get("text") or out.get("data")) for cell in notebook.cells for out in cell.get("outputs", ())]
    assert any("[6, 6]" in text for text in shown)
    assert any("<table>" in text and "tour-personal" in text for text in shown)
    assert (scratch / "client-2.safetensors").is_file()


def test_every_example_is_listed() -> None:
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(SCRIPTS)


def test_pages_show_examples_as_they_are() -> None:
    """A block after ``<!-- example: NAME.py -->`` is that file."""
    shown = set()
    for page in PAGES:
        for name, code in re.findall(r"<!-- example: (\S+) -->\n```python\n(.*?)```", page.read_text(), re.DOTALL):
            assert code == (EXAMPLES / name).read_text(), f"{page.name}: {name}"
            shown.add(name)
    assert "own_method.py" in shown
