"""Other first values of a model."""

import torch
from torch import Tensor, nn

from sparsona.core.initial import redrawn
from sparsona.core.rng import Rng
from sparsona.core.task import Task


class Scale(nn.Module):
    """A layer that PyTorch does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.head, self.shift = Scale(), nn.Linear(4, 2), nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.scale(x)) + self.shift


def test_every_layer_that_can_draws_anew_by_its_key():
    task, theta = Task.of(Net(), torch.zeros(2, 4))
    one, again, other = (redrawn(task, theta, Rng(key)) for key in (1, 1, 2))
    assert torch.equal(one, again)
    first, drawn = task.layout.unflatten(theta), task.layout.unflatten(one)
    assert torch.equal(drawn["shift"], first["shift"])
    for name in ("scale.weight", "head.weight", "head.bias"):
        assert not torch.equal(drawn[name], first[name])
        assert not torch.equal(drawn[name], task.layout.unflatten(other)[name])
