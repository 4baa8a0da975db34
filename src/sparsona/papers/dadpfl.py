"""The figures of DA-DPFL that need no training.

The paper: "Decentralized Personalized Federated Learning based on a Conditional 'Sparse-to-Sparser' Scheme".
Communication is what the busiest client sends to its neighbours in a round, one direction, in MiB though the paper
writes MB. Training counts three forward passes per sample. Waits and their delays are those of one training time for
everybody. The paper does not state HAM10000's samples per client: they are derived from its dense figure, which is
therefore not among the figures here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal

import torch

from sparsona.core import masks, topology
from sparsona.core.layout import Layout
from sparsona.core.rng import Rng
from sparsona.core.topology import RoundPlan, Topology
from sparsona.methods.dadpfl.pruning import PQ, prune_rounds
from sparsona.papers.line import DERIVED, Line, compared, half_step, value
from sparsona.papers.sizes import layout_of, value_bytes
from sparsona.papers.waiting import Pick, finishes, graph, waiting
from sparsona.reports.costs import DeviceModel

CLIENTS, NEIGHBOURS, EPOCHS, BATCH = 100, 10, 5, 128  # Section VI-A
DENSITY = 0.5
SHORTCUTS = ("*.shortcut.0.weight",)
LAYOUT, FLOPS, BYTES = "core.layout.Layout.of", "core.layout.Layout.flops", "core.wire.Message.value_nbytes"
PRUNING, WAITING = "methods.dadpfl.pruning", "papers.waiting.waiting"
PLAN, CHANCE = "core.topology.Topology.plan", "core.topology.prior_probability"
MIB, UNIT = 2**20, 1e12  # of Table II
DRAWS, COMPARED = 2000, 5  # random graphs for each delay; and for holding the fast way to it against the plain one


@dataclass(frozen=True, kw_only=True)
class DADPFLTask:
    """One of the paper's three tasks: what is printed of it, and what it costs."""

    name: str
    model: str
    classes: int  # of the model that is counted
    shape: tuple[int, ...]
    samples: int | None  # per client, if the paper states them
    params: str
    forward: str
    dense: str  # MiB; from here on Table II
    half: str
    sparser: tuple[tuple[str, str, str], ...]  # setting, sparsity at the end, MiB
    dense_flops: str
    sam_flops: str
    sparse_flops: str
    searched: bool  # whether the printed figure of sparse training holds the batch that masks are searched with
    kept: tuple[str, ...] = ()  # weights that ERK leaves dense
    stated: dict[str, tuple[str, str]] = field(default_factory=dict)  # the derived figure, why the printed one differs

    @cached_property
    def layout(self) -> Layout:
        """The model's tensors."""
        return layout_of(self.model, self.classes, self.shape)

    @cached_property
    def scope(self) -> list[bool]:
        """Which tensors are sparse."""
        return masks.weights(self.layout, self.kept)

    def mib(self, sparsity: float = 0.0) -> float:
        """What goes to the neighbours of a client in a round."""
        return NEIGHBOURS * value_bytes(masks.kept(self.layout.params, sparsity)) / MIB

    @property
    def each(self) -> float:
        """Samples per client: as stated, or as the dense figure implies."""
        return self.samples or value(self.dense_flops) * UNIT / (3 * EPOCHS * self.layout.flops())

    def training(self, forward: int) -> float:
        """Operations of a client's round with this forward pass, in the unit of Table II."""
        return 3 * EPOCHS * self.each * forward / UNIT

    @property
    def search(self) -> float:
        """Operations of the dense batch that masks are searched with."""
        return 3 * BATCH * self.layout.flops() / UNIT

    def erk(self) -> int:
        """Operations of a forward pass under ERK."""
        return self.layout.flops_of(masks.erk_counts(self.layout, DENSITY, self.scope))


ALEXNET = DADPFLTask(
    name="AlexNet on HAM10000",
    model="alexnet",
    classes=10,
    shape=(3, 64, 64),
    samples=None,
    params="23,272,266",
    forward="376,045,578",
    dense="887.8",
    half="443.8",
    sparser=(("Dir", "0.61", "346.2"), ("Pat", "0.56", "394.4")),
    dense_flops="3.6",
    sam_flops="7.2",
    sparse_flops="2.0",
    searched=False,
    stated={
        "seven": ("887.30", "the figure is that of 10 classes; the data have 7"),
        "half": ("443.88", "cut off, not rounded"),
        "sparse_flops": ("2.40", "ERK at density 0.5 costs two thirds of the dense figure"),
    },
)
RESNET = DADPFLTask(
    name="ResNet18 on CIFAR-10",
    model="resnet18-gn",
    classes=10,
    shape=(3, 32, 32),
    samples=500,
    params="11,173,962",
    forward="1,110,845,450",
    dense="426.3",
    half="223.1",
    sparser=(("Dir", "0.65", "149.1"), ("Pat", "0.73", "115.1")),
    dense_flops="8.3",
    sam_flops="17",
    sparse_flops="7.1",
    searched=True,
    kept=SHORTCUTS,
    stated={"half": ("213.13", "a slip: half of the dense figure, which agrees, is 213.1")},
)
VGG = DADPFLTask(
    name="VGG11 on CIFAR-100",
    model="vgg11-gn",
    classes=100,
    shape=(3, 32, 32),
    samples=500,
    params="9,277,284",
    forward="305,782,884",
    dense="353.3",
    half="176.7",
    sparser=(("Dir", "0.70", "107.7"), ("Pat", "0.73", "94.8")),
    dense_flops="2.3",
    sam_flops="4.6",
    sparse_flops="1.6",
    searched=False,
    stated={
        "dense": ("353.90", "0.2 % less than the model has, whose FLOPs agree"),
        "half": ("176.95", "half of the dense figure, which differs too"),
    },
)
DELAYS: dict[int, dict[int, str]] = {  # M: N: delay
    1: {1: "4.47"},
    2: {1: "4.38", 2: "6.19"},
    5: {1: "4.04", 2: "5.77", 5: "11.02"},
    10: {1: "3.76", 2: "5.28", 5: "10.21", 10: "18.27"},
    20: {1: "3.44", 2: "4.78", 5: "9.08", 10: "16.2", 20: "30.2"},
    50: {1: "3.11", 2: "4.06", 5: "7.38", 10: "13.4", 20: "24.7", 50: "58.6"},
}
BY_ID = {10: {1: "4.77", 2: "6.48", 5: "11.35"}}


def dadpfl() -> Iterator[Line]:
    """DA-DPFL, "Decentralized Personalized Federated Learning based on a Conditional 'Sparse-to-Sparser' Scheme"."""
    for job in (ALEXNET, RESNET, VGG):
        yield from _model(job)
        yield from _communication(job)
        yield from _training(job)
    yield from _erk()
    yield from _cost()
    yield from _prior()
    yield from _parallelism()
    yield from _figure_1()
    yield from _delay()
    yield from _index()
    yield from _schedule()


def _model(job: DADPFLTask) -> Iterator[Line]:
    line = partial(Line, job.name, via=LAYOUT)
    yield line("parameters", DERIVED, job.params, job.layout.params)
    if job is ALEXNET:
        seven = layout_of(job.model, 7, job.shape)
        yield line("parameters with 7 classes", DERIVED, "23,259,975", seven.params)
        yield line("FLOPs of a forward pass, 7 classes", DERIVED, "376,020,999", seven.flops(), via=FLOPS)
    yield line("FLOPs of a forward pass", DERIVED, job.forward, job.layout.flops(), via=FLOPS)


def _communication(job: DADPFLTask) -> Iterator[Line]:
    line = partial(Line, f"{job.name}, communication of the busiest client, MiB", via=BYTES)
    yield from compared(line, "dense", "Table II", job.dense, job.mib(), *job.stated.get("dense", ()))
    if job is ALEXNET:
        seven = NEIGHBOURS * value_bytes(layout_of(job.model, 7, job.shape).params) / MIB
        yield from compared(line, "dense, 7 classes", "Table II", job.dense, seven, *job.stated["seven"])
    yield from compared(line, "half", "Table II", job.half, job.mib(1 - DENSITY), *job.stated.get("half", ()))
    for setting, sparsity, printed in job.sparser:
        blur = half_step(sparsity) * job.mib() + half_step(printed)
        note = "the sparsity is printed with two decimals"
        what = f"DA-DPFL, {setting}, sparsity {sparsity}"
        yield line(what, "Table II", printed, job.mib(value(sparsity)), blur, note)


def _training(job: DADPFLTask) -> Iterator[Line]:
    line = partial(Line, f"{job.name}, training of a client and round, 1e12 FLOPs", via=FLOPS)
    what = "FedDST and DisPFL, ERK at density 0.5"
    if job.samples is None:
        note = f"the paper does not state them; {job.dense_flops} is rounded, so that it may be 9 more or fewer"
        yield line(
            f"samples per client, by {job.dense_flops}e12 FLOPs of dense training", DERIVED, "638", job.each, note=note
        )
        what += f", if dense is {job.dense_flops}"
    else:
        dense = job.training(job.layout.flops())
        yield line("dense", "Table II", job.dense_flops, dense)
        yield line("DFedSAM, two passes", "Table II", job.sam_flops, 2 * dense)
    line, sparse = partial(line, via="core.masks.erk_counts"), job.training(job.erk())
    what += ", shortcuts dense" if job.kept else ""
    what += ", and a dense batch" if job.searched else ""
    total = sparse + job.search * job.searched
    yield from compared(line, what, "Table II", job.sparse_flops, total, *job.stated.get("sparse_flops", ()))
    if job is VGG:
        yield line(f"{what}, and a dense batch", DERIVED, "1.73", sparse + job.search)


def _erk() -> Iterator[Line]:
    line = partial(Line, f"{RESNET.name}, ERK at density {DENSITY}", via="core.masks.erk_counts")
    layout = RESNET.layout
    for what, kept, size, ones in (
        ("all weights", (), "11,164,352", "5,582,173"),
        ("weights less shortcuts", SHORTCUTS, "10,992,320", "5,496,157"),
    ):
        scope = masks.weights(layout, kept)
        counts = masks.erk_counts(layout, DENSITY, scope)
        inside = sum(n for n, ok in zip(layout.sizes, scope, strict=True) if ok)
        yield line(what, DERIVED, size, inside, via="core.masks.weights")
        yield line(f"{what}, kept", DERIVED, ones, sum(n for n, ok in zip(counts, scope, strict=True) if ok))
        if kept:
            yield line("other parameters, dense", DERIVED, "181,642", layout.params - inside, via="core.masks.weights")


def _cost() -> Iterator[Line]:
    line = partial(Line, f"{RESNET.name}, cost of a dense client and round", via="reports.costs.DeviceModel.cost")
    flops = RESNET.training(RESNET.layout.flops()) * UNIT
    nbytes = RESNET.mib() * MIB
    computing, sending = DeviceModel().cost(flops, 0), DeviceModel().cost(0, nbytes)
    yield line("computing, s", DERIVED, "0.521", computing.seconds)
    yield line("computing, J", DERIVED, "234.3", computing.joules)
    yield line("communication, s", DERIVED, "3.576", sending.seconds)
    yield line("communication, J", DERIVED, "3.58", sending.joules)


def _prior() -> Iterator[Line]:
    line = partial(Line, f"Proposition 1, {CLIENTS} clients that read {NEIGHBOURS} others", via=CHANCE)
    middle = ("0.000659", "0.00788", "0.040526", "0.118123", "0.216111", "0.259334")
    known: dict[int, dict[int, str]] = {
        1: {0: "1"},
        2: {0: "0.89899", 1: "0.10101"},
        50: dict(enumerate(middle)),
        100: {10: "1"},
    }
    for k, chances in known.items():
        for m, printed in chances.items():
            chance = topology.prior_probability(k, CLIENTS, NEIGHBOURS, m)
            yield line(f"chance that the client in place {k} reads {m} earlier ones", DERIVED, printed, chance)
    line = partial(Line, "Effective local steps, relative to those of a client", via=CHANCE)
    for fleet, neighbours, printed in ((6, 2, "1.3333"), (100, 10, "1.4545"), (100, 99, "1.495")):
        what = f"{fleet} clients that read {neighbours} others"
        yield line(what, DERIVED, printed, 1 + _earlier(fleet, neighbours) / (neighbours + 1))


def _earlier(clients: int, neighbours: int) -> float:
    """How many earlier ones a client reads, on average over places: their models are a round ahead."""
    chance = partial(topology.prior_probability, clients=clients, neighbours=neighbours)
    return sum(m * chance(k, m=m) for k in range(1, clients + 1) for m in range(neighbours + 1)) / clients


def _parallelism() -> Iterator[Line]:
    line = partial(Line, f"Parallelism: the share of {CLIENTS} clients that start at once (Figure 8)", via=CHANCE)
    for neighbours, printed in ((1, "0.5"), (2, "0.333"), (5, "0.1667"), (10, "0.0909"), (20, "0.0476"), (99, "0.01")):
        places = range(1, CLIENTS + 1)
        chance = sum(topology.prior_probability(k, CLIENTS, neighbours, 0) for k in places) / CLIENTS
        yield line(f"M = {neighbours}, by Proposition 1", DERIVED, printed, chance)
    plan = Topology(neighbours=NEIGHBOURS, max_wait=0).plan(CLIENTS, 0, 1, Rng(1))
    yield line("N = 0", DERIVED, "1", len(plan.waves()[0]) / CLIENTS, via=PLAN)


def _plan(reads: topology.Reads, max_wait: int, pick: Pick = "fastest") -> RoundPlan:
    """A round of a run with this graph, in which clients train in the order of their numbers."""
    pairs = tuple((j, k) for k, others in reads.items() for j in others)
    graph = Topology(name="edges", pairs=pairs, directed=True, order="id", max_wait=max_wait, pick=pick)
    return graph.plan(len(reads), 0, 1, Rng(1))


def _figure_1() -> Iterator[Line]:
    line = partial(Line, "Who waits for whom, 6 clients that read 2 others", via=PLAN)
    # earlier ones as printed; the later ones are of no account; the paper numbers clients from 1, a run from 0
    reads = {0: (4, 5), 1: (2, 3), 2: (1, 5), 3: (4, 5), 4: (0, 5), 5: (0, 4)}
    printed: dict[int, dict[int, tuple[str, ...]]] = {
        0: {},
        1: {3: ("2",), 5: ("1",), 6: ("1",)},
        2: {3: ("2",), 5: ("1",), 6: ("1", "5")},
    }
    for wait, awaited in printed.items():
        plan = _plan(reads, wait)
        yield line(f"N = {wait}: start at once", "Fig. 1", str(6 - len(awaited)), len(plan.waves()[0]))
        for k, nodes in awaited.items():
            fresh = sorted(j + 1 for j in plan.fresh[k - 1])
            yield line(f"N = {wait}: clients that {k} waits for", "Fig. 1", str(len(nodes)), len(fresh))
            for node, j in zip(nodes, fresh, strict=False):  # their number is a separate line
                yield line(f"N = {wait}: {k} waits for client {node}", "Fig. 1", node, j)
    together = _plan(reads, 1).waves()[1]
    yield line("N = 1: then train together", "Remark 2", "3", len(together))


def _delay() -> Iterator[Line]:
    line = partial(Line, f"Delay: length of a round of {CLIENTS} clients in training times (Figure 9)", via=WAITING)
    note = f"a mean over {DRAWS} random graphs against one over others: 3 % allowed"
    picks: dict[Pick, dict[int, dict[int, str]]] = {"fastest": DELAYS, "smallest id": BY_ID}
    pairs = []
    for pick, rows in picks.items():
        simulation = waiting(CLIENTS, list(rows), sorted({n for row in rows.values() for n in row}), DRAWS, pick=pick)
        for m, row in rows.items():
            for n, printed in row.items():
                mean = simulation.delay[m, n].mean
                what = f"M = {m}, N = {n}" + ("" if pick == "fastest" else f", waiting for the {pick}")
                yield line(what, DERIVED, printed, mean, 0.03 * value(printed), note)
                pairs.append((m, n, pick))
        if pick == "fastest":
            ratio = simulation.delay[20, 20].mean / simulation.delay[10, 10].mean
            quote = "the paper says: approximately double; a mean over random graphs, 3 % allowed"
            yield line("M = N = 20 relative to M = N = 10", DERIVED, "1.65", ratio, 0.03 * 1.65, quote)
    differ = sum(_lengths(m, n, pick) for m, n, pick in pairs)
    yield line(f"of {len(pairs) * COMPARED} rounds, other than by the clock of a run", DERIVED, "0", differ, via=PLAN)
    for wait, printed in ((0, "1"), (1, "2"), (2, "3"), (5, "6"), (10, "11"), (20, "21"), (99, "100")):
        waves = Topology(name="full", max_wait=wait).plan(CLIENTS, 0, 1, Rng(1)).waves()
        yield line(f"M = 99, N = {wait}", DERIVED, printed, len(waves), via=PLAN)


def _lengths(neighbours: int, wait: int, pick: Pick) -> int:
    """On how many graphs the simulator and the plan of a real round disagree about the time that a round takes."""
    differ = 0
    for i in range(COMPARED):
        reads = graph(CLIENTS, neighbours, Rng(1, "compared", i))
        plan = _plan(dict(enumerate(map(tuple, reads.tolist()))), wait, pick)
        differ += len(plan.waves()) != int(finishes(reads[None], wait, pick).max())
    return differ


def _index() -> Iterator[Line]:
    line = partial(Line, "PQ index, p = 0.5, q = 1, and how many entries it prunes", via=f"{PRUNING}.PQ.index")
    less = partial(line, via=f"{PRUNING}.PQ.spare")
    pq = PQ()
    for name, entries, index, pruned in (
        ("1, 1, 1, 1", [1.0] * 4, "0", "0"),
        ("8, 4, 2, 1, 1/2, ..., 1/16", [2.0**i for i in range(3, -5, -1)], "0.35716", "2"),
        ("4, 3, 2, 1", [4.0, 3.0, 2.0, 1.0], "0.05559", "0"),
        ("1, 0, 0, 0", [1.0, 0.0, 0.0, 0.0], "0.75", "3"),
    ):
        yield line(f"index of {name}", DERIVED, index, pq.index(torch.tensor(entries)))
        yield less(f"pruned of {name}", DERIVED, pruned, pq.spare(torch.tensor(entries)))
    steps = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000
    normal, uniform = torch.special.ndtri(steps), 2 * steps - 1
    yield line("index of a standard normal", DERIVED, "0.15279", pq.index(normal))
    yield line("index of a uniform on -1 to 1", DERIVED, "0.11111", pq.index(uniform))
    printed = PQ(eta=1.0, gamma=0.9)
    share = 100 / len(normal)
    yield less("pruned of a standard normal, %", DERIVED, "15", share * pq.spare(normal))
    yield less("the same with gamma 0.9 and eta 1, as printed", DERIVED, "71", share * printed.spare(normal))
    yield less("pruned of 1, 1, 1, 1, as printed", DERIVED, "2", printed.spare(torch.ones(4)))


def _schedule() -> Iterator[Line]:
    line = partial(Line, "Rounds to prune in, no delay", via=f"{PRUNING}.prune_rounds")
    Rounding = Literal["ceil", "reference"]
    known: tuple[tuple[int, float, int, Rounding, tuple[str, ...]], ...] = (
        (150, 1.3, 500, "ceil", ("150", "266", "355", "424", "477")),
        (100, 1.4, 300, "ceil", ("100", "172", "224", "261", "288")),
        (175, 1.3, 500, "ceil", ("175", "310", "414", "494")),
        (150, 1.3, 500, "reference", ("150", "265", "353", "421", "473")),
    )
    for first, factor, rounds, rounding, printed in known:
        pruned = prune_rounds(first, 0, factor, rounds, rounding)
        what = f"from {first}, c = {factor}, T = {rounds}"
        what += ", rounded as in the reference code" if rounding == "reference" else ""
        yield line(f"{what}: prunings", DERIVED, str(len(printed)), len(pruned))
        for i, (t, at) in enumerate(zip(printed, pruned, strict=False), start=1):
            yield line(f"{what}: no. {i}", DERIVED, t, at)
