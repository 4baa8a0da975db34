"""Clients that are read when they are needed: what a run takes does not grow with how many are registered."""

import json
import time
import tracemalloc
from pathlib import Path

import own
import pytest

import sparsona
from small import recipe
from sparsona.engines.store import Checkpoint, Store
from sparsona.experiment.loop import Progress
from sparsona.experiment.recipe import Recipe, check, tables
from sparsona.experiment.runner import resume
from sparsona.experiment.runner import run as run_recipe

ROUNDS, COHORT = 8, 5


def asked(engine: str = "local", **args: int) -> Recipe:
    """A model for each client, tests of a few, and scores after training, which a checkpoint holds for all."""
    raw = tables(recipe("ditto", rounds=ROUNDS, engine=engine, fleet={"per_round": COHORT}))
    raw["data"] = {"source": "own:federation"} | ({"args": args} if args else {})
    raw["evaluate"] |= {"every": 2, "clients": COHORT}
    return check(raw)


def test_20_000_registered_clients_take_what_few_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []  # bytes of what each round writes for all clients together
    end = Store.end_round

    def noted(self: Store, checkpoint: Checkpoint) -> None:
        written.append(len(json.dumps(checkpoint.progress)))
        end(self, checkpoint)

    monkeypatch.setattr(Store, "end_round", noted)
    federation = own.Counting(20_000)
    began, ready = time.perf_counter(), list[float]()

    def listen(step: Progress) -> None:
        ready.append(time.perf_counter() - began)

    tracemalloc.start()
    done = sparsona.run(asked(), tmp_path / "run", data=federation, on_round=listen)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    drawn = {k for row in done.rounds for k in row["participants"]}
    tested = {row["client"] for row in done.clients if "before" in row}
    assert len(drawn) > COHORT * ROUNDS / 2
    assert len(tested) == COHORT
    assert set(federation.read) <= drawn | tested | {0}
    assert max(written) - min(written) < 40  # what it writes in all does not grow with those who took part
    assert ready[0] < 15
    assert peak < 50 << 20
    assert {file.name for file in (tmp_path / "run" / "state").glob("client-*")} == {
        f"client-{k:05d}.safetensors" for k in drawn
    }


class Interrupted(Exception):
    """Raised to stop a run."""


@pytest.mark.slow
def test_100_000_registered_clients_resumed_on_workers_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engines.test_engines import files

    monkeypatch.chdir(Path(own.__file__).parent)  # where worker processes look for own.py
    run_recipe(asked(clients=100_000), tmp_path / "whole")

    def stop(step: Progress) -> None:
        if step.round == ROUNDS // 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        run_recipe(asked("pool", clients=100_000), tmp_path / "run", on_round=stop)
    began = time.perf_counter()
    resume(tmp_path / "run")
    assert time.perf_counter() - began < 60
    assert files(tmp_path / "run") == files(tmp_path / "whole")
