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
from sparsona.reports.run_rows import other_metrics


@dataclass(frozen=True, repr=False)
class ExportedModel:
    """An exported personal model.

    Attributes:
        file: The file.
        client: Number of the client, from 0.
        parameters: Number of parameters in the file.
        nbytes: Size of the file.
        which: Which model it is, in words.
        records: All of this and more, as plain values.
    """

    file: Path
    client: int
    parameters: int
    nbytes: int
    which: str
    records: dict[str, Any]

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
    """The test result of a new client's model.

    Attributes:
        client: The number that the new client got.
        train_samples: Number of samples that it was adapted on.
        accuracy: Accuracy on the test samples; None without any.
        model: The model that was written; None if none was.
        records: All of this and more, as plain values.
        headline: The run's headline metric.
        metrics: The run's other metrics.
    """

    client: int
    train_samples: int
    accuracy: float | None
    model: ExportedModel | None
    records: dict[str, Any]
    headline: Metric = ACCURACY
    metrics: tuple[Metric, ...] = ()

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
        """All metrics, the headline first, and the file of the model."""
        if self.score is not None:
            each = [(m.title, m.text(self.records.get(m.key)).replace(" ", "")) for m in (self.headline, *self.metrics)]
            reached = ", ".join(f"{title} {value}" for title, value in each)
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
    """Export a client's personal model to a file.

    Args:
        run: A finished run, or its folder.
        client: Number of the client, from 0.
        to: Output file: NAME.safetensors or NAME.onnx.
        method: The method, if the run was started with an object that cannot be imported.
        data: The data, likewise.
        model: The model, likewise.
        data_dir: Folder with the data sets; by default SPARSONA_DATA.

    Returns:
        What was written.

    Examples:
        >>> sparsona.export("runs/personal", client=7, to="seven.safetensors")
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
    """Personalise a model for a client that was not part of the run, and test it.

    Args:
        run: A finished run, or its folder.
        samples: Data of the new client: a file, a folder or package.module:name. Columns become numbers as in the run.
        to: Output file for the model: NAME.safetensors or NAME.onnx. Default: not written.
        overrides: Fields to change for the new client, such as ``fleet.adapt_epochs=5``.
        method: The method, if the run was started with an object that cannot be imported; its fields apply.
        data: The data, likewise.
        model: The model, likewise.
        data_dir: Folder with the data sets; by default SPARSONA_DATA.

    Returns:
        The test result, and the model if it was written.

    Examples:
        >>> sparsona.adapt("runs/personal", "mine.npz", to="mine.safetensors", overrides=["fleet.adapt_epochs=5"])
    """
    path = None if to is None else Path(to)
    opened = _opened(run)
    records = exporting.adapt(opened, samples, path, overrides, data_dir, Objects(method, data, model))
    written, accuracy = _exported(records) if path is not None else None, records.get("accuracy")
    main, metrics = opened.headline, other_metrics([opened])
    return AdaptedModel(records["client"], records["train_samples"], accuracy, written, records, main, metrics)


def _opened(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else Run.open(run)


def _exported(records: dict[str, Any]) -> ExportedModel:
    file, client, parameters = Path(records["file"]), records["client"], records["parameters"]
    return ExportedModel(file, client, parameters, records["nbytes"], records["which"], records)
