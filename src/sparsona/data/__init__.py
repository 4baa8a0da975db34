"""Data sets in the formats of their publishers, divided among clients."""

from sparsona.data.building import build, read_value
from sparsona.data.config import OPEN, SOURCE_NAMES, DataConfig
from sparsona.data.dataset import DataError, Dataset
from sparsona.data.encoding import Encoding
from sparsona.data.federated import Fleet, divide, own_part, resized
from sparsona.data.partition import Part, read_partition, save_partition
from sparsona.data.readers.encoding_file import read_encoding, write_encoding
from sparsona.data.sources import FILES, SOURCES, load, read_source

__all__ = [
    "FILES",
    "OPEN",
    "SOURCES",
    "SOURCE_NAMES",
    "DataConfig",
    "DataError",
    "Dataset",
    "Encoding",
    "Fleet",
    "Part",
    "build",
    "divide",
    "load",
    "own_part",
    "read_encoding",
    "read_partition",
    "read_source",
    "read_value",
    "resized",
    "save_partition",
    "write_encoding",
]
