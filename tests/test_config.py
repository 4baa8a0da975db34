"""Recipes: what is taken, what is refused and in which words, and the way to TOML and back."""

from __future__ import annotations

import dataclasses
import json
import tomllib
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsona.config import Recipe, RecipeError, allowed, check, load, override, recipe_names, tables, to_toml, whole
from sparsona.methods import METHODS

BASE: dict[str, Any] = {"name": "x", "rounds": 3, "model": {"name": "digits-mlp"}, "method": {"name": "fedavg"}}


def recipe_file(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


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
            "fleet.zzz: no such field; allowed: adapt_epochs, hold_out, min_answers, per_round, timeout",
        ),
        ("evaluate.evry", 1, 'evaluate.evry: no such field; did you mean "every"?'),
        ("engine.worker", 1, 'engine.worker: no such field; did you mean "workers"?'),
        ("results.model", 1, 'results.model: no such field; did you mean "models"?'),
        ("rounds", 0, "rounds = 0: must be a whole number, at least 1"),
        ("rounds", "5", 'rounds = "5": must be a whole number, at least 1'),
        ("rounds", True, "rounds = true: must be a whole number, at least 1"),
        ("rounds", 1.5, "rounds = 1.5: must be a whole number, at least 1"),
        ("rounds", 10**30, f"rounds = {10**30}: must be less than 2^63 in size"),
        ("seed", -1, "seed = -1: must be a whole number, at least 0"),
        ("description", 3, "description = 3: must be a text"),
        ("description", "\ud800", "description = '\\ud800': must be valid Unicode"),
        ("results.figures", 1, "results.figures = 1: must be true or false"),
        ("method.lr", 0, "method.lr = 0: must be a number, above 0"),
        ("method.lr", float("nan"), "method.lr = nan: must be a finite number"),
        ("method.lr", float("inf"), "method.lr = inf: must be a finite number"),
        ("method.lr_steps", [0.5, float("-inf")], "method.lr_steps[1] = -inf: must be a finite number"),
        ("method.lr_steps", [0.5, 2], "method.lr_steps[1] = 2: must be a number, at least 0 and at most 1"),
        ("method.lr_steps", 0.5, "method.lr_steps = 0.5: must be a list, each item a number, at least 0 and at most 1"),
        ("method.momentum", 1.5, "method.momentum = 1.5: must be a number, at least 0 and at most 1"),
        ("method.clip", 0, "method.clip = 0: must be a number, above 0"),
        ("method.clip", "no", 'method.clip = "no": must be a number, above 0'),
        ("fleet.per_round", "all", 'fleet.per_round = "all": must be a whole number, at least 1'),
        ("fleet.per_round", 21, "fleet.per_round = 21: must be at most data.clients = 20"),
        ("evaluate.target", 0, "evaluate.target = 0: must be a number, above 0 and at most 1"),
        (
            "evaluate.points",
            [],
            'evaluate: points = [] must name "before", "after", "shared", "finished", each at most once',
        ),
        (
            "evaluate.points",
            ["after", "after"],
            'evaluate: points = ["after", "after"] must name "before", "after", "shared", "finished", '
            "each at most once",
        ),
        (
            "evaluate.points",
            ["befor"],
            'evaluate.points[0] = "befor": must be one of "before", "after", "shared", "finished"; '
            'did you mean "before"?',
        ),
        ("engine.name", "gpu", 'engine.name = "gpu": must be one of "local", "pool", "ray"'),
        (
            "method.weighting",
            "sample",
            'method.weighting = "sample": must be one of "samples", "uniform"; did you mean "samples"?',
        ),
        ("method.name", "fedagv", 'method.name = "fedagv": unknown; did you mean "fedavg"?'),
        ("method.name", ["fedavg"], 'method.name = ["fedavg"]: unknown; did you mean "fedavg"?'),
        (
            "model.name",
            "lenett",
            'model.name = "lenett": unknown, and not your own package.module:Class; did you mean "lenet"?',
        ),
        ("model", {}, "model.name is missing"),
        ("method", {}, f"method.name is missing; allowed: {', '.join(sorted(METHODS))}"),
        ("method", 3, "method = 3: must be a table"),
        ("data", [1], "data = [1]: must be a table"),
        (
            "data",
            {"pool": True, "split": "same"},
            "data: pool = true leaves no test set for split 'same'; use split 'ratio'",
        ),
        ("data.partition", "natural", "data: partition 'natural' needs a key, such as 'writer', 'site' or 'movie'"),
        (
            "name",
            "../up",
            'name: "../up" must be a folder\'s name: 1 to 100 characters, no slash, colon or leading dot',
        ),
        ("name", "compare", 'name: "compare" is taken by what Sparsona writes itself'),
    ],
)
def test_a_bad_value_is_told_with_its_field_and_what_is_allowed(key: str, value: Any, text: str) -> None:
    assert refused(changed(key, value)) == text


def test_a_source_says_all_that_there_are() -> None:
    text = refused(changed("data.source", "mnst"))
    assert text.startswith('data.source = "mnst": must be one of "digits", "mnist", ')
    assert text.endswith('; did you mean "mnist"?')


@pytest.mark.parametrize("field", ["name", "rounds"])
def test_what_is_missing_is_named(field: str) -> None:
    assert refused({k: v for k, v in BASE.items() if k != field}) == f"{field} is missing"


def test_several_errors_of_one_table_come_in_one_line() -> None:
    text = refused(changed("data", {"clients": 0, "alpha": -1}))
    assert text.startswith(
        "data.clients = 0: must be a whole number, at least 1; data.alpha = -1: must be a number, above"
    )


def test_numbers_that_are_whole_are_taken_as_floats_but_not_the_other_way() -> None:
    assert check(changed("method.lr", 1)).method == METHODS["fedavg"](lr=1.0)
    assert "must be a whole number" in refused(changed("rounds", 3.0))


# -- files, variants and overrides -----------------------------------------------------------------------------------


def test_a_recipe_is_found_by_name_and_by_path_and_takes_the_name_of_its_file(tmp_path: Path) -> None:
    text = 'rounds = 2\n[model]\nname = "digits-mlp"\n[method]\nname = "local"\n'
    assert list(load(recipe_file(tmp_path / "mine.toml", text))) == ["mine"]
    assert list(load(recipe_file(tmp_path / "bom.toml", "\ufeff" + text))) == ["bom"]
    assert list(load("quickstart")) == ["shared", "tuned", "personal", "alone"]
    with pytest.raises(RecipeError, match='recipe "quickstrt": no such file or recipe; did you mean "quickstart"'):
        load("quickstrt")


@pytest.mark.parametrize("content", [b"rounds = = 3", b"\xff\xfe", b"[a]\n[a]\n"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=r"bad\.toml: not valid TOML"):
        load(str(path))


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
        with pytest.raises(RecipeError, match="description = 3: must be a text"):
            load("quickstart", [text])
        return
    found: Any = load("quickstart", [text])["shared"]
    for name in where:
        found = getattr(found, name)
    assert found == value


@pytest.mark.parametrize("text", ["rounds", "=3", ".=3", "method.=3", ".lr=3", "a..b=3"])
def test_an_override_that_is_none_says_how_one_looks(text: str) -> None:
    with pytest.raises(RecipeError, match=r"an override is key=value, for example method\.lr=0\.05"):
        load("quickstart", [text])


def test_an_override_cannot_reach_into_a_number() -> None:
    with pytest.raises(RecipeError, match=r"method\.lr\.x: lr is not a table"):
        load("quickstart", ["method.lr.x=3"])


def test_an_override_can_be_for_one_variant() -> None:
    plan = load("quickstart", ["variants.personal.method.pull=0.25", "rounds=7"])
    assert plan["personal"].method.pull == 0.25  # type: ignore[attr-defined]
    assert {r.rounds for r in plan.values()} == {7}
    with pytest.raises(RecipeError, match='no such variant; did you mean "personal"'):
        load("quickstart", ["variants.persona.method.pull=0.25"])
    with pytest.raises(RecipeError, match=r"variants: must be variants\.NAME\.KEY"):
        load("quickstart", ["variants=3"])


def test_every_variant_is_checked_and_an_error_names_it(tmp_path: Path) -> None:
    text = to_toml(BASE) + "[variants.a]\n[variants.b.method]\nlr = 0\n"
    with pytest.raises(RecipeError, match=r"variant b: method\.lr = 0: must be a number, above 0"):
        load(recipe_file(tmp_path / "v.toml", text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("variants = 3\n", "variants: must be a table of tables"),
        ("[variants]\n", "variants: must be a table of tables"),
        ("[variants]\na = 3\n", "variants.a = 3: must be a table of what differs"),
        ('[variants."a/b"]\n', "must be a folder's name"),
        ("[variants.compare]\n", "is taken by what Sparsona writes itself"),
    ],
)
def test_variants_are_tables_whose_names_can_be_folders(tmp_path: Path, text: str, told: str) -> None:
    base = to_toml(BASE)
    whole = text + base if text.startswith("variants") else base + text
    with pytest.raises(RecipeError, match=told):
        load(recipe_file(tmp_path / "v.toml", whole))


# -- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_written_out_reads_back_the_same(name: str) -> None:
    for recipe in load(name).values():
        assert check(tables(recipe)) == recipe
        assert check(tomllib.loads(to_toml(tables(recipe)))) == recipe


def test_variants_that_a_change_makes_equal_are_refused() -> None:
    told = "variants sparsity 0.2 and sparsity 0.5 have become the same run"
    with pytest.raises(RecipeError, match=told):
        load("fedspa/small/sparsity", ["method.density=0.3"], ["sparsity 0.2", "sparsity 0.5"])
    assert list(load("fedspa/small/sparsity", ["method.density=0.3"], ["sparsity 0.5"])) == ["sparsity 0.5"]


def test_a_change_that_one_variant_cannot_take_says_how_to_spare_the_others() -> None:
    hint = "to change one variant only: variants.NAME.topology.name=..., NAME being one of dadpfl, dispfl"
    with pytest.raises(RecipeError, match=hint):
        load("dadpfl/small/main-dir", ["topology.name=ring"], ["dadpfl", "dispfl"])
    with pytest.raises(RecipeError, match=r"allowed$"):
        load("dadpfl/small/main-dir", ["topology.name=ring"], ["dadpfl"])


def test_only_some_variants() -> None:
    assert list(load("quickstart", only=["personal", "shared"])) == ["shared", "personal"]
    with pytest.raises(RecipeError, match='only "persnal": no such variant; did you mean "personal"'):
        load("quickstart", only=["persnal"])


def test_names_with_commas_are_put_together_again() -> None:
    names = {"a", "a, b", "a, b, c", "d"}
    assert whole(["a", "b", "d", "a"], names) == ["a, b", "d", "a"]
    assert whole(["a", "b", "c", "b"], names) == ["a, b, c", "b"]  # what is unknown stays, to be told


def test_keys_with_dots_stand_in_quotes() -> None:
    assert override('variants."pfedgate-s-0.5".method.keep=0.4') == (
        ["variants", "pfedgate-s-0.5", "method", "keep"],
        0.4,
    )
    assert override('a."b = c". d =e=f') == (["a", "b = c", "d"], "e=f")
    plan = load("pfedgate/small/main", ['variants."pfedgate-s-0.5".method.blocks=7'])
    assert (plan["pfedgate-s-0.5"].method.blocks, plan["pfedgate-s-0.3"].method.blocks) == (7, 5)
    for wrong in ("x", "=3", "a..b=1", ".a=1", "a.=1", '"a.b=1'):
        with pytest.raises(RecipeError, match="an override is key=value"):
            override(wrong)


def test_only_needs_variants(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(to_toml(BASE))
    with pytest.raises(RecipeError, match="only a: the recipe has no variants to choose from"):
        load(str(tmp_path / "x.toml"), only=["a"])


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
        assert check(tomllib.loads(to_toml(raw))) == recipe


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


@pytest.mark.parametrize("kind", METHODS.values())
def test_what_a_field_allows_is_said_in_words(kind: Any) -> None:
    hints = typing.get_type_hints(kind, include_extras=True)
    for f in dataclasses.fields(kind):
        assert allowed(hints[f.name]).startswith(
            ("a whole number", "a number", "a text", "true or false", "one of ", "a list, ")
        )


SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"))
)
KEYS = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=4) | st.dictionaries(KEYS, v, max_size=4), max_leaves=12)


@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_tables_read_back_from_toml_the_same(raw: dict[str, Any]) -> None:
    back = tomllib.loads(to_toml(raw))
    assert back == raw
    assert json.dumps(back, sort_keys=True) == json.dumps(raw, sort_keys=True)  # 1.0 is not 1


def test_awkward_values_in_toml() -> None:
    raw = {
        "s": 'a "quote", a \\ and\na line\ttab \x00 \x7f é 🎲',
        "small": 1e-05,
        "large": 1e22,
        "nested": [[1, 2], ["a", []]],
        "in a list": [{"k v": 1, "x": [{}]}],
        "t": {"u.v": {"w": True}},
    }
    assert tomllib.loads(to_toml(raw)) == raw
