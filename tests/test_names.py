"""Names and docstrings of the source: what a value is called says what it is."""

import ast
from collections.abc import Iterator
from pathlib import Path

import sparsona
from sparsona import method

ROOT = Path(sparsona.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in FILES}

BANNED = {"found", "told", "done", "got", "heard", "thing", "things", "tell", "said", "whence"}


# documented once: hooks by the contract, others by PyTorch
PROTOCOLS = [c for c in vars(method).values() if isinstance(c, type) and c.__module__ == method.__name__]
DOCUMENTED_ELSEWHERE = {name for protocol in PROTOCOLS for name in vars(protocol)} | {"forward", "backward"}


def bound_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def public_definitions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name[0] != "_":
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body)


def test_values_are_named_by_nouns() -> None:
    names = {
        f"{file}:{line}: {name}"
        for file, tree in TREES.items()
        for line, name in bound_names(tree)
        if name.strip("_") in BANNED
    }
    assert names == set()


def test_public_functions_and_classes_have_docstrings() -> None:
    missing = {
        f"{file}:{node.lineno}: {node.name}"
        for file, tree in TREES.items()
        for node in public_definitions(tree.body)
        if node.name not in DOCUMENTED_ELSEWHERE and not ast.get_docstring(node)
    }
    assert missing == set()
