import math
import random
import re
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pretended import DEVICE
from sparsona.core.layout import CPU
from sparsona.core.wire import (
    Bits,
    MaskChange,
    Message,
    Quantised,
    Sparse,
    Values,
    WireError,
    decode,
    encode,
    mask_nbytes,
)

DTYPES = [torch.float32, torch.float16, torch.int32, torch.int64, torch.uint8, torch.bool]


def random_mask(n: int, density: float, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random(n) < density)


def ones_at(n: int, *places: int) -> Tensor:
    mask = torch.zeros(n, dtype=torch.bool)
    mask[list(places)] = True
    return mask


def frame(*parts: tuple[bytes, int, bytes]) -> bytes:
    """A message by hand from names, kinds and payloads, with a correct checksum."""
    body = b"SPNA" + struct.pack("<BH", 1, len(parts))
    for name, kind, payload in parts:
        body += bytes([len(name)]) + name + struct.pack("<BI", kind, len(payload)) + payload
    return seal(body)


def seal(body: bytes) -> bytes:
    return body + struct.pack("<I", zlib.crc32(body))


def vars_of(part: object) -> list[object]:
    return list(getattr(part, "__dict__", {}).values())


def round_trip(message: Message) -> Message:
    data = encode(message)
    assert message.nbytes == len(data)
    back = decode(data)
    assert back == message
    assert back.names == message.names
    assert encode(back) == data
    return back


# Round trips

MASKS = {
    "empty": torch.zeros(0, dtype=torch.bool),
    "a zero": torch.zeros(1, dtype=torch.bool),
    "a one": torch.ones(1, dtype=torch.bool),
    "zeros": torch.zeros(100_000, dtype=torch.bool),
    "ones": torch.ones(100_003, dtype=torch.bool),
    "first": ones_at(1000, 0),
    "last": ones_at(1000, 999),
    "all but one": ~ones_at(1000, 500),
    "alternating": torch.arange(999) % 2 == 0,
    "halves": torch.arange(1000) < 500,
    "late half": torch.arange(1000) >= 500,
    "eight": torch.ones(8, dtype=torch.bool),
    "dense": random_mask(3_000_001, 0.5),
    "sparse, several chunks": random_mask(5_000_000, 0.3),
    "few, far apart": ones_at(4_000_000, 5, 3_999_999),
    "clustered": torch.arange(2_000_000) % 200_000 < 300,
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_masks_come_back(mask: Tensor) -> None:
    values = torch.linspace(-1, 1, len(mask))
    round_trip(Message(bits=Bits(mask), sparse=Sparse.of(values, mask), change=MaskChange.between(mask, ~mask)))
    assert mask_nbytes(mask) <= 5 + (len(mask) + 7) // 8


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7,), (2, 0, 3), (3, 4), (1, 2, 1, 2, 1, 2, 1, 2)], ids=str)
def test_tensors_come_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.arange(math.prod(shape)) % 2).reshape(shape).to(dtype)
    back = round_trip(Message(tensor=tensor))["tensor"]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(back, tensor)


def test_scalars_and_text_come_back() -> None:
    given = {"t": True, "f": False, "lo": -(2**63), "hi": 2**63 - 1, "pi": math.pi, "inf": -math.inf}
    back = round_trip(Message(**given, text="größer 🌱\0", none="", für=1))
    assert {n: back[n] for n in given} == given
    assert type(back["t"]) is bool
    assert type(back["hi"]) is int
    assert math.isnan(round_trip(Message(x=math.nan))["x"])
    assert round_trip(Message()).names == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_values_and_sparse_come_back(dtype: torch.dtype) -> None:
    vec = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    mask = random_mask(1000, 0.2)
    back = round_trip(Message(v=Values.of(vec, mask), s=Sparse.of(vec, mask), all=Values(vec), no=Values(vec[:0])))
    assert torch.equal(back["v"].at(mask), vec * mask)
    assert torch.equal(back["s"].dense(), vec * mask)
    assert torch.equal(back["all"].at(torch.ones(1000, dtype=torch.bool)), vec)
    assert back["v"].at(mask).dtype == dtype


def test_layout_in_memory_does_not_matter() -> None:
    grid = torch.arange(12.0).reshape(3, 4)
    assert encode(Message(x=grid.t())) == encode(Message(x=grid.t().contiguous()))
    assert encode(Message(x=Values(grid[:, 1]))) == encode(Message(x=Values(torch.tensor([1.0, 5.0, 9.0]))))
    assert encode(Message(x=torch.nn.Parameter(grid))) == encode(Message(x=grid))


def test_decoded_tensors_own_their_memory() -> None:
    data = bytearray(encode(Message(v=Values(torch.ones(5)), m=Bits(random_mask(20, 0.5)), i=torch.ones(3))))
    before = bytes(data)
    message = decode(data)
    message["v"].values.zero_()
    message["m"].mask.zero_()
    message["i"].zero_()
    assert bytes(data) == before
    again = decode(memoryview(data))
    data[:] = bytes(len(data))
    assert torch.equal(again["v"].values, torch.ones(5))


# The bytes themselves


def test_rice_coded_mask_by_hand() -> None:
    # n = 200, ones at 3, 50, 150: gaps 3, 46, 99. Bits for k = 4, 5, 6: 3 * (1 + k) + sum(g >> k) = 23, 22, 22.
    # Descent from floor(log2(mean gap 49)) = 5 stays there. Code byte: 1 + 2 * 5 + 1 = 12.
    # Quotients 0, 1, 3: unary 1 01 0001, from bit 0 up: 0b1000101 = 0x45.
    # Remainders 3, 14, 3 = 00011, 01110, 00011. Planes from bit 0: 101 111 010 010 000.
    # As bytes, bit 0 first: 10111101 -> 0xBD, 0010000 -> 0x04.
    expected = bytes.fromhex("C8000000 0C 03000000 45 BD04")
    data = encode(Message(m=Bits(ones_at(200, 3, 50, 150))))
    assert data == frame((b"m", 7, expected))
    # of the complement the zeros are coded: the same streams, the code byte one less
    flipped = encode(Message(m=Bits(~ones_at(200, 3, 50, 150))))
    assert flipped == frame((b"m", 7, bytes.fromhex("C8000000 0B 03000000 45 BD04")))


def test_bitmap_by_hand() -> None:
    # entries 0, 2 and 9 of 10: 0b00000101, 0b10
    assert encode(Message(m=Bits(ones_at(10, 0, 2, 9)))) == frame((b"m", 7, bytes.fromhex("0A000000 00 05 02")))


def test_whole_message_by_hand() -> None:
    data = encode(Message(a=1, b=Values(torch.tensor([1.0])), c=torch.tensor([[True], [False]])))
    body = bytes.fromhex(
        "53504E41 01 0300"  # SPNA, version 1, three parts
        "01 61 01 08000000 0100000000000000"  # "a", int, 8 bytes, 1
        "01 62 05 05000000 00 0000803F"  # "b", values, 5 bytes, float32, 1.0
        "01 63 04 0C000000 05 02 02000000 01000000 01 00"  # "c", tensor, 12 bytes, bool, [2, 1], True, False
    )
    assert data == seal(body)


def test_sparse_and_change_by_hand() -> None:
    mask = ones_at(4, 1)
    assert encode(Message(s=Sparse(mask, torch.tensor([2.0], dtype=torch.float16)))) == frame(
        (b"s", 6, bytes.fromhex("01 06000000 04000000 00 02 0040"))
    )
    # ones of the old mask at 1; dropped: [1]; zeros at 0, 2, 3, of which the last is grown: [0, 0, 1]
    change = MaskChange.between(mask, ones_at(4, 3))
    assert encode(Message(c=change)) == frame((b"c", 8, bytes.fromhex("06000000 01000000 00 01 03000000 00 04")))


# Lengths


@pytest.mark.parametrize("percent", range(1, 100))
def test_masks_are_near_the_entropy_bound(percent: int) -> None:
    mask = random_mask(100_000, percent / 100, seed=percent)
    p = mask.double().mean().item()
    bound = -100_000 * (p * math.log2(p) + (1 - p) * math.log2(1 - p)) / 8
    assert bound <= mask_nbytes(mask) * 1.01  # the bound is one of expectation
    assert mask_nbytes(mask) <= 1.05 * bound


def test_the_rice_parameter_is_the_best_of_all() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        gaps = (rng.pareto(0.7, 200) * 3).astype(int).clip(0, 5000)  # far from geometric
        places = np.cumsum(gaps + 1) - 1
        mask = ones_at(int(places[-1]) + 1, *places.tolist())
        bits = [200 * (1 + k) + int((gaps >> k).sum()) for k in range(32)]
        assert min(bits) / 8 <= mask_nbytes(mask) - 9 <= min(bits) / 8 + 2


def quantised(negative: Tensor, bits: int, scale: float) -> Quantised:
    levels = torch.arange(len(negative)) * 7 % 2**bits if bits else torch.ones(len(negative))
    return Quantised(negative, levels.to(torch.uint8), scale, bits)


masks = st.one_of(
    st.lists(st.booleans(), max_size=80).map(lambda b: torch.tensor(b, dtype=torch.bool)),
    st.builds(random_mask, st.integers(0, 3000), st.floats(0, 1), st.integers(0, 2**32)),
    st.lists(st.tuples(st.booleans(), st.integers(0, 400)), max_size=12).map(
        lambda runs: torch.tensor([bit for bit, n in runs for _ in range(n)], dtype=torch.bool)
    ),
)
floats32 = st.lists(st.floats(width=32), max_size=20).map(lambda x: torch.tensor(x, dtype=torch.float32))
tensors = st.builds(
    lambda dtype, shape, seed: (torch.from_numpy(np.random.default_rng(seed).normal(0, 50, shape)).abs() + 1).to(dtype),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=8),
    st.integers(0, 2**32),
)
parts = st.one_of(
    masks.map(Bits),
    st.tuples(masks, masks).map(lambda m: MaskChange(*m)),
    masks.map(lambda m: Sparse.of(torch.arange(len(m), dtype=torch.float32), m)),
    st.builds(quantised, masks, st.integers(0, 8), st.floats()),
    floats32.map(Values),
    tensors,
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.text(max_size=20),
)
messages = st.dictionaries(st.text(min_size=1, max_size=20), parts, max_size=5).map(lambda p: Message(**p))


@settings(max_examples=400, deadline=None)
@given(messages)
def test_any_message_comes_back_and_knows_its_length(message: Message) -> None:
    round_trip(message)


@settings(max_examples=100, deadline=None)
@given(messages)
def test_any_message_can_be_moved_to_an_accelerator_and_back(message: Message) -> None:
    there = message.to(DEVICE)
    held = [value for part in there.values() for value in ([part] if isinstance(part, Tensor) else vars_of(part))]
    assert {t.device for t in held if isinstance(t, Tensor)} <= {DEVICE}
    assert there.to(CPU) == message


@settings(max_examples=300, deadline=None)
@given(masks)
def test_any_mask_knows_its_length(mask: Tensor) -> None:
    assert len(encode(Message(m=Bits(mask)))) == mask_nbytes(mask) + 7 + 2 + 5 + 4


def plain_decoder(block: bytes) -> list[bool]:
    """A mask read bit by bit, as the module's text describes it."""
    n, code = struct.unpack_from("<IB", block)
    if code == 0:
        return [bool(block[5 + i // 8] >> i % 8 & 1) for i in range(n)]
    k, symbol = divmod(code - 1, 2)
    (count,) = struct.unpack_from("<I", block, 5)
    bits = [byte >> i & 1 for byte in block[9:] for i in range(8)]
    quotients, at = [], 0
    for _ in range(count):
        end = bits.index(1, at)
        quotients.append(end - at)
        at = end + 1
    low = bits[-(-at // 8) * 8 :]
    mask, place = [not symbol] * n, -1
    for i, q in enumerate(quotients):
        place += 1 + (q << k) + sum(low[j * count + i] << j for j in range(k))
        mask[place] = bool(symbol)
    return mask


@settings(max_examples=300, deadline=None)
@given(masks)
def test_the_format_is_as_described(mask: Tensor) -> None:
    assert plain_decoder(encode(Message(m=Bits(mask)))[14:-4]) == mask.tolist()


# Parts and messages


@settings(max_examples=200, deadline=None)
@given(masks, st.integers(0, 2**32))
def test_a_change_leads_to_the_new_mask(old: Tensor, seed: int) -> None:
    new = old[torch.randperm(len(old), generator=torch.Generator().manual_seed(seed))]
    change = round_trip(Message(c=MaskChange.between(old, new)))["c"]
    assert torch.equal(change.apply(old), new)


def test_a_small_change_is_short() -> None:
    rng = np.random.default_rng(0)
    old = random_mask(100_000, 0.5)
    new = old.clone()
    ones, zeros = np.flatnonzero(old.numpy()), np.flatnonzero(~old.numpy())
    new[rng.choice(ones, 500, replace=False)] = False
    new[rng.choice(zeros, 500, replace=False)] = True
    assert int(new.sum()) == int(old.sum())
    change = MaskChange.between(old, new)
    assert torch.equal(change.apply(old), new)
    assert (int(change.dropped.sum()), int(change.grown.sum())) == (500, 500)
    entropy = -100_000 * (0.01 * math.log2(0.01) + 0.99 * math.log2(0.99)) / 8
    assert Message(c=change).nbytes <= 1.06 * entropy < 0.1 * mask_nbytes(new)


def test_counts_that_disagree_are_named() -> None:
    with pytest.raises(WireError, match="values: 3 values do not fit a mask with 2 ones"):
        Values(torch.ones(3)).at(ones_at(5, 1, 2))
    with pytest.raises(WireError, match="values: 1 values do not fit a mask with 2 ones"):
        Sparse(ones_at(5, 1, 2), torch.ones(1))
    with pytest.raises(WireError, match=r"\(2, 3\).*\(1, 4\)"):
        MaskChange.between(ones_at(5, 1, 2), ones_at(5, 1)).apply(ones_at(5, 1))
    with pytest.raises(ValueError, match="4 entries"):
        Values.of(torch.ones(5), ones_at(4, 1))
    with pytest.raises(ValueError, match="5 entries"):
        MaskChange.between(ones_at(5, 1), ones_at(4, 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Values(torch.ones(2, 2)),
        lambda: Values(torch.ones(2, dtype=torch.float64)),
        lambda: Values([1.0]),
        lambda: Bits(torch.ones(3)),
        lambda: Bits(torch.ones(2, 2, dtype=torch.bool)),
        lambda: mask_nbytes(torch.ones(3)),
        lambda: Values.of(torch.ones(3), torch.ones(3)),
        lambda: Message(x=None),
        lambda: Message(x=[1]),
        lambda: Message(x=b"raw"),
        lambda: Message(x=2**63),
        lambda: Message(x=torch.ones(2, dtype=torch.float64)),
        lambda: Message(x=torch.ones([1] * 9)),
        lambda: Message(x="\ud800"),
        lambda: Message(**{"": 1}),
        lambda: Message(**{"n" * 256: 1}),
        lambda: Message(**{"\ud800": 1}),
        lambda: Message(**{f"{i}": 1 for i in range(65_536)}),
    ],
)
def test_what_cannot_travel_is_refused(make) -> None:
    with pytest.raises(ValueError, match=r"expected|does not fit"):
        make()


def test_a_message_is_a_mapping() -> None:
    message = Message(a=1, self="me", values=2.0)
    assert message.names == tuple(message) == ("a", "self", "values")
    assert "a" in message
    assert "b" not in message
    assert len(message) == 3
    assert message.get("b") is None
    assert repr(message) == "Message(a: int, self: str, values: float)"
    with pytest.raises(KeyError, match="no part 'b'; the parts are a, self"):
        message["b"]
    with pytest.raises(TypeError):
        message["a"] = 2
    with pytest.raises(AttributeError):
        message.other = 2


def test_equality_is_by_content() -> None:
    mask = ones_at(4, 1)
    assert Values(torch.tensor([math.nan])) == Values(torch.tensor([math.nan]))
    assert Values(torch.zeros(1)) != Values(-torch.zeros(1))
    assert Values(torch.zeros(1)) != Values(torch.zeros(1, dtype=torch.float16))
    assert Bits(mask) == Bits(mask.clone())
    assert Bits(mask) != Bits(~mask)
    assert Bits(mask) != mask_nbytes(mask)
    assert Message(a=1, b=2) == Message(b=2, a=1)
    assert Message(a=1) != Message(a=True)
    assert Message(a=1) != Message(a=1.0)
    assert Message(a=1) != Message(b=1)
    assert Message(a=1) != {"a": 1}


def test_value_bytes_are_those_of_the_floats_alone() -> None:
    mask = random_mask(1000, 0.1)
    vec, ones = torch.ones(1000), int(mask.sum())
    assert Message(v=Values.of(vec, mask)).value_nbytes == 4 * ones
    assert Message(v=Values(vec.half())).value_nbytes == 2000
    assert Message(s=Sparse.of(vec, mask), t=torch.ones(2, 3)).value_nbytes == 4 * ones + 24
    rest = Message(b=Bits(mask), c=MaskChange.between(mask, ~mask), i=torch.arange(5), n=1, x=1.0, s="text", y=True)
    assert rest.value_nbytes == 0
    assert Message(q=quantised(mask, 3, 1.0)).value_nbytes == 8 + 125 + 375  # a scale, a sign and three bits each


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_finite_looks_everywhere(bad: float) -> None:
    good, vec = torch.tensor([1.0, 3e38, 3e38]), torch.tensor([1.0, bad, 2.0])
    mask = ones_at(3, 1)
    fine = Message(v=Values(good), s=Sparse.of(vec, ~mask), t=good, i=torch.arange(3), x=1.0, n=1, b=Bits(mask))
    assert fine.finite()
    assert Message().finite()
    for part in (Values(vec), Sparse.of(vec, mask), vec, vec.half(), vec.reshape(3, 1), bad, quantised(mask, 2, bad)):
        assert not Message(**{**fine, "bad": part}).finite()


# The decoder trusts nobody

RICE = bytes.fromhex("C8000000 0C 03000000 45 BD04")  # worked out above


def mask_payload(n: int, code: int, rest: bytes) -> bytes:
    return struct.pack("<IB", n, code) + rest


BROKEN = {  # what is said, and the bytes
    "nothing": ("too few", b""),
    "too short": ("too few", b"SPNA\x01\x00\x00"),
    "magic": ("do not start", seal(b"SPNB\x01\x00\x00")),
    "version": ("version 2", seal(b"SPNA\x02\x00\x00")),
    "checksum": ("checksum", encode(Message(a=1))[:-1] + b"\x00"),
    "missing part": ("announced", seal(b"SPNA\x01\x01\x00")),
    "left over": ("1 bytes are left over", seal(b"SPNA\x01\x00\x00!")),
    "empty name": ("empty", frame((b"", 1, bytes(8)))),
    "same name twice": ("twice", frame((b"a", 1, bytes(8)), (b"a", 1, bytes(8)))),
    "name not utf-8": ("a name or text is not valid UTF-8", frame((b"\xff", 1, bytes(8)))),
    "name with surrogate": ("a name or text is not valid UTF-8", frame((b"\xed\xa0\x80", 1, bytes(8)))),
    "unknown kind": ("kind 10", frame((b"a", 10, bytes(8)))),
    "quantised to nine bits": ("a level of 9 bits", frame((b"a", 9, struct.pack("<BdI", 9, 1.0, 0)))),
    "quantised cut short": ("are no 9 values of 2 bits", frame((b"a", 9, struct.pack("<BdI", 2, 1.0, 9) + bytes(4)))),
    "payload past the end": ("4294967295 bytes are announced", seal(b"SPNA\x01\x01\x00\x01a\x03\xff\xff\xff\xff")),
    "bool is 2": ("a bool is 2", frame((b"a", 0, b"\x02"))),
    "bool is long": ("left over", frame((b"a", 0, b"\x01\x01"))),
    "int is short": ("8 bytes are announced", frame((b"a", 1, bytes(7)))),
    "int is long": ("left over", frame((b"a", 1, bytes(9)))),
    "float is short": ("8 bytes are announced", frame((b"a", 2, bytes(4)))),
    "text not utf-8": ("a name or text is not valid UTF-8", frame((b"a", 3, b"\xc0\x80"))),
    "tensor without head": ("announced", frame((b"a", 4, b""))),
    "tensor dtype": ("dtype 6", frame((b"a", 4, bytes([6, 0, 0])))),
    "tensor dimensions": ("9 dimensions", frame((b"a", 4, bytes([4, 9]) + struct.pack("<9I", *[1] * 9) + b"\x00"))),
    "tensor shape cut": ("4 bytes are announced", frame((b"a", 4, bytes([4, 2, 1, 0, 0, 0])))),
    "tensor too short": ("7 bytes are no tensor", frame((b"a", 4, bytes([0, 1]) + struct.pack("<I", 2) + bytes(7)))),
    "tensor too long": ("5 bytes are no tensor", frame((b"a", 4, bytes([0, 0]) + bytes(5)))),
    "tensor bool is 2": ("bool tensor", frame((b"a", 4, bytes([5, 0, 2])))),
    "values dtype": ("dtype 2", frame((b"a", 5, bytes([2, 0, 0, 0, 0])))),
    "values cut": ("3 bytes are no tensor", frame((b"a", 5, bytes([0, 0, 0, 0])))),
    "values empty": ("announced", frame((b"a", 5, b""))),
    "sparse too few": (
        "values: 1 values do not fit a mask with 2 ones",
        frame((b"a", 6, bytes.fromhex("00 06000000 04000000 00 03 00000000"))),
    ),
    "sparse too many": (
        "values: 1 values do not fit a mask with 0 ones",
        frame((b"a", 6, bytes.fromhex("00 06000000 04000000 00 00 00000000"))),
    ),
    "sparse mask past the end": (
        "255 bytes are announced",
        frame((b"a", 6, bytes.fromhex("00 FF000000 04000000 00 00"))),
    ),
    "mask cut": ("cut short", frame((b"a", 7, b"\x01\x00\x00\x00"))),
    "bitmap cut": ("9 bits does not take 6", frame((b"a", 7, mask_payload(9, 0, b"\x00")))),
    "bitmap long": ("8 bits does not take 7", frame((b"a", 7, mask_payload(8, 0, b"\x00\x00")))),
    "bitmap padding": ("padding", frame((b"a", 7, mask_payload(7, 0, b"\x80")))),
    "mask code": ("code 65", frame((b"a", 7, mask_payload(200, 65, RICE[5:])))),
    "gaps cut": ("do not take 8 bytes", frame((b"a", 7, RICE[:8]))),
    "gaps of too few bits": ("of 40 bits do not take 12", frame((b"a", 7, mask_payload(40, 12, RICE[5:])))),
    "gaps past n": ("run past its 150", frame((b"a", 7, mask_payload(150, 12, RICE[5:])))),
    "quotients past n": (
        "run past its 200",
        frame((b"a", 7, mask_payload(200, 12, bytes.fromhex("03000000 0380 BD04")))),
    ),
    "more than half": (
        "101 gaps do not fit",
        frame((b"a", 7, mask_payload(200, 2, struct.pack("<I", 101) + b"\xff" * 12 + b"\x1f"))),
    ),
    "ends too many": ("more than 3 ends", frame((b"a", 7, RICE[:9] + b"\x4d" + RICE[10:]))),
    "ends too few": ("2 ends, not 3", frame((b"a", 7, RICE[:9] + b"\x44" + RICE[10:]))),
    "unary empty": ("3 gaps do not fit", frame((b"a", 7, RICE[:9] + RICE[10:]))),
    "unary long": ("end with a 1", frame((b"a", 7, RICE[:10] + b"\x00" + RICE[10:]))),
    "unary of none": ("end with a 1", frame((b"a", 7, mask_payload(200, 2, bytes(5))))),
    "remainder padding": ("padding", frame((b"a", 7, RICE[:-1] + b"\x84"))),
    "change cut": ("cut short", frame((b"a", 8, bytes.fromhex("06000000 01000000 00 01")))),
    "change too long": (
        "3 bits does not take 7",
        frame((b"a", 8, bytes.fromhex("06000000 01000000 00 01 03000000 00 04 00"))),
    ),
}


@pytest.mark.parametrize(("problem", "data"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_messages_are_refused(problem: str, data: bytes) -> None:
    with pytest.raises(WireError, match=problem):
        decode(data)


def test_the_hand_made_frames_are_otherwise_sound() -> None:
    assert torch.equal(decode(frame((b"a", 7, RICE)))["a"].mask, ones_at(200, 3, 50, 150))
    assert int(decode(frame((b"a", 7, mask_payload(151, 12, RICE[5:]))))["a"].mask.sum()) == 3
    assert decode(frame((b"a", 4, bytes([5, 0, 1]))))["a"].item() is True


def test_memory_that_is_not_contiguous_is_refused() -> None:
    with pytest.raises(WireError, match="contiguous"):
        decode(memoryview(encode(Message(a=1)) * 2)[::2])


HUGE = 2**32 - 1
GREEDY = {
    "empty mask": frame((b"a", 7, mask_payload(HUGE, 2, bytes(4)))),
    "bitmap": frame((b"a", 7, mask_payload(HUGE, 0, bytes(100)))),
    "gaps": frame((b"a", 7, mask_payload(2**30, 2, struct.pack("<I", 2**29) + b"\xff" * 20))),
    "remainders": frame((b"a", 7, mask_payload(2**30, 1 + 62 + 1, struct.pack("<I", 2**28) + b"\xff" * 20))),
    "tensor": frame((b"a", 4, bytes([0, 2]) + struct.pack("<2I", HUGE, HUGE) + bytes(20))),
    "empty tensor": frame((b"a", 4, bytes([0, 8]) + struct.pack("<8I", 0, *[HUGE] * 7))),
    "sparse": frame((b"a", 6, b"\x00" + struct.pack("<I", 9) + mask_payload(HUGE, 2, bytes(4)))),
    "change": frame(
        (b"a", 8, struct.pack("<I", 6) + bytes.fromhex("01000000 00 01") + RICE.replace(b"\xc8", b"\xff" * 4))
    ),
    "parts": seal(b"SPNA\x01\xff\xff" + bytes(20)),
}


@pytest.mark.parametrize("data", GREEDY.values(), ids=GREEDY.keys())
def test_a_tiny_message_cannot_ask_for_much_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


def test_the_limit_counts_all_parts() -> None:
    mask = random_mask(1000, 0.01)
    message = Message(v=Values(torch.ones(100)), m=Bits(mask), c=MaskChange.between(mask, ~mask), t="text")
    exact = 400 + 1000 + 1000 + 4
    assert decode(encode(message), max_bytes=exact) == message
    with pytest.raises(WireError, match="limit"):
        decode(encode(message), max_bytes=exact - 1)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.booleans())
def test_arbitrary_bytes_are_refused_or_read(data: bytes, sealed: bool) -> None:
    survives(seal(b"SPNA\x01" + data) if sealed else data)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 9), st.binary(max_size=60))
def test_arbitrary_payloads_are_refused_or_read(kind: int, payload: bytes) -> None:
    survives(frame((b"a", kind, payload)))


def survives(data: bytes) -> bool:
    """Whether the bytes decode; then the message must be sound, otherwise refused with a WireError."""
    try:
        message = decode(data, max_bytes=1 << 16)
    except WireError:
        return False
    again = encode(message)
    assert message.nbytes == len(again)
    assert decode(again) == message
    return True


def real_messages() -> list[bytes]:
    mask, sparse = random_mask(300, 0.5), random_mask(500, 0.05, seed=1)
    new = sparse.roll(3)
    vec = torch.randn(500, generator=torch.Generator().manual_seed(0))
    return [
        encode(m)
        for m in (
            Message(theta=Values(vec[:20]), round=3),
            Message(update=Values.of(vec, sparse), mask=MaskChange.between(sparse, new)),
            Message(delta=Sparse.of(vec.half(), sparse), weight=0.25),
            Message(a=Bits(mask), b=Bits(sparse), c=Bits(~sparse)),
            Message(q=quantised(mask[:50], 8, 0.5), sign=quantised(sparse[:30], 0, 2.0)),
            Message(
                x=torch.arange(6).reshape(1, 2, 3), y=torch.tensor([True, False]), z=torch.tensor(1, dtype=torch.int32)
            ),
            Message(
                ok=True, note="größer", share=0.5, head=torch.ones(2, 3, dtype=torch.float16), bytes=torch.zeros(0)
            ),
        )
    ]


def mutate(rng: random.Random, pool: list[bytes]) -> bytes:
    """A real message with one to three wounds, in half of all cases with a correct checksum."""
    sealed = rng.random() < 0.5
    data = bytearray(rng.choice(pool))
    if sealed:
        del data[-4:]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(7 if sealed and len(data) > 7 else 0, len(data)) if data else 0
        match rng.randrange(7) if data else 2:
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at] = rng.randrange(256)
            case 2:
                data += rng.randbytes(rng.randint(1, 12))
            case 3:
                del data[rng.randrange(len(data)) :]
            case 4:
                other = rng.choice(pool)
                data[at : at + rng.randint(0, 40)] = other[
                    (cut := rng.randrange(len(other))) : cut + rng.randint(0, 40)
                ]
            case 5:  # what may be a length, a count or a dimension
                data[at : at + 4] = struct.pack("<I", rng.choice((0, 1, 2, 7, 255, 2**16, 2**31, HUGE, len(data))))
            case 6:
                field = int.from_bytes(data[at : at + 4], "little") + rng.choice((-8, -1, 1, 8))
                data[at : at + 4] = struct.pack("<I", field & HUGE)
    return seal(bytes(data)) if sealed else bytes(data)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_messages_are_refused_or_read(seed: int) -> None:
    rng, pool = random.Random(seed), real_messages()
    read = sum(survives(mutate(rng, pool)) for _ in range(40_000))
    assert 2000 < read < 30_000  # both ways are taken often


def test_mutated_messages_stay_within_memory() -> None:
    rng, pool = random.Random(99), real_messages()
    tracemalloc.start()
    try:
        for _ in range(5000):
            survives(mutate(rng, pool))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_parts_of_strangers_are_checked():
    message = Message(theta=Values(torch.ones(3)), half=Values(torch.ones(3, dtype=torch.float16)), n=5, yes=True)
    assert message.floats("theta", 3).tolist() == [1, 1, 1]
    assert message.whole("n", 1, 5) == 5
    for wrong, said in (
        (lambda: message.floats("theta", 4), "part 'theta' holds 3 values of torch.float32, not 4 of torch.float32"),
        (lambda: message.floats("half", 3), "torch.float16"),
        (lambda: message.floats("n", 3), "part 'n' is int, not Values"),
        (lambda: message.floats("none", 3), "part 'none' is NoneType, not Values"),
        (lambda: message.whole("n", 6), "part 'n' is 5, not 6 to"),
        (lambda: message.whole("yes", 0), "part 'yes' is bool, not int"),
    ):
        with pytest.raises(WireError, match=re.escape(said)):
            wrong()


def test_quantised_values_by_hand() -> None:
    part = Quantised(ones_at(3, 1), torch.tensor([0, 5, 2], dtype=torch.uint8), 0.5, 3)
    assert part.values.tolist() == [0.0, -2.5, 1.0]
    data = encode(Message(q=part))[:-4]
    signs, planes = data[-3], int.from_bytes(data[-2:], "little")
    assert signs == 0b010
    # bit 0 of 0, 5, 2 is 0 1 0; bit 1 is 0 0 1; bit 2 is 0 1 0; the first entry is the lowest bit
    assert planes == 0b010 | 0b100 << 3 | 0b010 << 6
    alone = Quantised(ones_at(4, 0), torch.ones(4, dtype=torch.uint8), 1.5, 0)
    assert alone.values.tolist() == [-1.5, 1.5, 1.5, 1.5]
    assert alone.nbytes == 8 + 1


@pytest.mark.parametrize(
    ("levels", "bits"), [([4, 0], 2), ([1, 0], 0), ([2, 2], 0), ([0, 0], 9), ([0, 0], -1), ([0], 2), ([0.0, 1.0], 2)]
)
def test_levels_must_fit(levels: list[float], bits: int) -> None:
    kind = torch.uint8 if isinstance(levels[0], int) else torch.float32
    with pytest.raises(ValueError, match=r"level|bits"):
        Quantised(ones_at(2, 0), torch.tensor(levels, dtype=kind), 1.0, bits)
