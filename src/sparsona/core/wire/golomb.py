"""Masks as bytes: a bitmap, or Golomb-Rice coded gaps where these are shorter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparsona.core.layout import Mask
from sparsona.core.wire.checks import Budget, need
from sparsona.core.wire.format import BITMAP, GAPS, MAX_SHIFT, as_numpy, bytes_of
from sparsona.core.wire.parts import check_mask

_CHUNK = 1 << 17  # bytes of a unary stream decoded at a time: bounds working memory, and stays in cache


def mask_nbytes(mask: Mask) -> int:
    """Length of an encoded mask, without encoding."""
    check_mask(mask)
    return MaskCode.of(mask).nbytes


@dataclass(frozen=True)
class MaskCode:
    """How a mask is best coded: as a bitmap, or as the gaps of its rarer symbol."""

    bits: NDArray[np.bool_]
    gaps: NDArray[Any] | None = None
    symbol: int = 1
    shift: int = 0  # k
    unary: int = 0  # bits in the unary stream

    @property
    def nbytes(self) -> int:
        """Bytes of the encoded mask."""
        if self.gaps is None:
            return BITMAP.size + bytes_of(len(self.bits))
        return GAPS.size + bytes_of(self.unary) + bytes_of(self.shift * len(self.gaps))

    @staticmethod
    def of(mask: Mask) -> MaskCode:
        """The shorter of the two codes of a mask."""
        bits = as_numpy(mask)
        n, ones = len(bits), int(np.count_nonzero(bits))
        symbol = int(ones <= n - ones)
        count = ones if symbol else n - ones
        places = np.flatnonzero(bits if symbol else ~bits)
        gaps: NDArray[Any] = np.empty(count, np.int32 if n < 2**31 else np.int64)  # narrow is faster
        gaps[:1] = places[:1]
        gaps[1:] = places[1:] - places[:-1] - 1

        def cost(k: int) -> int:  # in bits; convex, as sum(g >> k) falls by ever less, so that descent finds the best
            return count * (1 + k) + int((gaps >> k).sum(dtype=np.int64))

        k = max(0, (int(gaps.sum(dtype=np.int64)) // max(count, 1)).bit_length() - 1)
        best = cost(k)
        for step in (1, -1):
            while 0 <= k + step <= MAX_SHIFT and (other := cost(k + step)) < best:
                k, best = k + step, other
        bitmap, rice = MaskCode(bits), MaskCode(bits, gaps, symbol, k, best - k * count)
        return rice if rice.nbytes < bitmap.nbytes else bitmap

    def chunks(self) -> list[bytes | memoryview]:
        """The encoded mask, in pieces to be joined."""
        if self.gaps is None:
            return [BITMAP.pack(len(self.bits), 0), np.packbits(self.bits, bitorder="little").data]
        unary = np.zeros(self.unary, np.uint8)
        unary[np.cumsum((self.gaps >> self.shift) + 1, dtype=np.int64) - 1] = 1
        low = np.empty((self.shift, len(self.gaps)), np.uint8)
        for j, plane in enumerate(low):
            np.bitwise_and(self.gaps >> j, 1, out=plane, casting="unsafe")
        head = GAPS.pack(len(self.bits), 1 + 2 * self.shift + self.symbol, len(self.gaps))
        return [head, *(np.packbits(s, bitorder="little").data for s in (unary, low.reshape(-1)))]


def decode_mask(block: memoryview, budget: Budget) -> Mask:
    """A mask from its code; WireError if the code is not sound."""
    need(len(block) >= BITMAP.size, f"a mask of {len(block)} bytes is cut short")
    n, code = BITMAP.unpack_from(block)
    budget.spend(n)
    bitmap = BITMAP.size + bytes_of(n)
    if code == 0:
        need(len(block) == bitmap, f"a bitmap of {n} bits does not take {len(block)} bytes")
        return torch.from_numpy(unpack_bits(block[BITMAP.size :], n).view(np.bool_))
    k, symbol = divmod(code - 1, 2)
    need(k <= MAX_SHIFT, f"mask code {code} is unknown")
    # With these bounds neither stream, unpacked, is much larger than the mask itself.
    need(GAPS.size <= len(block) < bitmap, f"the gaps of a mask of {n} bits do not take {len(block)} bytes")
    count = int(GAPS.unpack_from(block)[2])
    split = len(block) - bytes_of(k * count)
    need(2 * count <= n and split >= GAPS.size + bytes_of(count), f"{count} gaps do not fit {len(block)} bytes")
    unary = np.frombuffer(block[GAPS.size : split], np.uint8)
    need(unary[-1] > 0 if count else len(unary) == 0, "the unary stream of a mask does not end with a 1")
    low = unpack_bits(block[split:], k * count).reshape(k, count)
    out = np.full(n, 1 - symbol, np.uint8)
    placed = remainders = 0  # symbols placed so far, and the sum of their remainders
    for start in range(0, len(unary), _CHUNK):
        ends = np.flatnonzero(np.unpackbits(unary[start : start + _CHUNK], bitorder="little")) + 8 * start
        if len(ends) == 0:
            continue
        here = slice(placed, placed + len(ends))
        need(here.stop <= count, f"the unary stream of a mask has more than {count} ends")
        index = np.arange(here.start, here.stop)
        places = ends - index  # the sum of the quotients up to each symbol
        need(int(places[-1]) << k <= n, f"the gaps of a mask run past its {n} entries")
        places = (places << k) + index
        if k:
            rest = sum(low[j, here].astype(np.int64) << j for j in range(k))
            sums = np.cumsum(rest) + remainders
            places += sums
            remainders = int(sums[-1])
        need(int(places[-1]) < n, f"the gaps of a mask run past its {n} entries")
        out[places] = symbol
        placed = here.stop
    need(placed == count, f"the unary stream of a mask has {placed} ends, not {count}")
    return torch.from_numpy(out.view(np.bool_))


def unpack_bits(block: memoryview, n: int) -> NDArray[np.uint8]:
    """The first n bits, one per byte; those that follow must be zero."""
    need(n % 8 == 0 or block[-1] >> n % 8 == 0, "padding bits are not zero")
    return np.unpackbits(np.frombuffer(block, np.uint8), count=n, bitorder="little")
