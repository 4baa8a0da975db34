"""Check recipes that Python code writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsona.experiment import recipe
from sparsona.experiment.objects import Objects
from sparsona.experiment.recipe import Recipe
from sparsona.method import Method


def check_recipe(
    raw: Mapping[str, Any], *, method: Method | None = None, data: Any = None, model: Any = None
) -> Recipe:
    """Check the tables of one run, without variants, and fill in all defaults.

    Args:
        raw: The tables of the recipe, as in a TOML file. ``name`` is "run" by default.
        method: Your method, used instead of the section ``[method]``. Pass it to ``run`` again.
        data: Your data, used instead of ``data.source``, likewise.
        model: Your model, used instead of ``model.name``, likewise.

    Returns:
        The checked recipe.

    Raises:
        RecipeError: If a field is unknown or a value is not allowed.

    Examples:
        >>> tables = {"rounds": 5, "data": {"client": "site"}, "model": {"name": "mlp"}, "method": {"name": "ditto"}}
        >>> recipe = sparsona.check_recipe(tables, data="patients.csv")
        >>> run = sparsona.run(recipe, data="patients.csv")
    """
    return recipe.check(raw, objects=Objects(method, data, model))


__all__ = ["check_recipe"]
