"""Sweeps: runs for the product of all values listed, and their mean and deviation over seeds as a table and figures."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise, product
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from sparsona import drawing
from sparsona.config import Recipe, RecipeError, changed, named, options, shown, tables, told_apart, variants
from sparsona.costs import Device
from sparsona.report import besides, cost_of, cost_row, differences, evaluated, run_row
from sparsona.results import Run, RunError, write
from sparsona.sheet import Column, Row, Sheet, amount, as_text, flop_unit, percent, target_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SWEEP = "sweep.json"  # beside plan.json: what sets each run apart
MOST = 1000  # runs of a sweep


# -- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """What sets a run apart from the others of its sweep."""

    variant: str | None
    values: Mapping[str, Any]  # by key, of the keys that are listed with several values for this variant


@dataclass(frozen=True)
class Sweep:
    """Which runs a sweep has, by the names of their folders."""

    runs: Mapping[str, Setting]

    @property
    def axes(self) -> list[str]:
        """The keys with several values."""
        return _keys(self.runs.values())

    def of(self, runs: Iterable[Run]) -> dict[Run, Setting]:
        """What sets each of some runs apart."""
        found = {}
        for run in runs:
            if run.path.name not in self.runs:
                raise RunError(f"{run.path} is not of this sweep: {SWEEP} does not name it")
            found[run] = self.runs[run.path.name]
        return found

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
    listed = [options(text) for text in overrides]
    _distinct(listed)
    raw = variants(name, only, [keys for keys, _ in listed])
    axes = {variant: _axes(listed, variant) for variant in raw}
    count = sum(math.prod(len(listed[i][1]) for i in own) for own in axes.values())
    if count > MOST:
        raise RecipeError(f"the values listed make {count:,} runs: must be at most {MOST:,}")
    made = []
    all_known: dict[str, str | None] = {}
    for variant, own in axes.items():
        known: dict[str, dict[str, Any]] = {}
        for picked in product(*(listed[i][1] for i in own)):
            at = dict(zip(own, picked, strict=True))
            recipe = changed(raw, variant, [(keys, at.get(i, given[0])) for i, (keys, given) in enumerate(listed)])
            values = {own[i]: value for i, value in at.items()}
            twin = known.setdefault(json.dumps(tables(recipe)), values)
            for key in values:
                if values[key] != twin[key]:  # another change covers this one, or the two are the same file
                    raise RecipeError(f"{key} = {shown(twin[key])} and {shown(values[key])} make the same run")
            told_apart(all_known, variant, recipe)
            made.append((Setting(variant, values), recipe))
    names = _names([setting for setting, _ in made], made[0][1].name)
    runs = dict(zip(names, made, strict=True))
    return {n: recipe for n, (_, recipe) in runs.items()}, Sweep({n: setting for n, (setting, _) in runs.items()})


def extended(plan: Mapping[str, Recipe], sweep: Sweep, known: Mapping[str, Recipe]) -> tuple[dict[str, Recipe], Sweep]:
    """A sweep whose runs keep the folders they have in the plan of an earlier one, all of whose runs it must have."""
    places: dict[str, list[str]] = {}  # by content: between two commands names may change, results may not
    for name, recipe in plan.items():
        places.setdefault(json.dumps(tables(recipe)), []).append(name)
    kept: dict[str, str] = {}
    for old, recipe in known.items():
        same = places.get(json.dumps(tables(recipe)), [])
        if not same:
            raise RunError(f"its run {shown(old)} is not among these: {difference(recipe, plan.values())}")
        new = old if old in same else same[0]
        same.remove(new)
        kept[new] = old
    taken = {name.casefold() for name in known}
    names = {name: kept[name] if name in kept else _untaken(name, taken) for name in plan}
    return {names[n]: r for n, r in plan.items()}, Sweep({names[n]: s for n, s in sweep.runs.items()})


def difference(recipe: Recipe, others: Iterable[Recipe]) -> str:
    """The first key in which a recipe differs from the one that is most like it."""
    mine = dict(_flat(tables(recipe)))
    found = []
    for other in others:
        theirs = dict(_flat(tables(other)))
        found.append([(k, theirs.get(k)) for k in {**mine, **theirs} if mine.get(k) != theirs.get(k)])
    key, value = min(found, key=len)[0]
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
            raise RecipeError(f"{key}: given twice; several values are one list, {key}=a,b")
        seen.add(key)
        for i, value in enumerate(values):
            if value in values[:i]:
                raise RecipeError(f"{key} = {shown(value)}: listed twice; each value must be another")


def _axes(listed: Sequence[tuple[list[str], list[Any]]], variant: str | None) -> dict[int, str]:
    """Which changes multiply the runs of a variant: their places, and their keys as its recipe spells them."""
    own = {tuple(keys[2:]) for keys, _ in listed if variant is not None and keys[:2] == ["variants", variant]}
    places = {}
    for i, (keys, values) in enumerate(listed):
        if len(values) < 2:
            continue
        if variant is None or keys[0] != "variants":
            if tuple(keys) not in own:  # what is said of one variant goes before what is said of all
                places[i] = ".".join(keys)
        elif keys[1:2] == [variant]:
            places[i] = ".".join(keys[2:])
    return places


def _keys(settings: Iterable[Setting]) -> list[str]:
    return list(dict.fromkeys(key for setting in settings for key in setting.values))


def _labels(keys: Sequence[str]) -> dict[str, str]:
    """What each key is called: its last part, method for method.name, or all of it where two would be called alike."""
    short = {key: re.sub(r"(.)\.name$", r"\1", key).split(".")[-1] for key in keys}
    uses = Counter(short.values())
    return {key: label if uses[label] == 1 and label != "variant" else key for key, label in short.items()}


def _title(places: Mapping[str, str]) -> str:
    """A variant by its name, a value with what it is of."""
    return " ".join(text if label == "variant" else f"{label}={text}" for label, text in places.items())


def _places(setting: Setting, labels: Mapping[str, str]) -> dict[str, str]:
    """What sets a run apart as it is shown, by label."""
    here = {} if setting.variant is None else {"variant": setting.variant}
    return here | {labels[key]: as_text(value) for key, value in setting.values.items()}


def _names(settings: Sequence[Setting], recipe: str) -> list[str]:
    """A folder's name for each run: readable, allowed everywhere, and no two alike even if case does not count."""
    labels = _labels(_keys(settings))
    taken: set[str] = set()
    names = []
    for setting in settings:
        title = _title(_places(setting, labels)) or recipe
        whole = re.sub(r'[/\\:<>"|?*\x00-\x1f\x7f]', "-", title).strip(" .")
        names.append(_untaken(whole, taken))
        named("run", names[-1])
    return names


def _untaken(whole: str, taken: set[str]) -> str:
    """A name cut to length, with a number if it is taken; from then on it is."""
    name, n = whole[:100].strip(" ."), 2
    while name.casefold() in taken:
        name, n = f"{whole[:90].strip()} ({n})", n + 1
    taken.add(name.casefold())
    return name


# -- the table -------------------------------------------------------------------------------------------------------

_MEASURES = (
    "accuracy",
    "accuracy_by_sample",
    "bottom_decile",
    "spread",
    "shared_accuracy",
    "unfinished_accuracy",
    "finished_accuracy",
    "after_accuracy",
    "newcomers_accuracy",
    "best_accuracy",
    "wire_bytes",
    "down_bytes",
    "up_bytes",
    "paper_bytes",
    "flops",
    "sparsity",
)
_TO_TARGET = ("rounds_to_target", "bytes_to_target", "flops_to_target")


@dataclass(frozen=True)
class Group:
    """The runs that differ in nothing but their seed."""

    places: Mapping[str, str]  # what sets it apart as it is shown, by label
    values: Mapping[str, Any]  # by key
    runs: tuple[Run, ...]
    row: Row


@dataclass(frozen=True)
class SweepTable(Sheet):
    """One row per group of runs: means and standard deviations over seeds, in raw numbers."""

    labels: tuple[tuple[str, str], ...] = ()  # the keys of rows that set groups apart, and what they are called

    def parts(self) -> tuple[list[Column], ...]:
        """What is shown of a row: what sets it apart, its results, its costs."""
        scale, unit = flop_unit(max(row["flops_mean"] for row in self.rows))
        who = [Column(label, partial(_cell, key), words=not _numbers(self.rows, key)) for key, label in self.labels]
        results = [
            Column("seeds", lambda r: str(r["seeds"])),
            Column("accuracy %", lambda r: _mean_std(r, "accuracy")),
            Column("bottom decile %", lambda r: _mean_std(r, "bottom_decile")),
            Column("best %", lambda r: _mean_std(r, "best_accuracy")),
        ]
        results += [Column(told, partial(_mean_std, name=key)) for key, told in besides(self.rows, "_mean")]
        goal, told = target_columns(self.rows)
        results += told
        if goal:
            results.append(Column(f"rounds to {goal}", _rounds))
        costs = [
            Column("MB wire", lambda r: amount(r["wire_bytes_mean"] / 1e6)),
            Column("MB paper", lambda r: amount(r["paper_bytes_mean"] / 1e6)),
            Column(unit, lambda r: amount(r["flops_mean"] / scale)),
        ]
        if any(row["sparsity_mean"] is not None for row in self.rows):
            costs.append(Column("final sparsity %", lambda r: _mean_std(r, "sparsity")))
        return who or [Column("run", lambda r: str(r["group"]), words=True)], results, costs


def table(
    settings: Mapping[Run, Setting], out: Path | None = None, target: float | None = None, device: Device | None = None
) -> SweepTable:
    """Finished runs as one row per group, with tables and figures in the folder ``out`` if one is given.

    The cost to reach a mean accuracy is told for ``target``, or without it for the target of each run's own recipe;
    the time and energy of a round for ``device``, if one is given.
    """
    if target is not None and not 0 < target <= 1:
        raise ValueError(f"target = {target!r}: must be more than 0 and at most 1")
    groups = group(settings, target, device)
    labels = _labels(_keys(settings.values()))
    told = [("variant", "variant")] if any(s.variant is not None for s in settings.values()) else []
    told += [(key, label) for key, label in labels.items() if key != "seed"]
    made = SweepTable(tuple(g.row for g in groups), tuple(_notes(settings, groups, labels)), (), tuple(told))
    if out is None or not groups:
        return made
    try:
        out.mkdir(parents=True, exist_ok=True)
        return replace(made, files=tuple(_write(made, groups, labels, out)))
    except OSError as error:
        raise RunError(f"cannot write the tables of the sweep into {out}: {error.strerror}") from error


def group(settings: Mapping[Run, Setting], target: float | None = None, device: Device | None = None) -> list[Group]:
    """Finished runs by all that sets them apart but the seed; runs in which no client was ever tested are left out."""
    labels = _labels(_keys(settings.values()))
    found: dict[str, tuple[Setting, list[Run]]] = {}
    for run, setting in settings.items():
        if run.summary["accuracy"] is not None:
            bare = Setting(setting.variant, {k: v for k, v in setting.values.items() if k != "seed"})
            found.setdefault(json.dumps([bare.variant, bare.values]), (bare, []))[1].append(run)
    groups = []
    for setting, members in found.values():
        places = _places(setting, labels)
        row: Row = {"group": _title(places) or members[0].recipe.name, "variant": setting.variant}
        row |= {key: setting.values.get(key) for key in labels if key != "seed"}
        groups.append(Group(places, setting.values, tuple(members), row | _measures(members, target, device)))
    return groups


def _measures(runs: Sequence[Run], target: float | None, device: Device | None) -> Row:
    """Means and standard deviations over the runs of a group; None where there are too few runs for one."""
    each = [run_row(run, run.path.name, target) for run in runs]
    costs: Row = {}
    for run, row in zip(runs, each, strict=True):
        row["wire_bytes"] = row["down_bytes"] + row["up_bytes"]
        costs = {} if device is None else cost_row(cost_of(run, device))
        row |= costs
    out: Row = {"seeds": len(runs)}
    for name in (*_MEASURES, *costs):
        out |= moments(name, [row[name] for row in each if row.get(name) is not None])
    hits = [row for row in each if row["rounds_to_target"] is not None]
    out |= {"target": each[0]["target"], "reached": None if each[0]["target"] is None else len(hits)}
    for name in _TO_TARGET:  # of those that reached it
        out |= moments(name, [row[name] for row in hits])
    return out


def moments(name: str, values: Sequence[float]) -> Row:
    """Mean and standard deviation of some values, None where there are too few."""
    mean = fmean(values) if values else None
    return {f"{name}_mean": mean, f"{name}_std": stdev(values) if len(values) > 1 else None}


def _notes(runs: Iterable[Run], groups: Sequence[Group], known: Collection[str]) -> Iterator[str]:
    if any(g.row["accuracy_std"] is not None for g in groups):
        yield "± is the standard deviation over seeds"
    untested = [run.path.name for run in runs if run.summary["accuracy"] is None]
    if untested:
        yield f"no client was ever tested in {', '.join(untested)}: left out"
    if groups:
        yield from differences([g.runs[0] for g in groups], [g.row["group"] for g in groups], known)


def _cell(key: str, row: Row) -> str:
    return "" if row[key] is None else as_text(row[key])


def _numbers(rows: Iterable[Row], key: str) -> set[float]:
    """The values of a key that has numbers only."""
    values = [row[key] for row in rows if row[key] is not None]
    return set(values) if all(type(value) in (int, float) for value in values) else set()


def _mean_std(row: Row, name: str) -> str:
    mean, std = row[f"{name}_mean"], row[f"{name}_std"]
    if mean is None:
        return ""
    return percent(mean) if std is None else f"{percent(mean)} ± {percent(std)}"


def _rounds(row: Row) -> str:
    """Mean rounds to the target, and how many runs did not reach it."""
    if row["target"] is None:
        return ""
    if not row["reached"]:
        return "not reached"
    late = row["seeds"] - row["reached"]
    return f"{row['rounds_to_target_mean']:.1f}".removesuffix(".0") + (f" ({late} not reached)" if late else "")


# -- the figures -----------------------------------------------------------------------------------------------------

_LINES = 8  # in one panel: the colours there are, and grey
_PANELS = 9


@dataclass(frozen=True)
class _Series:
    """What is drawn as one line."""

    places: Mapping[str, str]  # what sets it apart from the other lines, by label
    groups: tuple[Group, ...]

    @property
    def accuracy(self) -> float:
        return max(g.row["accuracy_mean"] for g in self.groups)


@dataclass(frozen=True)
class _Panel:
    title: str
    lines: tuple[tuple[str, _Series], ...]  # with the text of the legend


def _write(made: SweepTable, groups: Sequence[Group], labels: Mapping[str, str], out: Path) -> Iterator[Path]:
    """Write tables and figures, and name what was written."""
    goals = {g.row["target"] for g in groups}
    goal = goals.pop() if len(goals) == 1 else None
    numeric = [key for key, _ in made.labels if len(_numbers(made.rows, key)) > 1]
    figures = [_draw_rounds(groups, goal, out / "sweep-rounds.png")]
    for key in numeric:
        name = re.sub(r"[^\w.-]", "-", labels[key])
        figures.append(_draw_axis(groups, key, labels[key], goal, out / f"sweep-accuracy-{name}.png"))
    if not _close(min(map(_sent, groups)), max(map(_sent, groups)), 1.02):  # else all would stand at one place
        along = numeric[0] if numeric else None
        figures.append(_draw_bytes(groups, along, labels, goal, out / "sweep-bytes.png"))
    write(out / "sweep.csv", made.csv())
    write(out / "sweep.md", made.markdown() + "".join(f"\n![{f.stem}]({f.name})\n" for f in figures))
    yield from (out / "sweep.csv", out / "sweep.md", *figures)


def _along(groups: Sequence[Group], key: str | None, label: str | None) -> list[_Series]:
    """One series for all groups that differ in one key only, in the order of its values."""
    found: dict[tuple[tuple[str, str], ...], list[Group]] = {}
    for g in groups:
        found.setdefault(tuple((k, v) for k, v in g.places.items() if k != label), []).append(g)
    return [
        _Series(dict(rest), tuple(sorted(gs, key=lambda g: g.values.get(key or "", 0)))) for rest, gs in found.items()
    ]


def _panels(series: Sequence[_Series]) -> list[_Panel]:
    """Lines over as few panels as let each be read; if there are too many even so, the best of them in one."""
    names = list(dict.fromkeys(label for s in series for label in s.places))
    for many in range(max(1, len(names))):
        choices = []
        for apart in combinations(names, many):
            panels: dict[str, list[tuple[str, _Series]]] = {}
            for s in series:
                title = _title({k: v for k, v in s.places.items() if k in apart})
                panels.setdefault(title, []).append((_title({k: v for k, v in s.places.items() if k not in apart}), s))
            if len(panels) <= _PANELS and max(map(len, panels.values())) <= _LINES:
                choices.append([_Panel(title, tuple(lines)) for title, lines in panels.items()])
        if choices:
            return min(choices, key=len)
    best = sorted(series, key=lambda s: -s.accuracy)[:_LINES]
    title = f"the {_LINES} best of {len(series)}"
    return [_Panel(title, tuple((_title(s.places), s) for s in series if s in best))]


def _draw(
    path: Path,
    title: str,
    note: str,
    label: str,
    panels: Sequence[_Panel],
    goal: float | None,
    plot: Callable[[Axes, _Series, dict[str, Any]], Any],
    scale: Callable[[Axes], None],
) -> Path:
    """A figure of one or more panels with the same axes and one legend."""
    wide = 1 if len(panels) == 1 else 2 if len(panels) in (2, 4) else 3
    high = -(-len(panels) // wide)
    order = list(dict.fromkeys(text for panel in panels for text, _ in panel.lines))
    with drawing.figure(path, *((8, 4) if len(panels) == 1 else (11, 0.8 + 2.8 * high))) as figure:
        grid = list(figure.subplots(high, wide, sharex=True, sharey=True, squeeze=False).flat)
        handles: dict[str, Any] = {}
        for ax, panel in zip(grid, panels, strict=False):
            for text, line in panel.lines:
                i = order.index(text)
                look = drawing.look(i, 1) | ({"color": drawing.GREY, "linestyle": "-"} if i == _LINES - 1 else {})
                handle = plot(ax, line, look)
                handles.setdefault(text, handle)
            goals: list[Any] = []
            names: list[str] = []
            drawing.draw_goal(ax, goal, goals, names)
            heading = (
                drawing.shortened(panel.title, 34)
                if len(panels) > 1
                else ", ".join(filter(None, [title, panel.title])) + note
            )
            ax.set_title(heading, parse_math=False)
            ax.set_xlabel(label)
            ax.tick_params(labelleft=True, labelbottom=True)
        for ax in grid[::wide]:
            ax.set_ylabel("accuracy (%)")
        for ax in grid[len(panels) :]:
            ax.set_visible(False)
        if len(panels) > 1:
            figure.suptitle(title + note, x=0.01, ha="left", size=11, weight="bold")
        scale(grid[0])
        drawing.percent_axis(grid[0])
        shown = {text: handle for text, handle in handles.items() if text} | dict(zip(names, goals, strict=True))
        if shown:
            drawing.legend(figure, list(shown.values()), list(shown))
    return path


def _over_seeds(groups: Sequence[Group], how: str) -> str:
    many = any(len(g.runs) > 1 for g in groups)
    return f"; {how}: ± std over seeds" if many else ""


def _draw_rounds(groups: Sequence[Group], goal: float | None, path: Path) -> Path:
    def plot(ax: Axes, series: _Series, look: dict[str, Any]) -> Any:
        x, mean, std = _curve(series.groups[0].runs)
        look["markevery"] = max(1, len(x) // 15)
        if std and len(x) > 1:
            low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
            ax.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
        elif std:
            ax.errorbar(x, mean, std, color=look["color"], capsize=3, linewidth=1)
        return ax.plot(x, mean, **look)[0]

    note = _over_seeds(groups, "band")
    panels = _panels([_Series(g.places, (g,)) for g in groups])
    return _draw(path, "Accuracy by round", note, "round", panels, goal, plot, drawing.round_axis)


def _curve(runs: Sequence[Run]) -> tuple[list[int], list[float], list[float]]:
    """Rounds at which all runs were evaluated, and the mean and deviation of their accuracies there, in percent."""
    each = [{r["round"]: 100 * r[run.point]["accuracy"] for r in evaluated(run, run.point)} for run in runs]
    x = [t for t in each[0] if all(t in other for other in each)]
    at = [[curve[t] for curve in each] for t in x]
    return x, [fmean(values) for values in at], [stdev(values) for values in at] if len(runs) > 1 else []


def _points(groups: Sequence[Group]) -> tuple[list[float], list[float]]:
    """Mean and deviation of the accuracy of each group, in percent; no deviation is drawn as none."""
    return [100 * g.row["accuracy_mean"] for g in groups], [100 * (g.row["accuracy_std"] or 0) for g in groups]


def _draw_axis(groups: Sequence[Group], key: str, label: str, goal: float | None, path: Path) -> Path:
    values = sorted({g.values[key] for g in groups if key in g.values})
    panels = _panels(_along(groups, key, label))
    where = _Beside.of(values)
    steps = _steps(panels, lambda g: g.values.get(key))

    def plot(ax: Axes, series: _Series, look: dict[str, Any]) -> Any:
        mean, std = _points(series.groups)
        if key not in series.groups[0].values:  # a variant without this key: a level to compare with
            ax.axhspan(mean[0] - std[0], mean[0] + std[0], color=look["color"], alpha=0.1, linewidth=0)
            return ax.axhline(mean[0], color=look["color"], linestyle="--", linewidth=1.4)
        return _bars(ax, [where(g.values[key], steps[id(g)]) for g in series.groups], mean, std, look)

    def scale(ax: Axes) -> None:
        if where.log:
            _log(ax)
        at = [math.log(v) if where.log else v for v in values]
        if min(b - a for a, b in pairwise(at)) >= (at[-1] - at[0]) / 12:  # room for its numbers
            ax.set_xticks(values, [f"{v:g}" for v in values])

    note = _over_seeds(groups, "bars")
    name = f"{key}, log scale" if where.log else key
    return _draw(path, f"Accuracy by {label}", note, name, panels, goal, plot, scale)


def _draw_bytes(
    groups: Sequence[Group], key: str | None, labels: Mapping[str, str], goal: float | None, path: Path
) -> Path:
    from matplotlib.patheffects import withStroke

    panels = _panels(_along(groups, key, None if key is None else labels[key]))
    where = _Beside.of([_sent(g) for g in groups])
    steps = _steps(panels, _sent)
    lines = [series.groups for panel in panels for _, series in panel.lines]
    # where the key changes how much is sent, a line leads from value to value
    along = key if any(not _close(min(map(_sent, gs)), max(map(_sent, gs)), 1.1) for gs in lines) else None
    told = along if max(sum(len(s.groups) for _, s in panel.lines) for panel in panels) <= 12 else None

    def plot(ax: Axes, series: _Series, look: dict[str, Any]) -> Any:
        mean, std = _points(series.groups)
        x = [where(_sent(g), steps[id(g)]) for g in series.groups]
        if not along or len(x) == 1:
            look["linestyle"] = "none"
        elif told:
            for g, across, up in zip(series.groups, x, mean, strict=True):
                value = f"{g.values[told]:g}"
                text = ax.annotate(value, (across, up), (4, -9), textcoords="offset points", size=7.5)
                text.set(color=look["color"], path_effects=[withStroke(linewidth=2, foreground="white")])
        return _bars(ax, x, mean, std, look)

    def scale(ax: Axes) -> None:
        if where.log:
            _log(ax)
        else:
            ax.set_xlim(0, 1.06 * where.high)

    numbers = f"; numbers: {labels[told]}" if told else ""
    note = f"{numbers}{_over_seeds(groups, 'bars')}"
    name = f"MB sent, both directions{', log scale' if where.log else ''}"
    return _draw(path, "Accuracy by bytes sent", note, name, panels, goal, plot, scale)


def _sent(g: Group) -> float:
    """MB on the wire, both directions."""
    return float(g.row["wire_bytes_mean"]) / 1e6


def _close(a: float, b: float, factor: float) -> bool:
    return a == b or max(a, b) <= factor * min(a, b)


def _steps(panels: Iterable[_Panel], at: Callable[[Group], float | None]) -> dict[int, float]:
    """By identity, how far a group is drawn beside those of its panel at about the same place, to hide none of them."""
    steps: dict[int, float] = {}
    for panel in panels:
        left = [(g, x) for _, series in panel.lines for g in series.groups if (x := at(g)) is not None]
        while left:
            near = [g for g, x in left if _close(x, left[0][1], 1.02)]
            steps |= {id(g): (i - (len(near) - 1) / 2) * min(1, 12 / len(near)) for i, g in enumerate(near)}
            left = [(g, x) for g, x in left if id(g) not in steps]
    return steps


@dataclass(frozen=True)
class _Beside:
    """Where a value is drawn on an axis that is logarithmic for a wide range, some small steps to the side."""

    low: float
    high: float
    log: bool

    @staticmethod
    def of(values: Sequence[float]) -> _Beside:
        low, high = min(values), max(values)
        return _Beside(low, high, low > 0 and high > 10 * low)

    def __call__(self, value: float, step: float) -> float:
        if self.log:
            return value * (self.high / self.low) ** (0.008 * step)
        return value + 0.008 * step * ((self.high - self.low) or abs(self.high) or 1)


def _bars(ax: Axes, x: Sequence[float], mean: Sequence[float], std: Sequence[float], look: dict[str, Any]) -> Any:
    return ax.errorbar(x, mean, std if any(std) else None, **look | {"capsize": 2.5, "elinewidth": 1})


def _log(ax: Axes) -> None:
    from matplotlib.ticker import LogLocator

    ax.set_xscale("log")
    low, high = ax.get_xlim()
    if high < 1000 * low:
        ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.xaxis.set_minor_formatter("")


__all__ = [
    "MOST",
    "SWEEP",
    "Group",
    "Setting",
    "Sweep",
    "SweepTable",
    "difference",
    "extended",
    "group",
    "moments",
    "plan",
    "table",
]
