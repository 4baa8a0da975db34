"""The figures of PerFedMask ("Personalized Federated Learning with Optimized Masking Vectors") that need no training.

Its toy example (Table 6) in full, sizes of models and layers, trained parameters, and the optima of its mask design.
Fractions are given with four decimals. Printed figures that no binary layer mask can give are listed with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from sparsona.core.layout import Layout, ones_in
from sparsona.core.rng import Rng
from sparsona.methods.heterofl import leading
from sparsona.methods.perfedmask.baselines import sequential
from sparsona.methods.perfedmask.local_search import optimised
from sparsona.methods.perfedmask.problem import Layers, Problem, Solution, bias, shares
from sparsona.papers.line import Line
from sparsona.papers.sizes import layout_of

DERIVED = "derived"
DEVICES = 100
MILLION = 1e6
# by scenario: budgets of devices 1 and 2, then per selection their masks, shares of the three devices and bias;
# device 3 trains all
TOY: dict[str, tuple[tuple[int, int], tuple[tuple[str, str, tuple[str, str, str], str], ...]]] = {
    "a": (
        (1, 1),
        (("1000", "1000", ("0.3333", "0.3333", "1"), "2.6667"), ("1000", "0100", ("0.5", "0.5", "1"), "4")),
    ),
    "b": (
        (1, 2),
        (("1000", "1100", ("0.3333", "0.5", "1"), "3.3333"), ("1000", "0110", ("0.5", "0.5", "1"), "4")),
    ),
    "c": (
        (1, 3),
        (("1000", "1110", ("0.3333", "0.5", "1"), "3.3333"), ("1000", "0111", ("0.5", "0.5", "0.5"), "2")),
    ),
    "d": (
        (2, 2),
        (
            ("1100", "1100", ("0.3333", "0.3333", "1"), "2.6667"),
            ("1100", "0110", ("0.5", "0.5", "1"), "4"),
            ("1100", "0011", ("0.5", "0.5", "0.5"), "2"),
        ),
    ),
    "e": (
        (2, 3),
        (("1100", "1110", ("0.3333", "0.5", "1"), "3.3333"), ("1100", "0111", ("0.5", "0.5", "0.5"), "2")),
    ),
    "f": (
        (3, 3),
        (("1110", "1110", ("0.3333", "0.3333", "1"), "2.6667"), ("1110", "0111", ("0.5", "0.5", "0.5"), "2")),
    ),
    "g": ((4, 4), (("1111", "1111", ("0.3333", "0.3333", "0.3333"), "0"),)),
}
MODELS = {  # name, classes, shape; parameters and body, printed in millions and derived; layers; a weak device's most
    "PreResNet18": (("preresnet18", 10, (3, 32, 32)), "11.172", "11.167", "11,172,170", "11,167,040", 10, "1,364,416"),
    "MobileNet": (("mobilenet", 100, (3, 32, 32)), "3.309", "3.207", "3,309,476", "3,206,976", 14, "400,480"),
    "AlexNet": (("alexnet-bn", 10, (3, 256, 256)), "57.063", "57.022", "57,063,498", "57,022,528", 7, "2,472,000"),
}
AVERAGES = {"PreResNet18": ("6.138", "6.266"), "MobileNet": ("1.803", "1.804"), "AlexNet": ("31.221", "29.747")}
EIGHTH, QUARTER = 1 / 8, 1 / 4
NARROW = {  # parameters of narrow models
    ("PreResNet18", EIGHTH): "176,178",
    ("MobileNet", EIGHTH): "70,380",
    ("MobileNet", QUARTER): "238,772",
    ("AlexNet", EIGHTH): "901,714",
}
HETEROFL = {"PreResNet18": (EIGHTH, "5.674"), "MobileNet": (QUARTER, "1.774"), "AlexNet": (EIGHTH, "28.983")}
SPLITMIX = {"PreResNet18": "0.793", "MobileNet": "0.223", "AlexNet": "4.058"}
TABLE_4 = {0.2: "0.941", 0.4: "1.518", 0.6: "2.095", 0.8: "2.647", 1.0: "3.207"}
TABLE_5 = {"sequential": "3.364", "random": "0.609", "optimised": "0.204"}
ROUNDED = "the paper rounds a relaxed solution at 0.5, which leaves budgets unused or exceeds them"


def perfedmask() -> Iterator[Line]:
    """PerFedMask, "Personalized Federated Learning with Optimized Masking Vectors"."""
    yield from _toy()
    layouts = {name: layout_of(*given[0]) for name, given in MODELS.items()}
    yield from _models(layouts)
    yield from _trained(layouts)
    yield from _narrow(layouts)
    yield from _design(layouts["MobileNet"])


def _toy() -> Iterator[Line]:
    for scenario, (budgets, selections) in TOY.items():
        line = partial(Line, f"Table 6, Fig. 2({scenario}), budgets {budgets[0]} and {budgets[1]} of 4")
        problem = Problem((1,) * 4, (*budgets, 4))
        for i, (first, second, each, printed) in enumerate(selections, start=1):
            masks = _bools(first, second, "1111")
            for n, (share, figure) in enumerate(zip(shares(masks), each, strict=True), start=1):
                yield line(f"selection {i}, gamma of device {n}", "Table 6", figure, float(share))
            yield line(f"selection {i}, bias", "Table 6", printed, float(bias(problem, masks)))
        least = min((printed for *_, printed in selections), key=float)
        yield line("least bias, by our solver", "Table 6", least, optimised(problem, Rng(1).numpy()).bias)


def _models(layouts: dict[str, Layout]) -> Iterator[Line]:
    for name, (_, total, body, exact_total, exact_body, layers, most) in MODELS.items():
        line, layout = partial(Line, f"{name}, parameters and layers"), layouts[name]
        size = sum(layout.groups)
        truncated = "" if name != "AlexNet" else "57.0225 is printed cut off, not rounded"
        yield line("parameters, millions", "Table 1, 7", total, layout.params / MILLION)
        yield line("parameters of the body, millions", "Table 1, 7", body, size / MILLION, stated=truncated)
        yield line("parameters", DERIVED, exact_total, layout.params)
        yield line("parameters of the body", DERIVED, exact_body, size)
        yield line("layers", DERIVED, str(layers), len(layout.groups))
        weak = _weak(layout, 0.5)
        yield line("most that a budget of an eighth takes", DERIVED, most, weak.trained[0])
        assert weak.gap is not None, "the optimiser keeps to what is allowed"
        yield line("gap of our masks, half of the devices weak, %", DERIVED, "0", 100 * weak.gap)


def _trained(layouts: dict[str, Layout]) -> Iterator[Line]:
    line = partial(Line, "Trained parameters, mean over devices, millions")
    for name, (printed, derived) in AVERAGES.items():
        mean = sum(_weak(layouts[name], 0.5).trained) / DEVICES / MILLION
        yield line(f"{name}, half weak", "Table 1, 7", printed, mean, stated=ROUNDED)
        yield line(f"{name}, half weak", DERIVED, derived, mean)
    for strong, printed in TABLE_4.items():
        mean = sum(_weak(layouts["MobileNet"], strong).trained) / DEVICES / MILLION
        known = "" if strong == 1 else ROUNDED
        yield line(f"MobileNet, {strong:.0%} strong", "Table 4", printed, mean, stated=known)


def _narrow(layouts: dict[str, Layout]) -> Iterator[Line]:
    """HeteroFL's weak devices hold leading channels; Split-Mix's train one base of eighth width, others eight."""
    line = partial(Line, "HeteroFL and Split-Mix, half weak")
    for (name, width), printed in NARROW.items():
        held = layout_of(*MODELS[name][0], width).params
        yield line(f"{name} at width {width:g}, parameters", DERIVED, printed, held)
    for name, (width, printed) in HETEROFL.items():
        layout = layouts[name]
        mean = (layout.params + ones_in(leading(layout, width**2))) / 2 / MILLION
        note = "a width of 1/4 is inferred from the figure" if width == QUARTER else ""
        yield line(f"{name}, HeteroFL, trained on average, millions", "Table 1, 7", printed, mean, note=note)
    for name, printed in SPLITMIX.items():
        mean = (1 + 8) / 2 * layout_of(*MODELS[name][0], EIGHTH).params / MILLION
        what = f"{name}, Split-Mix, trained on average, millions"
        if name == "MobileNet":
            why = "no width and number of bases that was tried gives the printed figure; these are as for the others"
            yield line(what, DERIVED, "0.317", mean)
            yield line(what, "Table 1, 7", printed, mean, stated=why)
        else:
            yield line(what, "Table 1, 7", printed, mean)


def _design(layout: Layout) -> Iterator[Line]:
    line = partial(Line, "MobileNet, 20 % strong, budget of an eighth: bias of the masks")
    best = _weak(layout, 0.2)
    body = best.problem.body
    first = sequential(best.problem)
    yield line("sequential, trained by a weak device", DERIVED, "269,120", int(first[0] @ best.problem.layer_sizes))
    yield line("sequential", DERIVED, "2,565,580.8", float(bias(best.problem, first)))
    yield line("optimised", DERIVED, "2,565,580.8", best.bias)
    yield line("optimised, slack of a weak device", DERIVED, "392", best.slack[0])
    yield line("least bias that is possible", DERIVED, "2,565,580.8", best.bound - sum(best.slack))
    why = (
        "two blocks exceed every weak budget, so each of the 20 strong devices has a share of 1/20 and each weak one "
        "at least 1/100: no binary layer masks have a bias below 0.8 d_w = 2.566 million"
    )
    drawn = f"{why}; and sequential masks have exactly that"
    for name, printed in TABLE_5.items():
        reason = drawn if name == "sequential" else why
        yield line(
            f"{name}, beside the least possible, millions", "Table 5", printed, best.bias / MILLION, stated=reason
        )
    guess = (
        "what Table 5's figure for optimised masks would take: each block frozen by 6 of 100 devices; 0.2047 would "
        "then be printed cut off, not rounded"
    )
    yield line("d_w (100/94 - 1), millions", "Table 5", "0.204", body * (100 / 94 - 1) / MILLION, stated=guess)


def _weak(layout: Layout, strong: float) -> Solution:
    """The best masks of a hundred devices, of which a share trains everything and the others an eighth at most."""
    body, full = sum(layout.groups), round(strong * DEVICES)
    return optimised(Problem(layout.groups, (body // 8,) * (DEVICES - full) + (body,) * full), Rng(1).numpy())


def _bools(*rows: str) -> Layers:
    return np.array([[c == "1" for c in row] for row in rows])
