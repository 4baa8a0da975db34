"""The shape of the package: sizes, what lies where, how methods inherit, and that nobody probes methods."""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparsona
import sparsona.method as contract
from sparsona.method import DEVICE_HOOKS, OPTIONAL_HOOKS, PEER_HOOKS, STAR_HOOKS
from sparsona.methods import METHODS

HOOKS = {*DEVICE_HOOKS, *STAR_HOOKS, *PEER_HOOKS, *OPTIONAL_HOOKS}
ROOT = Path(sparsona.__file__).parent
RECIPES = Path(__file__).parent.parent / "recipes"
FILES = {path.relative_to(ROOT).as_posix(): path for path in sorted(ROOT.rglob("*.py"))}

# what a probe would ask for: the classes that methods are made of, and the kinds of methods in the contract
KINDS = {base.__name__ for kind in METHODS.values() for base in kind.__mro__} - {"object"}
KINDS |= {name for name, kind in inspect.getmembers(contract, inspect.isclass) if getattr(kind, "_is_protocol", False)}
PROBES = ("getattr", "hasattr", "setattr", "vars", "dir")
# files that may ask themselves, and why
EXCEPTIONS = {
    "api/layer_masks.py": "the command masks is one of PerFedMask's",
    "papers/pfedgate.py": "the figures of one paper",
    "testing/contract.py": "tries to change a field of a frozen dataclass",
    "testing/scene.py": "calls each hook by its name",
}


@pytest.mark.parametrize("file", FILES)
def test_a_file_can_be_held_in_mind(file: str) -> None:
    """Docstrings do not count: those of the front door describe every parameter."""
    text = FILES[file].read_text(encoding="utf-8")
    documented = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.ClassDef | ast.Module)]
    docstrings = [node.body[0] for node in documented if ast.get_docstring(node) is not None]
    assert len(text.splitlines()) - sum((d.end_lineno or 0) - d.lineno for d in docstrings) <= 400
    assert "type: ignore[override]" not in text


def test_recipes_are_few() -> None:
    assert 0 < len(list(RECIPES.rglob("*.toml"))) <= 80


def test_the_top_level_is_the_front_door() -> None:
    names = {path.name for path in ROOT.iterdir() if path.is_file()}
    assert names == {"__init__.py", "__main__.py", "method.py", "py.typed"}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_inherits_from_at_most_one_other_method(name: str) -> None:
    """And so never deeper than one level: a method between two would be a second one."""
    ours = set(METHODS.values())
    assert len([base for base in METHODS[name].__mro__[1:] if base in ours]) <= 1


def test_hooks_are_few() -> None:
    assert len(HOOKS) <= 14


def test_only_methods_have_hooks() -> None:
    """What else they inherit are fields, and what follows from fields."""
    ours = set(METHODS.values())
    groups = {base for kind in METHODS.values() for base in kind.__mro__ if base not in ours}
    assert {base.__name__: HOOKS & vars(base).keys() for base in groups if HOOKS & vars(base).keys()} == {}


def probes(path: Path) -> Iterator[str]:
    """What a file asks of a method or its class that ``Capabilities`` should say."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.MatchClass) and _names(node.cls) & KINDS:
            yield ast.unparse(node.cls)
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in ("isinstance", "issubclass") and _names(node.args[1]) & KINDS:
            yield ast.unparse(node)
        if called in PROBES and node.args and re.search(r"\bmethod\b", ast.unparse(node.args[0])):
            yield ast.unparse(node)


def _names(node: ast.AST) -> set[str]:
    each = ast.walk(node)
    return {n.id if isinstance(n, ast.Name) else n.attr for n in each if isinstance(n, ast.Name | ast.Attribute)}


def test_what_a_method_can_do_is_asked_in_one_place() -> None:
    """Only ``capabilities`` looks up hooks, fields and classes of methods, and methods know each other."""
    others = {file: path for file, path in FILES.items() if file.partition("/")[0] not in ("core", "methods")}
    found = {file: list(probes(path)) for file, path in others.items() if file != "method.py"}
    assert {file: calls for file, calls in found.items() if calls and file not in EXCEPTIONS} == {}
    assert all(found[file] for file in EXCEPTIONS), "an exception that is no longer needed"


def test_probes_are_found(tmp_path: Path) -> None:
    file = tmp_path / "probing.py"
    lines = [
        "isinstance(m, FedSpa)",
        "isinstance(m, (int, training.SgdTraining))",
        "getattr(recipe.method, 'epochs', 1)",
    ]
    file.write_text("\n".join([*lines, "getattr(methods, 'x')", "isinstance(m, NamedMethod)"]))
    assert len(list(probes(file))) == len(lines)
