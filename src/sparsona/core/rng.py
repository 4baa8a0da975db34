"""Random numbers that depend only on a key, such as (seed, purpose, round, client), and never on earlier draws."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

Key = int | str
Where = torch.device | None  # None: the host


class Rng:
    """A key to random numbers: the same key gives the same numbers, in any order, process or machine.

    Every draw starts from the key, so two different draws need two different keys: ``rng("epoch", 3).permutation(n)``.
    """

    __slots__ = ("key",)

    def __init__(self, *key: Key) -> None:
        for part in key:
            if not isinstance(part, (int, str)):
                raise TypeError(f"key: {part!r} is not allowed; expected an int or a str")
        self.key = tuple(key)

    def __call__(self, *parts: Key) -> Rng:
        """The key extended by more parts."""
        return Rng(*self.key, *parts)

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
        """A new PyTorch generator."""
        return torch.Generator().manual_seed(self.seed)

    def numpy(self) -> np.random.Generator:
        """A new NumPy generator."""
        return np.random.Generator(np.random.PCG64(self.seed))

    def permutation(self, n: int, device: Where = None) -> Tensor:
        """The numbers 0 to n-1 in random order; the same ones on any device."""
        return torch.randperm(n, generator=self.torch()).to(device)

    def uniform(self, *shape: int, device: Where = None) -> Tensor:
        """Numbers uniform in [0, 1); the same ones on any device."""
        return torch.rand(*shape, generator=self.torch()).to(device)

    def choice(self, n: int, k: int) -> list[int]:
        """k different numbers from 0 to n-1, drawn uniformly, in ascending order."""
        return sorted(int(i) for i in self.numpy().choice(n, size=k, replace=False))

    @contextmanager
    def everywhere(self, device: Where = None) -> Iterator[None]:
        """Within the block PyTorch's global generators, also that of ``device``, are keyed.

        This is for layers that draw themselves, and to initialise. Kinds of devices draw different numbers.
        """
        state = torch.get_rng_state()
        there = None if device is None or device.type == "cpu" else torch.get_device_module(device)
        which = () if device is None or device.type == "mps" else (device,)  # of the many that there may be
        drawn = None if there is None else there.get_rng_state(*which)
        torch.manual_seed(self.seed)  # on all devices
        try:
            yield
        finally:
            torch.set_rng_state(state)
            if there is not None:
                there.set_rng_state(drawn, *which)
