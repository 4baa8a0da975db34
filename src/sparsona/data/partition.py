"""Who holds which samples: every partitioner gives each client its sample numbers, no sample twice, no client empty.

The same key on another set of labels (the test set) gives the same clients about the same label shares.
"""

from __future__ import annotations

import heapq
import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from sparsona.core.rng import Rng

Parts = list[np.ndarray]  # sample numbers of each client, ascending

_MAX_FILE = 256 << 20
_MAX_CLIENTS = 1_000_000


@dataclass(frozen=True, eq=False)
class Part:
    """One client's samples by purpose."""

    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


# --- shared ---


def _enough(samples: int, clients: int, each: int, what: str = "samples") -> None:
    if clients < 1:
        raise ValueError(f"data.clients: {clients} is not allowed; expected an int >= 1")
    if each < 1:
        raise ValueError(f"data.min_samples: {each} is not allowed; expected an int >= 1")
    if samples < clients * each:
        raise ValueError(
            f"data.clients: {samples:,} {what} are too few for {clients:,} clients with at least {each:,} "
            "each; set fewer"
        )


def _even(total: int, clients: int) -> np.ndarray:
    """Sizes that differ by at most one."""
    return total // clients + (np.arange(clients) < total % clients)


def _cut(order: np.ndarray, sizes: np.ndarray) -> Parts:
    return [np.sort(piece) for piece in np.split(order, np.cumsum(sizes)[:-1])]


def _by_owner(owner: np.ndarray, clients: int) -> Parts:
    """The samples of each client, from the client of each sample (-1: nobody)."""
    order = np.argsort(owner, kind="stable")
    edges = np.searchsorted(owner[order], np.arange(clients + 1))
    return [order[a:b] for a, b in pairwise(edges)]


def _counts(labels: np.ndarray, classes: int | None) -> np.ndarray:
    return np.bincount(labels, minlength=classes or 0)


def _deal(labels: np.ndarray, table: np.ndarray, rng: Rng) -> Parts:
    """Random samples of each class, as many to each client as the table [clients, classes] says."""
    owner = np.full(len(labels), -1)
    for label in range(table.shape[1]):
        order = rng("class", label).numpy().permutation(np.flatnonzero(labels == label))
        who = np.repeat(np.arange(len(table)), table[:, label])
        owner[order[: len(who)]] = who
    return _by_owner(owner, len(table))


# --- by label ---


def iid(labels: np.ndarray, clients: int, rng: Rng) -> Parts:
    """A random split into sizes that differ by at most one."""
    _enough(len(labels), clients, 1)
    return _cut(rng.numpy().permutation(len(labels)), _even(len(labels), clients))


def dirichlet(
    labels: np.ndarray,
    clients: int,
    rng: Rng,
    *,
    alpha: float,
    balanced: bool = False,
    min_samples: int = 1,
    classes: int | None = None,
) -> Parts:
    """Label skew: all samples are used, and the smaller ``alpha``, the fewer labels a client has.

    Plain: each class is split over the clients by a Dirichlet draw (Yurochkin et al. 2019), so sizes differ; whoever
    is left with less than ``min_samples`` gets random samples of whoever has most. Balanced: sizes differ by at most
    one and each client draws its label mix (Hsu et al. 2019; FedSpa and DisPFL); the places are filled in random
    order, and when a class runs out the others make up for it.
    """
    _enough(len(labels), clients, min_samples)
    if not 0 < alpha <= 1e6:
        raise ValueError(f"data.alpha: {alpha} is not allowed; expected a float in (0, 1000000]")
    counts = _counts(labels, classes)
    if balanced:
        mix = np.stack([rng("mix", k).numpy().dirichlet(np.full(len(counts), alpha)) for k in range(clients)])
        return _deal(labels, _fill_places(counts, mix, rng), rng)
    table = np.zeros((clients, len(counts)), np.int64)
    for label, count in enumerate(counts):
        share = rng("mix", label).numpy().dirichlet(np.full(clients, alpha))
        edges = np.rint(np.append(0, np.cumsum(share)[:-1]) * count).astype(np.int64)
        table[:, label] = np.diff(np.append(np.minimum(edges, count), count))
    _raise_floor(table, min_samples, rng("floor").numpy())
    return _deal(labels, table, rng)


def _raise_floor(table: np.ndarray, floor: int, draw: np.random.Generator) -> None:
    """Move samples from the largest client to those below the floor."""
    sizes = table.sum(1)
    for k in np.flatnonzero(sizes < floor):
        while sizes[k] < floor:
            giver = int(sizes.argmax())
            label = draw.choice(table.shape[1], p=table[giver] / sizes[giver])
            table[giver, label] -= 1
            table[k, label] += 1
            sizes[giver] -= 1
            sizes[k] += 1


def _fill_places(counts: np.ndarray, mix: np.ndarray, rng: Rng) -> np.ndarray:
    """Equal places of each client filled one by one with a class of its mix, among those that still have samples."""
    clients, total = len(mix), int(counts.sum())
    places = rng("order").numpy().permutation(np.repeat(np.arange(clients), _even(total, clients)))
    table = np.zeros(mix.shape, np.int64)
    left = counts.tolist()
    levels = _levels(mix, counts)
    for k, at in zip(places.tolist(), rng("draw").numpy().random(total).tolist(), strict=True):
        label = bisect_right(levels[k], at)
        table[k, label] += 1
        left[label] -= 1
        if not left[label] and any(left):
            levels = _levels(mix, np.array(left))
    return table


def _levels(mix: np.ndarray, left: np.ndarray) -> list[list[float]]:
    """Cumulative shares of the classes that are left; who wants none of them takes them as they come."""
    open_mix = np.where(left > 0, mix, 0.0)
    open_mix[open_mix.sum(1) == 0] = left
    sums = np.cumsum(open_mix, 1)
    levels: list[list[float]] = (sums / sums[:, -1:]).tolist()
    return levels


def pathological(
    labels: np.ndarray, clients: int, rng: Rng, *, classes_per_client: int, classes: int | None = None
) -> Parts:
    """Exactly ``classes_per_client`` labels each; who shares a class has equal parts of it (equal within one)."""
    return deal_classes(labels, class_holders(_counts(labels, classes), clients, rng, classes_per_client), clients, rng)


def class_holders(counts: np.ndarray, clients: int, rng: Rng, classes_per_client: int) -> list[np.ndarray]:
    """The clients that hold each class: as equally many as the class sizes allow, in random combinations."""
    _enough(int(counts.sum()), clients, 1)
    present = int((counts > 0).sum())
    if not 1 <= classes_per_client <= present:
        raise ValueError(
            f"data.classes_per_client: {classes_per_client} is not allowed; "
            f"expected an int in [1, {present}], the number of classes"
        )
    limit, need = np.minimum(counts, clients), clients * classes_per_client
    if limit.sum() < need:
        raise ValueError(
            f"data.classes_per_client: the classes are too small for {clients:,} clients with "
            f"{classes_per_client} each; set fewer"
        )
    quota = np.zeros(len(counts), np.int64)
    draw = rng("holders").numpy()
    order = draw.permutation(len(counts))
    while need:  # one more for every class that can take it, until all places are given
        takers = [c for c in order if quota[c] < limit[c]][:need]
        quota[takers] += 1
        need -= len(takers)
    # no class is written down more often than there are clients, so nobody is dealt one twice
    deck = np.repeat(order, quota[order]).reshape(classes_per_client, clients).T.tolist()
    for a, b, i, j in draw.integers(
        [clients, clients, classes_per_client, classes_per_client], size=(10 * clients * classes_per_client, 4)
    ).tolist():
        if deck[a][i] not in deck[b] and deck[b][j] not in deck[a]:
            deck[a][i], deck[b][j] = deck[b][j], deck[a][i]
    return [np.array([k for k in range(clients) if c in deck[k]], np.int64) for c in range(len(counts))]


def deal_classes(labels: np.ndarray, holders: Sequence[np.ndarray], clients: int, rng: Rng) -> Parts:
    """Each class in equal parts to its holders; a holder gets none if there are too few."""
    table = np.zeros((clients, len(holders)), np.int64)
    for label, count in enumerate(_counts(labels, len(holders))):
        if len(holders[label]):
            first = rng("first", label).numpy().permutation(holders[label])  # not always the same ones get one more
            table[first, label] = _even(int(count), len(first))
    return _deal(labels, table, rng)


def shards(labels: np.ndarray, clients: int, rng: Rng, *, shards_per_client: int) -> Parts:
    """Sorted by label and cut into equal shards (within one), some random ones each (McMahan et al. 2017)."""
    if shards_per_client < 1:
        raise ValueError(f"data.shards_per_client: {shards_per_client} is not allowed; expected an int >= 1")
    number = clients * shards_per_client
    _enough(len(labels), clients, shards_per_client)
    pieces = _cut(_sorted(labels, rng.numpy().permutation(len(labels))), _even(len(labels), number))
    deal = rng("shards").numpy().permutation(number).reshape(clients, -1)
    return [np.sort(np.concatenate([pieces[i] for i in mine])) for mine in deal]


def _sorted(labels: np.ndarray, order: np.ndarray) -> np.ndarray:
    return order[np.argsort(labels[order], kind="stable")]


def lambda_mix(labels: np.ndarray, clients: int, rng: Rng, *, noniid: float) -> Parts:
    """FedPSE: a random share (λ) sorted by label in consecutive pieces, the rest at random; equal sizes within one."""
    _enough(len(labels), clients, 1)
    if not 0 <= noniid <= 1:
        raise ValueError(f"data.noniid: {noniid} is not allowed; expected a float in [0, 1]")
    order = rng.numpy().permutation(len(labels))
    skewed = round(noniid * len(labels))
    sizes, sorted_sizes = _even(len(labels), clients), _even(skewed, clients)
    sorted_parts = _cut(_sorted(labels, order[:skewed]), sorted_sizes)
    random_parts = _cut(order[skewed:], sizes - sorted_sizes)
    return [np.sort(np.concatenate(both)) for both in zip(sorted_parts, random_parts, strict=True)]


# --- by who wrote it, where it was taken, what it is about ---


def natural(keys: np.ndarray, clients: int, rng: Rng, *, min_samples: int = 1, merge: bool = False) -> Parts:
    """One client per key, or with ``merge`` several whole keys per client: see ``key_groups``."""
    return deal_keys(keys, key_groups(keys, clients, rng, min_samples=min_samples, merge=merge))


def key_groups(
    keys: np.ndarray, clients: int, rng: Rng, *, min_samples: int = 1, merge: bool = False
) -> list[np.ndarray]:
    """The key values of each client.

    Plain: a random choice of the keys with at least ``min_samples`` samples, one each. Merged: all keys, from the
    largest to the smallest to whoever has least so far, so that all samples are used and sizes are close.
    """
    values, counts = np.unique(keys, return_counts=True)
    if merge:
        _enough(len(values), clients, 1, "keys")
        _enough(len(keys), clients, min_samples)
        groups: list[list[int]] = [[] for _ in range(clients)]
        heap = [(0, k) for k in range(clients)]
        order = rng("ties").numpy().permutation(len(values))
        for i in order[np.argsort(-counts[order], kind="stable")].tolist():
            size, k = heapq.heappop(heap)
            groups[k].append(i)
            heapq.heappush(heap, (size + int(counts[i]), k))
        if heap[0][0] < min_samples:
            raise ValueError(
                f"data.clients: a client of {clients:,} would have {heap[0][0]:,} samples; "
                f"expected at least {min_samples:,}"
            )
        return [values[sorted(group)] for group in groups]
    fit = values[counts >= min_samples]
    if not 1 <= clients <= len(fit):
        raise ValueError(
            f"data.clients: {clients:,} is not allowed; expected an int in [1, {len(fit):,}], "
            f"the keys with at least {min_samples:,} "
            f"samples (of {len(values):,} keys)"
        )
    return [fit[i : i + 1] for i in rng("keys").choice(len(fit), clients)]


def deal_keys(keys: np.ndarray, groups: Sequence[np.ndarray]) -> Parts:
    """The samples of each group of keys."""
    values = np.concatenate(groups)
    order = np.argsort(values)
    owners = np.repeat(np.arange(len(groups)), [len(group) for group in groups])[order]
    values = values[order]
    places = np.minimum(np.searchsorted(values, keys), len(values) - 1)
    return _by_owner(np.where(values[places] == keys, owners[places], -1), len(groups))


# --- from and to a file ---


def save_partition(path: Path, parts: Sequence[Part], *, source: str, samples: int) -> None:
    """Write a partition as JSON; sample numbers count the training set first, then the official test set."""
    clients = [{name: getattr(p, name).tolist() for name in ("train", "validation", "test")} for p in parts]
    text = json.dumps({"source": source, "samples": samples, "clients": clients}, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8")


def read_partition(path: Path, samples: int, source: str = "") -> list[Part]:
    """A partition from JSON, checked; if the file only says who holds what, all is train and nothing test.

    ``{"clients": [{"train": [...], "validation": [...], "test": [...]}, ...]}`` or ``{"clients": [[...], ...]}``;
    ``"source"`` and ``"samples"`` are compared if they are there. No sample may be used twice, save that several
    clients may be tested on one that nobody learns from.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MAX_FILE + 1)
    except OSError as error:
        raise ValueError(f'data.partition_file: "{path}" cannot be read: {error.strerror}') from error
    if len(raw) > _MAX_FILE:
        raise ValueError(f"{path}: the file is too large; expected at most {_MAX_FILE:,} bytes")
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from error
    where = str(path)
    if not isinstance(content, dict) or set(content) - {"clients", "source", "samples"}:
        raise ValueError(f"{where}: expected an object with clients and perhaps source and samples")
    for name, ours in (("source", source), ("samples", samples)):
        if ours and content.get(name, ours) != ours:
            raise ValueError(f"{where}: made for {name} {content[name]!r}; expected {ours!r}")
    clients = content.get("clients")
    if not isinstance(clients, list) or not 1 <= len(clients) <= _MAX_CLIENTS:
        raise ValueError(f"{where}: clients is not allowed; expected a list of 1 to {_MAX_CLIENTS:,} clients")
    if all(isinstance(client, list) for client in clients):
        lists = [_numbers(client, samples, f"{where}, client {k}") for k, client in enumerate(clients)]
        for k, mine in enumerate(lists):
            if not len(mine):
                raise ValueError(f"{where}: client {k} has no samples; expected at least one")
        _once(lists, where)
        none = np.empty(0, np.int64)
        return [Part(mine, none, none) for mine in lists]
    parts = []
    for k, client in enumerate(clients):
        if not isinstance(client, dict) or not {"train", "test"} <= set(client) <= {"train", "validation", "test"}:
            raise ValueError(
                f"{where}: client {k} has other parts; expected train, test and perhaps validation, as for all clients"
            )
        part = Part(
            *(
                _numbers(client.get(n, []), samples, f"{where}, client {k}, {n}")
                for n in ("train", "validation", "test")
            )
        )
        if not len(part.train) or not len(part.test):
            raise ValueError(
                f"{where}: client {k} has too few samples; expected at least one train and one test sample"
            )
        _once([part.test], f"{where}, client {k}")
        parts.append(part)
    learned = [p.train for p in parts] + [p.validation for p in parts]
    _once([*learned, np.unique(np.concatenate([p.test for p in parts]))], where)
    return parts


def _numbers(value: object, samples: int, where: str) -> np.ndarray:
    if not isinstance(value, list) or not all(type(i) is int and 0 <= i < samples for i in value):
        raise ValueError(f"{where}: expected a list of sample numbers in [0, {samples - 1:,}]")
    return np.sort(np.array(value, np.int64))


def _once(lists: Sequence[np.ndarray], where: str) -> None:
    values, counts = np.unique(np.concatenate(lists), return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"{where}: sample {values[counts > 1][0]} is listed twice; list each sample once")
