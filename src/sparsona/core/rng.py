"""Random numbers that depend on a key alone, such as (seed, purpose, round, client), never on who drew before."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

Key = int | str


class Rng:
    """A key to random numbers: the same key gives the same numbers, in any order, process or machine.

    Every draw starts afresh, so two different draws need two different keys: ``rng("epoch", 3).permutation(n)``.
    """

    __slots__ = ("key",)

    def __init__(self, *key: Key) -> None:
        for part in key:
            if not isinstance(part, (int, str)):
                raise TypeError(f"a key part must be an int or a str, not {part!r}")
        self.key = tuple(key)

    def __call__(self, *more: Key) -> Rng:
        """The key extended by more parts."""
        return Rng(*self.key, *more)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rng) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Rng{self.key!r}"

    @property
    def seed(self) -> int:
        """A 63-bit number made from the key."""
        text = json.dumps(self.key)  # unambiguous: 1 and "1" are different keys, and so are ("a", "b") and ("a, b",)
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1

    def torch(self) -> torch.Generator:
        """A fresh PyTorch generator."""
        return torch.Generator().manual_seed(self.seed)

    def numpy(self) -> np.random.Generator:
        """A fresh NumPy generator."""
        return np.random.Generator(np.random.PCG64(self.seed))

    def permutation(self, n: int) -> Tensor:
        """The numbers 0 to n-1 in random order."""
        return torch.randperm(n, generator=self.torch())

    def uniform(self, *shape: int) -> Tensor:
        """Numbers uniform in [0, 1)."""
        return torch.rand(*shape, generator=self.torch())

    def choice(self, n: int, k: int) -> list[int]:
        """k different numbers of 0 to n-1, uniformly, in ascending order."""
        return sorted(int(i) for i in self.numpy().choice(n, size=k, replace=False))

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """Within the block PyTorch's global generator is keyed: for layers that draw themselves, and to initialise."""
        state = torch.get_rng_state()
        torch.manual_seed(self.seed)
        try:
            yield
        finally:
            torch.set_rng_state(state)
