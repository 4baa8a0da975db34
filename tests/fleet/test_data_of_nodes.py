"""Fleets with users' data: the readers of simulations, and the same bits."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'sparsona[flower]'")

from command import refused
from fleet.test_fleet import files
from fleet.world import World
from small import recipe as small_recipe
from sparsona.data import DataError, Encoding, write_encoding
from sparsona.experiment.recipe import Recipe, check, tables
from sparsona.experiment.runner import run
from sparsona.experiment.setup import prepare
from sparsona.fleet import FleetError
from sparsona.fleet.client_runtime import Refused
from sparsona.fleet.data import NodeData
from sparsona.fleet.envelope import pack, unpack

sys.path.append(str(Path(__file__).parent.parent / "data"))

import own


def recipe(**data: Any) -> Recipe:
    raw = tables(small_recipe("ditto", rounds=2)) | {"data": data, "fleet": {}}
    return check(raw)


def test_an_npz_with_clients_equals_local_to_the_bit(tmp_path):
    asked = recipe(source=str(own.npz(tmp_path / "a.npz")), clients=3)
    run(asked, tmp_path / "local")
    world = World(tmp_path, 3)
    world.run(asked, tmp_path / "fleet")
    assert files(tmp_path / "fleet") | world.values(tmp_path / "fleet") == files(tmp_path / "local")


def test_a_function_equals_local_to_the_bit(tmp_path):
    asked = recipe(source="own:samples", clients=3)
    run(asked, tmp_path / "local")
    world = World(tmp_path, 3, data=NodeData(plugins=True))
    world.run(asked, tmp_path / "fleet")
    assert files(tmp_path / "fleet") | world.values(tmp_path / "fleet") == files(tmp_path / "local")


def test_each_node_with_its_own_file_equals_one_file_with_clients(tmp_path):
    asked = recipe(source=str(own.npz(tmp_path / "a.npz")), clients=3)
    run(asked, tmp_path / "local")
    world = World(tmp_path, 3)
    everything = own.arrays()
    for name, runtime in zip(own.HOSPITALS, world.runtimes, strict=True):
        mine = everything["client"] == name
        np.savez(tmp_path / f"{name}.npz", x=everything["x"][mine], y=everything["y"][mine])
        runtime.build = NodeData(tmp_path / f"{name}.npz", classes=3).builder()
    world.run(asked, tmp_path / "fleet")
    assert files(tmp_path / "fleet") | world.values(tmp_path / "fleet") == files(tmp_path / "local")


def test_a_function_needs_leave(tmp_path):
    build = NodeData().builder()
    with pytest.raises(
        Refused,
        match=r'data\.source: "own:samples" is a plug-in, and this node does not allow plug-ins; start it with',
    ):
        build(tables(recipe(source="own:samples", clients=3)), 0)
    text = refused("fleet", "node", "h:1", "--client", "0", "--data", "own:samples")
    assert 'data: "own:samples" imports your own code; allow it with --allow-plugins' in text
    device, facts = NodeData("own:samples", plugins=True).builder()(tables(recipe(clients=3)), 0)
    assert (facts["classes"], facts["shape"], len(device.test(0))) == (3, [4], 18)


def test_a_table_of_a_node_is_scaled_by_its_own_training_part(tmp_path):
    path = own.table(tmp_path / "mine.csv", [row for row in own.rows() if row["hospital"] == "north"])
    asked = recipe(source="hospitals.csv", label="died", client="hospital", features=["age", "dose"], clients=3)
    with pytest.raises(
        DataError,
        match=r"mine\.csv: the labels are no, yes, and other nodes may have different ones; .* --classes",
    ):
        NodeData(path).builder()(tables(asked), 0)
    device, facts = NodeData(path, classes=("no", "yes")).builder()(tables(asked), 0)
    assert (facts["classes"], facts["shape"]) == (2, [2])
    x = next(device.local(0).train.all(99))[0]
    assert np.allclose(x.mean(0), 0, atol=1e-6)
    assert np.allclose(x.std(0, correction=0), 1, atol=1e-6)


def test_pictures_of_two_sides_are_the_same_everywhere(tmp_path):
    pictures = np.arange(90 * 16, dtype=np.uint8).reshape(90, 4, 4)
    path = own.npz(tmp_path / "a.npz", x=pictures, client=None)
    _, fleet = prepare(recipe(source=str(path), clients=2))
    device, facts = NodeData(path).builder()(tables(recipe(clients=2)), 0)
    assert tuple(facts["shape"]) == fleet.dataset.shape == (1, 4, 4)
    assert device.local(0).train.x.shape == fleet.dataset.x.shape


@pytest.mark.parametrize(("data", "seed"), [({}, 5), ({"seed": 0}, 0), ({"seed": 9}, 9)])
def test_a_function_of_a_node_gets_the_seed_of_the_data(data, seed):
    asked = tables(recipe(clients=3, **data)) | {"seed": 5}
    device, _ = NodeData("own:seeded", plugins=True).builder()(asked, 0)
    assert device.local(0).train.x.unique().tolist() == [seed]


def test_pictures_of_a_node_are_resized_and_capped(tmp_path):
    path = own.npz(tmp_path / "a.npz", x=np.full((90, 4, 4), 7, np.uint8), client=None)
    device, facts = NodeData(path).builder()(tables(recipe(clients=2, side=6, samples_per_client=20)), 0)
    assert facts["shape"] == [1, 6, 6]
    assert device.local(0).train.x.shape == (90, 6, 6, 1)
    data = device.local(0)
    assert len(data.train) + len(data.validation) + len(device.test(0)) == 20


def test_a_fleet_needs_to_know_how_many_clients_it_has(tmp_path):
    own.npz(tmp_path / "a.npz")
    with pytest.raises(Refused, match=r"this node is client 0; expected a client below data\.clients = None"):
        NodeData().builder()(tables(recipe(source=str(tmp_path / "a.npz"))), 0)
    text = f'rounds = 1\ndata.source = "{tmp_path / "a.npz"}"\nmodel.name = "digits-mlp"\nmethod.name = "fedavg"\n'
    (tmp_path / "a.toml").write_text(text)
    assert "data.clients is missing; set the number of clients of the fleet" in refused(
        "fleet", "run", str(tmp_path), str(tmp_path / "a.toml")
    )


def test_a_node_refuses_a_device_that_it_does_not_have():
    with pytest.raises(ValueError, match=r'^device: "cuda:63" is not available; expected auto'):
        NodeData(device="cuda:63").try_out()
    with pytest.raises(ValueError, match=r'^device: "gpu" is not allowed'):
        NodeData(device="gpu").try_out()


def test_a_node_trains_on_its_own_device_whatever_the_recipe_says(tmp_path):
    asked = tables(recipe(clients=3)) | {"engine": {"device": "cuda:63"}}
    device, _ = NodeData(str(own.npz(tmp_path / "a.npz", client=None)), device="cpu").builder()(asked, 0)
    assert device.task.device.type == "cpu"


# --- one encoding for all nodes ---

COLUMNS = {"label": "died", "client": "hospital", "clients": 3}


def tables_of_nodes(folder: Path, world: World, **more: Any) -> None:
    """Give each node the rows of its hospital."""
    for name, runtime in zip(own.HOSPITALS, world.runtimes, strict=True):
        mine = own.table(folder / f"{name}.csv", [row for row in own.rows() if row["hospital"] == name])
        runtime.build = NodeData(mine, **more).builder()


def test_tables_of_nodes_equal_a_simulation_with_the_same_encoding_to_the_bit(tmp_path):
    whole, file = own.table(tmp_path / "a.csv", own.rows()), tmp_path / "e.json"
    write_encoding(prepare(recipe(source=str(whole), **COLUMNS))[1].encoding, file)
    asked = recipe(source=str(whole), encoding=str(file), **COLUMNS)
    run(asked, tmp_path / "local")
    world = World(tmp_path, 3)
    tables_of_nodes(tmp_path, world, encoding=file)
    world.run(asked, tmp_path / "fleet")
    local = files(tmp_path / "local")
    assert local.pop("encoding.json") == file.read_bytes()  # the server of a fleet has no data
    assert files(tmp_path / "fleet") | world.values(tmp_path / "fleet") == local
    run(recipe(source=str(whole), **COLUMNS), tmp_path / "plain")  # and what the file says is what a simulation learns
    assert files(tmp_path / "plain")["rounds.jsonl"] == local["rounds.jsonl"]


def test_a_node_with_other_scales_is_refused(tmp_path):
    world = World(tmp_path, 3)
    tables_of_nodes(tmp_path, world, classes=("no", "yes"))
    asked = recipe(source="x.csv", **COLUMNS, features=["age", "dose"])
    wanted = (
        r"client 1 has data with other scales than client 0, .*; give every node one file: sparsona data SOURCE --enc"
    )
    with pytest.raises(FleetError, match=wanted):
        world.run(asked, tmp_path / "fleet")
    assert not (tmp_path / "fleet").exists()


def test_texts_of_a_node_need_an_encoding(tmp_path):
    path = own.table(tmp_path / "mine.csv", own.rows())
    with pytest.raises(DataError, match=r"column 'ward' holds texts, and other nodes may have other ones; give every"):
        NodeData(path, classes=("no", "yes")).builder()(tables(recipe(source="x.csv", **COLUMNS)), 0)


def test_a_category_that_the_encoding_does_not_know_is_refused(tmp_path):
    whole, file = own.table(tmp_path / "a.csv", own.rows()), tmp_path / "e.json"
    write_encoding(prepare(recipe(source=str(whole), **COLUMNS))[1].encoding, file)
    world = World(tmp_path, 3)
    tables_of_nodes(tmp_path, world, encoding=file)
    strange = [row | {"ward": "z"} for row in own.rows()]
    world.runtimes[1].build = NodeData(own.table(tmp_path / "s.csv", strange), encoding=file).builder()
    with pytest.raises(FleetError, match=r"^node of client 1: .*s\.csv, row 2: z in column 'ward'; .*e\.json knows"):
        world.run(recipe(source="x.csv", **COLUMNS), tmp_path / "fleet")


def test_classes_in_another_order_are_refused(tmp_path):
    y = np.arange(90) // 3 % 2
    path = own.npz(tmp_path / "a.npz", client=None, y=y)
    world = World(tmp_path, 2)
    for runtime, names in zip(world.runtimes, (("ill", "well"), ("well", "ill")), strict=True):
        runtime.build = NodeData(path, classes=names).builder()
    wanted = (
        r"client 1 has data with other class names than client 0, .*; give every node the same --classes, in the same"
    )
    with pytest.raises(FleetError, match=wanted):
        world.run(recipe(clients=2), tmp_path / "fleet")


def test_texts_with_other_alphabets_are_refused(tmp_path):
    world = World(tmp_path, 2)
    for k, runtime in enumerate(world.runtimes):
        (tmp_path / f"{k}.txt").write_text(("ab cd", "ab ce")[k] * 400)
        runtime.build = NodeData(tmp_path / f"{k}.txt").builder()
    raw = tables(recipe(clients=2, length=20)) | {"model": {"name": "char-cnn"}}
    with pytest.raises(FleetError, match=r"client 1 has data with other alphabet than client 0, .*--encoding FILE"):
        world.run(check(raw), tmp_path / "fleet")
    write_encoding(Encoding(alphabet=" abcde"), tmp_path / "e.json")
    world = World(tmp_path, 2)
    for k, runtime in enumerate(world.runtimes):
        runtime.build = NodeData(tmp_path / f"{k}.txt", encoding=tmp_path / "e.json").builder()
    assert world.run(check(raw), tmp_path / "fleet").finished


def test_a_digest_that_cannot_be_is_refused(tmp_path):
    def lie(k: int, data: bytes, answer: bytes) -> bytes:
        head, blobs = unpack(answer, 1 << 20)
        return pack(head | {"encoding": {"columns": ["x"]}}, blobs) if "shape" in head else answer

    world = World(tmp_path, 2, lie=lie)
    with pytest.raises(FleetError, match="its description of the data is not valid: "):
        world.run(recipe(source=str(own.npz(tmp_path / "a.npz")), clients=2), tmp_path / "fleet")


def test_an_encoding_goes_with_a_file(tmp_path):
    text = refused("fleet", "node", "h:1", "--client", "0", "--trial-part", "--encoding", "e.json")
    assert 'encoding: "e.json" is not allowed without --data' in text
