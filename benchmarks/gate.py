"""What pFedGate's sparsity saves, time and peak memory of a training batch over FedAvg's: ``benchmarks/gate.py``.

CIFAR-10's LeNet (256,830 weights) on pictures of noise, one thread; blocks are rows, the gate is included, and steps
are the recipes': clipping, momentum and decay of model and gate. Time is the median of ratios of neighbouring runs of
ten steps that take turns. Memory is the most that is allocated at once during a step, by PyTorch's own records; first
by itself, then with what weights, gradients and momentum of model and gate hold between steps. For comparison, the time
of a network that was built with half of all units: no gate, nothing to choose.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from common import Figure, main
from sparsona.core.optimiser import SGD, Steps
from sparsona.core.rng import Rng
from sparsona.core.samples import Batch
from sparsona.core.task import Task
from sparsona.core.training import Ctx
from sparsona.engines.pool import ALLOCATOR
from sparsona.methods.pfedgate.gate import Gate
from sparsona.methods.pfedgate.pfedgate import PFedGate
from sparsona.methods.pfedgate.sparse_adaptation import Gated
from sparsona.models import build

SHAPE, CLASSES, BLOCKS, COUNT = (3, 32, 32), 10, 10, 40  # ten of each layer, nine where rows do not divide; the head

TINY = SGD(lr=1e-6, momentum=0.9, weight_decay=5e-4, clip=10.0, fused=True)  # as pFedGate trains


def steps(size: int, keep: float) -> tuple[Callable[[], None], Callable[[], None]]:
    """One step of pFedGate and one of FedAvg, on the same batch."""
    torch.set_num_threads(1)
    task, theta0 = Task.of(build("lenet-cifar", CLASSES, SHAPE), torch.zeros(1, *SHAPE))
    x = torch.rand(size, *SHAPE).contiguous(memory_format=torch.channels_last)
    batch = x, torch.randint(0, CLASSES, (size,))
    ctx = Ctx(0, 1, task, theta0, Rng(1), Rng(1, "common"))
    method = PFedGate(keep=keep, split="rows", budget="layers", blocks=BLOCKS)
    gated = method.gated(keep, ctx)
    check(gated)
    gated.load(theta0, method.join(0, ctx).gate, train=True)
    model = Steps(TINY, task.flat[: task.layout.params])
    gate = Steps(TINY, gated.gate.flat[: gated.gate.layout.params])

    def ours() -> None:
        of_model, of_gate, chosen, _ = gated.gradients(batch)
        model.step(of_model, gated.blocks.spread(chosen.float()))
        gate.step(of_gate)

    def theirs() -> None:
        model.step(task.gradient(batch))

    return ours, theirs


def check(gated: Gated) -> None:
    """What is measured must be able to learn: the gate has a choice, and every class is there whatever it chooses."""
    if len(gated.blocks) != COUNT:
        raise RuntimeError(f"{len(gated.blocks)} blocks, not {COUNT}")
    drawn = [gated.choose(torch.rand(len(gated.blocks))) for _ in range(20)]
    if len({tuple(chosen.tolist()) for chosen in drawn}) < 10:
        raise RuntimeError("hardly any two importances give different blocks")
    head = torch.cat([torch.full((slot.size,), slot.head) for slot in gated.blocks.layout.slots])
    if not all(bool(gated.blocks.spread(chosen)[head].all()) for chosen in drawn):
        raise RuntimeError("classes are dropped")


def halved(size: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """One step of a network with half of all units, and one of the whole network."""
    both = []
    for width in (0.5, 1.0):
        task, _ = Task.of(build("lenet-cifar", CLASSES, SHAPE, width=width), torch.zeros(1, *SHAPE))
        x = torch.rand(size, *SHAPE).contiguous(memory_format=torch.channels_last)
        model = Steps(TINY, task.flat[: task.layout.params])
        both.append(partial(_plain, task, model, (x, torch.randint(0, CLASSES, (size,)))))
    return both[0], both[1]


def _plain(task: Task, model: Steps, batch: Batch) -> None:
    model.step(task.gradient(batch))


def time_ratio(ours: Callable[[], None], theirs: Callable[[], None], tries: int = 9) -> float:
    """Seconds of ten steps over those of the other ten next to them."""

    def seconds(step: Callable[[], None]) -> float:
        began = time.perf_counter()
        for _ in range(10):
            step()
        return time.perf_counter() - began

    return statistics.median([seconds(ours) / seconds(theirs) for _ in range(tries + 1)][1:])


def peak(step: Callable[[], None]) -> int:
    """Bytes that a step allocates at its height."""
    step()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as records:
        step()
    most = now = 0
    for event in records.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def memory_ratios(size: int, keep: float) -> tuple[float, float]:
    """Peak bytes of a step over those of FedAvg's: by themselves, and with what is held between steps."""
    ours, theirs = steps(size, keep)
    model = 4 * sum(p.numel() for p in build("lenet-cifar", CLASSES, SHAPE).parameters())
    gate = 4 * sum(p.numel() for p in Gate(SHAPE, COUNT).parameters())
    a, b = peak(ours), peak(theirs)
    return a / b, (a + 3 * (model + gate)) / (b + 3 * model)


def figures() -> Iterator[Figure]:
    """Everything measured here."""
    for keep, bar, of_time in ((0.5, 0.60, 0.60), (0.3, 0.50, 0.47)):
        for size in (32, 128):
            name = f"gate: {{}} of a batch of {size} over FedAvg's, LeNet, keep {keep}"
            yield Figure(name.format("time"), time_ratio(*steps(size, keep)), "x", of_time, "lower")
            alone, held = memory_ratios(size, keep)
            yield Figure(name.format("peak memory"), alone, "x", bar, "lower")
            yield Figure(name.format("peak memory, with what is held between steps,"), held, "x", 1.0, "lower")
    for size in (32, 128):
        name = f"gate: time of a batch of {size} over FedAvg's, LeNet built with half of all units"
        yield Figure(name, time_ratio(*halved(size)), "x", 0.60, "lower")


if __name__ == "__main__":
    if not ALLOCATOR.items() <= os.environ.items():  # memory is kept between steps, as in the engine's workers
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | ALLOCATOR)
    main(figures)
