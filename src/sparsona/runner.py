"""From a recipe to a finished run: build, loop, record, checkpoint; and go on after any interruption."""

from __future__ import annotations

import importlib.util
import json
import platform
import shlex
import shutil
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import sparsona
from sparsona.config import Recipe, RecipeError, check, tables
from sparsona.core.arithmetic import arithmetic
from sparsona.core.rng import Rng
from sparsona.core.samples import LocalData, Samples
from sparsona.core.task import Task
from sparsona.core.topology import cohort
from sparsona.core.wire import Message, Values
from sparsona.data import Fleet, build
from sparsona.engines.device import Device, Job, Raw, Result, Score, Wants
from sparsona.engines.local import Local
from sparsona.engines.pool import Pool
from sparsona.engines.rounds import Ballots, Engine, Round, TooFew, peers, star
from sparsona.engines.store import Checkpoint, Store, here
from sparsona.engines.values import dumps, loads, split, types_of, without
from sparsona.evaluate import metrics
from sparsona.method import Finishing, Inbox, Learning, PeerMethod, Server, SharedModel, StarMethod
from sparsona.models import build as build_model
from sparsona.models import example
from sparsona.results import Journal, Run, RunError, summarise, write

if TYPE_CHECKING:
    from sparsona.engines.ray import Cluster


@dataclass(frozen=True)
class Progress:
    """Told to a listener after every round."""

    round: int
    rounds: int
    row: dict[str, Any]  # the round's row in rounds.jsonl
    seconds: float


Listener = Callable[[Progress], None]


def prepare(recipe: Recipe, data_dir: Path | None = None) -> tuple[Device, Fleet]:
    """The device side of a recipe: data, model and method, the same in every process."""
    fleet = build(recipe.data, recipe.seed, data_dir)
    data = fleet.dataset
    device = _device(recipe, data.classes, data.shape, data.vocabulary or None, fleet.local, fleet.test)
    return device, fleet


def newcomers(recipe: Recipe) -> list[int]:
    """The clients that never take part."""
    count = round(recipe.fleet.hold_out * recipe.data.clients)
    return sorted(Rng(recipe.seed, "newcomers").permutation(recipe.data.clients)[:count].tolist())


def verify(recipe: Recipe, device: Device, clients: int) -> None:
    """Raise RecipeError if the method does not fit this model, this number of clients or what is to be evaluated."""
    if "shared" in recipe.evaluate.points and not isinstance(recipe.method, SharedModel):
        name = tables(recipe)["method"]["name"]
        raise RecipeError(f'evaluate.points: "shared" needs a method whose server holds one model; {name} has none')
    if "finished" in recipe.evaluate.points and not isinstance(recipe.method, Finishing):
        name = tables(recipe)["method"]["name"]
        raise RecipeError(f'evaluate.points: "finished" needs a method that tunes models at the end; {name} does not')
    try:
        if isinstance(recipe.method, StarMethod):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the run says them when it starts
                recipe.method.start(clients, device.ctx(0, "start"))
        elif isinstance(recipe.method, PeerMethod):
            recipe.method.check(clients, device.ctx(0, "start"))
    except ValueError as error:
        raise RecipeError(f"method.{error}") from error


def worker_device(recipe: dict[str, Any], data_dir: str | None) -> Device:
    """What a worker process builds, from plain values."""
    return prepare(check(recipe), None if data_dir is None else Path(data_dir))[0]


@overload
def run(
    recipe: Recipe, out: None = None, *, data_dir: Path | None = None, listen: Listener | None = None
) -> dict[str, Any]: ...
@overload
def run(recipe: Recipe, out: str | Path, *, data_dir: Path | None = None, listen: Listener | None = None) -> Run: ...
def run(
    recipe: Recipe, out: str | Path | None = None, *, data_dir: Path | None = None, listen: Listener | None = None
) -> Run | dict[str, Any]:
    """Run a recipe into the folder ``out`` and give the finished run; without a folder, give its summary alone."""
    with _engine(recipe, data_dir) as (engine, device, fleet):
        verify(recipe, device, fleet.clients)
        if out is None:
            return _Loop(recipe, engine, device, fleet.clients, None, listen).go()
        folder = Run.create(Path(out), recipe, about(recipe, device, fleet))
        _Loop(recipe, engine, device, fleet.clients, folder, listen, fleet.label_counts).go()
        return Run.open(Path(out))


def resume(out: str | Path, *, data_dir: Path | None = None, listen: Listener | None = None) -> Run:
    """Go on with an interrupted run from its last checkpoint; a finished one is left as it is."""
    folder = Run.open(Path(out))
    if folder.finished:
        _forget_state(folder.path)  # it may have been killed just before
        return folder
    if "fleet_run" in json.loads((folder.path / "run.json").read_text()):
        again = f"sparsona fleet run SERVER {shlex.quote(str(out))}"
        raise RunError(f"{out} is the run of a fleet, whose devices keep their values; go on with: {again}")
    with _engine(folder.recipe, data_dir) as (engine, device, fleet):
        _warn_of_changes(folder, about(folder.recipe, device, fleet))
        _Loop(folder.recipe, engine, device, fleet.clients, folder, listen, fleet.label_counts).go()
    return Run.open(Path(out))


def drive(
    recipe: Recipe, engine: Engine, device: Device, out: Path, about: dict[str, Any], listen: Listener | None = None
) -> Run:
    """Run a recipe on a fleet whose clients keep their own values, or go on with a run that was interrupted."""
    with arithmetic():
        if (out / "recipe.toml").is_file():
            folder = Run.open(out)
            if folder.finished:
                return folder
        else:
            verify(recipe, device, recipe.data.clients)
            folder = Run.create(out, recipe, about)
        _Loop(folder.recipe, engine, device, recipe.data.clients, folder, listen, away=True).go()
        return Run.open(out)


def bare_device(recipe: Recipe, classes: int, shape: tuple[int, ...], vocabulary: int | None) -> Device:
    """A device without data, for a server: the model that all begin with, and the method."""
    return _device(recipe, classes, shape, vocabulary, _no_data, _no_data)


def _device(
    recipe: Recipe,
    classes: int,
    shape: tuple[int, ...],
    vocabulary: int | None,
    local: Callable[[int], LocalData],
    test: Callable[[int], Samples],
) -> Device:
    with Rng(recipe.seed, "init").everywhere():
        model = build_model(recipe.model.name, classes, shape, vocabulary, recipe.model.width)
    task, theta0 = Task.of(model, example(model, shape))
    rounds, batch, epochs = recipe.rounds, recipe.evaluate.batch, recipe.fleet.adapt_epochs
    return Device(recipe.method, task, theta0, local, test, recipe.seed, rounds, batch, epochs)


def _no_data(k: int) -> Any:
    raise AssertionError(f"the server has no data of client {k}")


def _forget_state(path: Path) -> None:
    for name in ("state.sqlite", "state.sqlite-wal", "state.sqlite-shm"):
        (path / name).unlink(missing_ok=True)
    shutil.rmtree(path / "state.mail", ignore_errors=True)


def _warn_of_changes(folder: Run, now: dict[str, Any]) -> None:
    """Say what is not as it was when the run began, for then its end cannot be promised to the bit."""
    then = json.loads((folder.path / "run.json").read_text())
    changed = [f"{key} was {then.get(key)}, is {value}" for key, value in now.items() if then.get(key) != value]
    if changed:
        warnings.warn(f"{folder.path} began differently: {'; '.join(changed)}", stacklevel=3)


def about(recipe: Recipe, device: Device, fleet: Fleet) -> dict[str, Any]:
    """What a reader needs to repeat or judge a run, besides the recipe."""
    return {
        "sparsona": sparsona.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "seed": recipe.seed,
        "clients": fleet.clients,
        "parameters": device.task.layout.params,
        "forward_flops": device.task.layout.flops(),
        "not_in_flops": device.task.layout.uncounted,
        "train_samples": int(fleet.train_sizes.sum()),
        "data_checksum": zlib.crc32(fleet.dataset.y.numpy().tobytes()),
    }


@contextmanager
def _engine(recipe: Recipe, data_dir: Path | None) -> Iterator[tuple[Engine, Device, Fleet]]:
    """The engine a recipe asks for, stopped at the end."""
    engine: Engine | None = None
    with arithmetic():
        try:
            if recipe.engine.name in ("pool", "ray"):
                how = recipe.engine
                arguments = {"recipe": tables(recipe), "data_dir": None if data_dir is None else str(data_dir)}
                pool: Pool | Cluster
                if how.name == "pool":
                    pool = Pool(how.workers, "sparsona.runner:worker_device", arguments)
                else:
                    pool = _cluster(how.workers, "sparsona.runner:worker_device", arguments, how.address)
                engine = pool
                device, fleet = prepare(recipe, data_dir)  # while the workers start
                pool.ready()
            else:
                device, fleet = prepare(recipe, data_dir)
                engine = Local(device)
            yield engine, device, fleet
        finally:
            if engine is not None:
                engine.close()


def _cluster(workers: int, build: str, arguments: dict[str, Any], address: str) -> Cluster:
    if importlib.util.find_spec("ray") is None:
        raise RecipeError("engine.name = \"ray\": Ray is not installed: pip install 'sparsona[ray]'")
    from sparsona.engines.ray import Cluster  # slow to import, and optional

    return Cluster(workers, build, arguments, address)


@dataclass
class _Loop:
    """The state of a run between two rounds, and the steps from one to the next."""

    recipe: Recipe
    engine: Engine
    device: Device
    clients: int
    folder: Run | None
    listen: Listener | None
    labels: Callable[[], NDArray[Any]] | None = None  # how often each client has each; nobody knows on a real fleet
    rows: list[dict[str, Any]] = field(default_factory=list)
    latest: dict[int, Score] = field(default_factory=dict)  # each client's score after its last local training
    ballots: Ballots = field(default_factory=dict)  # what everybody told everybody
    journals: dict[str, Journal] = field(default_factory=dict)
    apart: dict[str, Tensor] = field(default_factory=dict)  # parts of the server's value as they were last written
    away: bool = False  # clients' values are on devices of their own: what the store has of them are versions
    untested: dict[int, str] = field(default_factory=dict)  # in this round: who gave no score, and why
    best: tuple[int, float, Tensor] | None = None  # round, validation accuracy and shared model, if it is finished

    @cached_property
    def members(self) -> list[int]:
        """The clients that are no newcomers."""
        return sorted(set(range(self.clients)) - set(newcomers(self.recipe)))

    def go(self) -> dict[str, Any]:
        """Run to the end and give the summary."""
        path = None if self.folder is None else self.folder.path / "state.sqlite"
        store = Store(path)
        try:
            server, done = self._restore(store)
            for t in range(done, self.recipe.rounds):
                server = self._round(store, server, t)
            return self._finish(store, server)
        except BaseException:
            store.rescue()  # whatever stopped us, keep the rounds that are whole
            raise
        finally:
            store.close()
            for journal in self.journals.values():
                journal.close()

    def _restore(self, store: Store) -> tuple[Server, int]:
        """Go back to the last checkpoint, or to the start."""
        checkpoint = store.checkpoint()
        if self.folder is not None:
            rounds = self.folder.path / "rounds.jsonl"
            known = rounds.read_bytes().count(b"\n") if rounds.exists() else 0
            if checkpoint is None and known > self.recipe.engine.checkpoint_every:
                raise RunError(f"{self.folder.path} has rounds but no state: state.sqlite is missing, it cannot go on")
            sizes = {} if checkpoint is None else checkpoint.progress["sizes"]
            for name in ("rounds", "clients"):
                self.journals[name] = Journal(self.folder.path / f"{name}.jsonl", sizes.get(name, 0))
            self.journals["timing"] = Journal(self.folder.path / "timing.jsonl")  # what was spent stays spent
        method = self.device.method
        if checkpoint is None:
            ctx = self.device.ctx(0, "start")
            return (method.start(self.clients, ctx) if isinstance(method, StarMethod) else None), 0
        if self.folder is not None:
            self.rows = list(self.folder.rows("rounds"))
        self.latest = {int(k): Score(*s) for k, s in checkpoint.progress["latest"].items()}
        ballots = checkpoint.progress["ballots"]
        self.ballots = {int(t): {int(k): bool(v) for k, v in votes.items()} for t, votes in ballots.items()}
        server = loads(checkpoint.server, types_of(method), lambda name: loads(store.part(name), {}))
        self.apart = split(server)[1]
        if (kept := checkpoint.progress.get("best")) is not None:
            self.best = kept[0], kept[1], loads(store.part("best"), {})
        return server, checkpoint.rounds_done

    def _round(self, store: Store, server: Server, t: int) -> Server:
        """One round: train, merge, evaluate, record, checkpoint."""
        began = time.perf_counter()
        recipe = self.recipe
        store.begin_round()
        self.untested = {}
        server, done = self._trained(store, server, t)
        for k in sorted(done.reset):
            server = self._begin_anew(store, server, t, k)
        self.latest |= done.scores
        scores = self._evaluate(store, server, t) if self._due(t) else {}
        scores["after"] = done.scores
        if "finished" in recipe.evaluate.points:
            scores["validation"] = self._validate(store, server, t)
            if t + 1 == recipe.rounds:
                scores["unfinished"] = self._scores(self._unfinished())
                scores["finished"] = self._scores(self._finishes())
        row = self._record(done, scores)
        kept, apart = split(server)
        for name, tensor in apart.items():
            if self.apart.get(name) is not tensor:
                store.put_part(name, dumps(tensor))
        self.apart = apart
        store.end_round(Checkpoint(t + 1, kept, self._progress()))
        if (t + 1) % recipe.engine.checkpoint_every == 0 or t + 1 == recipe.rounds:
            store.commit()
        seconds = time.perf_counter() - began
        if "timing" in self.journals:
            self.journals["timing"].add({"round": t + 1, "seconds": seconds, "device_seconds": done.seconds})
        if self.listen is not None:
            self.listen(Progress(t + 1, recipe.rounds, row, seconds))
        return server

    def _trained(self, store: Store, server: Server, t: int) -> tuple[Server, Round]:
        """Train and merge; where too few answer because some lost what they kept, once more with these as new ones."""
        anew: dict[int, str] = {}
        while True:
            try:
                begun = server
                for k in sorted(anew):
                    begun = self._begin_anew(store, begun, t - 1, k)
                merged, done = self._exchanged(store, begun, t)
            except TooFew as error:
                if error.reset.keys() <= anew.keys():
                    raise
                anew |= error.reset
                store.back()
            else:
                return merged, replace(done, anew=anew)

    def _exchanged(self, store: Store, server: Server, t: int) -> tuple[Server, Round]:
        """Send, train and merge, in the way of the method."""
        recipe = self.recipe
        everyone, key = self.clients, Rng(recipe.seed, "cohort", t)
        wants: Wants = ("score",) if "after" in recipe.evaluate.points else ()
        ballots = self.ballots
        if isinstance(self.device.method, StarMethod):
            places = cohort(len(self.members), recipe.fleet.per_round or len(self.members), key)
            chosen = [self.members[place] for place in places]
            ctx = self.device.ctx(t, "merge", t)
            server, done = star(self.device.method, self.engine, store, server, t, chosen, ctx, wants)
        else:
            plan = recipe.topology.plan(everyone, t, recipe.rounds, Rng(recipe.seed, "topology"))
            if t == 0:
                self._post(store)
            ballots, done = peers(self.engine, store, t, plan, self.ballots, everyone, wants)
            done.clock = plan.clock(recipe.topology.times(everyone, Rng(recipe.seed, "topology")))
        if self.away:
            done.enough(min(recipe.fleet.min_answers, len(done.costs)))
        self.ballots = ballots
        return server, done

    def _validate(self, store: Store, server: Server, t: int) -> dict[int, Score]:
        """Every client's validation samples with the shared model, which is kept if none was better."""
        assert isinstance(self.device.method, Finishing)
        theta = self.device.method.shared(server)
        message = Message(theta=Values(theta))
        jobs = (Job("validate", t, k, None, {"server": message}) for k in self.members)
        scores = self._scores(jobs)
        accuracy = metrics(scores).get("accuracy", 0.0)
        if self.best is None or accuracy > self.best[1] or not any(s.samples for s in scores.values()):
            self.best = t, accuracy, theta
            store.put_part("best", dumps(theta))
        return scores

    def _unfinished(self) -> Iterator[Job]:
        """Tests of the model that is tuned, as it is: that of the last round may be another."""
        assert self.best is not None
        t, _, theta = self.best
        message = Message(theta=Values(theta))
        return (Job("shared", t, k, None, {"server": message}) for k in self.members)

    def _finishes(self, model: bool = False) -> Iterator[Job]:
        assert self.best is not None
        t, _, theta = self.best
        message = Message(theta=Values(theta))
        wants: Wants = ("model",) if model else ()
        for k in self.members:
            yield Job("finish", t, k, None, {"server": message}, wants)

    def _post(self, store: Store, t: int = -1, who: Iterable[int] | None = None) -> None:
        """Let everybody join a fleet without a server and say what it begins with."""
        everyone = range(self.clients) if who is None else who
        for result in self.engine.map(Job("post", 0, k, None, {}, ("bytes",)) for k in everyone):
            assert result.sent is not None
            if result.client is not None:
                store.put(result.k, result.client)
            store.put_mail(result.k, t, result.sent.data, result.sent.value_nbytes)

    def _begin_anew(self, store: Store, server: Server, t: int, k: int) -> Server:
        """A device lost what it kept: it is a new client from here on, on both sides, so that no states are mixed."""
        store.drop(k)
        method = self.device.method
        if not isinstance(method, StarMethod):
            self._post(store, t, [k])
            return server
        return without(server, method.start(self.clients, self.device.ctx(0, "start")), k)

    def _due(self, t: int) -> bool:
        return (t + 1) % self.recipe.evaluate.every == 0 or t + 1 == self.recipe.rounds

    def _evaluate(self, store: Store, server: Server, t: int) -> dict[str, dict[int, Score]]:
        """Every client's personal model, and the shared one if wanted, on its own test samples."""
        jobs: dict[str, Iterator[Job]] = {}
        if "before" in self.recipe.evaluate.points:
            jobs["before"] = self._tests(store, server, t)
        if "shared" in self.recipe.evaluate.points and isinstance(self.device.method, SharedModel):
            model: Inbox = {"server": Message(theta=Values(self.device.method.shared(server)))}
            jobs["shared"] = (Job("shared", t, k, None, model) for k in self.members)
        return {point: self._scores(todo) for point, todo in jobs.items()}

    def _scores(self, jobs: Iterable[Job]) -> dict[int, Score]:
        """The scores of tests; on a real fleet some may be missing, and are named with the round."""
        scores = {}
        for result in self.engine.map(jobs):
            if result.absent is not None:
                self.untested[result.k] = result.absent.why
            elif result.score is not None:
                scores[result.k] = result.score
        return scores

    def _tests(self, store: Store, server: Server, t: int, model: bool = False) -> Iterator[Job]:
        ctx = self.device.ctx(t, "tests", t)
        for k in self.members:
            wants: Wants = ("model",) if model else ()
            inbox: dict[str | int, Raw]
            if isinstance(self.device.method, StarMethod):
                inbox = {"server": self.device.method.down(server, k, ctx)}
            else:
                inbox = {"self": store.mail(k, t + 1)[0]}
            yield Job("evaluate", t, k, store.client(k), inbox, wants)

    def _record(self, done: Round, scores: dict[str, dict[int, Score]]) -> dict[str, Any]:
        """Append the round to the records."""
        spent = {name: sum(getattr(c, name) for c in done.costs.values()) for name in _COSTS}
        before = self.rows[-1]["total"] if self.rows else dict.fromkeys(_COSTS, 0)
        row: dict[str, Any] = {
            "round": done.t + 1,
            "participants": sorted(done.costs),
            "left_out": sorted(done.left_out),
            **spent,
            "total": {name: before.get(name, 0) + spent[name] for name in _COSTS},
        }
        if done.left_out:
            row["why_left_out"] = {str(k): why for k, why in sorted(done.left_out.items())}
        if done.anew:
            row["began_anew"] = {str(k): why for k, why in sorted(done.anew.items())}
        if self.untested:
            row["not_tested"] = {str(k): why for k, why in sorted(self.untested.items())}
        if done.notes:
            row["notes"] = _means(done.notes)
        if done.clock:
            row["clock"] = _clock(done.clock)
        for point in ("before", "shared", "validation", "unfinished", "finished"):
            if scores.get(point):
                row[point] = metrics(scores[point])
        if self.latest and self._due(done.t):
            row["after"] = metrics(self.latest)
        self.rows.append(row)
        if self.folder is not None:
            self.journals["rounds"].add(row)
            self.journals["clients"].add(*_client_rows(done, scores))
        return row

    def _progress(self) -> dict[str, Any]:
        """What a checkpoint holds besides the clients and the server."""
        return {
            "sizes": {name: journal.size for name, journal in self.journals.items() if name != "timing"},
            "latest": {str(k): [s.correct, s.samples, s.loss] for k, s in sorted(self.latest.items())},
            "best": None if self.best is None else self.best[:2],
            "ballots": self.ballots,
        }

    def _finish(self, store: Store, server: Server) -> dict[str, Any]:
        """Write what a finished run leaves; the summary comes last, so that a run without it is not finished."""
        summary = summarise(self.recipe, self.rows)
        adapted = self._adapt(server)
        if adapted:
            summary["newcomers"] = metrics({k: result.score for k, result in adapted.items() if result.score})
        if self.folder is None:
            return summary
        path = self.folder.path
        state = path / "state"
        state.mkdir(exist_ok=True)
        write(state / "server.safetensors", dumps(server))
        if self.best is not None:
            write(state / "best.safetensors", dumps((self.best[0], self.best[2])))
        if self.away:
            versions = {str(k): here(store.client(k) or b"").decode() for k in store.clients()}
            write(state / "versions.json", json.dumps(versions, indent=1) + "\n")
        for k in () if self.away else store.clients():
            write(state / f"client-{k:05d}.safetensors", here(store.client(k) or b""))
        for k, result in adapted.items():
            if result.client is not None:
                write(state / f"client-{k:05d}.safetensors", here(result.client))
        if not isinstance(self.device.method, StarMethod):
            for k in range(self.clients):  # among peers, weights lie in what each told last
                write(state / f"client-{k:05d}.message", here(store.mail(k, self.recipe.rounds)[0]))
        if self.recipe.results.models:
            self._models(store, server, path / "models")
        if self.recipe.results.figures:
            from sparsona.report import run_figures  # drawing is slow to import, and workers never draw

            run_figures(self.folder)
            self._liken(store, path / "figures")
        write(path / "summary.json", json.dumps(summary, indent=1) + "\n")
        store.close()
        _forget_state(path)
        return summary

    def _liken(self, store: Store, folder: Path) -> None:
        """Draw who has learnt alike."""
        method = self.device.method
        if isinstance(method, Learning) and self.labels is not None:
            from sparsona.gates import draw_tree

            known = {k: loads(here(raw), types_of(method)) for k in self.members if (raw := store.client(k))}
            learnt = {k: method.learnt(client, k, self.device.ctx(0, "join", k)) for k, client in known.items()}
            folder.mkdir(exist_ok=True)
            draw_tree(learnt, self.labels(), folder / "gates.png")

    def _adapt(self, server: Server) -> dict[int, Result]:
        """Let those who were held out join now."""
        method, t = self.device.method, self.recipe.rounds - 1
        if not isinstance(method, StarMethod):
            return {}
        ctx = self.device.ctx(t, "tests", t)
        jobs = (Job("adapt", t, k, None, {"server": method.down(server, k, ctx)}) for k in newcomers(self.recipe))
        return {result.k: result for result in self.engine.map(jobs)}

    def _models(self, store: Store, server: Server, path: Path) -> None:
        finished = "finished" in self.recipe.evaluate.points
        jobs = self._finishes(True) if finished else self._tests(store, server, self.recipe.rounds - 1, model=True)
        for result in self.engine.map(jobs):
            if result.message is not None:  # on a fleet models stay on the devices
                path.mkdir(exist_ok=True)
                write(path / f"client-{result.k:05d}.safetensors", self.device.exported(result.message))


def _means(notes: dict[int, dict[str, float]]) -> dict[str, float]:
    """By name the mean over those clients who tell it, in the order of who tells most."""
    fullest = max(notes.values(), key=len)  # the first of them, where all tell the same
    told = {name: [notes[k][name] for k in sorted(notes) if name in notes[k]] for name in fullest}
    return {name: sum(each) / len(each) for name, each in told.items()}


def _clock(clock: dict[int, tuple[float, float]]) -> dict[str, float]:
    """A round in simulated time: how long it takes, who could start at once, how long one waits on average."""
    starts = [start for start, _ in clock.values()]
    return {
        "length": max(finish for _, finish in clock.values()),
        "parallelism": sum(start == 0 for start in starts) / len(starts),
        "waiting": sum(starts) / len(starts),
    }


_COSTS = ("down", "up", "paper_down", "paper_up", "flops", "forward")


def _client_rows(done: Round, scores: dict[str, dict[int, Score]]) -> Iterator[dict[str, Any]]:
    for k in sorted(done.costs.keys() | {k for of_point in scores.values() for k in of_point}):
        row: dict[str, Any] = {"round": done.t + 1, "client": k}
        if k in done.costs:
            row |= asdict(done.costs[k])
        if k in done.notes:
            row["notes"] = done.notes[k]
        if k in done.clock:
            row["start"], row["finish"] = done.clock[k]
        yield row | {point: asdict(of_point[k]) for point, of_point in scores.items() if k in of_point}
