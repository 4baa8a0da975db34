"""Jobs for clients and their results: what round loops ask for, engines carry, and devices do."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from sparsona.core.layout import CPU
from sparsona.core.wire import Message, decode, encode
from sparsona.engines.store import Blob, here

JobKind = Literal["local", "evaluate", "shared", "validate", "finish", "post", "adapt"]
Want = Literal["score", "model", "bytes"]
Wants = tuple[Want, ...]  # what else a job should bring back; the message as bytes
Raw = Message | Blob | memoryview | Path  # a message, its bytes, or where they lie
ANY_SIZE = 1 << 40  # bytes of a message between our own processes; those from a network have smaller bounds


@dataclass(frozen=True)
class Score:
    """How a model does on a client's test samples."""

    correct: int | None  # None for numbers, which are not right or wrong
    samples: int  # of next-token prediction: tokens
    loss: float  # summed over samples
    metrics: dict[str, float | None] = field(default_factory=dict)  # None where one is not defined

    def row(self) -> dict[str, float | None]:
        """The score as it is recorded."""
        return {"correct": self.correct, "samples": self.samples, "loss": self.loss, **self.metrics}


@dataclass(frozen=True)
class Sent:
    """An encoded message, and how many of its bytes are values."""

    data: Blob
    value_nbytes: int


def encoded(raw: Raw) -> bytes | memoryview:
    """A message's bytes, wherever they lie."""
    if isinstance(raw, Message):
        return encode(raw)
    return raw if isinstance(raw, memoryview) else here(raw)


class Mail(Mapping[str | int, Message]):
    """An inbox whose messages are decoded when they are asked for, one at a time: peers may have many large ones."""

    def __init__(self, raw: Mapping[str | int, Raw], device: torch.device = CPU) -> None:
        self._raw = raw
        self._device = device  # where the messages are read
        self._last: tuple[str | int, Message] | None = None  # the last decoded message: often asked for twice in a row

    def __getitem__(self, sender: str | int) -> Message:
        message = self._raw[sender]
        if isinstance(message, Message) and self._device == CPU:
            return message
        if self._last is None or self._last[0] != sender:
            self._last = None  # before the next is made
            if not isinstance(message, Message):
                data = _mapped(message) if isinstance(message, Path) else encoded(message)
                message = decode(data, max_bytes=ANY_SIZE)
            self._last = (sender, message if self._device == CPU else message.to(self._device))
        return self._last[1]

    def __iter__(self) -> Iterator[str | int]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)


@dataclass(frozen=True)
class Job:
    """A request to client k in round t."""

    kind: JobKind
    t: int
    k: int
    client: Blob | None  # its value, None if it has not joined yet
    inbox: Mapping[str | int, Raw] = field(default_factory=dict)  # decoded or not, or where it lies
    wants: Wants = ()
    version: str | None = None  # on a fleet: names the value, which stays on the client's device


@dataclass(frozen=True)
class Absent:
    """Why a client of a real fleet gave no answer that counts."""

    why: str
    reached: bool = True  # whether the job reached the client
    reset: bool = False  # whether the client lost its state and starts over


@dataclass(frozen=True)
class Result:
    """The outcome of a job."""

    k: int
    client: Blob | None = None  # the client's new value
    message: Message | None = None
    sent: Sent | None = None  # the message, encoded, if that was wanted
    vote: bool | None = None
    notes: dict[str, float] | None = None
    score: Score | None = None
    trained: Score | None = None  # on the training samples, while training
    flops: int | None = 0  # None: the method trained in a way that nobody counted
    forward: int | None = 0  # the part of them that went forward
    finite: bool = True  # whether the model that training ended with is free of NaN and Inf
    seconds: float = 0.0  # only for the timing log: results are bit-identical between runs
    absent: Absent | None = None  # on a fleet: there is no answer, and this is why
    version: str | None = None  # on a fleet: names the new value, which stays on the client's device


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
