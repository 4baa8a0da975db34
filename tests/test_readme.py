"""The README does what it says."""

import re
import subprocess
import sys
from pathlib import Path

from sparsona.methods import METHODS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_python_example_runs(tmp_path):
    (code,) = re.findall(r"<!-- test: run -->\n```python\n(.*?)```", README, re.DOTALL)
    assert sum(map(bool, code.splitlines())) <= 10
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"shared: \d+\.\d% accuracy, 4\.\d MB sent\npersonal: \d+\.\d% accuracy, 4\.\d MB sent", done.stdout
    )


def test_all_methods_are_in_the_table_of_the_docs():
    table = (ROOT / "docs" / "methods" / "index.md").read_text()
    assert sorted(re.findall(r"^\| \[`([\w+]+)`\]\(", table, re.MULTILINE)) == sorted(METHODS)  # each once
    assert f"{len(METHODS)} methods" in README
    tested = re.findall(r"^\| \[`[\w+]+`\].* \| ([^|]+) \|$", table, re.MULTILINE)
    personal = sum(what != "the shared model" for what in tested)  # clients are tested with different models
    assert f"| {personal} of {len(METHODS)} |" in README


def test_all_links_lead_somewhere():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
