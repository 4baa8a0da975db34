"""Who may import whom: every room imports only rooms before it, and foreign packages stay in their places."""

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparsona

ROOT = Path(sparsona.__file__).parent
FILES = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}
MODULES = {".".join(("sparsona", *Path(f).with_suffix("").parts)).removesuffix(".__init__"): f for f in FILES}

# a room imports only rooms of an earlier line
ORDER = (
    ("core",),
    ("method",),
    ("methods",),
    ("data", "models", "engines"),
    ("experiment",),
    ("reports",),
    ("papers", "fleet"),
    ("api",),
    ("testing",),
    ("cli",),
    ("__init__",),  # the front door
    ("__main__",),
)
RANK = {room: rank for rank, rooms in enumerate(ORDER) for room in rooms}

# besides the order: what a file may import of later rooms, and why
LATER = {
    "methods/pfedgate/figures.py": {"sparsona.reports.drawing"},  # figures of a method share our style
    "methods/perfedmask/figures.py": {"sparsona.reports.drawing"},
}
# besides the order: what a room must not import of earlier rooms, and why
FORBIDDEN = {
    "engines": ("sparsona.methods",),  # engines know methods only by their contract
    "reports": ("sparsona.engines", "sparsona.experiment.runner"),  # tables come from run folders only
}

STANDARD = {"torch", "numpy", "annotated_types", "typing_extensions", *sys.stdlib_module_names}  # allowed in every room
FOREIGN = {  # other packages, and the rooms or files that may import them
    "PIL": ("data/readers/pictures.py",),
    "cryptography": ("fleet",),
    "cvxpy": ("methods/perfedmask/sca.py",),
    "datasets": ("data/readers/hugging_face.py",),
    "flwr": ("fleet/flower.py",),
    "httpx": ("fleet/flower.py",),  # what Flower is made of
    "matplotlib": ("methods/perfedmask/figures.py", "papers/waiting_figure.py", "reports"),
    "onnx": ("experiment",),
    "onnxscript": ("experiment",),
    "ortools": ("methods/perfedmask/cpsat.py",),
    "pandas": ("experiment", "api"),
    "pyarrow": ("data/readers/parquet.py",),
    "pydantic": ("experiment",),
    "ray": ("engines/ray.py",),
    "rich": ("cli", "papers/tables.py", "reports/display.py", "reports/sheet.py"),  # tables for a terminal
    "safetensors": ("engines", "experiment"),
    "scipy": ("methods/pfedgate/figures.py",),
    "sklearn": ("data", "experiment/scoring.py"),
    "starlette": ("fleet/flower.py",),
    "tomli_w": ("experiment", "api"),
    "typing_extensions": ("core", "methods", "data", "experiment"),  # Doc: what a field means
    "typer": ("cli",),
    "uvicorn": ("fleet/flower.py",),
}
# optional or slow to import: may be imported inside a function
LAZY = {
    "PIL",
    "cryptography",
    "cvxpy",
    "datasets",
    "flwr",
    "matplotlib",
    "onnx",
    "onnxscript",
    "ortools",
    "pandas",
    "pyarrow",
    "ray",
    "rich",
    "scipy",
    "sklearn",
    "starlette",
    "uvicorn",
}
# our own modules that may be imported inside a function, and why
OWN_LAZY = {
    ("__main__.py", "sparsona.cli"): "only the parent of worker processes parses a command line",
    ("experiment/setup.py", "sparsona.engines.ray"): "Ray is optional",
    ("fleet/superlink.py", "sparsona.fleet.flower"): "Flower is optional",
}

# what a client or the server of a method holds: one of each in a method's file; FedSTC and FedSCR share theirs
PER_METHOD = {"Client", "Server"}


def room_of(file: str) -> str:
    return Path(file).with_suffix("").parts[0]


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """The full name of each module that a file imports, and whether it does so inside a function."""

    def visit(node: ast.AST, inside: bool) -> Iterator[tuple[str, bool]]:
        if isinstance(node, ast.Import):
            yield from ((alias.name, inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module), inside
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), False)


def under(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize("file", FILES)
def test_a_room_imports_only_rooms_before_it(file: str) -> None:
    room = room_of(file)
    assert room in RANK, f"{room}: a room that ORDER does not name"
    wrong = set()
    for name, _ in imports(FILES[file]):
        parts = name.split(".")
        if parts[0] != "sparsona":
            continue
        other = parts[1] if len(parts) > 1 else "__init__"
        if other == "__init__" and name == "sparsona" and room in ("cli", "api", "fleet", "experiment"):
            continue  # its __version__
        forbidden = any(under(name, package) for package in FORBIDDEN.get(room, ()))
        if forbidden or (other != room and RANK[other] >= RANK[room]):
            wrong.add(name)
    assert wrong - LATER.get(file, set()) == set()


@pytest.mark.parametrize("file", FILES)
def test_foreign_packages_stay_in_their_places(file: str) -> None:
    packages = {name.split(".")[0] for name, _ in imports(FILES[file])} - STANDARD - {"sparsona"}
    assert {
        p for p in packages if not any(file == at or file.startswith(f"{at}/") for at in FOREIGN.get(p, ()))
    } == set()
    unsafe = {name.split(".")[0] for name, _ in imports(FILES[file])}
    assert unsafe & {"pickle", "marshal", "shelve", "cloudpickle"} == set()


@pytest.mark.parametrize("file", FILES)
def test_imports_inside_functions_are_of_slow_or_optional_packages(file: str) -> None:
    """A cycle is solved by moving code, not by importing later."""
    late = {name for name, inside in imports(FILES[file]) if inside}
    own = {name for name in late if under(name, "sparsona")}
    assert {name.split(".")[0] for name in late - own} - LAZY - set(sys.stdlib_module_names) == set()
    assert {name for name in own if (file, name) not in OWN_LAZY} == set()


def test_experiment_knows_methods_only_by_their_names() -> None:
    """What it must know of a method is in ``Capabilities``."""
    known = set()
    for file, path in FILES.items():
        if room_of(file) == "experiment":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    known |= {alias.name for alias in node.names if under(alias.name, "sparsona.methods")}
                elif isinstance(node, ast.ImportFrom) and under(str(node.module), "sparsona.methods"):
                    known |= {f"{node.module}.{alias.name}" for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module == "sparsona":
                    known |= {"sparsona.methods" for alias in node.names if alias.name == "methods"}
    assert known == {"sparsona.methods.METHODS"}


def test_reports_load_nothing_that_runs_clients() -> None:
    """Reading a run folder loads its recipe, and this what the section [engine] is checked with."""
    seen: set[str] = set()
    pending = {name for name, file in MODULES.items() if room_of(file) == "reports"}
    while pending:
        seen |= pending
        files = [MODULES[name] for name in pending if name != "sparsona"]  # of which only the version is used
        pending = {name for file in files for name, _ in imports(FILES[file]) if name in MODULES} - seen
    engines = {name for name in seen if under(name, "sparsona.engines")}
    assert engines == {"sparsona.engines.atomic_file", "sparsona.engines.hardware"}
    assert not any(under(name, "sparsona.experiment.runner") for name in seen)


def test_exceptions_are_still_needed() -> None:
    """An exception whose reason is gone is deleted."""
    modules = {file: dict.fromkeys(name for name, _ in imports(path)) for file, path in FILES.items()}
    for file, names in LATER.items():
        assert names <= modules.get(file, {}).keys(), file
    late = {(file, name) for file, path in FILES.items() for name, inside in imports(path) if inside}
    assert OWN_LAZY.keys() - late == set()


def public_definitions(path: Path) -> list[str]:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    named = (n for n in body if isinstance(n, ast.ClassDef | ast.FunctionDef))
    return [node.name for node in named if not node.name.startswith("_")]


def test_class_names_are_distinct() -> None:
    homes = defaultdict(list)
    for file, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(file)
    clashes = {name: files for name, files in homes.items() if len(files) > 1}
    for name in PER_METHOD:
        assert all(file.startswith(("methods/", "core/compressed.py")) for file in clashes.pop(name, ())), name
    assert clashes == {}


# core's public names with a single user outside of core, and why they stay
SINGLE_USER = {
    "Initialiser": "the optional half of a mask searcher, beside Search",
    "cohort": "the topology of a round with a server, beside those without one",
    "mask_nbytes": "the size of a code, beside the code; papers are recomputed with it",
    "overlap_mean": "an aggregation, beside the others; tests recompute means with it",
    "prior_probability": "a property of a topology, beside it; papers are recomputed with it",
}


def test_core_holds_what_at_least_two_use() -> None:
    """A public name of core is used within core, or by at least two methods or rooms."""
    users: dict[str, set[str]] = {}
    for file, path in FILES.items():
        if file.startswith("core/"):
            users |= {name: set() for name in public_definitions(path)}
    for file, path in FILES.items():
        parts = Path(file).with_suffix("").parts
        user = "/".join(parts[:2]) if parts[0] == "methods" else parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
            if name in users:
                users[name].add(user)
    single = {name for name, by in users.items() if len(by) < 2 and by != {"core"}}
    assert single - SINGLE_USER.keys() == set()
    assert SINGLE_USER.keys() - single == set(), "exceptions that are no longer needed"


@pytest.mark.parametrize("file", FILES)
def test_nothing_unsafe_is_called(file: str) -> None:
    """No eval, no exec, no torch.load, no shell; global random state only in rng.py."""
    for node in ast.walk(ast.parse(FILES[file].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in ("eval", "exec", "torch.load", "os.system", "pickle.loads"), f"{file}:{node.lineno}"
            assert file.endswith("/rng.py") or name not in ("torch.manual_seed", "np.random.seed", "random.seed")
            assert not any(k.arg == "shell" for k in node.keywords)


def test_a_look_at_core_is_cheap() -> None:
    heavy = ("matplotlib", "typer", "pydantic", "sklearn")
    code = f"import sys, sparsona.core.layout; print([m for m in {heavy} if m in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert process.stdout.strip() == "[]"
