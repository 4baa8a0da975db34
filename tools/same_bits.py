"""Show that the working tree computes what a commit did, to the byte: ``python tools/same_bits.py BASE``.

The same tiny runs are made with the source of BASE and with that of the working tree, on this machine, and everything
that they leave is compared: records, states, models, exports, tables, resolved recipes. What a refactoring renames is
listed in ``tools/bits/renames.py``, and nothing else may differ. Cases are in ``tools/bits/cases.py``; where the
driver needs more of Sparsona than its command line, in ``tools/bits/adaptors.py``.

Outcomes of a base are kept in the git folder that all worktrees share. Exit codes: 0 the same, 1 not.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from bits.cases import GROUPS, chosen
from bits.compare import differences

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ROOT / "tools"

SHOWN = 4  # differing files named per case
NEEDS = {"rays": "ray", "fleets": "flwr"}  # groups that need an optional package


@dataclass(frozen=True)
class Outcome:
    """What the cases of a group left."""

    folder: Path
    seconds: float
    error: str = ""  # of the driver itself


def main() -> int:
    """Make the runs, compare them and print what differs."""
    arguments = _arguments()
    commit = _git("rev-parse", "--verify", f"{arguments.base}^{{commit}}")
    kept = (ROOT / _git("rev-parse", "--git-common-dir")).resolve() / "same_bits"
    tree = _checkout(commit, kept / "trees" / commit)
    outcomes = kept / "outcomes" / commit[:12]
    cases = {}
    for group in GROUPS:
        names = list(chosen(group, arguments.only))
        package = NEEDS.get(group)
        if names and package and importlib.util.find_spec(package) is None:
            print(f"{group}: skipped, {package} is not installed")
        elif names:
            cases[group] = names
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(arguments.jobs) as pool:
        new = (arguments.keep or Path(temporary)).resolve()
        bases = {group: pool.submit(_base, tree, group, outcomes) for group in cases}
        news = {group: pool.submit(_new, group, new, arguments.only) for group in cases}
        different = 0
        for group, names in cases.items():
            different += _report(group, names, bases[group].result(), news[group].result())
    count = sum(map(len, cases.values()))
    print(f"{count} cases, {different} differ from {commit[:12]}, {time.monotonic() - began:.0f} s")
    return 1 if different or not count else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="commit to compare the working tree with")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="cases GROUP/NAME, such as 'methods/*,*ditto*'")
    parser.add_argument("-j", "--jobs", type=int, default=2, help="groups at a time (default 2)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the working tree's outcomes in this folder")
    return parser.parse_args()


def _report(group: str, names: list[str], base: Outcome, new: Outcome) -> int:
    """Print how a group compares and give the number of cases that differ."""
    found = {name: list(differences(f"{group}/{name}", base.folder / name, new.folder / name)) for name in names}
    wrong = [name for name, lines in found.items() if lines]
    seconds = f"base {base.seconds:.0f} s, new {new.seconds:.0f} s" if base.seconds else f"new {new.seconds:.0f} s"
    print(f"{group}: {len(names)} cases, {len(wrong)} differ ({seconds})", flush=True)
    for side, outcome in (("base", base), ("working tree", new)):
        if outcome.error:
            print(f"  the driver failed with the {side}: {outcome.error}")
            wrong = wrong or ["driver"]
    for lines in found.values():
        for line in lines[:SHOWN]:
            print(f"  {line}")
        if len(lines) > SHOWN:
            print(f"    and {len(lines) - SHOWN} more files of this case")
    empty = [name for name in names if not any((new.folder / name).glob("*"))]
    for name in empty:
        print(f"  {group}/{name}: left nothing")
    return len(set(wrong) | set(empty))


def _base(tree: Path, group: str, outcomes: Path) -> Outcome:
    """The outcomes of the base, made unless they are kept already."""
    outcomes.mkdir(parents=True, exist_ok=True)
    folder = outcomes / f"{group}-{_key(group)}"
    with (outcomes / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other worktrees may ask for the same
        if folder.is_dir():
            return Outcome(folder, 0)
        part = outcomes / f"{folder.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        made = _play(tree, group, part)
        if made.error or any(part.glob("*/failure.txt")):
            return made  # not to be kept
        part.rename(folder)
        return Outcome(folder, made.seconds)


def _new(group: str, folder: Path, only: str) -> Outcome:
    """The outcomes of the working tree."""
    shutil.rmtree(folder / group, ignore_errors=True)
    return _play(ROOT, group, folder / group, "--renamed", "--only", only)


def _play(tree: Path, group: str, out: Path, *options: str) -> Outcome:
    """Execute a group of cases with the source of a tree."""
    began = time.monotonic()
    out.mkdir(parents=True)
    paths = os.pathsep.join([str(tree / "src"), str(TOOLS)])
    fixed = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "COLUMNS": "140"}
    environment = {k: v for k, v in os.environ.items() if k != "SPARSONA_DATA"} | fixed
    words = [sys.executable, str(TOOLS / "bits" / "driver.py"), str(tree), group, str(out), *options]
    try:
        done = subprocess.run(words, env=environment, cwd=out, capture_output=True, text=True, timeout=1800)
        error = done.stderr[-2000:] or f"exit code {done.returncode}" if done.returncode else ""
    except subprocess.TimeoutExpired:
        error = "no end after half an hour"
    return Outcome(out, time.monotonic() - began, error)


def _checkout(commit: str, tree: Path) -> Path:
    """The files of a commit in a folder."""
    if not tree.is_dir():
        tree.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=tree.parent))
        archive = subprocess.Popen(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE)
        with tarfile.open(fileobj=archive.stdout, mode="r|") as files:
            files.extractall(part, filter="data")
        if archive.wait():
            raise SystemExit(f"git archive {commit} failed")
        try:
            part.rename(tree)
        except OSError:  # another worktree was faster
            shutil.rmtree(part)
    return tree


def _key(group: str) -> str:
    """A number for everything besides the source that decides the outcomes of a base: cases, driver, versions."""
    parts = [sys.version, *(importlib.metadata.version(name) for name in ("torch", "numpy")), repr(GROUPS[group]())]
    parts += [ast.dump(ast.parse((TOOLS / "bits" / name).read_text())) for name in ("driver.py", "models.py")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
