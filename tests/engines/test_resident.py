"""Data of clients on an accelerator: moved once, the least recently used leave first, and never more than fits."""

import torch

from pretended import COUNTS, DEVICE
from sparsona.core.samples import LocalData, Prepare, Samples
from sparsona.engines.resident import Resident

N = 10
X = torch.arange(4 * N, dtype=torch.float32).view(N, 4)
SIZE = 3 * (4 * 4 + 8 + 8)  # bytes of three samples: inputs, target, place


class Shelf:
    """Samples of three rows each, and who was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, k):
        self.asked.append(k)
        return Samples(X, torch.arange(N), torch.arange(k, k + 3))

    def into(self, resident, k):
        return resident.samples(("test", k), lambda: self(k))


def test_only_the_rows_of_a_client_are_moved():
    samples = Samples(X, torch.arange(N), torch.tensor([7, 2]), Prepare()).to(DEVICE)
    assert len(samples.x) == 2
    for inputs, targets in samples.all(8):
        assert inputs.device == targets.device == DEVICE
        assert inputs.tolist() == X[[7, 2]].tolist()
        assert targets.tolist() == [7, 2]


def test_samples_are_moved_once():
    COUNTS.clear()
    shelf, resident = Shelf(), Resident(DEVICE, 10 * SIZE)
    first = shelf.into(resident, 1)
    copies = sum(COUNTS.copies.values())
    assert copies > 0
    assert shelf.into(resident, 1) is first
    assert (shelf.asked, sum(COUNTS.copies.values())) == ([1], copies)


def test_the_least_recently_used_leave_first_and_the_bound_holds():
    shelf, resident = Shelf(), Resident(DEVICE, 2 * SIZE + 1)
    for k, held in ((0, SIZE), (1, 2 * SIZE), (0, 2 * SIZE), (2, 2 * SIZE)):
        shelf.into(resident, k)
        assert resident.held == held
    shelf.into(resident, 0)  # used after 1, so that 1 has left
    assert shelf.asked == [0, 1, 2]
    shelf.into(resident, 1)
    assert shelf.asked == [0, 1, 2, 1]


def test_who_is_larger_than_the_bound_is_moved_for_each_job_and_displaces_nobody():
    shelf, resident = Shelf(), Resident(DEVICE, SIZE)
    shelf.into(resident, 0)
    large = Samples(X, torch.arange(N), torch.arange(N))
    for _ in range(2):
        assert resident.samples(("test", 9), lambda: large).x.device == DEVICE
    shelf.into(resident, 0)
    assert (resident.held, shelf.asked) == (SIZE, [0])


def test_training_and_validation_samples_are_loaded_once_together():
    asked = []

    def load(k):
        asked.append(k)
        some = Samples(X, torch.arange(N), torch.arange(k, k + 3))
        return LocalData(some, Samples(X, torch.arange(N), torch.tensor([0])))

    resident = Resident(DEVICE, 10 * SIZE)
    data = resident.local(4, load)
    assert (len(data.train), len(data.validation), data.train.x.device) == (3, 1, DEVICE)
    assert resident.local(4, load).train is data.train
    assert asked == [4]
