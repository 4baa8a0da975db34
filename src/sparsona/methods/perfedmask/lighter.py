"""Layer masks made cheaper: what a step costs depends on the lowest layer trained, which the budget does not see."""

from __future__ import annotations

import numpy as np

from sparsona.methods.perfedmask.problem import Layers, Problem, bias
from sparsona.methods.perfedmask.subset_sum import fullest


def lightened(problem: Problem, masks: Layers, spare: float = 0.0) -> Layers:
    """Masks whose lowest layers lie higher, so that the backward pass ends earlier.

    Devices of one budget and one mask go together, to the fullest mask above the highest floor at which the bias does
    not rise and none leaves more than ``spare`` of its budget unused, or than it did: with nothing to spare, ties are
    broken and no more. Devices that may train everything are left as they are.
    """
    masks = masks.copy()
    kinds = np.unique(np.column_stack([problem.budgets, masks]), axis=0, return_inverse=True)[1].ravel()
    for kind in range(kinds.max() + 1):
        alike = kinds == kind
        first = int(alike.argmax())
        budget, row = problem.budgets[first], masks[first]
        if budget == problem.body or not row.any():
            continue
        least = min(int(row @ problem.layer_sizes), (1 - spare) * budget)  # what must still be trained
        for floor in range(len(row) - 1, int(row.argmax()), -1):
            if problem.layer_sizes[floor:].sum() < least:
                continue
            lighter = masks.copy()
            lighter[alike] = np.append(np.zeros(floor, dtype=bool), fullest(problem.layer_sizes[floor:], budget))
            enough = lighter[first].any() and lighter[first] @ problem.layer_sizes >= least
            if enough and bias(problem, lighter) <= bias(problem, masks) + 1e-9 * problem.body:
                masks = lighter
                break
    return masks
