"""Models have the sizes and costs their papers print, and a wrong model or input is refused in clear words."""

from __future__ import annotations

import copy
import inspect
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pretended import DEVICE
from sparsona.core.layout import CPU, Layout
from sparsona.core.objective import Objective, Target
from sparsona.core.task import Task
from sparsona.models import MODELS, build, example
from sparsona.models.norms import BatchNorm
from sparsona.models.pooling import average_to
from tiers import tiered

# name, classes, parameters, operations of one forward pass (None where no paper prints them)
PRINTED = [
    ("lenet5", 26, 439_096, 4_617_246),
    ("vgg11-gn", 10, 9_231_114, 305_690_634),
    ("vgg11-gn", 100, 9_277_284, 305_782_884),
    ("resnet18-gn", 100, 11_220_132, 1_110_937_700),
    ("resnet18-gn", 10, 11_173_962, 1_110_845_450),
    ("resnet18-bn", 10, 11_173_962, 1_110_845_450),
    ("preresnet18", 10, 11_172_170, None),
    ("mobilenet", 100, 3_309_476, None),
    ("alexnet-bn", 10, 57_063_498, None),
    ("alexnet", 10, 23_272_266, None),
    ("alexnet", 7, 23_259_975, 376_020_999),
    ("cnn-emnist", 10, 2_171_786, None),
    ("cnn-emnist", 62, 2_278_334, None),
    ("lenet-cifar", 10, 256_830, None),
    ("cnn-cifar100", 100, 3_537_444, None),
    ("convnet2", 10, 34_826, None),
    ("imdb", 2, 160_017, None),
    ("lenet", 10, 44_426, None),
    ("cnn", 10, 582_026, None),
    ("digits-cnn", 10, 6_090, None),
    ("digits-lenet", 10, 16_914, None),
    ("digits-mlp", 10, 4_810, None),
    ("digits-deep", 10, 21_626, None),
    ("mlp", 2, 1_218, None),
    ("char-cnn", 100, 40_548, None),
]

# PerFedMask's layer sizes, |pi_j|
LAYERS = {
    "preresnet18": [1728, 73984, 73984, 229760, 295424, 918272, 1180672, 3671552, 4720640, 1024],
    "mobilenet": [928, 2528, 9152, 18048, 34688, 68864, 134912, *[268800] * 5, 531968, 1061888],
    "alexnet-bn": [23424, 307776, 664704, 885504, 590592, 37761024, 16789504],
}


def test_every_model_is_listed() -> None:
    assert {name for name, *_ in PRINTED} == set(MODELS)
    for name, entry in MODELS.items():
        assert (name, entry.classes) in {(n, c) for n, c, *_ in PRINTED}


WIDE = {"alexnet", "resnet18-bn", "resnet18-gn", "vgg11-gn"}  # only whole, which takes seconds


@pytest.mark.parametrize("name", tiered(sorted(MODELS), short=MODELS.keys() - WIDE))
def test_gradients_on_an_accelerator_are_those_of_the_host_but_for_rounding(name: str) -> None:
    entry, tokens = MODELS[name], name == "char-cnn"
    width = 0.125 if "width" in inspect.signature(entry.make).parameters else 1.0
    target: Target = "tokens" if tokens else "class"
    model = build(name, entry.classes, entry.shape, entry.classes if tokens else None, width, target)
    inputs = example(model, entry.shape, 2)
    targets = torch.zeros(2, *(entry.shape if tokens else ()), dtype=torch.int64)
    objective, gradients = Objective(target), []
    for where in (CPU, DEVICE):
        task, theta = Task.of(copy.deepcopy(model), inputs, objective, where)
        gradients.append(task.gradient_at(theta, (inputs.to(where), targets.to(where))).cpu())
    largest = float(gradients[0].abs().max())
    assert largest > 0
    torch.testing.assert_close(gradients[0] / largest, gradients[1] / largest, rtol=0, atol=1e-3)


def test_averages_of_windows_are_those_of_pytorch() -> None:
    x = torch.randn(2, 3, 7, 5, dtype=torch.float64)
    for size in (1, 2, 6, 9):
        torch.testing.assert_close(average_to(x.to(DEVICE), size).cpu(), F.adaptive_avg_pool2d(x, size))


NARROW = [  # name, classes, width, parameters and those of the body
    ("preresnet18", 10, 0.125, 176_178, 175_528),
    ("mobilenet", 100, 0.125, 70_380, 57_480),
    ("mobilenet", 100, 0.25, 238_772, 213_072),
    ("alexnet-bn", 10, 0.125, 901_714, 896_584),
    ("digits-deep", 10, 0.5, 6_594, 6_424),
    ("digits-cnn", 10, 0.5, 1_898, 1_248),
]


@pytest.mark.parametrize(("name", "classes", "width", "params", "body"), NARROW)
def test_narrow_models(name: str, classes: int, width: float, params: int, body: int) -> None:
    shape = MODELS[name].shape
    model = build(name, classes, shape, width=width)
    layout = Layout.of(model, example(model, shape))
    assert (layout.params, sum(layout.groups)) == (params, body)


def test_a_model_that_cannot_be_narrower_says_so() -> None:
    with pytest.raises(
        ValueError,
        match=r'model "imdb" cannot be built for 2 classes and inputs of shape \(256,\): width: '
        r"0\.5 is not allowed; expected 1\.0",
    ):
        build("imdb", 2, (256,), width=0.5)


@pytest.mark.parametrize(("name", "classes", "params", "flops"), PRINTED)
def test_printed_numbers(name: str, classes: int, params: int, flops: int | None) -> None:
    shape = MODELS[name].shape
    text = name == "char-cnn"  # predicts the next of as many tokens as there are classes
    model = build(name, classes, shape, classes, target="tokens") if text else build(name, classes, shape)
    assert model.training
    one = example(model, shape)
    layout = Layout.of(model, one)
    assert layout.params == params
    outputs = 1 if name == "imdb" else classes
    assert sum(s.size for s in layout.slots if s.head) == outputs * (model.head.weight.shape[1] + 1)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        assert model(one).shape == ((1, *shape, outputs) if text else (1, outputs))
    biases = sum(s.uses * s.size for s in layout.slots if s.kind == "bias")
    assert layout.flops() - biases == counter.get_total_flops()
    if flops is not None:
        assert layout.flops() == flops


@pytest.mark.parametrize("name", LAYERS)
def test_models_of_perfedmask(name: str) -> None:
    model = build(name, 10, MODELS[name].shape)
    tensors = dict(model.named_parameters())
    sizes = [sum(p.numel() for n, p in tensors.items() if n.startswith(group)) for group in model.layer_groups]
    assert sizes == LAYERS[name]
    groups = [[group for group in model.layer_groups if n.startswith(group)] for n in tensors]
    assert [len(g) for n, g in zip(tensors, groups, strict=True) if not n.startswith("head.")] == [1] * (
        len(tensors) - 2
    )

    assert not list(model.buffers())
    x = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        trained, tested, fewer = model.train()(x), model.eval()(x), model(x[:2])
    torch.testing.assert_close(trained, tested, rtol=0, atol=0)
    assert not torch.allclose(tested[:2], fewer)


def test_batch_norm_is_that_of_the_batch() -> None:
    x = torch.randn(5, 4, 3, 3)
    torch.testing.assert_close(BatchNorm(4)(x), nn.BatchNorm2d(4)(x))
    rows = torch.randn(5, 4)
    torch.testing.assert_close(BatchNorm(4)(rows), nn.BatchNorm1d(4)(rows))


def test_batch_norm_takes_a_lone_sample() -> None:
    norm = BatchNorm(4)
    nn.init.normal_(norm.bias)
    x = torch.randn(1, 4, requires_grad=True)
    out = norm(x)
    torch.testing.assert_close(out[0], norm.bias, rtol=0, atol=2e-3)  # 1 / sqrt(eps) magnifies rounding
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.zeros(1, 4))


def test_ordinary_batch_norm_keeps_running_statistics() -> None:
    model = build("resnet18-bn", 10, (3, 32, 32))
    assert torch.equal(model.stem[1].running_mean, torch.zeros(64))  # the check did not move them
    model(torch.randn(2, 3, 8, 8))
    assert not torch.equal(model.stem[1].running_mean, torch.zeros(64))


def test_pooling_before_relu_is_the_same() -> None:
    model = build("lenet5", 26, (1, 28, 28))
    first, second = model.convs
    plain = nn.Sequential(
        first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), model.hidden[0], nn.ReLU()
    )
    x = torch.randn(2, 1, 28, 28)
    torch.testing.assert_close(model(x), model.head(plain(x)))


def test_dropout_only_in_training() -> None:
    for name, shape in {"convnet2": (1, 28, 28), "alexnet": (3, 32, 32)}.items():
        model, x = build(name, 10, shape), torch.randn(2, *shape)
        assert not torch.equal(model(x), model(x))
        model.eval()
        assert torch.equal(model(x), model(x))


def test_imdb_averages_over_all_positions() -> None:
    model = build("imdb", 2, (256,))
    x = torch.zeros(1, 256, dtype=torch.int64)
    x[0, 0] = 7
    mean = (model.embedding.weight[7] + 255 * model.embedding.weight[0]) / 256
    torch.testing.assert_close(model(x)[0], model.head(mean))
    torch.testing.assert_close(model(x.to(torch.int16)), model(x))
    assert build("imdb", 5, (256,)).head.out_features == 5


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lenet", (3, 32, 32)),
        ("lenet-cifar", (1, 28, 28)),
        ("digits-mlp", (64,)),
        ("vgg11-gn", (1, 64, 64)),
        ("resnet18-gn", (1, 28, 28)),
        ("mobilenet", (1, 28, 28)),
        ("alexnet", (3, 28, 28)),
        ("imdb", (20,)),
    ],
)
def test_other_inputs_fit(name: str, shape: tuple[int, ...]) -> None:
    model = build(name, 5, shape)
    x = example(model, shape, size=3)
    x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
    assert model(x).shape == (3, 5)


@pytest.mark.parametrize(
    ("name", "classes", "shape", "words"),
    [
        (
            "lenet",
            10,
            (1, 8, 8),
            [
                'model "lenet" cannot be built for 10 classes and inputs of shape (1, 8, 8): '
                "Calculated padded input size per",
                "(1, 8, 8)",
                "(1, 28, 28)",
            ],
        ),
        (
            "vgg11-gn",
            10,
            (1, 28, 28),
            [
                'model "vgg11-gn" does not fit inputs of shape (1, 28, 28): Given input size: '
                "(512x1x1). Calculated output",
                "(1, 28, 28)",
                "(3, 32, 32)",
            ],
        ),
        (
            "resnet18-gn",
            10,
            (256,),
            [
                'model "resnet18-gn" does not fit inputs of shape (256,): '
                "Expected 3D (unbatched) or 4D (batched) input to",
                "(256,)",
                "(3, 32, 32)",
            ],
        ),
        (
            "imdb",
            2,
            (1, 28, 28),
            [
                'model "imdb" returns (2, 28, 28, 1) for a batch of 2 inputs of shape (1, 28, 28); '
                "expected (2, 2) or (2, 1)",
                "(1, 28, 28)",
                "(256,)",
            ],
        ),
        ("lenet", 0, (1, 28, 28), ["classes", "classes: 0 is not allowed; expected an int >= 1", "0"]),
        ("lenet", 10, (1, 0, 28), ["shape", "(1, 0, 28)"]),
        ("lenet", 10, (), ["shape", "()"]),
        (
            "resnet18",
            10,
            (3, 32, 32),
            [
                'model "resnet18": not found',
                'did you mean "resnet18-gn", "resnet18-bn" or "preresnet18"?',
                'model "resnet18": not found; did you mean "resnet18-gn", "resnet18-bn" or "preresnet18"?',
            ],
        ),
        (
            "qqq",
            10,
            (3, 32, 32),
            ['model "qqq": not found', 'model "qqq": not found; list the models with: sparsona models'],
        ),
        (
            ":Net",
            10,
            (3, 32, 32),
            ['model.name: module "" cannot be imported: ValueError: Empty module name', "cannot be imported"],
        ),
        ("no_such_module_here:Net", 10, (3, 32, 32), ["no_such_module_here", "cannot be imported"]),
        ("builtins:int", 10, (3, 32, 32), ['model "builtins:int" is of type int; expected a torch.nn.Module']),
        (
            "own_models:Missing",
            3,
            (4,),
            ['model.name: class "Missing" not found in module "own_models"', "own_models", "Both, Fixed"],
        ),
        ("own_models:NUMBER", 3, (4,), ['model.name: class "NUMBER" not found in module "own_models"']),
        (
            "own_models:Plain",
            3,
            (4,),
            [
                'model "own_models:Plain" is of type Plain; expected a torch.nn.Module',
                "torch.nn.Module",
                'model "own_models:Plain" is of type Plain; expected a torch.nn.Module',
            ],
        ),
        (
            "own_models:Needy",
            3,
            (4,),
            [
                'model "own_models:Needy" cannot be built for 3 classes and inputs of shape (4,): '
                "Needy.__init__() missing 1",
                "width",
            ],
        ),
        (
            "own_models:Fixed",
            3,
            (5,),
            [
                'model "own_models:Fixed" does not fit inputs of shape (5,): '
                "mat1 and mat2 shapes cannot be multiplied (2x5",
                "does not fit",
                "(5,)",
            ],
        ),
        ("own_models:Fixed", 4, (4,), ["(2, 3)", "4 classes", "(2, 4)"]),
        ("own_models:Fixed", 2, (4,), ["2 classes", "(2, 2) or (2, 1)"]),
        (
            "own_models:Pair",
            3,
            (4,),
            [
                'model "own_models:Pair" returns tuple for a batch of 2 inputs of shape (4,); expected (2, '
                "3) for 3 classes"
            ],
        ),
    ],
)
@pytest.mark.usefixtures("own")
def test_errors_say_what_is_wrong(name: str, classes: int, shape: tuple[int, ...], words: list[str]) -> None:
    with pytest.raises(ValueError, match=r"model|classes|shape") as caught:
        build(name, classes, shape)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "classes", "shape"),
    [("Both", 6, (2, 4)), ("Fixed", 3, (4,)), ("Logit", 2, (4,)), ("Words", 3, (9,)), ("factory", 3, (4,))],
)
def test_own_models(name: str, classes: int, shape: tuple[int, ...]) -> None:
    model = build(f"own_models:{name}", classes, shape)
    assert model.training
    out: Tensor = model(example(model, shape, size=2))
    assert out.shape == (2, 1 if name == "Logit" else classes)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's module in a folder that Python can import from."""
    (tmp_path / "own_models.py").write_text(
        """
import math
from torch import nn

NUMBER = 3

class Both(nn.Sequential):
    def __init__(self, *, shape, classes, width=8):
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), width), nn.Linear(width, classes))

class Fixed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 3))

class Logit(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 1))

class Words(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.EmbeddingBag(50, 4), nn.Linear(4, classes))

class Pair(Fixed):
    def forward(self, x):
        return x, x

class Needy(Fixed):
    def __init__(self, width):
        super().__init__()

class Plain:
    pass

def factory():
    return Fixed()
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_models", raising=False)
