"""Models that are a plain chain: linear layers and convolutions with ReLU between them, pools and flattening.

In such a model a unit that gives zero behind the ReLU adds nothing to any later layer and receives no gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sparsona.core.layout import Slot
from sparsona.core.task import Task

_RELUS: tuple[Any, ...] = (nn.ReLU, F.relu, torch.relu, "relu")
_KEEP_ZEROS: tuple[Any, ...] = (nn.MaxPool2d, nn.AvgPool2d, nn.Identity, F.max_pool2d, F.avg_pool2d)
_FLATTEN: tuple[Any, ...] = (torch.flatten, "flatten", "contiguous")


@dataclass(frozen=True)
class Step:
    """One step of a chain: a layer with its tensors, or a function that keeps zeros and channels."""

    call: Callable[[Tensor], Tensor]
    weight: Slot | None = None
    bias: Slot | None = None
    conv: nn.Conv2d | None = None


def chain(task: Task) -> list[Step] | None:
    """The steps of a model that is a plain chain: linear layers and convolutions, ReLU between them, no more."""
    try:
        graph = fx.symbolic_trace(task.model).graph
    except Exception:  # whatever the forward pass of a stranger's class raises when it is traced
        return None
    slots = {slot.name: slot for slot in task.layout.trained.slots}
    steps, used, last, open_layer = list[Step](), set[str](), None, False
    for node in graph.nodes:
        if node.op == "placeholder" and last is None:
            last = node
            continue
        if node.op == "output":
            return steps if node.args == (last,) and used == set(slots) and steps[-1].weight is not None else None
        arguments = (*node.args[1:], *node.kwargs.values())
        if not node.args or node.args[0] is not last or any(isinstance(a, fx.Node) for a in arguments):
            return None
        last = node
        module = task.model.get_submodule(node.target) if node.op == "call_module" else None
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            if open_layer or not _plain(module) or f"{node.target}.weight" in used:
                return None
            weight, bias = slots.get(f"{node.target}.weight"), slots.get(f"{node.target}.bias")
            if weight is None or (bias is None and module.bias is not None):
                return None  # frozen or shared
            used |= {slot.name for slot in (weight, bias) if slot is not None}
            steps.append(Step(module, weight, bias, module if isinstance(module, nn.Conv2d) else None))
            open_layer = True
            continue
        kind = node.target if module is None else type(module)
        if kind in _RELUS:
            open_layer = False
        elif not (kind in _KEEP_ZEROS or _flattens(node, module) or (isinstance(module, nn.Dropout) and module.p == 0)):
            return None
        steps.append(Step(_bound(node, module)))
    return None


def _bound(node: fx.Node, module: nn.Module | None) -> Callable[[Tensor], Tensor]:
    target, arguments, named = node.target, node.args[1:], node.kwargs
    if module is not None:
        return module
    if isinstance(target, str):
        return lambda x: getattr(x, target)(*arguments, **named)
    return lambda x: target(x, *arguments, **named)


def _plain(layer: nn.Linear | nn.Conv2d) -> bool:
    if isinstance(layer, nn.Linear):
        return type(layer) is nn.Linear
    return type(layer) is nn.Conv2d and layer.groups == 1 and layer.padding_mode == "zeros"


def _flattens(node: fx.Node, module: nn.Module | None) -> bool:
    if isinstance(module, nn.Flatten):
        return (module.start_dim, module.end_dim) == (1, -1)
    return node.target in _FLATTEN and (node.target == "contiguous" or node.args[1:] == (1,))
