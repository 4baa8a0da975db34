"""Rounds of throughput.py in Flower's simulator: ``python benchmarks/flower_baseline.py lenet 6 usual``.

Prints one JSON line, {"seconds": [...]}, without the first round, in which the actors start and load their data. No
evaluation. Three forms:

- ``usual``: as its documentation teaches, with its default settings (two cores for a client): the strategy FedAvg, and
  a client that makes its model and a DataLoader over its pictures for every message. The data set itself is kept
  between messages, which is more than most apps do.
- ``paired``: the same with one core for a client, so that two run at a time on two cores.
- ``tuned``: two at a time, and by hand what an app can do for speed: an own round loop that looks for answers every
  10 ms instead of 100, model and data kept between messages, pictures ready as floats, channels-last weights.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"  # nobody is told; it is read as the packages are imported
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"  # or it warns at every start

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from sparsona.core.samples import Samples
from sparsona.data import Fleet
from sparsona.data import build as build_data
from sparsona.models import build
from throughput import BATCH, PER_ROUND, recipe

CLIENTS, CORES, LR, POLL = 100, 2, 0.05, 0.01
Content = dict[str, ArrayRecord | MetricRecord | ConfigRecord]

client_app = ClientApp()


@cache
def network(model: str) -> nn.Module:
    """An actor's model, which every message fills anew."""
    torch.set_num_threads(1)
    return build(model, 10, (1, 28, 28)).to(memory_format=torch.channels_last)


@cache
def fleet(model: str) -> Fleet:
    """The data, divided as in our own runs."""
    plan = recipe(model, 1)
    return build_data(plan.data, plan.seed)


@cache
def samples(model: str, k: int) -> tuple[Tensor, Tensor]:
    """A client's pictures and labels, ready to train on."""
    mine = fleet(model).local(k).train
    return mine.at(torch.arange(len(mine)))


@client_app.query()
def warm(message: Message, context: Context) -> Message:
    """Load everything that training needs."""
    model = str(message.content.config_records["config"]["model"])
    network(model)
    for k in range(CLIENTS):
        samples(model, k)
    return Message(RecordDict(), reply_to=message)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch of plain SGD from the model received."""
    model = str(message.content.config_records["config"]["model"])
    net = network(model)
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    x, y = samples(model, int(context.node_config["partition-id"]))
    optimiser = torch.optim.SGD(net.parameters(), lr=LR)
    for places in torch.randperm(len(y)).split(BATCH):
        optimiser.zero_grad()
        F.cross_entropy(net(x[places]), y[places]).backward()
        optimiser.step()
    content: Content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"samples": len(y)})}
    return Message(RecordDict(content), reply_to=message)


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    """A client's pictures for a DataLoader, normalised one by one as transforms do."""

    def __init__(self, mine: Samples) -> None:
        self.mine = mine

    def __len__(self) -> int:
        return len(self.mine)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        row = self.mine.index[place]
        picture = (self.mine.x[row].permute(2, 0, 1).float() / 255 - 0.2860) / 0.3530
        return picture, self.mine.y[row]


@client_app.train("usual")
def train_as_usual(message: Message, context: Context) -> Message:
    """One epoch as the documentation's examples do it."""
    model = str(message.content.config_records["config"]["model"])
    net = build(model, 10, (1, 28, 28))
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    mine = fleet(model).local(int(context.node_config["partition-id"])).train
    optimiser = torch.optim.SGD(net.parameters(), lr=LR)
    net.train()
    for x, y in DataLoader(Pictures(mine), batch_size=BATCH, shuffle=True):
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()
    content: Content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(mine)})}
    return Message(RecordDict(content), reply_to=message)


class Usual(FedAvg):
    """FedAvg that calls for the handler above; everything else is the strategy's own."""

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        """The strategy's messages, under our handler's name."""
        for message in super().configure_train(server_round, arrays, config, grid):
            message.metadata.message_type = "train.usual"
            yield message


def usual_server(model: str, rounds: int, seconds: list[float]) -> ServerApp:
    """The strategy FedAvg; the time of each round is noted where it would evaluate."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        ticks: list[float] = []
        strategy = Usual(fraction_train=PER_ROUND / CLIENTS, fraction_evaluate=0.0, min_available_nodes=CLIENTS)
        weights = ArrayRecord(build(model, 10, (1, 28, 28)).state_dict())
        tick: Any = lambda number, arrays: ticks.append(time.perf_counter())  # noqa: E731
        strategy.start(grid, weights, rounds, train_config=ConfigRecord({"model": model}), evaluate_fn=tick)
        seconds.extend(b - a for a, b in pairwise(ticks))

    return app


def server_app(model: str, rounds: int, seconds: list[float]) -> ServerApp:
    """A server that runs the rounds and notes how long each took."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        while len(nodes := sorted(grid.get_node_ids())) < CLIENTS:
            time.sleep(0.1)
        config = ConfigRecord({"model": model})
        list(ask(grid, "query", nodes[:PER_ROUND], {"config": config}))
        weights, draw = build(model, 10, (1, 28, 28)).state_dict(), random.Random(1)
        for _ in range(rounds):
            began = time.perf_counter()
            content: Content = {"arrays": ArrayRecord(weights), "config": config}
            weights = mean(ask(grid, "train", draw.sample(nodes, PER_ROUND), content))
            seconds.append(time.perf_counter() - began)

    return app


def ask(grid: Grid, kind: str, nodes: list[int], content: Content) -> Iterator[Message]:
    """Send the same content to some nodes and give their answers as they come."""
    waiting = set(grid.push_messages(Message(RecordDict(content), dst_node_id=n, message_type=kind) for n in nodes))
    while waiting:
        for answer in grid.pull_messages(waiting):
            if answer.has_error():
                raise RuntimeError(f"a client failed: {answer.error.reason}")
            waiting.discard(answer.metadata.reply_to_message_id)
            yield answer
        if waiting:
            time.sleep(POLL)


def mean(answers: Iterable[Message]) -> dict[str, Tensor]:
    """The models' mean, weighted by samples."""
    total: dict[str, Tensor] = {}
    count = 0
    for answer in answers:
        n = int(answer.content.metric_records["metrics"]["samples"])  # type: ignore[arg-type]
        for name, value in answer.content.array_records["arrays"].to_torch_state_dict().items():
            total[name] = total[name].add_(value, alpha=n) if name in total else value * n
        count += n
    return {name: value / count for name, value in total.items()}


def main(model: str, rounds: int, form: str) -> list[float]:
    """Seconds of each round."""
    torch.set_num_threads(1)
    seconds: list[float] = []
    limits: dict[str, Any] = {"init_args": {"num_cpus": CORES}}
    if form != "usual":
        limits["client_resources"] = {"num_cpus": 1.0}
    server = (server_app if form == "tuned" else usual_server)(model, rounds, seconds)
    run_simulation(server, client_app, num_supernodes=CLIENTS, backend_config=limits)
    return seconds


if __name__ == "__main__":
    import flower_baseline  # not as __main__: what Ray takes from there is sent anew with every message, caches and all

    print(json.dumps({"seconds": flower_baseline.main(sys.argv[1], int(sys.argv[2]), sys.argv[3])[1:]}))
