"""What a decoder insists on, and the error where bytes or parts fail it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


class WireError(ValueError):
    """Raised for bytes or a message part that the receiver does not accept."""


def need(ok: bool | np.bool_, problem: str) -> None:
    """Raise WireError with this problem unless the check holds."""
    if not ok:
        raise WireError(problem)


@dataclass
class Budget:
    """What the decoded parts may still take, asked before anything is allocated."""

    left: int

    def spend(self, nbytes: int) -> None:
        """Take so many bytes off; WireError if fewer are left."""
        need(nbytes <= self.left, f"a part needs {nbytes} bytes, but the limit leaves {self.left}")
        self.left -= nbytes
