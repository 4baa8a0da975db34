"""What a finished run leaves, whatever a method reports of its clients."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

import sparsona
from small import recipe
from sparsona.experiment.results import VECTORS
from sparsona.method import Report
from sparsona.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Kept:
    theta: Tensor


def reporting(trained: str, joined: str) -> Any:
    """A method that reports a private vector of these clients: "all", "none" or those with an "even" number."""

    def private(which: str, k: int, value: Tensor) -> Tensor | None:
        return value if which == "all" or (which == "even" and k % 2 == 0) else None

    @dataclass(frozen=True, kw_only=True)
    class Reporting(FedAvg):
        def local(self, client: Any, inbox: Any, data: Any, ctx: Any) -> Any:
            _, message, theta = super().local(None, inbox, data, ctx)
            return Kept(theta), message, theta

        def report(self, client: Any, server: Any, k: int, ctx: Any) -> Report:
            if client is None and server is None:
                return Report(private=private(joined, k, ctx.theta0))
            return Report() if client is None else Report(private=private(trained, k, client.theta))

    return Reporting(lr=0.1, batch=16)


@pytest.mark.parametrize(
    ("trained", "joined", "drawn"),
    [("all", "all", {0, 1, 2, 3}), ("all", "none", set()), ("none", "all", set()), ("even", "all", {0, 2})],
)
def test_clients_without_a_private_vector_are_not_drawn(
    trained: str, joined: str, drawn: set[int], tmp_path: Path
) -> None:
    given = {"data": {"clients": 4}, "fleet": {"per_round": 4}, "results": {"figures": True}}
    run = sparsona.run(recipe(rounds=1, **given), tmp_path / "run", method=reporting(trained, joined))
    assert run.finished
    file = run.path / VECTORS
    vectors = load_file(file) if file.is_file() else {"labels": None}
    assert vectors.keys() == {"labels"} | {f"client-{k:05d}" for k in drawn}
