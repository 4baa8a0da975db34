"""What happens on one device: a pure function from a job to a result. Every engine ends up here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from safetensors.torch import save
from torch import Tensor

from sparsona.core.layout import CPU, Vector
from sparsona.core.model import Model, as_model
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.star import adapted
from sparsona.core.task import Task
from sparsona.core.training import Ctx
from sparsona.core.wire import Message, Values, encode, is_finite
from sparsona.engines.hardware import repeatable
from sparsona.engines.jobs import Job, Mail, Result, Score, Sent
from sparsona.engines.measure import Measure, Measuring
from sparsona.engines.resident import Resident
from sparsona.engines.store import here
from sparsona.engines.values import Types, dumps, loads, to, types_of
from sparsona.method import VOTE, Capabilities, Client, ContractError, Inbox, Method, Predictor, Server, capabilities


@dataclass(frozen=True)
class Device:
    """A method with its task and data; it holds no state between jobs.

    Its task may lie on an accelerator, and so does then all that the hooks of a job are given and make. Data, values
    and messages come from the host and go back to it here, and nowhere else.
    """

    method: Method
    task: Task
    theta0: Vector
    local: Callable[[int], LocalData]
    test: Callable[[int], Samples]
    seed: int
    rounds: int
    test_batch: int = 128
    adapt_epochs: int = 1
    measures: Mapping[str, Measure] = field(default_factory=dict)  # what scores hold beside accuracy and loss
    cache: int = 1 << 31  # bytes of clients' data that stay on an accelerator
    tf32: bool = False  # whether an accelerator may round products of float32
    on_validation: bool = False  # whether models are tested on validation samples

    @cached_property
    def _able(self) -> Capabilities:
        return capabilities(self.method)

    @cached_property
    def _types(self) -> Types:
        return types_of(self.method)

    def ctx(self, t: int, *key: int | str) -> Ctx:
        """The context of round t, with randomness keyed by seed, purpose, round and client."""
        return Ctx(t, self.rounds, self.task, self.theta0, Rng(self.seed, *key), Rng(self.seed, "common"))

    def handle(self, job: Job) -> Result:
        """Do a job."""
        with repeatable(self.task.device, tf32=self.tf32):
            return self._handle(job)

    def _handle(self, job: Job) -> Result:
        began, flops, forward, charges = time.perf_counter(), self.task.flops, self.task.forward, self.task.charges
        k, t, able = job.k, job.t, self._able
        if job.kind in ("shared", "validate", "finish"):
            client = None
        elif job.client is None:
            client = self.method.join(k, self.ctx(0, "join", k))
        else:
            client = self._here(loads(here(job.client), self._types))
        inbox = Mail(job.inbox, self.task.device)
        message: Message | None = None
        match job.kind:
            case "local":
                ctx = self.ctx(t, "local", t, k)
                self.task.tally.clear()
                client, message, predictor = _three(self.method, self.method.local(client, inbox, self.data(k), ctx))
                model, vote, totals = as_model(self.task, predictor), None, self.task.tally.totals()
                if able.peer is not None and VOTE in message:
                    vote, message = message.part(VOTE, bool), _without_vote(message)
                result = Result(
                    k,
                    _kept(client),
                    vote=vote,
                    notes=(able.reports.report(client, None, k, ctx).figures or None) if able.reports else None,
                    flops=None if self.task.charges == charges else self.task.flops - flops,
                    forward=None if self.task.charges == charges else self.task.forward - forward,
                    score=self.score(model, k) if "score" in job.wants else None,
                    trained=None if totals is None else Score(*totals),
                    finite=is_finite(model.vectors()),
                )
            case "evaluate":
                model = self.personal(client, inbox, self.data(k), t, k)
                message = _written(model) if "model" in job.wants else None
                result = Result(k, score=self.score(model, k))
            case "adapt":
                client, model = self.adapted(client, inbox, self.data(k), self.ctx(t, "adapt", k))
                message = _written(model) if "model" in job.wants else None
                result = Result(k, _kept(client), score=self.score(model, k))
            case "shared":
                result = Result(k, score=self.score(as_model(self.task, self._received(inbox)), k))
            case "validate":
                held = self.data(k).validation
                result = Result(k, score=self.score(as_model(self.task, self._received(inbox)), k, held))
            case "finish":
                model = self.finished(self._received(inbox), t, k)
                message = _written(model) if "model" in job.wants else None
                result = Result(k, score=self.score(model, k))
            case "post":
                assert able.peer is not None
                message = able.peer.post(client, self.ctx(0, "post", k))
                result = Result(k, _kept(client))
        if message is not None and not self._on_host:
            message = message.to(CPU)
        if message is not None and "bytes" in job.wants:
            finite = result.finite and message.finite()  # who gets bytes does not look inside
            result = replace(result, sent=Sent(encode(message), message.value_nbytes), finite=finite)
        elif message is not None:
            result = replace(result, message=message)
        return replace(result, seconds=time.perf_counter() - began)

    @property
    def _on_host(self) -> bool:
        return self.task.device == CPU

    @cached_property
    def _resident(self) -> Resident:
        return Resident(self.task.device, self.cache)

    def _here(self, value: Client) -> Client:
        """A client's value where the task lies."""
        return value if self._on_host else to(value, self.task.device)

    def data(self, k: int) -> LocalData:
        """What client k may learn from, where the task lies."""
        return self.local(k) if self._on_host else self._resident.local(k, self.local)

    def tests(self, k: int) -> Samples:
        """What client k's models are tested on, where the task lies."""
        if self.on_validation:
            return self.data(k).validation
        return self.test(k) if self._on_host else self._resident.samples(("test", k), lambda: self.test(k))

    def personal(self, client: Client, inbox: Inbox, data: LocalData, t: int, k: int) -> Model:
        """The model that client k would use after round t."""
        return as_model(self.task, self.method.personal(client, inbox, data, self.ctx(t, "personal", t, k)))

    def shared(self, server: Server) -> Vector:
        """The server's one model as it is sent: one vector after the other, if there are several."""
        shares = capabilities(self.method).shares
        assert shares is not None
        return shares.shared(server).flatten()

    def _received(self, inbox: Inbox) -> Tensor:
        return self.rows(inbox["server"]["theta"].values)

    def rows(self, sent: Vector) -> Tensor:
        """A shared model that was sent: a vector [d], or several [n, d]."""
        rows = sent.view(-1, self.task.layout.dim)
        return rows[0] if len(rows) == 1 else rows

    def finished(self, shared: Tensor, t: int, k: int) -> Model:
        """Client k's own model, tuned from the shared one of round t."""
        finetunes = capabilities(self.method).finetunes
        assert finetunes is not None
        return as_model(self.task, finetunes.finish(shared, self.data(k), self.ctx(t, "finish", k)))

    def adapted(self, client: Client, inbox: Inbox, data: LocalData, ctx: Ctx) -> tuple[Client, Model]:
        """A newcomer and its model: as its method personalises for it, or the model it would use, tuned as a whole."""
        welcomes, training = self._able.welcomes, self._able.training
        if welcomes is not None:
            client, predictor = welcomes.welcome(client, inbox, data, self.adapt_epochs, ctx)
            return client, as_model(self.task, predictor)
        model = self.method.personal(client, inbox, data, ctx)
        assert training is not None
        assert isinstance(model, Tensor), "models that are not made of vectors have their own way to adapt"
        rows = model.view(-1, self.task.layout.dim)
        tuned = torch.stack([adapted(training, self.adapt_epochs, row, data, ctx) for row in rows])
        return client, as_model(self.task, tuned.view(model.shape))

    def score(self, model: Model, k: int, samples: Samples | None = None) -> Score:
        """The model on client k's test samples, or on others."""
        objective, measuring = self.task.objective, Measuring(self.measures)
        right, total, n = 0, 0.0, 0
        for x, y in (self.tests(k) if samples is None else samples).all(self.test_batch):
            outputs = model.logits(x)
            right += objective.correct(outputs, y) or 0
            total += objective.total(outputs, y)
            n += objective.count(y)
            if self.measures:
                measuring.add(outputs.to(CPU), y.to(CPU))
        return Score(None if objective.target == "number" else right, n, total, measuring.values())

    def exported(self, message: Message) -> bytes:
        """A model that was asked for, as a safetensors file; several have the names that the exported module has."""
        rows = message["model"].values.view(-1, self.task.layout.dim)
        tensors = {
            f"models.{i}.{name}" if len(rows) > 1 else name: t.contiguous()
            for i, row in enumerate(rows)
            for name, t in self.task.layout.unflatten(row).items()
        }
        return save(tensors)


def _three(method: Method, answer: tuple[Client, Message, Predictor]) -> tuple[Client, Message, Predictor]:
    """What local returned; ContractError if that are not three things."""
    if not isinstance(answer, tuple) or len(answer) != 3:
        what = f"{type(method).__name__}.local returned {type(answer).__name__}"
        raise ContractError(f"{what}; expected a tuple (client, message, model)")
    return answer


def _written(model: Model) -> Message | None:
    """A model as one or several vectors, if it is made of such."""
    vectors = model.vectors()
    return Message(model=Values(vectors.flatten())) if len(vectors) else None


def _without_vote(message: Message) -> Message:
    """What neighbours get of a message."""
    return Message(**{name: part for name, part in message.items() if name != VOTE})


def _kept(client: Client) -> bytes | None:
    """A client's value as it is stored; a client that keeps nothing costs nothing."""
    return None if client is None else dumps(client)
