import math

import pytest
import torch

from sparsona.core.objective import IGNORED, Objective, mixed
from sparsona.engines.measure import Measure, Measuring

THIRD = math.log(3)  # the cross entropy of three classes that are equally likely


def test_single_logit_is_binary():
    logits = torch.tensor([[2.0], [-1.0], [0.5]])
    y = torch.tensor([1, 0, 0])
    plain = Objective()
    assert plain.correct(logits, y) == 2
    assert plain.correct(torch.full((3, 1), torch.nan), torch.tensor([0, 0, 1])) == 0
    assert plain.correct(torch.tensor([[torch.nan, 1.0], [2.0, 1.0]]), torch.tensor([0, 0])) == 1
    sigmoid = [1 / (1 + math.exp(-z)) for z in (2.0, 1.0, 0.5)]
    assert plain.total(logits, y) == pytest.approx(
        -math.log(sigmoid[0]) - math.log(sigmoid[1]) - math.log(1 - sigmoid[2])
    )


def test_labels_are_scored_one_by_one_and_right_together():
    objective = Objective("labels", "bce")
    outputs, y = torch.tensor([[2.0, -1.0], [0.5, 0.5]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    soft = [math.log(1 + math.exp(-z)) for z in (2.0, 1.0, 0.5, -0.5)]  # of the four logits, by hand
    assert objective.each(outputs, y).tolist() == pytest.approx([(soft[0] + soft[1]) / 2, (soft[2] + soft[3]) / 2])
    assert float(objective(outputs, y)) == pytest.approx(sum(soft) / 4)
    assert objective.correct(outputs, y) == 1
    assert objective.total(outputs, y) == pytest.approx(sum(soft) / 2)


@pytest.mark.parametrize(("loss", "each"), [("mse", [1.0, 9.0]), ("huber", [0.5, 2.5])])
def test_numbers(loss, each):
    objective = Objective("number", loss)
    y = torch.tensor([1.0, 2.0])
    for outputs in (torch.tensor([2.0, 5.0]), torch.tensor([[2.0], [5.0]])):
        assert objective.each(outputs, y).tolist() == pytest.approx(each)
        assert float(objective(outputs, y)) == pytest.approx(sum(each) / 2)
        assert objective.total(outputs, y) == pytest.approx(sum(each))
        assert objective.correct(outputs, y) is None


def test_ignored_tokens_do_not_count():
    objective = Objective("tokens")
    outputs = torch.zeros(2, 3, 3)
    outputs[0, 0, 1] = 100.0  # sure of token 1
    y = torch.tensor([[1, 2, IGNORED], [IGNORED, IGNORED, IGNORED]])
    assert objective.count(y) == 2
    assert objective.correct(outputs, y) == 1
    assert objective.total(outputs, y) == pytest.approx(THIRD)
    assert float(objective(outputs, y)) == pytest.approx(THIRD / 2)
    assert objective.each(outputs, y).tolist() == pytest.approx([THIRD / 2, 0.0])
    assert float(objective(outputs, torch.full((2, 3), IGNORED))) == 0  # and not NaN


def test_label_smoothing_by_hand():
    outputs, y = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    p = 1 / (1 + math.exp(-1.0))
    want = -(0.9 * math.log(p) + 0.1 * math.log(1 - p))  # a fifth is spread over both
    assert float(Objective(label_smoothing=0.2)(outputs, y)) == pytest.approx(want)
    single = torch.tensor([[1.0]])  # the same model with one logit, of class 1
    assert float(Objective(label_smoothing=0.2)(single, torch.tensor([1]))) == pytest.approx(want)


def test_own_loss_gives_one_per_sample():
    def cubic(outputs, y):
        return (outputs[:, 0] - y).abs() ** 3

    objective = Objective("number", cubic)
    outputs, y = torch.tensor([[3.0], [1.0]]), torch.tensor([1.0, 0.0])
    assert objective.each(outputs, y).tolist() == [8.0, 1.0]
    assert float(objective(outputs, y)) == 4.5
    with pytest.raises(
        ValueError,
        match=r"task\.loss: the function returned \[\]; expected a tensor of shape \[2\], " r"one loss per sample",
    ):
        Objective("number", lambda outputs, y: outputs.sum())(outputs, y)


@pytest.mark.parametrize(
    ("objective", "outputs", "y"),
    [
        (Objective(), torch.randn(3, 4), torch.tensor([0, 3, 1])),
        (Objective(label_smoothing=0.1), torch.randn(3, 4), torch.tensor([0, 3, 1])),
        (Objective("labels", "bce"), torch.randn(3, 2), torch.tensor([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])),
        (Objective("number", "mse"), torch.randn(3, 1), torch.tensor([0.5, 3.0, 1.0])),
        (Objective("number", "huber"), torch.randn(3, 2), torch.randn(3, 2)),
        (Objective("tokens"), torch.randn(3, 2, 5), torch.tensor([[0, 4], [2, IGNORED], [1, 1]])),
        (Objective("number", lambda o, y: (o[:, 0] - y) ** 2), torch.randn(3, 1), torch.tensor([0.5, 3.0, 1.0])),
    ],
)
def test_weights_scale_the_loss_of_each_sample(objective, outputs, y):
    weights = torch.tensor([0.5, 0.0, 2.0])
    targets = objective.weigh(y, weights, outputs.shape[-1])
    want = float((objective.each(outputs, y) * weights).mean())
    assert float(objective.weighted(y)(outputs, targets)) == pytest.approx(want, rel=1e-5)


def test_models_are_mixed_by_what_they_predict():
    shares = torch.tensor([0.25, 0.75])
    assert mixed(torch.tensor([[[4.0]], [[8.0]]]), shares, "mean").tolist() == [[7.0]]
    logits = torch.tensor([[[0.0]], [[math.log(3.0)]]])  # chances of 1/2 and 3/4: 11/16 together
    assert mixed(logits, shares, "sigmoid").item() == pytest.approx(math.log(11 / 5), rel=1e-5)
    both = torch.stack([torch.tensor([[0.0, 0.0]]), torch.tensor([[math.log(3.0), 0.0]])])
    assert mixed(both, shares, "softmax").exp()[0].tolist() == pytest.approx([11 / 16, 5 / 16], rel=1e-5)


def test_measures_see_all_batches_at_once():
    total = Measure(lambda outputs, y: (y, outputs), lambda y, outputs: float((y * outputs[:, 0]).sum()))
    measuring = Measuring({"total": total})
    measuring.add(torch.tensor([[1.0], [2.0]]), torch.tensor([1.0, 1.0]))
    measuring.add(torch.tensor([[3.0]]), torch.tensor([2.0]))
    assert measuring.values() == {"total": 9.0}
    measuring.add(torch.tensor([[math.inf]]), torch.tensor([2.0]))
    assert math.isnan(measuring.values()["total"] or 0.0)
    assert Measuring({}).values() == {}
