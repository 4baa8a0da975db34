"""From a configuration to a fleet: read the source, whatever it is, and divide it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from sparsona.data.config import DataConfig
from sparsona.data.dataset import DataError, Dataset
from sparsona.data.federated import Fleet, divide, resized
from sparsona.data.lazy import federated
from sparsona.data.readers.python import call, from_value, is_federation
from sparsona.data.sources import read_source


def read_value(config: DataConfig, seed: int, root: Path | None = None) -> Dataset:
    """The data set that a user's code gives at once; a federation is refused."""
    value = call(config, seed, root)
    if is_federation(value):
        raise DataError(f'data.source: "{config.source}" returns many clients; expected the samples of one client')
    return from_value(config.source, value, config)


def build(
    config: DataConfig,
    seed: int,
    root: Path | None = None,
    value: Any = None,
    newcomers: Callable[[int], Collection[int]] | None = None,
) -> Fleet:
    """The fleet of a configuration and a seed, the same in any process; ``value`` are data given as an object.

    ``newcomers`` gives those of so many clients that are held out: the scales of tables do not depend on them.
    """
    seed = seed if config.seed is None else config.seed
    if value is None and not config.plugin and not config.given:
        dataset = read_source(config, root)
    else:
        value = call(config, seed, root, value)
        if is_federation(value):
            return federated(config.source, value, config, seed)
        dataset = from_value(config.source, value, config)
    return divide(dataset if config.side is None else resized(dataset, config.side), config, seed, newcomers)
