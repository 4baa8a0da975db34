"""What a process may use of its machine, and how a run is placed on it: devices, cores, memory, workers."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.utils import deterministic

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or products differ from run to run; CUDA reads it once

NAMED = 'auto, cpu, cuda, cuda:N, mps or a list such as ["cuda:0", "cuda:1"]'
MOST_PER_CORE = 4  # worker processes: more only wait for each other
AUTO_PER_GPU = 2  # workers: small models leave most of a GPU idle
ALWAYS = 2  # workers that are allowed on any machine
# A worker holds PyTorch and Sparsona (measured: 0.26 GiB resident before its first job) and some ten vectors as long as
# the model: weights, gradients, optimiser state, messages and the client's value. The data come on top.
_WORKER = 320 << 20
_VECTORS = 12
_GROUPS = "sys/fs/cgroup"
_fresh: Any = deterministic  # the module has a field that its type does not


def free_on_gpu(device: str) -> int | None:
    """Bytes of a CUDA GPU's memory that are not in use; None for other devices, whose memory is the machine's."""
    if not device.startswith("cuda") or not torch.cuda.is_available():
        return None
    return torch.cuda.mem_get_info(torch.device(device))[0]


@dataclass(frozen=True)
class Machine:
    """What this process may use of its machine."""

    cores: int
    memory: int  # bytes of the machine, or of the control group
    free: int  # bytes of them that are not in use
    accelerators: tuple[str, ...] = ()  # ("cuda:0", "cuda:1", ...) or ("mps",)
    free_on: Callable[[str], int | None] = free_on_gpu  # asked only for GPUs that a run uses: it wakes them up

    @staticmethod
    def here(root: Path = Path("/")) -> Machine:
        """The machine that this process is on; control groups are read below ``root``."""
        memory, free = memory_of(root)
        return Machine(cores(root), memory, free, accelerators())

    def __str__(self) -> str:
        return f"{_counted(self.cores, 'core')}, {self.memory / (1 << 30):.3g} GiB"


def accelerators() -> tuple[str, ...]:
    """The devices besides the CPU: all CUDA GPUs, else Apple's."""
    if torch.cuda.is_available():
        return tuple(f"cuda:{i}" for i in range(torch.cuda.device_count()))
    return ("mps",) if torch.backends.mps.is_available() else ()


def cores(root: Path = Path("/")) -> int:
    """How many processors this process may keep busy, by its affinity and by the quota of its control groups."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in _groups(root, "cpu"):
        quota, _, period = _text(folder / "cpu.max").partition(" ")
        if not period:  # version 1
            quota, period = _text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us")
        if quota.isdigit() and period.isdigit() and int(period):
            count = min(count, math.ceil(int(quota) / int(period)))
    return max(count, 1)


def memory_of(root: Path = Path("/")) -> tuple[int, int]:
    """Bytes of memory that this process may use, and those that are free, by the machine and by its control groups."""
    known = dict(line.split()[:2] for line in _text(root / "proc/meminfo").splitlines() if len(line.split()) > 1)
    if "MemTotal:" in known:
        total = int(known["MemTotal:"]) << 10
        free = int(known.get("MemAvailable:", known["MemTotal:"])) << 10
    else:  # no Linux
        total = free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder in _groups(root, "memory"):
        for most, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _text(folder / most), _text(folder / used)
            if limit.isdigit():
                total = min(total, int(limit))
                held = dict(line.split() for line in _text(folder / "memory.stat").splitlines())
                taken = int(usage) - int(held.get(cache, 0)) if usage.isdigit() else 0  # files can be read again
                free = min(free, int(limit) - taken)
    return total, max(free, 0)


def check_device(wanted: str | Sequence[str]) -> None:
    """Raise ValueError, beginning with ``device``, for what names no device on any machine."""
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    if not names:
        raise ValueError(f"device: [] is not allowed; expected {NAMED}")
    for name in names:
        if not re.fullmatch(r"cpu|mps|cuda(:(0|[1-9][0-9]{0,2}))?", name) and not (name == wanted == "auto"):
            raise ValueError(f'device: "{name}" is not allowed; expected {NAMED}')
    if len({name.partition(":")[0] for name in names}) > 1:
        raise ValueError(f"device: {_list(names)} mixes kinds, which give different results; expected devices of one")
    whole = [_whole(name) for name in names]
    for name in whole:
        if whole.count(name) > 1:
            raise ValueError(
                f"device: {_list(names)} has {name} more than once; name it once, and set engine.workers, the number "
                "of workers on each GPU"
            )


def devices_of(wanted: str | Sequence[str], machine: Machine) -> tuple[str, ...]:
    """The devices that a run uses; raises ValueError, beginning with ``device``, if one is not on this machine.

    ``auto`` is the first CUDA GPU, else Apple's GPU, else the CPU.
    """
    check_device(wanted)
    if wanted == "auto":
        return (machine.accelerators or ("cpu",))[:1]
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    there = ("cpu", *machine.accelerators)
    for name in names:
        if _whole(name) not in there:
            gpus = _counted(len(machine.accelerators), "GPU") if machine.accelerators else "no GPU"
            allowed = " or ".join(filter(None, [", ".join(("auto", *there[:-1])), there[-1]]))
            raise ValueError(
                f'device: "{name}" is not available; expected {allowed} (PyTorch {torch.__version__} sees {gpus})'
            )
    return tuple(_whole(name) for name in names)


def worker_bytes(parameters: int, data: int) -> int:
    """An estimate of the memory that a worker process needs, from the length of the model and the bytes of the data."""
    return _WORKER + _VECTORS * 4 * parameters + data


def workers_of(wanted: int | Literal["auto"], devices: Sequence[str], at_once: int, machine: Machine, each: int) -> int:
    """How many worker processes a run has on these devices; raises ValueError, beginning with ``workers``, if too many.

    A number counts on each GPU. ``auto`` is one for each core, or two for each GPU, but no more than there are clients
    ``at_once`` and than fit into free memory, where a worker needs ``each`` bytes, on its GPU too.
    """
    gpus = 0 if devices[0] == "cpu" else len(devices)
    places = max(gpus, 1)
    free = min((n for name in devices if (n := machine.free_on(name)) is not None), default=None)  # of the fullest GPU
    room = None if free is None else max(free // each, 1)
    if wanted == "auto":
        most = min(machine.cores, at_once, machine.free // each)
        if gpus:
            most = min(most, gpus * (AUTO_PER_GPU if room is None else min(AUTO_PER_GPU, room)))
        return max(most, places)
    fit = max(min(MOST_PER_CORE * machine.cores, machine.memory // each) // places, ALWAYS)
    if room is not None:
        fit = min(fit, room)
    if wanted > fit:
        where = str(machine) + (f", {_counted(gpus, 'GPU')}" if gpus else "")
        where += "" if free is None else f" with {free / (1 << 30):.3g} GiB free"
        unit = " on each GPU" if gpus > 1 else ""
        raise ValueError(f"workers: {wanted} is too many for this machine; expected at most {fit}{unit} ({where})")
    return wanted * places


def device_kind(devices: Sequence[str]) -> str:
    """What results depend on, in words: cpu, mps, or cuda with the GPU's model."""
    kind = devices[0].partition(":")[0]
    if kind != "cuda" or not torch.cuda.is_available():
        return kind
    return f"cuda: {', '.join(sorted({torch.cuda.get_device_name(name) for name in devices}))}"


@contextmanager
def repeatable(device: torch.device, *, tf32: bool = False) -> Iterator[None]:
    """Within the block a device gives the same bits each time, and TF32 is used only where it was asked for.

    An accelerator then has deterministic kernels only, without the filling of fresh memory that PyTorch adds to them,
    which costs a pass for each tensor and finds only reads of what nobody wrote. On the CPU nothing changes.
    """
    if device.type == "cpu":
        yield
        return
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    mode = torch.get_deterministic_debug_mode()
    before = cudnn.benchmark, cudnn.allow_tf32, products.allow_tf32
    filled = _fresh.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms would load a compiler for seconds
    cudnn.benchmark, cudnn.allow_tf32, products.allow_tf32 = False, tf32, tf32
    _fresh.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        cudnn.benchmark, cudnn.allow_tf32, products.allow_tf32 = before
        _fresh.fill_uninitialized_memory = filled


def _whole(name: str) -> str:
    return "cuda:0" if name == "cuda" else name


def _list(names: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The folders of the control groups that this process is in, innermost first, of both versions."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        match line.split(":", 2):
            case [_, names, path] if not names or controller in names.split(","):
                mount = root / _GROUPS / names
                inner = mount / path.strip("/")
                yield from (folder for folder in (inner, *inner.parents) if folder.is_relative_to(mount))


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:  # not on this system, or not for us to read
        return ""
