"""The tiny runs that `same_bits` makes with both trees, as recipes and command lines; the driver executes them.

A step is a command of ``sparsona``. Steps that begin with @ are the driver's own, see ``driver.STEPS``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

Tables = dict[str, Any]

RUN = "run r.toml --out run --json"
RESUMED = ("@interrupted 0.6 run r.toml --out stopped --json", "resume stopped --json")
EXPORTED = tuple(f"export run --client {k} --to exported/{k}.safetensors --json" for k in (0, 3))
ADAPTED = ("@samples mine.npz", "adapt run --data mine.npz --to mine.safetensors --json fleet.adapt_epochs=2")


def _names(text: str) -> list[str]:
    return text.split()


STAR = _names(
    "ditto fedavg fedavg_ft fedbabu feddst fedem fedmask fednova fedprox fedpse fedrep fedscr fedspa fedstc heterofl "
    "lgfedavg local perfedavg perfedmask perfedmask+heterofl perfedmask+splitmix pfedgate pfedme splitmix subfedavg "
    "subsampling"
)
PEERS = _names("beer dadpfl dfedavgm dfedsam dispfl gossipfl")
FINISHING = _names(
    "ditto fedavg fedavg_ft fedbabu fednova fedprox heterofl perfedavg perfedmask perfedmask+heterofl "
    "perfedmask+splitmix pfedme splitmix subsampling"
)
SHARED = [*FINISHING, *_names("feddst fedscr fedspa fedstc pfedgate subfedavg")]
KEEPS_MOMENTS = _names(
    "ditto fedavg fedavg_ft fedbabu fedem fedprox fedpse fedrep fedscr fedstc heterofl lgfedavg local perfedmask "
    "perfedmask+heterofl subsampling"
)

SUITS: dict[str, Tables] = {  # by method: what it needs, or what makes so few rounds show all of it
    "beer": {"topology": {"name": "mutual", "fixed": True, "max_wait": 0}},
    "dfedavgm": {"topology": {"max_wait": 0}},
    "dadpfl": {"rounds": 5, "method": {"threshold": 10.0}},  # all vote yes in round 2, and prune from round 3 on
    "feddst": {"method": {"interval": 2}},
    "fedmask": {"method": {"lr": 5.0, "keep": 0.8, "epochs": 3}},
    "lgfedavg": {"method": {"share": "head"}},
    "perfedmask+heterofl": {"method": {"width": 0.75, "budget": 1.0}},
    "perfedmask+splitmix": {"method": {"bases": 2, "budget": 1.0}},
    "pfedgate": {"method": {"momentum": 0.9, "lr": 0.3}},
    "splitmix": {"method": {"bases": 2, "weak": 3}},
    "subfedavg": {"method": {"accuracy": 0.1}},
}


@dataclass(frozen=True)
class Case:
    """A recipe, written as ``r.toml``, and what is done with it."""

    recipe: Tables | None
    steps: tuple[str, ...] = (RUN,)


def recipe(name: str, **more: Any) -> Tables:
    """Six clients with digits, three a round, of a small network."""
    raw: Tables = {
        "name": "small",
        "rounds": 3,
        "seed": 7,
        "data": {"source": "digits", "clients": 6, "alpha": 0.5, "sample_share": 0.2},
        "model": {"name": "digits-mlp"},
        "method": {"name": name, "lr": 0.1, "batch": 16},
        "fleet": {"per_round": 3},
        "topology": {"neighbours": 2, "max_wait": 1, "fixed": False},
        "evaluate": {"points": ["before", "after"]},
        "engine": {"name": "local"},
        "results": {"figures": False},
    }
    for key, value in [*SUITS.get(name, {}).items(), *more.items()]:
        raw[key] = raw[key] | value if isinstance(value, dict) and isinstance(raw.get(key), dict) else value
    return raw


def methods() -> dict[str, Case]:
    """Every method with what it leaves: records, states, models, exports, a newcomer, and a resumed run."""
    steps = {True: (RUN, *RESUMED, *EXPORTED, *ADAPTED), False: (RUN, *RESUMED, *EXPORTED)}
    return {m: Case(recipe(m, results={"models": True}), steps[m in STAR]) for m in (*STAR, *PEERS)}


def training() -> dict[str, Case]:
    """Every method with other optimisers, and with batch normalisation and dropout."""
    found = {}
    for m in (*STAR, *PEERS):
        moments = {"moments": "client"} if m in KEEPS_MOMENTS else {}
        sgd = {"momentum": 0.9, "lr": 0.05, "weight_decay": 1e-3, "clip": 1.0, "drop_last": True, **moments}
        lr = {"lr_schedule": "cosine"}
        found[f"{m}-momentum"] = Case(recipe(m, method=sgd | lr))
        if m != "fedmask":  # it trains no weights, so running statistics would never be right
            normed = {"name": "bits.models:Normed"}
            found[f"{m}-normed"] = Case(recipe(m, method=sgd | {"clip_of": "masked"}, model=normed), (RUN, EXPORTED[0]))
        if m not in NO_ADAM:
            adam = {"optimiser": "adam", "lr": 0.01, "momentum": 0.0, "epochs": 2, **moments}
            found[f"{m}-adam"] = Case(recipe(m, method=adam, model={"name": "digits-cnn"}))
    return found


NO_ADAM = {"fedmask", "fednova", "perfedavg", "pfedgate", "pfedme"}

FIELDS: dict[str, list[Tables]] = {  # by method: fields with other values than their defaults
    "beer": [{"gamma": 0.3, "step": 0.1, "bits": 2}, {"tune": False}],
    "dadpfl": [
        {"votes": "neighbours"},
        {"schedule": "strict", "drift": "squared"},
        {"schedule": "reference", "delay": 1, "frequency": 2.0},
        {"recovery": "random", "masked": "all", "same_start": False},
        {"each": "neuron", "p": 0.8, "q": 1.5, "gamma": 0.8, "slack": 0.01, "cap": 0.5, "quorum": 0.2},
        {"target": 0.55, "density": 0.8, "votes": "neighbours", "threshold": 1.0},
        {"dense": ["*head*"], "prune_rate": 0.6},
    ],
    "dfedavgm": [{"momentum": 0.0}],
    "dfedsam": [{"rho": 0.1, "momentum": 0.5}, {"rho": 0.0}],
    "dispfl": [{"masked": "weights", "recovery": "gradient", "same_start": True}, {"density": 0.2, "prune_rate": 0.2}],
    "ditto": [{"personal_epochs": 2, "pull": 0.1}, {"pull_as": "step"}, {"weighting": "uniform"}],
    "fedavg": [
        {"weighting": "uniform", "epochs": 2},
        {"weak": 3, "weak_epochs": 1, "epochs": 3},
        {"lr_schedule": "exponential", "lr_decay": 0.5},
        {"lr_schedule": "steps", "lr_decay": 0.1, "lr_steps": [0.3, 0.6]},
        {"optimiser": "adam", "lr": 0.01, "beta1": 0.5, "beta2": 0.9, "epsilon": 1e-3},
    ],
    "fedavg_ft": [{"tune_epochs": 3}, {"weak": 3, "weak_epochs": 2}],
    "fedbabu": [{"weak": 3, "weak_epochs": 2, "weighting": "uniform"}],
    "feddst": [{"masked": "all", "recovery": "random"}, {"density": 0.2, "interval": 1, "prune_rate": 0.6}],
    "fedem": [{"models": 2}],
    "fedmask": [{"layers": 1}, {"score": 0.1, "keep": 0.4}],
    "fednova": [{"weak": 3, "weak_epochs": 2, "momentum": 0.5}, {"weighting": "uniform"}],
    "fedprox": [{"mu": 1.0}, {"weak": 3, "weak_epochs": 2}],
    "fedpse": [
        {"elementwise": False},
        {"personalise": False, "scope": "model"},
        {"correlation": "pearson", "sparsity": {"low": 0.5, "high": 0.9}},
        {"correlation": "signs", "sparsity": [0.5, 0.6, 0.7, 0.8, 0.9, 0.0]},
    ],
    "fedrep": [{"head_epochs": 2, "head_lr": 0.05}],
    "fedscr": [{"threshold": 0.001}, {"downlink": "dense", "rounding": "up"}, {"weighting": "uniform"}],
    "fedspa": [
        {"search": "rsm"},
        {"layers": "uniform", "same_start": False, "horizon": "T"},
        {"recovery": "random", "charge_search": True, "density": {"values": [0.3, 0.7], "weights": [1, 2]}},
        {"density": [0.3, 0.4, 0.5, 0.6, 0.7, 1.0], "prune_rate": 0.2},
    ],
    "fedstc": [{"sparsity": 0.5, "rounding": "up"}, {"weighting": "uniform"}],
    "gossipfl": [{"keep": 0.2}],
    "heterofl": [{"scaler": False}, {"keep": {"low": 0.1, "high": 1.0}}],
    "lgfedavg": [{"warmup": 1}, {"share": "linear"}],
    "perfedavg": [{"inner_lr": 0.2, "tune_epochs": 2}, {"weak": 3, "weak_epochs": 2}],
    "perfedmask": [
        {"solver": "random"},
        {"solver": "random_best_of", "draws": 20},
        {"solver": "sequential", "strong": 0.2, "budget": 0.4},
        {"solver": "sca", "draws": 5, "budget": 0.3},
        {"freeze_head": False, "allow_idle": True, "budget": [0.1, 0.2, 0.3, 0.4, 0.5, 1.0]},
        {"refine": 0.1, "spare": 0.2, "budget": 0.5},
        {"weak": 3, "weak_epochs": 2, "budget": {"low": 0.2, "high": 0.9}},
    ],
    "perfedmask+heterofl": [{"scaler": False, "strong": 0.3}],
    "perfedmask+splitmix": [{"weak_bases": 2, "strong": 0.2}],
    "pfedgate": [
        {"split": "even", "selector": "greedy_ratio", "budget": "exact"},
        {"split": "rows", "selector": "exact", "keep": {"low": 0.4, "high": 0.9}},
        {"split": "channels", "budget": "layers", "blocks": 3, "keep": 0.8},
        {"adapt": "client", "velocity": "round", "aggregation": "dense"},
        {"pre_norm": False, "post_norm": False, "sigmoid": False, "shared_branch": True, "st_kept_only": True},
        {"lr_gate": 0.01, "clip": 0.5, "weight_decay": 1e-3},
    ],
    "pfedme": [{"variant": "original", "pull": 15.0, "inner_steps": 3, "inner_lr": 0.05}, {"mix": 0.5, "pull": 0.2}],
    "splitmix": [{"weak_bases": 2, "bases": 3}, {"weighting": "uniform", "weak_epochs": 2}],
    "subfedavg": [{"prune_rate": 0.3, "distance": 0.0, "density": 0.6}],
    "subsampling": [{"density": 0.1}, {"weighting": "uniform"}],
}


MODELS = {"perfedmask": "deep", "pfedgate": "lenet", "lgfedavg": "lenet"}  # of digits, by method


def fields() -> dict[str, Case]:
    """Every method with other values of its own fields."""
    deep = {m: {"name": f"digits-{kind}"} for m, kind in MODELS.items()}
    return {
        f"{m}-{'-'.join(values)}-{i}": Case(recipe(m, method=values, **({"model": deep[m]} if m in deep else {})))
        for m, all_values in FIELDS.items()
        for i, values in enumerate(all_values)
    }


def paths() -> dict[str, Case]:
    """The optional paths of a run: finish, newcomers, the shared model, absent clients, graphs, data, figures."""
    found = {}
    tuned = {"points": ["finished", "shared", "after"], "every": 2}
    for m in FINISHING:
        resumed = RESUMED if m in ("fedavg", "splitmix", "perfedmask") else ()
        made = recipe(m, evaluate=tuned, results={"models": True}, method={"finish_epochs": 2})
        found[f"finish-{m}"] = Case(made, (RUN, *resumed, EXPORTED[0]))
    for m in SHARED:
        target = {"points": ["shared", "before"], "target": 0.2, "batch": 7}
        found[f"shared-{m}"] = Case(recipe(m, evaluate=target, fleet={"per_round": 5}))
    for m in STAR:
        held = recipe(m, fleet={"hold_out": 0.34, "adapt_epochs": 2}, results={"models": True})
        found[f"newcomers-{m}"] = Case(held, (RUN, *(EXPORTED[0].replace("0", str(k)) for k in (1, 2, 4))))
    for m in PEERS:
        graph = {"absent": 0.0 if m == "beer" else 0.3, "speed": {"low": 0.3, "high": 1.0}}
        wait = {} if m in ("beer", "dfedavgm") else {"max_wait": 2, "wait_schedule": "stepwise", "order": "id"}
        kept = {"models": True}
        found[f"absent-{m}"] = Case(recipe(m, topology=graph | wait, results=kept, rounds=5), (RUN, *RESUMED))
        found[f"full-{m}"] = Case(recipe(m, topology={"name": "full"}))
        pairs = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 0], [0, 3]]
        found[f"edges-{m}"] = Case(recipe(m, topology={"name": "edges", "pairs": pairs}))
    for name, graph in {
        "ring": {"name": "ring", "pick": "smallest id", "max_wait": 1},
        "groups": {"name": "groups", "fixed": True},
        "directed": {"name": "edges", "directed": True, "pairs": [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 0]]},
        "mutual": {"name": "mutual", "neighbours": 4},
    }.items():
        for m in ("dadpfl", "dispfl"):
            found[f"{name}-{m}"] = Case(recipe(m, topology=graph, method={"masked": "all"}))
    votes = {"absent": 0.2, "neighbours": 3, "max_wait": 3}
    for who in ("all", "neighbours"):
        made = recipe("dadpfl", rounds=7, topology=votes, method={"votes": who, "threshold": 0.5, "quorum": 0.7})
        found[f"votes-{who}"] = Case(made, (RUN, *RESUMED))
    for name, data in {
        "iid": {"partition": "iid"},
        "pathological": {"partition": "pathological", "classes_per_client": 3},
        "shards": {"partition": "shards", "shards_per_client": 3},
        "lambda": {"partition": "lambda", "noniid": 0.5},
        "balanced": {"balanced": True, "samples_per_client": 40},
        "augmented": {"augment": "crop-flip", "validation_share": 0.0},
        "resized": {"side": 12, "train_share": 450, "validation_share": 50, "test_share": 100},
    }.items():
        made = recipe("fedavg", data=data, model={"name": "digits-cnn"})
        found[f"data-{name}"] = Case(made, (RUN, "data r.toml --json --out labels.png"))
    rare = {"engine": {"name": "local", "checkpoint_every": 2}, "evaluate": {"every": 2}, "rounds": 5}
    for m in ("ditto", "fedspa", "dadpfl", "pfedgate"):
        found[f"rare-checkpoints-{m}"] = Case(recipe(m, **rare), (RUN, *RESUMED))
    for m in ("fedavg", "pfedgate", "dadpfl"):
        found[f"figures-{m}"] = Case(recipe(m, results={"figures": True}))
    return found


def fleets() -> dict[str, Case]:
    """A fleet in one process: sound, with a device that is silent, one that is away, and one that lost its state."""
    found = {m: Case(recipe(m, results={"models": True}), ("@fleet sound",)) for m in (*STAR, *PEERS)}
    everyone = {"per_round": 6, "timeout": 0.2}
    for m in ("ditto", "fedspa", "fedpse", "fedstc", "subfedavg", "fedmask", "lgfedavg", "dadpfl", "fedem"):
        found[f"lost-{m}"] = Case(recipe(m, rounds=4, fleet=everyone), ("@fleet lost",))
    for m in ("ditto", "fedspa", "dadpfl"):
        found[f"silent-{m}"] = Case(recipe(m, fleet=everyone), ("@fleet silent",))
        found[f"away-{m}"] = Case(recipe(m, fleet=everyone), ("@fleet away",))
        again = recipe(m, rounds=4, fleet=everyone | {"min_answers": 6})
        found[f"anew-{m}"] = Case(again, ("@fleet lost",))
    tuned = {"points": ["finished", "shared"], "every": 2}
    found["finish-perfedmask"] = Case(recipe("perfedmask", evaluate=tuned, results={"models": True}), ("@fleet sound",))
    found["newcomers-pfedgate"] = Case(recipe("pfedgate", fleet={"hold_out": 0.34}), ("@fleet sound",))
    return found


def pools() -> dict[str, Case]:
    """Worker processes."""
    pool = {"engine": {"name": "pool", "workers": 2}, "results": {"models": True}}
    return {m: Case(recipe(m, **pool)) for m in ("ditto", "dadpfl")}


def rays() -> dict[str, Case]:
    """Workers of Ray."""
    ray = {"engine": {"name": "ray", "workers": 2}, "results": {"models": True}}
    return {m: Case(recipe(m, **ray), ("@ray", RUN)) for m in ("ditto", "fedspa", "dadpfl")}


TABLE: Tables = {
    "title": "accuracy in percent",
    "source": "Nobody, Table 1",
    "seeds": [1, 2],
    "columns": [
        {"name": "mild", "recipe": "r.toml"},
        {"name": "skewed-10", "recipe": "r.toml", "changes": ["data.alpha=0.1"]},
    ],
    "rows": [
        {"name": "FedAvg", "variant": "shared", "printed": [50.5, "-"], "deviation": [1.5, "-"]},
        {"name": "Ditto", "variant": "own", "changes": ["method.lr=0.2"], "printed": [60, 70.25]},
    ],
}


def commands() -> dict[str, Case]:
    """What else the command line computes."""
    data = {"clients": 4, "sample_share": 0.2}
    ways = {"shared": {"method": {"name": "fedavg"}}, "own": {"method": {"name": "ditto"}}}
    two = recipe("fedavg", rounds=2, data=data, evaluate={"points": ["before"]}) | {"variants": ways}
    found = {
        "check": Case(None, ("@accept 1 check --json",)),
        "names": Case(None, ("@keys methods --json", "@keys models --json", "@keys reproduce --json")),
        "topology": Case(None, ("topology --clients 12 --neighbours 2,3 --waits 0,1,2 --draws 20 --json --out t.png",)),
        "topology-id": Case(
            None,
            (
                'topology --clients 9 --draws 9 --neighbours 2,4 --waits 0,1 --pick "smallest id" '
                "--seed 3 --json --out t.png",
            ),
        ),
        "variants": Case(
            two,
            (
                RUN,
                "compare run --json --target 0.2 --out compared",
                "compare run/own run/shared --device tflops=0.5,gbit_per_s=0.1 --json --out turned",
                "show run --json",
                "show run/own --json",
            ),
        ),
        "sweep": Case(
            two,
            (
                "sweep r.toml method.lr=0.05,0.1 seed=1,2 --out swept --json --target 0.2",
                "sweep r.toml method.lr=0.05,0.1 seed=1,2,3 --only own,shared --out swept --json",
                "compare swept --json --out compared --target 0.3",
            ),
        ),
        "reproduce": Case(
            two,
            (
                "@table table.toml",
                "reproduce table.toml --out table --dry-run --json",
                "reproduce table.toml --out table --seeds 1 --only mild --json",
                "reproduce table.toml --out table --json",
            ),
        ),
    }
    for solver in ("optimised", "sca", "sequential", "random", "random_best_of"):
        made = recipe("perfedmask", model={"name": "digits-deep"}, method={"solver": solver, "draws": 10})
        found[f"masks-{solver}"] = Case(made, ("masks r.toml method.budget=0.3 --json --out masks.png",))
    return found


def recipes() -> dict[str, Case]:
    """Every recipe, variant and table of the repository in full, and every method's defaults."""
    found = {"recipes": Case(None, ("@recipes",)), "tables": Case(None, ("@tables",))}
    for m in (*STAR, *PEERS):
        found[f"defaults-{m}"] = Case(recipe(m), ("show r.toml --json",))
    return found


GROUPS = {  # the longest first
    "training": training,
    "paths": paths,
    "fields": fields,
    "methods": methods,
    "fleets": fleets,
    "commands": commands,
    "rays": rays,
    "pools": pools,
    "recipes": recipes,
}


def chosen(group: str, patterns: str) -> dict[str, Case]:
    """The cases of a group whose GROUP/NAME matches one of the patterns, which have commas between them."""
    wanted = patterns.split(",")
    return {name: case for name, case in GROUPS[group]().items() if any(fnmatch(f"{group}/{name}", p) for p in wanted)}
