"""Who may import whom: core <- methods, solvers; engines name no method; foreign packages stay in one place."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sparsona

ROOT = Path(sparsona.__file__).parent
PURE = {"torch", "numpy", "annotated_types", *sys.stdlib_module_names}
OWN = {
    "flwr": "engines/flower.py",
    "httpx": "engines/flower.py",  # what Flower is made of
    "uvicorn": "engines/flower.py",
    "starlette": "engines/flower.py",
    "ray": "engines/ray.py",
    "cvxpy": "solvers/sca.py",
    "ortools": "solvers/cpsat.py",
}
FILES = sorted(ROOT.rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Full names of all modules that a file imports, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {node.module or ""} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def allowed(name: str, places: tuple[str, ...]) -> bool:
    top = name.split(".")[0]
    return top in PURE or any(name == p or name.startswith(p + ".") for p in places) or name == "sparsona"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_import_rule(path):
    place = path.relative_to(ROOT).as_posix()
    names = imported(path)
    if place.startswith("core/"):
        assert [n for n in names if not allowed(n, ("sparsona.core",))] == []
    elif place.startswith("methods/"):
        mine = ("sparsona.core", "sparsona.method", "sparsona.methods", "sparsona.solvers")
        assert [n for n in names if not allowed(n, mine)] == []
    elif place.startswith("solvers/"):
        assert [n for n in names if not allowed(n, ("sparsona.core", "sparsona.solvers", *OWN))] == []
    elif place.startswith("engines/"):
        mine = ("sparsona.core", "sparsona.method", "sparsona.engines", "safetensors", *OWN)
        assert [n for n in names if not allowed(n, mine)] == []
    for package, home in OWN.items():
        assert place == home or not any(n.split(".")[0] == package for n in names)
    assert not any(n.split(".")[0] in ("pickle", "marshal", "shelve", "cloudpickle") for n in names)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_nothing_unsafe_is_called(path):
    """No eval, no exec, no torch.load, no shell; global random state only in rng.py."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in ("eval", "exec", "torch.load", "os.system", "pickle.loads"), f"{path}:{node.lineno}"
            assert path.name == "rng.py" or name not in ("torch.manual_seed", "np.random.seed", "random.seed")
            assert not any(k.arg == "shell" for k in node.keywords)


def test_a_look_at_core_is_cheap():
    heavy = ("matplotlib", "typer", "pydantic", "sklearn")
    code = f"import sys, sparsona.core.layout; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
