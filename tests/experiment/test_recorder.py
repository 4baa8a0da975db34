"""The rows of a run: what every method says of its training."""

from __future__ import annotations

import pytest
import torch

from small import recipe
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.methods import METHODS


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_records_its_training_loss_and_accuracy(method: str) -> None:
    budget = {"method": {"budget": 1.0}} if method == "perfedmask" else {}  # or some train nothing
    done = run(recipe(method, **budget))
    for row in done.rounds:
        rows = [r for r in done.clients if r["round"] == row["round"] and "training" in r]
        trained = [r for r in rows if r["training"]["samples"]]
        assert row["training"]["clients"] == len(trained) > 0
        assert {r["client"] for r in trained} <= set(row["participants"])
        loss = [r["training"]["loss"] / r["training"]["samples"] for r in trained]
        right = [r["training"]["correct"] / r["training"]["samples"] for r in trained]
        assert row["training"]["loss"] == pytest.approx(sum(loss) / len(loss))
        assert row["training"]["accuracy"] == pytest.approx(sum(right) / len(right))
    losses = [row["training"]["loss"] for row in done.rounds]
    assert min(losses) > 0


def test_the_first_training_loss_is_that_of_the_initial_model() -> None:
    """One step over all of a client's samples: what is recorded is known before it."""
    asked = recipe("fedavg", rounds=1, method={"batch": 10_000, "epochs": 1})
    done = run(asked)
    device, fleet = prepare(asked)
    for row in done.clients:
        if "training" in row:
            x, y = fleet.local(row["client"]).train.at(torch.arange(len(fleet.local(row["client"]))))
            outputs = device.task.logits(device.theta0, x)
            assert row["training"]["loss"] == pytest.approx(float(device.task.objective(outputs, y)) * len(y), rel=1e-6)
            assert row["training"]["correct"] == int((outputs.argmax(1) == y).sum())
            assert row["training"]["samples"] == len(y)
