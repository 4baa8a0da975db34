"""Plans: recipe files, variants, and which of them run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from sparsona.experiment.plan import load, rejoin_names
from sparsona.experiment.recipe import RecipeError, check, tables
from sparsona.experiment.recipe_files import recipe_names

BASE: dict[str, Any] = {"name": "x", "rounds": 3, "model": {"name": "digits-mlp"}, "method": {"name": "fedavg"}}


def recipe_file(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_recipe_is_found_by_name_and_by_path_and_takes_the_name_of_its_file(tmp_path: Path) -> None:
    text = 'rounds = 2\n[model]\nname = "digits-mlp"\n[method]\nname = "local"\n'
    assert list(load(recipe_file(tmp_path / "mine.toml", text))) == ["mine"]
    assert list(load(recipe_file(tmp_path / "bom.toml", "\ufeff" + text))) == ["bom"]
    assert list(load("quickstart")) == ["shared", "tuned", "personal", "alone"]
    with pytest.raises(RecipeError, match='recipe "quickstrt": not found; did you mean "quickstart"'):
        load("quickstrt")


@pytest.mark.parametrize("content", [b"rounds = = 3", b"\xff\xfe", b"[a]\n[a]\n"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=r"bad\.toml: not valid TOML"):
        load(str(path))


def test_an_override_can_be_for_one_variant() -> None:
    plan = load("quickstart", ["variants.personal.method.mu=0.25", "rounds=7"])
    assert plan["personal"].method.mu == 0.25  # type: ignore[attr-defined]
    assert {r.rounds for r in plan.values()} == {7}
    with pytest.raises(RecipeError, match='no such variant; did you mean "personal"'):
        load("quickstart", ["variants.persona.method.mu=0.25"])
    with pytest.raises(RecipeError, match=r"variants is not allowed; expected variants\.NAME\.KEY"):
        load("quickstart", ["variants=3"])


def test_every_variant_is_checked_and_an_error_names_it(tmp_path: Path) -> None:
    text = tomli_w.dumps(BASE) + "[variants.a]\n[variants.b.method]\nlr = 0\n"
    with pytest.raises(RecipeError, match=r"variant b: method\.lr: 0 is not allowed; expected a float > 0"):
        load(recipe_file(tmp_path / "v.toml", text))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("variants = 3\n", "variants: 3 is not allowed; expected a table with one table per variant"),
        ("[variants]\n", r"variants: \{\} is not allowed; expected a table with one table per variant"),
        ("[variants]\na = 3\n", r"variants\.a: 3 is not allowed; expected a table with the fields of this variant"),
        (
            '[variants."a/b"]\n',
            r'variants\.a/b: "a/b" is not allowed; expected a folder name of 1 to 100 characters without '
            r"slash, backslash,",
        ),
        ("[variants.compare]\n", r'variants\.compare: "compare" is reserved for files that Sparsona writes'),
    ],
)
def test_variants_are_tables_whose_names_can_be_folders(tmp_path: Path, text: str, told: str) -> None:
    base = tomli_w.dumps(BASE)
    whole = text + base if text.startswith("variants") else base + text
    with pytest.raises(RecipeError, match=told):
        load(recipe_file(tmp_path / "v.toml", whole))


def test_variants_that_a_change_makes_equal_are_refused() -> None:
    with pytest.raises(
        RecipeError,
        match=r"variants sparsity 0\.2 and sparsity 0\.4 are now the same run: "
        r"an override sets the fields in which they differ",
    ):
        load("fedspa/small/ablations", ["method.density=0.3"], ["sparsity 0.2", "sparsity 0.4"])
    assert list(load("fedspa/small/ablations", ["method.density=0.3"], ["sparsity 0.4"])) == ["sparsity 0.4"]


def test_a_change_that_one_variant_cannot_take_says_how_to_spare_the_others() -> None:
    hint = r"variant dadpfl dirichlet: topology\.max_wait: 4 is not allowed; expected an int <= 2"
    with pytest.raises(RecipeError, match=hint):
        load("dadpfl/small/main", ["topology.name=ring"], ["dadpfl", "dispfl", "dirichlet"])
    with pytest.raises(
        RecipeError, match=r"variant dadpfl dirichlet: topology\.max_wait: 4 is not allowed; " r"expected an int <= 2"
    ):
        load("dadpfl/small/main", ["topology.name=ring"], ["dadpfl dirichlet"])


def test_only_some_variants() -> None:
    assert list(load("quickstart", only=["personal", "shared"])) == ["shared", "personal"]
    with pytest.raises(RecipeError, match='only: no such variant "persnal"; did you mean "personal"'):
        load("quickstart", only=["persnal"])


def test_names_with_commas_are_put_together_again() -> None:
    names = {"a", "a, b", "a, b, c", "d"}
    assert rejoin_names(["a", "b", "d", "a"], names) == ["a, b", "d", "a"]
    assert rejoin_names(["a", "b", "c", "b"], names) == ["a, b, c", "b"]  # what is unknown stays, to be told


def test_only_needs_variants(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(tomli_w.dumps(BASE))
    with pytest.raises(RecipeError, match=r"only: a not found; recipe .* has no variants"):
        load(str(tmp_path / "x.toml"), only=["a"])


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_written_out_reads_back_the_same(name: str) -> None:
    for recipe in [*load(name).values()][::5]:  # a recipe's variants differ in a few fields
        assert check(tomllib.loads(tomli_w.dumps(tables(recipe)))) == recipe


# -- [sweep] ---------------------------------------------------------------------------------------------------------

SWEPT = """
rounds = 2
[model]
name = "digits-mlp"
[method]
name = "fedavg"
[sweep]
"method.lr" = [0.1, 0.2]
seed = [1, 2]
"""
NAMED = """
rounds = 2
[model]
name = "digits-mlp"
[sweep.labels.even]
data.partition = "iid"
[sweep.labels.skewed]
data.partition = "dirichlet"
data.alpha = 0.1
[variants.shared]
method.name = "fedavg"
[variants.personal]
method.name = "ditto"
[variants.personal.sweep]
"method.mu" = [0.5, 1.0]
labels.skewed.data.alpha = 0.2
"""


def test_a_sweep_makes_a_variant_of_every_combination(tmp_path: Path) -> None:
    plan = load(recipe_file(tmp_path / "s.toml", SWEPT))
    assert list(plan) == ["lr=0.1 seed=1", "lr=0.1 seed=2", "lr=0.2 seed=1", "lr=0.2 seed=2"]
    recipe = plan["lr=0.2 seed=1"]
    assert (tables(recipe)["method"]["lr"], recipe.seed) == (0.2, 1)


def test_an_override_replaces_what_a_sweep_lists(tmp_path: Path) -> None:
    file = recipe_file(tmp_path / "s.toml", SWEPT)
    assert list(load(file, ["seed=5"])) == ["lr=0.1", "lr=0.2"]
    assert list(load(file, ["seed=5", "method.lr=0.3"])) == ["s"]


def test_a_sweep_of_named_tables_multiplies_variants_which_may_add_to_it(tmp_path: Path) -> None:
    file = recipe_file(tmp_path / "n.toml", NAMED)
    plan = load(file)
    personal = [
        "personal even mu=0.5",
        "personal even mu=1.0",
        "personal skewed mu=0.5",
        "personal skewed mu=1.0",
    ]
    assert list(plan) == ["shared even", "shared skewed", *personal]
    assert (plan["shared skewed"].data.alpha, plan["personal skewed mu=0.5"].data.alpha) == (0.1, 0.2)
    assert list(load(file, only=["shared"])) == ["shared even", "shared skewed"]
    assert list(load(file, only=["personal", "skewed"])) == personal[2:]
    assert list(load(file, only=["shared skewed", "mu=1.0", "even"])) == ["shared skewed", "personal even mu=1.0"]


def test_an_override_of_a_swept_variant_is_for_all_that_it_makes(tmp_path: Path) -> None:
    plan = load(recipe_file(tmp_path / "n.toml", NAMED), ["variants.shared.rounds=7"])
    assert [recipe.rounds for recipe in plan.values()] == [7, 7, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sweep = 3\n", ["sweep: 3 is not allowed", "table"]),
        ("[sweep]\nseed = 3\n", ["sweep.seed: 3 is not allowed", "list"]),
        ("[sweep]\nseed = [1, 1]\n", ["sweep.seed: [1, 1] is not allowed", "different"]),
        ("[sweep]\nmethod.lr = [0.1]\n", ["sweep.method.lr: [0.1] is not allowed", '"method.lr" = [...]']),
        ('[sweep]\n"method." = [0.1]\n', ['key "method."', "method.lr"]),
        ('[sweep]\n"method.lr" = [0.1, -1]\n', ["variant lr=-1", "method.lr: -1 is not allowed", "a float > 0"]),
        ('[sweep]\n"method.rl" = [0.1]\n', ["method.rl", '"lr"']),
        ('[sweep]\n"model.name" = ["a/b"]\n', ["a/b", "folder"]),
    ],
)
def test_what_a_sweep_cannot_list_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    base = tomli_w.dumps(BASE)
    with pytest.raises(RecipeError) as caught:
        load(recipe_file(tmp_path / "s.toml", text + base if text.startswith("sweep") else base + text))
    assert [word for word in words if word not in str(caught.value)] == []
