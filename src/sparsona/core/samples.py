"""A client's samples: an index into shared tensors, cut into batches by keyed permutations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sparsona.core.arithmetic import precise
from sparsona.core.rng import Rng

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Prepare:
    """The conversion of stored inputs to what a model reads.

    Pictures are kept as bytes [n, height, width, channels], a quarter of the memory of floats, and become
    channels-last floats batch by batch; anything else (token ids, feature vectors) passes unchanged.
    """

    mean: tuple[float, ...] = ()  # per channel, on the scale 0 to 1; empty: inputs pass unchanged
    std: tuple[float, ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        """A batch as the model reads it."""
        if not self.mean:
            return x
        scale, shift = _constants(self.mean, self.std, x.device)
        return x.to(torch.float32).mul_(scale).sub_(shift).permute(0, 3, 1, 2)


@lru_cache(maxsize=8)
def _constants(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The factor of each channel's bytes, and what is then taken off."""
    scale = torch.tensor([1 / (255 * s) for s in std])
    shift = torch.tensor([m / s for m, s in zip(mean, std, strict=True)])
    return scale.to(device), shift.to(device)


@dataclass(frozen=True)
class Augment:
    """Random crops after padding with black, and random mirror images: training pictures that differ each time."""

    pad: int = 4
    flip: bool = True

    def draw(self, n: int, rng: Rng) -> Tensor:
        """How n pictures are changed: moved down and to the right, and mirrored or not [3, n]."""
        draws = [rng(way).numpy().integers(0, 2 * self.pad + 1, n) for way in ("down", "right")]
        mirrored = rng("flip").numpy().random(n) < 0.5 if self.flip else np.zeros(n, dtype=np.bool_)
        return torch.from_numpy(np.stack([*draws, mirrored]))

    def __call__(self, x: Tensor, drawn: Tensor) -> Tensor:
        """Pictures [n, height, width, channels] as bytes, each moved and mirrored as ``drawn``."""
        n, height, width, _ = x.shape
        down, right, mirrored = drawn
        rows = down[:, None] + torch.arange(height, device=x.device)  # [n, height]
        columns = right[:, None] + torch.arange(width, device=x.device)  # [n, width]
        if self.flip:
            columns = torch.where(mirrored[:, None] > 0, columns.flip(1), columns)
        padded = F.pad(x, (0, 0, self.pad, self.pad, self.pad, self.pad))
        return padded[torch.arange(n, device=x.device)[:, None, None], rows[:, :, None], columns[:, None, :]]


@dataclass(frozen=True)
class Samples:
    """Some samples of a data set: all clients share the tensors, each has its own index."""

    x: Tensor  # [n, ...] of the whole data set
    y: Tensor  # [n]
    index: Tensor  # [m] which of them are ours
    prepare: Prepare = Prepare()
    augment: Augment | None = None  # for training batches only

    def __len__(self) -> int:
        return len(self.index)

    def to(self, device: torch.device) -> Samples:
        """Our samples, and no others, on another device."""
        x, y = self.x[self.index].to(device), self.y[self.index].to(device)
        return replace(self, x=x, y=y, index=torch.arange(len(self), device=device))

    @property
    def nbytes(self) -> int:
        """What the tensors hold."""
        return self.x.nbytes + self.y.nbytes + self.index.nbytes

    def at(self, places: Tensor, drawn: Tensor | None = None) -> Batch:
        """The samples at these places of the index, ready for the model; augmented as ``drawn``, if given."""
        rows = self.index[places]
        x = self.x[rows]
        if drawn is not None and self.augment is not None:
            x = self.augment(x, drawn)
        return self.prepare(x), self.y[rows]

    def all(self, size: int) -> Iterator[Batch]:
        """All samples in order, at most ``size`` at a time."""
        for rows in torch.split(self.index, size):
            yield self.prepare(self.x[rows]), self.y[rows]

    def mean(self, size: int = 128) -> Tensor:
        """The mean input, as a batch of one."""
        return (
            torch.stack([precise(x).sum(0, dtype=torch.float64) for x, _ in self.all(size)])
            .sum(0, keepdim=True)
            .div(len(self))
            .float()
            .to(self.x.device)
        )

    def batch(self, rng: Rng, size: int) -> Batch:
        """One random batch."""
        return self.at(rng.permutation(len(self), self.index.device)[:size])

    def epochs(self, rng: Rng, epochs: int, size: int, *, drop_last: bool = False) -> Batches:
        """Batches of ``epochs`` passes, each in its own random order."""
        return Batches(self, rng, epochs, size, drop_last)


@dataclass(frozen=True)
class Batches:
    """A repeatable stream of batches, with the key that also drives the model's own randomness (dropout)."""

    samples: Samples
    rng: Rng
    epochs: int
    size: int
    drop_last: bool = False

    def __iter__(self) -> Iterator[Batch]:
        n, device = len(self.samples), self.samples.index.device
        for epoch in range(self.epochs):
            # a client with less than one batch still trains on what it has
            count = n // self.size * self.size if self.drop_last and self.size <= n else n
            # what is drawn for an epoch is moved at once, so that no step waits for the host
            parts = torch.split(self.rng("epoch", epoch).permutation(n, device)[:count], self.size)
            changes = self._drawn(epoch, [len(places) for places in parts])
            for places, drawn in zip(parts, changes, strict=True):
                yield self.samples.at(places, drawn)

    def _drawn(self, epoch: int, sizes: list[int]) -> Sequence[Tensor | None]:
        augment = self.samples.augment
        if augment is None or not sizes:
            return [None] * len(sizes)
        draws = [augment.draw(size, self.rng("augment", epoch, i)) for i, size in enumerate(sizes)]
        return torch.split(torch.cat(draws, 1).to(self.samples.index.device), sizes, 1)


@dataclass(frozen=True)
class LocalData:
    """The training and validation samples of a device; test samples are not included."""

    train: Samples
    validation: Samples

    def __len__(self) -> int:
        return len(self.train)
