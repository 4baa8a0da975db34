"""Tables for a terminal: recomputed figures of a paper, and how waiting shapes a round; rich is imported where used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sparsona.papers.line import Counts, Line
from sparsona.papers.waiting import Estimate, Waiting, at_once
from sparsona.reports.display import Part

if TYPE_CHECKING:
    from rich.table import Table


_READABLE = 140  # columns; a wider table has room for the names of functions


def figure_table(title: str, lines: Sequence[Line], width: int) -> Iterator[Part]:
    """A table of figures, the remarks on some of them, and how many agree; a wide one names the functions, too."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title))
    table.add_column("quantity")
    table.add_column("source", no_wrap=True)
    for column in ("printed", "computed"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("agrees", max_width=10 if width < 100 else None)  # else too little is left for the first column
    wide = width > _READABLE
    if wide:
        table.add_column("function")
    notes: dict[str, int] = {}  # numbered in the order of appearance
    section = ""
    for line in lines:
        if line.section != section:
            section = line.section
            table.add_section()
            table.add_row(f"[bold]{escape(section)}[/bold]")
        mark = f" ({notes.setdefault(line.remark, len(notes) + 1)})" if line.remark else ""
        cells = (line.what, line.source, line.aim, line.shown, f"{line.verdict}{mark}")
        table.add_row(*map(escape, (*cells, line.via) if wide else cells), style="red" if line.failed else None)
    yield table
    for note, number in notes.items():
        yield f"({number}) {note}"
    yield "integers agree if equal, other numbers if they round to the printed value, values with ± if within range"
    yield str(Counts.of(lines))


def waiting_table(simulation: Waiting, waits: Sequence[int], width: int) -> Table:
    """Neighbours down, waits across: the length of a round; nobody can wait for more than it reads."""
    from rich import box
    from rich.table import Table

    gap = " " if width >= 45 + 15 * len(waits) else "\n"

    def cell(estimate: Estimate | None, scale: float = 1) -> str:
        if estimate is None:
            return ""
        return f"{scale * estimate.mean:.2f}" + (f"{gap}± {scale * estimate.error:.2f}" if estimate.error else "")

    who = f"{simulation.clients} clients that wait for the {simulation.pick} neighbours"
    table = Table(
        title=f"{who}; mean of {simulation.draws} draws ± standard error",
        caption="N = ...: round length in training times, if each client has M neighbours and waits for at most N",
        box=box.SIMPLE_HEAD,
    )
    for head in ("M", "start at once %", "expected %", *(f"N = {n}" for n in waits), "N = M"):
        table.add_column(head, justify="right", no_wrap=head.startswith("N"))
    for m, share in simulation.parallelism.items():
        cells = [simulation.delay.get((m, n)) for n in (*waits, m)]
        table.add_row(str(m), cell(share, 100), f"{100 * at_once(m):.2f}", *map(cell, cells))
    return table


__all__ = ["figure_table", "waiting_table"]
