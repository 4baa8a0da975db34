"""What a finished run leaves: summary, final states, models on request, and the vectors that reports draw."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors.torch import save
from torch import Tensor

from sparsona.engines.atomic_file import write, write_all
from sparsona.engines.device import Device
from sparsona.engines.jobs import Result
from sparsona.engines.store import Store, here
from sparsona.engines.values import dumps, loads, types_of
from sparsona.experiment.checkpoints import PROGRESS, forget_state, stored
from sparsona.experiment.evaluator import Evaluator
from sparsona.experiment.metrics import metrics
from sparsona.experiment.recipe import Recipe
from sparsona.experiment.recorder import Recorder
from sparsona.experiment.results import VECTORS, Run, summarise
from sparsona.method import Server, capabilities


@dataclass
class Outcome:
    """Writes the end of a run; the summary comes last, so that a run without it is not finished."""

    recipe: Recipe
    device: Device
    clients: int
    store: Store
    evaluator: Evaluator
    labels: Callable[[], NDArray[Any]] | None = None  # how often each client has each; unknown on a real fleet
    away: bool = False
    names: tuple[str, ...] = ()  # of clients, if the data name them

    def write(self, server: Server, recorder: Recorder) -> Run:
        """Give the finished run, written into its folder if it has one."""
        summary = summarise(self.recipe, recorder.rows)
        adapted = self.evaluator.adapt(server)
        if adapted:
            scores = {k: result.score for k, result in adapted.items() if result.score}
            summary["newcomers"] = metrics(scores, self.recipe.task)
        if recorder.folder is None:
            return Run.in_memory(self.recipe, recorder.rows, recorder.client_rows, summary, self.names)
        path = recorder.folder.path
        self._states(server, adapted, path / "state")
        if self.recipe.results.models:
            self._models(server, path / "models")
        if self.recipe.results.figures:
            self._vectors(path / VECTORS)
        write(path / "summary.json", json.dumps(summary, indent=1) + "\n")
        self.store.close()
        forget_state(path)
        return Run.open(path)

    def _states(self, server: Server, adapted: Mapping[int, Result], state: Path) -> None:
        state.mkdir(exist_ok=True)
        write(state / "server.safetensors", dumps(server))
        best, store = self.evaluator.best, self.store
        if best is not None:
            write(state / "best.safetensors", dumps((best[0], best[2])))
        if self.away:
            write(state / "versions.json", json.dumps(store.versions(), indent=1) + "\n")
        write_all((state / f"client-{k:05d}.safetensors", here(store.client(k) or b"")) for k in store.clients())
        for k, result in adapted.items():
            if result.client is not None:
                write(state / f"client-{k:05d}.safetensors", here(result.client))
        messages: dict[int, tuple[int, int]] = {}
        if capabilities(self.device.method).peer is not None:
            for k in range(self.clients):  # among peers, weights are in each client's last message
                letter, value_nbytes = store.mail(k, self.recipe.rounds)
                messages[k] = store.mailed(k), value_nbytes
                write(state / f"client-{k:05d}.message", here(letter))
        checkpoint = store.checkpoint()
        if checkpoint is not None and not self.away:
            progress = {"latest": {str(k): stored(score) for k, score in sorted(self.evaluator.latest.items())}}
            progress |= {key: value for key, value in checkpoint.progress.items() if key not in ("sizes", "tail")}
            write(state / PROGRESS, json.dumps(progress | {"messages": messages}, separators=(",", ":")) + "\n")

    def _models(self, server: Server, folder: Path) -> None:
        for result in self.evaluator.models(server):
            if result.message is not None:  # on a fleet models stay on the devices
                folder.mkdir(exist_ok=True)
                write(folder / f"client-{result.k:05d}.safetensors", self.device.exported(result.message))

    def _vectors(self, file: Path) -> None:
        """Write what each client has learnt as a vector, with label counts, for the figure that clusters clients.

        A client without such a vector, now or when it joined, is not in the figure.
        """
        method, reports = self.device.method, capabilities(self.device.method).reports
        if reports is None or self.labels is None:
            return
        tensors: dict[str, Tensor] = {}
        for k in self.evaluator.members:
            if raw := self.store.client(k):
                ctx = self.device.ctx(0, "join", k)
                now = reports.report(loads(here(raw), types_of(method)), None, k, ctx).private
                then = None if now is None else reports.report(method.join(k, ctx), None, k, ctx).private
                if now is not None and then is not None:
                    tensors[f"client-{k:05d}"] = (now - then).contiguous()
        if tensors:
            write(file, save(tensors | {"labels": torch.from_numpy(self.labels()).contiguous()}))
