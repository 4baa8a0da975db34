"""Check a release: version, changelog, citation and tag agree, and the wheel works."""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
PIP = ("-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"))


def main() -> None:
    """Check everything that docs/release.md lists as automated; the first failure ends it."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    check_texts(version, (ROOT / "CHANGELOG.md").read_text(), (ROOT / "CITATION.cff").read_text())
    tags = run("git", "tag", "--list", f"v{version}").split()
    stop_if(bool(tags), f"the tag v{version} exists already; choose another version")
    with tempfile.TemporaryDirectory() as folder:
        check_wheel(Path(folder), version)
        check_uv(Path(folder))
    print(f"ready: tag this commit v{version}, and publish the files in dist/")


def check_texts(version: str, changelog: str, citation: str) -> None:
    """The changelog has an entry with a date for the version, and the citation names it."""
    stop_if(not re.fullmatch(r"\d+\.\d+\.\d+", version), f"project.version: {version} is not MAJOR.MINOR.PATCH")
    entry = re.search(rf"^## \[?{re.escape(version)}\]? - \d{{4}}-\d\d-\d\d$", changelog, re.MULTILINE)
    stop_if(entry is None, f"CHANGELOG.md: no line '## [{version}] - YYYY-MM-DD'")
    stop_if(f"\nversion: {version}\n" not in citation, f"CITATION.cff: version is not {version}")


def check_wheel(folder: Path, version: str) -> None:
    """Build the distributions; install the wheel into an empty environment, and run it in an empty folder."""
    dist = ROOT / "dist"
    for old in dist.glob("sparsona-*"):
        old.unlink()
    builder = environment(folder / "builder")
    run(builder, *PIP, "hatchling")
    run(builder, "-m", "hatchling", "build", "--directory", str(dist))
    (wheel,) = dist.glob(f"sparsona-{version}-*.whl")
    (source,) = dist.glob(f"sparsona-{version}.tar.gz")
    print(f"{wheel.name}: {wheel.stat().st_size / 1e3:.0f} kB, {source.name}: {source.stat().st_size / 1e3:.0f} kB")

    python = environment(folder / "clean")
    run(python, *PIP, "torch")
    run(python, *PIP, str(wheel))
    empty = folder / "empty"
    empty.mkdir()
    sparsona = str(Path(python).with_name("sparsona"))
    stop_if(run(sparsona, "--version", cwd=empty).strip() != f"sparsona {version}", "the wheel has another version")
    run(sparsona, "--help", cwd=empty)
    run(sparsona, "run", "quickstart", "rounds=2", cwd=empty)
    stop_if(not (empty / "runs/quickstart-1/compare/gain.png").is_file(), "the quickstart left no figure")
    print("the wheel runs the quickstart from an empty environment and folder")

    newest = environment(folder / "newest")
    torch = re.search(r"^torch==\S+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert torch is not None
    run(newest, *PIP[:4], torch[0], str(wheel))  # everything else as new as the package allows
    help_text = run(str(Path(newest).with_name("sparsona")), "run", "--help", cwd=empty)
    stop_if("Recipe name" not in help_text, "sparsona run --help: no help of RECIPE with the newest dependencies")
    print("the wheel shows its help with the newest dependencies")


def check_uv(folder: Path) -> None:
    """`uv sync` finds versions for every Python that the package allows."""
    python = environment(folder / "uv")
    run(python, *PIP, "uv")
    run(python, "-m", "uv", "lock", "--dry-run")
    print("uv finds a set of versions")


def environment(folder: Path) -> str:
    """The Python of a new, empty environment."""
    venv.create(folder, with_pip=True)
    return str(folder / ("Scripts" if os.name == "nt" else "bin") / "python")


def run(*words: str, cwd: Path = ROOT) -> str:
    """What a command prints; the end of the check if it fails."""
    outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SPARSONA_DATA")}
    done = subprocess.run(words, cwd=cwd, env=outside, capture_output=True, text=True)
    stop_if(done.returncode != 0, f"{' '.join(words)}\n{done.stdout}{done.stderr}")
    return done.stdout


def stop_if(wrong: bool, why: str) -> None:
    """End with an error."""
    if wrong:
        sys.exit(f"error: {why}")


if __name__ == "__main__":
    main()
