"""A node that lies about every second job; otherwise ``python liar.py fleet node`` is ``sparsona fleet node``."""

import itertools

import torch

from sparsona.__main__ import main
from sparsona.core.wire import Message, Values, encode
from sparsona.engines.parcels import pack, unpack
from sparsona.engines.station import Station

honest = Station.answer
lies = itertools.cycle(["NaN", "honest", "shape", "honest", "old version", "honest", "garbage", "honest"])


def answer(self: Station, data: bytes) -> bytes:
    said = honest(self, data)
    head, blobs = unpack(said)
    if head.get("kind") != "local":
        return said
    match next(lies):
        case "NaN":
            return pack(head, [encode(Message(theta=Values(torch.full((4810,), float("nan"))), samples=5))])
        case "shape":
            return pack(head, [encode(Message(theta=Values(torch.ones(7)), samples=5))])
        case "old version":
            return pack(head | {"from": "0-0123456789abcdef"}, [bytes(b) for b in blobs])
        case "garbage":
            return b"garbage"
    return said


Station.answer = answer  # type: ignore[method-assign]
main()
