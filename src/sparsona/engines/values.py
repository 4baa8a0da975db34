"""Client and server values as bytes and back: safetensors with a small JSON tree, so that loading executes nothing."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sparsona.core import wire
from sparsona.core.library_optimiser import LibraryState
from sparsona.core.optimiser import Moments

Types = dict[str, type]
_SHARED = (Moments, LibraryState, wire.Values, wire.Sparse, wire.Bits, wire.MaskChange, wire.Quantised)


def types_of(method: object) -> Types:
    """The dataclasses that a method's values may be made of: its modules', message parts, optimisers' states."""
    types: Types = {c.__name__: c for c in _SHARED}
    for base in type(method).__mro__[:-1]:  # all but object
        around = _around(base) if "<locals>" in base.__qualname__ else {}
        for names in (around, vars(base), vars(sys.modules[base.__module__])):
            for name, value in names.items():
                if isinstance(value, type) and dataclasses.is_dataclass(value):
                    types.setdefault(name, value)
    return types


def _around(kind: type) -> dict[str, object]:
    """What the methods of a class use of the function that it is defined in, as in tests and notebooks."""
    methods = [m for m in vars(kind).values() if isinstance(m, FunctionType) and m.__closure__]
    cells = (zip(m.__code__.co_freevars, m.__closure__ or (), strict=True) for m in methods)
    return {name: _content(cell) for each in cells for name, cell in each if name != "__class__"}


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not defined yet
        return None


def dumps(value: object) -> bytes:
    """A value made of dataclasses, tuples, dicts, tensors, numbers, strings and None, as bytes; masks are packed."""
    tensors: dict[str, Tensor] = {}
    tree = _lower(value, tensors)
    return save(tensors, metadata={"tree": json.dumps(tree, separators=(",", ":"))})


def split(value: object) -> tuple[bytes, dict[str, Tensor]]:
    """Like ``dumps``, but tensors that lie in a dict, such as one per client, apart: few of them change in a round."""
    tensors: dict[str, Tensor] = {}
    apart: dict[str, Tensor] = {}
    tree = _lower(value, tensors, apart)
    return save(tensors, metadata={"tree": json.dumps(tree, separators=(",", ":"))}), apart


def loads(data: bytes, types: Types, apart: Callable[[str], Tensor] | None = None) -> Any:
    """The value back; only dataclasses among ``types`` are built, and what lies ``apart`` is asked for by name."""
    try:
        size = int.from_bytes(data[:8], "little")
        tree = json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["tree"])
        return _raise(tree, load(data), types, apart)
    except (SafetensorError, KeyError, TypeError, ValueError, IndexError, RecursionError) as error:
        raise ValueError(f"not a stored value, or a damaged one: {error}") from error


def to(value: Any, device: torch.device) -> Any:
    """A value with its tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return type(value)(**{name: to(v, device) for name, v in fields.items()})
    if isinstance(value, tuple):
        return tuple(to(v, device) for v in value)
    if isinstance(value, dict):
        return {k: to(v, device) for k, v in value.items()}
    return value


def _lower(
    value: Any, tensors: dict[str, Tensor], apart: dict[str, Tensor] | None = None, path: str = "", inside: bool = False
) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        if inside and apart is not None:
            apart[path] = value
            return {"apart": path}
        value = value.cpu()
        name = str(len(tensors))
        if value.dtype == torch.bool:
            tensors[name] = torch.from_numpy(np.packbits(value.contiguous().numpy().reshape(-1)))
            return {"bits": name, "shape": list(value.shape)}
        tensors[name] = value.detach().contiguous().clone()
        return {"tensor": name}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            f.name: _lower(getattr(value, f.name), tensors, apart, f"{path}.{f.name}", inside)
            for f in dataclasses.fields(value)
        }
        return {"type": type(value).__name__, "fields": fields}
    if isinstance(value, tuple):
        return {"tuple": [_lower(v, tensors, apart, f"{path}.{i}", inside) for i, v in enumerate(value)]}
    if isinstance(value, dict):
        return {
            "dict": [[_lower(k, tensors), _lower(v, tensors, apart, f"{path}[{k!r}]", True)] for k, v in value.items()]
        }
    raise TypeError(f"a stored value cannot contain {type(value).__name__}: {value!r}")


def _raise(tree: Any, tensors: dict[str, Tensor], types: Types, apart: Callable[[str], Tensor] | None) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "apart" in tree:
        if apart is None:
            raise ValueError(f"{tree['apart']} is stored separately")
        return apart(tree["apart"])
    if "tensor" in tree:
        return tensors[tree["tensor"]]
    if "bits" in tree:
        shape = tuple(tree["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        packed = tensors[tree["bits"]].numpy()
        if count < 0 or len(packed) != (count + 7) // 8:
            raise ValueError(f"{len(packed)} bytes do not fit a mask of {count} entries")
        bits = np.unpackbits(packed, count=count)
        return torch.from_numpy(bits.astype(np.bool_)).view(shape)
    if "tuple" in tree:
        return tuple(_raise(v, tensors, types, apart) for v in tree["tuple"])
    if "dict" in tree:
        return {_raise(k, tensors, types, apart): _raise(v, tensors, types, apart) for k, v in tree["dict"]}
    return types[tree["type"]](**{n: _raise(v, tensors, types, apart) for n, v in tree["fields"].items()})


__all__ = ["Types", "dumps", "loads", "split", "to", "types_of"]
