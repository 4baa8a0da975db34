"""How waiting shapes a round without a server: who starts at once, and how long a round takes, in training times.

In each draw everyone reads M others at random and waits for at most N of those that are earlier in order, as in DA-DPFL
(its Figures 8 and 9). Clients are numbered by their places in the order, without loss: neighbours are drawn
evenly, so a drawn order would only rename the clients. All draws of a batch are computed at once; ``core.topology``
does the same for one round of a real run, and tests hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sparsona.core.rng import Rng

Ints = NDArray[np.int32]
Pick = Literal["fastest", "smallest id"]

MOST = 5000  # clients: a draw takes their square in memory

_NEVER = np.iinfo(np.int32).max
_BATCH = 2_000_000  # numbers in memory at once


@dataclass(frozen=True)
class Estimate:
    """A mean over draws and its standard error, which a single draw does not have."""

    mean: float
    error: float | None


@dataclass(frozen=True)
class Waiting:
    """The results for each number of neighbours M, and for each M with each wait N up to it."""

    clients: int
    draws: int
    pick: Pick
    seed: int
    parallelism: dict[int, Estimate]  # by M: the share of clients that start at once, if there is any waiting
    delay: dict[tuple[int, int], Estimate]  # by M and N: the length of a round

    def json(self) -> dict[str, Any]:
        """The options and all estimates as plain values."""
        options = {name: getattr(self, name) for name in ("clients", "draws", "pick", "seed")}
        parallelism = [{"neighbours": m, **vars(e), "exact": at_once(m)} for m, e in self.parallelism.items()]
        delay = [{"neighbours": m, "wait": n, **vars(e)} for (m, n), e in self.delay.items()]
        return options | {"parallelism": parallelism, "delay": delay}


def waiting(
    clients: int,
    neighbours: Sequence[int],
    waits: Sequence[int],
    draws: int,
    *,
    pick: Pick = "fastest",
    seed: int = 1,
    listen: Callable[[int], None] | None = None,
) -> Waiting:
    """Simulate all pairs of M and N up to M, with N = M always among them; ``listen`` gets the number of draws made.

    A draw depends only on the seed and its number; with fewer neighbours a client reads a subset of those of more.
    """
    _within("clients", clients, 2, MOST)
    _within("draws", draws, 1)
    for m in neighbours:
        _within("neighbours", m, 1, clients - 1)
    for n in waits:
        _within("waits", n, 0)
    if pick not in (allowed := get_args(Pick)):
        raise ValueError(f'pick: "{pick}" is not allowed; expected one of {", ".join(allowed)}')
    most = max(neighbours)
    pairs = [(m, n) for m in neighbours for n in sorted({*waits, m}) if n <= m]
    shares: dict[int, list[NDArray[np.float64]]] = {m: [] for m in neighbours}
    lengths: dict[tuple[int, int], list[Ints]] = {pair: [] for pair in pairs}
    own = np.arange(clients)[:, None]
    batch = max(1, min(100, _BATCH // (clients * most)))
    for first in range(0, draws, batch):
        chosen = range(first, min(first + batch, draws))
        reads = np.stack([graph(clients, most, Rng(seed, "waiting", i)) for i in chosen])
        for m in neighbours:
            shares[m].append((reads[:, :, :m] > own).all(axis=2).mean(axis=1))
        for m, n in pairs:
            lengths[m, n].append(finishes(reads[:, :, :m], n, pick).max(axis=1))
        if listen is not None:
            listen(chosen.stop)
    return Waiting(
        clients,
        draws,
        pick,
        seed,
        {m: _estimate(np.concatenate(parts)) for m, parts in shares.items()},
        {pair: _estimate(np.concatenate(parts)) for pair, parts in lengths.items()},
    )


def at_once(neighbours: int) -> float:
    """The share of clients expected to start at once: a client must be the first of itself and those it reads."""
    return 1 / (neighbours + 1)


def graph(clients: int, neighbours: int, rng: Rng) -> Ints:
    """For each client whom it reads, uniformly and in random order, so that the first few are uniform too."""
    others = np.tile(np.arange(clients - 1, dtype=np.int32), (clients, 1))
    chosen = rng.numpy().permuted(others, axis=1)[:, :neighbours]
    return chosen + (chosen >= np.arange(clients, dtype=np.int32)[:, None])


def finishes(reads: Ints, max_wait: int, pick: Pick = "fastest") -> Ints:
    """When each client finishes, by draw, if ``reads`` says whom it reads, also by draw, and training takes 1."""
    draws, clients, _ = reads.shape
    if pick == "smallest id":
        reads = np.sort(reads, axis=2)[:, :, :max_wait]
    finish = np.full((draws, clients), _NEVER, dtype=np.int32)
    for k in range(clients):  # later ones never finish first, and so are never waited for
        times = np.take_along_axis(finish, reads[:, k], axis=1)
        if pick == "fastest":
            times.sort(axis=1)
        awaited = times[:, :max_wait]
        finish[:, k] = 1 + np.where(awaited == _NEVER, 0, awaited).max(axis=1, initial=0)
    return finish


def _estimate(values: NDArray[np.float64] | Ints) -> Estimate:
    error = float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
    return Estimate(float(values.mean()), error)


def _within(name: str, value: int, low: int, high: int | None = None) -> None:
    if value < low or (high is not None and value > high):
        raise ValueError(
            f"{name}: {value} is not allowed; expected an int {f'>= {low}' if high is None else f'in [{low}, {high}]'}"
        )
