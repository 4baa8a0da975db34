"""Masks against the papers' counts, hand-worked steps and a sorted reference."""

import math
import re
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsona.core import masks
from sparsona.core.layout import Kind, Layout, Slot
from sparsona.core.rng import Rng
from sparsona.methods.fedpse.selection import miscount
from sparsona.methods.subfedavg import hamming

Row = tuple[str, tuple[int, ...], Kind, int]


def layout_of(rows: Sequence[Row]) -> Layout:
    slots, offset = [], 0
    for name, shape, kind, uses in rows:
        slots.append(Slot(name, shape, kind, name.rpartition(".")[0], offset, uses))
        offset += math.prod(shape)
    return Layout(tuple(slots))


def plain(*sizes: int) -> Layout:
    return layout_of([(f"{i}.weight", (n, 1), "weight", 1) for i, n in enumerate(sizes)])


def norm(name: str, width: int) -> list[Row]:
    return [(f"{name}.weight", (width,), "norm", 0), (f"{name}.bias", (width,), "norm", 0)]


def lenet() -> Layout:
    rows: list[Row] = []
    for name, shape, uses in (
        ("conv1", (20, 1, 5, 5), 576),
        ("conv2", (50, 20, 5, 5), 64),
        ("fc1", (500, 800), 1),
        ("fc2", (26, 500), 1),
    ):
        rows += [(f"{name}.weight", shape, "weight", uses), (f"{name}.bias", shape[:1], "bias", uses)]
    return layout_of(rows)


def vgg11(classes: int = 10) -> Layout:
    rows: list[Row] = []
    before = 3
    for i, (width, side) in enumerate(
        ((64, 32), (128, 16), (256, 8), (256, 8), (512, 4), (512, 4), (512, 2), (512, 2)), start=1
    ):
        rows += [
            (f"conv{i}.weight", (width, before, 3, 3), "weight", side**2),
            (f"conv{i}.bias", (width,), "bias", side**2),
        ]
        rows += norm(f"norm{i}", width)
        before = width
    return layout_of([*rows, ("fc.weight", (classes, 512), "weight", 1), ("fc.bias", (classes,), "bias", 1)])


def resnet18(classes: int) -> Layout:
    rows: list[Row] = [("conv1.weight", (64, 3, 3, 3), "weight", 1024), *norm("norm1", 64)]
    before = 64
    for stage, (width, side) in enumerate(((64, 32), (128, 16), (256, 8), (512, 4)), start=1):
        for block in range(2):
            name = f"layer{stage}.{block}"
            rows += [(f"{name}.conv1.weight", (width, before, 3, 3), "weight", side**2), *norm(f"{name}.norm1", width)]
            rows += [(f"{name}.conv2.weight", (width, width, 3, 3), "weight", side**2), *norm(f"{name}.norm2", width)]
            if before != width:
                rows += [(f"{name}.shortcut.0.weight", (width, before, 1, 1), "weight", side**2)]
                rows += norm(f"{name}.shortcut.1", width)
            before = width
    return layout_of([*rows, ("fc.weight", (classes, 512), "weight", 1), ("fc.bias", (classes,), "bias", 1)])


def forward(layout: Layout, counts: list[int]) -> int:
    """Operations of a forward pass, by the convention of ``Layout.flops``, without making a mask."""
    weights = sum(2 * s.uses * n for s, n in zip(layout.slots, counts, strict=True) if s.kind == "weight")
    return weights + sum(s.uses * s.size for s in layout.slots if s.kind == "bias")


ERK_HALF = [
    # layout, parameters, epsilon, forced dense, ones, dense FLOPs, sparse FLOPs, densities below 1
    (lenet(), 439_096, 148.878, 6, 219_547, 4_617_246, 2_528_808, {"conv2": 0.4764, "fc1": 0.4839}),
    (
        vgg11(),
        9_231_114,
        965.724,
        29,
        4_615_554,
        305_690_634,
        214_893_978,
        {"conv4": 0.8481, "conv5": 0.6336, "conv6": 0.4216, "conv7": 0.4216, "conv8": 0.4216},
    ),
    (
        resnet18(100),
        11_220_132,
        815.235,
        55,
        5_610_061,
        1_110_937_700,
        883_165_924,
        {f"layer3.{b}.conv{c}": 0.716 for b, c in ((0, 2), (1, 1), (1, 2))}
        | {"layer4.0.conv1": 0.5349}
        | {f"layer4.{b}.conv{c}": 0.3559 for b, c in ((0, 2), (1, 1), (1, 2))},
    ),
]


@pytest.mark.parametrize("case", ERK_HALF, ids=["lenet", "vgg11", "resnet18"])
def test_erk_gives_the_counts_and_costs_of_fedspa(case: tuple) -> None:
    layout, params, epsilon, forced, ones, dense, sparse, below = case
    assert layout.dim == params
    densities = masks.erk(layout, 0.5)
    assert sum(d == 1 for d in densities) == forced
    thin = {s.layer: d for s, d in zip(layout.slots, densities, strict=True) if d < 1}
    assert thin == pytest.approx(below, abs=6e-5)
    for slot, d in zip(layout.slots, densities, strict=True):
        if d < 1:
            assert d * slot.size / sum(slot.shape) == pytest.approx(epsilon, abs=6e-4)
    counts = masks.erk_counts(layout, 0.5)
    assert sum(counts) == ones
    assert forward(layout, layout.sizes) == dense == layout.flops()
    assert forward(layout, counts) == sparse


def test_fedspa_costs_over_sparsity() -> None:
    layout = resnet18(100)
    search = 128 * 3 * layout.flops()

    def total(counts: list[int]) -> float:
        return 1000 * 10 * (5 * 500 * 3 * forward(layout, counts) + search) / 1e16

    for density, printed in ((0.8, 8.22), (0.6, 7.55), (0.5, 7.05), (0.4, 6.52), (0.2, 4.61)):
        assert total(masks.erk_counts(layout, density)) == pytest.approx(printed, abs=0.006)
    uniform = masks.uniform_counts(layout, 0.5)
    assert forward(layout, uniform) == 555_468_900
    assert total(uniform) == pytest.approx(4.59, abs=0.006)


def test_erk_over_weights_only() -> None:
    layout = resnet18(10)
    scope = masks.weights(layout)
    counts = masks.erk_counts(layout, 0.5, scope)
    inside = [n for n, ok in zip(layout.sizes, scope, strict=True) if ok]
    assert sum(inside) == 11_164_352
    assert sum(n for n, ok in zip(counts, scope, strict=True) if ok) == 5_582_173

    scope = masks.weights(layout, dense=("*.shortcut.*",))
    counts = masks.erk_counts(layout, 0.5, scope)
    assert sum(n for n, ok in zip(layout.sizes, scope, strict=True) if ok) == 10_992_320
    assert sum(n for n, ok in zip(counts, scope, strict=True) if ok) == 5_496_157
    outside = [(n, k) for n, k, ok in zip(layout.sizes, counts, scope, strict=True) if not ok]
    assert all(n == k for n, k in outside)
    assert sum(n for n, _ in outside) == 181_642


@given(st.floats(0, 1))
@settings(deadline=None, max_examples=30)
def test_erk_meets_its_density(density: float) -> None:
    layout = lenet()
    densities = masks.erk(layout, density)
    assert all(0 <= d <= 1 for d in densities)
    assert sum(d * n for d, n in zip(densities, layout.sizes, strict=True)) == pytest.approx(density * layout.dim)


def test_buffers_stay_dense_whatever_the_scope() -> None:
    layout = layout_of(
        [("a.weight", (40, 5), "weight", 1), ("b.weight", (5,), "norm", 0), ("b.mean", (5,), "buffer", 0)]
    )
    assert masks.trainable(layout) == [True, True, False]
    assert masks.weights(layout) == [True, False, False]
    assert masks.erk_counts(layout, 0.5, [True, True, True])[2] == 5
    assert masks.uniform_counts(layout, 0.5) == [100, 2, 5]
    assert masks.uniform_counts(layout, 0.5, masks.weights(layout)) == [100, 5, 5]
    mask = masks.random(layout, masks.uniform_counts(layout, 0.5), Rng(0))
    theta = torch.ones(layout.dim)
    theta[-1] = 100
    after = masks.regrow(layout, mask, theta, Rng(1), 0.5)
    assert bool(after[-5:].all())
    assert masks.density(layout, mask) == 102 / 205
    assert masks.density(layout, mask, masks.weights(layout)) == 0.5


def test_counts_are_floors_without_float_error() -> None:
    assert masks.uniform_counts(plain(10, 100, 1), 0.3) == [3, 30, 0]
    assert masks.uniform_counts(plain(100), 0.29) == [29]  # 0.29 * 100 is 28.999999999999996
    assert masks.erk_counts(plain(7, 9), 1.0) == [7, 9]
    assert masks.erk_counts(plain(7, 9), 0.0) == [0, 0]


def test_kept_rounds_as_numpy() -> None:
    sizes = [288, 32, 18432, 64, 16000, 10]
    assert [masks.kept(n, 0.9) for n in sizes] == [29, 3, 1843, 6, 1600, 1]
    assert sum(masks.kept(n, 0.9) for n in sizes) == 3482
    assert [masks.kept(n, 0.5) for n in (1, 3, 5, 7)] == [1, 1, 3, 3]  # halves go to even: 0, 2, 2, 4 left out
    assert masks.kept(4, 1.0) == 1
    assert masks.kept(4, 0.0) == 4


def best(scores: list[float], k: int, among: list[bool]) -> list[bool]:
    """The reference: sort by falling score, then by index; NaN last."""
    rank = [(-(-math.inf if math.isnan(s) else s), i) for i, s in enumerate(scores) if among[i]]
    chosen = {i for _, i in sorted(rank)[:k]}
    return [i in chosen for i in range(len(scores))]


SCORES = st.lists(
    st.tuples(st.sampled_from([0.0, -0.0, 1.0, 2.0, 3.5, -1.0, math.inf, -math.inf, math.nan]), st.booleans()),
    min_size=1,
    max_size=30,
)


@given(SCORES, st.data())
@settings(deadline=None, max_examples=150)
def test_top_breaks_ties_by_lowest_index(rows: list[tuple[float, bool]], data: st.DataObject) -> None:
    scores, among = [s for s, _ in rows], [a for _, a in rows]
    k = data.draw(st.integers(0, sum(among)))
    score = torch.tensor(scores)
    before = score.clone()
    assert masks.top(score, k, torch.tensor(among)).tolist() == best(scores, k, among)
    k = data.draw(st.integers(0, len(scores)))
    assert masks.top(score, k).tolist() == best(scores, k, [True] * len(scores))
    assert score.equal(before) or bool(score.isnan().any())


def test_top_of_one_pool_and_of_each_tensor() -> None:
    layout = plain(3, 2)
    score = torch.tensor([5.0, 4.0, 3.0, 1.0, 2.0])
    assert masks.top(score, 3).tolist() == [True, True, True, False, False]
    assert masks.top_each(layout, score, [1, 1]).tolist() == [True, False, False, False, True]
    assert masks.top_each(layout, score, [0, 2]).tolist() == [False, False, False, True, True]


def test_random_masks_have_their_counts_and_depend_on_the_key() -> None:
    layout = lenet()
    counts = masks.erk_counts(layout, 0.5)
    mask = masks.random(layout, counts, Rng(1, "mask"))
    assert layout.counts(mask) == counts
    assert mask.equal(masks.random(layout, counts, Rng(1, "mask")))
    other = masks.random(layout, counts, Rng(2, "mask"))
    assert not mask.equal(other)
    thin = [n / s.size for n, s in zip(layout.counts(mask != other), layout.slots, strict=True)]
    assert hamming(layout, mask, other) == pytest.approx(sum(thin) / 8)
    assert hamming(layout, mask, mask) == 0
    twins = plain(50, 50)
    a, b = twins.split(masks.random(twins, [25, 25], Rng(1)))
    assert not a.equal(b)  # two tensors of one shape draw apart


def test_draw_is_uniform() -> None:
    pool = torch.tensor([True, False, True, True, True])
    hits = torch.zeros(5)
    for i in range(2000):
        hits += masks.draw(pool, 2, Rng(i))
    assert hits[1] == 0
    assert (hits[pool] / 2000 - 0.5).abs().max() < 0.05


def test_drop_count_is_rounded_up_in_double() -> None:
    mask = torch.ones(60, dtype=torch.bool)
    mask[50:] = False
    assert masks.drop_counts(plain(60), mask, 0.3) == [15]
    assert masks.drop_counts(plain(60), mask, 0.31) == [16]
    assert masks.drop_counts(plain(60), mask, 0.0) == [0]
    assert masks.drop_counts(plain(60), mask, 1.0) == [50]


def test_regrow_by_hand() -> None:
    layout = plain(6, 2)
    mask = torch.tensor([1, 1, 1, 1, 0, 0, 1, 1]).bool()
    theta = torch.tensor([-4.0, 0.5, -0.2, 3.0, 0, 0, 1, 1])
    score = torch.tensor([9.0, 8.0, 1.0, 9.0, 2.0, 0.0, 9.0, 9.0])
    dropped = masks.drop(layout, mask, theta, [2, 0])
    assert dropped.int().tolist() == [1, 0, 0, 1, 0, 0, 1, 1]
    assert masks.grow(layout, dropped, score, [2, 0]).int().tolist() == [1, 1, 0, 1, 1, 0, 1, 1]  # 1 comes back
    assert masks.regrow(layout, mask, theta, score, 0.5).int().tolist() == [1, 1, 0, 1, 1, 0, 1, 1]
    assert masks.regrow(layout, mask, theta, score, 0.0).equal(mask)
    same = torch.ones(8)
    assert masks.drop(layout, mask, same, [2, 1]).int().tolist() == [1, 1, 0, 0, 0, 0, 1, 0]


@given(st.integers(0, 2**32), st.floats(0, 1), st.booleans())
@settings(deadline=None, max_examples=60)
def test_regrow_keeps_counts(seed: int, rate: float, at_random: bool) -> None:
    layout = plain(17, 30, 8)
    draws = torch.Generator().manual_seed(seed)
    mask = torch.rand(55, generator=draws) < 0.5
    mask[-8:] = True
    theta = torch.randint(-3, 4, (55,), generator=draws).float()
    score = torch.randint(0, 4, (55,), generator=draws).float()
    before = [x.clone() for x in (mask, theta, score)]
    after = masks.regrow(layout, mask, theta, Rng(seed) if at_random else score, rate)
    assert layout.counts(after) == layout.counts(mask)
    assert bool(after[-8:].all())
    assert all(x.equal(y) for x, y in zip((mask, theta, score), before, strict=True))
    if rate == 0:
        assert after.equal(mask)


def test_regrow_survives_a_model_that_diverged() -> None:
    layout = plain(8)
    mask = torch.tensor([1, 0, 1, 0, 1, 0, 1, 0]).bool()
    after = masks.regrow(layout, mask, torch.full((8,), math.nan), torch.full((8,), math.nan), 0.5)
    assert layout.counts(after) == [4]


def test_cosine() -> None:
    assert [masks.cosine(0.5, t, 5) for t in range(5)] == pytest.approx([0.5, 0.4268, 0.25, 0.0732, 0.0], abs=5e-5)
    assert masks.cosine(0.5, 4, 5) == 0
    late = [masks.cosine(0.5, t, 5, "T") for t in range(5)]
    assert late == pytest.approx([0.5, 0.4523, 0.3273, 0.1727, 0.0477], abs=5e-5)
    assert masks.cosine(0.5, 0, 1) == masks.cosine(0.5, 0, 1, "T") == 0.5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: masks.erk(plain(4), 1.5), r"density: 1\.5 is not allowed; expected a float in \[0, 1\]"),
        (lambda: masks.uniform_counts(plain(4), -0.1), "density: -0.1"),
        (lambda: masks.erk(plain(4), 0.5, [True, False]), "scope: a list of 2 flags is not allowed; expected 1"),
        (
            lambda: masks.weights(plain(4), dense=("head*",)),
            r'dense: "head\*" matches no tensor; expected a name or pattern of ' r"0\.weight",
        ),
        (lambda: masks.top(torch.zeros(3), 4), r"k: 4 is not allowed; expected a float in \[0, 3\]"),
        (
            lambda: masks.draw(torch.tensor([True, False]), 2, Rng(0)),
            r"k: 2 is not allowed; expected a float in \[0, " r"1\]",
        ),
        (lambda: masks.kept(4, 2), "sparsity: 2"),
        (lambda: masks.drop_counts(plain(4), torch.ones(4).bool(), 1.1), "rate: 1.1"),
        (
            lambda: masks.drop(plain(4), torch.ones(4).bool(), torch.ones(4), [5]),
            r"k: -1 is not allowed; expected a float in \[0, " r"4\]",
        ),
        (lambda: masks.cosine(0.5, 5, 5), r"t: 5 is not allowed; expected a float in \[0, 4\]"),
        (lambda: masks.cosine(0.5, 0, 5, "T+1"), r'horizon: "T\+1" is not allowed; expected one of T-1, T'),
    ],
)
def test_errors_name_the_field(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()


def test_packed_masks_come_back():
    for n in (1, 7, 8, 9, 1000):
        mask = torch.rand(n, generator=torch.Generator().manual_seed(n)) < 0.5
        packed = masks.Packed.of(mask)
        assert packed.bits.numel() == -(-n // 8)
        assert torch.equal(packed.mask(), mask)


def test_layers_without_a_single_weight_are_named():
    model = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.LayerNorm(10), torch.nn.Linear(10, 2))
    layout = Layout.of(model, torch.zeros(1, 10))
    names = [s.name for s in layout.slots]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]
    assert masks.starved(layout, [1, 0, 1, 0, 1, 0]) == []  # biases may all be pruned
    assert masks.starved(layout, [0, 9, 0, 9, 1, 0]) == ["0.weight", "1.weight"]
    # the same density everywhere: ten scales keep one from 1/10 on, the twenty weights of the head from 1/20
    masks.suffices(layout, 0.1, lambda d: masks.uniform_counts(layout, d))
    with pytest.raises(
        ValueError, match=re.escape("density: 0.06 leaves 1.weight without any weight; expected about 0.1 or")
    ):
        masks.suffices(layout, 0.06, lambda d: masks.uniform_counts(layout, d))


def test_pieces_and_the_largest_of_each() -> None:
    layout = Layout((Slot("a", (4,), "weight", "", 0, 1), Slot("b", (2,), "bias", "", 4, 1)))
    vec = torch.tensor([1.0, -5.0, 2.0, 2.0, 0.5, -0.25])
    assert [[p.tolist() for p in both] for both in masks.pieces(layout, "layer", vec, -vec)] == [
        [[1.0, -5.0, 2.0, 2.0], [-1.0, 5.0, -2.0, -2.0]],
        [[0.5, -0.25], [-0.5, 0.25]],
    ]
    assert masks.pieces(layout, "model", vec)[0][0] is vec
    assert masks.largest(layout, vec, 0.5).int().tolist() == [0, 1, 1, 0, 1, 0]  # of equals the lower index
    assert masks.largest(layout, vec, 0.5, "model").int().tolist() == [0, 1, 1, 1, 0, 0]
    with pytest.raises(ValueError, match='each: "filter" is not allowed; expected one of layer, model'):
        masks.pieces(layout, "filter", vec)  # type: ignore[arg-type]


def test_miscount() -> None:
    layout = Layout((Slot("a", (4,), "weight", "", 0, 1), Slot("b", (2,), "bias", "", 4, 1)))
    good, bad = torch.tensor([1, 1, 0, 0, 0, 1]).bool(), torch.tensor([1, 1, 1, 0, 0, 0]).bool()
    assert miscount(layout, good, 0.5) == ""
    assert miscount(layout, bad, 0.5) == "holds 3 of 4 entries, not 2"
    assert miscount(layout, bad, 0.5, "model") == ""
    assert miscount(layout, good, 0.9, "model") == "holds 3 of 6 entries, not 1"


def test_mixed_rounds_halves_to_even_and_takes_what_there_is() -> None:
    a, b = torch.arange(8) < 4, torch.arange(8) >= 4
    assert [int(masks.mixed(a, b, share, Rng(1))[4:].sum()) for share in (0, 0.1, 0.125, 0.13, 0.375, 0.9, 1)] == [
        0,
        0,  # round(0.4)
        0,  # round(0.5)
        1,
        2,  # round(1.5)
        4,
        4,
    ]
    few = torch.arange(8) == 7
    assert masks.mixed(a, few, 1.0, Rng(1)).sum() == 4
    assert bool(masks.mixed(a, few, 1.0, Rng(1))[7])
    with pytest.raises(ValueError, match=r"share: 1\.5 is not allowed; expected a float in \[0, 1\]"):
        masks.mixed(a, b, 1.5, Rng(1))


def test_a_share_rounded_up() -> None:
    assert [masks.at_least(n, 0.1) for n in (1, 10, 11, 30)] == [1, 1, 2, 3]
    assert masks.at_least(7, 0.0) == 1
