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


def test_many_rounds_between_checkpoints_and_models_stay_on_the_devices(tmp_path):
    r = recipe("ditto", rounds=5, checkpoint_every=3, results={"models": True, "figures": False})
    run(r, tmp_path / "local")
    world = World(tmp_path, 6)
    world.run(r, tmp_path / "fleet")
    left = {name for name in files(tmp_path / "local") if name.startswith("models/")}
    assert len(left) == 6
    got = files(tmp_path / "fleet") | world.values(tmp_path / "fleet")
    assert got == {name: data for name, data in files(tmp_path / "local").items() if name not in left}
    for k in range(6):
        (model,) = (tmp_path / f"node-{k}").glob("*/model.safetensors")
        assert model.read_bytes() == (tmp_path / "local" / "models" / f"client-{k:05d}.safetensors").read_bytes()


def test_own_files_are_the_same_as_a_part_of_a_data_set(tmp_path):
    """Nodes with .npz files that hold what a partition would have given them train the same models."""
    import numpy as np

    from sparsona.config import tables
    from sparsona.fleet.data import NodeData
    from sparsona.runner import prepare

    r = recipe("fedspa")
    _, whole = prepare(r)
    run(r, tmp_path / "local")
    world = World(tmp_path, 6)
    for k, station in enumerate(world.stations):
        part, data = whole.parts[k], whole.dataset
        learn = np.concatenate([part.train, part.validation])
        np.savez(
            tmp_path / f"{k}.npz",
            x=data.x.numpy()[learn],
            y=data.y.numpy()[learn],
            x_test=data.x.numpy()[part.test],
            y_test=data.y.numpy()[part.test],
            mean=data.prepare.mean,
            std=data.prepare.std,
        )
        build = NodeData(tmp_path / f"{k}.npz", classes=10).builder()
        device, facts = build(tables(r), k)
        assert facts == {"classes": 10, "shape": list(data.shape), "vocabulary": None, "samples": len(part.train)}
        assert len(device.test(k)) == len(part.test)
        station.build = build
    done = world.run(r, tmp_path / "fleet")
    assert done.summary["left_out"] == 0
    assert done.summary["accuracy"] > 0.2
    assert done.rounds[0]["down"] == next(iter(run_rows(tmp_path / "local")))["down"]


def run_rows(path: Path):
    from sparsona.results import Run

    return Run(path).rows("rounds")
