"""The contract of a method, as checks; a failure names the hook that breaks it."""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData
from sparsona.core.topology import at_once, ordered, ring
from sparsona.core.wire import Message, decode, encode
from sparsona.engines.jobs import Job, Result
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import RoundResult, peers, star
from sparsona.engines.store import Store
from sparsona.engines.values import dumps, loads, types_of
from sparsona.experiment.objects import Objects, check_engine
from sparsona.experiment.recipe import Recipe, RecipeError
from sparsona.experiment.runner import run
from sparsona.method import ContractError, Method, Report, capabilities
from sparsona.testing.scene import Scene, require

_VOLATILE = {"timing.jsonl", "recipe.toml", "run.json"}  # of a run folder: times, and the name of the engine
_MOST = 16  # dense models that a message may be as large as


def check_method(
    method: Method, recipe: Recipe | None = None, *, engines: Sequence[str] = (), learns: bool = False
) -> None:
    """Check that a method keeps its contract; raise a ContractError or AssertionError that names the hook if not.

    The method runs on a tiny fleet, or with the data, model and topology of ``recipe``. ``engines`` are further engines
    whose results must be bit-identical to those of "local", such as ("pool", "ray"); their processes import the method.
    With ``learns``, the loss must fall within twelve rounds.
    """
    if isinstance(method, (type, str)):
        name = method if isinstance(method, str) else method.__name__
        raise ContractError(
            f"method: {name} is a class or a name; expected an instance, such as {name.rpartition(':')[2]}()"
        )
    capabilities(method)  # a hook that is missing is a ContractError
    try:
        scene = Scene.of(method, recipe)
        for engine in engines:
            check_engine("the method", type(method), engine)
    except RecipeError as error:
        raise AssertionError(str(error)) from error
    for check in CHECKS.values():
        check(scene)
    if learns:
        check_learning(scene)
    check_engines(scene, engines)


def check_configuration(scene: Scene) -> None:
    """The configuration is a frozen dataclass that can be copied."""
    method = scene.method
    require(copy.deepcopy(method) == method, f"a copy of {scene.name} is not equal to it; leave @dataclass its __eq__")
    first = next(iter(dataclasses.fields(method)), None)
    try:
        if first is not None:
            setattr(method, first.name, getattr(method, first.name))
    except dataclasses.FrozenInstanceError:
        return
    require(first is None, f"{scene.name} can be changed; write @dataclass(frozen=True)")


def check_inputs(scene: Scene) -> None:
    """No hook changes its arguments, in a first round and in a second, when clients have something to keep."""
    server, client, message = scene.start(), scene.join(), None
    for t in range(2):
        inbox = scene.inbox(server, own=message)
        client, message, _ = scene.local(client, inbox, t)
        server = scene.merge(server, message, t)
        scene.personal(client, server, message, t)
    _optional_hooks(scene, client, server)


def _optional_hooks(scene: Scene, client: Any, server: Any) -> None:
    able, device, data = capabilities(scene.method), scene.device, scene.fleet.local(0)
    if able.reports is not None:
        for kept in ((client, None), (None, server)) if scene.has_server else ((client, None),):
            report = scene.call("report", *kept, 0, device.ctx(0, "local", 0, 0))
            require(
                isinstance(report, Report), f"{scene.name}.report must return a Report, not {type(report).__name__}"
            )
    if able.shares is not None:
        shared = scene.call("shared", server)
        scene.logits("shared", shared)
        if able.finetunes is not None:
            scene.logits("finish", scene.call("finish", shared, data, device.ctx(0, "finish", 0)))
    if able.welcomes is not None and scene.has_server:
        newcomer, inbox = scene.join(1), scene.inbox(server, 1)
        result = scene.call("welcome", newcomer, inbox, scene.fleet.local(1), 1, device.ctx(0, "adapt", 1))
        require(
            isinstance(result, tuple) and len(result) == 2, f"{scene.name}.welcome must return a client and its model"
        )
        scene.logits("welcome", result[1], 1)


def check_repeatable(scene: Scene) -> None:
    """The same key gives the same bits, whoever runs in between: randomness comes from ctx.rng and ctx.common only."""

    def outcome(hook: str, make: Callable[[], bytes]) -> bytes:
        first = make()
        require(
            make() == first,
            f"{scene.name}.{hook} gives another result for the same arguments; draw only from ctx.rng(purpose) and "
            "ctx.common(purpose), and keep nothing between calls",
        )
        return first

    def trained() -> tuple[bytes, bytes, bytes]:
        client, message, model = scene.first_round(server)
        return dumps(client), encode(message), scene.logits("local", model).numpy().tobytes()

    outcome("start", lambda: dumps(scene.start()))
    outcome("join", lambda: dumps(scene.join()))
    server = scene.start()
    outcome("down" if scene.has_server else "post", lambda: b"".join(map(encode, scene.inbox(server).values())))
    first = trained()
    scene.first_round(server, k=1)  # somebody else in between
    outcome("local", lambda: b"".join(trained()))
    require(trained() == first, f"{scene.name}.local gives another result after another client has trained")
    client, message, _ = scene.first_round(server)
    outcome("merge", lambda: dumps(scene.merge(server, message)))
    merged = scene.merge(server, message)
    outcome("personal", lambda: scene.logits("personal", scene.personal(client, merged, message)).numpy().tobytes())


class _Backwards(LocalEngine):
    """An engine that runs the last client first."""

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        """The results, in the order of the jobs."""
        results = [self.device.handle(job) for job in reversed(list(jobs))]
        return iter(reversed(results))


def check_order(scene: Scene) -> None:
    """Clients may run in any order: what each does depends on no other client of its round."""
    device, method, n = scene.device, scene.method, scene.fleet.clients
    outcomes = []
    for engine in (LocalEngine(device), _Backwards(device)):
        server, store = scene.start(), Store()
        if not scene.has_server:
            for k in range(n):
                message = scene.post(k)
                store.put_mail(k, -1, encode(message), message.value_nbytes)
        for t in range(2):
            if scene.has_server:
                chosen = sorted({0, 2 % n, 3 % n, 5 % n})
                server, _ = star(method, engine, store, server, t, chosen, device.ctx(t, "merge", t), ())
            else:
                peers(engine, store, t, ordered(ring(n), Rng(t), 1), {}, n, ())
        mail = [] if scene.has_server else [store.mail(k, 2) for k in range(n)]
        outcomes.append((dumps(server), [store.client(k) for k in range(n)], mail))
    require(
        outcomes[0] == outcomes[1],
        f"{scene.name} gives another result if the clients of a round run in another order; keep nothing between calls",
    )


def check_storage(scene: Scene) -> None:
    """Values and messages survive their journey, messages are of a sensible size, and work as well when decoded."""
    server, types = scene.start(), types_of(scene.method)
    client, inbox = scene.join(), scene.inbox(server)
    new, message, _ = scene.local(client, inbox)
    for value, hook in ((new, "local"), (server, "start")):
        require(
            dumps(loads(dumps(value), types)) == dumps(value), f"{scene.name}.{hook}: its value changes when stored"
        )
    sent = [("local", message), *(("down" if scene.has_server else "post", m) for m in inbox.values())]
    most = _MOST * 4 * scene.device.task.layout.dim + (1 << 16)
    for hook, each in sent:
        nbytes = _encoded(scene, hook, each)
        require(
            nbytes <= most,
            f"{scene.name}.{hook} sends {nbytes:,} bytes, more than {_MOST} dense models; send what the receiver lacks",
        )
    far = {sender: decode(encode(m)) for sender, m in inbox.items()}
    there, back, _ = scene.local(loads(dumps(client), types), far)
    require(
        dumps(there) == dumps(new) and encode(back) == encode(message),
        f"{scene.name}.local gives another result if client and messages were sent as bytes; use their values only",
    )


def _encoded(scene: Scene, hook: str, message: Message) -> int:
    try:
        data = encode(message)
        same = encode(decode(data)) == data and len(data) == message.nbytes
    except (ValueError, TypeError) as error:
        raise AssertionError(f"{scene.name}.{hook} returns a message that cannot be sent: {error}") from error
    require(same, f"{scene.name}.{hook} returns a message that changes on its way")
    return len(data)


def check_one_sample(scene: Scene) -> None:
    """A client with one sample trains, and its models give finite numbers."""
    data = scene.fleet.local(0)
    lonely = LocalData(dataclasses.replace(data.train, index=data.train.index[:1]), data.validation)
    server = scene.start()
    client, message, model = scene.local(scene.join(), scene.inbox(server), data=lonely)
    require(message.finite(), f"{scene.name}.local sends NaN or Inf for a client with one sample")
    merged = scene.merge(server, message)
    for hook, each in (("local", model), ("personal", scene.personal(client, merged, message, data=lonely))):
        logits = scene.logits(hook, each)
        require(
            bool(torch.isfinite(logits).all()),
            f"{scene.name}.{hook} returns a model that gives NaN or Inf for a client with one sample",
        )


def check_empty_round(scene: Scene) -> None:
    """A round without answers changes nothing."""
    device, n = scene.device, scene.fleet.clients
    if not scene.has_server:  # nobody to answer: everybody away is a round of nothing
        outcome = peers(LocalEngine(device), Store(), 0, at_once(ring(n), range(n)), {}, n, ())
        require(outcome == ({}, RoundResult(0)), f"{scene.name}: a round in which everybody is away has a result")
        return
    server = scene.start()
    merged = scene.call("merge", server, iter(()), device.ctx(0, "merge", 0))
    require(dumps(merged) == dumps(server), f"{scene.name}.merge must return the server as it was if nobody answered")


def check_late_joiner(scene: Scene) -> None:
    """Joining is keyed: a client that joins in round 5 is what it would have been in round 0."""
    k, server = 3 % scene.fleet.clients, scene.start()
    inbox = scene.inbox(server, k)
    early = scene.device.handle(Job("evaluate", 0, k, None, inbox))
    joined = scene.join(k)
    late = scene.device.handle(Job("evaluate", 0, k, None if joined is None else dumps(joined), inbox))
    require(early.score == late.score, f"{scene.name}: a client that joins late is not the one that joined early")


def check_forgetting(scene: Scene) -> None:
    """A server that forgets a client it never met is unchanged, and still has something to send to it afterwards."""
    able = capabilities(scene.method)
    if able.star is None or able.forgets is None:
        return
    start, store, server = scene.start(), Store(), scene.start()
    require(
        dumps(scene.call("forget", start, 1)) == dumps(start),
        f"{scene.name}.forget changes a server that never met the client",
    )
    for t in range(2):
        ctx = scene.device.ctx(t, "merge", t)
        server, _ = star(able.star, LocalEngine(scene.device), store, server, t, [0, 1, 2], ctx, ())
    forgotten = scene.stored("forget", scene.call("forget", server, 1))
    scene.local(scene.join(1), scene.inbox(forgotten, 1), k=1)


def check_learning(scene: Scene, rounds: int = 12) -> None:
    """Twelve rounds lower the loss by more than the first does."""
    recipe = dataclasses.replace(scene.recipe, rounds=rounds)
    finished = run(recipe, objects=Objects(scene.method))
    every = [row[finished.point]["loss"] for row in finished.rounds if row.get(finished.point)]
    require(every[-1] < every[0], f"{scene.name} does not learn: its loss goes from {every[0]:.3g} to {every[-1]:.3g}")


def check_engines(scene: Scene, engines: Sequence[str]) -> None:
    """Every engine leaves the same files, to the bit."""
    if not engines:
        return
    with tempfile.TemporaryDirectory() as top:
        left = {engine: _files(scene, engine, Path(top) / engine) for engine in ("local", *engines)}
    for engine in engines:
        names = {*left["local"], *left[engine]}
        differ = sorted(name for name in names if left["local"].get(name) != left[engine].get(name))
        require(
            not differ,
            f'{scene.name} gives another result with engine "{engine}" than with "local" ({", ".join(differ[:3])}); '
            "a hook must depend on its arguments only",
        )


def _files(scene: Scene, engine: str, folder: Path) -> dict[str, bytes]:
    workers = 1 if engine == "local" else 2
    config: Any = dataclasses.replace(scene.recipe.engine, name=engine, workers=workers)  # type: ignore[arg-type]
    run(dataclasses.replace(scene.recipe, engine=config), folder, objects=Objects(scene.method))
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in _VOLATILE)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


CHECKS: dict[str, Callable[[Scene], None]] = {
    "configuration": check_configuration,
    "storage": check_storage,
    "inputs": check_inputs,
    "repeatable": check_repeatable,
    "order": check_order,
    "one sample": check_one_sample,
    "empty round": check_empty_round,
    "late joiner": check_late_joiner,
    "forgetting": check_forgetting,
}
