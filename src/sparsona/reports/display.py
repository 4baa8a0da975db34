"""How results are printed, on a terminal or in a notebook: lines of text and tables; rich is imported where used."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Part: TypeAlias = "str | Table"  # a line of text, or a table


class Printable(Protocol):
    """What a command returns: plain values for scripts, and parts for people."""

    def json(self) -> Any:
        """The result as plain values."""

    def render(self, width: int) -> Iterator[Part]:
        """The parts of the result, for a terminal of ``width`` characters."""


@dataclass(frozen=True)
class NameTable:
    """Names, with a sentence about each."""

    columns: tuple[str, str]
    names: Mapping[str, str]

    def json(self) -> dict[str, str]:
        """The sentences by name."""
        return dict(self.names)

    def render(self, width: int) -> Iterator[Part]:
        """A row per name."""
        yield text_table(self.columns, self.names.items())


def print_result(result: Printable, console: Console | None = None) -> None:
    """Print a result as its command does, by default to rich's own console, which knows notebooks."""
    from rich import get_console

    console = console or get_console()
    for part in result.render(console.width):
        print_part(part, console)


def print_part(part: Part, console: Console) -> None:
    """Print a table, or a line of text as it is."""
    if isinstance(part, str):
        console.print(part, markup=False, highlight=False, emoji=False, soft_wrap=True)
    else:
        console.print(part)


def text_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str | None = None, right: Collection[str] = ()
) -> Table:
    """A table of texts; the columns named by ``right`` are aligned to the right."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=None if title is None else escape(title))
    for column in columns:
        table.add_column(escape(column), justify="right" if column in right else "left")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
