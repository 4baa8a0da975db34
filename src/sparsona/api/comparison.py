"""Compare finished runs and sweeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import Any

from sparsona.api.folders import PLAN, members, reading
from sparsona.core.text import one_line
from sparsona.experiment.checking import COMPARISON
from sparsona.experiment.results import Row, Run, RunError
from sparsona.experiment.sweep import SWEEP, Setting, Sweep
from sparsona.reports.comparison import compare as compare_runs
from sparsona.reports.costs import DeviceModel
from sparsona.reports.display import Part
from sparsona.reports.gains import gains as client_gains
from sparsona.reports.gains import in_words
from sparsona.reports.run_rows import folder_names
from sparsona.reports.sheet import Sheet
from sparsona.reports.sweep_table import compare_sweep


@dataclass(frozen=True, repr=False)
class ComparedRuns:
    """A comparison of runs, or of groups of a sweep's runs.

    Attributes:
        table: The table, whose ``rows`` are mappings.
        gains: What clients gained over the first run; empty for sweeps.
        device: The device whose time and energy are reported.
        folder: Folder of tables and figures.
        swept: Whether a row is a group of a sweep's runs.
    """

    table: Sheet
    gains: tuple[Row, ...]
    device: DeviceModel
    folder: Path
    swept: bool

    def __repr__(self) -> str:
        return f"ComparedRuns({len(self.table.rows)} {'groups' if self.swept else 'runs'} in {str(self.folder)!r})"

    def _repr_html_(self) -> str:
        cells = [[column for part in self.table.parts() for column in part]]
        head = "".join(f"<th>{escape(column.title)}</th>" for column in cells[0])
        rows = ("".join(f"<td>{escape(c.show(row))}</td>" for c in cells[0]) for row in self.table.rows)
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

    def json(self) -> dict[str, Any]:
        """The comparison as plain values."""
        rows = {"rows" if self.swept else "runs": self.table.json(), "notes": self.table.notes}
        gains = {} if self.swept else {"gains": self.gains}
        return rows | {"folder": str(self.folder)} | gains | {"device": asdict(self.device)}

    def render(self, width: int) -> Iterator[Part]:
        """The table, the gains of clients, and the output folder."""
        yield self.table.rich(width)
        yield from in_words(self.gains)
        yield f"tables and figures: {self.folder}"


def compare(
    folders: Iterable[str | Path | Run],
    out: str | Path | None = None,
    *,
    target: float | None = None,
    device: DeviceModel | None = None,
) -> ComparedRuns:
    """Compare finished runs and sweeps, and write tables and figures. The first run is the baseline.

    Args:
        folders: Runs, or folders of runs and sweeps.
        out: Output folder. Default: comparison, or a folder inside the only folder given.
        target: Report the cost of reaching this accuracy, or other headline.
        device: The device whose time and energy are reported. Default: that of DA-DPFL's paper.

    Returns:
        The comparison.

    Examples:
        >>> compared = sparsona.compare(["runs/quickstart-1"], target=0.9, device=sparsona.DeviceModel(tflops=2.0))
        >>> compared.folder
    """
    paths = [folder.path if isinstance(folder, Run) else Path(folder) for folder in folders]
    if out is None:
        whole = len(paths) == 1 and (paths[0] / PLAN).is_file()
        out = paths[0] / COMPARISON if whole else Path("comparison")
    where = Path(out)
    given = [(path, runs) for path in paths if (runs := [Run.open(p) for p in members(path)])]
    if not given:
        raise RunError(f"{', '.join(map(str, paths)) or 'no path'}: not a run folder; give at least one run folder")
    swept = any((path / SWEEP).is_file() for path, _ in given)
    table: Sheet
    gains: Sequence[Row] = ()
    with reading("one of these run folders"):
        if swept:
            table = compare_sweep(_settings(given), where, target, device)
        else:
            runs = [run for _, of_path in given for run in of_path]
            for run in runs:
                if not run.tested:
                    raise RunError(f"{run.path}: {run.why_untested}, so there is no headline to compare")
            table = compare_runs(runs, where, target=target, device=device)
            gains = client_gains(runs)
    if not table.rows:
        whys = "; ".join(f"{run.path.name}: {run.why_untested}" for _, runs in given for run in runs if run.finished)
        raise RunError(f"none of these runs has a headline to compare: {one_line(whys)}")
    return ComparedRuns(table, tuple(gains), device or DeviceModel(), where, swept)


def _settings(given: Sequence[tuple[Path, Sequence[Run]]]) -> dict[Run, Setting]:
    """Runs by what sets them apart, in their sweep or as runs of their own; of several folders, also by the folder."""
    names = folder_names([path for path, _ in given])
    folder_names([run.path for _, runs in given for run in runs])  # refuses a run that is given twice
    settings: dict[Run, Setting] = {}
    for name, (path, runs) in zip(names, given, strict=True):
        swept = Sweep.read(path).of(runs) if (path / SWEEP).is_file() else {}
        for run in runs:
            setting = swept.get(run) or Setting(None if run.path == path else run.path.name, {})
            if len(given) > 1:
                setting = Setting("/".join(filter(None, [name, setting.variant])), setting.values)
            settings[run] = setting
    return settings
