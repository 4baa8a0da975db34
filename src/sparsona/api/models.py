"""Export personal models to files, and adapt models of finished runs to new clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsona.api.folders import writing
from sparsona.experiment import export as exporting
from sparsona.experiment.objects import Objects
from sparsona.experiment.results import Run
from sparsona.experiment.task import ACCURACY, Metric
from sparsona.method import Method
from sparsona.reports.display import Part


@dataclass(frozen=True, repr=False)
class ExportedModel:
    """An exported personal model."""

    file: Path
    client: int
    parameters: int
    nbytes: int
    which: str  # how the model came about
    records: dict[str, Any]  # all records of it

    def __repr__(self) -> str:
        return f"ExportedModel({str(self.file)!r}, client {self.client}, {self.parameters:,} parameters)"

    def json(self) -> dict[str, Any]:
        """All records of the model as plain values."""
        return self.records

    def render(self, width: int) -> Iterator[Part]:
        """The size of the model, and its file."""
        yield f"{self.parameters:,} parameters, {self.nbytes:,} bytes, {self.which}: {self.records['file']}"


@dataclass(frozen=True, repr=False)
class AdaptedModel:
    """The test result of a new client's model."""

    client: int
    train_samples: int
    accuracy: float | None  # None without test samples
    model: ExportedModel | None  # None if it was not written
    records: dict[str, Any]  # all records of it
    headline: Metric = ACCURACY

    @property
    def score(self) -> float | None:
        """The run's headline metric on its test samples; None without any."""
        value: float | None = self.records.get(self.headline.key)
        return value

    def __repr__(self) -> str:
        score = "untested" if self.score is None else self.headline.text(self.score).replace(" ", "")
        return f"AdaptedModel(client {self.client}, {score}, {self.train_samples} samples)"

    def json(self) -> dict[str, Any]:
        """All records of the client and its model as plain values."""
        return self.records

    def render(self, width: int) -> Iterator[Part]:
        """The headline metric, and the file of the model."""
        if self.score is not None:
            reached = f"{self.headline.title} {self.headline.text(self.score).replace(' ', '')}"
            yield f"{reached} on its test samples, adapted on {self.train_samples} training samples"
        if self.model is not None:
            yield from self.model.render(width)


def export(
    run: Run | str | Path,
    client: int,
    to: str | Path,
    *,
    method: Method | None = None,
    data: Any = None,
    model: Any = None,
    data_dir: Path | None = None,
) -> ExportedModel:
    """Export a client's personal model to NAME.safetensors or NAME.onnx.

    If the run was started with objects that cannot be imported, pass them again as ``method``, ``data`` and ``model``.
    """
    with writing(Path(to)):
        return _exported(exporting.export(_opened(run), client, Path(to), data_dir, Objects(method, data, model)))


def adapt(
    run: Run | str | Path,
    samples: str | Path,
    to: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    method: Method | None = None,
    data: Any = None,
    model: Any = None,
    data_dir: Path | None = None,
) -> AdaptedModel:
    """Personalise a model for a client that was not part of the run, test it, and write it to ``to`` if given.

    ``samples`` is a file, a folder or package.module:name; columns become numbers as in the run. If the run was started
    with objects that cannot be imported, pass them again; the fields of ``method`` then apply to the new client.
    """
    path = None if to is None else Path(to)
    opened = _opened(run)
    records = exporting.adapt(opened, samples, path, overrides, data_dir, Objects(method, data, model))
    written, accuracy = _exported(records) if path is not None else None, records.get("accuracy")
    return AdaptedModel(records["client"], records["train_samples"], accuracy, written, records, opened.headline)


def _opened(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else Run.open(run)


def _exported(records: dict[str, Any]) -> ExportedModel:
    file, client, parameters = Path(records["file"]), records["client"], records["parameters"]
    return ExportedModel(file, client, parameters, records["nbytes"], records["which"], records)
