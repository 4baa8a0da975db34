"""More rounds for a finished run: the same bits as if they had been asked for at first, or the reason why not."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import pytest

import sparsona
from command import ok, refused
from data import own as own_data
from engines.test_engines import files
from small import recipe
from sparsona.api.folders import extend_all, read_plan, write_plan
from sparsona.core.topology import Topology
from sparsona.experiment import extension
from sparsona.experiment.extension import extend, why_not
from sparsona.experiment.results import Run, RunError
from sparsona.experiment.runner import resume, run
from sparsona.methods import METHODS
from tiers import tiered

SHORT = ("fedspa", "dadpfl", "fedavg")
LEAVE = {"timing.jsonl"}
FREE = {"dadpfl": {"prune_rate": 0.0}, "dispfl": {"prune_rate": 0.0}, "feddst": {"prune_rate": 0.0}}
FREE |= {"fedspa": {"search": "rsm"}}  # what makes a method independent of the number of rounds


def extended(short, rounds: int, path: Path) -> None:
    run(short, path)
    extend(Run(path), rounds)
    assert not Run(path).finished
    resume(path)


@pytest.mark.parametrize("method", tiered(sorted(METHODS), SHORT))
def test_every_method_gives_the_bits_of_a_longer_run(method, tmp_path):
    """Three rounds, then five: the third is not evaluated in a run of five, in which every second one is."""
    given = {"evaluate": {"points": ["before", "after"], "every": 2}, "method": FREE.get(method, {})}
    short, whole = (recipe(method, rounds=n, **given) for n in (3, 5))
    assert why_not(short) is None
    run(whole, tmp_path / "whole")
    extended(short, 5, tmp_path / "extended")
    assert files(tmp_path / "extended", LEAVE) == files(tmp_path / "whole", LEAVE)


@pytest.mark.parametrize("method", tiered(sorted(METHODS), SHORT))
def test_what_depends_on_the_number_of_rounds_is_known(method, tmp_path):
    """The first rounds of a longer run are the same, or we refuse to extend."""
    short, long = (recipe(method, rounds=n, evaluate={"points": ["before"]}) for n in (4, 8))
    first, second = (run(r).rounds[:4] for r in (short, long))
    assert (first == second) is (why_not(short) is None) or method == "feddst"  # whose masks move later


@pytest.mark.parametrize(
    "given",
    [
        {"evaluate": {"points": ["finished", "shared"], "every": 3}, "data": {"validation_share": 0.2}},
        {"fleet": {"per_round": 2, "hold_out": 0.34}},
        {"method": {"lr_schedule": "exponential"}, "checkpoint_every": 4},
    ],
)
def test_other_ends_of_runs(given, tmp_path):
    """Models tuned at the end, newcomers that adapt at the end, checkpoints that are not due at the end."""
    short, whole = (recipe("fedavg", rounds=n, **given) for n in (2, 4))
    run(whole, tmp_path / "whole")
    extended(short, 4, tmp_path / "extended")
    assert files(tmp_path / "extended", LEAVE) == files(tmp_path / "whole", LEAVE)


def test_peers_that_are_away_in_the_last_round(tmp_path):
    given = {"topology": {"absent": 0.5, "max_wait": 0}, "method": FREE["dadpfl"]}
    run(recipe("dadpfl", rounds=6, **given), tmp_path / "whole")
    extended(recipe("dadpfl", rounds=3, **given), 6, tmp_path / "extended")
    assert files(tmp_path / "extended", LEAVE) == files(tmp_path / "whole", LEAVE)


@pytest.mark.parametrize("method", ["ditto", "dfedavgm"])
def test_killed_while_it_is_extended(method, tmp_path, monkeypatch):
    """Before the new rounds count, after, in the middle of them; and extended twice."""
    short, whole = (recipe(method, rounds=n, evaluate={"points": ["before"], "every": 4}) for n in (2, 6))
    run(whole, tmp_path / "whole")
    out = tmp_path / "extended"
    run(short, out)
    before = files(out, set())
    with monkeypatch.context() as patch:
        patch.setattr(extension, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            extend(Run(out), 4)
    resume(out)
    assert files(out, set()) == before  # it is what it was
    with monkeypatch.context() as patch:
        patch.setattr(extension, "reopen", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            extend(Run(out), 4)
    assert Run(out).recipe.rounds == 4

    def stop(step):
        if step.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resume(out, on_round=stop)
    extend(Run(out), 5)  # a run that is not finished
    resume(out)
    extend(Run(out), 6)
    resume(out)
    assert files(out, LEAVE) == files(tmp_path / "whole", LEAVE)


@pytest.mark.parametrize(
    ("method", "given", "reason"),
    [
        ("fedavg", {"method": {"lr_schedule": "cosine"}}, 'method.lr_schedule = "cosine" depends on the number'),
        ("fedavg", {"method": {"lr_schedule": "steps"}}, 'method.lr_schedule = "steps" depends on the number'),
        ("fedspa", {}, 'method.search = "dst" regrows masks by a schedule over all rounds'),
        ("dispfl", {}, "falls to 0 in the last round"),
        ("dfedsam", {"topology": {"wait_schedule": "stepwise"}}, 'topology.wait_schedule = "stepwise"'),
        ("dadpfl", {"method": {"prune_rate": 0.0, "schedule": "strict"}}, 'method.schedule = "strict"'),
    ],
)
def test_reasons(method, given, reason):
    assert reason in (why_not(recipe(method, **given)) or "")


OWN = """
from dataclasses import dataclass
from sparsona.methods.fedavg import FedAvg
from sparsona.methods.feddst import FedDST

@dataclass(frozen=True, kw_only=True)
class Silent(FedAvg):
    pass

@dataclass(frozen=True, kw_only=True)
class Plain(FedAvg):
    depends_on_rounds = None

@dataclass(frozen=True, kw_only=True)
class Child(Plain):
    pass

@dataclass(frozen=True, kw_only=True)
class Fading(FedAvg):
    fade: bool = True

    @property
    def depends_on_rounds(self):
        return "fade = true lowers the weights over all rounds" if self.fade else None

    def down(self, server, k, ctx):
        return super().down(server * (1 - ctx.t / ctx.rounds if self.fade else 1), k, ctx)

@dataclass(frozen=True, kw_only=True)
class SilentDst(FedDST):
    pass

@dataclass(frozen=True, kw_only=True)
class Dst(FedDST):
    depends_on_rounds = FedDST.depends_on_rounds
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_rounds.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(("name", "fields"), [("Plain", {}), ("Fading", {"fade": False})])
def test_own_methods_that_do_not_depend_on_the_number_of_rounds(name, fields, own, tmp_path):
    short, whole = (recipe(f"own_rounds:{name}", rounds=n, method=fields) for n in (2, 3))
    run(whole, tmp_path / "whole")
    extended(short, 3, tmp_path / "extended")
    assert files(tmp_path / "extended", LEAVE) == files(tmp_path / "whole", LEAVE)


@pytest.mark.parametrize(
    ("name", "stated"),
    [("Silent", "None"), ("Child", "Plain.depends_on_rounds"), ("SilentDst", "FedDST.depends_on_rounds")],
)
def test_own_methods_state_it_themselves(name, stated, own):
    """A class that inherits the statement may have hooks of its own."""
    reason = why_not(recipe(f"own_rounds:{name}", method={"prune_rate": 0.0} if name == "SilentDst" else {}))
    assert reason == (
        f'method.name = "own_rounds:{name}" does not state whether it depends on the number of rounds; if its own '
        f"hooks do not use ctx.rounds, add depends_on_rounds = {stated} to the class {name}"
    )


def test_what_own_methods_state(own):
    fading = recipe("own_rounds:Fading")
    assert why_not(fading) == "method.fade = true lowers the weights over all rounds"
    assert why_not(recipe("own_rounds:Dst")) == "method.prune_rate = 0.3 falls to 0 in the last round"
    assert why_not(recipe("own_rounds:Dst", method={"prune_rate": 0.0})) is None
    steps = recipe("own_rounds:Plain", method={"lr_schedule": "steps"})
    assert why_not(steps) == 'method.lr_schedule = "steps" depends on the number of rounds'


def test_waiting_matters_among_peers_only():
    r = recipe("fedavg")
    assert why_not(dataclasses.replace(r, topology=Topology(wait_schedule="stepwise"))) is None


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    changes = ["data.clients=3", "fleet.per_round=2", "engine.name=local", "data.sample_share=0.2"]
    changes += ["results.figures=false", "--only", "alone"]
    ok("run", "quickstart", "rounds=1", *changes, "--out", "short", "--json")
    ok("run", "quickstart", "rounds=2", *changes, "--out", "whole", "--json")
    text = ok("resume", "short", "rounds=2", "--json").stdout
    assert [r["rounds"] for r in json.loads(text)["runs"]] == [2]
    assert files(Path("short"), LEAVE) == files(Path("whole"), LEAVE)
    assert refused("resume", "short", "rounds=1").startswith("rounds: 1 is not allowed; expected an int >= 2")
    assert refused("resume", "short", "rounds=x") == 'rounds: "x" is not allowed; expected an int >= 1'
    assert (
        refused("resume", "short", "seed=2")
        == "seed: cannot change in a run that has started; only rounds=N and fields of [engine] are allowed"
    )


def test_all_runs_of_a_folder_are_checked_before_any_is_changed(tmp_path):
    """Of a plan, one run is finished and one has not begun."""
    one = recipe("fedavg", rounds=1)
    write_plan(tmp_path, {"one": one, "two": recipe("ditto", rounds=1)})
    run(one, tmp_path / "one")
    extend_all(tmp_path, 2)
    assert {name: each.rounds for name, each in read_plan(tmp_path).items()} == {"one": 2, "two": 2}
    assert Run(tmp_path / "one").recipe.rounds == 2
    write_plan(tmp_path, {"one": recipe("fedavg", rounds=2), "two": recipe("fedspa", rounds=2)})
    with pytest.raises(RunError, match=r'method.search = "dst" .*; start new runs with rounds=3'):
        extend_all(tmp_path, 3)
    assert Run(tmp_path / "one").recipe.rounds == 2
    write_plan(tmp_path, {"one": recipe("fedavg", rounds=2), "two": recipe("fedavg", rounds=4)})
    with pytest.raises(
        RunError, match="test_all_runs_of_a_folder_are_0 cannot be extended: its runs differ in rounds, from 2 to 4"
    ):
        extend_all(tmp_path, 9)


PLUGINS = """
import torch.nn.functional as F
import numpy as np

def data():
    x = np.random.default_rng(0).normal(size=(90, 4))
    return {"x": x.astype("float32"), "y": np.arange(90) % 3, "client": np.arange(90) // 30}

def loss(outputs, y):
    return F.cross_entropy(outputs, y, reduction="none")

def metric(y, outputs):
    return 0.5

def sampler(t, clients, per_round, rng):
    return clients[:per_round]
"""


@pytest.mark.parametrize("several", [False, True], ids=["run", "plan"])
@pytest.mark.parametrize("missing", ["data", "loss", "metric", "sampler", "csv", "device"])
def test_a_run_that_cannot_be_extended_is_left_as_it_is(missing, several, tmp_path, monkeypatch):
    name = f"plugins_{missing}_{several}"
    (tmp_path / f"{name}.py").write_text(PLUGINS)
    own_data.table(tmp_path / "a.csv", own_data.rows())
    monkeypatch.syspath_prepend(tmp_path)
    given = {
        "data": {"data": {"source": f"{name}:data"}},
        "loss": {"task": {"loss": f"{name}:loss"}},
        "metric": {"task": {"metrics": [f"{name}:metric"]}},
        "sampler": {"fleet": {"sampler": f"{name}:sampler"}},
        "csv": {"data": {"source": str(tmp_path / "a.csv"), "label": "died", "client": "hospital"}},
        "device": {},
    }[missing]
    if "data" in given:
        given |= {"model": {"name": "mlp"}, "fleet": {"per_round": 2}}
        given["data"] |= {"clients": 3, "sample_share": 1.0, "alpha": 0.3}
    out = tmp_path / "run"
    one = recipe(rounds=1, **given)
    if several:
        write_plan(out, {"one": one, "two": dataclasses.replace(one, seed=8)})
        run(one, out / "one")
    else:
        run(one, out)
    (tmp_path / f"{name}.py").unlink()
    (tmp_path / "a.csv").unlink()
    sys.modules.pop(name, None)
    importlib.invalidate_caches()
    before = files(out, set())
    engine = {"device": "cuda:7"} if missing == "device" else None
    with pytest.raises(ValueError, match=r"cannot be imported|no such file|engine\.device"):
        sparsona.resume_all(out, rounds=3, engine=engine)
    assert files(out, set()) == before
    assert Run(out / "one" if several else out).finished


def test_figures_are_drawn_again(tmp_path):
    given = {"results": {"figures": True}, "data": {"clients": 3}, "fleet": {"per_round": 2}}
    whole = sparsona.run(recipe("fedavg", rounds=3, **given), tmp_path / "whole")
    short = sparsona.run(recipe("fedavg", rounds=2, **given), tmp_path / "short")
    assert sparsona.resume(short.path, rounds=3).rounds == whole.rounds
    assert files(tmp_path / "short", LEAVE) == files(tmp_path / "whole", LEAVE)


def test_a_run_of_an_older_version(tmp_path):
    run(recipe("fedavg", rounds=2), tmp_path / "run")
    (tmp_path / "run" / "state" / "progress.json").unlink()
    with pytest.raises(RunError, match=r"cannot be extended: its state/progress.json is missing.*; start a new run"):
        extend(Run(tmp_path / "run"), 3)
    assert Run(tmp_path / "run").finished
