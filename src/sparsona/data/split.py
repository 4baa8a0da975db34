"""What a client learns from, what it checks itself with and what it is tested on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from sparsona.core.rng import Rng


def whole(total: int, shares: Sequence[float] | np.ndarray) -> np.ndarray:
    """Whole numbers in proportion to the shares that sum to the total, rounded by largest remainder."""
    exact = np.asarray(shares, np.float64)
    exact = exact / exact.sum() * total
    # the small slack takes 2.9999999999999996 for the 3 it is
    numbers: np.ndarray = np.floor(exact + 1e-9).astype(np.int64)
    for i in np.argsort(numbers - exact, kind="stable")[: total - int(numbers.sum())]:
        numbers[i] += 1
    return numbers


def cut(samples: np.ndarray, shares: Sequence[float], rng: Rng, needed: Sequence[int] = (0,)) -> list[np.ndarray]:
    """A random cut by relative shares (6, 2, 2 is 0.6, 0.2, 0.2) with at least one sample in the needed pieces."""
    order = rng.numpy().permutation(samples)
    return [np.sort(piece) for piece in np.split(order, np.cumsum(sizes(len(samples), shares, needed))[:-1])]


def sizes(total: int, shares: Sequence[float], needed: Sequence[int] = (0,)) -> np.ndarray:
    """How many of so many samples each piece of such a cut has."""
    if total < len(needed):
        raise ValueError(
            f"data.split: {total} samples of a client are too few for {len(needed)} parts with at least one each"
        )
    counts = whole(total, shares)
    for i in needed:
        if not counts[i]:
            spare = counts - np.isin(np.arange(len(counts)), needed)
            counts[spare.argmax()] -= 1
            counts[i] += 1
    return counts


def label_mix(
    mixes: np.ndarray, labels: np.ndarray, test_samples: int, rng: Rng, *, overlap: bool = True
) -> list[np.ndarray]:
    """Test samples in the label mix of each client's training samples (FedSpa B.1), from counts [clients, classes].

    No sample comes twice within a client. Between clients a class is shared out without repetition as long as it
    lasts; where the clients together want more of it than there is, its samples go round so that each is used
    equally often (within one). Without ``overlap`` each client gets less of such a class instead. A client that wants
    more of a class than the whole test set has gets all of it.
    """
    if test_samples < 1:
        raise ValueError(f"data.test_samples: {test_samples} is not allowed; expected an int >= 1")
    table = np.stack([whole(test_samples, mix) for mix in mixes])
    mine: list[list[np.ndarray]] = [[] for _ in mixes]
    for label in range(mixes.shape[1]):
        pool = rng("class", label).numpy().permutation(np.flatnonzero(labels == label))
        wanted = np.minimum(table[:, label], len(pool))
        if not overlap and wanted.sum() > len(pool):
            wanted = whole(len(pool), wanted)
        edges = np.append(0, np.cumsum(wanted))
        for k, (a, b) in enumerate(pairwise(edges)):
            if b > a:
                mine[k].append(pool[np.arange(a, b) % len(pool)])
    for k, pieces in enumerate(mine):
        if not pieces:
            raise ValueError(
                f"data.test_samples: the test set has too few samples of the classes of client {k}; "
                "set data.test_overlap = true"
            )
    return [np.sort(np.concatenate(pieces)) for pieces in mine]
