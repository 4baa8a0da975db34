"""The table of a sweep: one row per group of runs that differ only in their seed, with mean ± std over seeds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sparsona.experiment.results import Run, RunError, write
from sparsona.experiment.sweep import Setting, short_labels, swept_keys
from sparsona.experiment.task import ACCURACY, Metric
from sparsona.reports.comparison import besides, differences, takes_part
from sparsona.reports.costs import DeviceModel
from sparsona.reports.participation import unequal
from sparsona.reports.run_rows import flop_notes, headline_of, other_metrics, undefined_notes
from sparsona.reports.sheet import Column, Row, Sheet, amount, as_text, flop_unit, scaled_amount, target_columns
from sparsona.reports.sweep_figures import draw_sweep
from sparsona.reports.sweep_groups import Group, group, seed_key


@dataclass(frozen=True)
class SweepTable(Sheet):
    """One row per group of runs: means and standard deviations over seeds, in raw numbers."""

    labels: tuple[tuple[str, str], ...] = ()  # the keys of rows that set groups apart, and what they are called
    main: Metric = ACCURACY  # the headline
    metrics: tuple[Metric, ...] = ()  # what else is shown beside it

    def parts(self) -> tuple[list[Column], ...]:
        """What is shown of a row: what sets it apart, its results, its costs."""
        scale, unit = flop_unit(*(row["flops_mean"] for row in self.rows))
        main = self.main
        who = [Column(label, partial(_cell, key), words=not _numbers(self.rows, key)) for key, label in self.labels]
        results = [
            Column("seeds", lambda r: str(r["seeds"])),
            *takes_part(self.rows, "_mean"),
            _column(main.heading, main.key, main),
            _column(f"bottom decile{main.unit}", "bottom_decile", main),
            _column(f"best{main.unit}", f"best_{main.key}", main),
            *(_column(metric.heading, metric.key, metric) for metric in self.metrics),
        ]
        results += [_column(title, key, main) for key, title in besides(self.rows, "_mean", main)]
        goal, targets = target_columns(self.rows, main)
        results += targets
        if goal:
            results.append(Column(f"rounds to {goal}", _rounds))
        costs = [
            Column("MB (wire)", lambda r: amount(r["wire_bytes_mean"] / 1e6)),
            Column("MB (paper)", lambda r: amount(r["paper_bytes_mean"] / 1e6)),
            Column(unit, lambda r: scaled_amount(r["flops_mean"], scale)),
        ]
        if any(row["sparsity_mean"] is not None for row in self.rows):
            costs.append(_column("final sparsity %", "sparsity", ACCURACY))
        return who or [Column("run", lambda r: str(r["group"]), words=True)], results, costs


def compare_sweep(
    settings: Mapping[Run, Setting],
    out: Path | None = None,
    target: float | None = None,
    device: DeviceModel | None = None,
) -> SweepTable:
    """Finished runs as one row per group, with tables and figures in the folder ``out`` if one is given.

    The cost to reach a mean accuracy (or value of another headline) is shown for ``target``, by default for the target
    of each run's recipe; time and energy of a round for ``device``, if one is given.
    """
    runs = list(settings)
    main = headline_of(runs, [run.path.name for run in runs]) if runs else ACCURACY
    main.check_target("target", target)
    groups = group(settings, target, device)
    labels = short_labels(swept_keys(settings.values()))
    columns = [("variant", "variant")] if any(s.variant is not None for s in settings.values()) else []
    columns += [(key, label) for key, label in labels.items() if key != seed_key(settings.values())]
    names = dict.fromkeys(key for g in groups for key in g.row)
    rows = tuple({key: g.row.get(key) for key in names} for g in groups)
    notes = tuple(_notes(settings, groups, labels, main))
    table = SweepTable(rows, notes, (), tuple(columns), main, other_metrics(runs))
    if out is None or not groups:
        return table
    try:
        out.mkdir(parents=True, exist_ok=True)
        figures = draw_sweep(groups, [key for key, _ in columns if len(_numbers(table.rows, key)) > 1], labels, out)
        write(out / "sweep.csv", table.csv())
        write(out / "sweep.md", table.markdown() + "".join(f"\n![{f.stem}]({f.name})\n" for f in figures))
        write(out / "sweep.tex", table.latex())
        return replace(table, files=(out / "sweep.csv", out / "sweep.md", out / "sweep.tex", *figures))
    except OSError as error:
        raise RunError(f"cannot write the tables of the sweep into {out}: {error.strerror}") from error


def _notes(
    settings: Mapping[Run, Setting], groups: Sequence[Group], known: Collection[str], main: Metric
) -> Iterator[str]:
    several = [g for g in groups if g.row[f"{main.key}_std"] is not None]
    if several:
        yield f"± is the standard deviation over seeds{variance(settings, [run for g in several for run in g.runs])}"
    untested: dict[str, list[str]] = {}
    for run in settings:
        if not run.tested:
            untested.setdefault(run.why_untested, []).append(run.path.name)
    for why, left in untested.items():
        yield f"left out: {', '.join(left)} ({why})"
    if groups:
        first, names = [g.runs[0] for g in groups], [g.row["group"] for g in groups]
        yield from differences(first, names, known)
        yield from unequal([g.runs for g in groups], names)
        yield from undefined_notes(first, names)
        yield from flop_notes(first, names)


def variance(settings: Mapping[Run, Setting], runs: Iterable[Run]) -> str:
    """What differs between the seeds of runs: training and partition, or one of them."""
    if seed_key(settings.values()) == "data.seed":
        return " of the partition, with one seed of training"
    fixed = {run.recipe.data.seed is not None or run.recipe.data.partition == "file" for run in runs}
    if fixed == {True}:
        return " of training, with one partition"
    return " of training and partition" if fixed == {False} else ""


def _cell(key: str, row: Row) -> str:
    return "" if row[key] is None else as_text(row[key])


def _numbers(rows: Iterable[Row], key: str) -> set[float]:
    """The values of a key that has numbers only."""
    values = [row[key] for row in rows if row[key] is not None]
    return set(values) if all(type(value) in (int, float) for value in values) else set()


def _column(title: str, name: str, metric: Metric) -> Column:
    """Mean and standard deviation over seeds."""

    def show(row: Row) -> str:
        mean, std = row[f"{name}_mean"], row[f"{name}_std"]
        if mean is None:
            return ""
        return metric.cell(mean) if std is None else f"{metric.cell(mean)} ± {metric.cell(std)}"

    return Column(title, show)


def _rounds(row: Row) -> str:
    """Mean rounds to the target, and how many runs did not reach it."""
    if row["target"] is None:
        return ""
    if not row["reached"]:
        return "not reached"
    late = row["seeds"] - row["reached"]
    return f"{row['rounds_to_target_mean']:.1f}".removesuffix(".0") + (f" ({late} not reached)" if late else "")


__all__ = ["SweepTable", "compare_sweep", "variance"]
