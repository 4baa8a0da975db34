"""The command line as tests call it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from sparsona import cli
from sparsona.methods import METHODS


def call(*arguments: str) -> Result:
    """A command, whatever comes of it."""
    done = CliRunner().invoke(cli.app, list(arguments))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def ok(*arguments: str) -> Result:
    """A command that ends well."""
    done = call(*arguments)
    assert done.exit_code == 0, done.output
    return done


def refused(*arguments: str, code: int = 2) -> str:
    """The one line that a command ends with."""
    done = call(*arguments)
    assert done.exit_code == code, done.output
    assert not done.stdout
    line = done.stderr.removeprefix("error: ")
    assert line != done.stderr
    assert line.count("\n") == 1
    return line.strip()


def contents(top: Path) -> dict[str, tuple[bytes, int]]:
    """All files below a folder, with when they were written."""
    files = [p for p in top.rglob("*") if p.is_file()]
    return {p.relative_to(top).as_posix(): (p.read_bytes(), p.stat().st_mtime_ns) for p in files}


def enter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder with nothing of the machine's own settings, on a terminal of known width."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("SPARSONA_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "140")


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ditto is stopped by Ctrl-C in its second round."""
    real = METHODS["ditto"].merge

    def merge(self: Any, server: Any, inbox: Any, ctx: Any) -> Any:
        if ctx.t == 1:
            raise KeyboardInterrupt
        return real(self, server, inbox, ctx)

    with monkeypatch.context() as patch:
        patch.setattr(METHODS["ditto"], "merge", merge)
        yield
