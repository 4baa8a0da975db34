"""A fleet in one process: the server's side, Flower's ClientApp and every device; only a network is left out."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import sparsona
from sparsona.experiment.recipe import Recipe, tables
from sparsona.experiment.results import Run
from sparsona.fleet.client_runtime import ClientRuntime
from sparsona.fleet.coordinator import run_order
from sparsona.fleet.data import NodeData
from sparsona.fleet.flower import GridTransport, client_app

Lie = Callable[[int, bytes, bytes], bytes | None]  # client, what came, the answer: what is sent instead


@dataclass
class World:
    """Client runtimes, and a Grid that carries messages to them at once."""

    folder: Path
    clients: int
    data: NodeData = field(default_factory=NodeData)
    lie: Lie = lambda k, data, answer: answer
    away: set[int] = field(default_factory=set)
    keyed: bool = True

    def __post_init__(self) -> None:
        self.runtimes = [
            ClientRuntime(k, self.folder / f"node-{k}", self.data.builder(), sparsona.__version__)
            for k in range(self.clients)
        ]
        self.app = client_app(self._ask)
        self.replies: dict[str, Message] = {}
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1  # what a process of Flower's begins with

    def _ask(self, data: bytes, context: Context) -> bytes:
        k = int(context.node_config["client"])
        answer = self.lie(k, data, self.runtimes[k].answer(data))
        if answer is None:
            raise TimeoutError
        return answer

    def get_nodes(self) -> list[Any]:
        return [
            SimpleNamespace(node_id=1000 + k, public_key=f"key {k}".encode())
            for k in range(self.clients)
            if k not in self.away
        ]

    def push_messages(self, messages: list[Message]) -> list[str]:
        numbers = []
        for message in messages:
            number = message.object_id
            message.metadata.__dict__["_message_id"] = number
            numbers.append(number)
            node = message.metadata.dst_node_id
            context = Context(1, node, {"client": node - 1000}, RecordDict(), {})
            TaskIdentity.node_id = node
            with suppress(TimeoutError):
                self.replies[number] = self.app(message, context)
        return numbers

    def pull_messages(self, numbers: set[str]) -> list[Message]:
        return [self.replies.pop(n) for n in numbers if n in self.replies]

    def order(self, recipe: Recipe, out: Path, **more: Any) -> dict[str, Any]:
        keys = {f"key {k}": k for k in range(self.clients)} if self.keyed else None
        order = {"recipe": tables(recipe), "folder": str(out), "keys": keys, "wait": 5, "max_bytes": 1 << 30}
        return json.loads(json.dumps(order | more))

    def run(self, recipe: Recipe, out: Path, **more: Any) -> Run:
        return run_order(GridTransport(self), self.order(recipe, out, **more), self.folder)

    def values(self, out: Path) -> dict[str, bytes]:
        """What the devices keep of the versions that count, named as in a run's folder."""
        run = json.loads((out / "run.json").read_text())["fleet_run"]
        versions = json.loads((out / "state" / "versions.json").read_text())
        return {
            f"state/client-{int(k):05d}.safetensors": (
                self.folder / f"node-{k}" / run / f"{version}.value"
            ).read_bytes()
            for k, version in versions.items()
        }
