"""The pages of docs/: commands run or can be parsed, files load, links to lines of code lead there."""

import ast
import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import ModuleType

import click
import pytest
import typer

import sparsona
from sparsona.cli import app
from sparsona.experiment.sweep import plan as planned_runs
from sparsona.methods import METHODS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
SITE = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
PAGES = SITE | {"README.md": (ROOT / "README.md").read_text()}

# a block, perhaps in a list, with what the comment before it says: <!-- test: run -->, <!-- file: NAME -->, ...
BLOCK = re.compile(r"(?:^ *<!-- (\w+): (\S+) -->\n)?^( *)```([a-z]*)\n(.*?)^\3```$", re.MULTILINE | re.DOTALL)
# why the commands or the program of a block are not run here, only parsed
REASONS = {
    "long": "takes more than a few seconds",
    "fleet": "starts servers and nodes, or uses what they wrote; see tests/fleet",
    "network": "downloads packages",
    "data": "needs MNIST with its writers: run where they are (DIR is their folder)",
    "onnx": "needs an optional package: run where it is installed",
    "part": "a piece of a program",
}
DATA = os.environ.get("SPARSONA_DATA", "")
SHELL = ("sh", "console", "bash")
# their programs are run by other tests, or are pieces of one
OWN = re.compile(r"\w:\w|\.(txt|csv|json)\b")  # in an override: code or a file of the reader's own
TEST = ("test", "run")

Block = tuple[str, str, str, str]  # test, file or example; its value; the language; the text


def blocks(page: str) -> list[Block]:
    found = BLOCK.findall(PAGES[page])
    return [(kind, value, language, textwrap.dedent(text)) for kind, value, _, language, text in found]


def runs(block: Block) -> bool:
    """Whether a block can be run here."""
    if block[:2] == ("test", "onnx"):
        return all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
    if block[:2] == ("test", "data"):
        folder = Path(DATA) / "mnist"
        writers = [*folder.glob("writers.npz"), *folder.glob("qmnist-test-labels*")]
        return bool(DATA) and any(folder.glob("train-images*")) and bool(writers)
    return block[:2] == TEST


# tests/test_readme.py runs what README.md shows in Python
RUN = {page: [block for block in blocks(page) if runs(block)] for page in SITE}
RUN = {page: found for page, found in RUN.items() if found}
WITH_COMMANDS = {page for page in RUN if any(language in SHELL for _, _, language, _ in RUN[page])}


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, with the command sparsona of this tree on the path."""
    folder = tmp_path / ".bin"
    folder.mkdir()
    for name, start in (("sparsona", "-m sparsona "), ("python", "")):
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {start}"$@"\n')
        (folder / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(sparsona.__file__).parent.parent))
    monkeypatch.delenv("SPARSONA_DATA", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def prepare(page: str, folder: Path) -> None:
    """Write the files that a page shows."""
    for kind, name, _, text in blocks(page):
        if kind in ("file", "example"):
            (folder / name).write_text(text)


@pytest.mark.parametrize("page", sorted(RUN.keys() - WITH_COMMANDS))
def test_python_on_a_page_runs(page: str, scratch: Path) -> None:
    """Blocks after ``<!-- test: run -->``, one after the other in one namespace."""
    prepare(page, scratch)
    (scratch / "page.py").write_text("\n".join(text for *_, text in RUN[page]))
    runpy.run_path("page.py", run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted(WITH_COMMANDS))
def test_commands_on_a_page_run(page: str, scratch: Path) -> None:
    """Blocks after ``<!-- test: run -->``, in the order of the page and in one folder."""
    prepare(page, scratch)
    for _, value, language, shown in RUN[page]:
        text = re.sub(r"\bDIR\b", shlex.quote(DATA), shown) if value == "data" else shown
        words = ["bash", "-euo", "pipefail", "-c", text] if language in SHELL else [sys.executable, "-c", text]
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{page}:\n{text}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES)
def test_blocks_are_run_or_say_why_not(page: str) -> None:
    for kind, value, language, text in blocks(page):
        if language in SHELL:
            assert kind == "test", f"{page}: <!-- test: run -->, or {', '.join(REASONS)}, is missing before\n{text}"
            assert value == "run" or value in REASONS, f"{page}: {value}"
        elif language == "python":
            assert kind in ("test", "file", "example"), f"{page}: a comment is missing before\n{text}"
            assert kind != "test" or value == "run" or value in REASONS, f"{page}: {value}"
            ast.parse(text)
        elif not language:
            assert not re.search(r"^sparsona ", text, re.MULTILINE), f"{page}: a command in a block without a language"


def commands(text: str) -> Iterator[list[str]]:
    """The sparsona commands of a block, with loops and variables written out."""
    text = re.sub(r"\\\n\s*", " ", text)
    for name, value in re.findall(r'^(\w+)="(.*)"$', text, re.MULTILINE):
        text = text.replace(f"${name}", value)
    loop = re.compile(r"for (\w+) in ([^;\n]+); do(.*?)done", re.DOTALL)
    text = loop.sub(lambda m: "\n".join(m[3].replace(f"${m[1]}", value) for value in m[2].split()), text)
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";")
        lexer.whitespace_split = True
        for ends, group in groupby(lexer, key=lambda word: word == ";"):
            words = list(group)
            if not ends and words[0] == "sparsona":
                yield words[1:]


COMMANDS = [
    (page, " ".join(map(shlex.quote, words)))
    for page in PAGES
    for _, _, language, text in blocks(page)
    if language in SHELL
    for words in commands(text)
]


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_commands_can_be_parsed(page: str, command: str, scratch: Path) -> None:
    prepare(page, scratch)
    name, values = parsed(shlex.split(command))
    recipe, changes, only = (values.get(key) or "" for key in ("recipe", "overrides", "only"))
    assert isinstance(recipe, str)
    shown = Path(recipe).suffix != ".toml" or Path(recipe).exists()
    if name not in ("run", "sweep", "fleet trial") or recipe.isupper() or not shown or OWN.search(" ".join(changes)):
        return  # what it names is not here: a placeholder, a file or code of the reader's own
    chosen = only.split(",") if only else ()
    if name == "sweep":
        planned_runs(recipe, changes, chosen)
    else:
        sparsona.load(recipe, changes, chosen)


def parsed(words: list[str]) -> tuple[str, dict[str, object]]:
    """A command and the values of its parameters; a UsageError if it cannot be parsed."""
    command, names = typer.main.get_command(app), []
    while isinstance(command, click.Group) or hasattr(command, "commands"):
        if words[0].startswith("--"):
            return "", {}
        names.append(words[0])
        assert words[0] in command.commands, f"no such command: sparsona {' '.join(names)}"
        command, words = command.commands[words[0]], words[1:]
    if "--help" in words:
        return " ".join(names), {}
    context = command.make_context(" ".join(names), list(words))
    return " ".join(names), context.params


def test_every_method_has_a_page_and_a_row() -> None:
    rows = re.findall(r"^\| \[`([\w+]+)`\]\(([\w+]+)\.md\) \|", PAGES["methods/index.md"], re.MULTILINE)
    assert sorted(rows) == sorted((name, name) for name in METHODS)
    assert sorted(Path(page).stem for page in PAGES if page.startswith("methods/")) == sorted([*METHODS, "index"])


HEADINGS = [
    "Idea",
    "Algorithm",
    "Options",
    "Cost",
    "When to use it",
    "Differences from the paper",
    "Citation",
]


@pytest.mark.parametrize("name", METHODS)
def test_pages_of_methods_follow_the_template(name: str) -> None:
    text = PAGES[f"methods/{name}.md"]
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    assert "<!-- insert: facts -->" in text
    assert "<!-- insert: options -->" in text
    algorithm = text.partition("## Algorithm")[2].partition("## Options")[0]
    assert ".py#" in algorithm


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """tools/docs_pages.py, which adds the generated parts."""
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("docs_pages", ROOT / "tools" / "docs_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_to_lines_of_code_lead_there(hooks: ModuleType) -> None:
    for page, text in SITE.items():
        hooks.led(text, f"docs/{page}", page)  # LookupError if there is no such line
    file = "src/sparsona/methods/ditto.py"
    line = hooks.line_of(file, "Ditto.local:personal_epochs")
    assert "personal_epochs" in (ROOT / file).read_text().splitlines()[line - 1]
    with pytest.raises(LookupError, match="has no nothing"):
        hooks.line_of(file, "nothing")


def test_generated_parts_hold_every_field_and_command(hooks: ModuleType) -> None:
    recipe, cli = hooks.inserted(PAGES["reference/recipe.md"], ""), hooks.inserted(PAGES["reference/cli.md"], "")
    assert all(f"`{field}`" in recipe for field in ("rounds", "alpha", "per_round", "max_wait", "workers", "points"))
    assert all(f"sparsona {name} {{" in cli for name in ("run", "sweep", "fleet trial", "fleet node", "topology"))
    options = hooks.method_options("fedspa")
    assert all(f"| `{option.name}` |" in options for option in sparsona.show("fedspa").options)
    assert "its mask" in hooks.facts("fedspa")


def test_the_python_reference_has_every_name() -> None:
    listed = " ".join(re.findall(r"<!-- insert: api (.*?) -->", PAGES["reference/python.md"])).split()
    assert sorted([*listed, "METHODS", "MODELS", "__version__", "testing"]) == sorted(sparsona.__all__)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(hooks: ModuleType, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(SITE)
    for page in pages:  # nothing is fetched from elsewhere
        assert not re.search(r'<(script|img|iframe)[^>]*src="?(https?:)?//', page.read_text()), page
        assert not re.search(r'<link[^>]*rel="?(stylesheet|preload|icon)[^>]*href="?(https?:)?//', page.read_text()), (
            page
        )
