"""Layer masks refined by OR-tools' CP-SAT, from masks that are at hand: ``pip install 'sparsona[cpsat]'``."""

from __future__ import annotations

import numpy as np

from sparsona.solvers.masks import Solution, objective

_SCALE = 1_000_000  # objective units of the body


def refined(found: Solution, seconds: float = 60.0, workers: int = 1) -> Solution:
    """A solution that is no worse, with the better of the two bounds, after at most so long."""
    try:
        from ortools.sat.python import cp_model
    except ModuleNotFoundError as error:
        raise ValueError("refinement needs OR-tools; pip install 'sparsona[cpsat]'") from error
    except ImportError as error:
        why = "it does not load after cvxpy or highspy, who bring another HiGHS; import it first"
        raise ValueError(f"refinement needs OR-tools, which is there, but cannot be loaded: {why}") from error
    problem = found.problem
    devices, layers = found.masks.shape
    model = cp_model.CpModel()
    m = [[model.new_bool_var("") for _ in range(layers)] for _ in range(devices)]
    # device n has a share of 1/c exactly where c is the smallest coverage of its layers
    prices = [_SCALE // c for c in range(1, devices + 1)]  # rounded down: what comes out stays a bound
    least = [model.new_int_var(1, devices, "") for _ in range(devices)]
    price = [model.new_int_var(0, _SCALE, "") for _ in range(devices)]
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
            whole = model.new_int_var(0, _SCALE, "")
            model.add_element(least[n] - 1, prices, whole)
            model.add(price[n] >= whole).only_enforce_if(busy)
    size = [s * _SCALE / problem.body for s in problem.sizes]
    terms = sum(price) * 1.0 - sum(size[j] * trained[j] for j in range(layers))
    used = sum(size[j] * m[n][j] for n in range(devices) for j in range(layers))
    model.minimize(terms - used)
    for n in range(devices):
        for j in range(layers):
            model.add_hint(m[n][j], bool(found.masks[n, j]))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = 1
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return found
    masks = np.array([[bool(solver.value(v)) for v in row] for row in m])
    floor = solver.best_objective_bound * problem.body / _SCALE + sum(problem.budgets)
    floor -= 1e-6 * problem.body  # coefficients are scaled to whole numbers
    better = objective(problem, masks) < found.objective and problem.feasible(masks)
    return Solution(problem, masks if better else found.masks, max(found.bound, min(floor, found.objective)))
