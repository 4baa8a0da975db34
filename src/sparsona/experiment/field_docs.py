"""What each field of a method or of a recipe's section means: the ``Doc`` in the field's annotation."""

from __future__ import annotations

import typing
from typing import Annotated, Any

from typing_extensions import Doc


def field_docs(kind: type) -> dict[str, str]:
    """The meaning of each field of a dataclass that has one."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {name: doc for name, hint in hints.items() if (doc := _doc(hint)) is not None}


def _doc(hint: Any) -> str | None:
    if typing.get_origin(hint) is not Annotated:
        return None
    return next((part.documentation for part in typing.get_args(hint)[1:] if isinstance(part, Doc)), None)
