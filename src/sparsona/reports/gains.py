"""Which clients do better or worse in a run than in a baseline, and how many more bytes it sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from sparsona.experiment.results import Run
from sparsona.experiment.task import ACCURACY, METRICS, Metric
from sparsona.reports.run_rows import folder_names, sent_bytes
from sparsona.reports.sheet import Row


def gains(runs: Sequence[Run]) -> list[Row]:
    """For each run but the first: how many clients do better, worse or the same than in the first, and the extra MB."""
    return gain_rows(runs, folder_names([run.path for run in runs]), [run.client_scores() for run in runs])


def gain_rows(runs: Sequence[Run], names: Sequence[str], scores: Sequence[Mapping[int, float]]) -> list[Row]:
    """The gains of runs of which the names and each client's headline are known."""
    main = runs[0].headline
    rows = []
    for run, name, clients in zip(runs[1:], names[1:], scores[1:], strict=True):
        change = changes(scores[0], clients, main)
        rows.append(
            {
                "name": name,
                "baseline": names[0],
                "clients": len(change),  # tested in both runs
                "gained": sum(c > 0 for c in change),
                "lost": sum(c < 0 for c in change),
                "equal": sum(c == 0 for c in change),
                "mean_gain": sum(change) / len(change) if change else None,  # points of a share
                "mb": sent_bytes(run.summary["total"]) / 1e6,
                "extra_mb": (sent_bytes(run.summary["total"]) - sent_bytes(runs[0].summary["total"])) / 1e6,
                **({} if main == ACCURACY else {"metric": main.key}),
            }
        )
    return rows


def in_words(rows: Iterable[Row]) -> Iterator[str]:
    """A line for each of some gains."""
    for gain in rows:
        n = gain["gained"] + gain["lost"] + gain["equal"]
        versus = f"{gain['name']} against {gain['baseline']}"
        if not n:
            yield f"{versus}: no client was tested in both"
            continue
        extra = gain["extra_mb"]
        price = f"{abs(extra):.1f} MB {'more' if extra > 0 else 'less'}" if abs(extra) >= 0.05 else "the same bytes"
        counts = f"{gain['gained']} of {n} clients gained, {gain['lost']} lost"
        yield f"{versus}: {counts}; {mean_text(gain)} on average for {price}"


def mean_text(gain: Row) -> str:
    """The mean gain with its unit."""
    main = METRICS.get(gain.get("metric", ACCURACY.key))
    if main is not None and main.share:
        return f"{gain['mean_gain']:+.1f} points{'' if main == ACCURACY else f' of {main.title}'}"
    way = "worse" if gain["mean_gain"] < 0 else "better"
    return f"{main.title if main else gain['metric']} {way} by {abs(gain['mean_gain']):.3g}"


def changes(base: Mapping[int, float], other: Mapping[int, float], main: Metric = ACCURACY) -> list[float]:
    """How much better each client tested in both runs does (points of a share), smallest first."""
    return [gain for gain, _ in ranked_changes(base, other, main)]


def ranked_changes(
    base: Mapping[int, float], other: Mapping[int, float], main: Metric = ACCURACY
) -> list[tuple[float, int]]:
    """The gains with their clients, smallest first."""
    both = base.keys() & other.keys()
    return sorted((main.scale * (main.rank(other[k]) - main.rank(base[k])), k) for k in both)


__all__ = ["changes", "gain_rows", "gains", "in_words", "mean_text", "ranked_changes"]
