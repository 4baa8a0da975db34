"""Your own arrays: six machines, each with its own vibrations, faults and test set, in one .npz file."""

import numpy as np

import sparsona

rng = np.random.default_rng(1)
machines = np.array([f"machine {i}" for i in range(6)])


def measured(n):
    """So many measurements of each machine: eight sensors, and which of three faults it was."""
    client = np.repeat(np.arange(6), n)
    fault = rng.integers(0, 3, len(client))
    offset = np.linspace(-3, 3, 6)[client]  # no two machines sound alike
    x = rng.normal(size=(len(client), 8)) + offset[:, None]
    x[np.arange(len(client)), fault + client % 3] += 2.5  # nor do their faults
    return {"x": x, "y": fault, "client": machines[client]}


train, test = measured(80), measured(40)
np.savez("machines.npz", **train, **{f"{name}_test": value for name, value in test.items()})

recipe = {
    "name": "machines",
    "rounds": 10,
    "data": {"source": "machines.npz"},  # its clients and its test sets are used as they are
    "model": {"name": "mlp"},
    "engine": {"name": "local"},
}
for method in ("fedavg", "ditto"):
    run = sparsona.run(sparsona.check_recipe({**recipe, "method": {"name": method, "lr": 0.05}}))
    last = {row["name"]: row["before"] for row in run.clients if "before" in row}
    scores = ", ".join(f"{name} {score['correct'] / score['samples']:.0%}" for name, score in last.items())
    print(f"{method}: {run.summary['accuracy']:.1%} ({scores})")
