"""Figures that papers print and that need no training, recomputed through the code that runs: ``sparsona check``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sparsona.papers.dadpfl import dadpfl
from sparsona.papers.fedpse import fedpse
from sparsona.papers.fedspa import fedspa
from sparsona.papers.line import Counts, Line
from sparsona.papers.perfedmask import perfedmask
from sparsona.papers.pfedgate import pfedgate

__all__ = ["CHECKS", "Counts", "Line"]

CHECKS: dict[str, Callable[[], Iterator[Line]]] = {
    "fedspa": fedspa,
    "dadpfl": dadpfl,
    "fedpse": fedpse,
    "perfedmask": perfedmask,
    "pfedgate": pfedgate,
}
