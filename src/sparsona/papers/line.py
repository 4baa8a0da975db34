"""One figure: as it is printed, as it is computed, and the rule by which the two agree."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any


@dataclass(frozen=True)
class Line:
    """A printed figure beside the computed one.

    Whole numbers must be equal; others must give the printed figure when rounded to as many decimals as it has.
    """

    section: str
    what: str
    source: str  # where the paper prints it, or "derived": worked out independently from the paper's conventions
    printed: str  # as printed: its decimals say how it was rounded
    computed: int | float
    within: float = 0.0  # the difference allowed, where an input is known only roughly; the note says why
    note: str = ""
    stated: str = ""  # why the figures are known to differ

    @property
    def agrees(self) -> bool:
        """Whether the computed figure is the printed one, by the rule."""
        target = _exact(self.printed)
        if not math.isfinite(self.computed):
            return False
        if self.within:
            return abs(Decimal(self.computed) - target) <= Decimal(self.within)
        if isinstance(self.computed, int):
            return self.computed == target
        return Decimal(self.computed).quantize(target, ROUND_HALF_UP) == target

    @property
    def failed(self) -> bool:
        """Whether the figures differ and nothing says that they should."""
        return not self.agrees and not self.stated

    @property
    def rule(self) -> str:
        """What ``agrees`` asks for, in a word or two."""
        if self.within:
            return f"within {self.within:.2g}"
        return "equal" if isinstance(self.computed, int) else "rounded"

    @property
    def aim(self) -> str:
        """The printed figure, with the difference allowed if there is one."""
        return f"{self.printed} ± {self.within:.2g}" if self.within else self.printed

    @property
    def shown(self) -> str:
        """The computed figure, with three decimals more than are printed."""
        if isinstance(self.computed, int):
            return f"{self.computed:,}"
        return f"{self.computed:,.{decimals(self.printed) + 3}f}"

    @property
    def verdict(self) -> str:
        """Whether the figures agree, in words."""
        return "yes" if self.agrees else "no, as stated" if self.stated else "no"

    @property
    def remark(self) -> str:
        """What there is to say about the verdict."""
        return self.note if self.agrees or not self.stated else self.stated

    def json(self) -> dict[str, Any]:
        """All of it, for scripts."""
        return asdict(self) | {"rule": self.rule, "agrees": self.agrees, "failed": self.failed}


def value(printed: str) -> float:
    """A printed figure as a number."""
    return float(_exact(printed))


def _exact(printed: str) -> Decimal:
    return Decimal(printed.replace(",", ""))


def decimals(printed: str) -> int:
    """How many digits a printed figure has after the point."""
    return len(printed.partition(".")[2])


def half_step(printed: str) -> float:
    """Half a unit of the last printed digit: how far rounding can move a figure."""
    return 0.5 * 10.0 ** -decimals(printed)
