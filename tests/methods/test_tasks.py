"""Every method trains by every loss: numbers, labels and tokens, not only classes."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import small
from sparsona.core.samples import Prepare
from sparsona.data import Dataset, divide
from sparsona.experiment import setup
from sparsona.experiment.objects import Objects
from sparsona.experiment.recipe import Recipe, RecipeError
from sparsona.experiment.runner import run
from sparsona.methods import METHODS
from tiers import tiered

RATES = {"fedmask": 5.0, "beer": 0.02, "dfedavgm": 0.02}  # where 0.05 does not do
DATA = {"partition": "iid", "sample_share": 1.0, "clients": 4}
FLEET = {"per_round": 4}
N = 150


def dataset(kind: Any) -> Dataset:
    rng = np.random.default_rng(3)
    x = torch.from_numpy(rng.normal(size=(N, 1, 4, 4)).astype(np.float32))
    flat = x.flatten(1)
    match kind:
        case "number":
            return Dataset("made", x, flat @ torch.linspace(-1, 1, 16) + 2, N, (), (1, 4, 4), Prepare(), target=kind)
        case "labels":
            return Dataset("made", x, (flat[:, :3] > 0).float(), N, tuple("abc"), (1, 4, 4), Prepare(), target=kind)
        case _:
            text = (torch.arange(N)[:, None] + torch.arange(9)) % 5
            ids, then = text[:, :8].to(torch.int32), text[:, 1:].contiguous()
            return Dataset("made", ids, then, N, (), (8,), Prepare(), vocabulary=5, target="tokens")


def recipe_of(kind: str, name: str) -> Recipe:
    task = {
        "number": {"loss": "mse", "metrics": ["rmse"]},
        "labels": {"loss": "bce", "metrics": ["macro_f1"]},
        "tokens": {"metrics": ["perplexity"]},
    }[kind]
    method: dict[str, Any] = {"lr": RATES.get(name, 0.05 if kind == "number" else 0.3), "batch": 8, "epochs": 2}
    if name == "subfedavg" and kind == "number":
        method["accuracy"] = 0.0
    model = {"name": "char-cnn" if kind == "tokens" else "mlp"}
    points = {"points": ["before", "after"]}
    return small.recipe(name, task=task, method=method, model=model, data=DATA, rounds=3, fleet=FLEET, evaluate=points)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(kind: str) -> None:
        monkeypatch.setattr(setup, "build", lambda config, seed, *_, **__: divide(dataset(kind), config, seed))

    return use


@pytest.mark.parametrize("name", tiered(sorted(METHODS)))
def test_every_method_learns_numbers(name: str, use: Any) -> None:
    use("number")
    recipe = recipe_of("number", name)
    done = run(recipe)
    after = [row["after"]["rmse"] for row in done.rounds]
    start = float(dataset("number").y.square().mean().sqrt())  # of a model that says 0
    assert after[-1] < 0.95 * start, after


@pytest.mark.parametrize("kind", ["labels", "tokens"])
@pytest.mark.parametrize("name", tiered(sorted(METHODS)))
def test_every_method_runs_with_labels_and_tokens(name: str, kind: str, use: Any) -> None:
    use(kind)
    recipe = recipe_of(kind, name)
    done = run(recipe)
    main = recipe.task.main
    assert all(row["after"][main.key] is not None for row in done.rounds)


def test_subfedavg_has_no_accuracy_of_numbers(use: Any) -> None:
    use("number")
    recipe = small.recipe(
        "subfedavg", task={"loss": "mse"}, method={"accuracy": 0.5}, model={"name": "mlp"}, data=DATA, fleet=FLEET
    )
    with pytest.raises(RecipeError, match=r"method\.accuracy: 0\.5 is not allowed; expected 0, as numbers"):
        run(recipe)


def test_fedem_takes_models_that_read_only_token_ids(use: Any) -> None:
    use("tokens")
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5))  # fails on floats
    rows = run(recipe_of("tokens", "fedem"), objects=Objects(model=model)).rounds
    assert rows[-1]["after"]["perplexity"] < rows[0]["before"]["perplexity"]
