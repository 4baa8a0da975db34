"""What training sees of its own samples, against sums by hand."""

import math

import pytest
import torch
from torch import nn

from sparsona.core.objective import Objective
from sparsona.core.rng import Rng
from sparsona.core.tally import Tally
from sparsona.core.task import Task

LN3 = math.log(3)


def test_sums_over_batches_of_different_sizes():
    """Logits 0 and ln 3: a loss of ln(4/3) where the label is 1, of ln 4 where it is 0."""
    tally, objective = Tally(), Objective()
    for labels in ([1, 1, 0], [0]):
        y, outputs = torch.tensor(labels), torch.tensor([[0.0, LN3]]).repeat(len(labels), 1)
        tally.add(objective, objective(outputs, y), outputs, y)
    correct, samples, loss = tally.totals()
    assert (correct, samples) == (2, 4)
    assert loss == pytest.approx(2 * math.log(4 / 3) + 2 * math.log(4))
    tally.clear()
    assert tally.totals() is None


def test_numbers_are_not_right_or_wrong():
    tally, objective, y = Tally(), Objective("number", "mse"), torch.tensor([1.0, 3.0])
    tally.add(objective, objective(torch.zeros(2, 1), y), torch.zeros(2, 1), y)
    assert tally.totals() == (None, 2, pytest.approx(10.0))


def test_a_model_that_diverged_has_no_training_loss():
    tally, objective, y = Tally(), Objective(), torch.tensor([0])
    outputs = torch.full((1, 2), float("nan"))
    tally.add(objective, objective(outputs, y), outputs, y)
    assert tally.totals() is None


@pytest.mark.parametrize("objective", [Objective(), Objective(label_smoothing=0.1)])  # one-hot, and packed with weights
def test_weighted_targets_keep_their_class(objective):
    y, outputs = torch.tensor([0, 1, 1]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    weighted = objective.weighted(y)
    carried, tally = weighted.weigh(y, torch.tensor([0.5, 0.25, 1.0]), 2), Tally()
    tally.add(weighted, weighted(outputs, carried), outputs, carried)
    correct, samples, _ = tally.totals()
    assert (correct, samples) == (round(0.75), round(1.75))  # by weight: the third, of weight 1, is wrong


def test_a_task_counts_the_gradients_that_are_asked_to_count():
    task, theta = Task.of(nn.Linear(2, 2, bias=False), torch.zeros(1, 2))
    batch = torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1])
    with torch.no_grad():
        expected = float(nn.functional.cross_entropy(batch[0] @ task.layout.unflatten(theta)["weight"].T, batch[1]))
    plain = task.gradient_at(theta, batch)
    assert task.tally.totals()[1:] == (2, pytest.approx(2 * expected))
    assert torch.equal(task.gradient_at(theta, batch, tally=False), plain)
    assert task.tally.totals()[1] == 2
    with task.training(_batches()):
        task.gradients(batch)
    assert task.tally.totals()[1] == 4


def _batches():
    from sparsona.core.samples import Samples

    samples = Samples(torch.zeros(2, 2), torch.tensor([0, 1]), torch.arange(2))
    return samples.epochs(Rng(0), 1, 2)


@pytest.mark.parametrize("packed", [False, True])
def test_tokens_that_are_not_predicted_do_not_count(packed):
    """Two texts of three tokens, of which one and two are targets; all logits equal but for token 1: ln 3 against 1."""
    objective, y = Objective("tokens"), torch.tensor([[-100, -100, 1], [-100, 1, 0]])
    outputs = torch.tensor([0.0, LN3]).expand(2, 3, 2)
    weighted = objective.weighted(y) if packed else objective
    carried = weighted.weigh(y, torch.tensor([0.25, 0.75]), 2) if packed else y
    tally = Tally()
    tally.add(weighted, weighted(outputs, carried), outputs, carried)
    right, wrong = math.log(4 / 3), math.log(4)
    if packed:  # by samples: a quarter of the first text and three of the second, half of which is right
        expected = (round(0.25 + 0.75 / 2), 1, 0.25 * right + 0.75 * (right + wrong) / 2)
    else:
        expected = (2, 3, 2 * right + wrong)
    correct, count, loss = tally.totals()
    assert (correct, count) == expected[:2]
    assert loss == pytest.approx(expected[2])


def test_shares_of_a_sample_add_up_to_it():
    """Three models that share each sample out: their sums are those of one sample each, as FedEM trains."""
    objective, tally = Objective(), Tally()
    y, outputs, shares = torch.tensor([3, 3]), torch.randn(3, 2, 4), torch.tensor([[0.2, 1.0], [0.3, 0.0], [0.5, 0.0]])
    for out, share in zip(outputs, shares, strict=True):
        carried = objective.weigh(y, share, 4)
        tally.add(objective, objective(out, carried), out, carried)
    each = torch.stack([nn.functional.cross_entropy(out, y, reduction="none") for out in outputs])
    _, count, loss = tally.totals()
    assert count == 2
    assert loss == pytest.approx(float((each * shares).sum()), rel=1e-5)


def test_many_batches_are_added_up_on_the_way():
    objective, tally = Objective(), Tally()
    y, outputs = torch.tensor([1]), torch.tensor([[0.0, LN3]])
    for _ in range(600):
        tally.add(objective, objective(outputs, y), outputs, y)
    assert len(tally._waiting) < 256
    assert tally.totals() == (600, 600, pytest.approx(600 * math.log(4 / 3)))
