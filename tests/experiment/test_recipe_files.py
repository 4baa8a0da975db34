"""Recipe files that extend one another."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparsona.experiment.plan import load
from sparsona.experiment.recipe import RecipeError
from sparsona.experiment.recipe_files import read, recipe_names

PARENT = """
name = "parent"
rounds = 3
[model]
name = "digits-mlp"
[method]
name = "fedavg"
lr = 0.1
batch = 8
[variants.slow.method]
lr = 0.01
[variants.fast.method]
lr = 1.0
"""


def write(folder: Path, **files: str) -> str:
    """Recipe files, and the path of the last of them."""
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return str(folder / f"{list(files)[-1]}.toml")


def test_tables_merge_and_the_child_wins(tmp_path: Path) -> None:
    child = 'extends = "parent.toml"\nrounds = 5\nmethod.lr = 0.2\nvariants.slow.method.batch = 4\n'
    plan = load(write(tmp_path, parent=PARENT, child=child))
    assert list(plan) == ["slow", "fast"]
    assert {(r.name, r.rounds) for r in plan.values()} == {("child", 5)}
    assert [(r.method.lr, r.method.batch) for r in plan.values()] == [(0.01, 4), (1.0, 8)]  # type: ignore[attr-defined]


def test_a_recipe_that_comes_with_sparsona_is_extended_by_name_and_may_be_a_child_itself(tmp_path: Path) -> None:
    one = 'extends = "quickstart"\nrounds = 5\n'
    two = 'extends = "one.toml"\nwithout = ["variants.alone", "fleet.per_round"]\n'
    plan = load(write(tmp_path, one=one, two=two))
    assert list(plan) == ["shared", "tuned", "personal"]
    assert {(r.rounds, r.fleet.per_round) for r in plan.values()} == {(5, None)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends = 3\n", ["child.toml", "extends: 3 is not allowed", "name"]),
        ('extends = "quickstrt"\n', ["child.toml", 'extends: recipe "quickstrt": not found', "quickstart"]),
        ('extends = "child.toml"\n', ["child.toml", "cycle"]),
        ('without = ["x"]\n', ["child.toml", 'without: ["x"] is only', "extends"]),
        ('extends = "parent.toml"\nwithout = "x"\n', ["child.toml", 'without: "x" is not allowed', "list"]),
        ('extends = "parent.toml"\nwithout = ["variants.fst"]\n', ["child.toml", "variants.fst", '"fast"']),
        ('extends = "parent.toml"\nwithout = ["rounds.x"]\n', ["child.toml", "rounds.x"]),
    ],
)
def test_what_cannot_be_extended_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    file = write(tmp_path, parent=PARENT, child=text)
    with pytest.raises(RecipeError) as caught:
        read(file)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_cycle_of_two_is_named(tmp_path: Path) -> None:
    file = write(tmp_path, a='extends = "b.toml"\n', b='extends = "a.toml"\n')
    with pytest.raises(RecipeError, match=r"b\.toml -> a\.toml -> b\.toml"):
        read(file)


def test_without_drops_the_named_key_even_if_its_table_has_the_same_name(tmp_path: Path) -> None:
    parent = PARENT + "[variants.variants.method]\nlr = 0.5\n"
    child = 'extends = "parent.toml"\nwithout = ["variants.variants"]\n'
    assert list(load(write(tmp_path, parent=parent, child=child))) == ["slow", "fast"]


def test_recipes_of_ham10000_report_metrics_for_unequal_classes() -> None:
    ours = {name: load(name) for name in recipe_names() if "ham10000" in str(read(name))}
    recipes = [recipe for plan in ours.values() for recipe in plan.values() if recipe.data.source == "ham10000"]
    assert recipes
    for recipe in recipes:
        assert {"balanced_accuracy", "auc"} <= set(recipe.task.metrics), recipe.name
