"""From scores of single clients to the figures that people compare."""

from __future__ import annotations

from collections.abc import Mapping

from sparsona.engines.device import Score


def metrics(scores: Mapping[int, Score]) -> dict[str, float]:
    """Mean accuracy by client and by sample, bottom decile, worst client, spread over clients and mean loss.

    The bottom decile is the accuracy of the floor(n/10)-th worst of n clients, at least the first.
    """
    scores = dict(sorted(scores.items()))  # sums of floats depend on their order, which must not be that of arrival
    each = sorted(s.correct / s.samples for s in scores.values() if s.samples)
    samples = sum(s.samples for s in scores.values())
    if not each:
        return {}
    mean = sum(each) / len(each)
    return {
        "accuracy": mean,
        "accuracy_by_sample": sum(s.correct for s in scores.values()) / samples,
        "bottom_decile": each[max(len(each) // 10, 1) - 1],
        "worst": each[0],
        "spread": (sum((a - mean) ** 2 for a in each) / len(each)) ** 0.5,
        "loss": sum(s.loss for s in scores.values()) / samples,
        "clients": len(each),
    }
