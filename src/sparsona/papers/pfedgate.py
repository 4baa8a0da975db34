"""The figures of pFedGate ("Efficient Personalized Federated Learning via Sparse Model-Adaptation") without training.

Sizes of models and gates, blocks by B, what the knapsack achieves for importances at random, and the toys of splitting
and aggregation. The costs of its Table 5 are formulas; their terms are those of one round on digits, as it is recorded.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import torch
from torch import nn

from sparsona.core.rng import Rng
from sparsona.core.training import Ctx
from sparsona.experiment.recipe import check
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.methods.pfedgate.knapsack import Budget
from sparsona.methods.pfedgate.pfedgate import PFedGate
from sparsona.models import build, example
from sparsona.papers.line import DERIVED, Line, compared
from sparsona.papers.sizes import context, layout_of, value_bytes

DRAWS = 400
MODELS = {  # by data set: model, classes, shape; entries, those printed; blocks at B = 2, 5, 10; gate; its ratio in %
    "EMNIST": ("cnn-emnist", 62, (1, 28, 28), "2,278,334", "2,171,786", ("16", "40", "78"), "62,720", "62,968", "2.75"),
    "CIFAR-10": (
        "lenet-cifar",
        10,
        (3, 32, 32),
        "256,830",
        "256,830",
        ("20", "50", "99"),
        "307,200",
        "307,512",
        "119.6",
    ),
    "CIFAR-100": (
        *("cnn-cifar100", 100, (3, 32, 32), "3,537,444", "3,537,444"),
        *(("16", "40", "79"), "245,760", "246,012", "6.95"),
    ),
}
ACHIEVED: dict[str, dict[Budget, tuple[str, str]]] = {  # mean share kept at s = 0.5 and 0.3
    "EMNIST": {"reference": ("0.434", "0.246"), "exact": ("0.448", "0.264")},
    "CIFAR-10": {"reference": ("0.432", "0.242"), "exact": ("0.486", "0.293")},
    "CIFAR-100": {"reference": ("0.436", "0.247"), "exact": ("0.444", "0.259")},
}
ROUND = {
    "name": "costs",
    "rounds": 1,
    "data": {"source": "digits", "clients": 10},
    "model": {"name": "digits-mlp"},
    "method": {"name": "pfedgate", "lr": 0.3, "batch": 16, "drop_last": True, "keep": 0.5, "budget": "exact"},
    "fleet": {"per_round": 1},
    "evaluate": {"points": ["after"]},
    "engine": {"name": "local"},
    "results": {"figures": False},
}
TEN = "the printed count is that of ten classes; the data has 62"


LAYOUT, SPLIT, MERGE = (
    "core.layout.Layout.of",
    "methods.pfedgate.blocks.flat",
    "methods.pfedgate.pfedgate.PFedGate.merge",
)


def pfedgate() -> Iterator[Line]:
    """pFedGate, "Efficient Personalized Federated Learning via Sparse Model-Adaptation"."""
    contexts = {data: _context(*given[:3]) for data, given in MODELS.items()}
    yield from _sizes(contexts)
    yield from _achieved(contexts)
    yield from _costs()
    yield from _splitting(contexts["CIFAR-10"])
    yield from _aggregation()


def _context(name: str, classes: int, shape: tuple[int, ...]) -> Ctx:
    model = build(name, classes, shape)
    return context(model, example(model, shape))


def _sizes(contexts: dict[str, Ctx]) -> Iterator[Line]:
    line = partial(Line, "Sizes", via=LAYOUT)
    for data, (name, _, shape, entries, printed, blocks, weights, whole, ratio) in MODELS.items():
        ctx = contexts[data]
        params, known = ctx.layout.params, TEN if entries != printed else ""
        yield from compared(line, f"parameters, {data}", "App. H", printed, params, entries, known)
        if known:
            yield line(f"parameters, {data}, ten classes", "App. H", printed, layout_of(name, 10, shape).params)
        for count, expected in zip((2, 5, 10), blocks, strict=True):
            cut = PFedGate(blocks=count).gated(0.5, ctx).blocks
            yield line(f"blocks at B = {count}, {data}", DERIVED, expected, len(cut), via=SPLIT)
        gate = PFedGate().gated(0.5, ctx).gate
        linear = sum(w.numel() for w in gate.weights if w.dim() == 2)
        via = "methods.pfedgate.pfedgate.PFedGate.gated"
        yield line(f"weights of the gate, {data}", DERIVED, weights, linear, via=via)
        yield line(f"all of the gate, {data}", DERIVED, whole, gate.layout.params, via=via)
        yield line(f"gate's weights over the model's, %, {data}", DERIVED, ratio, 100 * linear / params, via=via)


def _achieved(contexts: dict[str, Ctx]) -> Iterator[Line]:
    section = f"Share kept, importances at random, B = 5, mean of {DRAWS} draws"
    line = partial(Line, section, via="methods.pfedgate.knapsack.select")
    note = "a mean over draws; the paper's importances are learnt"
    for data, ctx in contexts.items():
        for budget, figures in ACHIEVED[data].items():
            for keep, figure, printed in zip((0.5, 0.3), figures, ("0.43", "0.25"), strict=True):
                gated = PFedGate(budget=budget).gated(keep, ctx)
                draws = (Rng(1, i).uniform(len(gated.blocks)) for i in range(DRAWS))
                mean = fmean(gated.blocks.share(gated.choose(importance)) for importance in draws)
                yield line(f"s = {keep}, {budget} budget, {data}", DERIVED, figure, mean, 0.01, note)
                if budget == "reference":
                    yield line(f"s = {keep}, {data}", "Table 1", printed, mean, 0.01, note)


def _costs() -> Iterator[Line]:
    line = partial(Line, "Table 5, in units of d: one client, one round of digits, as recorded")
    recipe = check(ROUND)
    with TemporaryDirectory() as folder:
        row = run(recipe, Path(folder) / "run").rounds[0]
    (device, fleet), (k,), method = prepare(recipe), row["participants"], recipe.method
    assert isinstance(method, PFedGate)
    d, samples = device.task.layout.params, len(fleet.local(k)) // method.batch * method.batch
    gate = sum(w.numel() for w in method.gated(0.5, device.ctx(0, "check")).gate.weights if w.dim() == 2)
    share = 1 - row["notes"]["sparsity"] + gate / d  # s + s_phi
    sent, once = row["notes"]["sent"], 2 * d * samples  # q; every weight of d in a product and a sum
    yield line(
        "download", "Table 5", "1", row["paper_down"] / value_bytes(d), via="methods.pfedgate.pfedgate.PFedGate.down"
    )
    what = "upload, as q, the share that the client says it sent"
    upload = row["paper_up"] / value_bytes(d)
    yield line(what, DERIVED, f"{sent:.4f}", upload, via="methods.pfedgate.pfedgate.PFedGate.local")
    note = "a bias is one operation, not two, and s_phi counts only the gate's weights"
    via = "methods.pfedgate.sparse_adaptation.Gated.gradients"
    yield line("inference, as s + s_phi", DERIVED, f"{share:.3f}", row["forward"] / once, 0.01, note, via=via)
    twice = f"{note}; the paper has 2 (s + s_phi), though a backward pass takes twice a forward one"
    yield line("training, as 3 (s + s_phi)", DERIVED, f"{3 * share:.3f}", row["flops"] / once, 0.03, twice, via=via)


def _splitting(lenet: Ctx) -> Iterator[Line]:
    line = partial(Line, "Splitting by hand", via=SPLIT)
    vector = context(nn.Linear(25, 1, bias=False), torch.zeros(1, 25))
    sizes = PFedGate(blocks=10).gated(0.5, vector).blocks.sizes.tolist()
    yield line("25 entries, B = 10: blocks", DERIVED, "9", len(sizes))
    for place, printed in ((0, "2"), (1, "3"), (-1, "2")):
        yield line(f"25 entries, B = 10: entries of block {place % len(sizes)}", DERIVED, printed, sizes[place])
    blocks = PFedGate().gated(0.5, lenet).blocks
    for slot, counts in zip(blocks.layout.slots, blocks.counts.T.tolist(), strict=True):
        if slot.size in (10, 84):
            first, *_, last = (n for n in counts if n)
            what = f"LeNet's bias of {slot.size} entries, B = 5: entries of the"
            yield line(f"{what} first block", DERIVED, {10: "2", 84: "16"}[slot.size], first)
            yield line(f"{what} last block", DERIVED, {10: "2", 84: "17"}[slot.size], last)


def _aggregation() -> Iterator[Line]:
    """Each entry is a block; the server's weights are 10 and one more than the clients'."""
    line = partial(Line, "Aggregation by hand: weights 1 to 4 of clients with 10 to 40 samples", via=MERGE)
    ctx, server = context(nn.Linear(4, 1, bias=False), torch.zeros(1, 4)), torch.full((4,), 10.0)
    sent = [torch.tensor(m).bool() for m in ((1, 0, 1, 0), (0, 1, 1, 0), (1, 1, 0, 0), (1, 1, 1, 0))]
    answers = [(k, (torch.full((int(m.sum()),), k + 1.0), m, 10 * (k + 1))) for k, m in enumerate(sent)]
    merged = PFedGate().merge(server, answers, ctx).tolist()
    senders = ("1, 3 and 4", "2, 3 and 4", "1, 2 and 4", "nobody: the server's 10")
    for who, mean, weight in zip(senders, ("3.250", "3.222", "3.000", "10.000"), merged, strict=True):
        yield line(f"a block sent by {who}", DERIVED, mean, weight)
