"""Runs as tables and figures: what each run reached, what it cost, and who gained from it.

matplotlib and rich are imported where they are used: worker processes come past this module and need neither.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, TypeVar

from sparsona import attendance, drawing, gates
from sparsona.config import tables
from sparsona.costs import Cost, Device, busiest, per_round
from sparsona.results import Run, RunError, write
from sparsona.sheet import Column, Row, Sheet, amount, flop_unit, percent, target_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sparsona.simulate import Estimate, Waiting

_T = TypeVar("_T")

POINTS = {
    "before": "before local training",
    "after": "after local training",
    "shared": "of the shared model",
    "finished": "of the models tuned at the end",
    "unfinished": "of the model that is tuned at the end, before",
}


# -- the table -------------------------------------------------------------------------------------------------------


_COSTS = (
    Column("s a round", lambda r: amount(r["cost_seconds"])),
    Column("J a round", lambda r: amount(r["cost_joules"])),
)
_SOME = {  # shown where some run has them
    "sparsity": Column("final sparsity %", lambda r: "" if r["sparsity"] is None else percent(r["sparsity"])),
    "round_length": Column("round length", lambda r: "" if r["round_length"] is None else amount(r["round_length"])),
}


def _frozen(row: Row) -> bool:
    """Whether a run spared gradients: else going backward costs twice as much as forward, which tells nothing new."""
    return row["backward_flops"] is not None and row["backward_flops"] != 2 * row["forward_flops"]


@dataclass(frozen=True)
class Comparison(Sheet):
    """Runs side by side: one row per run in raw numbers, and what keeps them from being compared like with like."""

    costs: bool = False  # whether time and energy are shown

    def parts(self) -> tuple[list[Column], ...]:
        """What is shown of a run: its name, its results, its costs."""
        scale, unit = flop_unit(max(row["flops"] for row in self.rows))
        results = [
            Column("method", lambda r: str(r["method"]), words=True),
            Column("accuracy %", lambda r: percent(r["accuracy"])),
            Column("by sample %", lambda r: percent(r["accuracy_by_sample"])),
            Column("bottom decile %", lambda r: percent(r["bottom_decile"])),
            Column("spread %", lambda r: percent(r["spread"])),
        ]
        results += [_beside(*each) for each in besides(self.rows)]
        results.append(Column("best round", lambda r: str(r["best_round"])))
        goal, costs = target_columns(self.rows)
        if goal:
            costs += [
                Column(f"rounds to {goal}", lambda r: _to_target(r, "rounds_to_target", str)),
                Column(f"MB to {goal}", lambda r: _to_target(r, "bytes_to_target", lambda v: amount(v / 1e6))),
                Column(f"{unit} to {goal}", lambda r: _to_target(r, "flops_to_target", lambda v: amount(v / scale))),
            ]
        costs += [
            Column("MB down", lambda r: amount(r["down_bytes"] / 1e6)),
            Column("MB up", lambda r: amount(r["up_bytes"] / 1e6)),
            Column("MB paper", lambda r: amount(r["paper_bytes"] / 1e6)),
            Column("MB a round, busiest", lambda r: amount(r["busiest_bytes"] / 1e6)),
            Column(unit, lambda r: amount(r["flops"] / scale)),
            *(_directions(scale, unit) if any(map(_frozen, self.rows)) else ()),
            *(column for key, column in _SOME.items() if any(row[key] is not None for row in self.rows)),
            *(_COSTS if self.costs else ()),
        ]
        return [Column("run", lambda r: str(r["name"]), words=True)], results, costs


def besides(rows: Sequence[Row], suffix: str = "") -> list[tuple[str, str]]:
    """Key and heading of accuracies that some run has besides its own; the last shared model is told if none is tuned.

    What was tuned was the shared model of the best round, which is the one to be held against it.
    """
    told = {
        "shared_accuracy": "shared %",
        "unfinished_accuracy": "untuned %",
        "finished_accuracy": "tuned %",
        "after_accuracy": "after %",
        "newcomers_accuracy": "newcomers %",
    }
    some = {key: [row[key + suffix] is not None for row in rows] for key in told}
    if all(
        tuned or not shared for tuned, shared in zip(some["unfinished_accuracy"], some["shared_accuracy"], strict=True)
    ):
        del told["shared_accuracy"]
    return [(key, heading) for key, heading in told.items() if any(some[key])]


def _beside(key: str, heading: str) -> Column:
    return Column(heading, lambda r: "" if r[key] is None else percent(r[key]))


def _directions(scale: float, unit: str) -> Iterator[Column]:
    def operations(key: str) -> Callable[[Row], str]:
        return lambda r: "" if r[key] is None else amount(r[key] / scale)

    yield Column(f"{unit} forward", operations("forward_flops"))
    yield Column(f"{unit} backward", operations("backward_flops"))
    yield Column("values up", lambda r: "" if r["values_up"] is None else f"{r['values_up']:,.0f}")


def compare(
    runs: Sequence[Run], out: Path | None = None, *, target: float | None = None, device: Device | None = None
) -> Comparison:
    """Finished runs side by side, with tables and figures in the folder ``out`` if one is given.

    The cost to reach a mean accuracy is told for ``target``, or without it for the target of each run's own recipe;
    time and energy of a round are shown for ``device``; without one they are in the rows and in a figure alone, for the
    device that DA-DPFL reckons with.
    """
    if target is not None and not 0 < target <= 1:
        raise ValueError(f"target = {target!r}: must be more than 0 and at most 1")
    names = folder_names([run.path for run in runs])
    asked, device = device is not None, device or Device()
    costs = [cost_of(run, device) for run in runs]
    rows = tuple(
        run_row(run, name, target) | cost_row(cost) for run, name, cost in zip(runs, names, costs, strict=True)
    )
    table = Comparison(rows, tuple(differences(runs, names)), costs=asked)
    if out is None:
        return table
    try:
        out.mkdir(parents=True, exist_ok=True)
        return replace(table, files=tuple(_write(table, runs, names, costs, device, out)))
    except OSError as error:
        raise RunError(f"cannot write the comparison into {out}: {error.strerror}") from error


def gains(runs: Sequence[Run]) -> list[Row]:
    """For each run but the first: how many clients do better, worse or the same than in the first, and the extra MB."""
    return _gains(runs, folder_names([run.path for run in runs]), [run.client_accuracy() for run in runs])


def _gains(runs: Sequence[Run], names: Sequence[str], each: Sequence[Mapping[int, float]]) -> list[Row]:
    rows = []
    for run, name, clients in zip(runs[1:], names[1:], each[1:], strict=True):
        change = _changes(each[0], clients)
        rows.append(
            {
                "name": name,
                "baseline": names[0],
                "clients": len(change),  # tested in both runs
                "gained": sum(c > 0 for c in change),
                "lost": sum(c < 0 for c in change),
                "equal": sum(c == 0 for c in change),
                "mean_gain": sum(change) / len(change) if change else None,  # points
                "mb": _sent(run.summary["total"]) / 1e6,
                "extra_mb": (_sent(run.summary["total"]) - _sent(runs[0].summary["total"])) / 1e6,
            }
        )
    return rows


def run_row(run: Run, name: str, target: float | None) -> Row:
    """What a finished run reached and what it cost, in raw numbers."""
    summary = run.summary
    total, score = summary["total"], summary[summary["point"]]

    def tested(point: str) -> float | None:
        return (summary.get(point) or {}).get("accuracy")

    rounds = run.rounds
    lengths = [row["clock"]["length"] for row in rounds if "clock" in row]
    sent = sum(len(row["participants"]) for row in rounds)
    target = run.recipe.evaluate.target if target is None else target
    hit = None
    if target is not None:
        hit = next((r for r in evaluated(run, run.point) if r[run.point]["accuracy"] >= target), None)
    return {
        "name": name,
        "method": tables(run.recipe)["method"]["name"],
        "rounds": summary["rounds"],
        "accuracy": score["accuracy"],
        "accuracy_by_sample": score["accuracy_by_sample"],
        "bottom_decile": score["bottom_decile"],
        "spread": score["spread"],
        "shared_accuracy": tested("shared"),
        "unfinished_accuracy": tested("unfinished"),
        "finished_accuracy": None if run.point == "finished" else tested("finished"),
        "after_accuracy": None if run.point == "after" else tested("after"),
        "newcomers_accuracy": tested("newcomers"),
        "best_round": summary["best"]["round"],
        "best_accuracy": summary["best"]["accuracy"],
        "target": target,
        "rounds_to_target": None if hit is None else hit["round"],
        "bytes_to_target": None if hit is None else _sent(hit["total"]),
        "flops_to_target": None if hit is None else hit["total"]["flops"],
        "down_bytes": total["down"],
        "up_bytes": total["up"],
        "paper_bytes": total["paper_down"] + total["paper_up"],
        "busiest_bytes": _reckoned(run, lambda: busiest(rounds, run.rows("clients"))),  # of a round, on average
        "flops": total["flops"],
        "forward_flops": total.get("forward"),  # of older runs not known
        "backward_flops": total["flops"] - total["forward"] if "forward" in total else None,
        "values_up": total["paper_up"] / 4 / sent if sent else None,  # that a client sends in a round
        "sparsity": (rounds[-1].get("notes") or {}).get("sparsity"),
        "round_length": fmean(lengths) if lengths else None,  # in training times, with all waiting
    }


def cost_of(run: Run, device: Device) -> Cost:
    """What a round of a run costs on a device, on average."""
    return _reckoned(run, lambda: per_round(run.rounds, run.rows("clients"), device))


def _reckoned(run: Run, reckon: Callable[[], _T]) -> _T:
    """What comes of a run's records, if they are whole."""
    try:
        return reckon()
    except RunError:
        raise
    except ValueError as error:
        raise RunError(f"{run.path} is damaged: {error}") from error


def cost_row(cost: Cost) -> Row:
    """Time and energy of a round, on average."""
    return {"cost_seconds": cost.seconds, "cost_joules": cost.joules}


def folder_names(paths: Sequence[Path]) -> list[str]:
    """The names of folders, with as many folders above as it takes to tell them apart."""
    if not paths:
        raise ValueError("runs = []: must be at least one run")
    whole = [path.resolve() for path in paths]
    for i, path in enumerate(whole):
        if path in whole[:i]:
            raise ValueError(f"runs: {paths[i]} is given twice; a run is compared with others")
    parts = [path.parts[1:] for path in whole]
    depth = 1
    while len({p[-depth:] for p in parts}) < len(parts):
        depth += 1
    shared = {p[-1] for p in parts if sum(q[-1] == p[-1] for q in parts) > 1}
    return ["/".join(p[-depth:]) if p[-1] in shared else p[-1] for p in parts]


def differences(runs: Sequence[Run], names: Sequence[str], known: Collection[str] = ()) -> Iterator[str]:
    """Where runs were not tested alike, but for keys that are known to differ: data or seed, rounds, when tested."""
    first = _data(runs[0])
    others: dict[str, list[str]] = {}
    for run, name in zip(runs[1:], names[1:], strict=True):
        data = _data(run)
        key = next((k for k in {**first, **data} if k not in known and first.get(k) != data.get(k)), None)
        if key is not None:
            others.setdefault(key, []).append(f"{_value(data.get(key))} in {name}")
    for key, told in others.items():
        yield f"the runs differ in data: {key} is {_value(first.get(key))} in {names[0]}, but {', '.join(told)}"
    if "rounds" not in known and len({run.summary["rounds"] for run in runs}) > 1:
        told = [f"{run.summary['rounds']} in {name}" for run, name in zip(runs, names, strict=True)]
        yield f"the runs differ in rounds: {', '.join(told)}"
    for point, words in POINTS.items():
        odd = [name for run, name in zip(runs, names, strict=True) if run.point == point != runs[0].point]
        if odd:
            yield f"accuracy is {POINTS[runs[0].point]} in {names[0]}, but {words} in {', '.join(odd)}"


def _data(run: Run) -> dict[str, Any]:
    """What decides a run's data, by key as the recipe spells it."""
    raw = tables(run.recipe)
    return {f"data.{key}": value for key, value in raw["data"].items()} | {"seed": raw["seed"]}


def _value(value: Any) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)


def evaluated(run: Run, point: str) -> list[Row]:
    """The rounds at which a run was tested."""
    return [r for r in run.rounds if r.get(point)]


def _sent(total: Mapping[str, int]) -> int:
    """Bytes on the wire, both directions."""
    return total["down"] + total["up"]


def _changes(base: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """Points of accuracy that each client tested in both runs gained, smallest first."""
    return [gain for gain, _ in _ranked(base, other)]


def _ranked(base: Mapping[int, float], other: Mapping[int, float]) -> list[tuple[float, int]]:
    """The gains with their clients, smallest first."""
    return sorted((100 * (other[k] - base[k]), k) for k in base.keys() & other.keys())


def _to_target(row: Row, key: str, show: Callable[[Any], str]) -> str:
    if row["target"] is None:
        return ""
    return "not reached" if row[key] is None else show(row[key])


# -- the figures -----------------------------------------------------------------------------------------------------


def run_figures(run: Run) -> list[Path]:
    """Draw a run's accuracy by round and by client, and what its method tells, into its folder, as far as there is."""
    folder = run.path / "figures"
    points = {p: rows for p in run.recipe.evaluate.points if (rows := evaluated(run, p))}
    clients = run.client_accuracy()
    files = []
    if points:
        folder.mkdir(exist_ok=True)
        files.append(_draw_accuracy(run, points, folder / "accuracy.png"))
    if run.point in points and clients:
        files.append(_draw_run_clients(run, clients, points[run.point][-1][run.point], folder / "clients.png"))
    if files and (told := _told([run])):
        files.append(_draw_told([run], [run.recipe.name], told, folder / "told.png"))
    if files and (drawn := gates.draw_histograms(run, folder / "histograms.png")):
        files.append(drawn)
    if files and (drawn := attendance.picture(run, folder / "attendance.png")):
        files.append(drawn)
    return files


def waiting_figure(found: Waiting, path: Path) -> Path:
    """Draw who starts at once and how long a round takes, by how many others each client reads."""
    from matplotlib.ticker import MaxNLocator

    from sparsona.simulate import at_once

    neighbours = list(found.parallelism)
    waits = sorted({n for m, n in found.delay if n < m})  # others have a place on the line of N = M alone
    with drawing.figure(path, 11, 4) as figure:
        left, right = figure.subplots(1, 2)
        low, high = neighbours[0], neighbours[-1]
        every = range(low, high + 1) if low < high else range(max(1, low - 1), high + 2)
        (line,) = left.plot(every, [100 * at_once(m) for m in every], color=drawing.GREY, linewidth=1.2)
        points = _estimates(left, found.parallelism, drawing.look(0, 1) | {"linestyle": "none"}, scale=100)
        left.legend([points, line], ["simulated", "expected, 1 / (M + 1)"])
        left.set_ylim(bottom=0)
        left.set_title("Clients that start at once, if any wait")
        left.set_ylabel("share of clients (%)")
        handles, labels = [], []
        whole = {m: found.delay[m, m] for m in neighbours}
        handles.append(_estimates(right, whole, drawing.look(len(drawing.COLOURS) - 1, 1)))
        labels.append("all, N = M")
        for i, n in enumerate(reversed(waits)):
            handles.append(_estimates(right, {m: e for (m, w), e in found.delay.items() if w == n}, drawing.look(i, 1)))
            labels.append(f"at most N = {n}")
        right.set_ylim(bottom=0)
        right.set_title(f"Length of a round of {found.clients} clients")
        right.set_ylabel("training times")
        legend = figure.legend(handles, labels, loc="outside right upper")
        legend.set_title(f"wait for the {found.pick}")
        for ax in (left, right):
            ax.set_xlabel("neighbours that each client reads, M")
            ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))
    return path


def _estimates(ax: Axes, at: Mapping[int, Estimate], look: Mapping[str, Any], scale: float = 1) -> Any:
    """Means, with bars of a standard error."""
    means, errors = zip(*((scale * e.mean, scale * (e.error or 0)) for e in at.values()), strict=True)
    return ax.errorbar(list(at), means, errors, **look).lines[0]


def _write(
    table: Comparison, runs: Sequence[Run], names: Sequence[str], costs: Sequence[Cost], device: Device, out: Path
) -> Iterator[Path]:
    """Write tables and figures, and name what was written."""
    scale, unit = flop_unit(max(row["flops"] for row in table.rows))
    goals = {row["target"] for row in table.rows}
    goal = goals.pop() if len(goals) == 1 else None
    axes: list[tuple[str, str, Callable[[Row], float]]] = [
        ("rounds", "round", lambda r: r["round"]),
        ("bytes", "MB sent, both directions", lambda r: _sent(r["total"]) / 1e6),
        ("flops", f"{unit} computed", lambda r: r["total"]["flops"] / scale),
    ]
    for name in ("accuracy-time.png", "told.png", "gain.png"):  # an earlier comparison in this folder may have more
        (out / name).unlink(missing_ok=True)
    if any("clock" in run.rounds[0] for run in runs):
        axes.append(("time", "simulated time, in one client's training times", lambda r: r["elapsed"]))
    figures = [
        _draw_curves(runs, names, goal, label, along, out / f"accuracy-{name}.png") for name, label, along in axes
    ]
    if told := _told(runs):
        figures.append(_draw_told(runs, names, told, out / "told.png"))
    figures.append(_draw_cost(costs, names, device, out / "cost.png"))
    each = [run.client_accuracy() for run in runs]
    figures.append(_draw_clients(each, names, out / "clients.png"))
    if len(runs) > 1:
        figures.append(_draw_gain(each, _gains(runs, names, each), out / "gain.png"))
    write(out / "compare.csv", table.csv())
    write(out / "compare.md", table.markdown() + "".join(f"\n![{f.stem}]({f.name})\n" for f in figures))
    yield from (out / "compare.csv", out / "compare.md", *figures)


def _draw_accuracy(run: Run, points: Mapping[Any, list[Row]], path: Path) -> Path:
    with drawing.figure(path, 8, 4) as figure:
        ax = figure.add_subplot()
        handles: list[Any] = []
        labels = []
        for i, (point, rows) in enumerate(points.items()):
            look = drawing.look(i, len(rows))
            x = [r["round"] for r in rows]
            mean = [100 * r[point]["accuracy"] for r in rows]
            low = [100 * r[point]["bottom_decile"] for r in rows]
            handles += ax.plot(x, mean, **look)
            if len(rows) > 1:
                handles.append(ax.fill_between(x, low, mean, color=look["color"], alpha=0.12, linewidth=0))
                ax.plot(x, low, color=look["color"], alpha=0.6, linewidth=0.8)
            else:
                handles.append(ax.vlines(x, low, mean, color=look["color"], alpha=0.3, linewidth=6))
            when = f"\n{POINTS[point]}" if len(points) > 1 else ""
            labels += [f"mean over clients{when}", f"down to bottom decile{when}"]
        drawing.draw_goal(ax, run.recipe.evaluate.target, handles, labels)
        ax.set_title(run.recipe.name, parse_math=False)
        ax.set_xlabel("round")
        ax.set_ylabel("accuracy (%)")
        drawing.round_axis(ax)
        drawing.percent_axis(ax)
        legend = figure.legend(handles, labels, loc="outside right upper", labelspacing=0.9)
        if len(points) == 1:
            legend.set_title(POINTS[next(iter(points))])
    return path


def _draw_run_clients(run: Run, clients: Mapping[int, float], score: Mapping[str, float], path: Path) -> Path:
    order = sorted(clients, key=lambda k: (clients[k], k))
    values = [100 * clients[k] for k in order]
    mean, low = 100 * score["accuracy"], 100 * score["bottom_decile"]
    with drawing.figure(path, 8, 4) as figure:
        ax = figure.add_subplot()
        _bars(ax, values, [drawing.BLUE] * len(values))
        handles = [
            ax.axhline(mean, color="#000000", linewidth=1.2),
            ax.axhline(low, color=drawing.ORANGE, linewidth=1.2, linestyle="--"),
        ]
        _client_axis(ax, order, "sorted by accuracy")
        ax.set_ylim(0, 102)
        ax.set_title(f"{run.recipe.name}: every client's own accuracy", parse_math=False)
        ax.set_ylabel("accuracy (%)")
        drawing.legend(figure, handles, [f"mean {mean:.1f} %", f"bottom decile {low:.1f} %"])
    return path


def _bars(ax: Axes, values: Sequence[float], colours: Sequence[str]) -> None:
    """One bar per value at 0, 1, ...; many of them as one filled shape per colour, which draws fast."""
    if len(values) <= 120:
        ax.bar(range(len(values)), values, width=0.8, color=list(colours))
        return
    edges = [i - 0.5 for i in range(len(values) + 1)]
    for colour in dict.fromkeys(colours):
        here = [v if c == colour else 0.0 for v, c in zip(values, colours, strict=True)]
        ax.stairs(here, edges, fill=True, color=colour, linewidth=0)


def _client_axis(ax: Axes, order: Sequence[int], how: str) -> None:
    """Clients along x; numbered if there is room for the numbers."""
    _client_room(ax, len(order))
    named = len(order) <= 30
    ax.set_xticks(range(len(order)) if named else [], [str(k) for k in order] if named else [])
    noun = "client" if named else f"{len(order)} clients"
    ax.set_xlabel(f"{noun}, {how}" if len(order) > 1 else "client")


def _client_room(ax: Axes, clients: int) -> None:
    room = max(0.0, (6 - clients) / 2)  # a single bar does not fill the picture
    ax.set_xlim(-0.7 - room, clients - 0.3 + room)


def _length(row: Row) -> float:
    """How many training times a round takes with all waiting; with a server, nobody waits."""
    return float(row["clock"]["length"]) if "clock" in row else 1.0


def _draw_curves(
    runs: Sequence[Run], names: Sequence[str], goal: float | None, label: str, along: Callable[[Row], float], path: Path
) -> Path:
    with drawing.figure(path, 8, 4) as figure:
        ax = figure.add_subplot()
        handles: list[Any] = []
        ends = []
        first = []
        for i, run in enumerate(runs):
            ends_at = accumulate(_length(r) for r in run.rounds)
            rows = [r | {"elapsed": at} for r, at in zip(run.rounds, ends_at, strict=True) if r.get(run.point)]
            x = [along(r) for r in rows]
            first.append(x[0])
            ends.append(x[-1])
            handles += ax.plot(x, [100 * r[run.point]["accuracy"] for r in rows], **drawing.look(i, len(rows)))
        labels = list(names)
        drawing.draw_goal(ax, goal, handles, labels)
        by_round = label == "round"
        if not by_round and min(first) > 0 and max(ends) > 10 * min(ends):
            ax.set_xscale("log")
            ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.xaxis.set_minor_formatter("")
            label += ", log scale"
        elif by_round:
            drawing.round_axis(ax)
        else:
            ax.set_xlim(left=min(0, ax.get_xlim()[0]))
        ax.set_title("Mean accuracy over clients")
        ax.set_xlabel(label)
        ax.set_ylabel("accuracy (%)")
        drawing.percent_axis(ax)
        drawing.legend(figure, handles, labels)
    return path


def _draw_cost(costs: Sequence[Cost], names: Sequence[str], device: Device, path: Path) -> Path:
    """What a round costs, from time alone to energy alone."""
    steps = [i / 100 for i in range(101)]
    with drawing.figure(path, 8, 4) as figure:
        ax = figure.add_subplot()
        handles: list[Any] = []
        for i, cost in enumerate(costs):
            handles += ax.plot(steps, [cost.total(theta) for theta in steps], **drawing.look(i, len(steps)))
        label = "seconds × (1 − θ) + joules × θ"
        ends = [end for cost in costs for end in (cost.seconds, cost.joules)]
        if min(ends) > 0 and max(ends) > 10 * min(ends):
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.yaxis.set_minor_formatter("")
            label += ", log scale"
        else:
            ax.set_ylim(bottom=0)
        ax.set_title("Cost of a round, mean over the run", pad=22)
        told = (
            f"clients at {device.tflops:g} TFLOPS / {device.correction:g}, {device.compute_watt:g} W; "
            f"network {device.gbit_per_s:g} Gbit/s, {device.network_watt:g} W"
        )
        ax.text(0, 1.0, f"{told}\n", transform=ax.transAxes, va="baseline", size=8.5, color="#333333")
        ax.set_xlabel("θ, from time alone (0) to energy alone (1)")
        ax.set_ylabel(label)
        drawing.legend(figure, handles, names)
    return path


def _told(runs: Sequence[Run]) -> list[str]:
    """What the methods of some runs tell of their clients, but for histograms, which have a figure of their own."""
    every = dict.fromkeys(name for run in runs for name in run.rounds[0].get("notes", {}))
    return [name for name in every if gates.BIN not in name]


def _draw_told(runs: Sequence[Run], names: Sequence[str], told: Sequence[str], path: Path) -> Path:
    """What methods tell of their clients over the rounds, such as sparsity, a picture for each."""
    with drawing.figure(path, 8, 0.6 + 2.2 * len(told)) as figure:
        handles: dict[int, Any] = {}
        for ax, what in zip(figure.subplots(len(told), 1, sharex=True, squeeze=False).flat, told, strict=True):
            for i, run in enumerate(runs):
                rows = [r for r in run.rounds if what in r.get("notes", {})]
                if rows:
                    x, y = [r["round"] for r in rows], [r["notes"][what] for r in rows]
                    handles[i] = ax.plot(x, y, **drawing.look(i, len(rows)))[0]
            ax.set_title(f"{what}, mean over clients", parse_math=False)
            drawing.round_axis(ax)
        ax.set_xlabel("round")
        drawing.legend(figure, [handles[i] for i in sorted(handles)], [names[i] for i in sorted(handles)])
    return path


def _draw_clients(each: Sequence[Mapping[int, float]], names: Sequence[str], path: Path) -> Path:
    first = each[0]
    known = {k for clients in each for k in clients}
    order = sorted(known, key=lambda k: (k not in first, first.get(k, 0.0), k))
    at = {k: i for i, k in enumerate(order)}
    with drawing.figure(path, 10, 4.4) as figure:
        ax = figure.add_subplot()
        handles: list[Any] = []
        size = 6.0 if len(order) <= 30 else 4.5 if len(order) <= 120 else 3.0
        for i, clients in enumerate(each):
            x = sorted(at[k] for k in clients)
            look = drawing.look(i, 1) | {"markersize": size, "alpha": 0.85, "markeredgewidth": 0}
            if i:
                look["linestyle"] = "none"
            else:
                look |= {"linewidth": 1, "zorder": 1.5}
            handles += ax.plot(x, [100 * clients[order[j]] for j in x], **look)
        _client_axis(ax, order, f"sorted by accuracy in {drawing.shortened(names[0])}")
        ax.xaxis.label.set_parse_math(False)
        ax.set_title("Every client's own accuracy")
        ax.set_ylabel("accuracy (%)")
        drawing.percent_axis(ax)
        drawing.legend(figure, handles, names)
    return path


def _draw_gain(each: Sequence[Mapping[int, float]], told: Sequence[Row], path: Path) -> Path:
    """Who gained against the first run, at how many bytes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    columns = min(2, len(told))
    lines = -(-len(told) // columns)
    with drawing.figure(path, 10 if columns > 1 else 7, 1 + 2.6 * lines) as figure:
        grid = list(figure.subplots(lines, columns, sharey=True, squeeze=False).flat)
        for ax, clients, gain in zip(grid, each[1:], told, strict=False):
            change = _changes(each[0], clients)
            _bars(ax, change, [drawing.BLUE if c > 0 else drawing.ORANGE if c < 0 else drawing.GREY for c in change])
            ax.axhline(0, color="#333333", linewidth=0.8)
            if change:
                ax.axhline(gain["mean_gain"], color="#000000", linewidth=1.2, linestyle="--")
            _client_room(ax, len(change))
            who = [k for _, k in _ranked(each[0], clients)] if len(change) <= 40 else []
            ax.set_xticks(range(len(who)), [str(k) for k in who], size=7)
            ax.set_xlabel(f"{len(change)} {'client' if len(change) == 1 else 'clients, sorted by gain'}")
            ax.set_title(drawing.shortened(gain["name"], 40), parse_math=False, pad=22)
            ax.text(0, 1.0, _gained(gain) + "\n", transform=ax.transAxes, va="baseline", size=8.5, color="#333333")
            ax.tick_params(labelleft=True)
        for ax in grid[len(told) :]:
            ax.set_visible(False)
        grid[0].margins(y=0.08)
        figure.supylabel(
            f"gain over {drawing.shortened(told[0]['baseline'])} (points of accuracy)",
            size=9,
            color="#333333",
            parse_math=False,
        )
        keys = [Patch(color=drawing.BLUE), Patch(color=drawing.ORANGE), Line2D([], [], color="#000000", linestyle="--")]
        figure.legend(keys, ["gained", "lost", "mean"], loc="outside lower center", ncols=3)
    return path


def _gained(gain: Row) -> str:
    if not gain["clients"]:
        return f"no client tested in both runs · {amount(gain['mb'])} MB"
    gained, lost = (100 * gain[name] / gain["clients"] for name in ("gained", "lost"))
    mean = f"{gain['mean_gain']:+.1f}".replace("-", "−")
    sent = f"{amount(gain['mb'])} against {amount(gain['mb'] - gain['extra_mb'])} MB"
    return f"{gained:.0f} % gained, {lost:.0f} % lost · mean {mean} · {sent}"
