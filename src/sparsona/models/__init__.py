"""Models: ordinary ``nn.Module``s, each with the parameter count its paper prints, and plug-in models."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from sparsona.core import imports
from sparsona.core.objective import Target
from sparsona.core.text import meant, one_line
from sparsona.models.alexnet import AlexNet, AlexNetBN
from sparsona.models.mobilenet import MobileNet
from sparsona.models.resnet import PreResNet18, ResNet18
from sparsona.models.simple import BagOfWords, CharacterCNN, ConvNet, Perceptron
from sparsona.models.vgg import VGG11

__all__ = ["MODELS", "Entry", "build", "example"]

Shape = tuple[int, ...]
_FROM_DATA = ("classes", "shape", "vocabulary")  # keywords that every model is called with, if it takes them
_NOUNS = {"class": "classes", "labels": "labels", "number": "numbers", "tokens": "token ids"}


@dataclass(frozen=True)
class Entry:
    """A built-in model: how to make it, and for which inputs."""

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
        "CNN with a hidden layer for 8x8 digits (small version of pFedGate's)",
    ),
    "digits-mlp": Entry(Perceptron, (1, 8, 8), 10, "MLP with one hidden layer of 64 units for 8x8 digits"),
    "digits-deep": Entry(
        partial(Perceptron, hidden=(64, 96, 64, 48, 32)), (1, 8, 8), 10, "MLP with five hidden layers for 8x8 digits"
    ),
    "lenet": Entry(
        partial(ConvNet, widths=(6, 16), hidden=(120, 84)), (1, 28, 28), 10, "classic LeNet-5, 44 thousand parameters"
    ),
    "lenet5": Entry(partial(ConvNet, widths=(20, 50), hidden=(500,)), (1, 28, 28), 26, "LeNet-5 (FedSpa on EMNIST)"),
    "cnn": Entry(
        partial(_CONV, hidden=(512,)), (1, 28, 28), 10, "CNN common in federated learning, 582 thousand parameters"
    ),
    "cnn-emnist": Entry(partial(_CONV, hidden=(2048,)), (1, 28, 28), 62, "CNN (pFedGate on EMNIST and FEMNIST)"),
    "lenet-cifar": Entry(partial(_CONV, hidden=(120, 84)), (3, 32, 32), 10, "wide LeNet (pFedGate on CIFAR-10)"),
    "cnn-cifar100": Entry(partial(_CONV, hidden=(2048,)), (3, 32, 32), 100, "CNN (pFedGate on CIFAR-100)"),
    "convnet2": Entry(
        partial(_CONV, hidden=(), kernel=3, dropout=0.5), (1, 28, 28), 10, "ConvNet2 with dropout (FedPSE on MNIST)"
    ),
    "imdb": Entry(BagOfWords, (256,), 2, "mean word embedding with one logit (FedPSE on IMDB)"),
    "mlp": Entry(Perceptron, (16,), 2, "MLP with one hidden layer of 64 units, for tables or inputs of any shape"),
    "char-cnn": Entry(CharacterCNN, (64,), 100, "causal CNN for next-character prediction"),
    "vgg11-gn": Entry(VGG11, (3, 32, 32), 10, "VGG-11 with group normalisation (FedSpa, DA-DPFL)"),
    "resnet18-gn": Entry(ResNet18, (3, 32, 32), 100, "ResNet-18 with group normalisation (FedSpa, DA-DPFL)"),
    "resnet18-bn": Entry(
        partial(ResNet18, norm=nn.BatchNorm2d),
        (3, 32, 32),
        10,
        "ResNet-18 with batch normalisation (FedPSE on CIFAR-10)",
    ),
    "preresnet18": Entry(PreResNet18, (3, 32, 32), 10, "pre-activation ResNet-18 (PerFedMask on CIFAR-10)"),
    "mobilenet": Entry(MobileNet, (3, 32, 32), 100, "MobileNet (PerFedMask on CIFAR-100)"),
    "alexnet": Entry(AlexNet, (3, 64, 64), 7, "AlexNet for small images (DA-DPFL on HAM10000)"),
    "alexnet-bn": Entry(AlexNetBN, (3, 256, 256), 10, "AlexNet with batch normalisation (PerFedMask on DomainNet)"),
}


def build(
    name: str | Callable[..., nn.Module],
    classes: int,
    shape: Shape,
    vocabulary: int | None = None,
    width: float = 1.0,
    target: Target = "class",
    *,
    args: Mapping[str, Any] | None = None,
    probe: Tensor | None = None,
) -> nn.Module:
    """A new model for inputs of this shape, checked to give one logit per class, label or token id, or one number each.

    ``name`` is a key of MODELS, "package.module:name" of your own class or function, or that object. It is called with
    the keywords ``classes``, ``shape`` and (for text) ``vocabulary`` if it accepts them, and with all of ``args``.
    Two classes may share one logit. ``width`` is the width multiplier, for models that accept it. ``probe`` is a batch
    of samples on which the model is tested.
    """
    if classes < 1:
        raise ValueError(f"classes: {classes} is not allowed; expected an int >= 1")
    if not shape or min(shape) < 1:
        raise ValueError(f"shape: {shape} is not allowed; expected one or more ints >= 1, such as (3, 32, 32)")
    make, hint = _find(name) if isinstance(name, str) else (name, "")
    if not isinstance(name, str):
        name = str(getattr(name, "__qualname__", type(name).__qualname__)).rpartition("<locals>.")[2]
    given: dict[str, object] = {"classes": classes, "shape": shape}
    if vocabulary is not None:
        given["vocabulary"] = vocabulary
    if width != 1:
        given["width"] = width
    try:
        takes = inspect.signature(make).parameters
    except (TypeError, ValueError):  # of something built in; it is called without keywords
        takes = MappingProxyType({})
    _check_args(name, args or {}, takes)
    try:
        if width != 1 and "width" not in takes:
            raise ValueError(f"width: {width} is not allowed; expected 1.0, as it has no argument width")
        model = make(**{key: value for key, value in given.items() if key in takes}, **(args or {}))
    except Exception as error:  # whatever the constructor of a stranger's class raises
        raise ValueError(
            f'model "{name}" cannot be built for {classes} classes and inputs of shape {shape}: {one_line(error)}{hint}'
        ) from error
    if not isinstance(model, nn.Module):
        raise ValueError(f'model "{name}" is of type {type(model).__name__}; expected a torch.nn.Module')
    _check(model, name, classes, example(model, shape, size=2) if probe is None else probe, hint, target)
    return model


def example(model: nn.Module, shape: Shape, size: int = 1) -> Tensor:
    """A batch that the model can read, where no sample is at hand: token ids if it embeds words, else floats.

    No entry is 0, which may stand for padding. A model that sees nothing but padding may fail, or give NaN.
    """
    if any(isinstance(m, (nn.Embedding, nn.EmbeddingBag)) for m in model.modules()):
        return torch.ones(size, *shape, dtype=torch.int64)
    return torch.linspace(0.1, 1, size * math.prod(shape)).view(size, *shape)


def _check_args(name: str, args: Mapping[str, Any], takes: Mapping[str, inspect.Parameter]) -> None:
    """Refuse arguments that the data decide, or that the model does not take."""
    anything = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in takes.values())
    for key in args:
        if key in _FROM_DATA:
            raise ValueError(f"model.args.{key} is not allowed; leave it out, the data determines it")
        if key not in takes and not anything:
            free = ", ".join(key for key in takes if key not in _FROM_DATA)
            raise ValueError(f'model.args.{key}: no such argument of "{name}"; allowed: {free or "none"}')


def _find(name: str) -> tuple[Callable[..., nn.Module], str]:
    """What makes the model, and what to add to an error message about its input."""
    if name in MODELS:
        entry = MODELS[name]
        return entry.make, f" (the model expects inputs of a shape like {entry.shape})"
    place, colon, leaf = name.partition(":")
    if not colon:
        hint = meant(name, MODELS) or "; list the models with: sparsona models"
        raise ValueError(f'model "{name}": not found{hint}')
    module = imports.module("model.name", place)
    constructor = getattr(module, leaf, None)
    if not callable(constructor):
        there = [key for key, value in vars(module).items() if inspect.isclass(value) and issubclass(value, nn.Module)]
        raise ValueError(
            f'model.name: class "{leaf}" not found in module "{place}"; allowed: {", ".join(there) or "none"}'
        )
    return constructor, ""


def _check(model: nn.Module, name: str, classes: int, probe: Tensor, hint: str, target: Target) -> None:
    for parameter, tensor in model.named_parameters():
        if tensor.dtype != torch.float32:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise ValueError(
                f'model "{name}": parameter {parameter} is {dtype}; expected float32, as from model.float()'
            )
    training, count, shape = model.training, len(probe), tuple(probe.shape[1:])
    try:
        with torch.no_grad():
            out = model.eval()(probe)
    except Exception as error:  # whatever the forward pass of a stranger's class raises
        raise ValueError(f'model "{name}" does not fit inputs of shape {shape}: {one_line(error)}{hint}') from error
    model.train(training)
    output = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
    allowed: set[tuple[int, ...]] = {(count, classes)}
    if target == "class" and classes == 2:
        allowed.add((count, 1))
    elif target == "number" and classes == 1:
        allowed.add((count,))
    elif target == "tokens":
        allowed = {(count, *shape, classes)}
    if output not in allowed:
        need = " or ".join(str(a) for a in sorted(allowed, reverse=True))
        what = f"a batch of {count} inputs of shape {shape}; expected"
        raise ValueError(f'model "{name}" returns {output} for {what} {need} for {classes} {_NOUNS[target]}{hint}')
