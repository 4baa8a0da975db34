"""Costs that nobody counted are shown as unknown, never as 0, and what a count leaves out is named."""

from dataclasses import dataclass

import pytest
import torch

import small
import sparsona
from sparsona.core.wire import Values
from sparsona.experiment.results import Run
from sparsona.method import Message
from sparsona.methods.fedavg import FedAvg
from sparsona.reports.comparison import compare


@dataclass(frozen=True, kw_only=True)
class OwnLoop(FedAvg):
    """FedAvg with a training loop of its own, which may report what it costs."""

    cost: int = -1

    def local(self, client, inbox, data, ctx):
        theta = inbox["server"]["theta"].values.clone()
        ctx.task.load(theta)
        x, y = data.train.at(torch.arange(4))
        loss = torch.nn.functional.cross_entropy(ctx.task.model(x), y)
        fresh = torch.autograd.grad(loss, ctx.task.weights)
        theta -= 0.1 * torch.cat([g.flatten() for g in fresh])
        if self.cost >= 0:
            ctx.task.charge(self.cost, 2 * self.cost)
        return client, Message(theta=Values(theta), samples=len(data)), theta


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    top = tmp_path_factory.mktemp("runs")
    methods = {"silent": OwnLoop(), "open": OwnLoop(cost=5), "free": OwnLoop(cost=0)}
    recipe = small.recipe(rounds=2)
    return [sparsona.run(recipe, top / name, method=method) for name, method in methods.items()]


def test_a_loop_that_reports_nothing_has_unknown_costs(runs):
    silent, counted, free = (Run.open(run.path) for run in runs)
    assert [row["flops"] for row in silent.rounds] == [None, None]
    assert silent.summary["total"]["flops"] is None
    assert {row["flops"] for row in silent.rows("clients") if "flops" in row} == {None}
    assert [(row["flops"], row["total"]["flops"]) for row in counted.rounds] == [(45, 45), (45, 90)]
    assert free.summary["total"]["flops"] == 0


def test_tables_show_a_dash_and_say_why(runs, tmp_path):
    table = compare(runs, tmp_path / "compare", target=0.01)
    lines = {line.split(" | ")[0].strip("| "): line for line in table.markdown().splitlines()}
    assert "–" in lines["silent"]
    assert "–" not in lines["open"]
    assert [note for note in table.notes if "FLOPs" in note] == [
        "FLOPs of silent are unknown: the method does not report them with ctx.task.charge(forward, backward)"
    ]
    assert (tmp_path / "compare" / "accuracy-flops.png").is_file()
    alone = compare(runs[:1], tmp_path / "compare")
    assert alone.rows[0]["flops"] is None
    assert alone.rows[0]["cost_joules"] is None
    assert not (tmp_path / "compare" / "accuracy-flops.png").exists()


def test_what_a_count_leaves_out_is_named(tmp_path):
    class Waves(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.waves = torch.nn.Parameter(torch.ones(4, 4))
            self.head = torch.nn.Linear(64, 10)

        def forward(self, x):
            return self.head(x.flatten(1)) + torch.fft.fft(self.waves).real.mean()

    run = sparsona.run(small.recipe(rounds=1), tmp_path / "waves", model=Waves)
    table = compare([Run.open(run.path)])
    assert "FLOPs: without waves" in table.notes
    assert "Note: FLOPs: without waves" in table.markdown()
    plain = sparsona.run(small.recipe(rounds=1), tmp_path / "plain")
    assert "FLOPs of waves: without waves" in compare([run, plain]).notes
