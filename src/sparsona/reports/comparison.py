"""The comparison of runs: one row per run, and what keeps them from being compared like with like."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparsona.experiment.recipe import tables
from sparsona.experiment.results import Run, RunError, write
from sparsona.experiment.task import ACCURACY, Metric
from sparsona.reports.comparison_figures import draw_comparison
from sparsona.reports.costs import DeviceModel
from sparsona.reports.participation import unequal
from sparsona.reports.run_rows import (
    POINTS,
    cost_of,
    cost_row,
    flop_notes,
    folder_names,
    headline_of,
    other_metrics,
    run_row,
    undefined_notes,
)
from sparsona.reports.sheet import (
    UNKNOWN,
    Column,
    Row,
    Sheet,
    amount,
    counted,
    flop_unit,
    percent,
    scaled_amount,
    target_columns,
)

_COSTS = (
    Column("s/round", lambda r: scaled_amount(r["cost_seconds"], 1)),
    Column("J/round", lambda r: scaled_amount(r["cost_joules"], 1)),
)
_SOME = {  # shown where some run has them
    "sparsity": Column("final sparsity %", lambda r: "" if r["sparsity"] is None else percent(r["sparsity"])),
    "round_length": Column("round length", lambda r: "" if r["round_length"] is None else amount(r["round_length"])),
}
_BESIDES = {  # points of evaluation, and what their columns are called
    "shared": "shared model",
    "unfinished": "before fine-tuning",
    "finished": "fine-tuned",
    "after": "after training",
    "newcomers": "newcomers",
}


def _frozen(row: Row) -> bool:
    """Whether a run skipped gradients: otherwise a backward pass costs exactly two forward passes."""
    return row["backward_flops"] is not None and row["backward_flops"] != 2 * row["forward_flops"]


@dataclass(frozen=True)
class Comparison(Sheet):
    """Runs side by side: one row per run in raw numbers, and what keeps them from being compared like with like."""

    costs: bool = False  # whether time and energy are shown
    main: Metric = ACCURACY  # the headline
    metrics: tuple[Metric, ...] = ()  # what else is shown beside it

    def parts(self) -> tuple[list[Column], ...]:
        """What is shown of a run: its name, its results, its costs."""
        scale, unit = flop_unit(*(row["flops"] for row in self.rows))
        main, unit_of = self.main, self.main.unit
        results = [
            Column("method", lambda r: str(r["method"]), words=True),
            *takes_part(self.rows),
            _column(main.heading, main.key, main),
            *([_column("pooled %", "accuracy_by_sample", main)] if main == ACCURACY else []),
            _column(f"bottom decile{unit_of}", "bottom_decile", main),
            _column(f"spread{unit_of}", "spread", main),
            *(_column(metric.heading, metric.key, metric) for metric in self.metrics),
        ]
        results += [_column(heading, key, main) for key, heading in besides(self.rows, main=main)]
        results.append(Column("best round", lambda r: str(r["best_round"])))
        goal, costs = target_columns(self.rows, main)
        if goal:
            costs += [
                Column(f"rounds to {goal}", lambda r: _to_target(r, "rounds_to_target", str)),
                Column(f"MB to {goal}", lambda r: _to_target(r, "bytes_to_target", lambda v: amount(v / 1e6))),
                Column(f"{unit} to {goal}", lambda r: _flops_to_target(r, scale)),
            ]
        costs += [
            Column("MB down", lambda r: amount(r["down_bytes"] / 1e6)),
            Column("MB up", lambda r: amount(r["up_bytes"] / 1e6)),
            Column("MB (paper)", lambda r: amount(r["paper_bytes"] / 1e6)),
            Column("busiest node (MB/round)", lambda r: amount(r["busiest_bytes"] / 1e6)),
            Column(unit, lambda r: scaled_amount(r["flops"], scale)),
            *(_directions(scale, unit) if any(map(_frozen, self.rows)) else ()),
            *(column for key, column in _SOME.items() if any(row[key] is not None for row in self.rows)),
            *(_COSTS if self.costs else ()),
        ]
        return [Column("run", lambda r: str(r["name"]), words=True)], results, costs


def compare(
    runs: Sequence[Run], out: Path | None = None, *, target: float | None = None, device: DeviceModel | None = None
) -> Comparison:
    """Finished runs side by side, with tables and figures in the folder ``out`` if one is given.

    The cost to reach a mean accuracy (or value of another headline) is shown for ``target``, by default for the target
    of each run's recipe. Time and energy of a round are columns if ``device`` is given. Otherwise they are only in the
    rows and in a figure, for the device of the DA-DPFL paper.
    """
    names = folder_names([run.path for run in runs])
    main, metrics = headline_of(runs, names), other_metrics(runs)
    main.check_target("target", target)
    with_costs, device = device is not None, device or DeviceModel()
    costs = [cost_of(run, device) for run in runs]
    rows = tuple(
        run_row(run, name, target) | cost_row(cost) for run, name, cost in zip(runs, names, costs, strict=True)
    )
    rows = tuple({key: row.get(key) for key in dict.fromkeys(k for each in rows for k in each)} for row in rows)
    terms = unequal([[run] for run in runs], names)
    notes = (*differences(runs, names), *terms, *undefined_notes(runs, names), *flop_notes(runs, names))
    table = Comparison(rows, notes, costs=with_costs, main=main, metrics=metrics)
    if out is None:
        return table
    try:
        out.mkdir(parents=True, exist_ok=True)
        figures = draw_comparison(runs, names, rows, costs, device, out)
        write(out / "compare.csv", table.csv())
        write(out / "compare.md", table.markdown() + "".join(f"\n![{f.stem}]({f.name})\n" for f in figures))
        write(out / "compare.tex", table.latex())
        write(out / "clients.csv", Sheet(tuple(_client_rows(runs, names, (main, *metrics)))).csv())
        texts = [out / name for name in ("compare.csv", "compare.md", "compare.tex", "clients.csv")]
        return replace(table, files=(*texts, *figures))
    except OSError as error:
        raise RunError(f"cannot write the comparison into {out}: {error.strerror}") from error


def _client_rows(runs: Sequence[Run], names: Sequence[str], metrics: Sequence[Metric]) -> Iterator[Row]:
    """Every client of every run with all of its metrics at its last evaluation."""
    named = any(run.client_names for run in runs)
    for run, name in zip(runs, names, strict=True):
        scores = {metric.key: run.client_scores(metric) for metric in metrics}
        for k in sorted(set[int]().union(*scores.values())):
            client = {"name": run.client_names[k] if run.client_names else None} if named else {}
            yield {"run": name, "client": k, **client} | {key: of_run.get(k) for key, of_run in scores.items()}


def besides(rows: Sequence[Row], suffix: str = "", main: Metric = ACCURACY) -> list[tuple[str, str]]:
    """Key and heading of values of the headline that some run has besides its own.

    The last shared model is left out where all runs fine-tune: they tune the shared model of the best round, which has
    a separate column.
    """
    headings = {f"{point}_{main.key}": f"{name}{main.unit}" for point, name in _BESIDES.items()}
    shared_key, untuned_key = list(headings)[:2]
    some = {key: [row[key + suffix] is not None for row in rows] for key in headings}
    if all(tuned or not shared for tuned, shared in zip(some[untuned_key], some[shared_key], strict=True)):
        del headings[shared_key]
    return [(key, heading) for key, heading in headings.items() if any(some[key])]


def takes_part(rows: Sequence[Row], suffix: str = "") -> list[Column]:
    """How many clients train in a round, where not all do or runs differ, and how many never did, if any."""
    per_round, never = f"clients_per_round{suffix}", f"never_trained{suffix}"
    columns = []
    if any(row[per_round] < row["clients"] for row in rows) or len({row[per_round] for row in rows}) > 1:
        columns.append(Column("clients/round", lambda r: counted(r[per_round])))
    if any(row[never] for row in rows):
        columns.append(Column("never trained", lambda r: counted(r[never])))
    return columns


def _column(heading: str, key: str, metric: Metric) -> Column:
    return Column(heading, lambda r: "" if r[key] is None else metric.cell(r[key]))


def _directions(scale: float, unit: str) -> Iterator[Column]:
    def operations(key: str) -> Callable[[Row], str]:
        return lambda r: "" if r[key] is None else amount(r[key] / scale)

    yield Column(f"{unit} forward", operations("forward_flops"))
    yield Column(f"{unit} backward", operations("backward_flops"))
    yield Column("values sent per client", lambda r: "" if r["values_up"] is None else f"{r['values_up']:,.0f}")


def _to_target(row: Row, key: str, show: Callable[[Any], str]) -> str:
    if row["target"] is None:
        return ""
    return "not reached" if row[key] is None else show(row[key])


def _flops_to_target(row: Row, scale: float) -> str:
    known = row["flops"] is not None or row["rounds_to_target"] is None
    return _to_target(row, "flops_to_target", lambda v: amount(v / scale)) if known else UNKNOWN


def differences(runs: Sequence[Run], names: Sequence[str], known: Collection[str] = ()) -> Iterator[str]:
    """Where runs were not tested alike, but for keys that are known to differ: data or seed, rounds, when tested."""
    first = _data(runs[0])
    others: dict[str, list[str]] = {}
    for run, name in zip(runs[1:], names[1:], strict=True):
        data = _data(run)
        key = next((k for k in {**first, **data} if k not in known and first.get(k) != data.get(k)), None)
        if key is not None:
            others.setdefault(key, []).append(f"{_value(data.get(key))} in {name}")
    for key, values in others.items():
        yield f"the runs differ in data: {key} is {_value(first.get(key))} in {names[0]}, but {', '.join(values)}"
    if "rounds" not in known and len({run.summary["rounds"] for run in runs}) > 1:
        counts = [f"{run.summary['rounds']} in {name}" for run, name in zip(runs, names, strict=True)]
        yield f"the runs differ in rounds: {', '.join(counts)}"
    if len({run.recipe.evaluate.samples for run in runs}) > 1:
        each = [f"{run.recipe.evaluate.samples} in {name}" for run, name in zip(runs, names, strict=True)]
        yield f"the runs differ in the samples that scores are measured on: {', '.join(each)}"
    for point, words in POINTS.items():
        odd = [name for run, name in zip(runs, names, strict=True) if run.point == point != runs[0].point]
        if odd:
            yield f"{runs[0].headline.title} is {POINTS[runs[0].point]} in {names[0]}, but {words} in {', '.join(odd)}"


def _data(run: Run) -> dict[str, Any]:
    """What decides a run's data, by key as the recipe spells it."""
    raw = tables(run.recipe)
    return {f"data.{key}": value for key, value in raw["data"].items()} | {"seed": raw["seed"]}


def _value(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


__all__ = ["Comparison", "besides", "compare", "differences", "takes_part"]
