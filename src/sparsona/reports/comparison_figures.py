"""The figures of a comparison: the headline by round, bytes, operations and time; costs; clients; who gained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from sparsona.experiment.results import Run
from sparsona.experiment.task import Metric
from sparsona.reports import drawing
from sparsona.reports.costs import DeviceModel, TimeEnergy
from sparsona.reports.gains import changes, gain_rows, ranked_changes
from sparsona.reports.metric_figures import draw_client_metrics, draw_metrics
from sparsona.reports.note_figures import draw_notes, note_names
from sparsona.reports.run_rows import sent_bytes, some_of
from sparsona.reports.sheet import Row, amount, flop_unit

# an earlier comparison in this folder may have them
_OPTIONAL = ("metrics.png", "client-metrics.png", "notes.png", "gain.png", "cost.png")


def draw_comparison(
    runs: Sequence[Run],
    names: Sequence[str],
    rows: Sequence[Row],
    costs: Sequence[TimeEnergy | None],
    device: DeviceModel,
    out: Path,
) -> list[Path]:
    """Draw all figures of a comparison into a folder."""
    scale, unit = flop_unit(*(row["flops"] for row in rows))
    goals = {row["target"] for row in rows}
    goal = goals.pop() if len(goals) == 1 else None
    without = sorted({name for run in runs for name in run.not_in_flops})
    computed = f"computation ({unit}){f', without {some_of(without, 1)}' if without else ''}"
    axes: list[tuple[str, str, Callable[[Row], float]]] = [
        ("rounds", "round", lambda r: r["round"]),
        ("bytes", "total traffic (MB)", lambda r: sent_bytes(r["total"]) / 1e6),
    ]
    known = [row["flops"] is not None for row in rows]
    if any(known):
        axes.append(("flops", computed, lambda r: r["total"]["flops"] / scale))
    main = runs[0].headline
    for name in (f"{main.key}-time.png", f"{main.key}-flops.png", *_OPTIONAL):
        (out / name).unlink(missing_ok=True)
    if any("clock" in run.rounds[0] for run in runs):
        axes.append(("time", "simulated time (in training times of one client)", lambda r: r["elapsed"]))
    figures = []
    for name, label, along in axes:
        drawn = known if name == "flops" else [True] * len(runs)
        figures.append(_draw_curves(runs, names, drawn, goal, label, along, out / f"{main.key}-{name}.png"))
    if file := draw_metrics(runs, names, out / "metrics.png"):
        figures.append(file)
    if file := draw_client_metrics(runs, names, out / "client-metrics.png"):
        figures.append(file)
    if notes := note_names(runs):
        figures.append(draw_notes(runs, names, notes, out / "notes.png"))
    if any(known):
        figures.append(_draw_cost(costs, names, device, out / "cost.png"))
    each = [run.client_scores() for run in runs]
    figures.append(_draw_clients(each, names, main, out / "clients.png"))
    if len(runs) > 1:
        figures.append(_draw_gain(each, gain_rows(runs, names, each), main, out / "gain.png"))
    return figures


def _length(row: Row) -> float:
    """How many training times a round takes with all waiting; with a server, nobody waits."""
    return float(row["clock"]["length"]) if "clock" in row else 1.0


def _draw_curves(
    runs: Sequence[Run],
    names: Sequence[str],
    drawn: Sequence[bool],
    goal: float | None,
    label: str,
    along: Callable[[Row], float],
    path: Path,
) -> Path:
    main = runs[0].headline
    with drawing.figure(path, 8, 4) as figure:
        ax = figure.add_subplot()
        handles: list[Any] = []
        ends = []
        first = []
        for i, run in enumerate(runs):
            if not drawn[i]:
                continue
            ends_at = accumulate(_length(r) for r in run.rounds)
            rows = [r | {"elapsed": at} for r, at in zip(run.rounds, ends_at, strict=True) if r.get(run.point)]
            x = [along(r) for r in rows]
            first.append(x[0])
            ends.append(x[-1])
            y = [main.scaled(r[run.point][main.key]) for r in rows]
            handles += ax.plot(x, y, **drawing.look(i, len(rows)))
        labels = [name for name, shown in zip(names, drawn, strict=True) if shown]
        drawing.draw_goal(ax, goal, handles, labels, main)
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
        ax.set_title(f"Mean {main.title} over clients", parse_math=False)
        ax.set_xlabel(label)
        ax.set_ylabel(main.label)
        drawing.metric_axis(ax, main)
        drawing.legend(figure, handles, labels)
    return path


def _draw_cost(costs: Sequence[TimeEnergy | None], names: Sequence[str], device: DeviceModel, path: Path) -> Path:
    """What a round costs, from only time to only energy."""
    steps = [i / 100 for i in range(101)]
    with drawing.figure(path, 8, 4) as figure:
        ax = figure.add_subplot()
        handles: list[Any] = []
        known = {i: cost for i, cost in enumerate(costs) if cost is not None}
        for i, cost in known.items():
            handles += ax.plot(steps, [cost.total(theta) for theta in steps], **drawing.look(i, len(steps)))
        label = "seconds × (1 − θ) + joules × θ"
        ends = [end for cost in known.values() for end in (cost.seconds, cost.joules)]
        if min(ends) > 0 and max(ends) > 10 * min(ends):
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            ax.yaxis.set_minor_formatter("")
            label += ", log scale"
        else:
            ax.set_ylim(bottom=0)
        ax.set_title("Cost per round, mean over the run", pad=22)
        assumptions = (
            f"clients at {device.tflops:g} TFLOPS / {device.correction:g}, {device.compute_watt:g} W; "
            f"network {device.gbit_per_s:g} Gbit/s, {device.network_watt:g} W"
        )
        ax.text(0, 1.0, f"{assumptions}\n", transform=ax.transAxes, va="baseline", size=8.5, color="#333333")
        ax.set_xlabel("θ, from time only (0) to energy only (1)")
        ax.set_ylabel(label)
        drawing.legend(figure, handles, [names[i] for i in known])
    return path


def _draw_clients(each: Sequence[Mapping[int, float]], names: Sequence[str], main: Metric, path: Path) -> Path:
    first = each[0]
    known = {k for clients in each for k in clients}
    order = sorted(known, key=lambda k: (k not in first, main.rank(first.get(k, 0.0)), k))
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
            handles += ax.plot(x, [main.scaled(clients[order[j]]) for j in x], **look)
        drawing.client_axis(ax, order, f"sorted by {main.title} in {drawing.shortened(names[0])}")
        ax.xaxis.label.set_parse_math(False)
        ax.set_title(f"{main.title_case} of every client", parse_math=False)
        ax.set_ylabel(main.label)
        drawing.metric_axis(ax, main)
        drawing.legend(figure, handles, names)
    return path


def _draw_gain(each: Sequence[Mapping[int, float]], rows: Sequence[Row], main: Metric, path: Path) -> Path:
    """Who gained against the first run, at how many bytes."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    columns = min(2, len(rows))
    lines = -(-len(rows) // columns)
    with drawing.figure(path, 10 if columns > 1 else 7, 1 + 2.6 * lines) as figure:
        grid = list(figure.subplots(lines, columns, sharey=True, squeeze=False).flat)
        for ax, clients, gain in zip(grid, each[1:], rows, strict=False):
            change = changes(each[0], clients, main)
            drawing.bars(
                ax, change, [drawing.BLUE if c > 0 else drawing.ORANGE if c < 0 else drawing.GREY for c in change]
            )
            ax.axhline(0, color="#333333", linewidth=0.8)
            if change:
                ax.axhline(gain["mean_gain"], color="#000000", linewidth=1.2, linestyle="--")
            drawing.client_room(ax, len(change))
            who = [k for _, k in ranked_changes(each[0], clients, main)] if len(change) <= 40 else []
            ax.set_xticks(range(len(who)), [str(k) for k in who], size=7)
            ax.set_xlabel(f"{len(change)} {'client' if len(change) == 1 else 'clients, sorted by gain'}")
            ax.set_title(drawing.shortened(gain["name"], 40), parse_math=False, pad=22)
            ax.text(0, 1.0, _gain_text(gain) + "\n", transform=ax.transAxes, va="baseline", size=8.5, color="#333333")
            ax.tick_params(labelleft=True)
        for ax in grid[len(rows) :]:
            ax.set_visible(False)
        grid[0].margins(y=0.08)
        unit = f"percentage points of {main.title}" if main.share else main.title
        figure.supylabel(
            f"gain over {drawing.shortened(rows[0]['baseline'])} ({unit})",
            size=9,
            color="#333333",
            parse_math=False,
        )
        keys = [Patch(color=drawing.BLUE), Patch(color=drawing.ORANGE), Line2D([], [], color="#000000", linestyle="--")]
        figure.legend(keys, ["gained", "lost", "mean"], loc="outside lower center", ncols=3)
    return path


def _gain_text(gain: Row) -> str:
    if not gain["clients"]:
        return f"no client tested in both runs · {amount(gain['mb'])} MB"
    gained, lost = (100 * gain[name] / gain["clients"] for name in ("gained", "lost"))
    mean = f"{gain['mean_gain']:+{'.1f' if 'metric' not in gain else '.3g'}}".replace("-", "−")
    sent = f"{amount(gain['mb'])} vs {amount(gain['mb'] - gain['extra_mb'])} MB"
    return f"{gained:.0f} % gained, {lost:.0f} % lost · mean {mean} · {sent}"


__all__ = ["draw_comparison"]
