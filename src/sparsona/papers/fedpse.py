"""The figures of FedPSE ("Personalized Sparsification with Element-wise Aggregation") that need no training.

The paper prints few: the two examples of its Appendix A and the promotions of its Table 2. What else is here follows
from its definitions: how much is kept, what is sent back at which distance, what travels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sparsona.core import masks
from sparsona.core.aggregate import elementwise_mean, mean
from sparsona.core.layout import Layout, Slot
from sparsona.core.rng import Rng
from sparsona.core.wire import Message, Sparse, mask_nbytes
from sparsona.data.partition import lambda_mix
from sparsona.methods.fedpse.correlation import cosine, distance
from sparsona.methods.fedpse.selection import upstream
from sparsona.papers.line import DERIVED, Line, compared
from sparsona.papers.sizes import layout_of, value_bytes

P = 0.9
EWA, MEAN = "core.aggregate.elementwise_mean", "core.aggregate.weighted_mean"
KEPT = "core.masks.kept"
SELECTION, DISTANCE = "methods.fedpse.selection.upstream", "methods.fedpse.correlation.distance"
EXAMPLES = {  # Appendix A: dense updates, what is left of them, and by coordinate their mean, without EWA and with it
    "IID": (
        ((1, 1), (2, 2), (3, 3)),
        ((0, 1), (2, 0), (0, 3)),
        ("2.000", "2.000"),
        ("0.667", "1.333"),
        ("2.000", "2.000"),
        ("1.491", "0.000"),
    ),
    "Non-IID": (
        ((1, 2), (3, 2), (3, 4)),
        ((0, 2), (3, 0), (0, 4)),
        ("2.333", "2.667"),
        ("1.000", "2.000"),
        ("3.000", "3.000"),
        ("1.491", "0.745"),
    ),
}
CLIENTS = (2, 5, 10, 25, 50, 100)
TABLE_2 = {  # FedAvg, FedSTC, FedSCR, FedPSE, the printed promotions over FedSTC and FedSCR, and these recomputed
    "FMNIST": (
        ((0.8781, 0.8844, 0.9031, 0.9466), ("7.03", "4.82"), ("7.03", "4.82")),
        ((0.8068, 0.8756, 0.8821, 0.9267), ("5.84", "5.06"), ("5.84", "5.06")),
        ((0.7909, 0.8614, 0.8603, 0.9371), ("8.79", "8.93"), ("8.79", "8.93")),
        ((0.8045, 0.8553, 0.8612, 0.9021), ("5.47", "4.75"), ("5.47", "4.75")),
        ((0.8071, 0.8343, 0.8531, 0.8939), ("7.14", "4.78"), ("7.14", "4.78")),
        ((0.7921, 0.8211, 0.8344, 0.8772), ("6.83", "5.13"), ("6.83", "5.13")),
    ),
    "IMDB": (
        ((0.8406, 0.8409, 0.8438, 0.9953), ("17.33", "11.65"), ("18.36", "17.95")),
        ((0.8494, 0.9066, 0.9366, 0.9966), ("9.78", "6.55"), ("9.93", "6.41")),
        ((0.9080, 0.9582, 0.9620, 0.9989), ("4.17", "3.72"), ("4.25", "3.84")),
        ((0.8570, 0.9104, 0.9112, 0.9923), ("10.30", "8.99"), ("9.00", "8.90")),
        ((0.8356, 0.9003, 0.9085, 0.9986), ("10.92", "9.92"), ("10.92", "9.92")),
        ((0.8401, 0.9036, 0.9101, 0.9975), ("10.41", "9.63"), ("10.39", "9.60")),
    ),
}
SLIP = "not what the accuracies beside it give"
AVERAGES = {  # of the four methods, and the promotions; if it is known to differ, what is derived and why
    "FMNIST": (
        ("0.8133",),
        ("0.8553", "0.85535", "0.85535 exactly, rounded down"),
        ("0.8657",),
        ("0.9139",),
        ("6.85",),
        ("5.57",),
    ),
    "IMDB": (
        ("0.8551",),
        ("0.9017", "0.9033", "not the mean of the column"),
        ("0.9120",),
        ("0.9965",),
        ("10.68", "10.32", SLIP),
        ("9.43", "9.27", SLIP),
    ),
}


def fedpse() -> Iterator[Line]:
    """FedPSE, "Personalized Sparsification with Element-wise Aggregation for Federated Learning"."""
    yield from _examples()
    yield from _steps()
    yield from _models()
    yield from _traffic()
    yield from _promotions()
    yield from _partition()


def _examples() -> Iterator[Line]:
    plane = Layout((Slot("update", (2,), "weight", "", 0, 1),))
    for name, (dense, sparse, *means, far) in EXAMPLES.items():
        line = partial(Line, f"Appendix A, {name}")
        vectors = [_vector(*v) for v in sparse]
        averages = {
            "dense updates": mean(_vector(*v) for v in dense),
            "naive": mean(vectors),
            "EWA": elementwise_mean(plane, [(Sparse.of(v, v != 0), 1.0) for v in vectors]),
        }
        for (what, vector), printed in zip(averages.items(), means, strict=True):
            for place, figure in enumerate(printed):
                via = EWA if what == "EWA" else MEAN
                yield line(f"{what}, coordinate {place + 1}", "App. A", figure, float(vector[place]), via=via)
        for what, figure in zip(("naive", "EWA"), far, strict=True):
            off = float(torch.dist(averages[what], averages["dense updates"]))
            via = EWA if what == "EWA" else MEAN
            yield line(f"{what}, distance to the mean of dense updates", DERIVED, figure, off, via=via)


def _steps() -> Iterator[Line]:
    line = partial(Line, "Steps of the algorithm", via=DISTANCE)
    ours = _vector(1, 2, 0)
    for what, theirs, printed in (("1", ours, "0.0"), ("0", _vector(2, -1, 5), "0.5"), ("-1", -ours, "1.0")):
        yield line(f"distance at cosine {what}", "Alg. 3", printed, distance(cosine, ours, theirs))
    yield line("distance to an update of zeros", DERIVED, "0.5", distance(cosine, ours, torch.zeros(3)))
    place = torch.arange(6)
    server, client = place < 3, (place >= 2) & (place < 5)
    for far, own in ((0.0, "0"), (0.5, "1"), (1.0, "2")):
        mask = masks.mixed(server, client, far, Rng(1))
        case = f"M_s = 0 1 2, M_i = 2 3 4, distance {far}"
        yield line(f"{case}: places sent", "Alg. 3", "3", _count(mask), via="core.masks.mixed")
        yield line(f"{case}: of them only the client's", "Alg. 3", own, _count(mask & ~server), via="core.masks.mixed")
    line = partial(line, via=SELECTION)
    flat = Layout((Slot("update", (1000,), "weight", "", 0, 1),))
    update = torch.linspace(-1, 1, 1000)
    sent, residual = upstream(flat, update, P)
    lost = _count(sent.dense() + residual != update)
    yield line("entries that the sent part and the residual do not add up to", "Alg. 1", "0", lost)
    even = upstream(flat, torch.ones(1000), P)[1].square().sum() / 1000
    yield line("phi = 1 - k/n, the share of the squared norm that Top-K leaves at most", "App. B", "0.9", float(even))


def _models() -> Iterator[Line]:
    line = partial(Line, "Models", via="core.layout.Layout.of")
    for name, classes, shape, printed in (
        ("convnet2", 10, (1, 28, 28), "34,826"),
        ("imdb", 2, (256,), "160,017"),
        ("resnet18-bn", 10, (3, 32, 32), "11,173,962"),
    ):
        yield line(f"parameters of {name}", DERIVED, printed, layout_of(name, classes, shape).params)


def _traffic() -> Iterator[Line]:
    line = partial(Line, f"ConvNet2 at p = {P}, one message", via=KEPT)
    values = partial(line, via="core.wire.Message.value_nbytes")
    layout = layout_of("convnet2", 10, (1, 28, 28))
    mask = masks.random(layout, [masks.kept(n, P) for n in layout.sizes], Rng(1))
    message = Message(update=Sparse.of(torch.ones(layout.dim), mask))
    due = ("29", "3", "1,843", "6", "1,600", "1")
    for slot, ones, printed in zip(layout.slots, layout.counts(mask), due, strict=True):
        yield line(f"entries kept of {slot.name}, {slot.size:,}", DERIVED, printed, ones)
    yield line("entries kept", DERIVED, "3,482", _count(mask))
    yield line("share kept, %", DERIVED, "9.998", 100 * _count(mask) / layout.params)
    yield line("share kept, %", "Sect. 5.2", "10", 100 * _count(mask) / layout.params)
    yield values("bytes of values", DERIVED, "13,928", message.value_nbytes)
    yield values("bytes of values, FedAvg", DERIVED, "139,304", value_bytes(layout.params))
    share = _count(mask) / layout.params
    bound = -layout.params * (share * math.log2(share) + (1 - share) * math.log2(1 - share)) / 8
    note = "random places, counted in the least bytes that they can take, and 5 % more at most"
    yield line("bytes of places", DERIVED, "2,041", mask_nbytes(mask), 0.05 * bound, note, via="core.wire.mask_nbytes")
    total = message.nbytes / value_bytes(layout.params)
    yield line("bytes of all over FedAvg's values", DERIVED, "0.115", total, via="core.wire.Message.nbytes")


def _promotions() -> Iterator[Line]:
    names = ("FedAvg", "FedSTC", "FedSCR", "FedPSE")
    for data, rows in TABLE_2.items():
        line = partial(Line, f"Table 2, {data}, promotion of FedPSE, %")
        for clients, ((_, *others, ours), printed, right) in zip(CLIENTS, rows, strict=True):
            for name, other, figure, derived in zip(names[1:3], others, printed, right, strict=True):
                what, promotion = f"over {name}, {clients} clients", _promotion(ours, other)
                known = SLIP if figure != derived else ""
                yield from compared(line, what, "Table 2", figure, promotion, derived, known)
        means = [sum(column) / len(rows) for column in zip(*(row[0] for row in rows), strict=True)]
        for name, value, (figure, *why) in zip(names, means, AVERAGES[data][:4], strict=True):
            yield from compared(line, f"mean accuracy of {name}", "Table 2", figure, value, *why)
        for name, value, (figure, *why) in zip(names[1:3], means[1:3], AVERAGES[data][4:], strict=True):
            what, promotion = f"over {name}, of the means", _promotion(means[3], value)
            yield from compared(line, what, "Table 2", figure, promotion, *why)


def _promotion(ours: float, other: float) -> float:
    return 100 * (ours - other) / other


def _partition() -> Iterator[Line]:
    section = "Partition of 1,000 samples of ten labels among ten clients"
    line = partial(Line, section, via="data.partition.lambda_mix")
    labels = np.arange(1000) % 10
    for ratio, each in ((1.0, "1"), (0.0, "10")):
        parts = lambda_mix(labels, 10, Rng(1), noniid=ratio)
        yield line(f"labels of a client at lambda = {ratio}", "App. C.1", each, max(len(set(labels[p])) for p in parts))
        yield line(f"samples of a client at lambda = {ratio}", "App. C.1", "100", max(len(p) for p in parts))


def _vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def _count(mask: Tensor) -> int:
    return int(torch.count_nonzero(mask))
