"""Load and run recipes, and resume interrupted runs."""
# more than 400 lines, because the functions are public and their docstrings describe every argument

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsona.api.dry_run import DryRun, dry_run
from sparsona.api.figures import draw
from sparsona.api.folders import PLAN, check_extensions, extend_all, free_folder, read_plan, reading, write_plan
from sparsona.experiment import plan as planning
from sparsona.experiment import runner
from sparsona.experiment.checking import COMPARISON, RecipeError
from sparsona.experiment.engine import moved
from sparsona.experiment.extension import check_extension
from sparsona.experiment.loop import OnRound
from sparsona.experiment.objects import Objects
from sparsona.experiment.recipe import Recipe, check, ready, same_run, with_data
from sparsona.experiment.reproduce import TABLE, Reproduction
from sparsona.experiment.results import Row, Run, vacant
from sparsona.experiment.setup import check_place, names_of, prepare, sizes_of, verify
from sparsona.experiment.sweep import SWEEP, Setting, Sweep
from sparsona.method import Method
from sparsona.reports import gains as gaining
from sparsona.reports import participation
from sparsona.reports.comparison import compare
from sparsona.reports.display import Part
from sparsona.reports.paper_table import compare_with_paper
from sparsona.reports.sheet import Sheet
from sparsona.reports.sweep_table import compare_sweep


@dataclass(frozen=True)
class RunStart:
    """Passed to ``on_run`` before every run.

    Attributes:
        name: Name of the run: the variant, or the recipe if it has no variants.
        path: Its run folder; None if results stay in memory.
        recipe: The recipe of this run, with all defaults.
        number: Its place among the runs of the call, from 1.
        count: Number of runs of the call.
        finished: Whether an earlier process has finished it, so that it is not run again.
        folder: What to resume after an interruption: the run's own folder, or that of its plan.
    """

    name: str
    path: Path | None
    recipe: Recipe
    number: int
    count: int
    finished: bool = False
    folder: Path | None = None


OnRun = Callable[[RunStart], None]


@dataclass(frozen=True, repr=False)
class RunSet:
    """Finished runs of one plan, sweep or table, with the table that compares them. Iterate over it for the runs.

    Attributes:
        runs: The runs, in the order of the recipe.
        folder: Their folder; None if results stay in memory.
        table: The table that compares them; None if no client was ever tested.
        gains: Gains of clients over the first run, one row per other run.
        comparison: Folder of tables and figures; None if none were written.
        source: For a paper's table, the paper and the number of the table.
        title: For a paper's table, its title.
    """

    runs: tuple[Run, ...]
    folder: Path | None = None
    table: Sheet | None = None
    gains: tuple[Row, ...] = ()
    comparison: Path | None = None
    source: str = ""
    title: str = ""

    def __repr__(self) -> str:
        where = "in memory" if self.folder is None else f"in {str(self.folder)!r}"
        return f"RunSet({len(self.runs)} run{'s' if len(self.runs) != 1 else ''} {where})"

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def failures(self) -> tuple[str, ...]:
        """A line for each run that learnt nothing, because every answer of every round was left out."""
        names = [run.recipe.name if self.folder is None else run.path.name for run in self]
        reasons = [participation.failure(run) for run in self]
        return tuple(f"{name}: {reason}" for name, reason in zip(names, reasons, strict=True) if reason)

    @property
    def failed(self) -> bool:
        """Whether any run learnt nothing; for a sweep or a table, whether all did, because some settings may be bad."""
        return len(self.failures) == len(self) if self.summarised else bool(self.failures)

    @property
    def summarised(self) -> bool:
        """Whether the table has one row per group of runs, as for sweeps and papers' tables."""
        return self.folder is not None and summarised(self.folder)

    def json(self) -> dict[str, Any]:
        """The summary of each run, or the rows of the table of a sweep or a paper."""
        shown: dict[str, Any] = {"folder": None if self.folder is None else str(self.folder)}
        shown |= {"source": self.source, "title": self.title} if self.source else {}
        shown |= {"failures": self.failures} if self.failures else {}
        if self.summarised:
            assert self.table is not None
            shown |= {"rows": self.table.json(), "notes": self.table.notes}
        elif self.folder is None:
            shown["runs"] = [run.summary for run in self]
        else:
            shown["runs"] = [{"run": str(run.path), **run.summary} for run in self]
        if self.comparison is not None:
            shown |= {"comparison": str(self.comparison)} | ({} if self.summarised else {"gains": self.gains})
        return shown

    def render(self, width: int) -> Iterator[Part]:
        """A comparison of the runs, or the table of a sweep or a paper, and the folders of the results."""
        if self.source:
            yield f"{self.source}: {self.title}"
        if self.table is not None and self.table.rows:
            yield self.table.rich(width)
        elif self.summarised:
            yield from (f"{run.path.name}: {run.why_untested}" for run in self)
        if not self.summarised:
            yield from self._details()
        if self.folder is not None:
            yield f"results: {self.folder}"
        if self.comparison is not None and self.table is not None:
            pictures = any(file.suffix == ".png" for file in self.table.files)
            yield f"{'tables and figures' if pictures else 'tables'}: {self.comparison}"
            if self.gains:
                yield f"gain of each client: {self.comparison / 'gain.png'}"

    def _details(self) -> Iterator[str]:
        if self.folder is None:
            for run in self:  # no paths, no table
                main = run.headline
                yield f"{run.recipe.name}: {main.title} {run.summary[main.key]}"
            return
        for run in self:
            if not run.tested:
                yield f"{run.path.name}: {run.why_untested}"
        yield from gaining.in_words(self.gains)
        for run in self:
            for line in participation.in_words(run):
                yield f"{run.path.name}: {line}" if len(self) > 1 else line


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Mapping[str, Recipe]):
    """The runs that a recipe describes, by variant; a recipe without variants is one run under its own name.

    A plan is a mapping: ``plan["personal"]`` is the recipe of that variant.

    Attributes:
        recipes: The recipe of each run, by variant.
        settings: For a recipe with a ``[sweep]``, the values of each run.
    """

    recipes: Mapping[str, Recipe]
    settings: Mapping[str, Setting] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Plan({', '.join(self.recipes)})"

    def __getitem__(self, variant: str) -> Recipe:
        return self.recipes[variant]

    def __iter__(self) -> Iterator[str]:
        return iter(self.recipes)

    def __len__(self) -> int:
        return len(self.recipes)

    @property
    def name(self) -> str:
        """The name of the recipe."""
        return next(iter(self.recipes.values())).name

    def named_after_variant(self) -> Plan:
        """The plan of a single variant, its run named after recipe and variant."""
        ((variant, recipe),) = self.recipes.items()
        return Plan({variant: dataclasses.replace(recipe, name=f"{recipe.name}-{variant}"[:100])})

    def free_folder(self, base: str | Path = "runs") -> Path:
        """The first folder base/NAME-1, -2, ... that is not taken."""
        return free_folder(Path(base), self.name)

    def dry_run(self, out: str | Path | None = None, *, data_dir: Path | None = None) -> DryRun:
        """The runs that ``run`` would run, with folders and sizes. Everything is checked, nothing is written.

        Args:
            out: Run folder, as for ``run``; by default the next free one below runs/.
            data_dir: Folder with the data sets; by default SPARSONA_DATA.

        Returns:
            The planned runs.
        """
        folder = self.free_folder() if out is None else Path(out)
        vacant(folder)
        return dry_run(self, folder, alone=len(self) == 1, data_dir=data_dir)

    def run(
        self,
        out: str | Path | None = None,
        *,
        data_dir: Path | None = None,
        on_run: OnRun | None = None,
        on_round: OnRound | None = None,
    ) -> RunSet:
        """Run all variants, each in a folder in ``out``, and compare them.

        Args:
            out: New folder for the runs. Without it, results stay in memory and nothing is compared.
            data_dir: Folder with the data sets; by default SPARSONA_DATA.
            on_run: Called with a RunStart before every run.
            on_round: Called with a Progress after every round.

        Returns:
            The finished runs, with the table that compares them.

        Raises:
            RecipeError: If data, model or devices do not fit the recipe. Nothing is written.
            RunError: If the folder is not empty.

        Examples:
            >>> runs = sparsona.load("quickstart", ["rounds=5"]).run("runs/five")
            >>> print(runs.comparison)  # folder of tables and figures
        """
        if out is None:
            if len(self) > 1:
                verify_all(self, data_dir)
            return RunSet(tuple(_run(RunStart(*start), data_dir, on_run, on_round) for start in _numbered(self)))
        folder = Path(out)
        vacant(folder)
        if len(self) == 1:
            ((name, recipe),) = self.items()
            return compared(
                [_run(RunStart(name, folder, recipe, 1, 1, False, folder), data_dir, on_run, on_round)], folder
            )
        verify_all(self, data_dir)
        write_plan(folder, self, *((SWEEP, Sweep(self.settings).json()) if self.settings else ()))
        return compared(run_planned(folder, data_dir, on_run, on_round), folder)

    def resume(
        self,
        out: str | Path,
        *,
        data_dir: Path | None = None,
        on_run: OnRun | None = None,
        on_round: OnRound | None = None,
    ) -> RunSet:
        """Resume these runs in ``out``; the folder must have been made for this plan.

        Args:
            out: The folder that was given to ``run``.
            data_dir: Folder with the data sets; by default SPARSONA_DATA.
            on_run: Called with a RunStart before every run.
            on_round: Called with a Progress after every round.

        Returns:
            All runs of the folder, with the table that compares them.
        """
        folder = Path(out)
        if known := read_plan(folder):
            same = known.keys() == self.keys() and all(same_run(known[name], self[name]) for name in self)
        else:  # a folder of one run, as --only makes it
            same = any(same_run(Run.open(folder).recipe, recipe) for recipe in self.values())
        if not same:
            raise RecipeError(": ".join(filter(None, [f"{folder} holds other runs", ", ".join(known)])))
        return resume_all(folder, data_dir=data_dir, on_run=on_run, on_round=on_round)


def summarised(folder: Path) -> bool:
    """Whether a folder is that of a sweep or of a paper's table, whose tables have one row per group of runs."""
    return any((folder / file).is_file() for file in (SWEEP, TABLE))


def load(recipe: str | Path, overrides: Iterable[str] = (), only: Sequence[str] = ()) -> Plan:
    """Load a recipe.

    Args:
        recipe: Name of a built-in recipe (``list_recipes()``), or path of a TOML file.
        overrides: Fields to change, each as ``key=value``.
        only: Names of variants to load. Default: all.

    Returns:
        The plan: a mapping from variants to recipes.

    Raises:
        RecipeError: If a field is unknown or a value is not allowed.

    Examples:
        >>> plan = sparsona.load("quickstart", ["rounds=5", "method.lr=0.1"], only=["shared", "personal"])
        >>> plan["personal"].method.name
    """
    name, changes = str(recipe), list(overrides)
    return Plan(planning.load(name, changes, only), planning.load_settings(name, changes, only))


def run(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    out: str | Path | None = None,
    *,
    method: Method | None = None,
    data: Any = None,
    model: Any = None,
    data_dir: Path | None = None,
    on_round: OnRound | None = None,
) -> Run:
    """Run one recipe. Objects that cannot be imported as package.module:name need ``engine.name = "local"``.

    Args:
        recipe: A recipe of a plan, plain tables of one run, or the name or path of a recipe with one variant.
        out: New run folder. Without it, results stay in memory.
        method: Your method, used instead of the one that the recipe names.
        data: Your data, used instead of ``data.source``: a path, arrays, a function or a federation.
        model: Your model, used instead of ``model.name``: a class, a function or a module.
        data_dir: Folder with the data sets; by default SPARSONA_DATA.
        on_round: Called with a Progress after every round.

    Returns:
        The finished run.

    Raises:
        RecipeError: If something does not fit the recipe. Nothing is written.
        RunError: If the folder is not empty.

    Examples:
        >>> plan = sparsona.load("quickstart", ["rounds=5"])
        >>> run = sparsona.run(plan["personal"], "runs/personal", on_round=lambda p: print(p.round, p.seconds))
        >>> run.summary["accuracy"]
    """
    objects = Objects(method, data, model)
    if isinstance(recipe, Mapping):
        recipe = check(recipe, objects=objects)
    elif not isinstance(recipe, Recipe):
        recipe = _single(str(recipe), objects)
    finished = runner.run(recipe, out, data_dir=data_dir, on_round=on_round, objects=objects)
    if out is not None:
        draw(finished)
    return finished


def resume(
    out: str | Path,
    *,
    rounds: int | None = None,
    engine: Mapping[str, Any] | None = None,
    method: Method | None = None,
    data: Any = None,
    model: Any = None,
    data_dir: Path | None = None,
    on_round: OnRound | None = None,
) -> Run:
    """Resume an interrupted run, or extend a finished one. The result is bit-identical to an uninterrupted run.

    Args:
        out: The run folder.
        rounds: Extend the run to this number of rounds.
        engine: Fields of ``[engine]`` to change, as in ``{"workers": 1, "device": "cpu"}``.
        method: The method, if the run was started with an object that cannot be imported.
        data: The data, likewise.
        model: The model, likewise.
        data_dir: Folder with the data sets; by default SPARSONA_DATA.
        on_round: Called with a Progress after every round.

    Returns:
        The finished run.

    Examples:
        >>> run = sparsona.resume("runs/personal", rounds=10)
    """
    objects = Objects(method, data, model)
    finished = runner.resume(out, data_dir=data_dir, on_round=on_round, objects=objects, engine=engine, rounds=rounds)
    draw(finished)
    return finished


def resume_all(
    out: str | Path,
    *,
    data_dir: Path | None = None,
    on_run: OnRun | None = None,
    on_round: OnRound | None = None,
    target: float | None = None,
    rounds: int | None = None,
    engine: Mapping[str, Any] | None = None,
) -> RunSet:
    """Resume all unfinished runs of a folder (a run, plan, sweep or paper's table), and compare the runs.

    Args:
        out: The folder.
        data_dir: Folder with the data sets; by default SPARSONA_DATA.
        on_run: Called with a RunStart before every run.
        on_round: Called with a Progress after every round.
        target: Report the cost of reaching this accuracy, or other headline.
        rounds: Extend all runs to this number of rounds first.
        engine: Fields of ``[engine]`` to change, as in ``{"workers": 1, "device": "cpu"}``.

    Returns:
        All runs of the folder, with the table that compares them.
    """
    folder = Path(out)
    if (folder / PLAN).is_file():
        if rounds is not None:
            _extend_plan(folder, rounds, data_dir, engine)
        return compared(run_planned(folder, data_dir, on_run, on_round, engine=engine), folder, target)
    known = Run.open(folder)
    if rounds is not None:
        check_extension(known, rounds)
    recipe = dataclasses.replace(known.recipe, rounds=rounds or known.recipe.rounds)
    finished = known.finished and recipe.rounds == known.recipe.rounds
    start = RunStart(folder.name, folder, recipe, 1, 1, finished, folder)
    return compared([_run(start, data_dir, on_run, on_round, engine, rounds)], folder)


def verify_all(plan: Mapping[str, Recipe], data_dir: Path | None = None) -> None:
    """Build each different data set and model once, so that what cannot run is reported before anything is written."""
    groups: dict[Any, list[str]] = {}
    for name, recipe in plan.items():
        groups.setdefault((recipe.data, recipe.seed, recipe.model, recipe.task), []).append(name)
    for names in groups.values():
        name = names[0]
        try:
            device, fleet = prepare(plan[name], data_dir)
            for name in names:
                recipe = with_data(ready(plan[name]), fleet.config)
                verify(recipe, device, fleet.clients, sizes_of(fleet), names_of(fleet))
                check_place(recipe, device, fleet)
        except ValueError as error:
            raise RecipeError(f"{name}: {error}") from error


def run_planned(
    folder: Path,
    data_dir: Path | None,
    on_run: OnRun | None,
    on_round: OnRound | None,
    only: Collection[str] = (),
    engine: Mapping[str, Any] | None = None,
) -> list[Run]:
    """Run what a folder's plan still lacks, of all or of some of its runs."""
    for file, kind in ((SWEEP, Sweep), (TABLE, Reproduction)):
        if (folder / file).is_file():
            kind.read(folder)  # a damaged file is reported now, not when all runs are finished
    plan = {name: recipe for name, recipe in read_plan(folder).items() if not only or name in only}
    starts = (
        RunStart(name, folder / name, recipe, number, count, Run(folder / name).finished, folder)
        for name, _, recipe, number, count in _numbered(plan)
    )
    return [_run(start, data_dir, on_run, on_round, engine) for start in starts]


def compared(runs: Sequence[Run], folder: Path, target: float | None = None) -> RunSet:
    """The runs of a folder with their table, written into the folder if there are several."""
    where = folder / COMPARISON
    table: Sheet
    if (folder / SWEEP).is_file():
        with reading(f"one of the runs in {folder}"):
            table = compare_sweep(Sweep.read(folder).of(runs), where, target)
        return RunSet(tuple(runs), folder, table, comparison=where if table.files else None)
    if (folder / TABLE).is_file():
        with reading(f"one of the runs in {folder}"):
            reproduction = Reproduction.read(folder)
            table = compare_with_paper(reproduction, runs, where)
        paper = reproduction.table
        return RunSet(tuple(runs), folder, table, (), where if table.files else None, paper.source, paper.title)
    tested = [run for run in runs if run.tested]
    if not tested:
        return RunSet(tuple(runs), folder)
    if len(runs) == 1:
        return RunSet(tuple(runs), folder, compare(tested))
    return RunSet(tuple(runs), folder, compare(tested, where), tuple(gaining.gains(tested)), where)


def _single(name: str, objects: Objects) -> Recipe:
    """The one run of a recipe."""
    titles = list(map(str, planning.variants(name)))
    if len(titles) > 1:
        how = f"sparsona.load({name!r})[{titles[0]!r}]"
        raise RecipeError(f"{name}: several variants, {', '.join(titles)}; choose one, for example {how}")
    return next(iter(planning.load(name, objects=objects).values()))


def _extend_plan(folder: Path, rounds: int, data_dir: Path | None, engine: Mapping[str, Any] | None) -> None:
    """Give all runs of a folder more rounds, once everything that they need was found to be there."""
    check_extensions(folder, rounds)
    asked = {name: dataclasses.replace(recipe, rounds=rounds) for name, recipe in read_plan(folder).items()}
    verify_all({name: _moved(recipe, engine) for name, recipe in asked.items()}, data_dir)
    extend_all(folder, rounds)


def _moved(recipe: Recipe, engine: Mapping[str, Any] | None) -> Recipe:
    return dataclasses.replace(recipe, engine=moved(recipe.engine, engine or {}))


def _numbered(plan: Mapping[str, Recipe]) -> Iterator[tuple[str, None, Recipe, int, int]]:
    return ((name, None, recipe, i, len(plan)) for i, (name, recipe) in enumerate(plan.items(), start=1))


def _run(
    start: RunStart,
    data_dir: Path | None,
    on_run: OnRun | None,
    on_round: OnRound | None,
    engine: Mapping[str, Any] | None = None,
    rounds: int | None = None,
) -> Run:
    if on_run is not None:
        on_run(start)
    if start.path is not None and (start.path / "recipe.toml").is_file():
        return resume(start.path, rounds=rounds, engine=engine, data_dir=data_dir, on_round=on_round)
    return run(_moved(start.recipe, engine), start.path, data_dir=data_dir, on_round=on_round)
