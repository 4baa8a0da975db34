"""Recipes: what is accepted, what is refused and why, and the way to TOML and back."""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from typing import Any

import pytest
import tomli_w

from sparsona.experiment.recipe import Recipe, RecipeError, check, tables
from sparsona.methods import METHODS
from sparsona.models import MODELS

SOME_METHODS, SOME_MODELS = (
    f"{', '.join(sorted(names)[:5])} and {len(names) - 5} more, or package.module:Class" for names in (METHODS, MODELS)
)
BASE: dict[str, Any] = {"name": "x", "rounds": 3, "model": {"name": "digits-mlp"}, "method": {"name": "fedavg"}}


def refused(raw: dict[str, Any]) -> str:
    with pytest.raises(RecipeError) as caught:
        check(raw)
    text = str(caught.value)
    assert "\n" not in text
    return text


def changed(key: str, value: Any) -> dict[str, Any]:
    """The base recipe with one field changed."""
    section, _, name = key.partition(".")
    return BASE | {section: {**BASE.get(section, {}), name: value} if name else value}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("rnds", 1, 'rnds: no such field; did you mean "rounds"?'),
        ("method.lrr", 1, 'method.lrr: no such field; did you mean "lr"?'),
        ("data.alpah", 1, 'data.alpah: no such field; did you mean "alpha"?'),
        ("model.nam", 1, 'model.nam: no such field; did you mean "name"?'),
        (
            "fleet.zzz",
            1,
            "fleet.zzz: no such field; allowed: adapt_epochs, hold_out, min_answers, peers, per_round and 3 more",
        ),
        ("evaluate.evry", 1, 'evaluate.evry: no such field; did you mean "every"?'),
        ("engine.worker", 1, 'engine.worker: no such field; did you mean "workers"?'),
        ("results.model", 1, 'results.model: no such field; did you mean "models"?'),
        ("rounds", 0, "rounds: 0 is not allowed; expected an int >= 1"),
        ("rounds", "5", 'rounds: "5" is not allowed; expected an int >= 1'),
        ("rounds", True, "rounds: true is not allowed; expected an int >= 1"),
        ("rounds", 1.5, "rounds: 1.5 is not allowed; expected an int >= 1"),
        ("rounds", 10**30, f"rounds: {10**30} is not allowed; expected an int in (-2^63, 2^63)"),
        ("seed", -1, "seed: -1 is not allowed; expected an int >= 0"),
        ("description", 3, "description: 3 is not allowed; expected a string"),
        ("description", "\ud800", "description: '\\ud800' is not allowed; expected valid Unicode"),
        ("results.figures", 1, "results.figures: 1 is not allowed; expected true or false"),
        ("method.lr", 0, "method.lr: 0 is not allowed; expected a float > 0"),
        ("method.lr", float("nan"), "method.lr: nan is not allowed; expected a finite float"),
        ("method.lr", float("inf"), "method.lr: inf is not allowed; expected a finite float"),
        ("method.lr_steps", [0.5, float("-inf")], "method.lr_steps[1]: -inf is not allowed; expected a finite float"),
        ("method.lr_steps", [0.5, 2], "method.lr_steps[1]: 2 is not allowed; expected a float in [0, 1]"),
        (
            "method.lr_steps",
            0.5,
            "method.lr_steps: 0.5 is not allowed; expected a list of floats in [0, 1]; "
            "for example method.lr_steps='[0.5]'",
        ),
        (
            "task.metrics",
            "auc, accuracy",
            'task.metrics: "auc, accuracy" is not allowed; expected a list of strings; '
            """for example task.metrics='["auc", "accuracy"]'""",
        ),
        (
            "evaluate.points",
            "before",
            'evaluate.points: "before" is not allowed; expected a list of one of "before", "after", "shared", '
            """"finished"; for example evaluate.points='["before"]'""",
        ),
        ("data.copies", "1,x", 'data.copies: "1,x" is not allowed; expected a list of ints >= 1'),
        (
            "method.optimiser_args",
            "momentum=0.9",
            'method.optimiser_args: "momentum=0.9" is not allowed; expected a table; '
            "for example method.optimiser_args='{key = value}'",
        ),
        (
            "method.optimiser_args",
            {"momentum": 0.9},
            'method.optimiser_args.momentum: only for classes of torch.optim, not for optimiser = "sgd"; '
            'use the fields momentum and weight_decay, or optimiser = "SGD" of torch.optim',
        ),
        ("method.momentum", 1.5, "method.momentum: 1.5 is not allowed; expected a float in [0, 1]"),
        ("method.clip", 0, "method.clip: 0 is not allowed; expected a float > 0"),
        ("method.clip", "no", 'method.clip: "no" is not allowed; expected a float > 0'),
        ("fleet.per_round", "all", 'fleet.per_round: "all" is not allowed; expected an int >= 1'),
        ("fleet.per_round", 21, "fleet.per_round: 21 is not allowed; expected an int <= data.clients = 20"),
        ("evaluate.target", 0, "evaluate.target: 0 is not allowed; expected a float in (0, 1]"),
        (
            "evaluate.points",
            [],
            'evaluate.points: [] is not allowed; expected a list of "before", "after", "shared", '
            '"finished", each at most once',
        ),
        (
            "evaluate.points",
            ["after", "after"],
            'evaluate.points: ["after", "after"] is not allowed; expected a list of "before", "after", "shared", '
            '"finished", each at most once',
        ),
        (
            "evaluate.points",
            ["befor"],
            'evaluate.points[0]: "befor" is not allowed; expected one of "before", "after", "shared", "finished"; '
            'did you mean "before"?',
        ),
        ("engine.name", "gpu", 'engine.name: "gpu" is not allowed; expected one of "local", "pool", "ray"'),
        (
            "method.weighting",
            "sample",
            'method.weighting: "sample" is not allowed; expected one of "samples", "uniform"; did you mean "samples"?',
        ),
        ("method.name", "fedagv", 'method.name: "fedagv" not found; did you mean "fedavg"?'),
        ("method.name", ["fedavg"], 'method.name: ["fedavg"] not found; did you mean "fedavg"?'),
        (
            "model.name",
            "lenett",
            'model.name: "lenett" not found; did you mean "lenet"?',
        ),
        ("model", {}, f"model.name is missing; allowed: {SOME_MODELS}; list all with: sparsona models"),
        ("method", {}, f"method.name is missing; allowed: {SOME_METHODS}; list all with: sparsona methods"),
        ("dat", {"clients": 3}, 'dat: no such field; did you mean "data"?'),
        ("method", 3, "method: 3 is not allowed; expected a table"),
        ("data", [1], "data: [1] is not allowed; expected a table"),
        (
            "data",
            {"pool": True, "split": "same"},
            'data.split: "same" is not allowed with pool = true, which leaves no test set; expected "ratio"',
        ),
        (
            "data.partition",
            "natural",
            'data.key: missing; partition = "natural" needs a key, such as "writer", "site" or "movie"',
        ),
        (
            "name",
            "../up",
            'name: "../up" is not allowed; expected a folder name of 1 to 100 characters without '
            "slash, backslash, colon or leading dot",
        ),
        ("name", "compare", 'name: "compare" is reserved for files that Sparsona writes; choose another name'),
    ],
)
def test_a_bad_value_is_told_with_its_field_and_what_is_allowed(key: str, value: Any, text: str) -> None:
    assert refused(changed(key, value)) == text


def test_a_source_names_at_most_five() -> None:
    assert refused(changed("data.source", "mnst")) == 'data.source: "mnst" not found; did you mean "mnist"?'
    some = "cifar10, cifar100, digits, emnist-byclass, emnist-letters and 6 more"
    own = 'or your own: a path or "package.module:name"'
    assert refused(changed("data.source", "xyz")) == f'data.source: "xyz" not found; allowed: {some}, {own}'


def test_what_is_missing_is_named() -> None:
    assert refused({k: v for k, v in BASE.items() if k != "rounds"}) == "rounds is missing"
    assert check({k: v for k, v in BASE.items() if k != "name"}).name == "run"
    assert refused({"dat": {}}) == 'dat: no such field; did you mean "data"?'


def test_several_errors_of_one_table_come_in_one_line() -> None:
    text = refused(changed("data", {"clients": 0, "alpha": -1}))
    assert text.startswith(
        "data.clients: 0 is not allowed; expected an int >= 1; "
        "data.alpha: -1 is not allowed; expected a float in (0, 1000000]"
    )


def test_numbers_that_are_whole_are_taken_as_floats_but_not_the_other_way() -> None:
    assert check(changed("method.lr", 1)).method == METHODS["fedavg"](lr=1.0)
    assert "rounds: 3.0 is not allowed; expected an int >= 1" in refused(changed("rounds", 3.0))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_reads_back_the_same(name: str) -> None:
    more = {"lr": 1e-05, "clip": 2, "lr_steps": [0, 0.25, 1], "weight_decay": 1e-300}
    base = BASE | {"evaluate": {"points": ["after", "before"]}, "topology": {"name": "ring"}}
    for fields in ({}, more):
        recipe = check(base | {"method": {"name": name, **fields}})
        raw = tables(recipe)
        assert raw["method"]["name"] == name
        assert check(raw) == recipe
        assert tables(check(raw)) == raw
        assert check(tomllib.loads(tomli_w.dumps(raw))) == recipe


@pytest.mark.parametrize("kind", [Recipe, *METHODS.values()])
def test_a_field_that_may_be_left_empty_is_empty_by_default(kind: Any) -> None:
    """TOML has no null, so only then does leaving it out read back the same."""

    def look(kind: Any) -> None:
        hints = typing.get_type_hints(kind, include_extras=True)
        for f in dataclasses.fields(kind):
            if dataclasses.is_dataclass(hints[f.name]):
                look(hints[f.name])
            if types.NoneType in typing.get_args(hints[f.name]):
                assert f.default is None, f"{kind.__name__}.{f.name}"

    look(kind)
