"""Layer masks: bias by hand, every solver within its budgets, the best against all there are, the bound below it."""

import subprocess
import sys
from importlib.util import find_spec
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsona.core.rng import Rng
from sparsona.methods.perfedmask import local_search, subset_sum
from sparsona.methods.perfedmask.baselines import random, random_best_of, repaired, sequential
from sparsona.methods.perfedmask.bound import bound
from sparsona.methods.perfedmask.coverage import best_by_coverage
from sparsona.methods.perfedmask.enumeration import enumerated
from sparsona.methods.perfedmask.lighter import lightened
from sparsona.methods.perfedmask.local_search import optimised, searched
from sparsona.methods.perfedmask.problem import Problem, Solution, bias, objective, shares
from sparsona.methods.perfedmask.solver import solve
from tiers import tiered

QUICK = ("optimised", "sequential", "random", "random_best_of")
MOBILENET = (928, 2528, 9152, 18048, 34688, 68864, 134912, *(268800,) * 5, 531968, 1061888)
PRERESNET18 = (1728, 73984, 73984, 229760, 295424, 918272, 1180672, 3671552, 4720640, 1024)
ALEXNET = (23424, 307776, 664704, 885504, 590592, 37761024, 16789504)


def rng(*key: int):
    return Rng(1, *key).numpy()


def needs(package):
    """Skip without a package; to import it here would decide which of two libraries is loaded first."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@st.composite
def problems(draw, devices=4, layers=4):
    sizes = draw(st.lists(st.integers(1, 12), min_size=1, max_size=layers))
    budgets = draw(st.lists(st.integers(0, sum(sizes)), min_size=1, max_size=devices))
    return Problem(tuple(sizes), tuple(budgets), draw(st.booleans()))


def by_hand(problem, rows):
    """Bias and slack, straight from the definitions."""
    covered = [sum(row[j] for row in rows) for j in range(len(problem.sizes))]
    total = 0.0
    for row, budget in zip(rows, problem.budgets, strict=True):
        k = [1 / c if on else 0.0 for on, c in zip(row, covered, strict=True)]
        total += problem.body * max(k) - sum(s * x for s, x in zip(problem.sizes, k, strict=True))
        total += budget - sum(s for s, on in zip(problem.sizes, row, strict=True) if on)
    return total


def brute(problem):
    """The least objective of all masks, one by one."""
    every = list(product((False, True), repeat=len(problem.sizes)))

    def fitting(budget):
        used = {row: sum(s for s, on in zip(problem.sizes, row, strict=True) if on) for row in every}
        rows = [row for row in every if used[row] <= budget and (used[row] or problem.allow_idle)]
        return rows or [every[0]]

    return min(by_hand(problem, rows) for rows in product(*(fitting(b) for b in problem.budgets)))


def test_bias_by_hand():
    """Scenario b of the paper's toy: k_1 = [1/3 0 0 0], k_2 = [1/3 1/2 0 0], k_3 = [1/3 1/2 1 1]."""
    problem = Problem((1, 1, 1, 1), (1, 2, 4))
    chosen = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]], dtype=bool)
    assert shares(chosen).tolist() == [1 / 3, 1 / 2, 1]
    assert bias(problem, chosen) == pytest.approx(4 * (1 / 3 + 1 / 2 + 1) - 4)
    assert objective(problem, chosen) == pytest.approx(10 / 3)
    assert bias(problem, np.zeros((3, 4), dtype=bool)) == 0
    assert objective(problem, np.zeros((3, 4), dtype=bool)) == 7


def test_masks_of_ones_have_no_bias():
    problem = Problem((3, 5), (8,) * 7)
    found = optimised(problem, rng())
    assert found.masks.all()
    assert found.bias == pytest.approx(0, abs=1e-9)
    assert (found.slack, found.gap, found.proven) == ([0] * 7, 0, True)


@settings(max_examples=300, deadline=None)
@given(problems(devices=3))
def test_the_best_of_few_is_the_best_of_all(problem):
    found = optimised(problem, rng())
    assert found.objective == pytest.approx(brute(problem))
    assert found.proven
    assert problem.feasible(found.masks)


@settings(max_examples=200, deadline=None)
@given(problems())
def test_the_bound_is_one(problem):
    best = enumerated(problem)
    assert best is not None
    assert bound(problem) <= objective(problem, best) + 1e-9 * problem.body


def small_problem(draw, most=2_000_000):
    """A problem of 3 to 5 devices and 4 to 6 layers, with so few masks that all of them can be tried."""
    while True:
        sizes = draw.integers(20, 400, draw.integers(4, 7))
        shares = draw.choice([0.125, 0.25, 0.5, 0.75, 1.0], draw.integers(3, 6)) * draw.choice([1.0, 0.9])
        problem = Problem(tuple(map(int, sizes)), tuple(int(s * sizes.sum()) for s in shares), bool(draw.integers(2)))
        if np.prod([len(rows) for rows in allowed_rows(problem)], dtype=float) <= most:
            return problem


def allowed_rows(problem):
    """All subsets of layers of each device, as numbers whose bits are the layers."""
    layers = range(len(problem.sizes))
    used = np.array([sum(problem.sizes[j] for j in layers if row >> j & 1) for row in range(1 << len(layers))])
    fits = [np.flatnonzero((used <= budget) & ((used > 0) | problem.allow_idle)) for budget in problem.budgets]
    return [rows if len(rows) else np.array([0]) for rows in fits]


def least_of_all(problem):
    """The least objective of all masks there are, tried one and all."""
    rows = [grid.ravel().astype(np.int8) for grid in np.meshgrid(*allowed_rows(problem), indexing="ij")]
    trained = [[(row >> j & 1).astype(bool) for j in range(len(problem.sizes))] for row in rows]
    total = np.full(len(rows[0]), float(sum(problem.budgets)))
    covered = [np.sum([layers[j] for layers in trained], axis=0, dtype=np.int8) for j in range(len(problem.sizes))]
    for layers in trained:
        share = np.zeros(len(total))
        for on, count, size in zip(layers, covered, problem.sizes, strict=True):
            share = np.maximum(share, on / np.maximum(count, 1))
            total -= size * on
        total += problem.body * share
    return float(
        (total - np.sum([size * (c > 0) for size, c in zip(problem.sizes, covered, strict=True)], axis=0)).min()
    )


@pytest.mark.parametrize(
    ("sizes", "budgets", "idle", "least"),
    [
        ((341, 56, 68, 182, 201), (848, 848, 636, 212, 106), True, 612 + 2 / 3),
        ((43, 121, 139, 54, 51, 377), (785, 785, 687, 98), False, 422 + 2 / 3),
        ((1, 2, 12), (3, 0, 14, 14), False, 7),  # all devices drop the first layer
    ],
)
def test_a_layer_that_all_devices_must_drop_together(sizes, budgets, idle, least):
    problem = Problem(sizes, budgets, idle)
    assert least_of_all(problem) == pytest.approx(least)
    found = optimised(problem, rng())
    assert found.objective == pytest.approx(least)
    assert found.proven


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_no_optimum_of_a_small_problem_is_missed(count):
    draw = np.random.default_rng(count)
    for i in range(count):
        problem = small_problem(draw)
        found = optimised(problem, rng(i))
        assert found.objective == pytest.approx(least_of_all(problem), abs=1e-6), problem
        assert found.proven
        assert problem.feasible(found.masks)


def test_a_problem_too_large_to_finish_keeps_its_masks_and_a_bound():
    """With few steps allowed the masks are those of the search; the bound lies below the optimum."""
    problem = Problem((43, 121, 139, 54, 51, 377), (785, 785, 687, 98))
    poor = Solution(problem, problem.fullest, bound(problem))
    assert best_by_coverage(poor, 1000) is poor
    some = best_by_coverage(poor, 5_000_000)
    assert some.bound <= 422 + 2 / 3 + 1e-6
    assert poor.objective >= some.objective >= 422 + 2 / 3 - 1e-6
    wide = Solution(Problem((1,) * 17, (3, 17)), Problem((1,) * 17, (3, 17)).fullest, 0.0)
    assert best_by_coverage(wide) is wide


@settings(max_examples=60, deadline=None)
@given(problems())
def test_the_search_alone_is_never_far(problem):
    """Larger problems are left to the search; of small ones it can be held against the optimum."""
    least = brute(problem)
    found = searched(problem, rng(), 0.2)
    assert found.objective >= least - 1e-9
    assert found.objective <= 1.05 * least + 1e-9
    assert problem.feasible(found.masks)


@settings(max_examples=40, deadline=None)
@given(problems(devices=8, layers=7))
def test_nobody_beats_the_optimised_and_all_keep_to_budgets(problem):
    found = {name: solve(problem, name, rng(), draws=30, effort=0.2) for name in QUICK}
    for each in found.values():
        assert min(each.slack) >= 0
        assert each.bound <= found["optimised"].objective + 1e-9 * problem.body
        assert (each.gap is None) is not problem.feasible(each.masks)
        if each.gap is None:
            assert not each.proven
        else:
            assert found["optimised"].objective <= each.objective + 1e-9 * problem.body
    assert problem.feasible(found["optimised"].masks)
    for name in QUICK:
        again = solve(problem, name, rng(), draws=30, effort=0.2)
        assert np.array_equal(again.masks, found[name].masks)


@pytest.mark.parametrize("sizes", [MOBILENET, PRERESNET18, ALEXNET])
@pytest.mark.parametrize("strong", tiered([0, 20, 50, 100], short=[20, 50, 100]))
def test_the_papers_models_are_proven(sizes, strong):
    """A layer that fits no weak budget: all weak devices take the same layers, and the bias is (1 - nu) d_w."""
    body = sum(sizes)
    found = optimised(Problem(sizes, (body // 8,) * (100 - strong) + (body,) * strong), rng())
    if strong:
        assert found.proven
        assert found.bias == pytest.approx((100 - strong) / 100 * body, abs=1e-6)
    weak = {row.tobytes() for row in found.masks[: 100 - strong]}
    assert len(weak) <= 1


def test_masks_that_are_not_allowed_prove_nothing():
    """A budget of 417 holds the layer of 205 or that of 240, but the first of 1640 ends the sequence at once."""
    problem = Problem((1640, 205, 240), (417, 2085))
    found = solve(problem, "sequential", rng())
    assert found.trained == [0, 2085]
    assert (found.gap, found.proven) == (None, False)
    assert found.objective == 417  # the full device alone has no bias
    assert found.bound > 417


def test_idling_is_weighed_where_it_is_allowed():
    """Two devices on a layer of 1 out of 4 have a bias of 4 (1/2 + 1/2) - 1; two idle ones leave 1 each."""
    problem = Problem((1, 3), (1, 1), allow_idle=True)
    assert min(objective(problem, m) for m in local_search._starts(problem, rng(), 0.2)) == 2
    wide = Problem((1,) * 10, (1,) * 3 + (10,) * 3, allow_idle=True)  # too many layers for all subsets of a device
    busy = np.concatenate([np.eye(3, 10, dtype=bool), np.ones((3, 10), dtype=bool)])
    # busy: 10 (3/4 of the weak and 3/3 of the full) less 10, and no slack; idle: 10 - 10, and 3 of slack
    assert objective(wide, busy) == 7.5
    assert objective(wide, local_search._polished(wide, busy, rng())) == 3
    assert local_search._idled(wide, busy)[:3].sum() == 0
    assert local_search._idled(wide, busy)[3:].all()


@given(st.lists(st.integers(1, 60), min_size=1, max_size=9), st.integers(0, 300), st.integers(1, 5))
def test_the_fullest_by_sums_is_the_fullest_of_all(sizes, budget, unit):
    sizes = np.array(sizes) * unit
    every = (np.arange(2 ** len(sizes))[:, None] >> np.arange(len(sizes))) & 1 == 1
    most = max(s for s in every @ sizes if s <= budget)
    sums = subset_sum.subset_sums(tuple(map(int, sizes)))
    assert subset_sum._chosen(sizes, min(budget, int(sizes.sum())), sums) @ sizes == most
    assert subset_sum.fullest(sizes, budget) @ sizes == most


def test_many_layers_are_proven_too():
    """Forty layers, one of which fits no weak budget: as with the paper's models, but too many to try."""
    sizes = (*(int(n) for n in np.random.default_rng(5).integers(1_000, 90_000, 39)), 2_000_000)
    body = sum(sizes)
    found = optimised(Problem(sizes, (body // 8,) * 10 + (body,) * 10), rng())
    assert found.proven
    assert found.bias == pytest.approx(body / 2, abs=1e-6)
    assert found.slack[0] <= 1  # of so many sums one is as good as at the budget


def test_too_many_sums_are_left_alone(monkeypatch):
    """Two layers of 50 in all, or of 51, within 100 bits; then one and three units of any size: 0, 1, 3 and 4."""
    monkeypatch.setattr(subset_sum, "_MAX_BITS", 100)
    assert subset_sum.subset_sums((1, 49)) == (0b1, 0b11, 0b11 | 0b11 << 49)
    assert subset_sum.subset_sums((1, 50)) is None
    assert subset_sum.subset_sums((1 << 40, 3 << 40)) == (0b1, 0b11, 0b11011)


def test_sequential_and_random_by_hand():
    problem = Problem((2, 3, 1), (4, 6, 1))
    assert sequential(problem).astype(int).tolist() == [[1, 0, 0], [1, 1, 1], [0, 0, 0]]
    drawn = random(problem, rng())
    assert drawn[2].tolist() == [False, False, True]  # nothing else fits
    assert (drawn @ problem.layer_sizes <= problem.budgets).all()


def test_repair_drops_the_largest_first():
    problem = Problem((2, 3, 1), (4, 6, 1))
    fixed = repaired(problem, np.ones((3, 3), dtype=bool))
    assert fixed.astype(int).tolist() == [[1, 0, 1], [1, 1, 1], [0, 0, 1]]


def test_a_large_fleet_of_different_devices():
    draw = np.random.default_rng(3)
    sizes = draw.integers(1_000, 100_000, 20)
    budgets = (draw.uniform(0.2, 1, 30) * sizes.sum()).astype(int)
    problem = Problem(tuple(map(int, sizes)), tuple(map(int, budgets)))
    found = optimised(problem, rng(), 0.3)
    assert problem.feasible(found.masks)
    assert found.gap < 0.25
    assert found.objective < 0.8 * objective(problem, random_best_of(problem, rng(), 200))


@pytest.mark.parametrize(
    ("sizes", "budgets", "says"),
    [
        ((), (1,), "at least one layer"),
        ((0,), (1,), "at least 1 parameter"),
        ((3, 4), (), "at least one device"),
        ((3, 4), (-1,), r"budgets: \[-1\] is not allowed; expected at least one device, each with a budget >= 0"),
        ((3, 4), (8,), "budgets: 8 is not allowed; expected an int <= 7"),
    ],
)
def test_bad_problems_are_refused(sizes, budgets, says):
    with pytest.raises(ValueError, match=says):
        Problem(sizes, budgets)


def test_a_budget_below_the_smallest_layer_idles():
    problem = Problem((3, 4), (2, 7))
    assert problem.idle == [0]
    found = optimised(problem, rng())
    assert found.trained == [0, 7]
    assert found.slack == [2, 0]


def test_an_unknown_solver_is_refused():
    with pytest.raises(ValueError, match="sequential, random"):
        solve(Problem((1,), (1,)), "mosek", rng())


def test_the_papers_own_solver_keeps_to_budgets():
    needs("cvxpy")
    problem = Problem((3, 5, 2, 7, 4), (7, 7, 10, 10, 21, 21))
    found = solve(problem, "sca", rng(), draws=20)
    assert problem.feasible(found.masks)
    assert optimised(problem, rng()).objective <= found.objective + 1e-9


@pytest.mark.slow
def test_successive_approximation_improves_poor_masks():
    """The toy's scenario d: the same two layers have a bias of 8/3, two and two others the least, 2."""
    needs("cvxpy")
    from sparsona.methods.perfedmask.sca import improved

    problem = Problem((1, 1, 1, 1), (2, 2, 4))
    start = np.array([[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]], dtype=bool)
    assert objective(problem, start) == pytest.approx(8 / 3)
    assert objective(problem, improved(problem, start)) == pytest.approx(2)
    problem = Problem((3, 5, 2, 7, 4), (7, 7, 10, 10, 21, 21))
    start = sequential(problem)
    assert objective(problem, start) == 25.5
    found = improved(problem, start)
    assert problem.feasible(found)
    assert objective(problem, found) < 19
    body = sum(MOBILENET)
    paper = Problem(MOBILENET, (body // 8,) * 3 + (body,) * 3)
    start = sequential(paper)
    assert objective(paper, improved(paper, start, 20)) < objective(paper, start)
    best = optimised(problem, rng()).masks
    assert objective(problem, improved(problem, best)) == objective(problem, best)  # never worse


def test_cpsat_proves_what_the_search_found():
    needs("ortools")
    from sparsona.methods.perfedmask.cpsat import refined

    problem = Problem((3, 5, 2, 7, 4), (7, 7, 10, 10, 21, 21))
    poor = solve(problem, "sequential", rng())
    assert not poor.proven
    found = refined(poor, 20)
    assert problem.feasible(found.masks)
    assert found.proven
    assert found.objective < poor.objective
    assert found.objective == pytest.approx(optimised(problem, rng()).objective)


def test_cpsat_makes_allowed_masks_of_others_and_the_same_each_time():
    needs("ortools")
    from sparsona.methods.perfedmask.cpsat import refined

    problem = Problem((1640, 205, 240), (417, 417, 2085))
    idle = solve(problem, "sequential", rng())
    assert idle.gap is None
    one, other = (refined(idle, 0.05) for _ in range(2))
    assert problem.feasible(one.masks)
    assert np.array_equal(one.masks, other.masks)
    assert one.bound == other.bound


@pytest.mark.parametrize("first", tiered(["sca", "cpsat"], short=["sca"]))
def test_both_solvers_work_in_one_process(first):
    """Each brings a HiGHS of its own, and which is loaded first must not matter: here, in a fresh process."""
    needs("cvxpy")
    needs("ortools")
    sca, cpsat = "found = solve(problem, 'sca', rng, draws=5)", "refined(Solution(problem, problem.fullest, 0.0), 5)"
    lines = [
        "import numpy as np",
        "from sparsona.methods.perfedmask.problem import Problem, Solution",
        "from sparsona.methods.perfedmask.solver import solve",
        "from sparsona.methods.perfedmask.cpsat import refined",
        "problem, rng = Problem((3, 5, 2), (5, 10)), np.random.default_rng(1)",
        *((sca, cpsat) if first == "sca" else (cpsat, sca)),
        "assert problem.feasible(found.masks)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (None, r"pip install 'sparsona\[cpsat\]'"),
        (
            object(),
            "refine: OR-tools is installed, but cannot be loaded; import it before cvxpy and highspy, which load",
        ),
    ],
)
def test_missing_and_broken_or_tools_are_told_apart(found, says, monkeypatch):
    from sparsona.methods.perfedmask.cpsat import refined

    problem = Problem((3, 5, 2), (5, 10))
    monkeypatch.setitem(sys.modules, "ortools.sat.python", found)
    with pytest.raises(ValueError, match=says):
        refined(Solution(problem, problem.fullest, 0.0), 1)


def test_lowest_layers_are_given_up_where_the_bias_allows():
    """Two weak devices of 111 under two full ones: the layer of 1000 is covered twice whatever the weak ones do."""
    problem = Problem((1, 10, 100, 1000), (111, 111, 1111, 1111))
    found = optimised(problem, rng())
    assert found.masks[:2].tolist() == [[True, True, True, False]] * 2
    for spare, row in ((0.0, [1, 1, 1, 0]), (0.02, [0, 1, 1, 0]), (0.2, [0, 0, 1, 0]), (0.99, [0, 0, 1, 0])):
        lighter = lightened(problem, found.masks, spare)
        assert lighter.astype(int).tolist() == [row, row, [1] * 4, [1] * 4]
        assert bias(problem, lighter) == found.bias == 555.5  # 1111 (2/2 + 2/4 - 1)


def test_ties_go_to_the_mask_that_ends_highest():
    """A weak budget of 5 holds layers 0 and 1, or 2: gammas are 1/4, 1/4, 1/2, 1/2 both times."""
    problem = Problem((2, 3, 5), (5, 5, 10, 10))
    low = np.array([[1, 1, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]], dtype=bool)
    high = np.array([[0, 0, 1], [0, 0, 1], [1, 1, 1], [1, 1, 1]], dtype=bool)
    assert objective(problem, low) == objective(problem, high) == 10 * 1.5 - 10
    assert np.array_equal(lightened(problem, low), high)
    assert np.array_equal(lightened(problem, high), high)


def test_the_papers_optima_have_no_cheaper_equals():
    """What fills a budget best is one subset only, but for layers alike: it reaches down to the first layer."""
    for sizes, row in ((MOBILENET, [0, 2, 3, 4, 5]), (PRERESNET18, [0, 1, 2, 4, 5, 9])):
        body = sum(sizes)
        problem = Problem(sizes, (body // 8,) * 50 + (body,) * 50)
        chosen = np.flatnonzero(lightened(problem, optimised(problem, rng()).masks)[0]).tolist()
        assert chosen[: len(row)] == row
    spared = lightened(problem, optimised(problem, rng()).masks, 0.2)
    assert np.flatnonzero(spared[0]).tolist() == [6, 9]  # 1,181,696 of 1,395,880


def test_a_layer_that_others_need_is_not_given_up():
    problem = Problem((1, 1, 1), (2, 2, 3))
    rows = np.array([[1, 1, 0], [1, 0, 1], [1, 1, 1]], dtype=bool)  # covered 3, 2, 2 times
    lighter = lightened(problem, rows, 0.5)
    assert lighter.astype(int).tolist() in ([[0, 1, 0], [1, 0, 1], [1, 1, 1]], [[1, 1, 0], [0, 0, 1], [1, 1, 1]])


@given(problems(), st.floats(0, 0.9))
@settings(max_examples=50, deadline=None)
def test_lighter_masks_have_no_more_bias_and_spare_no_more_than_allowed(problem, spare):
    found = optimised(problem, rng())
    lighter = lightened(problem, found.masks, spare)
    assert bias(problem, lighter) <= found.bias + 1e-6
    assert problem.feasible(lighter)
    assert (lighter.any(1) == found.masks.any(1)).all()
    assert (lighter.argmax(1) >= found.masks.argmax(1)).all()
    unused = np.array(problem.budgets) - lighter @ problem.layer_sizes
    assert (unused <= np.maximum(found.slack, spare * np.array(problem.budgets) + 1e-9)).all()
