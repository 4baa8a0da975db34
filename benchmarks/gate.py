"""What pFedGate's sparsity saves, time and peak memory of a training batch over FedAvg's: ``benchmarks/gate.py``.

CIFAR-10's LeNet (256,830 weights) on pictures of noise, one thread; blocks are rows, the gate is included. Time is the
median of ratios of neighbouring steps that take turns; memory is the most that is allocated at once during a step, by
PyTorch's own records, beside what the models, gate and inputs hold between steps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch.profiler import ProfilerActivity, profile

from common import Figure, main
from sparsona.core.gated import Gated
from sparsona.core.rng import Rng
from sparsona.core.task import Sgd, Task
from sparsona.core.training import Ctx
from sparsona.methods.pfedgate import PFedGate
from sparsona.models import build

SHAPE, CLASSES, BLOCKS = (3, 32, 32), 10, 10


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
    model, gate = (
        Sgd(task.flat[: task.layout.params], clip=10),
        Sgd(gated.gate.flat[: gated.gate.layout.params], clip=10),
    )

    def ours() -> None:
        of_model, of_gate, *_ = gated.gradients(batch)
        model.step(of_model, 1e-6)
        gate.step(of_gate, 1e-6)

    def theirs() -> None:
        model.step(task.gather(task.gradients(batch)), 1e-6)

    return ours, theirs


def check(gated: Gated) -> None:
    """What is measured must be able to learn: the gate has a choice, and every class is there whatever it chooses."""
    drawn = [gated.choose(torch.rand(len(gated.blocks))) for _ in range(20)]
    if len({tuple(chosen.tolist()) for chosen in drawn}) < 10:
        raise RuntimeError("hardly any two importances give different blocks")
    head = torch.cat([torch.full((slot.size,), slot.head) for slot in gated.blocks.layout.slots])
    if not all(bool(gated.blocks.spread(chosen)[head].all()) for chosen in drawn):
        raise RuntimeError("classes are dropped")


def time_ratio(size: int, keep: float, tries: int = 40) -> float:
    """Seconds of a step over FedAvg's next to it."""
    ours, theirs = steps(size, keep)
    ratios = []
    for _ in range(tries + 3):
        began = time.perf_counter()
        ours()
        middle = time.perf_counter()
        theirs()
        ratios.append((middle - began) / (time.perf_counter() - middle))
    return statistics.median(ratios[3:])


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


def memory_ratio(size: int, keep: float) -> float:
    """Peak bytes of a step over those of FedAvg's."""
    ours, theirs = steps(size, keep)
    return peak(ours) / peak(theirs)


def figures() -> Iterator[Figure]:
    """Everything measured here."""
    for keep, bar in ((0.5, 0.60), (0.3, 0.50)):
        for size in (32, 128):
            name = f"gate: {{}} of a batch of {size} over FedAvg's, LeNet, keep {keep}"
            yield Figure(name.format("time"), time_ratio(size, keep), "x", bar, "lower")
            yield Figure(name.format("peak memory"), memory_ratio(size, keep), "x", bar, "lower")


if __name__ == "__main__":
    main(figures)
