"""A loss and a metric of your own: focal loss, and how sure a model is of its mistakes."""

import numpy as np
import torch
import torch.nn.functional as F

import sparsona


def focal_loss(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The loss of each sample [n]: cross entropy that counts less where the model is right already."""
    losses = F.cross_entropy(outputs, y, reduction="none")
    return (1 - torch.exp(-losses)) ** 2 * losses


def confidence_in_errors(y: np.ndarray, outputs: np.ndarray) -> float | None:
    """The mean probability that the model gave its wrong answers; None for a client without any."""
    chances = np.exp(outputs - outputs.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    wrong = outputs.argmax(1) != y
    return float(chances[wrong].max(1).mean()) if wrong.any() else None


if __name__ == "__main__":
    recipe = {
        "name": "focal",
        "rounds": 10,
        "data": {"source": "digits", "clients": 6},
        "model": {"name": "digits-mlp"},
        "task": {
            "loss": "own_metric:focal_loss",
            "metrics": ["accuracy", "-own_metric:confidence_in_errors"],  # the minus: lower is better
        },
        "method": {"name": "fedavg", "lr": 0.5},
        "engine": {"name": "local"},
    }
    run = sparsona.run(sparsona.check_recipe(recipe))
    score = run.summary["before"]
    errors = f"confidence in errors {score['confidence_in_errors']:.2f}"
    print(f"accuracy {score['accuracy']:.1%}, {errors}, undefined for {score.get('undefined', 'nobody')}")
