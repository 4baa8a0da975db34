"""A sampler of your own: devices charge at night, so each client takes part in one half of every ten rounds."""

import numpy as np

import sparsona


def at_night(t: int, clients: list[int], per_round: int, rng: np.random.Generator) -> list[int]:
    """The clients of round t (from 0): even numbers in the first five rounds of ten, odd numbers in the others."""
    awake = [k for k in clients if k % 2 == t // 5 % 2]
    return rng.choice(awake, min(per_round, len(awake)), replace=False).tolist()


if __name__ == "__main__":
    changes = ["rounds=10", "fleet.per_round=3", "fleet.sampler=own_sampler:at_night", "evaluate.every=5"]
    (run,) = sparsona.load("quickstart", changes, only=["personal"]).run("own-sampler")
    for row in run.rounds:
        print(f"round {row['round']}: clients {row['participants']}")
    print(f"accuracy {run.summary['accuracy']:.1%}")
