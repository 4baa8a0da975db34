"""The same method files on a fleet: equal to the local engine to the bit, through Flower's own ClientApp."""

from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sparsona[flower]'")

from fleet.world import World
from small import recipe
from sparsona.methods import METHODS
from sparsona.runner import run

LEAVE = {"timing.jsonl", "recipe.toml", "run.json", "fleet.jsonl", "versions.json"}


def files(path: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file() and p.name not in LEAVE
    }


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_fleet_equals_local_to_the_bit(method, tmp_path):
    r = recipe(method)
    run(r, tmp_path / "local")
    world = World(tmp_path, 6)
    world.run(r, tmp_path / "fleet")
    assert files(tmp_path / "fleet") | world.values(tmp_path / "fleet") == files(tmp_path / "local")
