"""A node that lies in four rounds; otherwise ``python liar.py fleet node`` is ``sparsona fleet node``."""

import torch

from sparsona.__main__ import main
from sparsona.core.wire import Message, Values, encode
from sparsona.fleet.client_runtime import ClientRuntime
from sparsona.fleet.envelope import pack, unpack

honest = ClientRuntime.answer
LIES = {1: "NaN", 3: "shape", 5: "old version", 7: "garbage"}  # by round, so that one that is done again is no other


def answer(self: ClientRuntime, data: bytes) -> bytes:
    said = honest(self, data)
    head, blobs = unpack(said)
    match LIES.get(head.get("t", 0)) if head.get("kind") == "local" else None:
        case "NaN":
            return pack(head, [encode(Message(theta=Values(torch.full((4810,), float("nan"))), samples=5))])
        case "shape":
            return pack(head, [encode(Message(theta=Values(torch.ones(7)), samples=5))])
        case "old version":
            return pack(head | {"from": "0-0123456789abcdef"}, [bytes(b) for b in blobs])
        case "garbage":
            return b"garbage"
    return said


ClientRuntime.answer = answer  # type: ignore[method-assign]
main()
