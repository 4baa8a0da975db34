"""Results as plain values, as printed parts and in one line."""

import io

import pytest
from rich.console import Console

import sparsona
from sparsona.reports.display import NameTable, Printable, print_result


def printed(result: Printable, width: int = 100) -> str:
    screen = io.StringIO()
    print_result(result, Console(file=screen, width=width))
    return screen.getvalue()


def test_names_are_printed_as_they_are() -> None:
    names = NameTable(("name", "about"), {"a": "[bold] stays", "b": "x"})
    assert names.json() == {"a": "[bold] stays", "b": "x"}
    assert "[bold] stays" in printed(names)


def test_a_long_line_and_a_name_of_an_emoji_stay_as_they_are() -> None:
    resolved = sparsona.show("quickstart", ['description=":warning: ' + "x" * 200 + '"'])
    assert f'description = ":warning: {"x" * 200}"' in printed(resolved, 40).splitlines()


@pytest.mark.parametrize("name", ["ditto", "topology", "quickstart"])
def test_results_are_short_in_one_line(name: str) -> None:
    result = sparsona.show(name)
    assert repr(result) == str(result)
    assert repr(result).count("\n") == 0
    assert len(repr(result)) < 400


def test_a_simulation_without_a_picture() -> None:
    result = sparsona.topology(6, [2], [0, 1], 3)
    assert result.json()["picture"] is None
    assert repr(result) == "TopologyResult(6 clients, 3 draws)"
    assert "picture" not in printed(result)


def test_runs_in_memory_are_printed_too() -> None:
    runs = sparsona.RunSet(())
    assert runs.json() == {"folder": None, "runs": []}
    assert printed(runs) == ""
