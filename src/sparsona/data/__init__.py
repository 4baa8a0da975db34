"""Data sets in the formats of their publishers, divided among clients."""

from sparsona.data.federated import DataConfig, Fleet, build, divide
from sparsona.data.partition import Part, read_partition, save_partition
from sparsona.data.sources import SOURCES, DataError, Dataset, load

__all__ = [
    "SOURCES",
    "DataConfig",
    "DataError",
    "Dataset",
    "Fleet",
    "Part",
    "build",
    "divide",
    "load",
    "read_partition",
    "save_partition",
]
