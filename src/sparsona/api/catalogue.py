"""List and show methods, models, recipes, data and runs."""
# more than 400 lines, because the functions are public and their docstrings describe every argument

from __future__ import annotations

import dataclasses
import inspect
import json
import shlex
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from sparsona.api.folders import PLAN, members, writing
from sparsona.api.runs import load
from sparsona.data import DataConfig, Fleet, build, write_encoding
from sparsona.data.labels import LabelRow, label_table
from sparsona.experiment.checking import RecipeError, allowed, is_required, nearest
from sparsona.experiment.field_docs import field_docs
from sparsona.experiment.objects import method_class
from sparsona.experiment.plan import load_data
from sparsona.experiment.recipe import Recipe, tables
from sparsona.experiment.recipe_files import read, recipe_names
from sparsona.experiment.results import Run, plain
from sparsona.experiment.setup import choose_newcomers
from sparsona.methods import METHODS
from sparsona.models import MODELS
from sparsona.papers import CHECKS, Counts, Line
from sparsona.papers.tables import figure_table, waiting_table
from sparsona.papers.waiting import Pick, Waiting, waiting
from sparsona.papers.waiting_figure import waiting_figure
from sparsona.reports.comparison import compare
from sparsona.reports.display import Part, text_table
from sparsona.reports.label_figure import label_picture

_SHOWN = 20  # clients of data that are read client by client


@dataclass(frozen=True)
class OptionInfo:
    """A field of a method or of a recipe's section."""

    name: str
    allowed: str
    default: Any  # None also for a field that is required
    required: bool
    meaning: str

    @property
    def initial(self) -> str:
        """The default as it is shown."""
        return "required" if self.required else "none" if self.default is None else json.dumps(plain(self.default))


@dataclass(frozen=True, repr=False)
class OptionList:
    """The options of a method or of a recipe section."""

    name: str
    section: str
    about: str
    module: str
    options: tuple[OptionInfo, ...]

    def __repr__(self) -> str:
        return f"OptionList({self.name}: {', '.join(option.name for option in self.options)})"

    def json(self) -> dict[str, Any]:
        """Defaults, allowed values and meanings by field."""
        return {
            "name": self.name,
            "about": self.about,
            "fields": {o.name: o.default for o in self.options},
            "allowed": {o.name: o.allowed for o in self.options},
            "meaning": {o.name: o.meaning for o in self.options},
        }

    def render(self, width: int) -> Iterator[Part]:
        """A row per field."""
        yield f"{self.name}: {self.about}"
        yield text_table(
            ("field", "allowed", "default", "description"),
            ((o.name, o.allowed, o.initial, o.meaning) for o in self.options),
            title=f"Set in [{self.section}] of a recipe, or with {self.section}.FIELD=VALUE ({self.module})",
        )


@dataclass(frozen=True, repr=False)
class ResolvedRecipe:
    """A recipe with all of its defaults, by variant."""

    variants: Mapping[str, dict[str, Any]]

    def __repr__(self) -> str:
        return f"ResolvedRecipe({', '.join(self.variants)})"

    def toml(self, variant: str) -> str:
        """A variant as a recipe file."""
        return tomli_w.dumps(self.variants[variant])

    def json(self) -> dict[str, Any]:
        """The variants as plain values."""
        return dict(self.variants)

    def render(self, width: int) -> Iterator[Part]:
        """The recipe file of each variant."""
        for variant in self.variants:
            yield f"# {variant}\n{self.toml(variant)}"


@dataclass(frozen=True, repr=False)
class FolderState:
    """The progress of the runs in a folder."""

    folder: Path
    begun: tuple[Run, ...]
    planned: int

    def __repr__(self) -> str:
        return f"FolderState({sum(run.finished for run in self.begun)} of {self.planned} runs finished)"

    @property
    def finished(self) -> bool:
        """Whether all runs are finished."""
        return len(self.begun) == self.planned and all(run.finished for run in self.begun)

    def json(self) -> dict[str, Any]:
        """The summary of each finished run, and the progress of the others."""
        return {"folder": str(self.folder), "runs": [_run_json(run) for run in self.begun]}

    def render(self, width: int) -> Iterator[Part]:
        """A comparison of the tested runs, a line for every other run, and how to resume them."""
        tested = [run for run in self.begun if run.finished and run.tested]
        if tested:
            yield compare(tested).rich(width)
        for run in self.begun:
            if run not in tested:
                state = f"finished, {run.why_untested}" if run.finished else "not finished"
                yield f"{run.path.name}: {len(run.rounds)} of {run.recipe.rounds} rounds, {state}"
        if not self.finished:
            yield f"resume with: sparsona resume {shlex.quote(str(self.folder))}"


@dataclass(frozen=True, repr=False)
class LabelTable:
    """How data are divided: a row per client."""

    rows: tuple[LabelRow, ...]
    variant: str  # whose data these are
    config: DataConfig
    alike: bool  # whether all variants use these data
    picture: Path | None
    encoding: Path | None = None  # where scales and categories were written

    def __repr__(self) -> str:
        return f"LabelTable({self.config.source}, {self.config.clients} clients)"

    def json(self) -> dict[str, Any]:
        """The rows as plain values."""
        shown = {"clients": [row._asdict() for row in self.rows], "picture": _path_text(self.picture)}
        return shown if self.encoding is None else shown | {"encoding": str(self.encoding)}

    def render(self, width: int) -> Iterator[Part]:
        """A row per client."""
        columns = LabelRow._fields
        yield text_table(
            columns,
            (tuple(map(str, row)) for row in self.rows),
            title=f"{self.config.source}, {self.config.clients} clients, {self.config.partition}",
            right=set(columns) - {"client", "labels"},
        )
        if len(self.rows) < self.config.clients:
            yield f"note: only the first {len(self.rows)} clients are shown; the others are loaded on demand"
        if not self.alike:
            yield f"note: this is variant {self.variant}; other variants use different data"
        if self.picture is not None:
            yield f"figure: {self.picture}"
        if self.encoding is not None:
            yield f"encoding: {self.encoding}; pass it to other runs as data.encoding, to nodes as --encoding"


@dataclass(frozen=True, repr=False)
class TopologyResult:
    """Simulated rounds without a server."""

    waiting: Waiting
    waits: tuple[int, ...]
    picture: Path | None

    def __repr__(self) -> str:
        return f"TopologyResult({self.waiting.clients} clients, {self.waiting.draws} draws)"

    def json(self) -> dict[str, Any]:
        """The estimates as plain values."""
        return self.waiting.json() | {"picture": _path_text(self.picture)}

    def render(self, width: int) -> Iterator[Part]:
        """A row per number of neighbours, a column per wait."""
        yield waiting_table(self.waiting, self.waits, width)
        if self.picture is not None:
            yield f"figure: {self.picture}"


@dataclass(frozen=True, eq=False, repr=False)
class PaperChecks(Mapping[str, list[Line]]):
    """Recomputed numbers, by paper."""

    lines: Mapping[str, list[Line]]
    titles: Mapping[str, str]

    def __repr__(self) -> str:
        return f"PaperChecks({'; '.join(f'{name}: {counts}' for name, counts in self.counts.items())})"

    def __getitem__(self, paper: str) -> list[Line]:
        return self.lines[paper]

    def __iter__(self) -> Iterator[str]:
        return iter(self.lines)

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def counts(self) -> dict[str, Counts]:
        """How many numbers agree, by paper: printed ones apart from derived ones."""
        return {paper: Counts.of(lines) for paper, lines in self.items()}

    @property
    def failed(self) -> bool:
        """Whether a number differs unexpectedly."""
        return any(counts.failed for counts in self.counts.values())

    def json(self) -> dict[str, Any]:
        """The counts by paper, and all numbers, as plain values."""
        rows = [{"check": paper, **line.json()} for paper, lines in self.items() for line in lines]
        return {"counts": {paper: dataclasses.asdict(counts) for paper, counts in self.counts.items()}, "lines": rows}

    def render(self, width: int) -> Iterator[Part]:
        """A table per paper."""
        for paper, lines in self.items():
            yield from figure_table(self.titles[paper], lines, width)


def list_methods() -> dict[str, str]:
    """The built-in methods with a description each."""
    return {name: _about(kind) for name, kind in sorted(METHODS.items())}


def list_models() -> dict[str, str]:
    """The built-in models with a description each."""
    return {name: entry.about for name, entry in MODELS.items()}


def list_recipes() -> dict[str, str]:
    """The built-in recipes with a description each."""
    return {name: str(read(name).get("description", "")) for name in recipe_names()}


def sections() -> dict[str, type]:
    """The tables of a recipe besides its method."""
    hints = typing.get_type_hints(Recipe)
    return {f.name: hints[f.name] for f in dataclasses.fields(Recipe) if dataclasses.is_dataclass(hints[f.name])}


def show(name: str, overrides: Iterable[str] = ()) -> OptionList | ResolvedRecipe | FolderState:
    """Show the options of a method or a section, a recipe with its defaults, or the progress of a run folder.

    Args:
        name: Method (built-in, or your own as package.module:Class), recipe section such as topology, recipe, or run
            folder. Reading a run folder imports no plug-in.
        overrides: For a recipe: fields to change, each as ``key=value``.

    Returns:
        The options of a method or a section, the recipe with its defaults, or the progress of the runs.

    Examples:
        >>> for option in sparsona.show("ditto").options:
        ...     print(option.name, option.default, option.meaning)
    """
    path = Path(name)
    if (name in METHODS or ":" in name) and not path.exists():
        return options(name)
    if name in sections() and not path.exists():
        return options(name)
    if any((path / marker).is_file() for marker in ("recipe.toml", PLAN)):
        return folder_state(path)
    if path.is_dir() and name not in recipe_names():
        Run.open(path)  # says which runs it holds, or that it holds none
    if not path.is_file() and name not in recipe_names():
        known = nearest(name, [*METHODS, *sections(), *recipe_names()])
        raise RecipeError(f"{json.dumps(name)}: no such method, section, recipe, file or run folder{known}")
    return ResolvedRecipe({variant: tables(recipe) for variant, recipe in load(name, overrides).items()})


def options(name: str) -> OptionList:
    """The options of a method or of a recipe section."""
    kind = sections().get(name) or method_class(name)
    section = name if name in sections() else "method"
    about = inspect.getdoc(kind) or "" if name in sections() else _about(kind)
    hints = typing.get_type_hints(kind, include_extras=True)
    meanings = field_docs(kind)
    fields = (
        OptionInfo(f.name, allowed(hints[f.name]), _default(f), is_required(f), meaning)
        for f in dataclasses.fields(kind)
        for meaning in [meanings.get(f.name, "")]
    )
    return OptionList(name, section, about, kind.__module__, tuple(fields))


def _default(f: dataclasses.Field[Any]) -> Any:
    if f.default_factory is not dataclasses.MISSING:
        return f.default_factory()
    return None if is_required(f) else f.default


def folder_state(folder: str | Path) -> FolderState:
    """The progress of the runs in a folder."""
    paths = members(Path(folder), begun=False)
    return FolderState(Path(folder), tuple(Run(p) for p in paths if (p / "recipe.toml").is_file()), len(paths))


def data(
    recipe: str | Path,
    overrides: Iterable[str] = (),
    *,
    picture: str | Path | None = None,
    encoding: str | Path | None = None,
    data_dir: Path | None = None,
) -> LabelTable:
    """Show how data are divided: sizes and labels of each client of a recipe's first variant.

    Args:
        recipe: Name of a built-in recipe, path of a TOML file, or a data source (file, folder, package.module:name).
        overrides: Fields to change, each as ``key=value``.
        picture: Output file of a figure.
        encoding: Output file (JSON) of scales, categories and classes.
        data_dir: Folder with the data sets; by default SPARSONA_DATA.

    Returns:
        A table with a row per client.

    Examples:
        >>> for row in sparsona.show_data("quickstart", ["data.alpha=0.1"]).rows:
        ...     print(row.client, row.train, row.labels)
    """
    plan = load_data(str(recipe), overrides)
    variant, first = next(iter(plan.items()))
    config, seed, share = first
    fleet = build(config, seed, data_dir, newcomers=lambda count: choose_newcomers(seed, share, count))
    path = _drawn(picture)
    if path is not None:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            label_picture(fleet, path)
    rows = label_table(fleet, most=_SHOWN if fleet.lazy else None)
    file = None if encoding is None else Path(encoding)
    if file is not None:
        _write_encoding(fleet, file)
    return LabelTable(tuple(rows), variant, fleet.config, all(data == first for data in plan.values()), path, file)


def _write_encoding(fleet: Fleet, file: Path) -> None:
    known = fleet.encoding
    if known is None:
        raise RecipeError(
            f'encoding: "{file}": {fleet.dataset.name} has nothing to write into it: no columns, no names of '
            "classes and no alphabet"
        )
    with writing(file):
        write_encoding(known, file)


def topology(
    clients: int = 100,
    neighbours: Sequence[int] = (1, 2, 5, 10, 20),
    waits: Sequence[int] = (0, 1, 2, 5, 10),
    draws: int = 1000,
    *,
    pick: Pick = "fastest",
    seed: int = 1,
    picture: str | Path | None = None,
    on_draw: typing.Callable[[int], None] | None = None,
) -> TopologyResult:
    """Simulate rounds without a server: how many clients start at once, and how much waiting lengthens a round."""
    estimates = waiting(clients, neighbours, waits, draws, pick=pick, seed=seed, listen=on_draw)
    path = _drawn(picture)
    if path is not None:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            waiting_figure(estimates, path)
    return TopologyResult(estimates, tuple(waits), path)


def check(paper: str | None = None) -> PaperChecks:
    """Recompute published numbers that need no training, of one paper or of all papers."""
    if paper is not None and paper not in CHECKS:
        raise RecipeError(f"check {json.dumps(paper)}: not found{nearest(paper, CHECKS)}")
    chosen = {name: CHECKS[name] for name in (CHECKS if paper is None else [paper])}
    titles = {name: (compute.__doc__ or name).rstrip(".") for name, compute in chosen.items()}
    return PaperChecks({name: list(compute()) for name, compute in chosen.items()}, titles)


def _run_json(run: Run) -> dict[str, Any]:
    state = {"run": str(run.path), "finished": run.finished}
    return state | (run.summary if run.finished else {"name": run.recipe.name, "rounds": len(run.rounds)})


def _path_text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _drawn(picture: str | Path | None) -> Path | None:
    return None if picture is None else Path(picture)


def _about(kind: type) -> str:
    """The first sentence of a method's module, or of the class."""
    module = inspect.getmodule(kind)
    return (getattr(module, "__doc__", None) or inspect.getdoc(kind) or "").strip().split("\n")[0]
