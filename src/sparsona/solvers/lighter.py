"""Layer masks made cheaper: what a step costs depends on the lowest layer trained, which the budget does not see."""

from __future__ import annotations

import numpy as np

from sparsona.solvers.masks import Layers, Problem, bias


def lightened(problem: Problem, masks: Layers, spare: float) -> Layers:
    """Masks without their lowest layers, so that the backward pass ends earlier.

    Devices of one budget and one mask go together. They give up layers from the bottom as long as the bias does not
    rise, each leaves at most ``spare`` of its budget unused, and each still trains something. Devices that may train
    everything are left as they are.
    """
    masks = masks.copy()
    kinds = np.unique(np.column_stack([problem.budgets, masks]), axis=0, return_inverse=True)[1].ravel()
    for kind in range(kinds.max() + 1):
        alike = kinds == kind
        first = int(alike.argmax())
        budget, row = problem.budgets[first], masks[first].copy()
        if budget == problem.body:
            continue
        for j in np.flatnonzero(row)[:-1]:
            lighter = masks.copy()
            lighter[alike, j] = False
            unused = budget - int(lighter[first] @ problem.layer_sizes)
            if unused > spare * budget or bias(problem, lighter) > bias(problem, masks) + 1e-9 * problem.body:
                break
            masks = lighter
    return masks
