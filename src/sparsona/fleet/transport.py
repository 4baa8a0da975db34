"""What a fleet needs of a transport. It imports nothing heavy: a node loads it for every message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Reply:
    """What came back for an envelope: bytes, or why there are none."""

    number: str  # of the envelope that it answers
    node: int  # who sent it
    data: bytes | None
    why: str = ""
    gone: bool = False  # the node is not there: it may be asked again when it is back


class Transport(Protocol):
    """Carries envelopes to nodes and brings their answers."""

    def nodes(self) -> dict[int, str]:
        """The nodes that are there, and their public keys."""

    def send(self, node: int, data: bytes, seconds: float) -> str | None:
        """Send an envelope that expires after so many seconds and give its number; None if it was not taken."""

    def receive(self, numbers: set[str]) -> Iterable[Reply]:
        """What has come back for these, a few at a time."""
