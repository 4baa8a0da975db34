"""Encoding files: JSON that says how tables and texts become numbers, for all nodes of a fleet and for newcomers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparsona.data.config import DataConfig
from sparsona.data.dataset import DataError
from sparsona.data.encoding import Encoding, Scale


def encoding_of(config: DataConfig) -> Encoding | None:
    """The encoding that a configuration names, read and checked; None if it names none."""
    return None if config.encoding is None else read_encoding(Path(config.encoding))


def with_known_classes(config: DataConfig) -> DataConfig:
    """The configuration with the classes of its encoding file; DataError if it has others."""
    encoding = encoding_of(config)
    if encoding is None or not encoding.classes:
        return config
    known, given = encoding.classes, config.classes
    if given is not None and given != (len(known) if isinstance(given, int) else known):
        asked = given if isinstance(given, int) else ", ".join(given)
        raise DataError(
            f"{config.encoding}: has the classes {', '.join(known)}; data.classes is {asked}; leave data.classes out"
        )
    return replace(config, classes=known)


def read_encoding(path: Path) -> Encoding:
    """An encoding from its file, checked in full."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read as an encoding: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not an encoding in JSON: {error}") from error
    if not isinstance(raw, dict) or not raw or not raw.keys() <= {"columns", "classes", "alphabet"}:
        raise DataError(f"{path}: is not an encoding; expected a table of columns, classes and alphabet")
    columns = raw.get("columns", {})
    if not isinstance(columns, dict):
        raise DataError(
            f"{path}: columns is not valid; expected a table of names, each with mean and std or with categories"
        )
    forms = {name: _form(f"{path}: columns.{name}", form) for name, form in columns.items()}
    classes, alphabet = raw.get("classes", []), raw.get("alphabet", "")
    if classes != [] and (not _names(classes) or len(classes) < 2):
        raise DataError(f"{path}: classes is not valid; expected a list of at least two different names")
    if not isinstance(alphabet, str) or len(set(alphabet)) < len(alphabet):
        raise DataError(f"{path}: alphabet is not valid; expected a string that has each character once")
    return Encoding(forms, tuple(classes), alphabet)


def write_encoding(encoding: Encoding, path: Path) -> None:
    """Write an encoding to a file that data.encoding can name."""
    path.write_text(json.dumps(encoding.json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _form(where: str, form: Any) -> Scale | tuple[str, ...]:
    if isinstance(form, dict) and form.keys() == {"categories"} and _names(form["categories"]):
        return tuple(form["categories"])
    if isinstance(form, dict) and form.keys() == {"mean", "std"}:
        numbers = [v for v in form.values() if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if len(numbers) == 2 and all(map(math.isfinite, numbers)) and form["std"] >= 0:
            return Scale(float(form["mean"]), float(form["std"]))
    raise DataError(f"{where} is not valid; expected finite mean and std >= 0, or different strings as categories")


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str) and v for v in value) and len(set(value)) == len(value)
