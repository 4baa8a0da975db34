"""Runs of a sweep by group: those that differ only in their seed, with means and standard deviations over seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparsona.experiment.results import Run
from sparsona.experiment.sweep import Setting, setting_texts, setting_title, short_labels, swept_keys
from sparsona.experiment.task import ACCURACY, Metric
from sparsona.reports.costs import DeviceModel
from sparsona.reports.run_rows import cost_of, cost_row, other_metrics, run_row
from sparsona.reports.sheet import Row, moments

_COSTS = (
    "wire_bytes",
    "down_bytes",
    "up_bytes",
    "paper_bytes",
    "flops",
    "sparsity",
    "clients_per_round",
    "never_trained",
)
_TO_TARGET = ("rounds_to_target", "bytes_to_target", "flops_to_target")


@dataclass(frozen=True)
class Group:
    """The runs that differ in nothing but their seed."""

    places: Mapping[str, str]  # what sets it apart as it is shown, by label
    values: Mapping[str, Any]  # by key
    runs: tuple[Run, ...]
    row: Row
    main: Metric = ACCURACY  # the headline


def group(
    settings: Mapping[Run, Setting], target: float | None = None, device: DeviceModel | None = None
) -> list[Group]:
    """Finished runs by all that sets them apart but the seed; runs in which no client was ever tested are left out."""
    labels = short_labels(swept_keys(settings.values()))
    seed = seed_key(settings.values())
    members_of: dict[str, tuple[Setting, list[Run]]] = {}
    for run, setting in settings.items():
        if run.tested:
            bare = Setting(setting.variant, {k: v for k, v in setting.values.items() if k != seed})
            members_of.setdefault(json.dumps([bare.variant, bare.values]), (bare, []))[1].append(run)
    groups = []
    for setting, members in members_of.values():
        places = setting_texts(setting, labels)
        row: Row = {"group": setting_title(places) or members[0].recipe.name, "variant": setting.variant}
        row |= {key: setting.values.get(key) for key in labels if key != seed}
        row |= _measures(members, target, device)
        groups.append(Group(places, setting.values, tuple(members), row, members[0].headline))
    return groups


def seed_key(settings: Iterable[Setting]) -> str:
    """The key whose values are averaged over: seed, or data.seed where that is listed instead."""
    keys = swept_keys(settings)
    return "data.seed" if "data.seed" in keys and "seed" not in keys else "seed"


def _measure_names(runs: Sequence[Run]) -> Iterator[str]:
    main = runs[0].headline
    yield main.key
    if main == ACCURACY:
        yield "accuracy_by_sample"
    yield from ("bottom_decile", "spread", *(metric.key for metric in other_metrics(runs)))
    points = ("shared", "unfinished", "finished", "after", "newcomers", "best")
    yield from (f"{point}_{main.key}" for point in points)


def _measures(runs: Sequence[Run], target: float | None, device: DeviceModel | None) -> Row:
    """Means and standard deviations over the runs of a group; None where there are too few runs for one."""
    each = [run_row(run, run.path.name, target) for run in runs]
    costs: Row = {}
    for run, row in zip(runs, each, strict=True):
        row["wire_bytes"] = row["down_bytes"] + row["up_bytes"]
        costs = {} if device is None else cost_row(cost_of(run, device))
        row |= costs
    out: Row = {"seeds": len(runs), "clients": each[0]["clients"]}
    for name in (*_measure_names(runs), *_COSTS, *costs):
        out |= moments(name, [row[name] for row in each if row.get(name) is not None])
    hits = [row for row in each if row["rounds_to_target"] is not None]
    out |= {"target": each[0]["target"], "reached": None if each[0]["target"] is None else len(hits)}
    for name in _TO_TARGET:  # of those that reached it
        out |= moments(name, [row[name] for row in hits if row[name] is not None])
    return out


__all__ = ["Group", "group", "seed_key"]
