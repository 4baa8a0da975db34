"""Run all benchmarks and rewrite docs/benchmarks.md: ``SPARSONA_DATA=DIR python benchmarks/all.py``, or ``make bench``.

With names, as in ``all.py fedspa.py``, only those are measured, and the rows of the others stay as they are. Exits 1 if
a figure falls short or a benchmark fails. Without Fashion-MNIST or Flower it measures what it can and leaves the page
alone.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import psutil
import torch

from common import Figure
from sparsona.data import DataError, load

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
NO_DATA = "not measured (needs Fashion-MNIST: set SPARSONA_DATA)"
NO_FLOWER = "not measured (needs Flower: `make bench` installs it)"
FAILED = "failed"

SCRIPTS = (
    "wire.py",
    "memory.py",
    "scale.py",
    "throughput.py",
    "fedspa.py",
    "fedpse.py",
    "gate.py",
    "masks.py",
    "freeze.py",
    "device.py",
    "fleet.py",
)
ON_DATA = {  # what a benchmark leaves out without Fashion-MNIST
    "memory.py": (
        "memory: 2,000 clients with a personal LeNet each, peak of all processes and state on disk",
        "memory: 100 peers with a ResNet-18 each at density 0.5",
    ),
    "scale.py": (
        "scale: 10,000 clients, tests of all and time beyond training",
        "scale: 100,000 registered clients, start, resumption, memory and rounds",
    ),
    "throughput.py": (
        "throughput: cnn and lenet, pool engine over a bare PyTorch loop",
        "throughput: cnn and lenet, pool over Flower's simulator",
        "throughput: cnn and lenet, two workers over one",
    ),
    "fedspa.py": ("fedspa: a round over FedAvg's, lenet5 and lenet",),
    "fedpse.py": ("fedpse: a round over FedAvg's, convnet2, 10 clients",),
}

HOW = """\
- **wire** ([wire.py](../benchmarks/wire.py)): random masks. The excess compares the size of the encoded mask with the
  entropy of as many independent bits of its density. It is the largest over 99 densities, for a million entries. Times
  are the best of three, for a mask with the length of a ResNet-18.
- **memory** ([memory.py](../benchmarks/memory.py)): a merge runs in a fresh process and receives updates one by one.
  The figure is the rise of the peak of its resident memory. The fleet is a whole run in the pool engine with two
  workers: Ditto, two rounds with all 2,000 clients, then a test of all. Every 50 ms, the memory of all its processes is
  summed, with shared pages counted once. The peers are a round of DA-DPFL with ten neighbours and waits.
- **scale** ([scale.py](../benchmarks/scale.py)): clients with 60 Fashion-MNIST samples each, LeNet, batch size 32, 100
  clients per round, pool engine with two workers. Clients have 12 further samples for tests; registered clients use 12
  of their 60.
    - *Test of all* 10,000 clients: the median time of a round with a test, minus that of a round without. With
      personal models (method `local`), every client trains in the first round.
    - *Time beyond the clients' jobs*: the time of a round compared with the sum of its jobs, divided by the number of
      workers. *Time beyond a bare loop*: compared with the same training steps in plain PyTorch, in turns.
    - *Registered clients*: a federation that is read on demand (Ditto, a test of 100 clients). After ten rounds at most
      1,000 of them hold a model, because the others never took part. Start is the time from the start of the process
      until it trains. Resumption is the same after ten rounds. Memory is measured as above. Their rounds are compared
      with rounds of 1,000 clients, which run right after.
- **throughput** ([throughput.py](../benchmarks/throughput.py)): 100 clients, 10 per round, 600 Fashion-MNIST samples
  each, batch size 32, one epoch of SGD, two cores. Values are medians over rounds, without the first.
    - *Pool engine*: with encoding, byte counts and a checkpoint every round.
    - *Bare loop*: plain PyTorch in two processes that do the same training steps and nothing else. It takes turns
      with the pool engine, round by round, three times with new processes.
    - *Flower's simulator* ([flower_baseline.py](../benchmarks/flower_baseline.py)) runs the same rounds in three
      forms, right after ours and not in turns. *As documented*: the strategy FedAvg, a client that builds its model
      and a DataLoader for each message, and the default of two cores per client, so one client runs at a time. *Two
      clients at a time*: the same with one core per client. *Tuned by hand to a bare loop*: a custom round loop that
      polls for answers every 10 ms, with the model and prepared data kept in the actors and no DataLoader. What
      remains is the overhead of the simulator.
- **fedspa** ([fedspa.py](../benchmarks/fedspa.py)): DST at density 0.5, relative to FedAvg. Bytes cover both directions
  between one client and the server, in nine rounds that span the whole cosine schedule, with one batch of training
  each. The mask search is a dense gradient of one batch of 128, and the choice of weights to drop and to grow. It is
  timed on one thread, relative to five epochs of local training, of which one is timed: LeNet5 with 1,248 samples,
  ResNet18 with 500. The paper prints 8.9 % and 12.9 % for its CPU. Rounds: 10 of 100 clients, 600 Fashion-MNIST
  samples each, five epochs, batch size 128, weight decay and clipping, pool engine with two workers, in turns with
  FedAvg.
- **fedpse** ([fedpse.py](../benchmarks/fedpse.py)): p = 0.9 on ConvNet2, relative to FedAvg. Bytes cover both
  directions in three rounds of three clients, after a first round in which the server's message is empty. Rounds: all
  of 10 clients, 6,000 Fashion-MNIST samples each as in the paper, one epoch of Adam, batch size 64, pool engine with
  two workers, in turns with FedAvg.
- **gate** ([gate.py](../benchmarks/gate.py)): a training batch of pFedGate relative to one of FedAvg, with LeNet for
  CIFAR-10 (256,830 weights) on one thread. pFedGate uses ten blocks of rows per layer and a budget per layer; the gate
  is included; clipping, momentum and weight decay are those of the recipes. Time is the median ratio of runs of ten
  steps that take turns. Memory is the most that a step allocates at once. *With what is held* adds weights, gradients
  and momentum of model and gate. A LeNet of half the width, without a gate, shows the possible saving. The gate, its
  steps and the choice of blocks take about 2 ms per step on any processor. The faster its convolutions are, the less
  there is to save: `ONEDNN_MAX_CPU_ISA=AVX2 python benchmarks/gate.py` shows the same processor without AVX-512.
- **masks** ([masks.py](../benchmarks/masks.py)): layer masks of PerFedMask by the default solver, in seconds on one
  core. *Different devices* have budgets drawn from 0.3 of the body to all of it, and layer sizes over two decades. With
  *layers of even sizes*, budgets are drawn from 0.4. The best of 200 random masks has an objective of about 1 and 0.76
  of the body. For the paper's models, half of the devices have a budget of an eighth.
- **freeze** ([freeze.py](../benchmarks/freeze.py)): an epoch of a weak device relative to a full one, on 200 images in
  batches of 50, one thread, the two in turns, in CPU seconds. The masks of least bias and slack train the first layer,
  because it is small. Gradients then pass through all layers: 0.80 (MobileNet) and 0.84 (PreResNet18) of the operations
  remain, and no cheaper mask is as good. With `spare = 0.2` weak devices train higher layers, at the same bias.
- **device** ([device.py](../benchmarks/device.py)): SGD steps on random images in batches of 32 that are in the
  device's memory. The CPU uses one thread and alternates between the two precisions; the figure is the median of seven
  ratios. On each GPU, 1 to 5 processes train at a time, and the samples of all of them count. There are no bars,
  because ratios differ between machines; [devices.md](devices.md) says what is still to be measured.
- **fleet** ([fleet.py](../benchmarks/fleet.py)): a server and two nodes on loopback, with TLS and keys. A bare round
  trip is an app that sends as many bytes to each node and receives as many, over the same processes. Ours are rounds of
  FedAvg with 64 images on each node. Bytes on the socket are counted by a relay between nodes and server. An idle
  node's memory is that of all its processes, with shared pages counted once.
"""


def measure(script: str) -> list[Figure] | None:
    """The figures of one benchmark, or None if it failed."""
    say(f"{script} ...")
    began = time.monotonic()
    command = [sys.executable, str(HERE / script), "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    try:
        figures = [Figure(**{k: v for k, v in row.items() if k != "holds"}) for row in json.loads(done.stdout)]
    except json.JSONDecodeError:
        say(f"{script} failed with exit code {done.returncode}")
        return None
    for figure in figures:
        say(f"  {figure.line}")
    say(f"{script} took {time.monotonic() - began:.0f} s")
    return figures


def say(text: str) -> None:
    """Tell how far it is."""
    print(text, file=sys.stderr, flush=True)


def has_data() -> bool:
    """Whether Fashion-MNIST is there; says why if not."""
    try:
        load("fashion-mnist")
    except DataError as error:
        say(f"some figures cannot be measured: {error}")
        return False
    return True


def has_flower() -> bool:
    """Whether Flower's simulator is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("flwr", "ray"))


def collect(only: list[str]) -> tuple[list[str], bool]:
    """The rows of the table, and whether all is well."""
    rows, well, data = [], True, has_data()
    if unknown := set(only) - set(SCRIPTS):
        sys.exit(f"{', '.join(sorted(unknown))}: no such benchmark; allowed: {', '.join(SCRIPTS)}")
    for script in SCRIPTS:
        if only and script not in only:
            told = PAGE.read_text(encoding="utf-8").splitlines()
            rows += [line for line in told if line.startswith(f"| {Path(script).stem}: ")]
            continue
        figures: list[Figure] | None = []
        if data or script != "throughput.py":
            figures = measure(script)
        if figures is None:
            rows.append(row(f"benchmarks/{script}", FAILED))
            well = False
        else:
            rows += [row(f.name, f"{f.value:.3g} {f.unit}", bar(f), verdict(f)) for f in figures]
            well = well and all(f.holds for f in figures)
        if not data:
            rows += [row(name, NO_DATA) for name in ON_DATA.get(script, ())]
        elif script == "throughput.py" and not has_flower():
            rows.append(row(ON_DATA[script][1], NO_FLOWER))
    return rows, well


def row(*cells: str) -> str:
    """A line of the table."""
    return "| " + " | ".join([*cells, *[""] * (4 - len(cells))]) + " |"


def bar(figure: Figure) -> str:
    """What a figure is held against, if anything."""
    return f"{'at most' if figure.better == 'lower' else 'at least'} {figure.bar:g} {figure.unit}" if figure.bar else ""


def verdict(figure: Figure) -> str:
    """Whether a figure meets its bar."""
    return ("holds" if figure.holds else "**falls short**") if figure.bar else ""


def cpu() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine() -> str:
    """What the figures were measured on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parts = [
        cpu(),
        f"{cores} cores",
        f"{psutil.virtual_memory().total / 2**30:.0f} GiB of memory",
        platform.system(),
        f"Python {platform.python_version()}",
        f"PyTorch {torch.__version__}",
    ]
    if has_flower():
        parts += [f"Flower {importlib.metadata.version('flwr')}", f"Ray {importlib.metadata.version('ray')}"]
    return ", ".join(parts)


def when(measured: list[str]) -> list[str]:
    """For each benchmark, when and where its rows were measured: now, or as the page has it."""
    known = PAGE.read_text(encoding="utf-8").splitlines() if PAGE.exists() else []
    lines = []
    for script in SCRIPTS:
        name = Path(script).stem
        if not measured or script in measured:
            lines.append(f"| {name} | {datetime.now(UTC):%Y-%m-%d} | {machine()} |")
        else:
            lines += [line for line in known if line.startswith(f"| {name} | ")]
    return lines


def page(rows: list[str], measured: list[str]) -> str:
    """The page."""
    head = [row("Figure", "Value", "Bar", "Verdict"), "|---|---|---|---|"]
    table = "\n".join([*head, *rows])
    dates = "\n".join(["| Rows | Measured | On |", "|---|---|---|", *when(measured)])
    return f"""\
# Benchmarks

Written by `make bench`; do not edit by hand. `python benchmarks/all.py NAME.py` measures single benchmarks.

{table}

{dates}

Ratios are what counts: both sides of one are measured on the same machine, while seconds are this machine's own. Other
work on the machine meanwhile blurs the throughput figures, least those that are measured in turns.

## How each is measured

{HOW}"""


def replace(path: Path, text: str) -> None:
    """Write a file in one step."""
    path.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as f:
        f.write(text)
    Path(f.name).chmod(0o644)
    Path(f.name).replace(path)


if __name__ == "__main__":
    rows, well = collect(sys.argv[1:])
    if any(NO_DATA in r or NO_FLOWER in r for r in rows):
        say(f"{PAGE.relative_to(HERE.parent)} is left as it was, because not everything could be measured")
        sys.exit(1)
    replace(PAGE, page(rows, sys.argv[1:]))
    say(f"wrote {PAGE.relative_to(HERE.parent)}")
    sys.exit(0 if well else 1)
