"""A client's samples: an index into shared tensors, cut into batches by keyed permutations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sparsona.core.rng import Rng

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Prepare:
    """How stored inputs become what a model reads.

    Pictures are kept as bytes [n, height, width, channels], a quarter of the memory of floats, and become
    channels-last floats batch by batch; anything else (token ids, feature vectors) passes unchanged.
    """

    mean: tuple[float, ...] = ()  # per channel, on the scale 0 to 1; empty: inputs pass unchanged
    std: tuple[float, ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        """A batch as the model reads it."""
        if not self.mean:
            return x
        scale = torch.tensor([1 / (255 * s) for s in self.std])
        shift = torch.tensor([m / s for m, s in zip(self.mean, self.std, strict=True)])
        return x.to(torch.float32).mul_(scale).sub_(shift).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Augment:
    """Random crops after padding with black, and random mirror images: training pictures that differ each time."""

    pad: int = 4
    flip: bool = True

    def __call__(self, x: Tensor, rng: Rng) -> Tensor:
        """Pictures [n, height, width, channels] as bytes, each moved and mirrored by its own draw."""
        n, height, width, _ = x.shape
        down, right = (torch.from_numpy(rng(way).numpy().integers(0, 2 * self.pad + 1, n)) for way in ("down", "right"))
        rows = down[:, None] + torch.arange(height)  # [n, height]
        columns = right[:, None] + torch.arange(width)  # [n, width]
        if self.flip:
            mirrored = torch.from_numpy(rng("flip").numpy().random(n) < 0.5)
            columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        padded = F.pad(x, (0, 0, self.pad, self.pad, self.pad, self.pad))
        return padded[torch.arange(n)[:, None, None], rows[:, :, None], columns[:, None, :]]


@dataclass(frozen=True)
class Samples:
    """Some samples of a data set: all clients share the tensors, each has its own index."""

    x: Tensor  # [n, ...] of the whole data set
    y: Tensor  # [n]
    index: Tensor  # [m] which of them are ours
    prepare: Prepare = Prepare()
    augment: Augment | None = None  # for training batches alone

    def __len__(self) -> int:
        return len(self.index)

    def at(self, places: Tensor, rng: Rng | None = None) -> Batch:
        """The samples at these places of the index, ready for the model; changed at random if there is a key to it."""
        rows = self.index[places]
        x = self.x[rows]
        if rng is not None and self.augment is not None:
            x = self.augment(x, rng)
        return self.prepare(x), self.y[rows]

    def all(self, size: int) -> Iterator[Batch]:
        """All samples in order, at most ``size`` at a time."""
        for places in torch.split(torch.arange(len(self)), size):
            yield self.at(places)

    def mean(self, size: int = 128) -> Tensor:
        """The mean input, as a batch of one."""
        return (
            torch.stack([x.sum(0, dtype=torch.float64) for x, _ in self.all(size)])
            .sum(0, keepdim=True)
            .div(len(self))
            .float()
        )

    def batch(self, rng: Rng, size: int) -> Batch:
        """One random batch."""
        return self.at(rng.permutation(len(self))[:size])

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
        n = len(self.samples)
        for epoch in range(self.epochs):
            for i, places in enumerate(torch.split(self.rng("epoch", epoch).permutation(n), self.size)):
                # a client with less than one batch still trains on what it has
                if self.drop_last and len(places) < self.size <= n:
                    continue
                yield self.samples.at(places, self.rng("augment", epoch, i))


@dataclass(frozen=True)
class LocalData:
    """What a device may learn from: its test samples are not here."""

    train: Samples
    validation: Samples

    def __len__(self) -> int:
        return len(self.train)
