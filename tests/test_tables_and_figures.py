"""The page of all tables and figures of the papers: it lists each, and its commands name what there is."""

import re
import shlex
from pathlib import Path

import pytest

import sparsona
from sparsona.experiment.reproduce import plan, table_names
from sparsona.experiment.sweep import plan as planned_runs
from sparsona.papers import CHECKS
from test_docs import PAGES, parsed

ROOT = Path(__file__).parent.parent
TEXT = PAGES["results/tables-and-figures.md"]
CELLS = "\n".join(line for line in TEXT.splitlines() if line.startswith("|"))
COMMANDS = sorted(set(re.findall(r"`sparsona ([^`]+)`", CELLS)))
ROMAN = {"I": 1, "II": 2, "III": 3}
PRINTED = {  # by paper: how many tables and figures it has
    "FedSpa": (5, 8),
    "DA-DPFL": (3, 9),
    "FedPSE": (3, 13),
    "PerFedMask": (9, 6),
    "pFedGate": (13, 7),
}


def rows(paper: str) -> list[list[str]]:
    """The rows of a paper's table: what is listed, what it shows, the commands, the scale."""
    section = TEXT.partition(f"\n## {paper}\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| (.*) \|$", section, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines[1:]]


def listed(kind: str, cells: list[str]) -> list[int]:
    """The numbers of the tables or figures that a row is about."""
    name = re.fullmatch(rf"{kind}s? (\w+)(?: to (\w+))?", cells[0])
    if name is None:
        return []
    first, last = (ROMAN.get(number) or int(number) for number in (name[1], name[2] or name[1]))
    return list(range(first, last + 1))


def test_the_papers_are_those_of_the_page() -> None:
    assert re.findall(r"^## (.*)$", TEXT, re.MULTILINE) == list(PRINTED)


@pytest.mark.parametrize("paper", PRINTED)
def test_every_table_and_figure_is_listed_once(paper: str) -> None:
    tables, figures = PRINTED[paper]
    numbers = {kind: [n for cells in rows(paper) for n in listed(kind, cells)] for kind in ("Table", "Figure")}
    assert numbers == {"Table": list(range(1, tables + 1)), "Figure": list(range(1, figures + 1))}
    assert all(len(cells) == 4 and cells[1] and cells[3] for cells in rows(paper)), "what it shows, or the scale"


def test_every_table_that_can_be_reproduced_is_listed() -> None:
    named = {parsed(shlex.split(command))[1]["table"] for command in COMMANDS if command.startswith("reproduce")}
    assert named == set(table_names())
    for paper in PRINTED:
        for cells in rows(paper):
            for name in re.findall(r"sparsona reproduce \w+/([a-z]+)(\d+)", cells[2]):
                assert listed(name[0].title(), cells) == [int(name[1])]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_names_what_there_is(command: str) -> None:
    name, values = parsed(shlex.split(command))
    only = str(values.get("only") or "")
    recipe, changes = str(values.get("recipe")), values.get("overrides") or ()
    assert isinstance(changes, (list, tuple))
    chosen = only.split(",") if only else ()
    if name == "reproduce":
        plan(str(values["table"]), chosen)
    elif name == "check":
        assert values["name"] in CHECKS
    elif name == "show":
        sparsona.show(str(values["name"]))
    elif name == "sweep":
        planned_runs(recipe, changes, chosen)
    elif name in ("run", "masks"):
        sparsona.load(recipe, changes, chosen)
    else:
        assert name in ("compare", "topology")


@pytest.mark.parametrize("file", sorted(set(re.findall(r"`(benchmarks/\w+\.py)`", TEXT))))
def test_a_benchmark_is_there(file: str) -> None:
    assert (ROOT / file).is_file()
