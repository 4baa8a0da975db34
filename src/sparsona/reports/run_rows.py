"""What a finished run reached and what it cost, as one row of raw numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from sparsona.experiment.recipe import tables
from sparsona.experiment.results import Run, RunError
from sparsona.experiment.task import ACCURACY, Metric, metric_of
from sparsona.reports import participation
from sparsona.reports.costs import DeviceModel, TimeEnergy, busiest, per_round
from sparsona.reports.sheet import Row

_T = TypeVar("_T")

POINTS = {
    "before": "before local training",
    "after": "after local training",
    "shared": "of the shared model",
    "finished": "of the fine-tuned models",
    "unfinished": "of the shared model before fine-tuning",
}


def run_row(run: Run, name: str, target: float | None) -> Row:
    """What a finished run reached and what it cost, in raw numbers."""
    summary = run.summary
    total, score, main = summary["total"], summary[summary["point"]], run.headline

    def tested(point: str) -> float | None:
        return (summary.get(point) or {}).get(main.key)

    rounds = run.rounds
    lengths = [row["clock"]["length"] for row in rounds if "clock" in row]
    sent = sum(len(row["participants"]) for row in rounds)
    target = run.recipe.evaluate.target if target is None else target
    hit = None
    if target is not None:
        hit = next((r for r in evaluated(run, run.point) if main.reached(r[run.point][main.key], target)), None)
    return {
        "name": name,
        "method": tables(run.recipe)["method"]["name"],
        "rounds": summary["rounds"],
        **participation.counts(run),
        main.key: score[main.key],
        **({"accuracy_by_sample": score["accuracy_by_sample"]} if main == ACCURACY else {}),
        "bottom_decile": score["bottom_decile"],
        "spread": score["spread"],
        **{metric.key: score.get(metric.key) for metric in other_metrics([run])},
        f"shared_{main.key}": tested("shared"),
        f"unfinished_{main.key}": tested("unfinished"),
        f"finished_{main.key}": None if run.point == "finished" else tested("finished"),
        f"after_{main.key}": None if run.point == "after" else tested("after"),
        f"newcomers_{main.key}": tested("newcomers"),
        "best_round": summary["best"]["round"],
        f"best_{main.key}": summary["best"][main.key],
        "target": target,
        "rounds_to_target": None if hit is None else hit["round"],
        "bytes_to_target": None if hit is None else sent_bytes(hit["total"]),
        "flops_to_target": None if hit is None else hit["total"]["flops"],
        "down_bytes": total["down"],
        "up_bytes": total["up"],
        "paper_bytes": total["paper_down"] + total["paper_up"],
        "busiest_bytes": _from_records(run, lambda: busiest(rounds, run.rows("clients"))),  # of a round, on average
        "flops": total["flops"],
        "forward_flops": total.get("forward"),  # of older runs not known
        "backward_flops": None if total.get("forward") is None else total["flops"] - total["forward"],
        "values_up": total["paper_up"] / 4 / sent if sent else None,  # that a client sends in a round
        "sparsity": (rounds[-1].get("notes") or {}).get("sparsity"),
        "round_length": fmean(lengths) if lengths else None,  # in training times, with all waiting
    }


def headline_of(runs: Sequence[Run], names: Sequence[str]) -> Metric:
    """The headline metric that all runs have in common; RunError if there are several."""
    main = runs[0].headline
    for run, name in zip(runs, names, strict=True):
        if run.headline != main:
            what = f"{names[0]} has {main.key}, and {name} {run.headline.key}"
            raise RunError(f"task.headline differs: {what}; compare runs with the same headline metric")
    return main


def other_metrics(runs: Sequence[Run]) -> tuple[Metric, ...]:
    """The metrics that some run has besides its headline."""
    metrics: dict[Metric, None] = {}
    for run in runs:
        named = map(metric_of, run.recipe.task.metrics)
        metrics |= dict.fromkeys(metric for metric in named if metric != run.headline)
    return tuple(metrics)


def undefined_notes(runs: Sequence[Run], names: Sequence[str]) -> Iterator[str]:
    """For how many clients of each run a metric is not defined, at the last evaluation."""
    for run, name in zip(runs, names, strict=True):
        score = run.summary[run.point]
        for metric in run.recipe.task.measured:
            if count := (score.get("undefined") or {}).get(metric.key):
                yield f"{metric.title} is undefined for {count} of {score['clients']} clients in {name}; left out"


def flop_notes(runs: Sequence[Run], names: Sequence[str]) -> Iterator[str]:
    """What the operations of runs do not include, and whose are not known."""
    missing: dict[str, list[str]] = {}
    for run, name in zip(runs, names, strict=True):
        if run.not_in_flops:
            missing.setdefault(some_of(run.not_in_flops), []).append(name)
    for what, whose in missing.items():
        of = "" if len(whose) == len(runs) else f" of {', '.join(whose)}"
        yield f"FLOPs{of}: without {what}"
    if unknown := [name for run, name in zip(runs, names, strict=True) if run.summary["total"]["flops"] is None]:
        why = "the method does not report them with ctx.task.charge(forward, backward)"
        yield f"FLOPs of {', '.join(unknown)} are unknown: {why}"


def some_of(names: Sequence[str], most: int = 3) -> str:
    """The first names of a list, and how many others there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def cost_of(run: Run, device: DeviceModel) -> TimeEnergy | None:
    """What a round of a run costs on a device, on average; None if it is not known what was computed."""
    return _from_records(run, lambda: per_round(run.rounds, run.rows("clients"), device))


def _from_records(run: Run, compute: Callable[[], _T]) -> _T:
    """A value computed from the records of a run; raises RunError if they are damaged."""
    try:
        return compute()
    except RunError:
        raise
    except ValueError as error:
        raise RunError(f"{run.path} is damaged: {error}") from error


def cost_row(cost: TimeEnergy | None) -> Row:
    """Time and energy of a round, on average."""
    return {"cost_seconds": cost and cost.seconds, "cost_joules": cost and cost.joules}


def evaluated(run: Run, point: str) -> list[Row]:
    """The rounds at which a run was tested."""
    return [r for r in run.rounds if r.get(point)]


def sent_bytes(total: Mapping[str, int]) -> int:
    """Bytes on the wire, both directions."""
    return total["down"] + total["up"]


def folder_names(paths: Sequence[Path]) -> list[str]:
    """The names of folders, each with as many parents as make the names distinct."""
    if not paths:
        raise ValueError("runs: [] is not allowed; expected at least one run")
    whole = [path.resolve() for path in paths]
    for i, path in enumerate(whole):
        if path in whole[:i]:
            raise ValueError(f"runs: {paths[i]} is given twice; expected each run once")
    parts = [path.parts[1:] for path in whole]
    depth = 1
    while len({p[-depth:] for p in parts}) < len(parts):
        depth += 1
    shared = {p[-1] for p in parts if sum(q[-1] == p[-1] for q in parts) > 1}
    return ["/".join(p[-depth:]) if p[-1] in shared else p[-1] for p in parts]


__all__ = [
    "POINTS",
    "cost_of",
    "cost_row",
    "evaluated",
    "flop_notes",
    "folder_names",
    "headline_of",
    "other_metrics",
    "run_row",
    "sent_bytes",
    "some_of",
    "undefined_notes",
]
