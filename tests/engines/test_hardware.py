"""What a process may use of a machine, and where a run is placed on it, on machines that are made up."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils import deterministic

from sparsona.engines.hardware import (
    Machine,
    accelerators,
    check_device,
    cores,
    device_kind,
    devices_of,
    memory_of,
    repeatable,
    worker_bytes,
    workers_of,
)

GIB = 1 << 30
PLAIN = Machine(2, 24 * GIB, 20 * GIB)
TWO_GPUS = Machine(16, 64 * GIB, 60 * GIB, ("cuda:0", "cuda:1"))
APPLE = Machine(8, 16 * GIB, 8 * GIB, ("mps",))
VERSION = torch.__version__


def written(root: Path, files: dict[str, str]) -> Path:
    """A root folder with these files of a kernel."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:       1048576 kB\nMemFree: 1 kB\nMemAvailable:    524288 kB\nHugetlb: 0 kB\n"}


def test_this_machine_is_described_as_the_system_describes_it() -> None:
    here = Machine.here()
    assert 1 <= here.cores <= len(os.sched_getaffinity(0))
    assert 0 < here.free <= here.memory
    assert here.accelerators == accelerators()
    assert str(PLAIN) == "2 cores, 24 GiB"
    assert str(replace(PLAIN, cores=1)) == "1 core, 24 GiB"


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({}, None),  # no control groups: the affinity decides
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1000 100000\n"}, 1),  # a hundredth of a core
        (  # the group of this process has no quota, the one around it has
            {
                "proc/self/cgroup": "0::/box/job\n",
                "sys/fs/cgroup/box/job/cpu.max": "max 100000\n",
                "sys/fs/cgroup/box/cpu.max": "50000 100000\n",
            },
            1,
        ),
        (  # version 1, as seen from within a container: the path is the host's
            {
                "proc/self/cgroup": "5:memory:/docker/1\n4:cpu,cpuacct:/docker/1\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            None,
        ),
        ({"proc/self/cgroup": "nonsense\n", "sys/fs/cgroup/cpu.max": "nonsense"}, None),
    ],
)
def test_cores_keep_to_the_quota_of_control_groups(files: dict[str, str], most: int | None, tmp_path: Path) -> None:
    all_of_them = len(os.sched_getaffinity(0))
    assert cores(written(tmp_path, files)) == min(all_of_them, most or all_of_them)


def test_half_a_core_more_is_one_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    files = {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000\n"}
    assert cores(written(tmp_path, files)) == 3


@pytest.mark.parametrize(
    ("files", "memory", "free"),
    [
        (MEMINFO, 1 << 30, 1 << 29),
        (MEMINFO | {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, 1 << 30, 1 << 29),
        (
            MEMINFO
            | {
                "proc/self/cgroup": "0::/box\n",
                "sys/fs/cgroup/box/memory.max": f"{1 << 28}\n",
                "sys/fs/cgroup/box/memory.current": f"{1 << 27}\n",
                "sys/fs/cgroup/box/memory.stat": f"anon 5\ninactive_file {1 << 26}\n",
            },
            1 << 28,
            (1 << 28) - (1 << 27) + (1 << 26),  # what is read from files can be read again
        ),
        (
            MEMINFO
            | {
                "proc/self/cgroup": "3:memory:/docker/1\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{1 << 28}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{1 << 28}\n",
            },
            1 << 28,
            0,
        ),
        (  # version 1 without a limit has a number that no machine has
            MEMINFO
            | {
                "proc/self/cgroup": "3:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "4096\n",
            },
            1 << 30,
            1 << 29,
        ),
    ],
)
def test_memory_keeps_to_the_limit_of_control_groups(
    files: dict[str, str], memory: int, free: int, tmp_path: Path
) -> None:
    assert memory_of(written(tmp_path, files)) == (memory, free)


def test_without_proc_the_system_is_asked(tmp_path: Path) -> None:
    memory, free = memory_of(tmp_path)
    assert memory == free == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("wanted", "machine", "devices"),
    [
        ("auto", PLAIN, ("cpu",)),
        ("auto", APPLE, ("mps",)),
        ("auto", TWO_GPUS, ("cuda:0",)),
        ("cpu", TWO_GPUS, ("cpu",)),
        ("cuda", TWO_GPUS, ("cuda:0",)),
        ("cuda:1", TWO_GPUS, ("cuda:1",)),
        (["cuda:1", "cuda"], TWO_GPUS, ("cuda:1", "cuda:0")),
        (("cpu",), PLAIN, ("cpu",)),
        ("mps", APPLE, ("mps",)),
    ],
)
def test_devices_are_those_that_were_named(wanted: str | list[str], machine: Machine, devices: tuple[str, ...]) -> None:
    assert devices_of(wanted, machine) == devices


@pytest.mark.parametrize(
    ("wanted", "machine", "text"),
    [
        ("cuda", PLAIN, f'device: "cuda" is not available; expected auto or cpu (PyTorch {VERSION} sees no GPU)'),
        ("mps", PLAIN, f'device: "mps" is not available; expected auto or cpu (PyTorch {VERSION} sees no GPU)'),
        (
            "cuda:7",
            TWO_GPUS,
            f'device: "cuda:7" is not available; expected auto, cpu, cuda:0 or cuda:1 (PyTorch {VERSION} sees 2 GPUs)',
        ),
        (
            ["cuda:0", "cuda:2"],
            TWO_GPUS,
            f'device: "cuda:2" is not available; expected auto, cpu, cuda:0 or cuda:1 (PyTorch {VERSION} sees 2 GPUs)',
        ),
        ("cuda", APPLE, f'device: "cuda" is not available; expected auto, cpu or mps (PyTorch {VERSION} sees 1 GPU)'),
    ],
)
def test_a_device_that_is_not_there_is_refused(wanted: str | list[str], machine: Machine, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        devices_of(wanted, machine)


@pytest.mark.parametrize("wanted", ["gpu", "", "CUDA", "cuda:", "cuda:-1", "cuda:01", "cpu:0", "mps:1", ["auto"], []])
def test_what_names_no_device_is_refused_on_any_machine(wanted: str | list[str]) -> None:
    with pytest.raises(ValueError, match=r"device: .* is not allowed; expected auto, cpu, cuda, cuda:N, mps or a list"):
        check_device(wanted)


@pytest.mark.parametrize("wanted", [["cuda:1", "cuda:1"], ["cuda", "cuda:0"], ["cpu", "cpu"]])
def test_a_device_is_named_once(wanted: list[str]) -> None:
    with pytest.raises(ValueError, match=r"device: .* more than once; name it once, and set engine.workers"):
        check_device(wanted)


def test_devices_are_of_one_kind() -> None:
    with pytest.raises(ValueError, match=r'device: \["cuda:0", "cpu"\] mixes kinds'):
        check_device(["cuda:0", "cpu"])


@pytest.mark.parametrize(
    ("devices", "at_once", "machine", "count"),
    [
        (("cpu",), 10, PLAIN, 2),  # one for each core
        (("cpu",), 1, PLAIN, 1),  # of which only so many have something to do
        (("cpu",), 3, TWO_GPUS, 3),
        (("cpu",), 100, replace(TWO_GPUS, free=5 * GIB), 5),  # what memory allows
        (("cpu",), 10, replace(PLAIN, free=0), 1),  # there is always one
        (("cuda:0",), 10, TWO_GPUS, 2),  # two for each GPU
        (("cuda:0", "cuda:1"), 10, TWO_GPUS, 4),
        (("cuda:0", "cuda:1"), 3, TWO_GPUS, 3),
        (("cuda:0", "cuda:1"), 1, TWO_GPUS, 2),  # each GPU has one
        (("mps",), 10, APPLE, 2),
        (("cuda:0",), 10, replace(TWO_GPUS, free_on={"cuda:0": 9 * GIB}.get), 2),
        (("cuda:0",), 10, replace(TWO_GPUS, free_on={"cuda:0": 2 * GIB - 1}.get), 1),  # what its memory allows
        (("cuda:0", "cuda:1"), 10, replace(TWO_GPUS, free_on={"cuda:0": 9 * GIB, "cuda:1": GIB}.get), 2),
        (("cuda:0", "cuda:1"), 10, replace(TWO_GPUS, free_on={"cuda:0": 0, "cuda:1": 0}.get), 2),  # there is always one
        (("cpu",), 3, replace(TWO_GPUS, free_on={"cuda:0": 0}.get), 3),
    ],
)
def test_auto_is_as_many_workers_as_have_something_to_do(
    devices: tuple[str, ...], at_once: int, machine: Machine, count: int
) -> None:
    assert workers_of("auto", devices, at_once, machine, GIB) == count


@pytest.mark.parametrize(
    ("wanted", "devices", "machine", "count"),
    [
        (1, ("cpu",), PLAIN, 1),
        (8, ("cpu",), PLAIN, 8),
        (2, ("cpu",), replace(PLAIN, cores=1, memory=GIB // 2), 2),  # two are allowed anywhere
        (3, ("cuda:0", "cuda:1"), TWO_GPUS, 6),  # a number for each GPU
        (3, ("cuda:0", "cuda:1"), replace(TWO_GPUS, free_on={"cuda:0": 3 * GIB, "cuda:1": 4 * GIB}.get), 6),
        (1, ("cuda:0",), replace(TWO_GPUS, free_on={"cuda:0": 0}.get), 1),
    ],
)
def test_a_number_of_workers_is_taken_as_it_is(
    wanted: int, devices: tuple[str, ...], machine: Machine, count: int
) -> None:
    assert workers_of(wanted, devices, 1, machine, GIB) == count


@pytest.mark.parametrize(
    ("wanted", "devices", "machine", "text"),
    [
        (500, ("cpu",), PLAIN, "workers: 500 is too many for this machine; expected at most 8 (2 cores, 24 GiB)"),
        (
            8,
            ("cpu",),
            replace(PLAIN, memory=5 * GIB),
            "workers: 8 is too many for this machine; expected at most 5 (2 cores, 5 GiB)",
        ),
        (
            33,
            ("cuda:0", "cuda:1"),
            TWO_GPUS,
            "workers: 33 is too many for this machine; expected at most 32 on each GPU (16 cores, 64 GiB, 2 GPUs)",
        ),
        (
            2,
            ("cuda:0",),
            replace(TWO_GPUS, free_on={"cuda:0": 3 * GIB // 2}.get),
            "workers: 2 is too many for this machine; expected at most 1 (16 cores, 64 GiB, 1 GPU with 1.5 GiB free)",
        ),
        (
            6,
            ("cuda:0", "cuda:1"),
            replace(TWO_GPUS, free_on={"cuda:0": 9 * GIB, "cuda:1": 5 * GIB}.get),
            "workers: 6 is too many for this machine; expected at most 5 on each GPU "
            "(16 cores, 64 GiB, 2 GPUs with 5 GiB free)",
        ),
    ],
)
def test_more_workers_than_the_machine_can_hold_are_refused(
    wanted: int, devices: tuple[str, ...], machine: Machine, text: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        workers_of(wanted, devices, 100, machine, GIB)


def test_a_gpu_is_asked_for_its_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: asked.append(device) or (3 * GIB, 8 * GIB))
    assert workers_of(3, ("cuda:1",), 9, TWO_GPUS, GIB) == 3
    with pytest.raises(ValueError, match=r"^workers: 4 is too many .* at most 3 \(.*1 GPU with 3 GiB free\)$"):
        workers_of(4, ("cuda:1",), 9, TWO_GPUS, GIB)
    assert set(asked) == {torch.device("cuda:1")}  # and no other, nor any for workers on the CPU
    assert workers_of(3, ("cpu",), 9, TWO_GPUS, GIB) == 3
    assert set(asked) == {torch.device("cuda:1")}


def test_a_worker_needs_its_data_and_some_vectors_as_long_as_the_model() -> None:
    small, large = worker_bytes(60_000, 10 << 20), worker_bytes(11_000_000, 10 << 20)
    assert 0.2 * GIB < small < 0.5 * GIB
    assert large - small == 12 * 4 * (11_000_000 - 60_000)
    assert worker_bytes(1, 5 * GIB) > 5 * GIB


def test_the_kind_of_a_device_is_what_results_depend_on() -> None:
    assert device_kind(("cpu",)) == "cpu"
    assert device_kind(("mps",)) == "mps"
    assert device_kind(("cuda:0", "cuda:1")).startswith("cuda")


def test_an_accelerator_is_repeatable_within_a_job_only() -> None:
    def settings() -> tuple[object, ...]:
        cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
        filled = deterministic.fill_uninitialized_memory  # else every torch.empty costs a pass
        return torch.get_deterministic_debug_mode(), cudnn.benchmark, cudnn.allow_tf32, products.allow_tf32, filled

    before = settings()
    assert before[-1]
    with repeatable(torch.device("cuda:0")):
        assert settings() == (2, False, False, False, False)
    with repeatable(torch.device("cuda:0"), tf32=True):
        assert settings() == (2, False, True, True, False)
    assert settings() == before
    with repeatable(torch.device("cpu"), tf32=True):
        assert settings() == before
    with suppress(ZeroDivisionError), repeatable(torch.device("mps")):
        raise ZeroDivisionError
    assert settings() == before
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
