"""Constants of the format, and tensors as the raw bytes that it holds."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MAGIC, VERSION = b"SPNA", 1
U32, I64, F64 = struct.Struct("<I"), struct.Struct("<q"), struct.Struct("<d")
HEAD, FRAME = struct.Struct("<4sBH"), struct.Struct("<BI")
BITMAP, GAPS = struct.Struct("<IB"), struct.Struct("<IBI")
BOOL, INT, FLOAT, STR, TENSOR, VALUES, SPARSE, BITS, CHANGE, QUANTISED = range(10)
SCALED = struct.Struct("<BdI")
DTYPES = (torch.float32, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool)
FORMATS = tuple(np.dtype(f) for f in ("<f4", "<f2", "<i4", "<i8", "u1", "?"))
FLOATS = DTYPES[:2]
MAX_LENGTH = 2**32 - 1  # of every length and dimension
MAX_DIMS, MAX_NAME, MAX_PARTS, MAX_SHIFT = 8, 255, 2**16 - 1, 31


def bytes_of(bits: int) -> int:
    """Whole bytes that so many bits take."""
    return (bits + 7) // 8


def dtype_code(tensor: Tensor) -> int:
    """The code of a tensor's dtype."""
    return DTYPES.index(tensor.dtype)


def as_numpy(tensor: Tensor) -> NDArray[Any]:
    """A tensor as a contiguous array, without a copy where it is one."""
    array: NDArray[Any] = tensor.detach().cpu().contiguous().numpy()
    return array


def raw_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """The entries as little-endian bytes, without a copy where they lie that way already."""
    array = as_numpy(tensor).reshape(-1)
    return array.astype(array.dtype.newbyteorder("<"), copy=False).view(np.uint8)
