"""Client and server values as bytes and back: safetensors with a small JSON tree, so that loading executes nothing."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from sparsona.core import wire

Types = dict[str, type]
_WIRE = (wire.Values, wire.Sparse, wire.Bits, wire.MaskChange, wire.Quantised)


def types_of(method: object) -> Types:
    """The dataclasses that a method's values may be made of: those of its modules, and the parts of messages."""
    found: Types = {c.__name__: c for c in _WIRE}
    for base in type(method).__mro__:
        for name, value in vars(sys.modules[base.__module__]).items():
            if isinstance(value, type) and dataclasses.is_dataclass(value):
                found.setdefault(name, value)
    return found


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


def without(server: Any, start: Any, k: int) -> Any:
    """A server's value with what it keeps of client k as at the start: in dicts by client, or in tuples of clients."""
    if not dataclasses.is_dataclass(server) or isinstance(server, type):
        return server
    changed: dict[str, Any] = {}
    for f in dataclasses.fields(server):
        kept = getattr(server, f.name)
        if isinstance(kept, dict) and k in kept:
            first = getattr(start, f.name)
            changed[f.name] = {j: v for j, v in kept.items() if j != k} | ({k: first[k]} if k in first else {})
        elif isinstance(kept, tuple) and k in kept and all(type(j) is int for j in kept):
            changed[f.name] = tuple(j for j in kept if j != k or k in getattr(start, f.name))
    return dataclasses.replace(server, **changed)


def _lower(
    value: Any, tensors: dict[str, Tensor], apart: dict[str, Tensor] | None = None, path: str = "", inside: bool = False
) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        if inside and apart is not None:
            apart[path] = value
            return {"apart": path}
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
    raise TypeError(f"a stored value cannot hold a {type(value).__name__}: {value!r}")


def _raise(tree: Any, tensors: dict[str, Tensor], types: Types, apart: Callable[[str], Tensor] | None) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "apart" in tree:
        if apart is None:
            raise ValueError(f"{tree['apart']} lies elsewhere")
        return apart(tree["apart"])
    if "tensor" in tree:
        return tensors[tree["tensor"]]
    if "bits" in tree:
        shape = tuple(tree["shape"])
        count = int(np.prod(shape, dtype=np.int64))
        packed = tensors[tree["bits"]].numpy()
        if count < 0 or len(packed) != (count + 7) // 8:
            raise ValueError(f"{len(packed)} bytes are no mask of {count} entries")
        bits = np.unpackbits(packed, count=count)
        return torch.from_numpy(bits.astype(np.bool_)).view(shape)
    if "tuple" in tree:
        return tuple(_raise(v, tensors, types, apart) for v in tree["tuple"])
    if "dict" in tree:
        return {_raise(k, tensors, types, apart): _raise(v, tensors, types, apart) for k, v in tree["dict"]}
    return types[tree["type"]](**{n: _raise(v, tensors, types, apart) for n, v in tree["fields"].items()})


__all__ = ["Types", "dumps", "loads", "split", "types_of", "without"]
