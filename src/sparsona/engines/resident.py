"""Data of clients on a device: moved once, and kept there while it fits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

import torch

from sparsona.core.samples import LocalData, Samples


@dataclass
class Resident:
    """Samples on a device, at most so many bytes of them; those used longest ago leave first.

    A client whose data alone are more are moved for each job, and not kept.
    """

    device: torch.device
    bound: int  # bytes
    held: int = 0  # bytes that are kept now
    _kept: OrderedDict[tuple[str, int], Samples] = field(default_factory=OrderedDict)

    def local(self, k: int, load: Callable[[int], LocalData]) -> LocalData:
        """What client k may learn from."""
        once = cache(partial(load, k))
        train = self.samples(("train", k), lambda: once().train)
        return LocalData(train, self.samples(("validation", k), lambda: once().validation))

    def samples(self, key: tuple[str, int], load: Callable[[], Samples]) -> Samples:
        """The samples of this key, which are loaded and moved if they are not here."""
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        samples = load().to(self.device)
        if samples.nbytes > self.bound:
            return samples
        while self.held + samples.nbytes > self.bound:
            self.held -= self._kept.popitem(last=False)[1].nbytes
        self._kept[key] = samples
        self.held += samples.nbytes
        return samples
