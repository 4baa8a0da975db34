"""Who takes part in a round, and who is tested: draws by independent computation, empty rounds, traces, resuming."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from small import recipe
from sparsona.core.rng import Rng
from sparsona.engines.local import LocalEngine
from sparsona.engines.rounds import star
from sparsona.engines.store import Store
from sparsona.engines.values import dumps
from sparsona.experiment.checking import RecipeError
from sparsona.experiment.results import Run
from sparsona.experiment.runner import resume, run
from sparsona.experiment.sampling import Sampling, sampling_of
from sparsona.experiment.setup import newcomers, prepare
from sparsona.method import capabilities
from sparsona.methods import METHODS

SIZES = [10, 20, 30, 40]
STARS = sorted(name for name, kind in METHODS.items() if capabilities(kind()).star is not None)


def four(**fleet: Any) -> Any:
    return recipe(data={"clients": 4}, fleet=fleet)


def chi_square(observed: Counter[Any], expected: dict[Any, float], draws: int) -> float:
    assert observed.keys() <= expected.keys()
    return sum((observed[key] - draws * p) ** 2 / (draws * p) for key, p in expected.items())


def last(t: int, clients: list[int], per_round: int, rng: np.random.Generator) -> list[int]:
    """The clients with the highest numbers, in no order, and in every third round nobody."""
    assert 0 <= rng.random() < 1
    return list(reversed(clients))[:per_round] if t % 3 else []


def nobody(t: int, clients: list[int], per_round: int, rng: np.random.Generator) -> list[int]:
    return []


def fails(t: int, clients: list[int], per_round: int, rng: np.random.Generator) -> list[int]:
    raise TypeError("no list of clients\ntoday")


def fails_later(t: int, clients: list[int], per_round: int, rng: np.random.Generator) -> Any:
    yield clients[0]
    raise TypeError("no list of clients\ntoday")


def bad(t: int, clients: list[int], per_round: int, rng: np.random.Generator) -> Any:
    return [[0, 0], [0, 99], [0, 1.5], None][t]


def test_uniform_draws_are_those_of_before() -> None:
    r = recipe(fleet={"per_round": 2, "hold_out": 0.34})
    members = [k for k in range(6) if k not in newcomers(r)]
    for t in range(5):
        numbers = np.random.Generator(np.random.PCG64(Rng(7, "cohort", t).seed)).choice(4, size=2, replace=False)
        assert Sampling(r, members).chosen(t) == sorted(members[n] for n in numbers)


def test_by_samples_the_larger_are_drawn_more_often() -> None:
    """One after the other with probability proportional to samples: pairs, and single clients."""
    p = [n / 100 for n in SIZES]
    pairs = {
        (i, j): p[i] * p[j] / (1 - p[i]) + p[j] * p[i] / (1 - p[j]) for i, j in itertools.combinations(range(4), 2)
    }
    assert sum(pairs.values()) == pytest.approx(1)
    for per_round, expected, bound in ((1, {(k,): p[k] for k in range(4)}, 16.3), (2, pairs, 20.5)):  # 0.1 % beyond
        sampling = sampling_of(four(sampler="samples", per_round=per_round), range(4), lambda: SIZES)
        drawn = Counter(tuple(sampling.chosen(t)) for t in range(2000))
        assert chi_square(drawn, expected, 2000) < bound


def test_poisson_draws_each_client_by_itself() -> None:
    sampling = sampling_of(four(sampler="poisson", per_round=1), range(4), None)
    drawn = [tuple(sampling.chosen(t)) for t in range(2000)]
    expected = {n: math.comb(4, n) * 0.25**n * 0.75 ** (4 - n) for n in range(5)}
    assert chi_square(Counter(map(len, drawn)), expected, 2000) < 18.5
    single = Counter(k for each in drawn for k in each)
    assert all(abs(single[k] - 500) < 3.3 * math.sqrt(2000 * 0.25 * 0.75) for k in range(4))


def test_a_trace_says_who_is_there(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("client,from,to\n2,1,2\n0, 2 ,4\n3,2,2\n2,5,5\n")
    sampling = sampling_of(four(sampler="trace", trace=str(file), per_round=None), range(4), None)
    assert [sampling.chosen(t) for t in range(6)] == [[2], [0, 2, 3], [0], [0], [2], []]
    two = sampling_of(four(sampler="trace", trace=str(file), per_round=2), range(4), None)
    assert len(two.chosen(1)) == 2
    assert set(two.chosen(1)) < {0, 2, 3}
    assert two.chosen(0) == [2]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("client,from\n", "{file}, line 1: column 'to' is missing; expected client,from,to"),
        ("client,from,to\n0,1,2\n4,1,2\n", '{file}, line 3: client is "4"; expected a client from 0 to 3'),
        ("client,from,to\n0,3,2\n", "{file}, line 2: from is 3 and to is 2; expected 1 <= from <= to"),
        ("client,from,to\n0,0,2\n", "{file}, line 2: from is 0 and to is 2; expected 1 <= from <= to"),
        ("client,from,to\n0,x,2\n", '{file}, line 2: from is "x"; expected an int'),
        ("client,from,to\n0,1\n", '{file}, line 2: to is ""; expected an int'),
        (None, 'fleet.trace: "{file}" cannot be read: No such file or directory'),
    ],
)
def test_a_bad_trace_is_refused_before_anything_is_written(text: str | None, why: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    if text is not None:
        file.write_text(text)
    r = four(sampler="trace", trace=str(file), per_round=None)
    with pytest.raises(RecipeError) as caught:
        run(r, tmp_path / "run")
    assert str(caught.value).startswith("fleet.trace")
    assert why.format(file=file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "Errno" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fleet", "why"),
    [
        ({"sampler": "poison"}, 'fleet.sampler: "poison" not found; did you mean "poisson"'),
        ({"sampler": "poisson", "per_round": None}, 'fleet.sampler: "poisson" needs fleet.per_round'),
        ({"sampler": "samples", "per_round": None}, 'fleet.sampler: "samples" needs fleet.per_round'),
        (
            {"sampler": "trace"},
            'fleet.trace: "" is not allowed with fleet.sampler = "trace"; expected the path of a CSV file',
        ),
        ({"trace": "x.csv"}, 'fleet.trace: "x.csv" is not allowed with fleet.sampler = "uniform"'),
    ],
)
def test_samplers_that_cannot_be_are_refused(fleet: dict[str, Any], why: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe(fleet=fleet)
    assert str(caught.value).startswith(why)


def test_peers_need_to_be_drawn_and_some_cannot() -> None:
    with pytest.raises(
        RecipeError,
        match=r'fleet\.sampler: "poisson" is not allowed with fleet\.peers = "all", '
        r"where every client trains in every round",
    ):
        recipe("dispfl", fleet={"sampler": "poisson"})
    with pytest.raises(RecipeError, match=r'fleet\.peers: "drawn" is not allowed; expected "all", as BEER'):
        recipe("beer", fleet={"peers": "drawn"})
    unknown = r'^fleet\.sampler: "samples" is not allowed; the sizes of these clients are unknown'
    with pytest.raises(RecipeError, match=unknown):
        sampling_of(four(sampler="samples", per_round=1), range(4), None)
    with pytest.raises(RecipeError, match=r'^fleet.sampler: module "no_such_module" cannot be imported'):
        run(recipe(fleet={"sampler": "no_such_module:draw"}))
    with pytest.raises(RecipeError, match=r"^evaluate.clients: 7 is not allowed; expected an int <= data.clients = 6"):
        recipe(evaluate={"clients": 7})


def test_a_sampler_of_one_s_own(tmp_path: Path) -> None:
    r = recipe(fleet={"sampler": f"{__name__}:last"}, rounds=4)
    done = run(r, tmp_path / "run")
    assert [row["participants"] for row in done.rounds] == [[], [3, 4, 5], [3, 4, 5], []]
    assert done.rounds[0]["before"] == run(dataclasses.replace(r, rounds=1)).rounds[0]["before"]
    assert done.rounds[3]["before"] == done.rounds[2]["before"]  # the model is as it was
    assert done.rounds[3]["total"] == done.rounds[2]["total"]
    wrong = sampling_of(recipe(fleet={"sampler": f"{__name__}:bad"}), range(6), None)
    whys = (
        r"returned \[0, 0\]; expected each client at most " r"once",
        "returned client 99; expected some",
        "expected a list of client numbers: ",
        "expected a list of client",
    )
    for t, why in enumerate(whys):
        with pytest.raises(RecipeError, match=rf"^fleet.sampler: .*bad\" in round {t + 1}:? {why}"):
            wrong.chosen(t)


@pytest.mark.parametrize("name", ["fails", "fails_later"])
def test_a_sampler_that_fails_is_named_in_one_line(name: str) -> None:
    failing = sampling_of(recipe(fleet={"sampler": f"{__name__}:{name}"}), range(6), None)
    with pytest.raises(RecipeError) as error:
        failing.chosen(1)
    why = f'fleet.sampler: "{__name__}:{name}" in round 2 failed: TypeError: no list of clients today'
    assert str(error.value) == why


@pytest.mark.parametrize("name", STARS)
def test_a_round_without_clients_changes_no_server(name: str) -> None:
    device, fleet = prepare(recipe(name, data={"sample_share": 0.1}))
    hooks = capabilities(device.method).star
    assert hooks is not None
    server = hooks.start(fleet.clients, device.ctx(0, "start"))
    for t, chosen in enumerate(([], [0, 3], [])):
        before = dumps(server)
        server, outcome = star(hooks, LocalEngine(device), Store(), server, t, chosen, device.ctx(t, "merge", t), ())
        assert chosen or dumps(server) == before
        assert sorted(outcome.costs) == chosen


class Stop(Exception):
    pass


def bits(path: Path) -> dict[str, bytes]:
    files = (p for p in path.rglob("*") if p.is_file() and p.name != "timing.jsonl")
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in files}


@pytest.mark.parametrize(
    ("name", "fleet", "clients"),
    [
        ("ditto", {"sampler": "poisson", "per_round": 1}, "participated"),
        ("fedavg", {"sampler": "samples"}, 2),
        ("dispfl", {"sampler": "poisson", "peers": "drawn", "per_round": 2}, "participated"),
    ],
)
def test_interrupted_runs_draw_and_test_the_same(name: str, fleet: Any, clients: Any, tmp_path: Path) -> None:
    r = recipe(name, rounds=5, fleet=fleet, evaluate={"clients": clients})
    run(r, tmp_path / "whole")

    def stop(progress: Any) -> None:
        if progress.round == 3:
            raise Stop

    with pytest.raises(Stop):
        run(r, tmp_path / "stopped", on_round=stop)
    resume(tmp_path / "stopped")
    assert bits(tmp_path / "stopped") == bits(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedspa", "dadpfl"])
def test_worker_processes_draw_the_same(name: str, tmp_path: Path) -> None:
    for engine in ("local", "pool"):
        fleet = {"sampler": "poisson", "per_round": 2, "peers": "drawn"}
        run(recipe(name, engine=engine, fleet=fleet, evaluate={"clients": 3}), tmp_path / engine)
    a, b = (bits(tmp_path / engine) for engine in ("local", "pool"))
    assert a.pop("recipe.toml") != b.pop("recipe.toml")
    assert a == b


def test_peers_that_are_drawn_are_those_that_a_server_would_draw() -> None:
    star_run, everyone = run(recipe("fedavg")), run(recipe("dispfl"))
    drawn = run(recipe("dispfl", fleet={"peers": "drawn"}))
    assert [row["participants"] for row in drawn.rounds] == [row["participants"] for row in star_run.rounds]
    assert all(row["participants"] == list(range(6)) for row in everyone.rounds)
    for row in drawn.clients:  # who was away trained nothing
        assert ("flops" in row) == (row["client"] in drawn.rounds[row["round"] - 1]["participants"])


def test_who_is_tested() -> None:
    one = run(recipe("ditto", evaluate={"clients": 2}))
    tested = [{row["client"] for row in one.clients if row["round"] == t and "before" in row} for t in (1, 2, 3)]
    assert tested[0] == tested[1] == tested[2]
    assert len(tested[0]) == 2
    assert one.summary["before"]["clients"] == 2
    other = run(recipe("fedavg", evaluate={"clients": 2}))
    assert {row["client"] for row in other.clients if "before" in row} == tested[0]  # whatever the method
    assert {row["client"] for row in other.clients if "after" in row} <= tested[0]
    part = run(recipe("ditto", evaluate={"clients": "participated", "points": ["before", "after", "shared"]}))
    seen: set[int] = set()
    for row in part.rounds:
        seen |= set(row["participants"])
        for point in ("before", "after", "shared"):
            assert row[point]["clients"] == len(seen)
    everyone = run(recipe("ditto", evaluate={"points": ["before", "after", "shared"]}))
    for mine, whole in zip(part.rounds, everyone.rounds, strict=True):
        assert mine["after"] == whole["after"]
        assert mine["total"] == whole["total"]


@pytest.mark.parametrize("engine", ["local", "pool"])
def test_scores_on_validation_samples(engine: str) -> None:
    """The run is the same but for its scores, and those are of the samples that are held for validation."""
    evaluate = {"points": ["before", "after", "shared"]}
    plain = run(recipe("fedavg", evaluate=evaluate, engine=engine))
    held = run(recipe("fedavg", evaluate={**evaluate, "samples": "validation"}, engine=engine))
    device, fleet = prepare(recipe("fedavg"))
    scores = {row["client"]: row["before"]["samples"] for row in held.clients if row["round"] == 3}
    assert scores == {k: len(fleet.local(k).validation) for k in range(fleet.clients)}
    assert [row["total"] for row in held.rounds] == [row["total"] for row in plain.rounds]
    assert [row["participants"] for row in held.rounds] == [row["participants"] for row in plain.rounds]
    for point in ("before", "after", "shared"):
        assert held.rounds[-1][point]["loss"] != plain.rounds[-1][point]["loss"]
    first = dataclasses.replace(device, on_validation=True)
    assert first.tests(2).at(torch.arange(2))[1].equal(fleet.local(2).validation.at(torch.arange(2))[1])


def test_scores_on_validation_samples_need_some() -> None:
    why = 'evaluate.samples: "validation" is not allowed; client 0 has no validation samples; set data.validation_share'
    with pytest.raises(RecipeError, match=f"^{re.escape(why)}$"):
        run(recipe("fedavg", data={"validation_share": 0.0}, evaluate={"samples": "validation"}))


def test_a_run_in_which_nobody_takes_part_yet_tests_nobody(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("client,from,to\n1,2,2\n")
    fleet = {"sampler": "trace", "trace": str(file), "per_round": None}
    done = run(recipe("ditto", rounds=2, fleet=fleet, evaluate={"clients": "participated"}), tmp_path / "run")
    assert "before" not in done.rounds[0]
    assert done.rounds[1]["before"]["clients"] == 1
    assert Run.open(tmp_path / "run").recipe.fleet.trace == str(file.resolve())
    file.unlink()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["accuracy"] is not None


def test_a_run_in_which_nobody_trains_says_so(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("client,from,to\n")
    why = "no client trained in any of the 2 rounds, so nothing was learnt: fleet.sampler chose nobody; check "
    with pytest.warns(UserWarning, match=re.escape(why + str(file))):
        run(recipe(rounds=2, fleet={"sampler": "trace", "trace": str(file), "per_round": None}))
    with pytest.warns(UserWarning, match=re.escape(f"{why}{__name__}:nobody")):
        run(recipe(rounds=2, fleet={"sampler": f"{__name__}:nobody"}), tmp_path / "run")


def test_a_resumed_run_warns_of_another_trace_and_needs_one(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("client,from,to\n1,1,3\n")
    r = recipe(fleet={"sampler": "trace", "trace": str(file), "per_round": None})

    def stop(progress: Any) -> None:
        raise Stop

    with pytest.raises(Stop):
        run(r, tmp_path / "run", on_round=stop)
    file.rename(tmp_path / "other.csv")
    with pytest.raises(RecipeError, match=r'^fleet\.trace: ".*trace.csv" cannot be read: No such file or directory'):
        resume(tmp_path / "run")
    file.write_text("client,from,to\n2,1,3\n")
    with pytest.warns(UserWarning, match=r"not be bit-identical: trace_checksum was \d+, is \d+"):
        done = resume(tmp_path / "run")
    assert [row["participants"] for row in done.rounds] == [[1], [2], [2]]


def test_a_trace_names_clients_as_the_data_do(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("client,from,to\nnorth,1,1\nsouth,2,2\n")
    names = ["east", "north", "south", "west"]
    sampling = sampling_of(four(sampler="trace", trace=str(file), per_round=None), range(4), None, names)
    assert [sampling.chosen(t) for t in range(3)] == [[1], [2], []]
    file.write_text("client,from,to\n1,1,1\n")
    with pytest.raises(RecipeError, match=r'client is "1"; expected a client from east to west'):
        sampling_of(four(sampler="trace", trace=str(file), per_round=None), range(4), None, names)
