"""Execute one group of cases with one tree's source: ``driver.py TREE GROUP OUT [--only PATTERN] [--renamed]``.

`same_bits` starts it with ``PYTHONPATH`` set to the tree's ``src`` and to ``tools``. Every case works in a folder
below OUT and leaves there what it wrote and printed; a case that fails leaves ``failure.txt``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bits import adaptors
from bits.cases import TABLE, Case, Tables, chosen
from bits.compare import renamed_field
from click.testing import CliRunner
from torch.nn.modules.module import register_module_forward_pre_hook
from typer.main import get_command


@cache
def _commands() -> Any:
    """The command line of the tree."""
    return get_command(importlib.import_module("sparsona.cli").app)


class _Interruption:
    """Counts the forward passes of all modules, and raises KeyboardInterrupt in one of them if it is asked to."""

    def __init__(self) -> None:
        self.calls, self.limit = 0, 0

    def __call__(self, module: Any, arguments: Any) -> None:
        self.calls += 1
        if self.calls == self.limit:
            raise KeyboardInterrupt

    @contextmanager
    def at(self, limit: int) -> Iterator[None]:
        """Interrupt the work inside; 0 only counts."""
        self.calls, self.limit = 0, limit
        handle = register_module_forward_pre_hook(self)
        try:
            yield
        finally:
            handle.remove()


class Player:
    """Executes the steps of one case in the current folder."""

    def __init__(self, case: Case, tree: Path, renamed: bool) -> None:
        self.case, self.tree, self.renamed = case, tree, renamed
        self.forwards, self.step = 0, 0
        self.interruption = _Interruption()

    def play(self) -> None:
        """Write the recipe and execute all steps."""
        if self.case.recipe is not None:
            write_toml(Path("r.toml"), renamed_recipe(self.case.recipe) if self.renamed else self.case.recipe)
        for number, step in enumerate(self.case.steps, start=1):
            self.step = number
            first, *rest = shlex.split(step)
            if first.startswith("@"):
                STEPS[first](self, *rest)
            else:
                self.command(first, *rest)

    def command(self, *words: str, accepted: tuple[int, ...] = (0,), limit: int = 0) -> str:
        """Call ``sparsona`` and keep what it prints."""
        changed = [renamed_override(word, self.case.recipe) if self.renamed else word for word in words]
        with self.interruption.at(limit):
            done = CliRunner().invoke(_commands(), changed)
        if limit == 0:
            self.forwards = self.interruption.calls
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        if done.exit_code not in accepted:
            raise RuntimeError(f"sparsona {shlex.join(words)}: exit code {done.exit_code}: {done.output.strip()}")
        Path(f"step-{self.step}.json").write_text(done.stdout)
        return done.stdout

    def interrupted(self, share: str, *words: str) -> None:
        """Call it again, and interrupt it after a share of the forward passes of the command before."""
        self.command(*words, accepted=(1, 130), limit=max(1, int(float(share) * self.forwards)))
        Path(f"step-{self.step}.json").unlink()  # an error message

    def accept(self, code: str, *words: str) -> None:
        """Call it and accept another exit code too."""
        self.command(*words, accepted=(0, int(code)))

    def keys(self, *words: str) -> None:
        """Keep the names of a list only, not what is said about them."""
        names = sorted(json.loads(self.command(*words)))
        Path(f"step-{self.step}.json").write_text(json.dumps(names))

    def samples(self, file: str) -> None:
        """Write samples for a newcomer."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        x = np.rint(digits.images[:40, :, :, None] * (255 / 16)).astype(np.uint8)
        np.savez(file, x=x, y=digits.target[:40])

    def table(self, file: str) -> None:
        """Write a paper's table of the recipe."""
        write_toml(Path(file), TABLE)

    def ray(self) -> None:
        """Start Ray once for all runs."""
        import ray

        if not ray.is_initialized():
            ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

    def recipes(self) -> None:
        """Keep every recipe of the repository in full."""
        found = {}
        for name in json.loads(self.command("recipes", "--json")):
            plan = json.loads(self.command("show", name, "--json"))
            found |= {f"{name}:{variant}": tables for variant, tables in plan.items()}
        Path(f"step-{self.step}.json").unlink()
        Path("recipes.json").write_text(json.dumps(found))

    def tables(self) -> None:
        """Keep the runs of every paper's table in full."""
        names = list(json.loads(self.command("reproduce", "--json")))
        Path(f"step-{self.step}.json").unlink()
        plans = {name: adaptors.table_plan(name) for name in names}
        found = {
            f"{name}:{run}": adaptors.resolved(recipe) for name, plan in plans.items() for run, recipe in plan.items()
        }
        Path("recipes.json").write_text(json.dumps(found))

    def fleet(self, trouble: str) -> None:
        """Run the recipe on a fleet in one process; the trouble is client 2's, in round 2."""
        sys.path.insert(0, str(self.tree / "tests"))
        recipe, out = adaptors.loaded("r.toml"), Path("run").absolute()
        with tempfile.TemporaryDirectory() as folder:
            nodes = Path(folder)
            world = adaptors.world(nodes, 6)
            push, get, lost = world.push_messages, world.get_nodes, []

            def in_round_2() -> bool:
                rounds = out / "rounds.jsonl"
                return rounds.is_file() and rounds.read_bytes().count(b"\n") == 1

            def push_messages(messages: list[Any]) -> list[str]:
                if trouble == "lost" and in_round_2() and not lost:
                    lost.append(2)
                    for each in (nodes / "node-2").iterdir():
                        shutil.rmtree(each)
                if trouble == "silent" and in_round_2():
                    numbers = push([m for m in messages if m.metadata.dst_node_id != 1002])
                    return [*numbers, *(m.object_id for m in messages if m.metadata.dst_node_id == 1002)]
                return list(push(messages))

            def get_nodes() -> list[Any]:
                away = trouble == "away" and in_round_2()
                return [node for node in get() if not away or node.node_id != 1002]

            world.push_messages, world.get_nodes = push_messages, get_nodes
            world.run(recipe, out)
            for name, value in world.values(out).items():
                (out / name).write_bytes(value)
            for model in sorted(nodes.glob("node-*/*/model.safetensors")):
                shutil.copyfile(model, out / f"{model.parents[1].name}.safetensors")
        hide_versions(out)


STEPS: dict[str, Callable[..., None]] = {
    "@interrupted": Player.interrupted,
    "@accept": Player.accept,
    "@keys": Player.keys,
    "@samples": Player.samples,
    "@table": Player.table,
    "@ray": Player.ray,
    "@recipes": Player.recipes,
    "@tables": Player.tables,
    "@fleet": Player.fleet,
}


def hide_versions(out: Path) -> None:
    """Replace the random numbers of a fleet's versions in its records."""
    for file in out.glob("*.jsonl"):
        file.write_text(re.sub(r"(?<![.\w])[0-9a-f]{16}(?![.\w])", "NUMBER", file.read_text()))


def hide_folder(folder: Path) -> None:
    """Replace the case's folder, which differs between the trees, in what was written."""
    for file in folder.rglob("*"):
        if file.suffix in (".json", ".jsonl", ".toml", ".csv", ".md") and str(folder) in (text := file.read_text()):
            file.write_text(text.replace(str(folder), "FOLDER"))


def renamed_recipe(raw: Tables) -> Tables:
    """A recipe of the base as the new tree spells it."""
    variants = raw.get("variants", {})
    result: Tables = {key: value for key, value in raw.items() if not isinstance(value, dict)}
    for section, table in raw.items():
        if isinstance(table, dict) and section != "variants":
            for field, value in table.items():
                method = raw["method"]["name"]
                if (path := renamed_field(section, field, method)) is not None:
                    _put(result, path.split("."), value)
    if variants:
        result["variants"] = variants  # those of the cases have no field but method.name
    return result


def renamed_override(word: str, recipe: Tables | None) -> str:
    """An override of the base as the new tree spells it; other words stay."""
    key, equals, value = word.partition("=")
    section, dot, field = key.partition(".")
    if not (recipe and equals and dot and section in recipe):
        return word
    path = renamed_field(section, field, recipe["method"]["name"])
    return word if path is None else f"{path}={value}"


def _put(tables: Tables, path: list[str], value: Any) -> None:
    for key in path[:-1]:
        tables = tables.setdefault(key, {})
    tables[path[-1]] = value


def write_toml(file: Path, raw: Tables) -> None:
    """Write plain tables as TOML."""
    tables = {key: value for key, value in raw.items() if isinstance(value, dict)}
    lines = [f"{key} = {_inline(value)}" for key, value in raw.items() if key not in tables]
    file.write_text("\n".join([*lines, *(f"{key} = {_inline(value)}" for key, value in tables.items()), ""]))


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return json.dumps(value)


def main() -> None:
    """Execute the cases of a group."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tree", type=Path)
    parser.add_argument("group")
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="*")
    parser.add_argument("--renamed", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    home = Path.cwd()
    for name, case in chosen(arguments.group, arguments.only).items():
        folder = arguments.out.absolute() / name
        folder.mkdir(parents=True)
        os.chdir(folder)
        try:
            Player(case, arguments.tree, arguments.renamed).play()
        except BaseException as error:
            Path("failure.txt").write_text(f"{type(error).__name__}: {error}")
            Path("failure.log").write_text(traceback.format_exc())
        finally:
            os.chdir(home)
            hide_folder(folder)


if __name__ == "__main__":
    main()
