"""Who takes part in a round: clients drawn by the recipe's sampler, the same for every method and engine."""

from __future__ import annotations

import csv
import operator
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsona.core.imports import imported
from sparsona.core.rng import Rng
from sparsona.core.text import one_line
from sparsona.core.topology import cohort
from sparsona.experiment.checking import RecipeError, shown
from sparsona.experiment.recipe import Recipe

# A user's sampler gets the round from 0, the clients to choose from, fleet.per_round (or their number), and a generator
OwnSampler = Callable[[int, Sequence[int], int, np.random.Generator], Iterable[int]]
Sizes = Callable[[], Sequence[int]]  # how many training samples each client has, counted when asked for
Trace = dict[int, list[tuple[int, int]]]  # by client, the first and the last round of each stay, counted from 1

_COLUMNS = ("client", "from", "to")


@dataclass(frozen=True)
class Sampling:
    """Chooses the clients of each round; every choice depends only on the round's key, so a resumed run repeats it."""

    recipe: Recipe
    members: Sequence[int]  # all clients but newcomers
    sizes: Sequence[int] = ()  # training samples of every client, where they are needed
    trace: Trace | None = None
    own: OwnSampler | None = None

    def chosen(self, t: int) -> list[int]:
        """The clients of round t, ascending; there may be none."""
        members, key = self.members, Rng(self.recipe.seed, "cohort", t)
        per_round = self.recipe.fleet.per_round or len(members)
        if self.own is not None:
            return self._called(self.own, t, per_round, key.numpy())
        match self.recipe.fleet.sampler:
            case "samples":
                sizes = np.array([self.sizes[k] for k in members], dtype=np.float64)
                places = key.numpy().choice(len(members), per_round, replace=False, p=sizes / sizes.sum())
                return sorted(members[place] for place in places)
            case "poisson":
                present = key.numpy().random(len(members)) < per_round / len(members)
                return [k for k, here in zip(members, present, strict=True) if here]
            case "trace":
                assert self.trace is not None
                members = [k for k in members if any(a <= t + 1 <= b for a, b in self.trace.get(k, ()))]
                if len(members) <= per_round:
                    return members
        return [members[place] for place in cohort(len(members), per_round, key)]

    def away(self, t: int) -> frozenset[int]:
        """The clients of a method without a server that are away in round t."""
        drawn = self.recipe.fleet.peers == "drawn"
        return frozenset(self.members) - frozenset(self.chosen(t)) if drawn else frozenset()

    def _called(self, own: OwnSampler, t: int, per_round: int, rng: np.random.Generator) -> list[int]:
        """What a user's sampler chose, checked, ascending."""
        where = f"fleet.sampler: {shown(self.recipe.fleet.sampler)} in round {t + 1}"
        try:
            answer = own(t, list(self.members), per_round, rng)
            chosen = list(answer) if isinstance(answer, Iterable) else answer
        except Exception as error:  # whatever a stranger's function raises
            raise RecipeError(f"{where} failed: {type(error).__name__}: {one_line(str(error))}") from error
        try:
            numbers = [operator.index(k) for k in chosen]
        except TypeError as error:
            raise RecipeError(f"{where}: expected a list of client numbers: {error}") from error
        if len(set(numbers)) < len(numbers):
            raise RecipeError(f"{where} returned {shown(numbers)}; expected each client at most once")
        if strange := set(numbers) - set(self.members):
            raise RecipeError(f"{where} returned client {min(strange)}; expected some of the clients that it is given")
        return sorted(numbers)


def sampling_of(recipe: Recipe, members: Sequence[int], sizes: Sizes | None, names: Sequence[str] = ()) -> Sampling:
    """The sampler of a recipe, with what it needs read and checked; RecipeError names what is wrong.

    A trace names clients as the data do (``names``), or by number.
    """
    fleet = recipe.fleet
    if ":" in fleet.sampler:
        try:
            return Sampling(recipe, members, own=imported("fleet.sampler", fleet.sampler, {}))
        except ValueError as error:
            raise RecipeError(str(error)) from error
    if fleet.sampler == "trace":
        return Sampling(recipe, members, trace=_read_trace(Path(fleet.trace), recipe.data.clients, names))
    if fleet.sampler != "samples":
        return Sampling(recipe, members)
    if sizes is None:
        raise RecipeError(
            'fleet.sampler: "samples" is not allowed; the sizes of these clients are unknown before they are read; '
            'use "uniform", "poisson" or your own'
        )
    return Sampling(recipe, members, sizes())


def trace_checksum(path: Path) -> int:
    """A number that shows whether a trace has changed since a run began."""
    try:
        return zlib.crc32(path.read_bytes())
    except OSError as error:
        raise RecipeError(f"fleet.trace: {shown(str(path))} cannot be read: {error.strerror}") from error


def _read_trace(path: Path, clients: int, names: Sequence[str]) -> Trace:
    """When each client is there: a CSV file with the columns client, from and to."""
    trace: Trace = {}
    numbers = {name: k for k, name in enumerate(names or map(str, range(clients)))}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            if missing := [name for name in _COLUMNS if name not in (reader.fieldnames or ())]:
                raise RecipeError(
                    f"fleet.trace: {path}, line 1: column {missing[0]!r} is missing; expected client,from,to"
                )
            for row in reader:
                client, first, last = _stay(row, f"fleet.trace: {path}, line {reader.line_num}", numbers)
                trace.setdefault(client, []).append((first, last))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise RecipeError(f"fleet.trace: {shown(str(path))} cannot be read: {why}") from error
    return trace


def _stay(row: dict[str, str | None], where: str, numbers: Mapping[str, int]) -> tuple[int, int, int]:
    """A line of a trace: client, first round, last round."""
    texts = {name: (row[name] or "").strip() for name in _COLUMNS}
    client = texts.pop("client")
    if client not in numbers:
        names = list(numbers)
        raise RecipeError(f"{where}: client is {shown(client)}; expected a client from {names[0]} to {names[-1]}")
    for name, text in texts.items():
        if not (text.isascii() and text.isdigit()):
            raise RecipeError(f"{where}: {name} is {shown(text)}; expected an int")
    first, last = map(int, texts.values())
    if not 1 <= first <= last:
        raise RecipeError(f"{where}: from is {first} and to is {last}; expected 1 <= from <= to")
    return numbers[client], first, last
