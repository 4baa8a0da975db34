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

from sparsona.core.aggregate import overlap_mean
from sparsona.core.rng import Rng
from sparsona.experiment.recipe import check
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.methods.pfedgate.blocks import equal, even
from sparsona.methods.pfedgate.gate import Gate
from sparsona.methods.pfedgate.knapsack import Budget, greedy_value, select
from sparsona.methods.pfedgate.pfedgate import PFedGate
from sparsona.papers.line import Line
from sparsona.papers.sizes import layout_of, value_bytes

DERIVED = "derived"
DRAWS = 400
MODELS = {  # by data set: model, classes, shape; entries, those printed; blocks at B = 2, 5, 10; gate; its ratio in %
    "EMNIST": ("cnn-emnist", 62, (1, 28, 28), "2,278,334", "2,171,786", ("16", "40", "77"), "62,720", "62,968", "2.75"),
    "CIFAR-10": (
        "lenet-cifar",
        10,
        (3, 32, 32),
        "256,830",
        "256,830",
        ("20", "50", "98"),
        "307,200",
        "307,512",
        "119.6",
    ),
    "CIFAR-100": (
        *("cnn-cifar100", 100, (3, 32, 32), "3,537,444", "3,537,444"),
        *(("16", "40", "78"), "245,760", "246,012", "6.95"),
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


def pfedgate() -> Iterator[Line]:
    """pFedGate, "Efficient Personalized Federated Learning via Sparse Model-Adaptation"."""
    yield from _sizes()
    yield from _achieved()
    yield from _costs()
    yield from _toys()


def _sizes() -> Iterator[Line]:
    line = partial(Line, "Sizes")
    for data, (name, classes, shape, entries, printed, blocks, weights, whole, ratio) in MODELS.items():
        layout = layout_of(name, classes, shape)
        yield line(f"parameters, {data}", "App. H", printed, layout.params, stated="" if entries == printed else TEN)
        if entries != printed:
            yield line(f"parameters, {data}", DERIVED, entries, layout.params)
            yield line(f"parameters, {data}, ten classes", "App. H", printed, layout_of(name, 10, shape).params)
        for count, expected in zip((2, 5, 10), blocks, strict=True):
            yield line(f"blocks at B = {count}, {data}", DERIVED, expected, len(even(layout.trained, count, 1 / count)))
        gate = Gate(shape, len(even(layout.trained, 5, 0.2)))
        yield line(f"weights of the gate, {data}", DERIVED, weights, gate.linear.weight.numel())
        yield line(f"all of the gate, {data}", DERIVED, whole, sum(p.numel() for p in gate.parameters()))
        share = 100 * gate.linear.weight.numel() / layout.params
        yield line(f"gate's weights over the model's, %, {data}", DERIVED, ratio, share)


def _achieved() -> Iterator[Line]:
    line = partial(Line, f"Share kept, importances at random, B = 5, mean of {DRAWS} draws")
    note = "a mean over draws; the paper's importances are learnt"
    for data, (name, classes, shape, *_) in MODELS.items():
        blocks = even(layout_of(name, classes, shape).trained, 5, 0.2)
        for budget, figures in ACHIEVED[data].items():
            for keep, figure, printed in zip((0.5, 0.3), figures, ("0.43", "0.25"), strict=True):
                draws = (Rng(1, i).uniform(len(blocks)) for i in range(DRAWS))
                mean = fmean(blocks.share(select(g, blocks, keep, 0.2, greedy_value, budget)) for g in draws)
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
    yield line("download", "Table 5", "1", row["paper_down"] / value_bytes(d))
    yield line(
        "upload, as q, the share that the client says it sent", DERIVED, f"{sent:.4f}", row["paper_up"] / value_bytes(d)
    )
    note = "a bias is one operation, not two, and s_phi counts only the gate's weights"
    yield line("inference, as s + s_phi", DERIVED, f"{share:.3f}", row["forward"] / once, 0.01, note)
    stated = "the paper counts the backward pass as much as the forward one; here it is twice as much"
    yield line("training, as 2 (s + s_phi)", DERIVED, f"{2 * share:.2f}", row["flops"] / once, stated=stated)


def _toys() -> Iterator[Line]:
    line = partial(Line, "Toys of splitting and aggregation")
    yield line("25 entries, B = 10: blocks", DERIVED, "9", len(equal(25, 10)))
    yield line("25 entries, B = 10: entries of the last", DERIVED, "1", equal(25, 10)[-1])
    yield line("LeNet's output bias, B = 5: entries of the last", DERIVED, "2", equal(10, 5)[-1])
    yield line("84 entries, B = 5: entries of the last", DERIVED, "16", equal(84, 5)[-1])
    masks = [torch.tensor(m).bool() for m in ((1, 0, 1), (0, 1, 1), (1, 1, 0), (1, 1, 1))]
    values = [torch.full((3,), float(k)) for k in (1, 2, 3, 4)]
    merged = overlap_mean(values, masks, (10, 20, 30, 40))
    for block, mean in enumerate(("3.250", "3.222", "3.000")):
        what = f"block {block} of four clients with updates 1 to 4 and 10 to 40 samples"
        yield line(what, "Fig. 2", mean, float(merged[block]))
