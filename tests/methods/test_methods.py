"""Methods by hand, and where they must coincide."""

import pytest
import torch

from small import recipe
from sparsona.core.rng import Rng
from sparsona.core.topology import cohort
from sparsona.core.training import train
from sparsona.core.wire import Message, Values
from sparsona.engines.values import loads, types_of
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.methods import METHODS
from sparsona.methods.ditto import Client as DittoClient
from sparsona.methods.ditto import Ditto
from sparsona.methods.fedavg import FedAvg
from sparsona.methods.fedprox import FedProx

SAME = ("rounds.jsonl", "clients.jsonl")


def results(path, names=SAME):
    return {name: (path / name).read_bytes() for name in names}


def test_fedavg_merges_by_samples_or_equally():
    device, _ = prepare(recipe())
    ctx = device.ctx(0, "merge", 0)
    d = device.task.layout.dim
    messages = {
        0: Message(theta=Values(torch.full((d,), 1.0)), samples=30),
        4: Message(theta=Values(torch.full((d,), 5.0)), samples=10),
    }
    inbox = [(k, FedAvg().read(device.theta0, k, m, ctx)) for k, m in messages.items()]
    by_samples = FedAvg().merge(device.theta0, iter(inbox), ctx)
    assert torch.equal(by_samples, torch.full((d,), 2.0))  # (30 * 1 + 10 * 5) / 40
    equally = FedAvg(weighting="uniform").merge(device.theta0, iter(inbox), ctx)
    assert torch.equal(equally, torch.full((d,), 3.0))


def test_fedprox_without_pull_is_fedavg(tmp_path):
    run(recipe("fedavg"), tmp_path / "a")
    run(recipe("fedprox", method={"mu": 0.0}), tmp_path / "b")
    assert results(tmp_path / "a") == results(tmp_path / "b")


def test_fedprox_stays_nearer_to_what_it_received():
    device, fleet = prepare(recipe(method={"epochs": 5}))
    ctx = device.ctx(0, "local", 0, 0)

    def moved(method):
        return float((method.step(None, device.theta0, fleet.local(0), ctx)[0] - device.theta0).norm())

    distances = [moved(FedProx(mu=mu, epochs=5)) for mu in (0.0, 0.1, 1.0, 5.0)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] == moved(FedAvg(epochs=5))


def test_ditto_without_pull_is_local_training(tmp_path):
    r = {"method": {"epochs": 1, "personal_epochs": 3, "mu": 0.0}}
    run(recipe("ditto", **r), tmp_path / "ditto")
    run(recipe("local", method={"epochs": 3}), tmp_path / "local")
    ditto, local = (list((tmp_path / n / "state").glob("client-*")) for n in ("ditto", "local"))
    assert [p.name for p in sorted(ditto)] == [p.name for p in sorted(local)]
    types = types_of(METHODS["ditto"]()), types_of(METHODS["local"]())
    for a, b in zip(sorted(ditto), sorted(local), strict=True):
        assert torch.equal(loads(a.read_bytes(), types[0]).theta, loads(b.read_bytes(), types[1]).theta)


def test_ditto_shares_the_fedavg_branch(tmp_path):
    """Its shared model is FedAvg's with the same key and epochs, whatever the personal branch does."""
    device, fleet = prepare(recipe("ditto", method={"epochs": 2}))
    ctx = device.ctx(0, "local", 0, 0)
    method = Ditto(epochs=2, personal_epochs=1, mu=0.7)
    _, message, model = method.local(
        DittoClient(None), {"server": Message(theta=Values(device.theta0))}, fleet.local(0), ctx
    )
    want = train(FedAvg(epochs=2), device.theta0, fleet.local(0).train, ctx, purpose="shared")
    assert torch.equal(message["theta"].values, want)
    assert message["samples"] == len(fleet.local(0))
    assert not torch.equal(model, want)


def test_tuning_is_dropped_after_use(tmp_path):
    """FedAvg with fine-tuning has FedAvg's shared model, to the bit, and keeps nothing on the clients."""
    run(recipe("fedavg"), tmp_path / "a")
    run(recipe("fedavg_ft"), tmp_path / "b")
    server = "state/server.safetensors"
    assert results(tmp_path / "a", [server]) == results(tmp_path / "b", [server])
    assert [p.name for p in (tmp_path / "b" / "state").glob("*.safetensors")] == ["server.safetensors"]
    assert results(tmp_path / "a") != results(tmp_path / "b")


def test_tuning_costs_no_training_operations(tmp_path):
    a, b = run(recipe("fedavg")), run(recipe("fedavg_ft"))
    assert a.summary["total"] == b.summary["total"]


def test_local_sends_only_empty_messages():
    total = run(recipe("local")).summary["total"]
    assert total["paper_up"] == total["paper_down"] == 0
    assert total["up"] == total["down"] == 3 * 3 * Message().nbytes


@pytest.mark.parametrize(
    ("name", "passes", "down", "up"),
    [
        ("fedavg", 1, 19_263, 19_284),
        ("fedavg_ft", 1, 19_263, 19_284),
        ("fedprox", 1, 19_263, 19_284),
        ("ditto", 2, 19_263, 19_284),
        ("local", 1, 11, 11),
        ("subsampling", 1, 19_263, 7 + (1 + 5 + 5 + 1 + 4 * 2405) + (1 + 4 + 5 + 8) + (1 + 7 + 5 + 8) + 4),
    ],
)
def test_costs_to_the_byte_and_to_the_operation(name, passes, down, up):
    """A dense message of 4,810 values is 7 + 1 + 5 + 5 + 1 + 19,240 + 4 bytes, the number of samples 21 more."""
    r = recipe(name)
    _, fleet = prepare(r)
    total = run(r).summary["total"]
    rounds, chosen = 3, 3
    assert total["down"] == rounds * chosen * down
    assert total["up"] == rounds * chosen * up
    values = 0 if name == "local" else 4_810
    assert total["paper_down"] == rounds * chosen * 4 * values
    assert total["paper_up"] == rounds * chosen * 4 * (values // 2 if name == "subsampling" else values)
    forward = 2 * (64 * 64 + 64 * 10) + 64 + 10
    trained = sum(len(fleet.local(k)) for t in range(rounds) for k in cohort(6, chosen, Rng(7, "cohort", t)))
    assert total["flops"] == passes * trained * 3 * forward
