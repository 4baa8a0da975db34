"""A real fleet: clients on separate devices, reached over Flower."""

from __future__ import annotations

import importlib.util


class FleetError(ValueError):
    """A fleet that cannot be started or went wrong; one line says what and what to do."""


def needs_flower() -> None:
    """Raise FleetError if Flower is not installed."""
    if importlib.util.find_spec("flwr") is None:
        raise FleetError("fleet: needs Flower, which is not installed: pip install 'sparsona[flower]'")
