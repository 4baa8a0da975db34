"""Figures that papers print and that need no training, recomputed through the code that runs: ``sparsona check``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sparsona.checks.dadpfl import dadpfl
from sparsona.checks.fedpse import fedpse
from sparsona.checks.fedspa import fedspa
from sparsona.checks.line import Line
from sparsona.checks.perfedmask import perfedmask
from sparsona.checks.pfedgate import pfedgate

__all__ = ["CHECKS", "Line"]

CHECKS: dict[str, Callable[[], Iterator[Line]]] = {
    "fedspa": fedspa,
    "dadpfl": dadpfl,
    "fedpse": fedpse,
    "perfedmask": perfedmask,
    "pfedgate": pfedgate,
}
