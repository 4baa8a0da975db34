"""Whose gates are alike: Ward's tree of what each client's gate has learnt, beside the labels of its samples.

Chen et al., 2023, Figure 7; trees after Ward, Hierarchical grouping to optimize an objective function, 1963.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sparsona.reports import drawing


def tree(vectors: Mapping[int, Tensor]) -> tuple[list[int], dict[str, Any]] | None:
    """Ward's tree of clients by Euclidean distance: clients in the order of its leaves, and its lines.

    None for fewer than two, or where their vectors differ in length, as those of gates over different blocks may.
    """
    from scipy.cluster.hierarchy import dendrogram, linkage

    if len(vectors) < 2 or len({len(v) for v in vectors.values()}) > 1:
        return None
    clients = sorted(vectors)
    points = np.stack([vectors[k].double().numpy() for k in clients])
    drawn = dendrogram(linkage(points, "ward"), no_plot=True)
    return [clients[i] for i in drawn["leaves"]], drawn


def draw_tree(vectors: Mapping[int, Tensor], labels: NDArray[Any], path: Path) -> Path | None:
    """Draw the tree, and beside it which labels each client has [clients, classes], if there is a tree."""
    hierarchy = tree(vectors)
    if hierarchy is None:
        return None
    order, drawn = hierarchy
    counts = labels[order].astype(np.float64)
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    with drawing.figure(path, 9, min(1.4 + 0.22 * len(order), 14)) as figure:
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3, 4))
        for across, along in zip(drawn["dcoord"], drawn["icoord"], strict=True):
            left.plot(
                across, [(at - 5) / 10 for at in along], color=drawing.BLUE, linewidth=1.2
            )  # leaves at 5, 15, ...
        left.set_xlim(1.02 * max(max(d) for d in drawn["dcoord"]) or 1, 0)
        left.grid(visible=False)
        named = len(order) <= 60
        left.set_yticks(range(len(order)) if named else [], [str(k) for k in order] if named else [])
        left.set_ylim(-0.5, len(order) - 0.5)
        left.set_ylabel("client" if named else f"{len(order)} clients")
        left.set_xlabel("distance")
        left.set_title("Clustering of the trained gates (Ward)")
        ends = (-0.5, shares.shape[1] - 0.5, -0.5, len(order) - 0.5)
        image = right.imshow(shares, aspect="auto", origin="lower", extent=ends, cmap="Blues", vmin=0, vmax=100)
        right.grid(visible=False)
        right.set_xlabel("label")
        drawing.round_axis(right)
        right.set_title("Training labels of each client")
        figure.colorbar(image, ax=right, label="share (%)")
    return path
