"""Speed of training steps on each device, as ratios: ``python benchmarks/device.py [--json]``.

A LeNet, a CNN and a ResNet18 take steps of SGD on random pictures that lie on the device, in float32 and in bf16. The
processor is measured with one thread, the two precisions in turns. On each GPU, 1 to 5 processes train at a time, and
all of their samples count. Without a GPU it says so, and measures the processor alone. No data set is needed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

import torch

from common import Figure, main
from sparsona.core.arithmetic import arithmetic
from sparsona.core.descent import descend
from sparsona.core.layout import CPU
from sparsona.core.optimiser import SGD
from sparsona.core.rng import Rng
from sparsona.core.samples import Samples
from sparsona.core.task import Precision, Task
from sparsona.engines.hardware import accelerators, device_kind, repeatable
from sparsona.models import build

MODELS = {"lenet": ((1, 28, 28), 10), "cnn": ((1, 28, 28), 10), "resnet18-gn": ((3, 32, 32), 100)}
STEPS = {"lenet": 40, "cnn": 8, "resnet18-gn": 1}  # of a turn, on the processor
BATCH, TURNS, WORKERS = 32, 7, (1, 2, 3, 4, 5)
SECONDS = 5.0  # that a process on a GPU trains
PRECISIONS: tuple[Precision, ...] = ("float32", "bf16")


class Training:
    """A model that takes so many steps at a time on a device."""

    def __init__(self, model: str, device: torch.device, precision: Precision, steps: int) -> None:
        shape, classes = MODELS[model]
        torch.manual_seed(0)
        self.device = device
        self.task, self.theta = Task.of(
            build(model, classes, shape), torch.zeros(1, *shape), device=device, precision=precision
        )
        n = BATCH * steps
        self.data = Samples(torch.randn(n, *shape), torch.randint(classes, (n,)), torch.arange(n)).to(device)

    def go(self) -> float:
        """The seconds of the steps."""
        began = time.perf_counter()
        with repeatable(self.device):
            batches = self.data.epochs(Rng(1), 1, BATCH)
            self.theta, _ = descend(self.task, self.theta, batches, SGD(lr=0.001))
            self.theta.sum().item()  # all of it has been computed
        return time.perf_counter() - began


def on_processor(model: str) -> tuple[float, float]:
    """Samples a second in float32, and bf16 over float32, in turns."""
    steps = STEPS[model]
    exact, rough = (Training(model, CPU, precision, steps) for precision in PRECISIONS)
    times = [(exact.go(), rough.go()) for _ in range(TURNS + 1)][1:]
    return BATCH * steps / statistics.median(a for a, _ in times), statistics.median(a / b for a, b in times)


def on_gpu(model: str, device: str, precision: Precision, workers: int) -> float:
    """Samples a second of so many processes together."""
    command = [sys.executable, __file__, "--train", model, device, precision]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen(command, **pipes) for _ in range(workers)]  # type: ignore[call-overload]
    for process in processes:
        process.stdout.readline()  # it is ready
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0]) for process in processes)


def train(model: str, device: str, precision: Precision) -> None:
    """Be one of those processes."""
    training = Training(model, torch.device(device), precision, 20)
    training.go()
    print("ready", flush=True)
    sys.stdin.readline()
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        training.go()
        done += 20 * BATCH
    print(done / (time.perf_counter() - began))


def figures() -> Iterator[Figure]:
    """All ratios; none has a bar, for they differ from machine to machine."""
    speed = {}
    with arithmetic():
        for model in MODELS:
            speed[model], ratio = on_processor(model)
            yield Figure(f"device: {model}, one core, bf16 over float32", ratio, "x", 0, "higher")
    devices = accelerators()
    if not devices:
        print(f"no GPU here (PyTorch {torch.__version__}): measured the processor alone", file=sys.stderr)
    for device in devices:
        kind = device_kind((device,))
        for model in MODELS:
            for precision in PRECISIONS:
                for workers in WORKERS:
                    what = f"{device} ({kind}), {model}, {precision}, {workers} workers"
                    ratio = on_gpu(model, device, precision, workers) / speed[model]
                    yield Figure(f"device: {what}, over one core in float32", ratio, "x", 0, "higher")


if __name__ == "__main__":
    if "--train" in sys.argv:
        name, place, how = sys.argv[-3:]
        train(name, place, "bf16" if how == "bf16" else "float32")
    else:
        main(figures)
