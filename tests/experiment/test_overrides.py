"""Overrides: key=value as users type it."""

from __future__ import annotations

from typing import Any

import pytest

from sparsona.experiment.overrides import parse_override
from sparsona.experiment.plan import load
from sparsona.experiment.recipe import RecipeError


@pytest.mark.parametrize(
    ("text", "where", "value"),
    [
        ("method.lr=0.05", ("method", "lr"), 0.05),
        ("method.lr = 1e-3", ("method", "lr"), 0.001),
        ("method.lr_steps=[0.1, 0.2]", ("method", "lr_steps"), (0.1, 0.2)),
        ("method.lr_schedule=cosine", ("method", "lr_schedule"), "cosine"),
        ('method.lr_schedule="cosine"', ("method", "lr_schedule"), "cosine"),
        ("results.models=true", ("results", "models"), True),
        ("evaluate.points=['after','before']", ("evaluate", "points"), ("after", "before")),
        ("description=a = b", ("description",), "a = b"),
        ("description=3 # three", ("description",), None),
        ("description=a\nrounds = 7", ("description",), "a\nrounds = 7"),
        ("description=", ("description",), ""),
    ],
)
def test_overrides_are_toml_values_or_bare_words(text: str, where: tuple[str, ...], value: Any) -> None:
    if value is None:
        with pytest.raises(RecipeError, match="description: 3 is not allowed; expected a string"):
            load("quickstart", [text])
        return
    found: Any = load("quickstart", [text])["shared"]
    for name in where:
        found = getattr(found, name)
    assert found == value


@pytest.mark.parametrize("text", ["rounds", "=3", ".=3", "method.=3", ".lr=3", "a..b=3"])
def test_an_override_that_is_none_says_how_one_looks(text: str) -> None:
    with pytest.raises(
        RecipeError, match=r'override ".*" is not allowed; expected key=value, ' r"for example method\.lr=0\.05"
    ):
        load("quickstart", [text])


def test_an_override_cannot_reach_into_a_number() -> None:
    with pytest.raises(RecipeError, match=r"method\.lr\.x: lr is 0\.1, not a table"):
        load("quickstart", ["method.lr.x=3"])


def test_keys_with_dots_stand_in_quotes() -> None:
    assert parse_override('variants."pfedgate-s-0.5".method.keep=0.4') == (
        ["variants", "pfedgate-s-0.5", "method", "keep"],
        0.4,
    )
    assert parse_override('a."b = c". d =e=f') == (["a", "b = c", "d"], "e=f")
    plan = load("pfedgate/small/main", ['variants."pfedgate-s-0.5".method.blocks=7'])
    assert (plan["pfedgate-s-0.5"].method.blocks, plan["pfedgate-s-0.3"].method.blocks) == (7, 5)
    for wrong in ("x", "=3", "a..b=1", ".a=1", "a.=1", '"a.b=1'):
        with pytest.raises(
            RecipeError, match=r'override ".*" is not allowed; expected key=value, ' r"for example method\.lr=0\.05"
        ):
            parse_override(wrong)
