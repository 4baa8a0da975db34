"""Layer masks refined by OR-tools' CP-SAT, from masks that are at hand: ``pip install 'sparsona[cpsat]'``."""

from __future__ import annotations

import numpy as np

from sparsona.methods.perfedmask.problem import Solution, objective

_FINE = 10**12  # objective units of the body, about: prices are rounded to them, sizes are not


def refined(start: Solution, seconds: float = 60.0) -> Solution:
    """A solution that is no worse, with the better of the two bounds, after at most so long.

    Seconds are CP-SAT's deterministic time, and it uses one thread: so the masks are the same on every machine.
    """
    try:
        from ortools.sat.python import cp_model
    except ModuleNotFoundError as error:
        raise ValueError("refine: needs OR-tools, which is not installed: pip install 'sparsona[cpsat]'") from error
    except ImportError as error:
        why = "import it before cvxpy and highspy, which load another version of HiGHS"
        raise ValueError(f"refine: OR-tools is installed, but cannot be loaded; {why}") from error
    problem = start.problem
    devices, layers = start.masks.shape
    model = cp_model.CpModel()
    m = [[model.new_bool_var("") for _ in range(layers)] for _ in range(devices)]
    # device n has a share of 1/c exactly where c is the smallest coverage of its layers
    times = max(1, _FINE // problem.body)
    whole = times * problem.body
    prices = [whole // c for c in range(1, devices + 1)]  # rounded down: what comes out stays a bound
    least = [model.new_int_var(1, devices, "") for _ in range(devices)]
    price = [model.new_int_var(0, whole, "") for _ in range(devices)]
    covered = [sum(m[n][j] for n in range(devices)) for j in range(layers)]
    trained = [model.new_bool_var("") for _ in range(layers)]
    for j in range(layers):
        model.add(covered[j] >= 1).only_enforce_if(trained[j])
    for n in range(devices):
        model.add(sum(s * m[n][j] for j, s in enumerate(problem.sizes)) <= problem.budgets[n])
        busy = model.new_bool_var("")
        model.add_max_equality(busy, m[n])
        if n not in problem.idle and not problem.allow_idle:
            model.add(busy == 1)
        model.add_element(least[n] - 1, prices, price[n]) if not problem.allow_idle and n not in problem.idle else None
        for j in range(layers):
            model.add(least[n] <= covered[j]).only_enforce_if(m[n][j])
        if problem.allow_idle or n in problem.idle:
            full = model.new_int_var(0, whole, "")
            model.add_element(least[n] - 1, prices, full)
            model.add(price[n] >= full).only_enforce_if(busy)
    size = [s * times for s in problem.sizes]
    terms = sum(price) - sum(size[j] * trained[j] for j in range(layers))
    used = sum(size[j] * m[n][j] for n in range(devices) for j in range(layers))
    model.minimize(terms - used)
    for n in range(devices):
        for j in range(layers):
            model.add_hint(m[n][j], bool(start.masks[n, j]))
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return start
    masks = np.array([[bool(solver.value(v)) for v in row] for row in m])
    floor = solver.best_objective_bound / times + sum(problem.budgets)
    better = objective(problem, masks) < start.objective or not problem.feasible(start.masks)
    chosen = masks if better else start.masks
    return Solution(problem, chosen, max(start.bound, min(floor, float(objective(problem, chosen)))))
