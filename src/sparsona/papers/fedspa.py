"""The figures of FedSpa ("Achieving Personalized Federated Learning with Sparse Local Models") that need no training.

Communication counts the values of both directions. Training counts three forward passes per sample; DST's search adds
one dense batch per client and round. The paper states neither its rounds nor its samples per client: they are taken to
be those below, and the sections "implied by these" show that its columns leave little else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal

import torch
from torch import nn

from sparsona.core import masks
from sparsona.core.descent import descend
from sparsona.core.layout import Layout, Slot
from sparsona.core.optimiser import SGD
from sparsona.core.rng import Rng
from sparsona.core.samples import Samples
from sparsona.methods.fedspa import FedSpa, Server
from sparsona.papers.line import DERIVED, Line, compared, half_step, value
from sparsona.papers.sizes import context, layout_of, value_bytes

CLIENTS, DRAWN, EPOCHS, BATCH = 100, 10, 5, 128  # Section 5.1
DENSITY = 0.5
TABLE_1, TABLE_3 = 1e14, 1e16  # units of operations; Table 4 has that of Table 3
SETTINGS = ("IID", "A", "B")
LAYOUT, FLOPS, BYTES = "core.layout.Layout.of", "core.layout.Layout.flops_of", "core.wire.Message.value_nbytes"
DRAWS = "clients have more or fewer samples, so who is drawn matters: 0.3 % allowed, and rounding"


@dataclass(frozen=True)
class FedSpaTask:
    """One of the paper's three tasks, and what it costs."""

    name: str
    model: str
    classes: int
    shape: tuple[int, ...]
    rounds: int
    samples: int  # per client

    @cached_property
    def layout(self) -> Layout:
        """The model's tensors."""
        return layout_of(self.model, self.classes, self.shape)

    def gigabytes(self, down: int, up: int) -> float:
        """All traffic, if this many values go to a client and come back."""
        return self.rounds * DRAWN * (value_bytes(down) + value_bytes(up)) / 1e9

    def training(self, forward: int) -> int:
        """Operations of all local training with this forward pass."""
        return 3 * self.rounds * DRAWN * EPOCHS * self.samples * forward

    @property
    def dense(self) -> int:
        """Operations of training the whole model."""
        return self.training(self.layout.flops())

    @property
    def search(self) -> int:
        """Operations of the dense gradients that masks are searched with."""
        return 3 * self.rounds * DRAWN * BATCH * self.layout.flops()

    def erk(self, density: float = DENSITY) -> int:
        """Operations of a forward pass under ERK."""
        return self.layout.flops_of(masks.erk_counts(self.layout, density))


LENET = FedSpaTask("LeNet5 on EMNIST-L", "lenet5", 26, (1, 28, 28), 400, 1248)
VGG = FedSpaTask("VGG11 on CIFAR-10", "vgg11-gn", 10, (3, 32, 32), 1000, 500)
RESNET = FedSpaTask("ResNet18 on CIFAR-100", "resnet18-gn", 100, (3, 32, 32), 1000, 500)


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What is printed of a task; what is above the densities, and the totals, is derived."""

    job: FedSpaTask
    params: str
    dense_flops: str
    sparse_flops: str
    ones: str
    tensors: str
    forced: str
    epsilon: str
    densities: tuple[str, ...]  # of the tensors that ERK does not keep dense, in the model's order
    gigabytes: tuple[str, str, str]  # FedAvg and Ditto, FedSpa, Subsampling
    totals: tuple[str, str, str]  # dense, DST and RSM, at the job's samples
    dense: tuple[str, str, str]  # one for each setting
    dst: tuple[str, str, str]
    thousands: tuple[str, str]  # of training samples, and of those that are not test samples


PRINTED = (
    Printed(
        job=LENET,
        params="439,096",
        dense_flops="4,617,246",
        sparse_flops="2,528,808",
        ones="219,547",
        tensors="8",
        forced="6",
        epsilon="148.878",
        densities=("0.4764", "0.4839"),
        gigabytes=("14.1", "7.0", "10.5"),
        totals=("3.457", "1.964", "1.894"),
        dense=("3.5", "3.5", "3.5"),
        dst=("2.0", "2.0", "2.0"),
        thousands=("145.6", "124.8"),
    ),
    Printed(
        job=VGG,
        params="9,231,114",
        dense_flops="305,690,634",
        sparse_flops="214,893,978",
        ones="4,615,554",
        tensors="34",
        forced="29",
        epsilon="965.724",
        densities=("0.8481", "0.6336", "0.4216", "0.4216", "0.4216"),
        gigabytes=("738.5", "369.2", "553.9"),
        totals=("229.268", "172.909", "161.170"),
        dense=("229.3", "229.8", "230.0"),
        dst=("172.9", "173.3", "173.5"),
        thousands=("60", "50"),
    ),
    Printed(
        job=RESNET,
        params="11,220,132",
        dense_flops="1,110,937,700",
        sparse_flops="883,165,924",
        ones="5,610,061",
        tensors="62",
        forced="55",
        epsilon="815.235",
        densities=("0.7160", "0.7160", "0.7160", "0.5349", "0.3559", "0.3559", "0.3559"),
        gigabytes=("897.6", "448.8", "673.2"),
        totals=("833.203", "705.034", "662.374"),
        dense=("833.2", "833.0", "832.9"),
        dst=("705.1", "704.9", "704.8"),
        thousands=("60", "50"),
    ),
)


def fedspa() -> Iterator[Line]:
    """FedSpa, "Achieving Personalized Federated Learning with Sparse Local Models"."""
    for printed in PRINTED:
        yield from _model(printed)
        yield from _communication(printed)
        yield from _training(printed)
        yield from _implied(printed)
    yield from _savings()
    yield from _sparsities()
    yield from _uniform()
    yield from _steps()


def _model(p: Printed) -> Iterator[Line]:
    line = partial(Line, f"{p.job.name}, ERK at density {DENSITY}", via="core.masks.erk")
    layout = p.job.layout
    flops = "core.layout.Layout.flops"
    densities, counts = masks.erk(layout, DENSITY), masks.erk_counts(layout, DENSITY)
    free = [(s, d) for s, d in zip(layout.slots, densities, strict=True) if d < 1]
    yield line("parameters", DERIVED, p.params, layout.params, via=LAYOUT)
    if p.job is RESNET:
        ten = layout_of(RESNET.model, 10, RESNET.shape)
        yield line("parameters with 10 classes", DERIVED, "11,173,962", ten.params, via=LAYOUT)
    yield line("FLOPs of a forward pass, dense", DERIVED, p.dense_flops, layout.flops(), via=flops)
    yield line("FLOPs of a forward pass, sparse", DERIVED, p.sparse_flops, layout.flops_of(counts), via=FLOPS)
    yield line("parameters kept", DERIVED, p.ones, sum(counts), via="core.masks.erk_counts")
    yield line("tensors", DERIVED, p.tensors, len(densities), via=LAYOUT)
    yield line("tensors kept dense", DERIVED, p.forced, len(densities) - len(free))
    for slot, density in free[:1]:
        yield line("epsilon", DERIVED, p.epsilon, density * slot.size / sum(slot.shape))
    for (slot, density), printed in zip(free, p.densities, strict=False):  # their number is a separate line
        yield line(f"density of {slot.name}, {'x'.join(map(str, slot.shape))}", DERIVED, printed, density)


def _communication(p: Printed) -> Iterator[Line]:
    line = partial(Line, f"{p.job.name}, communication, GB", via=BYTES)
    whole, half = p.job.layout.params, masks.kept(p.job.layout.params, 1 - DENSITY)
    ones = sum(masks.erk_counts(p.job.layout, DENSITY))
    dense, sparse = p.job.gigabytes(whole, whole), p.job.gigabytes(ones, ones)
    yield line("FedAvg and Ditto", "Table 1", p.gigabytes[0], dense)
    yield line("FedSpa", "Table 1", p.gigabytes[1], sparse)
    yield line("Subsampling", "Table 1", p.gigabytes[2], p.job.gigabytes(whole, half))
    yield line("FedSpa saves, %", "Sect. 5.2", "50", 100 * (1 - sparse / dense))


def _training(p: Printed) -> Iterator[Line]:
    line = partial(Line, f"{p.job.name}, training, 1e14 FLOPs", via=FLOPS)
    dense, sparse, search = (f / TABLE_1 for f in (p.job.dense, p.job.training(p.job.erk()), p.job.search))
    yield line(f"dense, {p.job.samples} samples per client", DERIVED, p.totals[0], dense)
    yield line(f"FedSpa DST, {p.job.samples} samples per client", DERIVED, p.totals[1], sparse + search)
    for setting, whole, part in zip(SETTINGS, p.dense, p.dst, strict=True):
        allowed = 0.0 if setting == "IID" else half_step(whole) + 0.003 * dense
        yield line(f"dense, {setting}", "Table 1", whole, dense, allowed, DRAWS if allowed else "")
        yield line(
            f"FedSpa DST, {setting}, if dense is {whole}",
            "Table 1",
            part,
            value(whole) * sparse / dense + search,
            half_step(part) + half_step(whole) * sparse / dense,
            "the samples are taken from the dense figure, which is rounded too",
        )
    charged = "the search charged to RSM too, as the paper does; samples as for DST"
    yield line(
        f"FedSpa RSM, IID, if dense is {p.dense[0]}",
        "Table 1",
        p.dst[0],
        value(p.dense[0]) * sparse / dense + search,
        half_step(p.dst[0]) + half_step(p.dense[0]) * sparse / dense,
        charged,
    )
    why = "RSM searches nothing, but the paper charges it DST's dense batch all the same"
    yield from compared(line, "FedSpa RSM, IID", "Table 1", p.dst[0], sparse, p.totals[2], why)


def _implied(p: Printed) -> Iterator[Line]:
    line = partial(Line, f"{p.job.name}, implied by these", via=FLOPS)
    traffic, total = p.gigabytes[0], p.dense[0]
    rounds = p.job.rounds * value(traffic) / p.job.gigabytes(p.job.layout.params, p.job.layout.params)
    samples = CLIENTS * p.job.samples * value(total) * TABLE_1 / p.job.dense / 1000
    blur = rounds * half_step(traffic) / value(traffic), samples * half_step(total) / value(total)
    note = "the paper does not state it; the column is rounded"
    yield line(f"rounds, by {traffic} GB", DERIVED, str(p.job.rounds), rounds, blur[0], note, via=BYTES)
    what, (printed, derived) = f"thousands of training samples, by {total}e14 FLOPs", p.thousands
    yield line(what, "App. B.1", printed, samples, stated="the paper's number includes the test samples")
    yield line(what, DERIVED, derived, samples, blur[1], note)


def _savings() -> Iterator[Line]:
    line = partial(Line, "What the paper says of Table 1", via=FLOPS)
    least, most = (100 * (1 - (j.training(j.erk()) + j.search) / j.dense) for j in (RESNET, LENET))
    yield line("FLOPs that FedSpa saves at least, %", "Sect. 5.2", "15.4", least)
    yield line("the same", "Sect. 1", "15.3", least, stated="Section 5.2 has it as 15.4")
    why = "taken from rounded figures, 1 - 2.0/3.5"
    yield from compared(line, "FLOPs that FedSpa saves at most, %", "Sect. 5.2", "42.9", most, "43.18", why)
    power = round(math.log10(VGG.dense / value(PRINTED[1].dense[1])))
    what, why = "unit of setting A's FLOPs, power of ten", "a slip; the others say 14"
    yield from compared(line, what, "Table 1", "16", power, "14", why)


def _sparsities() -> Iterator[Line]:
    line = partial(Line, f"{RESNET.name}, DST by sparsity", via=FLOPS)
    for sparsity, density, traffic, totals in (
        ("0.2", 0.8, "718.1", ("8.2", "8.2", "8.2")),
        ("0.4", 0.6, "538.6", ("7.6", "7.5", "7.5")),
        ("0.5", 0.5, "448.8", ("7.1", "7.0", "7.0")),
        ("0.6", 0.4, "359.0", ("6.5", "6.5", "6.5")),
        ("0.8", 0.2, "179.5", ("4.6", "4.6", "4.6")),
    ):
        ones = sum(masks.erk_counts(RESNET.layout, density))
        yield line(f"{sparsity}, GB", "Table 3", traffic, RESNET.gigabytes(ones, ones), via=BYTES)
        computed = _totals(RESNET.erk(density))
        for setting, printed, (total, note) in zip(SETTINGS, totals, computed, strict=True):
            yield line(f"{sparsity}, {setting}, 1e16 FLOPs", "Table 3", printed, total, note=note)


def _uniform() -> Iterator[Line]:
    line = partial(Line, f"{RESNET.name}, DST, uniform density {DENSITY}", via=FLOPS)
    counts = masks.uniform_counts(RESNET.layout, DENSITY)
    forward = RESNET.layout.flops_of(counts)
    computed = _totals(forward)
    yield line("FLOPs of a forward pass", DERIVED, "555,468,900", forward)
    yield line("GB", "Table 4", "448.8", RESNET.gigabytes(sum(counts), sum(counts)), via="core.masks.uniform_counts")
    for setting, (total, note) in zip(SETTINGS, computed, strict=True):
        yield line(f"{setting}, 1e16 FLOPs", "Table 4", "4.6", total, note=note)
    saved = 100 * (1 - computed[0][0] / _totals(RESNET.erk())[0][0])
    why = "taken from rounded figures, 1 - 4.6/7.0"
    yield from compared(line, "FLOPs saved against ERK, %", "App. B.4", "34.3", saved, "34.86", why)


def _totals(forward: int) -> list[tuple[float, str]]:
    """DST's operations by setting in the unit of Tables 3 and 4, each with a note on the samples they are taken at."""
    share = forward / RESNET.layout.flops()
    dense = [(RESNET.dense, "")] + [
        (value(whole) * TABLE_1, f"samples as in Table 1, where dense is {whole}") for whole in PRINTED[2].dense[1:]
    ]
    return [((total * share + RESNET.search) / TABLE_3, note) for total, note in dense]


def _steps() -> Iterator[Line]:
    line = partial(Line, "Steps of the algorithm")
    horizons: dict[Literal["T-1", "T"], tuple[str, ...]] = {
        "T-1": ("0.5", "0.4268", "0.25", "0.0732", "0.0"),
        "T": ("0.5", "0.4523", "0.3273", "0.1727", "0.0477"),
    }
    for horizon, rates in horizons.items():
        for t, printed in enumerate(rates):
            rate = masks.cosine(0.5, t, len(rates), horizon)
            what = f"share dropped at t = {t}, T = {len(rates)}, horizon {horizon}"
            yield line(what, DERIVED, printed, rate, via="core.masks.cosine")
    vector = Layout((Slot("weight", (100,), "weight", "", 0, 1),))
    dropped = masks.drop_counts(vector, torch.arange(100) < 50, 0.3)[0]
    yield line("dropped of 50, share 0.3", DERIVED, "15", dropped, via="core.masks.drop_counts")
    norms: dict[Literal["dense", "masked"], str] = {"dense": "6.0", "masked": "10.0"}
    for of, printed in norms.items():
        kept = _clipped((30.0, 40.0), (True, False), 10.0, of)
        what = f"gradient (30, 40), mask (1, 0), {of} norm clipped at 10"
        yield line(what, DERIVED, printed, kept, via="core.descent.descend")
    cases = (("both of two hold", "1.0"), ("one of two holds", "0.5"), ("neither holds", "0.0"))
    for (who, printed), move in zip(cases, _moves(), strict=True):
        what = f"move of a weight that {who}, if each changes it by 1"
        yield line(what, DERIVED, printed, move, via="methods.fedspa.FedSpa.merge")


def _clipped(gradient: tuple[float, ...], mask: tuple[bool, ...], clip: float, of: Literal["dense", "masked"]) -> float:
    """How far the first weight moves in one step of training, at learning rate 1, from a given gradient."""
    x = 2 * torch.tensor([gradient])  # the gradient of a logistic unit at weight zero and label 0 is x / 2
    ctx = context(nn.Linear(len(gradient), 1, bias=False), x)
    samples = Samples(x, torch.zeros(1, dtype=torch.int64), torch.arange(1))
    start = torch.zeros_like(ctx.theta0)
    batches, sgd = samples.epochs(Rng(0), 1, 1), SGD(lr=1.0, clip=clip, clip_of=of)
    end, _ = descend(ctx.task, start, batches, sgd, mask=torch.tensor(mask))
    return float((start - end)[0])


def _moves() -> list[float]:
    """How far a round of two clients moves the server's weights; the first is in both masks, the second in one."""
    ctx = context(nn.Linear(3, 1, bias=False), torch.zeros(1, 3))
    theta = torch.tensor([3.0, 2.0, 1.0])
    held = [torch.tensor(mask) for mask in ((True, True, False), (True, False, False))]
    answers = [(k, (theta[mask] - 1, mask, mask)) for k, mask in enumerate(held)]
    return [float(move) for move in theta - FedSpa().merge(Server(theta), answers, ctx).theta]
