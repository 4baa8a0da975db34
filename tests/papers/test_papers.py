"""Figures of papers against the code that computes them, and the command that shows both."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from functools import partial

import pytest
from click.testing import Result
from typer.testing import CliRunner

from sparsona import cli
from sparsona.papers import CHECKS, Line

line = partial(Line, "section", "what", "Table 1")


@pytest.fixture(scope="module")
def fedspa() -> list[Line]:
    return list(CHECKS["fedspa"]())


@pytest.fixture(scope="module")
def dadpfl() -> list[Line]:
    return list(CHECKS["dadpfl"]())


@pytest.fixture(scope="module")
def fedpse() -> list[Line]:
    return list(CHECKS["fedpse"]())


@pytest.fixture(scope="module")
def perfedmask() -> list[Line]:
    return list(CHECKS["perfedmask"]())


@pytest.fixture(scope="module")
def pfedgate() -> list[Line]:
    return list(CHECKS["pfedgate"]())


def call(*arguments: str) -> Result:
    done = CliRunner().invoke(cli.app, ["check", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Line]]:
    """Two papers of a few lines each, in place of the real ones."""
    papers = {
        "one": [line("7.0", 6.96), line("15.3", 15.38, stated="a slip")],
        "two": [line("500", 501.0, 2.5, "who is drawn matters")],
    }

    def check(name: str) -> Iterator[Line]:
        yield from papers[name]

    monkeypatch.setattr("sparsona.api.catalogue.CHECKS", {name: partial(check, name) for name in papers})
    monkeypatch.setenv("COLUMNS", "120")
    return papers


def test_every_line_of_fedspa_is_as_expected(fedspa: list[Line]) -> None:
    assert [x for x in fedspa if x.failed] == []
    assert [x for x in fedspa if x.stated and x.agrees] == []
    assert [x for x in fedspa if x.within and not x.note] == []
    assert len(fedspa) == len({(x.section, x.what, x.source) for x in fedspa}) == 132
    assert sum(not x.agrees for x in fedspa) == 10


def test_every_line_of_dadpfl_is_as_expected(dadpfl: list[Line]) -> None:
    assert [x for x in dadpfl if x.failed] == []
    assert [x for x in dadpfl if x.stated and x.agrees] == []
    assert [x for x in dadpfl if x.within and not x.note] == []
    assert len(dadpfl) == len({(x.section, x.what, x.source) for x in dadpfl}) == 153
    assert [x.printed for x in dadpfl if not x.agrees] == ["887.8", "443.8", "2.0", "223.1", "353.3", "176.7"]
    for x in dadpfl:
        if x.within:  # a sparsity of two decimals, samples that are not stated, or random graphs
            assert x.within <= 0.0301 * float(x.printed), x


def test_every_line_of_fedpse_is_as_expected(fedpse: list[Line]) -> None:
    assert [x for x in fedpse if x.failed] == []
    assert [x for x in fedpse if x.stated and x.agrees] == []
    assert [x for x in fedpse if x.within and not x.note] == []
    assert len(fedpse) == len({(x.section, x.what, x.source) for x in fedpse}) == 94
    # promotions on IMDB that its accuracies do not give, and three of the means
    assert [x.printed for x in fedpse if not x.agrees] == [
        *("0.8553", "17.33", "11.65", "9.78", "6.55", "4.17", "3.72", "10.30", "8.99", "10.41", "9.63"),
        *("0.9017", "10.68", "9.43"),
    ]
    assert [(x.printed, x.within <= 0.0501 * 2041) for x in fedpse if x.within] == [("2,041", True)]


def test_every_line_of_perfedmask_is_as_expected(perfedmask: list[Line]) -> None:
    assert [x for x in perfedmask if x.failed] == []
    assert [x for x in perfedmask if x.stated and x.agrees] == []
    assert len(perfedmask) == len({(x.section, x.what, x.source) for x in perfedmask}) == 115
    # what no binary layer masks within the budgets give: a body cut off, averages of trained parameters, Table 5
    assert [x.printed for x in perfedmask if not x.agrees] == [
        *("57.022", "6.138", "1.803", "31.221", "0.941", "1.518", "2.095", "2.647"),
        *("0.223", "3.364", "0.609", "0.204", "0.204"),  # Split-Mix on MobileNet; and 0.2047, cut off
    ]


def test_every_line_of_pfedgate_is_as_expected(pfedgate: list[Line]) -> None:
    assert [x for x in pfedgate if x.failed] == []
    assert [x for x in pfedgate if x.stated and x.agrees] == []
    assert [x for x in pfedgate if x.within and not x.note] == []
    assert len(pfedgate) == len({(x.section, x.what, x.source) for x in pfedgate}) == 52
    # the count of ten classes, for 62; and a backward pass, which is twice a forward one
    assert [x.what for x in pfedgate if not x.agrees] == ["parameters, EMNIST", "training, as 2 (s + s_phi)"]
    assert all(x.within <= 0.01 for x in pfedgate)


def test_tolerances_are_tight(fedspa: list[Line]) -> None:
    """Other settings may draw other clients; all else that is not plain rounding hangs on the rounding of an input."""
    for x in fedspa:
        if x.within:
            printed = float(x.printed.replace(",", ""))
            widest = 0.04 if "LeNet5" in x.section else 0.006 if x.what.startswith("dense") else 0.001
            assert x.within <= widest * printed, x


def test_a_line_off_by_one_in_its_last_digit_fails(
    fedspa: list[Line], dadpfl: list[Line], fedpse: list[Line], perfedmask: list[Line]
) -> None:
    for x in fedspa + dadpfl + fedpse + perfedmask:
        if x.agrees and not x.within:
            digits = len(x.printed.partition(".")[2])
            other = f"{float(x.printed.replace(',', '')) + 10**-digits:.{digits}f}"
            assert dataclasses.replace(x, printed=other).failed, x


@pytest.mark.parametrize(
    ("printed", "computed", "agrees"),
    [
        ("7.0", 7.049, True),
        ("7.0", 7.0503, False),
        ("7.1", 7.0503, True),
        ("0.3", 0.25, True),  # halves go up
        ("0.2", 0.25, False),
        ("1,234", 1234, True),
        ("1,234", 1235, False),
        ("50", 49.5, True),
        ("50", 49.49, False),
        ("50", float("nan"), False),
        ("50", float("inf"), False),
    ],
)
def test_rounding(printed: str, computed: float, agrees: bool) -> None:
    assert line(printed, computed).agrees is agrees


def test_within() -> None:
    assert line("400", 401.4, 1.4).agrees
    assert line("400", 398.6, 1.4).agrees
    assert not line("400", 401.5, 1.4).agrees
    assert line("400", 401.4, 1.4).rule == "within 1.4"
    assert (line("400", 400).rule, line("400", 400.0).rule) == ("equal", "rounded")


def test_verdicts() -> None:
    assert (line("1", 1).verdict, line("1", 2).verdict) == ("yes", "no")
    assert line("1", 2, stated="a slip").verdict == "no, as stated"
    assert not line("1", 2, stated="a slip").failed
    assert line("1", 2, note="why", stated="a slip").remark == "a slip"
    assert line("1", 1, note="why", stated="a slip").remark == "why"


def test_the_command(quick: dict[str, list[Line]]) -> None:
    done = call()
    assert done.exit_code == 0
    for part in ("6.9600", "no, as stated (1)", "(1) a slip", "500 ± 2.5", "yes (1)", "(1) who is drawn matters"):
        assert part in done.stdout
    assert "1 of 1 agree; 1 more differ for a stated reason\n" in done.stdout
    assert done.stdout.endswith("1 of 1 agree\n")
    assert "who is drawn" not in call("one").stdout


def test_a_wrong_line_fails_the_command(quick: dict[str, list[Line]]) -> None:
    quick["two"].append(line("7.1", 7.04))
    done = call()
    assert done.exit_code == 1
    assert done.stdout.endswith("1 of 2 agree\n")
    assert call("one").exit_code == 0
    done = call("two", "--json")
    assert done.exit_code == 1
    assert [x["failed"] for x in json.loads(done.stdout)] == [False, True]


def test_an_unknown_name_is_refused(quick: dict[str, list[Line]]) -> None:
    done = call("xyzzy")
    assert done.exit_code == 2
    assert done.stderr == 'error: check "xyzzy": not found; allowed: one, two\n'
    assert 'did you mean "one"?' in call("onne").stderr
    assert call("").exit_code == 2


def test_json(fedspa: list[Line]) -> None:
    done = call("fedspa", "--json")
    assert done.exit_code == 0
    rows = json.loads(done.stdout)
    assert len(rows) == len(fedspa)
    row = next(r for r in rows if r["printed"] == "439,096")
    assert row == {
        "check": "fedspa",
        "section": "LeNet5 on EMNIST-L, ERK at density 0.5",
        "what": "parameters",
        "source": "derived",
        "printed": "439,096",
        "computed": 439096,
        "within": 0.0,
        "note": "",
        "stated": "",
        "rule": "equal",
        "agrees": True,
        "failed": False,
    }


def test_the_table_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = call("fedspa")
    assert done.exit_code == 0
    assert "┓\n" in done.stdout  # not cut off at the right
    assert done.stdout.endswith("122 of 122 agree; 10 more differ for a stated reason\n")
