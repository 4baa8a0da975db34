"""The command line only parses and prints: what it computes belongs into ``sparsona.api``."""

import ast
from collections.abc import Iterator
from pathlib import Path

from sparsona import cli

MOST = 500  # lines of code in all
KINDS = ("typer.Option", "typer.Argument")


def help_lines(tree: ast.Module) -> Iterator[ast.AST]:
    """The parts of a file that describe commands: options, decorators and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            arguments = [*node.args.args, *node.args.kwonlyargs]
            yield from (a for a in arguments if a.annotation is not None and "typer." in ast.unparse(a.annotation))
            yield from node.decorator_list
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(node) is not None:
            yield node.body[0]
        if isinstance(node, ast.Assign) and any(
            kind in ast.unparse(node) for kind in ("typer.Option", "typer.Argument")
        ):
            yield node


def code_lines(path: Path) -> int:
    """The lines of a file besides help texts, comments and blank lines."""
    source = path.read_text(encoding="utf-8")
    lines = {n for n, line in enumerate(source.splitlines(), 1) if line.strip() and not line.strip().startswith("#")}
    for node in help_lines(ast.parse(source)):
        lines -= set(range(node.lineno, node.end_lineno + 1))  # type: ignore[attr-defined]
    return len(lines)


def test_the_command_line_is_small() -> None:
    counts = {path.name: code_lines(path) for path in Path(cli.__file__).parent.glob("*.py")}
    assert sum(counts.values()) <= MOST, counts
