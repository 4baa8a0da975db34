"""Blocks and what is kept of them, by hand, and the bound that always holds."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsona.core.layout import Layout, Slot
from sparsona.core.rng import Rng
from sparsona.methods.pfedgate.blocks import SPLITTERS, Blocks, channels, equal, even, flat, rows, sizes
from sparsona.methods.pfedgate.knapsack import SELECTORS, exact, greedy_ratio, greedy_value, room, select
from sparsona.papers.sizes import layout_of

LAYER = Layout((Slot("l.w", (4, 3), "weight", "l", 0, 1), Slot("l.b", (4,), "bias", "l", 12, 1)))
CONV = Layout((Slot("c.w", (2, 4, 1, 2), "weight", "c", 0, 1), Slot("c.b", (2,), "bias", "c", 16, 1)))


def whole(*numbers):
    return np.array(numbers, dtype=np.int64)


def test_sizes_of_the_spec():
    assert equal(25, 10) == [3] * 8 + [1]
    assert equal(10, 5) == [2] * 5  # LeNet's output bias
    assert equal(84, 5) == [17, 17, 17, 17, 16]
    assert sizes(84, 5, 0.2) == [16, 17, 17, 17, 17]
    assert sizes(10, 5, 0.1) == [1, 3, 3, 3]
    assert sizes(30, 5, 0.1) == [3, 7, 7, 7, 6]  # 30 * 0.1 is a little more than 3


def test_more_blocks_than_entries_is_one_block_each():
    assert sizes(3, 10, 0.1) == [1, 1, 1]
    assert equal(3, 10) == [1, 1, 1]
    assert sizes(1, 5, 0.2) == [1]
    assert sizes(7, 1, 0.5) == [7]


def test_flat_and_even_blocks_follow_the_vector():
    cut = flat(LAYER, 2, 0.5)
    assert cut.index.tolist() == [0] * 6 + [1] * 6 + [2, 2, 3, 3]
    assert cut.first.tolist() == [True, False, True, False]
    assert cut.sizes.tolist() == [6, 6, 2, 2]
    assert cut.counts.tolist() == [[6, 0], [6, 0], [0, 2], [0, 2]]
    assert even(LAYER, 3, 0.5).sizes.tolist() == [4, 4, 4, 2, 2]


def test_rows_hold_their_bias():
    cut = rows(LAYER, 2, 0.25)
    assert cut.index.tolist() == [0] * 3 + [1] * 9 + [0, 1, 1, 1]
    assert cut.sizes.tolist() == [4, 12]
    assert cut.units


def test_rows_leave_the_head_whole():
    """Two layers of four units: the body is cut, the head, weights and bias, is one block that is always kept."""
    head = (Slot("h.w", (4, 4), "weight", "h", 16, 1, head=True), Slot("h.b", (4,), "bias", "h", 32, 1, head=True))
    cut = rows(Layout((*LAYER.slots, *head)), 2, 0.25)
    assert cut.index.tolist() == [0] * 3 + [1] * 9 + [0, 1, 1, 1] + [2] * 20
    assert cut.first.tolist() == [True, False, True]
    for budget in ("reference", "exact", "layers"):
        assert select(torch.zeros(3), cut, 0.7, 0.25, greedy_value, budget).tolist() == [True, False, True]


def test_channels_of_a_convolution():
    """In the vector a weight lies as output, row, column, input: [2, 1, 2, 4]."""
    cut = channels(CONV, 2, 0.25)
    assert cut.index.tolist() == [0, 1, 1, 1] * 4 + [2, 3]
    assert not cut.linear.any()
    assert flat(LAYER, 2, 0.5).linear.all()


def test_rows_need_layers_of_one_width():
    odd = Layout((Slot("l.w", (4, 3), "weight", "l", 0, 1), Slot("l.v", (3,), "bias", "l", 12, 1)))
    with pytest.raises(
        ValueError, match="split: \"rows\" cannot split layer 'l', whose tensors differ in their number of outputs"
    ):
        rows(odd, 2, 0.5)


def test_a_splitter_that_leaves_entries_out_is_refused():
    with pytest.raises(
        ValueError, match=r"blocks: an index of torch\.int64 \(3,\) is not allowed; expected one int64 per entry"
    ):
        Blocks(LAYER, torch.zeros(3, dtype=torch.int64), torch.tensor([True]))
    with pytest.raises(ValueError, match="lacks some of 2 blocks; expected each number from 0"):
        Blocks(LAYER, torch.full((16,), 1), torch.tensor([True, False]))


def test_knapsack_by_hand():
    """Of values 6, 5, 5 and sizes 6, 5, 5 ten entries hold the two smaller ones; greed by value takes the largest."""
    values, entries = whole(6, 5, 5), whole(6, 5, 5)
    assert greedy_value(values, entries, 10).tolist() == [True, False, False]
    assert exact(values, entries, 10).tolist() == [False, True, True]
    assert greedy_ratio(whole(6, 5, 1), whole(6, 1, 1), 6).tolist() == [False, True, True]
    assert greedy_value(whole(3, 9, 9), whole(1, 8, 2), 4).tolist() == [True, False, True]  # 8 is passed over
    assert exact(whole(3, 0, 3), whole(2, 0, 1), 1).tolist() == [False, False, True]
    for selector in SELECTORS.values():
        assert selector(whole(), whole(), 5).tolist() == []
        assert not selector(whole(1, 2), whole(3, 3), 0).any()


def test_select_by_hand():
    """16 entries, half may stay: first blocks of 4 rest; linear: round(0.25 * 12) = 3 is too small for 6."""
    cut = flat(LAYER, 2, 0.25)
    assert cut.sizes.tolist() == [3, 9, 1, 3]
    importance = torch.tensor([0.0, 0.9, 0.0, 0.3])
    assert select(importance, cut, 0.5, 0.25, greedy_value).tolist() == [True, False, True, True]
    assert select(importance, cut, 0.5, 0.25, greedy_value, "exact").tolist() == [True, False, True, True]
    assert select(importance, cut, 0.9, 0.25, greedy_value, "exact").tolist() == [True, True, True, False]
    assert select(importance, cut, 1.0, 0.25, greedy_value).all()


def test_a_budget_below_the_first_blocks_is_refused():
    with pytest.raises(
        ValueError, match=r"keep: 0\.1 of 16 entries is 1, but the first blocks have 2 and are always kept"
    ):
        room(flat(LAYER, 5, 0.1), 0.1)
    with pytest.raises(ValueError, match="the first blocks have 16"):
        room(flat(LAYER, 1, 0.5), 0.5)


@st.composite
def layouts(draw):
    slots, offset = [], 0
    for i in range(draw(st.integers(1, 4))):
        outputs, inputs = draw(st.integers(1, 12)), draw(st.integers(1, 12))
        shape = (outputs, inputs, 2, 1) if draw(st.booleans()) else (outputs, inputs)
        for name, form, kind in (("w", shape, "weight"), ("b", (outputs,), "bias")):
            slots.append(Slot(f"{i}.{name}", form, kind, str(i), offset, 1))
            offset += slots[-1].size
    return Layout(tuple(slots))


@settings(deadline=None)
@given(
    layouts(),
    st.integers(2, 12),
    st.floats(0.02, 1.0),
    st.sampled_from(sorted(SPLITTERS)),
    st.sampled_from(sorted(SELECTORS)),
    st.sampled_from(["reference", "exact", "layers"]),
    st.integers(0, 2**32 - 1),
)
def test_never_more_than_the_budget(layout, count, keep, splitter, selector, budget, seed):
    least = min(max(1 / count, 0.1), keep)
    cut = SPLITTERS[splitter](layout, count, least)
    assert int(cut.sizes.sum()) == layout.dim
    importance = torch.rand(len(cut), generator=torch.Generator().manual_seed(seed))
    if keep < 1 and int(cut.sizes[cut.first].sum()) > int(keep * layout.dim + 1e-6):
        with pytest.raises(ValueError, match="keep: "):
            select(importance, cut, keep, least, SELECTORS[selector], budget)
        return
    chosen = select(importance, cut, keep, least, SELECTORS[selector], budget)
    assert bool(chosen[cut.first].all())
    assert int(cut.spread(chosen).sum()) <= keep * layout.dim + 1e-6


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(1, 30)), max_size=12), st.integers(0, 150))
def test_exact_is_never_worse(items, capacity):
    values, entries = (whole(*(i[n] for i in items)) for n in (0, 1))
    found = {name: selector(values, entries, capacity) for name, selector in SELECTORS.items()}
    for taken in found.values():
        assert entries[taken].sum() <= capacity
    best = values[found["exact"]].sum()
    assert best >= max(values[found["greedy_value"]].sum(), values[found["greedy_ratio"]].sum())
    if len(items) <= 8:  # and it is the best of all
        every = (np.array([m >> i & 1 for i in range(len(items))], dtype=bool) for m in range(1 << len(items)))
        assert best == max(values[m].sum() for m in every if entries[m].sum() <= capacity)


@pytest.mark.parametrize("split", [flat, even])
def test_the_reference_budget_may_leave_nothing_to_choose(split):
    """CIFAR-10's LeNet, B = 5, as the docs tell: one selection at s = 0.3, at 0.5 one of four twice."""
    blocks = split(layout_of("lenet-cifar", 10, (3, 32, 32)).trained, 5, 0.2)
    assert len(blocks) == 50
    for keep, selections, varying in ((0.3, 1, 0), (0.5, 16, 8)):
        draws = (Rng(1, i).uniform(50) for i in range(300))
        found = torch.stack([select(g, blocks, keep, 0.2, greedy_value) for g in draws])
        assert len(found.unique(dim=0)) == selections
        assert int((found.any(0) & ~found.all(0)).sum()) == varying
    for keep, varying in ((0.3, 36), (0.5, 40)):
        draws = (Rng(1, i).uniform(50) for i in range(300))
        found = torch.stack([select(g, blocks, keep, 0.2, greedy_value, "exact") for g in draws])
        assert int((found.any(0) & ~found.all(0)).sum()) == varying
