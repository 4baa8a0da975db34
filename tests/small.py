"""A tiny recipe that every test of whole runs shares."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from sparsona.core.wire import Message
from sparsona.engines.device import Device
from sparsona.engines.jobs import Job, Result
from sparsona.engines.local import LocalEngine
from sparsona.experiment.recipe import Recipe, check

SUITS: dict[str, dict[str, dict[str, Any]]] = {  # by method: what it needs, or what makes so few rounds show all of it
    "beer": {"topology": {"name": "mutual", "fixed": True, "max_wait": 0}},
    "dfedavgm": {"topology": {"max_wait": 0}},
    "dadpfl": {"method": {"threshold": 10.0}},  # all vote yes in round 2, and prune from round 3 on
    "fedmask": {"method": {"lr": 5.0, "keep": 0.8, "epochs": 3}},
    "lgfedavg": {"method": {"share": "head"}},
    "perfedmask+heterofl": {"method": {"width": 0.75, "budget": 1.0}},
    "perfedmask+splitmix": {"method": {"bases": 2, "budget": 1.0}},
    "pfedgate": {"method": {"momentum": 0.9, "lr": 0.3}},
    "splitmix": {"method": {"bases": 2, "weak": 3}},
    "subfedavg": {"method": {"accuracy": 0.1}},
}


def recipe(
    name: str = "fedavg",
    /,
    *,
    rounds: int = 3,
    engine: str = "local",
    workers: int = 2,
    checkpoint_every: int = 1,
    **more: Any,
) -> Recipe:
    """Six clients with digits, three a round, two epochs of a small network."""
    raw: dict[str, Any] = {
        "name": "small",
        "rounds": rounds,
        "seed": 7,
        "data": {"source": "digits", "clients": 6, "alpha": 0.5, "sample_share": 0.3},
        "model": {"name": "digits-mlp"},
        "method": {"name": name, "lr": 0.1, "batch": 16},
        "fleet": {"per_round": 3},
        "topology": {"neighbours": 2, "max_wait": 1, "fixed": False},  # without a server
        "evaluate": {"points": ["before", "after"]},
        "engine": {
            "name": engine,
            "workers": 1 if engine == "local" else workers,
            "checkpoint_every": checkpoint_every,
        },
        "results": {"figures": False},
    }
    for key, value in [*SUITS.get(name, {}).items(), *more.items()]:
        raw[key] = raw[key] | value if isinstance(value, dict) and isinstance(raw.get(key), dict) else value
    return check(raw)


class Meddler(LocalEngine):
    """An engine whose client 3 sends something else than it should."""

    def __init__(self, device: Device, change: Callable[[Message], Message]) -> None:
        super().__init__(device)
        self.change = change

    def map(self, jobs: Iterable[Job]) -> Iterator[Result]:
        for result in super().map(jobs):
            assert result.message is not None
            yield replace(result, message=self.change(result.message)) if result.k == 3 else result
