"""What happens on one device: a pure function from a job to a result. Every engine ends up here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from sparsona.core.layout import Vector
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.task import Task, correct, loss
from sparsona.core.training import Ctx
from sparsona.core.wire import Message, Values, is_finite
from sparsona.engines.values import dumps, loads, types_of
from sparsona.method import Client, Inbox, Method, Model, PeerMethod

Wants = tuple[Literal["score", "model"], ...]  # what else a job should bring back


@dataclass(frozen=True)
class Score:
    """How a model does on a client's test samples."""

    correct: int
    samples: int
    loss: float  # summed over samples


@dataclass(frozen=True)
class Job:
    """One thing to do for client k in round t."""

    kind: Literal["local", "evaluate", "shared", "post"]
    t: int
    k: int
    client: bytes | None  # its value, None if it has not joined yet
    inbox: Inbox = field(default_factory=dict)
    wants: Wants = ()


@dataclass(frozen=True)
class Result:
    """What came of a job."""

    k: int
    client: bytes | None = None
    message: Message | None = None
    score: Score | None = None
    flops: int = 0
    finite: bool = True  # whether the model that training ended with is free of NaN and Inf
    seconds: float = 0.0  # for the timing log alone: never in results, which repeat to the bit


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

    def ctx(self, t: int, *key: int | str) -> Ctx:
        """The context of round t, with randomness keyed by seed, purpose, round and client."""
        return Ctx(t, self.rounds, self.task, self.theta0, Rng(self.seed, *key), Rng(self.seed, "common"))

    def handle(self, job: Job) -> Result:
        """Do a job."""
        began, flops = time.perf_counter(), self.task.flops
        k, t = job.k, job.t
        if job.client is None:
            client = self.method.join(k, self.ctx(0, "join", k))
        else:
            client = loads(job.client, types_of(self.method))
        match job.kind:
            case "local":
                ctx = self.ctx(t, "local", t, k)
                client, message, model = self.method.local(client, job.inbox, self.local(k), ctx)
                spent = self.task.flops - flops
                score = self.score(model, k) if "score" in job.wants else None
                finite = not isinstance(model, Tensor) or is_finite(model)
                return Result(k, _kept(client), message, score, spent, finite, time.perf_counter() - began)
            case "evaluate":
                model = self.method.personal(client, job.inbox, self.local(k), self.ctx(t, "personal", t, k))
                sent = Message(model=Values(model)) if "model" in job.wants and isinstance(model, Tensor) else None
                return Result(k, None, sent, self.score(model, k), seconds=time.perf_counter() - began)
            case "shared":
                return Result(k, None, None, self.score(job.inbox["server"]["theta"].values, k))
            case "post":
                assert isinstance(self.method, PeerMethod)
                return Result(k, _kept(client), self.method.post(client), seconds=time.perf_counter() - began)

    def score(self, model: Model, k: int) -> Score:
        """The model on client k's test samples."""
        right, total, n = 0, 0.0, 0
        for x, y in self.test(k).all(self.test_batch):
            logits = self.task.logits(model, x) if isinstance(model, torch.Tensor) else model(x)
            right += correct(logits, y)
            total += float(loss(logits, y, reduction="sum"))
            n += len(y)
        return Score(right, n, total)


def _kept(client: Client) -> bytes | None:
    """A client's value as it is stored; a client that keeps nothing costs nothing."""
    return None if client is None else dumps(client)
