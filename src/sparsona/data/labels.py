"""The table of labels: how many samples each client has, and its most frequent labels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sparsona.data.federated import Fleet


class LabelRow(NamedTuple):
    """One client in the table."""

    client: str
    train: int
    validation: int
    test: int
    labels: str  # the most frequent training labels with their counts


def label_table(fleet: Fleet, top: int = 3, most: int | None = None) -> list[LabelRow]:
    """A row per client (at most ``most`` of them), with its sizes and its most frequent labels."""
    names = fleet.dataset.stratum_names
    rows = []
    for k, counts in enumerate(fleet.label_counts(first=most)):
        part = fleet.held(k)[1]
        order = [c for c in np.argsort(-counts, kind="stable") if counts[c]]
        text = ", ".join(f"{names[c]}: {counts[c]:,}" for c in order[:top])
        if len(order) > top:
            text += f", {len(order) - top} more"
        rows.append(LabelRow(fleet.names[k], len(part.train), len(part.validation), len(part.test), text))
    return rows
