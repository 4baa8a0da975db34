"""What a field allows, in words."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import pytest

from small import recipe
from sparsona.experiment.checking import RecipeError, allowed, nearest
from sparsona.methods import METHODS


@pytest.mark.parametrize("kind", METHODS.values())
def test_what_a_field_allows_is_said_in_words(kind: Any) -> None:
    hints = typing.get_type_hints(kind, include_extras=True)
    for f in dataclasses.fields(kind):
        assert allowed(hints[f.name]).startswith(
            ("int", "float", "string", "true or false", "one of ", "list of ", "table")
        )


def test_a_name_in_another_case_is_meant_first() -> None:
    assert nearest("adamw", ("Adam", "AdamW", "adam")) == '; did you mean "AdamW"?'


@pytest.mark.parametrize(
    ("method", "given", "line"),
    [
        ("ditto", "pull", 'method.pull: no such field; it is now called "mu"'),
        ("pfedme", "pull", 'method.pull: no such field; it is now called "mu"'),
        ("ditto", "pull_as", 'method.pull_as: no such field; it is now called "proximal"'),
        ("fedavg", "pull", "method.pull: no such field; "),  # it never had one
    ],
)
def test_fields_that_had_another_name(method, given, line):
    with pytest.raises(RecipeError) as error:
        recipe(method, method={given: 0.1})
    assert str(error.value).startswith(line)
    assert ("called" in str(error.value)) is ("called" in line)


@pytest.mark.parametrize("method", ["fedprox", "ditto", "pfedme"])
def test_the_strength_of_a_proximal_term_has_one_name(method):
    assert recipe(method, method={"mu": 0.25}).method.mu == 0.25


@pytest.mark.parametrize("given", ["before,after", "[before,after]", "[ before, after ]"])
def test_a_list_without_quotes_is_shown_with_them(given):
    with pytest.raises(RecipeError) as error:
        recipe(evaluate={"points": given})
    assert str(error.value).endswith("""; for example evaluate.points='["before", "after"]'""")


def test_at_most_five_names_are_suggested():
    assert nearest("colour", [f"colour{n}" for n in range(9)]).count('"') == 2 * 5
    assert nearest("xyz", [f"name{n}" for n in range(9)]) == "; allowed: name0, name1, name2, name3, name4 and 4 more"
    assert nearest("fedavgg", ["fedavg", "fedprox"]) == '; did you mean "fedavg"?'
    assert nearest("resnet", ["resnet18", "resnet34", "vgg"]) == '; did you mean "resnet34" or "resnet18"?'
