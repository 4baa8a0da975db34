"""How a table or a text becomes numbers: what all nodes of a fleet must have alike, and what a newcomer needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

PARTS = ("columns", "scales", "categories", "class names", "alphabet")  # of an encoding, as nodes compare them


class Scale(NamedTuple):
    """How a column of numbers is standardised: less the mean, divided by std; everything is 0 where std is 0."""

    mean: float
    std: float


@dataclass(frozen=True)
class Encoding:
    """The inputs of a table in their order, the names of classes, and the characters of a text."""

    columns: Mapping[str, Scale | tuple[str, ...]] = field(default_factory=dict)  # numbers, or the values of texts
    classes: tuple[str, ...] = ()
    alphabet: str = ""  # the first character has the token id 1

    @property
    def width(self) -> int:
        """Number of inputs that the columns become."""
        return sum(1 if isinstance(form, Scale) else len(form) for form in self.columns.values())

    def json(self) -> dict[str, Any]:
        """The encoding as plain values."""
        columns = {
            name: form._asdict() if isinstance(form, Scale) else {"categories": list(form)}
            for name, form in self.columns.items()
        }
        parts = {"columns": columns, "classes": list(self.classes), "alphabet": self.alphabet}
        return {name: part for name, part in parts.items() if part}

    def digests(self) -> dict[str, str]:
        """A digest of each part, so that two encodings can be compared without showing either."""
        scales = [[name, *form] for name, form in self.columns.items() if isinstance(form, Scale)]
        categories = [[name, *form] for name, form in self.columns.items() if not isinstance(form, Scale)]
        parts = (list(self.columns), scales, categories, self.classes, self.alphabet)
        each = {name: json.dumps(part).encode() for name, part in zip(PARTS, parts, strict=True) if part}
        return {name: hashlib.sha256(text).hexdigest()[:16] for name, text in each.items()}
