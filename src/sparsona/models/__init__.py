"""Models: ordinary ``nn.Module``s, each with the parameter count its paper prints, and a door for your own."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from sparsona.core import imports
from sparsona.models.alexnet import AlexNet, AlexNetBN
from sparsona.models.mobilenet import MobileNet
from sparsona.models.resnet import PreResNet18, ResNet18
from sparsona.models.simple import BagOfWords, ConvNet, Perceptron
from sparsona.models.vgg import VGG11

__all__ = ["MODELS", "Entry", "build", "example"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """A model by name: how it is made and what it is made for."""

    make: Callable[..., nn.Module]  # takes the keywords classes and shape, or those of the two it needs
    shape: Shape  # of one input; other sizes fit as long as the layers can handle them
    classes: int
    about: str


_CONV = partial(ConvNet, widths=(32, 64))

MODELS: dict[str, Entry] = {
    "digits-cnn": Entry(
        partial(ConvNet, widths=(16, 32), hidden=(), kernel=3, padding=1), (1, 8, 8), 10, "small CNN for 8x8 digits"
    ),
    "digits-lenet": Entry(
        partial(ConvNet, widths=(16, 40), hidden=(64,), kernel=3, padding=1),
        (1, 8, 8),
        10,
        "CNN with a hidden layer for 8x8 digits, pFedGate's in small",
    ),
    "digits-mlp": Entry(Perceptron, (1, 8, 8), 10, "one hidden layer of 64 for 8x8 digits"),
    "digits-deep": Entry(
        partial(Perceptron, hidden=(64, 96, 64, 48, 32)), (1, 8, 8), 10, "five hidden layers for 8x8 digits"
    ),
    "lenet": Entry(partial(ConvNet, widths=(6, 16), hidden=(120, 84)), (1, 28, 28), 10, "classic LeNet-5, 44 thousand"),
    "lenet5": Entry(partial(ConvNet, widths=(20, 50), hidden=(500,)), (1, 28, 28), 26, "LeNet-5, FedSpa on EMNIST"),
    "cnn": Entry(partial(_CONV, hidden=(512,)), (1, 28, 28), 10, "CNN common in federated learning, 582 thousand"),
    "cnn-emnist": Entry(partial(_CONV, hidden=(2048,)), (1, 28, 28), 62, "CNN, pFedGate on EMNIST and FEMNIST"),
    "lenet-cifar": Entry(partial(_CONV, hidden=(120, 84)), (3, 32, 32), 10, "wide LeNet, pFedGate on CIFAR-10"),
    "cnn-cifar100": Entry(partial(_CONV, hidden=(2048,)), (3, 32, 32), 100, "CNN, pFedGate on CIFAR-100"),
    "convnet2": Entry(
        partial(_CONV, hidden=(), kernel=3, dropout=0.5), (1, 28, 28), 10, "ConvNet2 with dropout, FedPSE on MNIST"
    ),
    "imdb": Entry(BagOfWords, (256,), 2, "mean word embedding with one logit, FedPSE on IMDB"),
    "vgg11-gn": Entry(VGG11, (3, 32, 32), 10, "VGG-11 with group normalisation, FedSpa and DA-DPFL"),
    "resnet18-gn": Entry(ResNet18, (3, 32, 32), 100, "ResNet-18 with group normalisation, FedSpa and DA-DPFL"),
    "resnet18-bn": Entry(
        partial(ResNet18, norm=nn.BatchNorm2d),
        (3, 32, 32),
        10,
        "ResNet-18 with batch normalisation, FedPSE on CIFAR-10",
    ),
    "preresnet18": Entry(PreResNet18, (3, 32, 32), 10, "pre-activation ResNet-18, PerFedMask on CIFAR-10"),
    "mobilenet": Entry(MobileNet, (3, 32, 32), 100, "MobileNet, PerFedMask on CIFAR-100"),
    "alexnet": Entry(AlexNet, (3, 64, 64), 7, "AlexNet for small pictures, DA-DPFL on HAM10000"),
    "alexnet-bn": Entry(AlexNetBN, (3, 256, 256), 10, "AlexNet with batch normalisation, PerFedMask on DomainNet"),
}


def build(name: str, classes: int, shape: Shape, vocabulary: int | None = None, width: float = 1.0) -> nn.Module:
    """A new model for inputs of this shape, checked to give one logit per class.

    ``name`` is a key of MODELS, or "package.module:Class" for a module of yours; it is called with the keywords
    ``classes`` and ``shape``, and for text ``vocabulary``, as far as it takes them. Two classes may share one logit.
    ``width`` is the share of channels and hidden units that it has; one that does not take it can only be whole.
    """
    if classes < 1:
        raise ValueError(f"classes must be at least 1, not {classes}")
    if not shape or min(shape) < 1:
        raise ValueError(f"shape must be one or more sizes of at least 1, such as (3, 32, 32), not {shape}")
    make, hint = _find(name)
    given: dict[str, object] = {"classes": classes, "shape": shape}
    if vocabulary is not None:
        given["vocabulary"] = vocabulary
    if width != 1:
        given["width"] = width
    try:
        takes = inspect.signature(make).parameters
        if width != 1 and "width" not in takes:
            raise ValueError("it takes no width; only 1.0 is allowed")
        model = make(**{key: value for key, value in given.items() if key in takes})
    except Exception as error:  # whatever the constructor of a stranger's class raises
        raise ValueError(f"model {name!r} cannot be made for {classes} classes and {shape}: {error}{hint}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {name!r} must be a torch.nn.Module, not {type(model).__name__}")
    _check(model, name, classes, shape, hint)
    return model


def example(model: nn.Module, shape: Shape, size: int = 1) -> Tensor:
    """A batch of zeros that the model can read: token ids if it embeds words, else floats."""
    words = any(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) for m in model.modules())
    return torch.zeros(size, *shape, dtype=torch.int64 if words else torch.float32)


def _find(name: str) -> tuple[Callable[..., nn.Module], str]:
    """What makes the model, and what to add to an error message about its input."""
    if name in MODELS:
        entry = MODELS[name]
        return entry.make, f" (it is made for inputs like {entry.shape})"
    place, colon, leaf = name.partition(":")
    if not colon:
        near = difflib.get_close_matches(name, MODELS, n=1, cutoff=0.5)
        guess = f"did you mean {near[0]!r}? " if near else ""
        known = ", ".join(MODELS)
        raise ValueError(
            f'unknown model {name!r}: {guess}known are {known}; or give your own as "package.module:Class"'
        )
    module = imports.module(f"model {name!r}", place)
    found = getattr(module, leaf, None)
    if not callable(found):
        there = [key for key, value in vars(module).items() if inspect.isclass(value) and issubclass(value, nn.Module)]
        raise ValueError(
            f"model {name!r}: {place!r} has no class {leaf!r}; its modules are {', '.join(there) or 'none'}"
        )
    return found, ""


def _check(model: nn.Module, name: str, classes: int, shape: Shape, hint: str) -> None:
    training = model.training
    try:
        with torch.no_grad():
            out = model.eval()(example(model, shape, size=2))
    except Exception as error:  # whatever the forward pass of a stranger's class raises
        raise ValueError(f"model {name!r} does not fit inputs of shape {shape}: {error}{hint}") from error
    model.train(training)
    got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
    allowed = {(2, classes)} | ({(2, 1)} if classes == 2 else set())
    if got not in allowed:
        need = " or ".join(str(a) for a in sorted(allowed, reverse=True))
        raise ValueError(
            f"model {name!r} gives {got} for 2 inputs of shape {shape}; {classes} classes need {need}{hint}"
        )
