"""A pretended accelerator: tensors that say they lie on a device ``pretended``, and are computed on the processor.

Their numbers are those of the processor, to the bit. As on a real accelerator, an operation whose tensors lie on two
devices fails; only copies may cross. So do operations whose results a GPU cannot repeat. Copies across, and numbers
read by the host, are counted.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils import backend_registration

NAME = "pretended"
CROSSING = {"_to_copy", "copy_"}
READING = {"_local_scalar_dense", "equal"}  # the host waits for a number,
SIZING = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"}  # or to know how long a result is
UNREPEATABLE = {  # what has no deterministic kernel on GPUs, and so fails in runs there
    *("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward", "histc"),
    *("avg_pool3d_backward", "fractional_max_pool2d_backward", "max_unpool2d", "put_", "_ctc_loss_backward"),
    *("reflection_pad1d_backward", "reflection_pad2d_backward", "upsample_bilinear2d_backward", "grid_sampler_2d"),
}


class _Backend:
    """What PyTorch asks of a kind of device."""

    def __init__(self) -> None:
        self.seeded: list[int] = []

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        self.seeded.append(seed)

    def get_rng_state(self, device: torch.device) -> Tensor:
        return torch.tensor(self.seeded)

    def set_rng_state(self, state: Tensor, device: torch.device) -> None:
        self.seeded[:] = state.tolist()


BACKEND = _Backend()
backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=BACKEND)
DEVICE = torch.device(NAME, 0)
HOST = torch.device("cpu")


class MixedDevices(RuntimeError):
    """An operation met tensors of both devices."""


class Counts:
    """What crossed between host and device: how often, by where we are in a run.

    With ``single`` the device has no double precision, and refuses it.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin again."""
        self.place, self.batches, self.single = "", 0, False
        self.copies: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()

    @contextmanager
    def within(self, place: str) -> Iterator[None]:
        """Within the block we are in another place."""
        before, self.place = self.place, place
        try:
            yield
        finally:
            self.place = before


COUNTS = Counts()


class Pretended(Tensor):
    """A tensor on the accelerator, around one of the processor."""

    raw: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, raw: Tensor) -> "Pretended":
        layout: dict[str, Any] = {"strides": raw.stride(), "storage_offset": raw.storage_offset(), "dtype": raw.dtype}
        made: Pretended = torch.Tensor._make_wrapper_subclass(cls, raw.size(), device=DEVICE, **layout)
        made.raw = raw
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})

    def tolist(self) -> Any:
        """The numbers, read by the host."""
        COUNTS.reads[COUNTS.place] += 1
        return self.raw.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """A copy for the host, if it insists."""
        if not force:
            raise TypeError("a tensor on an accelerator has no numpy array")
        COUNTS.copies[COUNTS.place] += 1
        return self.raw.detach().numpy()

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"pretended({self.raw!r})"


def _computed(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name, given = func.overloadpacket.__name__, list(_tensors((args, kwargs)))
    ours = any(isinstance(t, Pretended) for t in given)
    theirs = [t for t in given if not isinstance(t, Pretended)]
    wanted = kwargs.get("device")
    on_device = ours if wanted is None else torch.device(wanted).type == NAME
    if name in CROSSING:
        COUNTS.copies[COUNTS.place] += bool(ours and theirs) or ours != on_device
    elif ours and any(t.dim() for t in theirs):  # a single number may come from the host
        raise MixedDevices(f"{func} of tensors on {DEVICE} and on the host")
    weighted = name == "bincount" and any(isinstance(arg, Tensor) for arg in (*args[1:], *kwargs.values()))
    running = name == "cumsum" and args[0].is_floating_point()
    if ours and (name in UNREPEATABLE or weighted or running):
        raise RuntimeError(f"{func} has no deterministic kernel")
    COUNTS.reads[COUNTS.place] += name in READING or (ours and (name in SIZING or _by_mask(name, args)))
    out = func(*_mapped(_raw, args), **_mapped(_raw, kwargs))
    if COUNTS.single and on_device and any(t.dtype == torch.float64 for t in _tensors((out,))):
        raise TypeError(f"{func}: {DEVICE} has no double precision")
    if places := _written(func):
        written = [args[i] if i < len(args) else kwargs[key] for i, key in places]
        resized = [t for t in written if isinstance(t, Pretended) and t.shape != t.raw.shape]
        assert not resized, f"{func} resizes a tensor, which none of ours can be"
        return None if out is None else written[0] if len(written) == 1 else tuple(written)
    return _mapped(lambda t: Pretended(t) if isinstance(t, Tensor) else t, out) if on_device else out


def _by_mask(name: str, args: tuple[Any, ...]) -> bool:
    """Whether an operation takes or sets entries where a mask is true; one number for all of them needs no count."""
    if name not in ("index", "index_put", "index_put_") or (name != "index" and args[2].numel() == 1):
        return False
    return any(t is not None and t.dtype == torch.bool for t in args[1])


@cache
def _written(func: Any) -> list[tuple[int, str]]:
    """The arguments that an operation writes into, by place and name."""
    arguments = enumerate(func._schema.arguments)
    return [(i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]


def _raw(value: Any) -> Any:
    if isinstance(value, Pretended):
        return value.raw
    return HOST if isinstance(value, torch.device) else value


def _mapped(change: Callable[[Any], Any], values: Any) -> Any:
    """Arguments or results with each value in them changed."""
    if isinstance(values, (list, tuple)):
        return type(values)([_mapped(change, value) for value in values])
    if isinstance(values, dict):
        return {key: _mapped(change, value) for key, value in values.items()}
    return change(values)


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple, dict)):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _tensors(value)


_every = torch.library.Library("_", "IMPL")
_every.fallback(lambda func, *args, **kwargs: _computed(func, args, kwargs), "PrivateUse1")
_own = torch.library.Library("aten", "IMPL")
for overload in ("arange", "arange.start", "arange.start_step"):  # PyTorch's resizes an empty tensor

    def _arange(*args: Any, device: torch.device | None = None, **kwargs: Any) -> Tensor:
        return Pretended(torch.arange(*args, **{key: value for key, value in kwargs.items() if key == "dtype"}))

    _own.impl(overload, _arange, "PrivateUse1")
