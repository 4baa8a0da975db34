"""What readers of all formats check."""

from __future__ import annotations

import struct
import tokenize
import zipfile
import zlib

import numpy as np
import torch
from torch import Tensor

from sparsona.data.dataset import DataError

MAX_SAMPLES = 2_000_000  # no source is larger; a header that claims more is damaged
MAX_EXPANSION = 1032  # deflate cannot shrink more than this, so a file's size bounds what it may unpack to
CHUNK = 4096  # samples at a time where a whole array would need a second copy

UNREADABLE = (
    OSError,
    EOFError,
    KeyError,
    ValueError,
    RuntimeError,
    NotImplementedError,
    MemoryError,
    SyntaxError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
    tokenize.TokenError,
)


def checked_labels(y: np.ndarray, classes: int, where: str, first: int = 0) -> Tensor:
    """Labels as int64 from 0 on, each of which must be a class."""
    wrong = (y < first) | (y >= first + classes)
    if wrong.any():
        at = int(wrong.argmax())
        raise DataError(
            f"{where}: label {int(y[at])} of sample {at} is not allowed; expected [{first}, {first + classes - 1}]"
        )
    return torch.from_numpy(y.astype(np.int64) - first)
