"""Plans: the checked runs that a recipe describes, by variant: those it names, times what its [sweep] lists."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from sparsona.core.fields import Fraction, Natural
from sparsona.data import DataConfig
from sparsona.experiment.checking import RecipeError, check_name, check_value, nearest, shown
from sparsona.experiment.objects import NO_OBJECTS, Objects
from sparsona.experiment.overrides import Change, merged, parse_override, patched, split_key
from sparsona.experiment.recipe import Recipe, check, located, tables
from sparsona.experiment.recipe_files import default_name, read, recipe_names


@dataclass(frozen=True)
class Setting:
    """What sets a run apart from the others of its sweep."""

    variant: str | None
    values: Mapping[str, Any]  # by key, of the keys that are listed with several values for this variant


@dataclass(frozen=True)
class _Expanded:
    """One of the runs that a recipe's variants and [sweep] make, in plain tables."""

    raw: dict[str, Any]
    setting: Setting


def load(
    name: str, overrides: Iterable[str] = (), only: Sequence[str] = (), objects: Objects = NO_OBJECTS
) -> dict[str, Recipe]:
    """A recipe's checked runs by variant, with overrides (``key=value``); all of its variants, or ``only`` some.

    A recipe without variants is one run under its own name. ``objects`` stand for what the recipe would name.
    """
    changes = [parse_override(text) for text in overrides]
    raw = variants(name, only, [keys for keys, _ in changes])
    recipes: dict[str, Recipe] = {}
    known: dict[str, str | None] = {}
    for variant in raw:
        recipe = resolve(raw, variant, changes, objects)
        check_distinct(known, variant, recipe)
        recipes[recipe.name if variant is None else variant] = recipe
    return recipes


def load_data(name: str, overrides: Iterable[str] = ()) -> dict[str, tuple[DataConfig, int, float]]:
    """The section [data], the seed and fleet.hold_out of a recipe by variant, or of a source; no more is needed."""
    changes = [parse_override(text) for text in overrides]
    raw: Mapping[str | None, dict[str, Any]]
    if name in recipe_names() or Path(name).suffix == ".toml":
        raw = variants(name, (), [keys for keys, _ in changes])
    else:
        raw = {None: {"name": name, "data": {"source": name}}}
    sections = {}
    for variant, table in raw.items():
        common, own = _changes(raw, variant, changes)
        patch = patched(table, [*common, *own])
        config = check_value(DataConfig, patch.get("data", {}), "data")
        title = str(patch["name"]) if variant is None else variant
        fleet = patch.get("fleet", {})
        share = fleet.get("hold_out", 0.0) if isinstance(fleet, dict) else 0.0
        seed = check_value(Natural, patch.get("seed", 1), "seed")
        sections[title] = (located(config), seed, check_value(Fraction, share, "fleet.hold_out"))
    return sections


def load_settings(name: str, overrides: Iterable[str] = (), only: Sequence[str] = ()) -> dict[str, Setting]:
    """What a recipe's [sweep] sets for each of the runs that ``load`` gives; none if it has no [sweep]."""
    every = _variants(name, only, [parse_override(text)[0] for text in overrides])
    swept = any(each.setting.values for each in every.values())
    return {str(title): each.setting for title, each in every.items()} if swept else {}


def check_distinct(known: dict[str, str | None], variant: str | None, recipe: Recipe) -> None:
    """Refuse a recipe that is equal to that of another variant: a change covers what sets the two apart."""
    twin = known.setdefault(json.dumps(tables(recipe)), variant)
    if twin != variant:
        what = "an override sets the fields in which they differ; choose one with --only"
        raise RecipeError(f"variants {twin} and {variant} are now the same run: {what}")


def variants(
    name: str, only: Sequence[str] = (), keys: Iterable[Sequence[str]] = ()
) -> dict[str | None, dict[str, Any]]:
    """A recipe's plain tables by variant, all or some, not yet checked; None is the one key if it has no variants.

    The keys of changes to come replace the values that [sweep] lists for them, and are refused if they are of a
    variant that is not among these. ``only`` takes names of variants, or words that they are made of.
    """
    return {title: each.raw for title, each in _variants(name, only, keys).items()}


def settings(name: str, only: Sequence[str] = (), keys: Iterable[Sequence[str]] = ()) -> dict[str | None, Setting]:
    """What sets each of these variants apart: the variant that the recipe names, and the values of its [sweep]."""
    return {title: each.setting for title, each in _variants(name, only, keys).items()}


def _variants(name: str, only: Sequence[str], keys: Iterable[Sequence[str]]) -> dict[str | None, _Expanded]:
    overridden = [tuple(key) for key in keys]
    raw = read(name)
    raw.setdefault("name", default_name(name))
    every = _expanded(raw, overridden)
    if list(every) == [()]:
        if only:
            raise RecipeError(f"only: {', '.join(only)} not found; recipe {shown(name)} has no variants")
        return {None: every[()]}
    titles = {" ".join(words): words for words in every}
    if len(titles) < len(every):
        raise RecipeError(f"variants: two of {', '.join(titles)} have the same name; rename one")
    for title in titles:
        check_name(f"variants.{title}", title)
    only = rejoin_names(only, {*titles, *(word for words in every for word in words)})
    chosen = _chosen(titles, only)
    for key in overridden:
        if key[0] == "variants" and len(key) < 3:
            raise RecipeError(
                f"{'.'.join(key)} is not allowed; expected variants.NAME.KEY, such as variants.{key[-1]}.method.lr"
            )
        if key[0] == "variants" and not any(is_meant(key[1], title, titles) for title in titles):
            raise RecipeError(f"{'.'.join(key)}: no such variant{nearest(key[1], titles)}")
        if key[0] == "variants" and not any(is_meant(key[1], title, titles) for title in chosen):
            raise RecipeError(
                f"{'.'.join(key)}: variant {key[1]} does not run with only {', '.join(only)}; add it to only"
            )
    return {title: every[titles[title]] for title in chosen}


def is_meant(name: str, variant: str | None, variants: Collection[str | None]) -> bool:
    """Whether NAME in variants.NAME.KEY means a variant: by its name, or by the one that [sweep] has added words to."""
    return name == variant or (name not in variants and variant is not None and variant.startswith(f"{name} "))


def _chosen(titles: Mapping[str, tuple[str, ...]], only: Collection[str]) -> list[str]:
    """The variants of these names, and those made of these words: of one of them in each place that has any."""
    picks: dict[int, set[str]] = {}
    for word in only:
        places = {words.index(word) for words in titles.values() if word in words}
        if word not in titles and not places:
            raise RecipeError(f"only: no such variant {shown(word)}{nearest(word, titles)}")
        for place in places:
            picks.setdefault(place, set()).add(word)
    return [
        title
        for title, words in titles.items()
        if not only
        or title in only
        or (picks and all(words[place : place + 1] and words[place] in pick for place, pick in picks.items()))
    ]


def _expanded(raw: dict[str, Any], keys: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], _Expanded]:
    """A recipe's variants, times all that [sweep] lists, by the words that make their names."""
    variants = raw.pop("variants", None)
    if variants is None:
        return {words: _Expanded(own, Setting(None, values)) for words, own, values in _swept(raw, keys)}
    if not isinstance(variants, dict) or not variants:
        raise RecipeError(f"variants: {shown(variants)} is not allowed; expected a table with one table per variant")
    every: dict[tuple[str, ...], _Expanded] = {}
    for variant, table in variants.items():
        if not isinstance(table, dict):
            raise RecipeError(
                f"variants.{variant}: {shown(table)} is not allowed; expected a table with the fields of this variant"
            )
        for words, own, values in _swept(merged(raw, table), keys):
            every[variant, *words] = _Expanded(own, Setting(variant, values))
    return every


def _swept(
    raw: Mapping[str, Any], keys: Sequence[tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], dict[str, Any], dict[str, Any]]]:
    """Plain tables for the product of all that their [sweep] lists, with words and values that set each apart."""
    rest = {key: value for key, value in raw.items() if key != "sweep"}
    for choices in product(*_axes(raw.get("sweep", {}), keys)):
        tables = reduce(merged, (choice.table for choice in choices), rest)
        yield tuple(choice.word for choice in choices), tables, {choice.key: choice.value for choice in choices}


class _Choice(NamedTuple):
    """One of the values that an entry of [sweep] lists."""

    word: str  # for names of runs
    table: dict[str, Any]  # what it changes
    key: str  # the entry
    value: Any  # the value, or the name of a table


def _axes(sweep: Any, keys: Sequence[tuple[str, ...]]) -> list[list[_Choice]]:
    """What each entry of [sweep] lists."""
    if not isinstance(sweep, dict):
        raise RecipeError(f"sweep: {shown(sweep)} is not allowed; expected a table of lists")
    axes = []
    labels = [key.removesuffix(".name").split(".")[-1] for key in sweep]
    for key, label in zip(sweep, labels, strict=True):
        values = sweep[key]
        if isinstance(values, dict) and values:
            for word, table in values.items():
                if not isinstance(table, dict):
                    what = "expected a table of fields; if the key is a field, write it in quotes:"
                    raise RecipeError(
                        f'sweep.{key}.{word}: {shown(table)} is not allowed; {what} "{key}.{word}" = [...]'
                    )
            axes.append([_Choice(word, table, key, word) for word, table in values.items()])
            continue
        if values == []:  # a variant or a child recipe leaves out what it inherits
            continue
        if not isinstance(values, list):
            raise RecipeError(
                f"sweep.{key}: {shown(values)} is not allowed; expected a list of values, or a table of named tables"
            )
        parts = split_key(key)
        if not parts:
            raise RecipeError(
                f'sweep: key {shown(key)} is not allowed; expected the key of a field, such as "method.lr"'
            )
        if tuple(parts) in keys:
            continue
        title = label if labels.count(label) == 1 else key
        words = [f"{title}={value if isinstance(value, str) else shown(value)}" for value in values]
        if len(set(words)) < len(words):
            raise RecipeError(f"sweep.{key}: {shown(values)} is not allowed; expected a list of different values")
        axes.append(
            [
                _Choice(word, patched({}, [(parts, value)]), ".".join(parts), value)
                for word, value in zip(words, values, strict=True)
            ]
        )
    return axes


def resolve(
    raw: Mapping[str | None, dict[str, Any]],
    variant: str | None,
    changes: Iterable[Change],
    objects: Objects = NO_OBJECTS,
) -> Recipe:
    """One of a recipe's variants with the changes that are for all or for it, checked."""
    common, own = _changes(raw, variant, changes)
    if variant is None:
        return check(patched(raw[None], common), objects=objects)
    try:
        return check(patched(raw[variant], [*common, *own]), objects=objects)
    except RecipeError as error:
        shared = [".".join(keys) for keys, _ in common if keys[0] in ("method", "topology")]
        only = f"to change only one variant, use variants.NAME.{shared[0]}=..." if shared else ""
        helps = bool(only) and len(raw) > 1
        names = ", ".join(f'"{name}"' if "." in str(name) else str(name) for name in raw)
        hint = f"; {only} with NAME one of {names}" if helps else ""
        raise RecipeError(f"variant {variant}: {error}{hint}") from error


def _changes(
    raw: Mapping[str | None, dict[str, Any]], variant: str | None, changes: Iterable[Change]
) -> tuple[list[Change], list[Change]]:
    """The changes that are for all variants, and those for this one."""
    common: list[Change] = []
    own: list[Change] = []
    for keys, value in changes:
        if variant is None or keys[0] != "variants":
            common.append((keys, value))
        elif is_meant(keys[1], variant, raw):
            own.append((keys[2:], value))
    return common, own


def rejoin_names(pieces: Sequence[str], names: Collection[str]) -> list[str]:
    """Pieces of a comma-separated list, joined again where a name has commas itself; longest names first."""
    words, i = list[str](), 0
    while i < len(pieces):
        ends = range(len(pieces), i, -1)
        i, word = next(((j, w) for j in ends if (w := ", ".join(pieces[i:j])) in names), (i + 1, pieces[i]))
        words.append(word)
    return words
