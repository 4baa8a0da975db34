"""Runs on an accelerator: the bits of the host, nothing that mixes host and device, no copy within a training step."""

import contextlib
from collections.abc import Iterator
from functools import partial

import pytest
from test_engines import files

from pretended import COUNTS, DEVICE, NAME, Counts
from small import SUITS, recipe
from sparsona.core import arithmetic
from sparsona.core.samples import Batch, Batches
from sparsona.core.task import Task
from sparsona.engines import device
from sparsona.engines.resident import Resident
from sparsona.experiment import runner
from sparsona.experiment.setup import open_engine
from sparsona.methods import METHODS

SHOWN = {"feddst": {"interval": 1}}  # what makes so few rounds show all that a method does

# Per step, what crosses: copies, and numbers for which the host waits. All other methods have none of either.
# pFedGate's host chooses blocks: it reads their importance, and moves the flags of the chosen ones. DFedSAM's divides
# by the norm of a gradient.
CROSSES = {"pfedgate": (1, 1), "dfedsam": (0, 1)}
ONCE = {"pfedgate": 2}  # copies within the first step of a process: where blocks and their entries lie


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Copies between host and device: those within steps of training, those while a batch is drawn, and others."""
    training, batches = Task.training, Batches.__iter__

    @contextlib.contextmanager
    def counting(self: Task, *args: object, **kwargs: object) -> Iterator[None]:
        with training(self, *args, **kwargs), COUNTS.within("step"):
            yield

    def drawing(self: Batches) -> Iterator[Batch]:
        each = batches(self)
        while True:
            with COUNTS.within("draw"):
                batch = next(each, None)
            if batch is None:
                return
            COUNTS.batches += 1
            yield batch

    monkeypatch.setattr(Task, "training", counting)
    monkeypatch.setattr(Batches, "__iter__", drawing)
    COUNTS.clear()
    return COUNTS


def both(small, tmp_path, monkeypatch):
    """What a run leaves that is made on the host, and one whose jobs are done on the accelerator."""
    runner.run(small, tmp_path / "host")
    assert not COUNTS.copies
    monkeypatch.setattr(runner, "open_engine", partial(open_engine, where=DEVICE))
    runner.run(small, tmp_path / "device")
    return files(tmp_path / "host"), files(tmp_path / "device")


def assert_same(host, device):
    assert host.keys() == device.keys()
    assert [name for name in host if host[name] != device[name]] == []


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_gives_the_bits_of_the_host(method, counted, tmp_path, monkeypatch):
    able = METHODS[method]
    points = ["before", "after", *["shared"] * hasattr(able, "shared"), *["finished"] * hasattr(able, "finish")]
    few = {"batch": 8, **({"finish_epochs": 1} if hasattr(able, "finish_epochs") else {})}
    small = recipe(
        method,
        rounds=3 if method == "dadpfl" else 2,
        data={"sample_share": 0.1},
        method={**SUITS.get(method, {}).get("method", {}), **few, **SHOWN.get(method, {})},
        fleet={"per_round": 2, "hold_out": 0.2} if hasattr(able, "merge") else {},
        evaluate={"points": points},
        results={"models": True, "figures": True},
    )
    assert_same(*both(small, tmp_path, monkeypatch))
    steps = counted.batches / 2  # the others were the host's
    copies, reads = CROSSES.get(method, (0, 0))
    assert steps > 0
    assert counted.copies["step"] <= steps * copies + ONCE.get(method, 0)
    assert counted.reads["step"] <= steps * reads
    assert (counted.copies["step"] > 0, counted.reads["step"] > 0) == (copies > 0, reads > 0)
    assert counted.reads["draw"] == 0


NET = """
from torch import nn

class Net(nn.Sequential):  # all that is no plain weight: statistics, a counter, a frozen tensor, one in two places
    def __init__(self, classes, shape):
        super().__init__(nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(),
                         nn.Linear(144, 36), nn.Linear(36, 36), nn.Linear(36, 36), nn.Linear(36, classes))
        self[7].weight = self[6].weight
        self[6].bias.requires_grad_(False)
"""
OPTIONS = {
    "momentum that clients keep": ("ditto", {"momentum": 0.9, "moments": "client", "weight_decay": 1e-3}),
    "adam": ("ditto", {"optimiser": "adam", "lr": 0.01, "moments": "client"}),
    "adam of a sparse model": ("fedspa", {"optimiser": "adam", "lr": 0.01, "weight_decay": 1e-3}),
    "AdamW": ("ditto", {"optimiser": "AdamW", "lr": 0.01, "moments": "client"}),
    "RMSprop": ("fedrep", {"optimiser": "RMSprop", "lr": 0.01, "moments": "client"}),
    "NAdam": ("heterofl", {"optimiser": "NAdam", "lr": 0.01, "moments": "client"}),
    "inner loops": ("pfedme", {"variant": "original"}),
    "momentum of masked weights": ("perfedmask", {"momentum": 0.9, "moments": "client", "budget": 0.6}),
    "random regrowth": ("dispfl", {"recovery": "random", "momentum": 0.9}),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_optimisers_and_layers_of_all_kinds_give_the_bits_of_the_host(option, counted, tmp_path, monkeypatch):
    (tmp_path / "allkinds.py").write_text(NET)
    monkeypatch.syspath_prepend(tmp_path)
    method, fields = OPTIONS[option]
    small = recipe(
        method,
        rounds=2,
        data={"sample_share": 0.1, "augment": "crop-flip"},
        model={"name": "allkinds:Net"},
        method={"batch": 8, **fields},
        results={"models": True},
    )
    assert_same(*both(small, tmp_path, monkeypatch))
    assert (counted.copies["step"], counted.reads["step"]) == (0, 0)


@pytest.mark.parametrize(
    ("model", "fields"),
    [("digits-cnn", {"split": "rows", "weight_decay": 1e-3}), ("digits-mlp", {"adapt": "client", "velocity": "round"})],
)
def test_gates_over_units_and_gates_of_clients(model, fields, counted, tmp_path, monkeypatch):
    small = recipe("pfedgate", rounds=2, data={"sample_share": 0.1}, model={"name": model}, method=fields)
    assert_same(*both(small, tmp_path, monkeypatch))
    steps = counted.batches / 2
    assert 0 < counted.copies["step"] <= 2 * steps  # where the kept units lie moves too
    assert 0 < counted.reads["step"] <= steps


@pytest.mark.parametrize("method", ["beer", "dadpfl", "dfedavgm", "fedem", "fedscr", "fedstc", "pfedgate"])
def test_a_device_without_double_precision_leaves_it_to_the_host(method, counted, tmp_path, monkeypatch):
    task = {"loss": "bce"} if method == "fedem" else {}  # whose targets then carry weights
    small = recipe(method, rounds=2, data={"sample_share": 0.1}, task=task, results={"models": True})
    monkeypatch.setattr(arithmetic, "SINGLE", {NAME})
    monkeypatch.setattr(counted, "single", True)
    assert_same(*both(small, tmp_path, monkeypatch))


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("fedavg", {"clip": 0.1}),
        ("fedavg", {"clip": 1e9}),  # which no gradient exceeds
        ("fedavg", {"clip": 0.1, "lr": 1e30}),  # NaN
        ("fedspa", {"clip": 0.1, "clip_of": "masked", "momentum": 0.9}),
        ("ditto", {"clip": 0.1, "optimiser": "adam", "lr": 0.01}),
    ],
)
def test_nobody_waits_for_the_norm_of_a_gradient_that_is_clipped(method, fields, counted, tmp_path, monkeypatch):
    small = recipe(method, rounds=2, data={"sample_share": 0.1}, method={"batch": 8, **fields})
    assert_same(*both(small, tmp_path, monkeypatch))
    assert counted.batches > 0
    assert (counted.copies["step"], counted.reads["step"]) == (0, 0)


def test_data_of_a_client_cross_once_and_a_permutation_once_an_epoch(counted, tmp_path, monkeypatch):
    small = recipe("local", rounds=3, data={"sample_share": 0.1}, fleet={"per_round": 6}, method={"epochs": 2})
    assert_same(*both(small, tmp_path, monkeypatch))
    assert counted.copies["draw"] == 3 * 6 * 2


def test_a_small_cache_moves_more_and_changes_no_bit(counted, tmp_path, monkeypatch):
    small, copies = recipe("fedavg", rounds=2, data={"sample_share": 0.1}), list[int]()
    for bound in (1 << 20, 3000):
        made = Resident(DEVICE, bound)
        monkeypatch.setattr(device, "Resident", lambda where, default, made=made: made)
        assert_same(*both(small, tmp_path / str(bound), monkeypatch))
        monkeypatch.setattr(runner, "open_engine", open_engine)
        assert 0 < made.held <= bound
        copies.append(counted.copies[""])
        counted.clear()
    assert copies[0] < copies[1]
