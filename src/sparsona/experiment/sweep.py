"""Sweeps: which runs the product of all listed values makes, and the file that says what sets each run apart."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from sparsona.experiment.checking import check_name, shown
from sparsona.experiment.overrides import parse_options
from sparsona.experiment.plan import Setting, check_distinct, is_meant, resolve, settings, variants
from sparsona.experiment.recipe import Recipe, RecipeError, deciding, tables
from sparsona.experiment.results import Run, RunError

SWEEP = "sweep.json"  # beside plan.json: what sets each run apart
MOST = 1000  # runs of a sweep


@dataclass(frozen=True)
class Sweep:
    """Which runs a sweep has, by the names of their folders."""

    runs: Mapping[str, Setting]

    @property
    def axes(self) -> list[str]:
        """The keys with several values."""
        return swept_keys(self.runs.values())

    def of(self, runs: Iterable[Run]) -> dict[Run, Setting]:
        """What sets each of some runs apart."""
        settings = {}
        for run in runs:
            if run.path.name not in self.runs:
                raise RunError(f"{run.path} is not part of this sweep: {SWEEP} does not list it")
            settings[run] = self.runs[run.path.name]
        return settings

    def json(self) -> str:
        """The sweep as a file."""
        runs = {name: {"variant": s.variant, "values": s.values} for name, s in self.runs.items()}
        return json.dumps({"axes": self.axes, "runs": runs}, indent=1) + "\n"

    @staticmethod
    def read(folder: Path) -> Sweep:
        """The sweep that a folder holds."""
        file = folder / SWEEP
        try:
            raw = json.loads(file.read_text(encoding="utf-8"))["runs"]
            return Sweep({name: Setting(s["variant"], dict(s["values"])) for name, s in raw.items()})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{file} is damaged: {type(error).__name__} {error}") from error


def plan(name: str, overrides: Iterable[str] = (), only: Sequence[str] = ()) -> tuple[dict[str, Recipe], Sweep]:
    """A recipe's checked runs for the product of all values listed, times its variants, by the names of folders."""
    listed = [parse_options(text) for text in overrides]
    _distinct(listed)
    raw = variants(name, only, [keys for keys, _ in listed])
    own_settings = settings(name, only, [keys for keys, _ in listed])  # of the recipe's own [sweep]
    axes = {variant: _axes(listed, variant, raw) for variant in raw}
    count = sum(math.prod(len(listed[i][1]) for i in own) for own in axes.values())
    if count > MOST:
        raise RecipeError(f"overrides: the listed values make {count:,} runs; expected at most {MOST:,}")
    planned: list[tuple[Setting, Recipe]] = []
    all_known: dict[str, str | None] = {}
    for variant, own in axes.items():
        known: dict[str, dict[str, Any]] = {}
        for picked in product(*(listed[i][1] for i in own)):
            at = dict(zip(own, picked, strict=True))
            recipe = resolve(raw, variant, [(keys, at.get(i, given[0])) for i, (keys, given) in enumerate(listed)])
            values = {own[i]: value for i, value in at.items()}
            twin = known.setdefault(json.dumps(tables(recipe)), values)
            for key in values:
                if values[key] != twin[key]:  # another change covers this one, or the two are the same file
                    raise RecipeError(
                        f"{key}: {shown(twin[key])} and {shown(values[key])} make the same run; remove one"
                    )
            check_distinct(all_known, variant, recipe)
            base = own_settings[variant]
            planned.append((Setting(base.variant, {**base.values, **values}), recipe))
    names = _names([setting for setting, _ in planned], planned[0][1].name)
    runs = dict(zip(names, planned, strict=True))
    return {n: recipe for n, (_, recipe) in runs.items()}, Sweep({n: setting for n, (setting, _) in runs.items()})


def extended(plan: Mapping[str, Recipe], sweep: Sweep, known: Mapping[str, Recipe]) -> tuple[dict[str, Recipe], Sweep]:
    """A sweep whose runs keep the folders they have in the plan of an earlier one, all of whose runs it must have."""
    places: dict[str, list[str]] = {}  # by content: between two commands names may change, results may not
    for name, recipe in plan.items():
        places.setdefault(content(recipe), []).append(name)
    kept: dict[str, str] = {}
    for old, recipe in known.items():
        same = places.get(content(recipe), [])
        if not same:
            raise RunError(f"its run {shown(old)} is not in the new sweep: {difference(recipe, plan.values())}")
        new = old if old in same else same[0]
        same.remove(new)
        kept[new] = old
    taken = {name.casefold() for name in known}
    names = {name: kept[name] if name in kept else _untaken(name, taken) for name in plan}
    return {names[n]: r for n, r in plan.items()}, Sweep({names[n]: s for n, s in sweep.runs.items()})


def content(recipe: Recipe) -> str:
    """What decides the results of a recipe, as text."""
    return json.dumps(deciding(recipe))


def difference(recipe: Recipe, others: Iterable[Recipe]) -> str:
    """The first key in which a recipe differs from the one that is most like it."""
    mine = dict(_flat(json.loads(content(recipe))))
    differences = []
    for other in others:
        theirs = dict(_flat(json.loads(content(other))))
        differences.append([(k, theirs.get(k)) for k in {**mine, **theirs} if mine.get(k) != theirs.get(k)])
    key, value = min(differences, key=len)[0]
    then, now = ("not set" if v is None else shown(v) for v in (mine.get(key), value))
    return f"{key} is {then} there, but {now} here"


def _flat(raw: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Tables as one, with dotted keys."""
    if isinstance(raw, Mapping):
        for key, value in raw.items():
            yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, raw


def _distinct(listed: Sequence[tuple[list[str], list[Any]]]) -> None:
    """Refuse a key or a value that is given twice."""
    seen = set()
    for keys, values in listed:
        key = ".".join(keys)
        if key in seen:
            raise RecipeError(f"{key} is given twice; list its values in one override, {key}=a,b")
        seen.add(key)
        for i, value in enumerate(values):
            if value in values[:i]:
                raise RecipeError(f"{key}: {shown(value)} is listed twice; list each value once")


def _axes(
    listed: Sequence[tuple[list[str], list[Any]]], variant: str | None, variants: Collection[str | None]
) -> dict[int, str]:
    """Which changes multiply the runs of a variant: their places, and their keys as its recipe spells them."""
    own = {tuple(keys[2:]) for keys, _ in listed if keys[0] == "variants" and is_meant(keys[1], variant, variants)}
    places = {}
    for i, (keys, values) in enumerate(listed):
        if len(values) < 2:
            continue
        if variant is None or keys[0] != "variants":
            if tuple(keys) not in own:  # a value for one variant overrides a value for all
                places[i] = ".".join(keys)
        elif is_meant(keys[1], variant, variants):
            places[i] = ".".join(keys[2:])
    return places


def swept_keys(settings: Iterable[Setting]) -> list[str]:
    """The keys that vary over some settings, in the order in which they appear."""
    return list(dict.fromkeys(key for setting in settings for key in setting.values))


def short_labels(keys: Sequence[str]) -> dict[str, str]:
    """What each key is called: its last part, method for method.name, or all of it where two would be called alike."""
    short = {key: re.sub(r"(.)\.name$", r"\1", key).split(".")[-1] for key in keys}
    uses = Counter(short.values())
    return {key: label if uses[label] == 1 and label != "variant" else key for key, label in short.items()}


def setting_title(places: Mapping[str, str]) -> str:
    """A variant by its name, a value with what it is of."""
    return " ".join(text if label == "variant" else f"{label}={text}" for label, text in places.items())


def setting_texts(setting: Setting, labels: Mapping[str, str]) -> dict[str, str]:
    """What sets a run apart as it is shown, by label."""
    here = {} if setting.variant is None else {"variant": setting.variant}
    return here | {labels[key]: _text(value) for key, value in setting.values.items()}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _names(settings: Sequence[Setting], recipe: str) -> list[str]:
    """A folder's name for each run: readable, allowed everywhere, and no two alike even if case does not count."""
    labels = short_labels(swept_keys(settings))
    taken: set[str] = set()
    names = []
    for setting in settings:
        title = setting_title(setting_texts(setting, labels)) or recipe
        whole = re.sub(r'[/\\:<>"|?*\x00-\x1f\x7f]', "-", title).strip(" .")
        names.append(_untaken(whole, taken))
        check_name("run", names[-1])
    return names


def _untaken(whole: str, taken: set[str]) -> str:
    """A name cut to length, with a number if it is taken; from then on it is."""
    name, n = whole[:100].strip(" ."), 2
    while name.casefold() in taken:
        name, n = f"{whole[:90].strip()} ({n})", n + 1
    taken.add(name.casefold())
    return name


__all__ = [
    "MOST",
    "SWEEP",
    "Setting",
    "Sweep",
    "content",
    "difference",
    "extended",
    "plan",
    "setting_texts",
    "setting_title",
    "short_labels",
    "swept_keys",
]
