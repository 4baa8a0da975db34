"""One figure: as it is printed or derived, as it is computed, and the rule by which the two agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

DERIVED = "derived"  # the source of figures worked out independently from the paper's conventions


@dataclass(frozen=True)
class Line:
    """A printed figure beside the computed one.

    Whole numbers must be equal; others must give the printed figure when rounded to as many decimals as it has.
    """

    section: str
    what: str
    source: str  # where the paper prints it, or DERIVED
    printed: str  # as printed: its decimals say how it was rounded
    computed: int | float
    within: float = 0.0  # the difference allowed, where an input is known only roughly; the note says why
    note: str = ""
    stated: str = ""  # why the figures are known to differ
    via: str = ""  # the function of the package that gave it; empty where printed figures are set against each other

    @property
    def derived(self) -> bool:
        """Whether the paper does not print the figure itself."""
        return self.source == DERIVED

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
        return asdict(self) | {
            "derived": self.derived,
            "rule": self.rule,
            "agrees": self.agrees,
            "failed": self.failed,
        }


@dataclass(frozen=True)
class Counts:
    """How many figures agree, those that the paper prints apart from derived ones."""

    printed: int
    derived: int
    stated: int  # printed figures that differ for a stated reason
    failed: int

    @classmethod
    def of(cls, lines: Iterable[Line]) -> Counts:
        """The counts of some lines."""
        rows = list(lines)
        agreeing = [x.derived for x in rows if x.agrees]
        failed = sum(x.failed for x in rows)
        return cls(agreeing.count(False), agreeing.count(True), len(rows) - len(agreeing) - failed, failed)

    def __str__(self) -> str:
        parts = [_number(self.printed, "printed", "agree"), _number(self.derived, "derived", "agree")]
        if self.stated:
            parts.append(_number(self.stated, "printed", "differ") + " for a stated reason")
        if self.failed:
            parts.append(_number(self.failed, "", "differ") + " unexpectedly")
        return ", ".join(parts)


def compared(
    line: Callable[..., Line],
    what: str,
    source: str,
    printed: str,
    computed: float,
    derived: str = "",
    stated: str = "",
) -> Iterator[Line]:
    """A printed figure; if it is known to differ, beside it the derived one, so that a wrong result still shows."""
    yield line(what, source, printed, computed, stated=stated)
    if stated:
        yield line(what, DERIVED, derived, computed)


def _number(n: int, kind: str, verb: str) -> str:
    words = (str(n), kind, "figure" if n == 1 else "figures", f"{verb}s" if n == 1 else verb)
    return " ".join(word for word in words if word)


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
