"""Every field of every method changes something: what clients keep, send or use, what the server keeps, or an error.

A field is changed to another value in a context in which it matters, and two tiny fleets are compared. Values are
chosen so that the effect is large, not one of rounding.
"""

from __future__ import annotations

import dataclasses
import hashlib
import typing
from collections.abc import Iterator
from functools import cache
from itertools import zip_longest
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.task import Task
from sparsona.core.training import Ctx, Training
from sparsona.core.wire import Message
from sparsona.method import VOTE, Report, capabilities
from sparsona.methods import METHODS
from tiers import REPRESENTATIVES

SIZES = (9, 12, 16, 21)  # samples of each client; the first is away in the first round
ADAM = {"optimiser": "adam", "momentum": 0.0, "lr": 0.05, "batch": 4}
MASKS = {"strong": 0.25, "budget": 0.2}  # PerFedMask: a budget that several masks fill
PRUNES = {"threshold": 1e9, "target": 0.99}  # DA-DPFL: who has trained twice votes yes
SHRINKS = {"distance": 0.0, "accuracy": 0.0, "prune_rate": 0.3}  # Sub-FedAvg: prune in every round

# by method: what makes so small a fleet show all of it
BASE: dict[str, dict[str, Any]] = {
    "feddst": {"interval": 2},
    "fedmask": {"lr": 5.0},
    "perfedmask+heterofl": {"width": 0.75, "budget": 0.5},
    "perfedmask+splitmix": {"bases": 2, "budget": 0.5},
    "splitmix": {"bases": 2},
    "subfedavg": SHRINKS,
}

# "method.field" or field: what else is set, and the other value; a model that shows it is named by its kind
CASES: dict[str, tuple[dict[str, Any], Any]] = {
    "accuracy": (SHRINKS, 1.0),
    "aggregation": ({"keep": (0.4, 0.5, 0.7, 1.0)}, "dense"),
    "allow_idle": ({"strong": 0.0, "budget": 0.1}, True),
    "batch": ({}, 4),
    "beta1": (ADAM, 0.2),
    "beta2": (ADAM, 0.5),
    "budget": (MASKS, 0.9),
    "cap": (PRUNES, 0.05),
    "charge_search": ({"search": "rsm"}, True),
    "clip": ({}, 0.01),
    "clip_of": ({"clip": 0.01, "strong": 0.0}, "masked"),
    "correlation": ({}, "signs"),
    "delay": (PRUNES, 1),
    "dense": ({"masked": "weights"}, ("hidden*",)),
    "density": ({}, 0.4),
    "distance": (SHRINKS, 1e9),
    "draws": (MASKS | {"solver": "random_best_of"}, 1),
    "drop_last": ({"batch": 5}, True),
    "each": (PRUNES, "neuron"),
    "epochs": ({}, 3),
    "epsilon": (ADAM, 1.0),
    "fedscr.threshold": ({}, 0.5),
    "fedmask.clip": ({}, 1e-7),
    "finish_epochs": ({}, 1),
    "frequency": (PRUNES, 3.0),
    "gamma": (PRUNES, 0.1),
    "inner_lr": ({"variant": "original"}, 0.01),
    "inner_steps": ({"variant": "original"}, 2),
    "interval": ({}, 1),
    "lr": ({}, 0.03),
    "lr_decay": ({"lr_schedule": "exponential"}, 0.5),
    "lr_schedule": ({}, "cosine"),
    "lr_steps": ({"lr_schedule": "steps", "lr_decay": 0.5}, (0.1,)),
    "moments": ({"momentum": 0.5}, "client"),
    "momentum": ({"momentum": 0.0, "batch": 4}, 0.5),
    "gate_start": ({}, "common"),
    "momentum_on": ({"momentum": 0.9, "keep": 0.4}, "all"),
    "open": ({}, 0.9),
    "relu_logits": ({}, True),
    "optimiser": ({"momentum": 0.0}, "adam"),
    "optimiser_args": ({"optimiser": "AdamW", "momentum": 0.0, "lr": 0.05, "batch": 4}, {"betas": (0.2, 0.9)}),
    "p": (PRUNES, 0.25),
    "pfedgate.budget": ({"keep": 0.4}, "exact"),
    "prune_rate": ({}, 0.9),
    "quorum": (PRUNES, 1.0),
    "refine": (MASKS | {"solver": "random"}, 1.0),
    "scaler": ({"strong": 0.0}, False),
    "schedule": (PRUNES, "strict"),
    "search": ({}, "rsm"),
    "selector": ({"keep": 0.4}, "greedy_ratio"),
    "slack": (PRUNES, 0.5),
    "solver": (MASKS, "random"),
    "spare": (MASKS, 0.6),
    "split": ({}, "rows"),
    "subfedavg.clip_of": (SHRINKS | {"clip": 0.01, "lr": 20.0}, "masked"),
    "subfedavg.density": (SHRINKS, 0.99),
    "threshold": ({}, 1e9),
    "velocity": ({"momentum": 0.5}, "round"),
    "weak": ({"weak_epochs": 3}, 2),
    "weak_bases": ({"weak": 2}, 2),
    "weak_epochs": ({"weak": 2}, 3),
    "weight_decay": ({}, 0.1),
}
MODELS = {"fedpse.running": "norm", "heterofl.clip_of": "sigmoid", "perfedmask+heterofl.clip_of": "sigmoid"}


class Net(nn.Module):
    """A convolution and linear layers, with normalisation or sigmoids if the kind says so."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4) if kind == "norm" else nn.Identity()
        self.act = nn.Sigmoid() if kind == "sigmoid" else nn.ReLU()
        self.hidden1 = nn.Linear(64, 8)
        self.hidden2 = nn.Linear(8, 12)
        self.hidden3 = nn.Linear(12, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = self.act(self.norm(self.conv(x))).flatten(1)
        return self.head(self.act(self.hidden3(self.act(self.hidden2(self.act(self.hidden1(x)))))))


@cache
def task(kind: str) -> tuple[Task, Tensor]:
    with Rng(1, "model").everywhere():
        return Task.of(Net(kind), torch.zeros(1, 1, 6, 6))


@cache
def data(k: int) -> LocalData:
    rng, n = Rng(2, k), SIZES[k]
    x, y = rng("x").uniform(n, 1, 6, 6), (rng("y").uniform(n) * 3).long()
    samples = Samples(x + y.view(-1, 1, 1, 1), y, torch.arange(n))
    return LocalData(samples, dataclasses.replace(samples, index=samples.index[:0]))


def fleet(method: Any, rounds: int, model_kind: str) -> Iterator[Any]:
    """Everything that a few rounds of a few clients leave, one after the other."""
    doer, theta0 = task(model_kind)
    doer.flops = doer.forward = 0
    can, everyone = capabilities(method), range(len(SIZES))

    def ctx(t: int, *key: int | str) -> Ctx:
        return Ctx(t, rounds, doer, theta0, Rng(3, *key, t), Rng(3, "common"))

    clients = {k: method.join(k, ctx(0, "join", k)) for k in everyone}
    if can.star:
        server = method.start(len(SIZES), ctx(0, "start"))
    else:
        sent, votes = {k: method.post(clients[k], ctx(0, "post", k)) for k in everyone}, list[list[int]]()
    for t in range(rounds):
        answers = {}
        for k in everyone if t else everyone[1:]:
            if can.star:
                inbox: dict[Any, Message] = {"server": method.down(server, k, ctx(t, "down", k))}
            else:
                inbox = {"self": sent[k], **{j: sent[j] for j in ((k + 1) % 4, (k + 2) % 4)}}
                if votes:
                    inbox["all"] = Message(rounds=torch.arange(t), votes=torch.tensor(votes))
            yield inbox
            seen = {j: inbox[j] for j in ("server", "self") if j in inbox}  # at an evaluation, peers get nothing else
            yield method.personal(clients[k], seen, data(k), ctx(t, "personal", k))
            clients[k], answers[k], model = method.local(clients[k], inbox, data(k), ctx(t, "local", k))
            yield clients[k], answers[k], model
            if can.reports:
                yield method.report(clients[k], None, k, ctx(t, "report", k))
        if can.star:
            read = ((k, method.read(server, k, answers[k], ctx(t, "read", k))) for k in answers)
            server = method.merge(server, read, ctx(t, "merge"))
            yield server
        else:
            votes.append([int(answers[k].get(VOTE, 2)) if k in answers else 2 for k in everyone])
            sent |= {k: Message(**{n: p for n, p in m.items() if n != VOTE}) for k, m in answers.items()}
    if can.finetunes:
        yield method.finish(method.shared(server), data(0), ctx(rounds, "finish"))
    yield doer.flops


def digests(name: str, fields: dict[str, Any], kind: str) -> Iterator[str]:
    """A hash of each value that a fleet leaves, and at last the error that ends it, if any."""
    try:
        for value in fleet(METHODS[name](**fields), 6 if name == "dadpfl" else 3, kind):
            total = hashlib.sha256()
            _add(total, value)
            yield total.hexdigest()
    except ValueError as error:
        yield f"ValueError: {error}"


BEFORE: dict[tuple[str, str, str], list[str]] = {}


def before(name: str, fields: dict[str, Any], kind: str) -> list[str]:
    """The hashes of a base, made once."""
    key = (name, repr(sorted(fields.items())), kind)
    if key not in BEFORE:
        BEFORE[key] = list(digests(name, fields, kind))
    return BEFORE[key]


def _add(total: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        total.update(repr(value.shape).encode() + value.detach().contiguous().numpy().tobytes())
    elif isinstance(value, Message):
        for part, content in value.items():
            total.update(str(part).encode())
            _add(total, content)
    elif isinstance(value, Report):
        _add(total, value.figures)
    elif isinstance(value, dict):
        for key, content in value.items():
            total.update(repr(key).encode())
            _add(total, content)
    elif isinstance(value, tuple | list):
        for content in value:
            _add(total, content)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for f in dataclasses.fields(value):
            if f.name not in ("task", "gated"):
                _add(total, getattr(value, f.name))
    elif isinstance(value, bytes):
        total.update(value)
    elif value is None or isinstance(value, bool | int | float | str):
        total.update(repr(value).encode())


def another(kind: type, field: str) -> Any:
    """Another value than the default: the next of a choice, the opposite, half or one more."""
    (f,) = (f for f in dataclasses.fields(kind) if f.name == field)
    hint, default = typing.get_type_hints(kind)[field], f.default
    choices = [c for c in typing.get_args(hint) if isinstance(c, str)]
    if typing.get_origin(hint) is typing.Literal and choices:
        return next(c for c in choices if c != default)
    if isinstance(default, bool):
        return not default
    return default + 1 if isinstance(default, int) else default / 2


FIELDS = [(name, f.name) for name, kind in sorted(METHODS.items()) for f in dataclasses.fields(kind)]


GENERAL = {f.name for f in dataclasses.fields(Training)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "field"),
    [
        pytest.param(
            name,
            field,
            id=f"{name}.{field}",
            # how a general field is honoured is one function for all; some methods stand for the others
            marks=pytest.mark.slow if field in GENERAL and name not in REPRESENTATIVES else (),
        )
        for name, field in FIELDS
    ],
)
def test_a_field_changes_something(name: str, field: str) -> None:
    kind, key = METHODS[name], f"{name}.{field}"
    more, value = CASES.get(key) or CASES.get(field) or ({}, None)
    known = {f.name for f in dataclasses.fields(kind)}
    base = {f: v for f, v in (BASE.get(name, {}) | more).items() if f in known}
    if field == "refine":
        pytest.importorskip("ortools")
    model = MODELS.get(key, "plain")
    first = before(name, base, model)
    assert not first[-1].startswith("ValueError"), first[-1]
    second = digests(name, base | {field: another(kind, field) if value is None else value}, model)
    assert any(a != b for a, b in zip_longest(first, second))  # ends at the first difference
