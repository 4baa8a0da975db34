"""A tiny recipe that every test of whole runs shares."""

from typing import Any

from sparsona.config import Recipe, check

OWN: dict[str, dict[str, Any]] = {
    "subfedavg": {"accuracy": 0.1},
    "pfedgate": {"momentum": 0.9, "lr": 0.3},
    "lgfedavg": {"share": "head"},
}
SUITS: dict[str, dict[str, Any]] = {"beer": {"fixed": True, "max_wait": 0}}


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
        "method": {"name": name, "lr": 0.1, "batch": 16} | OWN.get(name, {}),
        "fleet": {"per_round": 3},
        "topology": {"neighbours": 2, "max_wait": 1, "fixed": False} | SUITS.get(name, {}),  # without a server
        "evaluate": {"points": ["before", "after"]},
        "engine": {"name": engine, "workers": workers, "checkpoint_every": checkpoint_every},
        "results": {"figures": False},
    }
    for key, value in more.items():
        raw[key] = raw[key] | value if isinstance(value, dict) and isinstance(raw.get(key), dict) else value
    return check(raw)
