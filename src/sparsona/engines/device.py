"""What happens on one device: a pure function from a job to a result. Every engine ends up here."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save
from torch import Tensor

from sparsona.core.layout import Vector
from sparsona.core.portable import Bases
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.task import Task, correct, loss
from sparsona.core.training import Ctx, Training, train
from sparsona.core.wire import Message, Values, decode, encode, is_finite
from sparsona.engines.store import Blob, here
from sparsona.engines.values import dumps, loads, types_of
from sparsona.method import (
    Client,
    Composed,
    Finishing,
    Inbox,
    Method,
    Model,
    PeerMethod,
    Telling,
    Voter,
    Welcoming,
)

Wants = tuple[Literal["score", "model", "bytes"], ...]  # what else a job should bring back; the message as bytes
Raw = Message | Blob | memoryview | Path  # a message, its bytes, or where they lie
_MAX = 1 << 40  # messages are bounded where they come from a network; models of any size may pass between processes


@dataclass(frozen=True)
class Score:
    """How a model does on a client's test samples."""

    correct: int
    samples: int
    loss: float  # summed over samples


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

    def __init__(self, raw: Mapping[str | int, Raw]) -> None:
        self._raw = raw
        self._last: tuple[str | int, Message] | None = None  # who asks twice in a row gets the same

    def __getitem__(self, sender: str | int) -> Message:
        message = self._raw[sender]
        if isinstance(message, Message):
            return message
        if self._last is None or self._last[0] != sender:
            self._last = None  # before the next is made
            data = _mapped(message) if isinstance(message, Path) else encoded(message)
            self._last = (sender, decode(data, max_bytes=_MAX))
        return self._last[1]

    def __iter__(self) -> Iterator[str | int]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)


@dataclass(frozen=True)
class Job:
    """One thing to do for client k in round t."""

    kind: Literal["local", "evaluate", "shared", "validate", "finish", "post", "adapt"]
    t: int
    k: int
    client: Blob | None  # its value, None if it has not joined yet
    inbox: Mapping[str | int, Raw] = field(default_factory=dict)  # decoded or not, or where it lies
    wants: Wants = ()


@dataclass(frozen=True)
class Absent:
    """Why a client of a real fleet gave no answer that counts."""

    why: str
    reached: bool = True  # whether the job got as far as the client
    reset: bool = False  # whether the client has lost what it kept, and begins anew


@dataclass(frozen=True)
class Result:
    """What came of a job."""

    k: int
    client: Blob | None = None
    message: Message | None = None
    sent: Sent | None = None  # the message, encoded, if that was wanted
    vote: bool | None = None
    notes: dict[str, float] | None = None
    score: Score | None = None
    flops: int = 0
    forward: int = 0  # the part of them that went forward
    finite: bool = True  # whether the model that training ended with is free of NaN and Inf
    seconds: float = 0.0  # for the timing log alone: never in results, which repeat to the bit
    absent: Absent | None = None  # on a real fleet: there is no answer, and this is why


@dataclass(frozen=True)
class Device:
    """A method with its task and data; it holds no state between jobs."""

    method: Method
    task: Task
    theta0: Vector
    local: Callable[[int], LocalData]
    test: Callable[[int], Samples]
    seed: int
    rounds: int
    test_batch: int = 128
    adapt_epochs: int = 1

    def ctx(self, t: int, *key: int | str) -> Ctx:
        """The context of round t, with randomness keyed by seed, purpose, round and client."""
        return Ctx(t, self.rounds, self.task, self.theta0, Rng(self.seed, *key), Rng(self.seed, "common"))

    def handle(self, job: Job) -> Result:
        """Do a job."""
        began, flops, forward = time.perf_counter(), self.task.flops, self.task.forward
        k, t = job.k, job.t
        if job.kind in ("shared", "validate", "finish"):
            client = None
        elif job.client is None:
            client = self.method.join(k, self.ctx(0, "join", k))
        else:
            client = loads(here(job.client), types_of(self.method))
        inbox = Mail(job.inbox)
        message: Message | None = None
        match job.kind:
            case "local":
                ctx = self.ctx(t, "local", t, k)
                client, message, model = self.method.local(client, inbox, self.local(k), ctx)
                finite = not isinstance(model, Tensor) or is_finite(model)
                result = Result(
                    k,
                    _kept(client),
                    vote=self.method.vote(client) if isinstance(self.method, Voter) else None,
                    notes=self.method.notes(client, ctx) if isinstance(self.method, Telling) else None,
                    flops=self.task.flops - flops,
                    forward=self.task.forward - forward,
                    score=self.score(model, k) if "score" in job.wants else None,
                    finite=finite,
                )
            case "evaluate":
                model = self.method.personal(client, inbox, self.local(k), self.ctx(t, "personal", t, k))
                message = _written(model) if "model" in job.wants else None
                result = Result(k, score=self.score(model, k))
            case "adapt":
                client, model = self.adapted(client, inbox, self.local(k), self.ctx(t, "adapt", k))
                message = _written(model) if "model" in job.wants else None
                result = Result(k, _kept(client), score=self.score(model, k))
            case "shared":
                result = Result(k, score=self.score(self.shared(inbox, t), k))
            case "validate":
                held = self.local(k).validation
                result = Result(k, score=self.score(self.shared(inbox, t), k, held))
            case "finish":
                model = self.finished(inbox["server"]["theta"].values, t, k)
                message = _written(model) if "model" in job.wants else None
                result = Result(k, score=self.score(model, k))
            case "post":
                assert isinstance(self.method, PeerMethod)
                message = self.method.post(client, self.ctx(0, "post", k))
                result = Result(k, _kept(client))
        if message is not None and "bytes" in job.wants:
            finite = result.finite and message.finite()  # who gets bytes does not look inside
            result = replace(result, sent=Sent(encode(message), message.value_nbytes), finite=finite)
        elif message is not None:
            result = replace(result, message=message)
        return replace(result, seconds=time.perf_counter() - began)

    def shared(self, inbox: Inbox, t: int) -> Model:
        """The shared model that the server sent as one vector."""
        theta: Vector = inbox["server"]["theta"].values
        return self.method.opened(theta, self.ctx(t, "shared")) if isinstance(self.method, Composed) else theta

    def finished(self, theta: Vector, t: int, k: int) -> Model:
        """Client k's own model, tuned from the shared one of round t."""
        assert isinstance(self.method, Finishing)
        return self.method.finish(theta, self.local(k), self.ctx(t, "finish", k))

    def adapted(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Model]:
        """A newcomer and its model: as its method personalises for it, or the model it would use, tuned as a whole."""
        if isinstance(self.method, Welcoming):
            return self.method.welcome(client, inbox, data, self.adapt_epochs, ctx)
        model = self.method.personal(client, inbox, data, ctx)
        assert isinstance(self.method, Training)
        rows = model.rows if isinstance(model, Bases) else [model]
        begun = replace(ctx, t=0)  # whatever the schedule has made of the others' rate, and as newcomers' gates learn
        tuned = []
        for row in rows:
            assert isinstance(row, Tensor), "models that are not made of vectors have their own way to adapt"
            tuned.append(train(self.method, row, data.train, begun, purpose="adapt", epochs=self.adapt_epochs))
        return client, Bases(self.task, torch.stack(tuned)) if isinstance(model, Bases) else tuned[0]

    def score(self, model: Model, k: int, samples: Samples | None = None) -> Score:
        """The model on client k's test samples, or on others."""
        right, total, n = 0, 0.0, 0
        for x, y in (self.test(k) if samples is None else samples).all(self.test_batch):
            logits = self.task.logits(model, x) if isinstance(model, torch.Tensor) else model(x)
            right += correct(logits, y)
            total += float(loss(logits, y, reduction="sum"))
            n += len(y)
        return Score(right, n, total)

    def exported(self, message: Message) -> bytes:
        """A model that was asked for, as a safetensors file; several have the names that the exported module has."""
        rows = message["model"].values.view(-1, self.task.layout.dim)
        tensors = {
            f"models.{i}.{name}" if len(rows) > 1 else name: t.contiguous()
            for i, row in enumerate(rows)
            for name, t in self.task.layout.unflatten(row).items()
        }
        return save(tensors)


def _written(model: Model) -> Message | None:
    """A model as one or several vectors, if it is made of such."""
    if isinstance(model, Bases):
        return Message(model=Values(model.rows.flatten()))
    return Message(model=Values(model)) if isinstance(model, Tensor) else None


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _kept(client: Client) -> bytes | None:
    """A client's value as it is stored; a client that keeps nothing costs nothing."""
    return None if client is None else dumps(client)
