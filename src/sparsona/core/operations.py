"""What one forward pass of a model computes: by its linear and convolution layers, and by everything else.

The layers are watched by hooks, so that every weight knows how often a sample uses it. What else there is (attention,
recurrent layers, parameters used by hand) is counted by PyTorch's own counter.
"""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, flop_registry

_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
KNOWN_LAYERS = (*_CONVS, *_TRANSPOSED, nn.Linear)

_LAYER_CALLS = {
    "linear",
    *(f"conv{n}d" for n in (1, 2, 3)),
    *(f"conv_transpose{n}d" for n in (1, 2, 3)),
}
# Functions that multiply, or consist of products, other than those of layers.
_PRODUCTS = {
    *(
        "matmul",
        "__matmul__",
        "__rmatmul__",
        "mm",
        "bmm",
        "mv",
        "dot",
        "vdot",
        "inner",
        "outer",
        "ger",
        "addmm",
        "addbmm",
    ),
    *("baddbmm", "addmv", "addr", "einsum", "tensordot", "kron", "chain_matmul", "matrix_power", "matrix_exp", "cdist"),
    *("bilinear", "multi_head_attention_forward", "scaled_dot_product_attention", "_native_multi_head_attention"),
    *(
        "_transformer_encoder_layer_fwd",
        "lstm",
        "gru",
        "rnn_tanh",
        "rnn_relu",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
    ),
    *(
        "rnn_relu_cell",
        "convolution",
        "_convolution",
        "conv_tbc",
        "unfold_backward",
        "stft",
        "istft",
        "cholesky",
        "inverse",
    ),
}
# Operations that move or add the entries of a parameter; like activations, they do not count.
_MOVES = {
    *("add", "add_", "sub", "sub_", "rsub", "where", "clone", "_to_copy", "copy_", "cat", "stack", "repeat", "split"),
    *("index", "index_select", "gather", "embedding", "_embedding_bag", "_embedding_bag_forward_only"),
    *("index_put", "index_put_", "_unsafe_index", "lift_fresh", "_reshape_copy", "constant_pad_nd"),
    *("native_layer_norm", "native_group_norm", "native_batch_norm", "_weight_norm_interface"),
}
_SHAPES = {"detach", "empty_like", "zeros_like", "ones_like", "fill_"}  # those that read no entries


@dataclass
class Operations:
    """How often a sample uses an entry of each tensor, and what else a forward pass costs."""

    uses: dict[int, int] = field(default_factory=dict)  # by id of the tensor; tensors may serve several layers
    other: int = 0  # operations of a sample that no entry of a tensor accounts for
    unknown: list[str] = field(default_factory=list)  # parameters and operations that nobody can count


def operations(model: nn.Module, example: Tensor) -> Operations:
    """Run the model once on a batch and count what a sample costs."""
    training = model.training
    model.eval()  # so that looking does not move running statistics
    try:
        with torch.no_grad():
            uses: dict[int, int] = {}
            calls = _Calls()
            with _watched(model, len(example), uses, calls), calls:
                model(example)
            by_hand = [n for n, p in model.named_parameters() if p.dim() > 1 and id(p) not in uses]
            if not calls.others and not set(by_hand) - _looked_up(model):
                return Operations(uses)
            try:
                return _counted(model, example, uses)
            except Exception:  # a model that PyTorch cannot look into
                return Operations(uses, unknown=[*by_hand, *sorted(calls.others)])
    finally:
        model.train(training)


def _counted(model: nn.Module, example: Tensor, uses: dict[int, int]) -> Operations:
    """What the layers compute, with what PyTorch's counter finds beyond them."""
    reader, counter = _Reader(model), FlopCounterMode(display=False)
    with _visible(model), reader, counter:
        model(example)
    tensors, samples = dict(model.named_parameters()), len(example)
    uses = dict(uses)
    known = {name: 2 * uses.get(id(p), 0) * p.numel() * samples for name, p in tensors.items() if p.dim() > 1}
    for name, flops in reader.flops.items():
        if not known[name]:
            whole = 2 * tensors[name].numel() * samples
            uses[id(tensors[name])] = flops // whole
            known[name] = flops // whole * whole
    other = max(0, int(counter.get_total_flops()) - sum(known.values())) // samples
    seen = reader.flops.keys() | reader.moved
    silent = {
        name for name, flops in known.items() if not flops and name not in seen
    }  # unused, or used outside PyTorch
    return Operations(uses, other, sorted(reader.unknown | silent) + sorted(reader.strange))


def _looked_up(model: nn.Module) -> set[str]:
    """Tables of embeddings, which are read and not multiplied."""
    tables = [name for name, m in model.named_modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))]
    return {f"{name}.weight" if name else "weight" for name in tables}


class _Calls(TorchFunctionMode):
    """Notes products that are not those of a linear or convolution layer.

    It is cheap, where PyTorch's counter takes seconds to import what it needs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.others: set[str] = set()
        self.expected = 0  # calls that layers make, by their hooks

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _LAYER_CALLS:
            self.expected -= 1
            if self.expected < 0:
                self.others.add(name)
        elif name in _PRODUCTS or "linalg" in name or "fft" in name:
            self.others.add(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def _watched(model: nn.Module, samples: int, uses: dict[int, int], calls: _Calls) -> Iterator[None]:
    """Within the block, linear and convolution layers note how often a sample uses their entries."""

    def before(module: nn.Module, args: object) -> None:
        calls.expected += 1

    def noting(outputs: int, inputs: int | None = None) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], out: Tensor) -> None:
            positions = out.numel() // (samples * outputs)
            for leaf, p in module.named_parameters(recurse=False):
                spread = inputs is not None and leaf == "weight"  # a transposed convolution's weights meet each input
                there = args[0].numel() // (samples * inputs) if spread and inputs else positions
                uses[id(p)] = uses.get(id(p), 0) + there

        return hook

    hooks = []
    try:
        for module in model.modules():
            if isinstance(module, KNOWN_LAYERS):
                hooks.append(module.register_forward_pre_hook(before))
            if isinstance(module, _CONVS):
                hooks.append(module.register_forward_hook(noting(module.out_channels)))
            elif isinstance(module, _TRANSPOSED):
                hooks.append(module.register_forward_hook(noting(module.out_channels, module.in_channels)))
            elif isinstance(module, nn.Linear):
                hooks.append(module.register_forward_hook(noting(module.out_features)))
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _visible(model: nn.Module) -> Iterator[None]:
    """Within the block, attention and recurrent layers are made of operations that the counter knows."""
    fast = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
        torch.backends.mha.set_fastpath_enabled(False)
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", UserWarning)  # PyTorch's, of how its own switch is written
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        yield


class _Reader(TorchDispatchMode):
    """Notes which parameters take part in which operations."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.flops: dict[str, int] = {}  # of multiplications, by matrix
        self.moved: set[str] = set()  # parameters whose entries are added or moved
        self.unknown: set[str] = set()  # parameters read by an operation without a count
        self.strange: set[str] = set()  # operations that are not PyTorch's
        placed = sorted((p.data_ptr(), p.numel() * p.element_size(), name) for name, p in model.named_parameters())
        self._starts = [start for start, _, _ in placed]
        self._placed = placed
        self._matrices = {name for name, p in model.named_parameters() if p.dim() > 1}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        out = func(*args, **kwargs)
        names = {
            name for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and (name := self._owner(leaf))
        }
        packet = getattr(func, "_overloadpacket", func)
        if packet in flop_registry:
            matrices = names & self._matrices
            if len(matrices) == 1:
                name = matrices.pop()
                self.flops[name] = self.flops.get(name, 0) + int(flop_registry[packet](*args, **kwargs, out_val=out))
        elif getattr(func, "namespace", "") not in ("aten", "prim", "prims"):
            self.strange.add(str(packet))
        elif packet.__name__ in _MOVES:
            self.moved |= names
        elif not func.is_view and packet.__name__ not in _SHAPES:
            self.unknown |= names
        return out

    def _owner(self, tensor: Tensor) -> str | None:
        """The parameter that a tensor is, or is a view of: the one in whose memory it begins."""
        at = tensor.data_ptr()
        place = bisect.bisect_right(self._starts, at) - 1
        if place < 0 or not at:
            return None
        start, nbytes, name = self._placed[place]
        return name if at < start + nbytes else None
