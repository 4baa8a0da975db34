"""How numbers are shown in tables."""

import re
from dataclasses import dataclass

import pytest

from sparsona.reports.sheet import Column, Sheet, amount, counted, flop_unit, latex_text, number_ranges


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234, "0.0123"), (1, "1.00"), (9.87654, "9.88"), (12.34, "12.3"), (-22.25, "-22.2")],
)
def test_amounts(value: float, text: str) -> None:
    assert amount(value) == text


@pytest.mark.parametrize(
    ("flops", "unit"), [(0, "GFLOP"), (5e6, "MFLOP"), (5e9, "GFLOP"), (5e12, "GFLOP"), (5e13, "TFLOP"), (5e16, "PFLOP")]
)
def test_flop_units(flops: float, unit: str) -> None:
    assert flop_unit(flops)[1] == unit


def test_number_ranges() -> None:
    assert number_ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert number_ranges([]) == ""


@dataclass(frozen=True)
class Two(Sheet):
    def parts(self) -> tuple[list[Column], ...]:
        return [Column("run & name", lambda r: r["name"], words=True)], [Column("gain %", lambda r: r["gain"])]


def test_latex() -> None:
    rows = ({"name": "own lr=0.1_[x]", "gain": "-1.50 ± 0.20"}, {"name": "[50%]", "gain": "2.00"})
    assert Two(rows, ("100 % of $x^2$",)).latex().splitlines() == [
        r"% needs \usepackage{booktabs}",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"run \& name & gain \% \\",
        r"\midrule",
        r"own lr=0.1\_{[}x] & $-$1.50 $\pm$ 0.20 \\",
        r"{[}50\%] & 2.00 \\",
        r"\bottomrule",
        r"\end{tabular}",
        "",
        r"\par\smallskip Note: 100 \% of \$x\textasciicircum{}2\$",
    ]


def test_latex_escapes_every_character_that_means_something() -> None:
    bare = latex_text("".join(map(chr, range(32, 127))))
    for command in (r"\textbackslash", r"\textasciitilde", r"\textasciicircum", r"\textless", r"\textgreater"):
        assert bare.count(command) == 1
    rest = re.sub(r"\\text\w+\{\}|\\[&%$#_{}]|\{[\[*]\}", "", bare)
    assert not set(rest) & set("\\&%$#_{}~^[*")


def test_latex_quotes() -> None:
    assert latex_text('set x = "all" or ("a", y="b")') == "set x = ``all'' or (``a'', y=``b'')"


def test_numbers_of_things_are_not_rounded_to_three_digits() -> None:
    assert [counted(n) for n in (7, 99_990, 1_234.0, 3.3333, 0)] == ["7", "99,990", "1,234", "3.3", "0"]
