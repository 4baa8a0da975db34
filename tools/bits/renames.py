"""What a refactoring has renamed, removed or added since the base: the only differences that `same_bits` accepts.

Add an entry together with the change it describes; empty all maps when a new base is chosen.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

# Recipe fields, base -> new. A key is "section.field", "method.field" (all methods) or "METHOD.field" (one method);
# a value is the dotted path in the new recipe: {"fedprox.mu": "method.proximal"}.
RENAMED_FIELDS: dict[str, str] = {
    "ditto.pull": "method.mu",
    "ditto.pull_as": "method.proximal",
    "pfedme.pull": "method.mu",
}

# Recipe fields that a section or method accepted but ignored: {"ditto.weak", "method.weak"}.
_SGD_ONLY = ("fedmask", "fednova", "perfedavg", "pfedgate", "pfedme")
_IGNORED_BY = {
    "clip_of": (
        "beer",
        "dfedavgm",
        "dfedsam",
        "ditto",
        "fedavg",
        "fedavg_ft",
        "fedem",
        "fedmask",
        "fednova",
        "fedprox",
        "fedpse",
        "fedscr",
        "fedstc",
        "gossipfl",
        "lgfedavg",
        "local",
        "perfedavg",
        "pfedgate",
        "pfedme",
        "splitmix",
        "subsampling",
    ),
    "moments": (
        "beer",
        "dadpfl",
        "dfedavgm",
        "dfedsam",
        "dispfl",
        "feddst",
        "fedmask",
        "fednova",
        "fedspa",
        "gossipfl",
        "perfedavg",
        "perfedmask+splitmix",
        "pfedgate",
        "pfedme",
        "splitmix",
        "subfedavg",
    ),
    "weak": ("ditto", "pfedme", "subsampling"),
    "weak_epochs": ("ditto", "pfedme", "subsampling"),
    **dict.fromkeys(("optimiser", "beta1", "beta2", "epsilon"), _SGD_ONLY),
}
REMOVED_FIELDS: set[str] = {f"{method}.{field}" for field, methods in _IGNORED_BY.items() for method in methods}

# Recipe fields that are new, with the default that leaves results as they were: {"section.field": default}.
ADDED_FIELDS: dict[str, Any] = {
    "engine.device": "auto",
    "engine.device_cache": 4.0,
    "engine.precision": "float32",
    "engine.tf32": False,
    "task.loss": "cross_entropy",
    "task.label_smoothing": 0.0,
    "task.metrics": [],
    "task.headline": "",
    "fleet.sampler": "uniform",
    "fleet.trace": "",
    "fleet.peers": "all",
    "evaluate.clients": "all",
    "evaluate.samples": "test",
    "method.open": 0.5,
    "method.gate_start": "own",
    "method.relu_logits": False,
    "method.momentum_on": "kept",
    "method.optimiser_args": {},
}

# Other values of new fields that recipes have and that leave what was recorded before as it was.
ADDED_VALUES: dict[str, tuple[Any, ...]] = {"task.metrics": (["accuracy", "balanced_accuracy", "auc"],)}

# Fields whose default is another now, which changes no result: {"section.field": (default of the base, new default)}.
CHANGED_DEFAULTS: dict[str, tuple[Any, Any]] = {"engine.workers": (2, "auto")}

# What the base's tests gave the local engine, which has no workers and now refuses any number but 1.
WORKERS_OF_LOCAL = 2

# Recipes, base -> new, as "name" (all variants keep their names) or "name:variant"; one * stands for the rest:
# {"dadpfl/fmnist-dir:*": "dadpfl/fmnist:dirichlet-*"}. A recipe without variants has its own name as the variant.
# Tables of papers, as "paper/table:run", too.
RENAMED_RECIPES: dict[str, str] = json.loads(Path(__file__).with_name("renamed_recipes.json").read_text())

# Paths of files below a case's folder, base -> new, as whole path components: {"state": "values"}.
RENAMED_FILES: dict[str, str] = {"told.png": "notes.png"}

# Keys of JSON, CSV headers and tensor names, base -> new: {"left_out": "excluded"}.
RENAMED_KEYS: dict[str, str] = {"began_anew": "restarted"}

# Keys of JSON and CSV headers that are new in tables of results.
ADDED_KEYS = {
    "clients",
    "devices",
    "precision",
    "clients_per_round",
    "training",
    "never_trained",
    *(f"{name}_{of}" for name in ("clients_per_round", "never_trained") for of in ("mean", "std")),
}

# Text values of JSON and of metadata, base -> new: {"as before local training": "before local training"}.
RENAMED_VALUES: dict[str, str] = {
    "began anew": "restarted",
    "all clients are there": "all clients are connected",
}

# Words in Markdown, and in text values of JSON, base -> new: headers of tables and notes below them.
RENAMED_WORDS: dict[str, str] = {
    "begins anew: ": "restarted without its state: ",
    "of them the client's alone": "of them only the client's",
    "seeds 1, where the table asks for 1, 2": "the runs use seeds 1; the table asks for 1, 2",
    "| by sample % |": "| pooled % |",
    "| shared %": "| shared model %",
    "| untuned %": "| before fine-tuning %",
    "| tuned %": "| fine-tuned %",
    "| after %": "| after training %",
    "| values up |": "| values sent per client |",
    "MB wire": "MB (wire)",
    "MB paper": "MB (paper)",
    "MB a round, busiest": "busiest node (MB/round)",
    "| s a round |": "| s/round |",
    "| J a round |": "| J/round |",
    "differ in clients that train in a round:": "differ in the number of clients that train per round:",
    'fleet.peers = "drawn" lets only fleet.per_round clients train without a server, too': (
        'with fleet.peers = "drawn", methods without a server also train only fleet.per_round clients'
    ),
    "clients that never trained are tested with the state they joined with:": (
        "some clients never trained and are tested in their initial state:"
    ),
    'evaluate.clients = "participated" leaves them out': 'set evaluate.clients = "participated" to leave them out',
    "of the models tuned at the end": "of the fine-tuned models",
    "of the model that is tuned at the end, before": "of the shared model before fine-tuning",
}

# Names of dataclasses in state files, base -> all names that are as good: {"Client": ("Client", "DittoClient")}.
RENAMED_TYPES: dict[str, tuple[str, ...]] = {}

_LABELS = "titles, labels and legends of figures have other words"

# Files, as "case/path" with wildcards, whose contents are meant to differ from the base, with the reason. A new base
# empties it; until then a line is added only together with the change of results that it explains.
CHANGED_ON_PURPOSE: dict[str, str] = {
    "*/state/progress.json": "new: what a finished run needs besides its values to get more rounds",
    "*.tex": "new: tables as LaTeX",
    "commands/variants/*/clients.csv": "new: every client's metrics in all variants",
    "commands/masks-*/step-1.json": "budgets are floored, never rounded up past a share",
    "training/perfedavg-*/*": "Per-FedAvg adapts by plain steps at one rate, whatever the schedule of the other",
    "commands/check/step-*.json": "printed and derived figures are counted apart, and each names its function",
    "commands/reproduce/step-2.json": "a dry run also says method, seed and rounds done of each run",
    "commands/names/step-2.json": "new: the model char-cnn",
    "commands/names/step-3.json": "names of tables: the three that ended in -before are columns of others now",
    "commands/sweep/*/sweep.md": "tables of sweeps say which variance they show",
    "commands/sweep/step-*.json": "tables of sweeps say which variance they show",
    "commands/reproduce/table/table.json": "columns of tables have a new field, setting; it is null here",
    **{
        f"{case}/{file}": "newcomers keep to the limits of their method"
        for m in ("feddst", "fedmask", "fedspa", "heterofl", "perfedmask", "perfedmask+*", "subfedavg")
        for case, files in {
            f"methods/{m}": ("mine.safetensors", "step-7.json"),
            f"paths/newcomers-{m}": ("exported/*", "step-*.json", "run/summary.json", "run/state/client-*"),
        }.items()
        for file in files
    },
    "commands/variants/step-[23].json": "a note says how many clients are tested that never trained",
    "commands/variants/*compare.md": "tables have columns for clients that train in a round, and that never did",
    "*/accuracy*.png": _LABELS,
    "*/clients.png": _LABELS,
    "*/cost.png": _LABELS,
    "*/gain.png": _LABELS,
    "*/participation.png": _LABELS,
    "*/sweep-bytes.png": _LABELS,
    "*/gates.png": _LABELS,
    "*/labels.png": _LABELS,
    "*/masks.png": _LABELS,
    "*/t.png": _LABELS,
    "paths/figures-pfedgate/run/vectors.safetensors": "new: what a figure that was drawn by the loop is drawn from now",
}

# Never compared: what depends on the clock, on random numbers of a fleet's protocol, or is only a log.
IGNORED_FILES = {"timing.jsonl", "fleet.jsonl", "versions.json", "failure.log"}
IGNORED_KEYS = {"run.json": {"sparsona", "fleet_run"}}  # by file: a version, and the random number of a fleet's run
IGNORED_FIELDS = {"name", "description"}  # of resolved recipes only: they decide nothing
