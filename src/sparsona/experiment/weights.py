"""The weights that a model starts from, read from a safetensors file and checked against the model."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from sparsona.core.layout import Layout, Vector
from sparsona.experiment.checking import RecipeError, shown

_PIN = "#sha256="  # what may follow the name of a file: the digest that its contents must have


def absolute(weights: str) -> str:
    """The absolute path of a file of weights, so that a run can be resumed from any folder."""
    file, pin, digest = weights.partition(_PIN)
    if not file.endswith(".safetensors"):
        raise RecipeError(f"model.weights: {shown(weights)} is not allowed; expected the path of a .safetensors file")
    return f"{Path(file).resolve()}{pin}{digest}"


def pinned(weights: str) -> str:
    """The file of weights with the digest of its contents, so that another machine's file must be the same."""
    data = _read(weights)
    return f"{weights.partition(_PIN)[0]}{_PIN}{hashlib.sha256(data).hexdigest()}"


def start_from(weights: str, layout: Layout, model: nn.Module, theta0: Vector) -> Vector:
    """The vector of the weights in a file; RecipeError names the first tensor that does not fit the model."""
    where = f"model.weights: {shown(weights.partition(_PIN)[0])}"
    try:
        tensors = load(_read(weights))
    except SafetensorError as error:
        raise RecipeError(f"{where} is not a safetensors file: {error}") from error
    own = model.state_dict()  # has names that a vector has not: of counters, and of tied weights
    if "models.0" in {".".join(name.split(".")[:2]) for name in tensors} and not hasattr(model, "models"):
        raise RecipeError(f"{where} holds an ensemble of several models; expected one model")
    vector = theta0.clone()
    for slot, view in zip(layout.slots, layout.unflatten(vector).values(), strict=True):
        if slot.name not in tensors:
            if slot.name in own:
                raise RecipeError(f"{where} lacks the tensor {slot.name} {list(slot.shape)} of the model")
            continue  # a buffer that PyTorch does not store either
        tensor = tensors[slot.name]
        if tuple(tensor.shape) != slot.shape:
            has, needs = list(tensor.shape), list(slot.shape)
            raise RecipeError(f"{where}: tensor {slot.name} is {has}; expected {needs} as in the model")
        view.copy_(_finite(where, slot.name, tensor))
    if extra := sorted(tensors.keys() - own.keys() - {slot.name for slot in layout.slots}):
        raise RecipeError(f"{where} has the tensor {extra[0]}, which the model does not have")
    return vector


def _read(weights: str) -> bytes:
    file, _, digest = weights.partition(_PIN)
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise RecipeError(f"model.weights: {shown(file)} cannot be read here: {error.strerror}") from error
    if digest and hashlib.sha256(data).hexdigest() != digest:
        raise RecipeError(f"model.weights: {shown(file)} differs from the file that the run was started with")
    return data


def _finite(where: str, name: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        raise RecipeError(f"{where}: tensor {name} is {tensor.dtype}; expected floats")
    values = tensor.to(torch.float32)
    if not bool(torch.isfinite(values).all()):
        raise RecipeError(f"{where}: tensor {name} holds NaN or Inf")
    return values
