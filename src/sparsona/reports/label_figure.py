"""The picture of labels: how many training samples of each label each client has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sparsona.data.federated import Fleet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_BARS = 40  # clients beyond this, or classes beyond the colours, make bars unreadable
_MAX_COLOURS = 20


def label_picture(fleet: Fleet, path: Path) -> None:
    """Write a PNG of the training labels of each client, the same bytes for the same fleet."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    counts = fleet.label_counts(first=_MAX_BARS if fleet.lazy else None)
    if len(counts) > _MAX_BARS or counts.shape[1] > _MAX_COLOURS:
        figure = _heatmap(fleet, counts)
    else:
        figure = _bars(fleet, counts)
    FigureCanvasAgg(figure)
    figure.savefig(path, format="png", dpi=120, metadata={"Software": None})


def _title(fleet: Fleet) -> str:
    config = fleet.config
    detail = {
        "dirichlet": f"alpha {config.alpha:g}" + (", equal sizes" if config.balanced else ""),
        "pathological": f"{config.classes_per_client} classes per client",
        "shards": f"{config.shards_per_client} shards per client",
        "lambda": f"non-IID fraction {config.noniid:g}",
        "natural": f"by {config.key or 'client'}",
    }.get(config.partition, "")
    partition = f"{config.partition} ({detail})" if detail else config.partition
    return f"{fleet.dataset.name}: training labels of {fleet.clients} clients, {partition}"


def _bars(fleet: Fleet, counts: np.ndarray) -> Figure:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    clients, classes = counts.shape
    figure = Figure(figsize=(9, max(3.2, 1.4 + 0.24 * clients)), layout="constrained")
    axes = figure.add_subplot()
    colours = colormaps["tab10" if classes <= 10 else "tab20"](np.arange(classes))
    left = np.zeros(clients)
    for c in range(classes):
        axes.barh(
            np.arange(clients),
            counts[:, c],
            left=left,
            color=colours[c],
            height=0.82,
            label=fleet.dataset.stratum_names[c],
        )
        left += counts[:, c]
    axes.set_yticks(np.arange(clients), fleet.names[:clients])
    axes.set_ylim(clients - 0.4, -0.6)
    axes.set(xlabel="training samples", ylabel="client")
    axes.set_title(_title(fleet), fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, title="label")
    return figure


def _heatmap(fleet: Fleet, counts: np.ndarray) -> Figure:
    from matplotlib.figure import Figure

    clients, classes = counts.shape
    size = (min(16.0, max(7.5, 2.5 + 0.24 * classes)), min(12.0, max(4.0, 1.6 + 0.07 * clients)))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(counts, aspect="auto", interpolation="nearest", cmap="YlGnBu")
    figure.colorbar(image, ax=axes, label="training samples")
    if classes <= 70:
        axes.set_xticks(np.arange(classes), fleet.dataset.stratum_names, rotation=90 if classes > 5 else 0, fontsize=8)
    axes.set(xlabel="label", ylabel="client")
    axes.set_title(_title(fleet), fontsize=11, wrap=True)
    return figure
