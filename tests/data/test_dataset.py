"""What a data set says of itself: what a model must give, and the groups that partitioners divide by."""

import numpy as np
import torch

from sparsona.core.samples import Prepare
from sparsona.data import Dataset


def dataset(y: torch.Tensor, target: str, names: tuple[str, ...] = (), train: int | None = None) -> Dataset:
    n = len(y)
    x = torch.zeros(n, 1)
    return Dataset("made up", x, y, train or n, names, (1,), Prepare(), vocabulary=7, target=target)  # type: ignore[arg-type]


def test_classes_are_their_own_strata() -> None:
    data = dataset(torch.tensor([2, 0, 1]), "class", ("a", "b", "c"))
    assert (data.outputs, data.strata.tolist(), data.stratum_names) == (3, [2, 0, 1], ("a", "b", "c"))


def test_labels_divide_by_the_first_that_is_set() -> None:
    data = dataset(torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]), "labels", ("a", "b"))
    assert (data.outputs, data.strata.tolist(), data.stratum_names) == (2, [1, 0, 2], ("a", "b", "no label"))
    assert data.strata.dtype == np.int64


def test_numbers_divide_by_decile_of_the_training_part() -> None:
    y = torch.cat([torch.arange(100.0), torch.tensor([-5.0, 1e9])])
    data = dataset(y, "number", train=100)
    assert data.strata[:100].tolist() == [i // 10 for i in range(100)]
    assert data.strata[100:].tolist() == [0, 9]
    assert (data.outputs, len(data.stratum_names)) == (1, 10)
    assert dataset(torch.zeros(4, 3), "number").outputs == 3


def test_tokens_are_one_stratum() -> None:
    data = dataset(torch.zeros(4, 5, dtype=torch.int64), "tokens")
    assert (data.outputs, data.strata.tolist(), len(data.stratum_names)) == (7, [0] * 4, 1)
