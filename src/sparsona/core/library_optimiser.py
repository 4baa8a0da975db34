"""Optimisers of ``torch.optim`` by name, at work on the flat vector."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sparsona.core.text import meant

Argument = bool | int | float | str | tuple[float, ...]
_REFUSED = {
    "LBFGS": "it evaluates the loss several times per step",
    "SparseAdam": "it needs sparse gradients",
    "Muon": "it needs matrices, and Sparsona optimises one vector",
}
_OURS = {  # arguments that are not the user's, and what to do instead
    "params": "it is the model",
    "lr": "set method.lr",
    "maximize": "the loss is minimised",
    "differentiable": "steps have no gradient",
}
_COUNTERS = {"step", "mu_product"}
_MOMENTUM = {"momentum_buffer", "exp_avg"}  # what moves a coordinate without a gradient, in every class that has it


@dataclass(frozen=True)
class LibraryState:
    """What an optimiser of ``torch.optim`` remembers, by the names that it uses."""

    values: dict[str, Tensor | float | None] = field(default_factory=dict)


@dataclass
class LibrarySteps:
    """An optimiser of ``torch.optim`` whose one parameter is the vector ``w``; coordinates at zeros of a gate stay."""

    name: str
    w: Tensor
    lr: float
    args: Mapping[str, Argument]
    kept: LibraryState | None = None
    gate: Tensor | None = None

    def __post_init__(self) -> None:
        kind, args = getattr(torch.optim, self.name), dict(self.args)
        if "fused" in inspect.signature(kind).parameters and not {"fused", "foreach"} & args.keys():
            args["fused"] = True  # a third of the time of single operations on vectors of 600 thousand
        self._parameter = nn.Parameter(self.w)  # the same memory
        self._optimiser = kind([self._parameter], lr=self.lr, **args)
        if self.kept is not None:
            held = {key: v.clone() if isinstance(v, Tensor) else v for key, v in self.kept.values.items()}
            for key in _COUNTERS & held.keys():  # PyTorch keeps them on the host unless its kernels read them
                if isinstance(value := held[key], Tensor) and not args.get("fused") and not args.get("capturable"):
                    held[key] = value.cpu()
            for value in held.values():
                if isinstance(value, Tensor) and value.dim() and value.shape != self.w.shape:
                    raise ValueError(f"optimiser state: {value.numel()} entries do not fit a model of {len(self.w)}")
            for key in _MOMENTUM & held.keys():
                if self.gate is not None and isinstance(value := held[key], Tensor):
                    value.mul_(self.gate)  # what is closed must not coast, should it open later
            self._optimiser.state[self._parameter] = held

    def step(self, g: Tensor, gate: Tensor | None) -> None:
        """Take one step along the gradient."""
        self._parameter.grad = g
        if gate is None:
            self._optimiser.step()
            return
        g.mul_(gate)
        before = self.w.clone()
        self._optimiser.step()
        self.w.copy_(torch.where(gate > 0, self.w, before))  # decay and moments move them, too

    def state(self) -> LibraryState:
        """What the optimiser remembers by now."""
        return LibraryState(dict(self._optimiser.state[self._parameter]))


def check_library(name: str, args: Mapping[str, Argument]) -> None:
    """Raise ValueError, beginning with a field of the method, unless ``torch.optim`` has this class and it fits here.

    Only names are looked at. ``try_library`` makes the optimiser.
    """
    kinds = {n for n, c in vars(torch.optim).items() if isinstance(c, type) and issubclass(c, torch.optim.Optimizer)}
    kinds -= {"Optimizer", *_REFUSED}
    if name in _REFUSED and hasattr(torch.optim, name):
        raise ValueError(f'optimiser: "{name}" is not supported: {_REFUSED[name]}; use "AdamW" or "RMSprop"')
    if name not in kinds:
        guess = meant(name, ("sgd", "adam", *kinds))
        raise ValueError(
            f'optimiser: "{name}" not found; expected "sgd", "adam" or a class of torch.optim, such as "AdamW"{guess}'
        )
    known = inspect.signature(getattr(torch.optim, name)).parameters
    for key in args:
        if key in _OURS or key not in known:
            hint = f"; {_OURS[key]}" if key in _OURS else meant(key, set(known) - _OURS.keys())
            raise ValueError(f"optimiser_args.{key}: not allowed{hint or f'; torch.optim.{name} has no such argument'}")


def takes(name: str, argument: str) -> bool:
    """Whether a class of ``torch.optim`` has this argument."""
    return argument in inspect.signature(getattr(torch.optim, name)).parameters


def try_library(name: str, lr: float, args: Mapping[str, Argument]) -> None:
    """Raise ValueError, beginning with a field of the method, unless the optimiser takes its arguments and a step."""
    try:
        LibrarySteps(name, torch.zeros(2), lr, args).step(torch.ones(2), None)
    except Exception as error:  # whatever one of many classes raises
        raise ValueError(f"optimiser_args: {dict(args)} is not allowed by torch.optim.{name}: {error}") from error
