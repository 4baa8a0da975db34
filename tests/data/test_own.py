"""Data of users: every format becomes the same kind of data set, and a bad file is one clear line."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import own
import pytest
import torch

from sparsona.core.rng import Rng
from sparsona.data import DataConfig, DataError, Fleet, build
from sparsona.data.lazy import KEPT


def fleet(source: Path | str, **config: Any) -> Fleet:
    return build(DataConfig(str(source), **config), 1)


# --- npz ---


def test_clients_of_an_npz_are_a_natural_partition(tmp_path: Path) -> None:
    data = fleet(own.npz(tmp_path / "a.npz"))
    assert (data.names, data.clients) == (("north", "south", "west"), 3)
    assert (data.config.partition, data.config.split, data.config.clients) == ("natural", "ratio", 3)
    assert data.sizes("train").tolist() == [21] * 3
    assert data.sizes("test").tolist() == [6] * 3
    want = own.arrays()
    for k, name in enumerate(own.HOSPITALS):
        part = data.parts[k]
        held = np.sort(np.concatenate([part.train, part.validation, part.test]))
        assert held.tolist() == np.flatnonzero(want["client"] == name).tolist()
    x, y = data.local(1).train.at(torch.tensor([0]))
    at = data.parts[1].train[0]
    assert torch.equal(x[0], torch.from_numpy(want["x"][at]))
    assert y.tolist() == [want["y"][at]]


def test_own_test_sets_per_client(tmp_path: Path) -> None:
    more = own.arrays(30)
    more["client"] = more["client"][::-1]
    path = own.npz(tmp_path / "a.npz", x_test=more["x"], y_test=more["y"], client_test=more["client"])
    data = fleet(path)
    assert data.config.split == "same"
    for k, name in enumerate(own.HOSPITALS):
        assert (data.parts[k].test - 90).tolist() == np.flatnonzero(more["client"] == name).tolist()


def test_a_test_set_of_nobody_is_shared_by_label(tmp_path: Path) -> None:
    more = own.arrays(30)
    data = fleet(own.npz(tmp_path / "a.npz", x_test=more["x"], y_test=more["y"]), test_samples=9)
    assert data.config.split == "label_mix"
    assert data.sizes("test").tolist() == [9] * 3
    data = fleet(own.npz(tmp_path / "b.npz", x_test=more["x"], y_test=more["y"], client=None), clients=3)
    assert (data.config.partition, data.config.split) == ("dirichlet", "same")


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "pathological", "shards", "lambda"])
@pytest.mark.parametrize("target", ["class", "number", "labels", "tokens"])
def test_every_partition_works_on_every_target(partition: str, target: str, tmp_path: Path) -> None:
    n = 200
    y: Any = {
        "class": np.arange(n) % 4,
        "number": np.linspace(0, 1, n),
        "labels": np.stack([np.arange(n) % 2, np.arange(n) % 3 == 0], axis=1).astype(int),
        "tokens": np.ones((n, 5), int),
    }[target]
    x = np.ones((n, 5), int if target == "tokens" else np.float64)
    path = tmp_path / "a.npz"
    np.savez(path, x=x, y=y)
    data = fleet(path, partition=partition, clients=4, classes_per_client=1)
    assert data.dataset.target == target
    held = np.concatenate([np.concatenate([p.train, p.validation, p.test]) for p in data.parts])
    assert len(np.unique(held)) == len(held) > 50


def test_float64_and_pictures_of_two_and_three_sides(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(90, 4))
    assert torch.equal(fleet(own.npz(tmp_path / "a.npz", x=x)).dataset.x, torch.from_numpy(x.astype(np.float32)))
    grey = np.arange(90 * 6, dtype=np.uint8).reshape(90, 3, 2)
    two = fleet(own.npz(tmp_path / "b.npz", x=grey)).dataset
    three = fleet(own.npz(tmp_path / "c.npz", x=grey[..., None], mean=0.25, std=0.5)).dataset
    assert two.shape == three.shape == (1, 3, 2)
    assert torch.equal(two.x, three.x)
    assert torch.allclose(three.prepare(three.x[:1])[0, 0, 0], (torch.tensor([0.0, 1.0]) / 255 - 0.25) / 0.5)


def test_whole_numbers_in_rows_are_token_ids(tmp_path: Path) -> None:
    x = np.arange(90 * 4).reshape(90, 4) % 11
    data = fleet(own.npz(tmp_path / "a.npz", x=x)).dataset
    assert (data.vocabulary, data.shape, data.target, data.x.dtype) == (11, (4,), "class", torch.int32)
    assert fleet(own.npz(tmp_path / "a.npz", x=x), vocabulary=20).dataset.vocabulary == 20
    assert fleet(own.npz(tmp_path / "a.npz", x=x, y=x)).dataset.target == "tokens"


def test_the_partition_has_its_own_seed(tmp_path: Path) -> None:
    path = own.npz(tmp_path / "a.npz")
    config = DataConfig(str(path), partition="iid", clients=3)
    one, other = build(config, 1), build(config, 2)
    assert any((a.train != b.train).any() for a, b in zip(one.parts, other.parts, strict=True))
    for seed in (1, 2):
        fixed = build(replace(config, seed=1), seed)
        assert all((a.train == b.train).all() for a, b in zip(one.parts, fixed.parts, strict=True))


def test_small_clients_are_left_out_and_named(tmp_path: Path) -> None:
    who = own.arrays()["client"].astype("<U9")
    who[:4] = "tiny"
    path = own.npz(tmp_path / "a.npz", client=who)
    with pytest.warns(UserWarning, match=r"1 of 4 clients have fewer than data.min_samples = 10 .* left out: tiny"):
        assert fleet(path).names == own.HOSPITALS
    assert fleet(path, min_samples=2).names == ("north", "south", "tiny", "west")


# --- tables ---


def scaled(values: np.ndarray, training: np.ndarray) -> np.ndarray:
    return (values - values[training].mean()) / values[training].std()


def test_a_table_is_scaled_and_encoded_by_its_training_part(tmp_path: Path) -> None:
    path = own.table(tmp_path / "a.csv", own.rows())
    data = fleet(path, label="died", client="hospital")
    assert data.names == own.HOSPITALS
    assert data.dataset.class_names == ("no", "yes")
    assert data.dataset.y.tolist() == [int(row["died"] == "yes") for row in own.rows()]
    training = np.concatenate([part.train for part in data.parts])
    want = np.stack(
        [
            scaled(np.array([float(row["age"]) for row in own.rows()]), training),
            scaled(np.array([row["dose"] for row in own.rows()]), training),
            *(np.array([float(row["ward"] == ward) for row in own.rows()]) for ward in "abc"),
        ],
        axis=1,
    )
    assert np.allclose(data.dataset.x.numpy(), want, atol=1e-6)
    assert data.dataset.shape == (5,)


def test_a_value_in_the_test_part_changes_no_statistics(tmp_path: Path) -> None:
    rows = own.rows()
    data = fleet(own.table(tmp_path / "a.csv", rows), label="died", client="hospital")
    tested = int(data.parts[0].test[0])
    rows[tested] |= {"age": 10**9, "ward": "never seen"}
    changed = fleet(own.table(tmp_path / "a.csv", rows), label="died", client="hospital")
    others = np.arange(len(rows)) != tested
    assert torch.equal(changed.dataset.x[others], data.dataset.x[others])
    assert changed.dataset.x[tested, 0] > 1e6
    assert changed.dataset.x[tested, 2:].tolist() == [0, 0, 0]
    trained = int(data.parts[0].train[0])
    rows[trained] |= {"age": 10**9}
    again = fleet(own.table(tmp_path / "a.csv", rows), label="died", client="hospital")
    assert not torch.equal(again.dataset.x[others], data.dataset.x[others])


@pytest.mark.parametrize(
    ("config", "target", "outputs"),
    [
        ({"label": "died"}, "class", 2),
        ({"label": "age"}, "class", 50),
        ({"label": "age", "target": "number"}, "number", 1),
        ({"label": "dose"}, "number", 1),
        ({"label": ["dose", "age"]}, "number", 2),
    ],
)
def test_the_target_follows_from_the_columns(config: dict[str, Any], target: str, outputs: int, tmp_path: Path) -> None:
    path = own.table(tmp_path / "a.csv", own.rows(100) * 2)
    config["label"] = tuple(config["label"]) if isinstance(config["label"], list) else config["label"]
    data = fleet(path, client="hospital", **config, features=("ward",)).dataset
    assert (data.target, data.outputs) == (target, outputs)


def test_several_columns_of_zero_and_one_are_labels(tmp_path: Path) -> None:
    rows = [row | {"fever": i % 2, "cough": i % 3 // 2} for i, row in enumerate(own.rows())]
    data = fleet(own.table(tmp_path / "a.csv", rows), label=("fever", "cough"), client="hospital").dataset
    assert (data.target, data.class_names) == ("labels", ("fever", "cough"))
    assert data.y.tolist() == [[i % 2, i % 3 // 2] for i in range(60)]


def test_missing_values_by_a_stated_rule(tmp_path: Path) -> None:
    rows = own.rows()
    rows[7] |= {"age": "", "ward": "NA"}
    path = own.table(tmp_path / "a.csv", rows)
    config = {"label": "died", "client": "hospital"}
    with pytest.raises(DataError, match=r"a\.csv, row 9: no value in column 'age'; set data\.missing = \"mean\""):
        fleet(path, **config)
    dropped = fleet(path, **config, missing="drop").dataset
    assert len(dropped) == 59
    kept = fleet(path, **config, missing="mean").dataset
    assert kept.x[7, 0] == 0
    assert kept.x[7, 2:].tolist() == [0, 0, 0]


def test_a_parquet_file_is_read_as_the_csv_is(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = own.rows()
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    config = {"label": "died", "client": "hospital"}
    one = fleet(own.table(tmp_path / "a.csv", rows), **config)
    other = fleet(tmp_path / "a.parquet", **config)
    assert torch.equal(one.dataset.x, other.dataset.x)
    assert torch.equal(one.dataset.y, other.dataset.y)
    assert one.names == other.names


# --- pictures, Hugging Face, texts ---


def test_a_folder_of_pictures_by_class(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    for i in range(24):
        own.picture(tmp_path / "cat" / f"{i:02}.png", 10 * i)
        own.picture(tmp_path / "dog" / f"{i:02}.png", 10 * i + 5)
    data = fleet(tmp_path, clients=2, partition="iid")
    assert (data.dataset.class_names, data.dataset.shape) == (("cat", "dog"), (3, 5, 6))
    assert data.dataset.x[25, 0, 0].tolist() == [15, 0, 240]
    assert data.dataset.y.tolist() == [0] * 24 + [1] * 24
    assert fleet(tmp_path, clients=2, partition="iid", side=8).dataset.shape == (3, 8, 8)


def test_pictures_that_a_table_names(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    rows = []
    for i in range(30):
        own.picture(tmp_path / "all" / f"{i}.png", i, mode="L")
        rows.append({"file": f"all/{i}.png", "label": "ab"[i // 2 % 2], "client": f"site {i % 2}"})
    own.table(tmp_path / "labels.csv", rows)
    data = fleet(tmp_path)
    assert (data.names, data.dataset.shape) == (("site 0", "site 1"), (1, 5, 6))
    assert data.dataset.x[:, 0, 0, 0].tolist() == list(range(30))


def test_train_and_test_folders_of_pictures(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    for i in range(20):
        for name in ("a", "b"):
            own.picture(tmp_path / ("train" if i < 15 else "test") / name / f"{i}.png", i, mode="L")
    data = fleet(tmp_path, clients=2, partition="iid")
    assert (data.dataset.train, len(data.dataset), data.config.split) == (30, 40, "same")


def test_a_saved_data_set_of_hugging_face(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = own.rows()
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    datasets.Dataset.from_dict(columns).save_to_disk(tmp_path / "saved")
    config = {"label": "died", "client": "hospital"}
    one = fleet(tmp_path / "saved", **config)
    other = fleet(own.table(tmp_path / "a.csv", rows), **config)
    assert torch.equal(one.dataset.x, other.dataset.x)
    assert one.names == other.names


def test_saved_pictures_and_tokens(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    pixels = np.arange(40 * 30, dtype=np.uint8).reshape(40, 5, 6)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    whole = {"image": list(pixels), "label": [0, 1] * 20}
    parts = {"train": slice(0, 30), "test": slice(30, 40)}
    datasets.DatasetDict(
        {
            name: datasets.Dataset.from_dict({k: v[at] for k, v in whole.items()}, features=features)
            for name, at in parts.items()
        }
    ).save_to_disk(tmp_path / "pictures")
    data = fleet(tmp_path / "pictures", clients=2, partition="iid").dataset
    assert (data.class_names, data.shape, data.train, len(data)) == (("cat", "dog"), (1, 5, 6), 30, 40)
    assert np.array_equal(data.x[..., 0].numpy(), pixels)
    tokens = {"input_ids": [[1, 2, 3], [4]] * 20, "attention_mask": [[1, 1, 1], [1]] * 20, "label": [0, 1] * 20}
    datasets.Dataset.from_dict(tokens).save_to_disk(tmp_path / "tokens")
    data = fleet(tmp_path / "tokens", clients=2, partition="iid").dataset
    assert data.x[:2].tolist() == [[1, 2, 3], [0, 0, 4]]


PLAY = "FIRST:\nab ab\n\nSECOND:\nba\n\nFIRST:\nbb\n"


def test_a_text_has_a_client_per_speaker(tmp_path: Path) -> None:
    (tmp_path / "play.txt").write_text(PLAY)
    data = fleet(tmp_path / "play.txt", length=4, min_samples=1, split="ratio", train_share=1, test_share=1)
    # FIRST says "ab ab\nbb": 8 characters make two samples of 4; "\n", " ", "a", "b" are 1, 2, 3, 4
    text = data.dataset
    assert (text.target, text.vocabulary, text.shape) == ("tokens", 5, (4,))
    first = text.keys["client"] == "FIRST"
    assert text.x[first].tolist() == [[3, 4, 2, 3], [4, 1, 4, 0]]
    assert text.y[first].tolist() == [[4, 2, 3, 4], [1, 4, 4, -100]]
    assert text.x[~first].tolist() == [[4, 0, 0, 0]]
    assert text.y[~first].tolist() == [[3, -100, -100, -100]]


def test_a_folder_of_texts_has_a_client_per_file(tmp_path: Path) -> None:
    for name in ("emma", "ivanhoe"):
        (tmp_path / f"{name}.txt").write_text("It is a truth universally acknowledged. " * 30)
    data = fleet(tmp_path, length=20)
    assert data.names == ("emma", "ivanhoe")
    assert data.dataset.outputs == len(set("It is a truth universally acknowledged. ")) + 1


# --- functions and federations ---


class Squares(torch.utils.data.Dataset[Any]):
    """Samples one by one."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int) -> Any:
        return torch.full((2, 3), float(i)), i % 2, f"client {i // 2 % 2}"


def pair(n: int = 60, seed: int = 0) -> Any:
    return torch.arange(2.0 * n).reshape(n, 2), torch.arange(n) % 3 + (seed < 0)


@pytest.mark.parametrize(("name", "shape"), [("pair", (2,)), ("Squares", (2, 3))])
def test_a_function_or_class_by_name(name: str, shape: tuple[int, ...]) -> None:
    data = fleet(f"{__name__}:{name}", min_samples=2, clients=2).dataset
    assert (len(data), data.shape) == (60, shape)


def test_arguments_of_a_function() -> None:
    assert len(fleet(f"{__name__}:pair", args={"n": 90}, clients=2).dataset) == 90
    with pytest.raises(
        DataError,
        match=r'^data\.args\.m: no such argument of "test_own:pair"; allowed: n, seed$',
    ):
        fleet(f"{__name__}:pair", args={"m": 90}, clients=2)
    with pytest.raises(
        ValueError, match=r'data\.source: "test_own:pari": "pari" not found in module "test_own"; did you mean "pair"\?'
    ):
        fleet(f"{__name__}:pari")


def test_an_object_instead_of_a_name() -> None:
    data = build(DataConfig("<Squares>"), 1, value=Squares())
    assert data.names == ("client 0", "client 1")
    with pytest.raises(DataError, match=r'data\.source: "<Squares>" is a Python object; pass it again'):
        build(DataConfig("<Squares>"), 1)


def test_a_federation_reads_only_whom_it_needs() -> None:
    began = time.perf_counter()
    federation = own.Counting(100_000)
    data = build(DataConfig("<Counting>"), 1, value=federation)
    assert data.clients == 100_000
    assert time.perf_counter() - began < 2
    assert set(federation.read) == {0}
    federation.read.clear()
    for k in (5, 99_999, 5):
        assert len(data.local(k)) == 21
        assert len(data.test(k)) == 6
    assert federation.read == [5, 99_999]
    for k in range(KEPT + 1):
        data.local(k)
    federation.read.clear()
    data.local(KEPT)
    data.local(0)  # the one that was used longest ago is gone
    assert federation.read == [0]


def test_a_federation_is_what_the_same_clients_in_one_file_are(tmp_path: Path) -> None:
    data = build(DataConfig("<Counting>"), 1, value=own.Counting(3))
    each = [own.Counting(3).client(k) for k in range(3)]
    path = own.npz(
        tmp_path / "a.npz",
        x=np.concatenate([one["x"] for one in each]),
        y=np.concatenate([one["y"] for one in each]),
        client=np.repeat(np.arange(3), 30),
    )
    whole = fleet(path)
    for k in range(3):
        for one, other in ((data.local(k).train, whole.local(k).train), (data.test(k), whole.test(k))):
            assert all(torch.equal(a, b) for a, b in zip(next(one.all(99)), next(other.all(99)), strict=True))


def test_a_choice_of_a_federation() -> None:
    data = build(DataConfig("<Counting>", clients=4), 1, value=own.Counting(9, classes=None))
    assert data.names == tuple(str(k) for k in Rng(1, "data", "partition", "keys").choice(9, 4))
    with pytest.raises(ValueError, match=r"data\.clients: 10 is not allowed; expected an int <= 9"):
        build(DataConfig("<Counting>", clients=10), 1, value=own.Counting(9))
    with pytest.raises(
        ValueError,
        match=r'data\.partition: "iid" is not allowed for <Counting>, which gives the samples of each client; leave',
    ):
        build(DataConfig("<Counting>", partition="iid"), 1, value=own.Counting(9))


class Broken:
    """Clients that are each wrong in a way."""

    clients = ("good", "empty", "label", "shape", "raises", "nothing")

    def client(self, k: int) -> Any:
        if k == 4:
            raise OSError("disk is gone")
        one = own.arrays(0 if k == 1 else 30, features=5 if k == 3 else 4)
        return None if k == 5 else (one["x"], one["y"] + 3 * (k == 2))


@pytest.mark.parametrize(
    ("k", "message"),
    [
        (1, r"<Broken>: client empty: x is float32 \[0, 4\]; expected at least one sample and no size of 0"),
        (2, r"<Broken>: client label: y of sample 0 is 3; expected a class in \[0, 2\]"),
        (
            3,
            r"<Broken>: client shape: class data of torch\.float32 \[5\] is not allowed; "
            r"expected class data of torch\.float32",
        ),
        (4, "<Broken>: client raises: cannot be read: OSError: disk is gone"),
        (
            5,
            r"<Broken>: client nothing returns NoneType; expected arrays \(x, y\), a dict with x and y, "
            r"a torch Dataset",
        ),
    ],
)
def test_a_bad_client_of_a_federation_is_named(k: int, message: str) -> None:
    data = build(DataConfig("<Broken>"), 1, value=Broken())
    with pytest.raises(DataError, match=message):
        data.local(k)


# --- bad files ---

NAN = own.arrays()["x"].copy()
NAN[17, 2] = np.nan
ONE = np.zeros(90, int)
GAP = own.arrays()["y"].copy()
GAP[40] = -1
SHORT = own.arrays(30)
PATIENTS = own.rows()


def changed(row: int, **values: Any) -> list[dict[str, Any]]:
    return [one | values if i == row else one for i, one in enumerate(PATIENTS)]


BAD_ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "no y": ({"y": None}, r"bad\.npz: array y is missing"),
    "other name": (
        {"clients": ONE},
        r"bad\.npz: array 'clients' is not allowed; expected x, y, client, x_test, y_test, client_test, " r"mean, std",
    ),
    "wrong lengths": ({"y": ONE[:3]}, r"bad\.npz: y is int64 \[3\]; expected 90 entries"),
    "wrong clients": ({"client": ONE[:3]}, r"bad\.npz: client is int64 \[3\]; expected 90 ints or strings"),
    "NaN": ({"x": NAN}, r"bad\.npz: x has NaN or Inf in sample 17; expected finite numbers"),
    "NaN to predict": ({"y": NAN[:, 2]}, r"bad\.npz: y has NaN or Inf in sample 17; expected finite numbers"),
    "texts of numbers": ({"x": np.array([["a", "b"]] * 90)}, r"bad\.npz: x is <U1 \[90, 2\]; expected uint8"),
    "empty text": ({"y": np.array(["a", "", "c"] * 30)}, r"bad\.npz: y of sample 1 is empty"),
    "objects": ({"y": np.array([None, {}] * 45)}, "array 'y' is an array of objects; expected numbers, or texts"),
    "below 0": ({"y": GAP}, r"bad\.npz: y of sample 40 is -1; expected a class >= 0"),
    "one class": ({"y": ONE}, r"bad\.npz: y has only one class, 0; expected at least two"),
    "nobody": ({"client": np.array([""] * 90)}, "client of sample 0 is empty"),
    "half a test": ({"x_test": SHORT["x"]}, r"bad\.npz: y_test is missing; expected both x_test and y_test"),
    "other test": (
        {"x_test": SHORT["x"][:, :2], "y_test": SHORT["y"]},
        r"bad\.npz: x_test is float32 \[30, 2\]; expected the type and sizes of x, float32 \[90, " r"4\]",
    ),
    "unseen label": (
        {"x_test": SHORT["x"], "y_test": np.where(np.arange(30) == 8, 7, SHORT["y"]), "client_test": SHORT["client"]},
        r"bad\.npz: test sample 8 of client west has label 7, which no training sample has",
    ),
    "client without samples": (
        {"x_test": SHORT["x"], "y_test": SHORT["y"], "client_test": np.array(["north"] * 29 + ["east"])},
        r"bad\.npz: client_test of sample 29 is east; expected a client with training samples",
    ),
    "client without test": (
        {"x_test": SHORT["x"], "y_test": SHORT["y"], "client_test": np.array(["north"] * 30)},
        r"data\.clients: client south would have 0 test samples; expected at least 1",
    ),
    "form": (
        {"x": np.zeros(90)},
        r"bad\.npz: x is float64 \[90\]; expected uint8 \[n, height, width\] or \[n, height, width, " r"channels\]",
    ),
    "no samples": (
        {"x": np.zeros((0, 3)), "y": ONE[:0], "client": ONE[:0]},
        r"bad\.npz: x is float64 \[0, 3\]; expected at least one sample and no size of " r"0",
    ),
    "mean of floats": ({"mean": 0.5}, r"bad\.npz: mean is only for uint8 pictures, and x is float32 \[90, 4\]"),
}


@pytest.mark.parametrize("what", BAD_ARRAYS)
def test_a_bad_npz_is_one_line(what: str, tmp_path: Path) -> None:
    changes, message = BAD_ARRAYS[what]
    path = own.npz(tmp_path / "bad.npz", **changes)
    with pytest.raises(ValueError, match=message) as caught:
        fleet(path, min_samples=1)
    assert "\n" not in str(caught.value)
    assert what == "client without test" or "bad.npz" in str(caught.value)


BAD_TABLES: dict[str, tuple[list[dict[str, Any]] | str, str]] = {
    "empty": ("", r"bad\.csv: the file is empty; expected a header line and rows"),
    "header only": ("age,died,hospital\n", r"bad\.csv: the file has a header, but no rows"),
    "duplicate": ("age,age,died,hospital\n1,2,3,4\n", r"bad\.csv: two columns have the name 'age'"),
    "no name": ("age,,died,hospital\n1,2,3,4\n", "column 2 has no name"),
    "ragged": ("age,died,hospital\n1,2,3\n1,2\n", r"bad\.csv, row 3: 2 values; expected 3"),
    "bytes": ("\udcff\udcfe", r"bad\.csv, row 1: text that is not UTF-8; expected UTF-8"),
    "latin-1": (
        "age,died,hospital\n1,2,3\n1,2,K\udcf6ln\n",
        r"bad\.csv, row 3: text that is not UTF-8; expected UTF-8",
    ),
    "text among numbers": (
        changed(5, age="abc"),
        r"bad\.csv, row 7: abc in column 'age', where \d+ of \d+ values are numbers; correct the value, or list",
    ),
    "text among labels": (
        [row | {"died": "oops" if i == 4 else i / 2} for i, row in enumerate(PATIENTS)],
        r"bad\.csv, row 6: oops in column 'died', where .* correct the value, or set data\.target = \"class\"",
    ),
    "no label": (
        [{k: v for k, v in row.items() if k != "died"} for row in PATIENTS],
        r"bad\.csv: data\.label: no column 'died'; expected one of 'age', 'dose', 'ward', " r"'hospital'",
    ),
    "no client": (
        [{k: v for k, v in row.items() if k != "hospital"} for row in PATIENTS],
        r"bad\.csv: data\.client: no column 'hospital'; expected one of 'age', 'dose', 'ward', " r"'died'",
    ),
    "missing": (changed(5, dose=""), r"bad\.csv, row 7: no value in column 'dose'"),
    "missing label": (changed(5, died=""), r"bad\.csv, row 7: no value in column 'died'"),
    "missing client": (changed(5, hospital=""), r"bad\.csv, row 7: no value in column 'hospital'"),
    "infinite": (changed(5, dose="inf"), r"bad\.csv, row 7: infinite value in column 'dose'; expected finite numbers"),
    "one class": (
        [row | {"died": "no"} for row in PATIENTS],
        r"bad\.csv: column 'died' has only one class, no; " r"expected at least two",
    ),
}


@pytest.mark.parametrize("what", BAD_TABLES)
def test_a_bad_table_is_one_line(what: str, tmp_path: Path) -> None:
    content, message = BAD_TABLES[what]
    path = tmp_path / "bad.csv"
    if isinstance(content, str):
        path.write_bytes(content.encode(errors="surrogateescape"))
    else:
        own.table(path, content)
    with pytest.raises(DataError, match=message) as caught:
        fleet(path, label="died", client="hospital")
    assert "\n" not in str(caught.value)
    assert "bad.csv" in str(caught.value)


def test_labels_that_are_not_numbers(tmp_path: Path) -> None:
    path = own.table(tmp_path / "a.csv", PATIENTS)
    with pytest.raises(DataError, match=r"a\.csv, row 2: no in column 'died'; expected numbers"):
        fleet(path, label="died", target="number")
    mixed = own.table(tmp_path / "b.csv", [row | {"died": "oops" if i > 20 else i} for i, row in enumerate(PATIENTS)])
    with pytest.raises(DataError, match=r"b\.csv, row 23: oops in column 'died'"):
        fleet(mixed, label="died", target="number")


def test_texts_among_numbers_may_be_meant(tmp_path: Path) -> None:
    half = [row | {"died": "x" if i % 2 else i % 4, "age": "old" if i % 2 else 1} for i, row in enumerate(PATIENTS)]
    data = fleet(own.table(tmp_path / "a.csv", half), label="died", client="hospital").dataset
    assert data.class_names == ("0", "2", "x")
    assert data.shape == (6,)
    path = own.table(tmp_path / "b.csv", [row | {"died": i % 3 if i % 3 else "x"} for i, row in enumerate(PATIENTS)])
    assert fleet(path, label="died", client="hospital", target="class").dataset.class_names == ("1", "2", "x")


def damaged_zip(folder: Path) -> Path:
    path = own.npz(folder / "bad.npz")
    path.write_bytes(path.read_bytes()[:-200])
    return path


def no_picture(folder: Path) -> Path:
    own.picture(folder / "a" / "1.png", 1)
    (folder / "b").mkdir()
    (folder / "b" / "2.png").write_text("nonsense")
    return folder


def cut_picture(folder: Path) -> Path:
    own.picture(folder / "a" / "1.png", 1, (60, 60))
    path = own.picture(folder / "b" / "2.png", 1, (60, 60))
    path.write_bytes(path.read_bytes()[:-40])
    return folder


def mixed_sizes(folder: Path) -> Path:
    own.picture(folder / "a" / "1.png", 1)
    own.picture(folder / "b" / "2.png", 1, (7, 7))
    return folder


def empty_class(folder: Path) -> Path:
    own.picture(folder / "a" / "1.png", 1)
    (folder / "b").mkdir()
    return folder


def lost_picture(folder: Path) -> Path:
    own.picture(folder / "a.png", 1)
    own.table(folder / "labels.csv", [{"file": "a.png", "label": 0}, {"file": "b.png", "label": 1}])
    return folder


def empty_text(folder: Path) -> Path:
    (folder / "a.txt").write_text("words")
    (folder / "b.txt").write_text(" ")
    return folder


BAD_FILES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda folder: folder / "none.npz", r"none\.npz: cannot be read: no such file"),
    "damaged zip": (damaged_zip, r"bad\.npz: cannot be read as \.npz"),
    "unknown ending": (
        lambda folder: folder / "a.xyz",
        r"a\.xyz: not a folder, and not a known kind of file; expected one that ends with \.npz, \.csv, "
        r"\.parquet, \.txt",
    ),
    "empty folder": (
        lambda folder: folder,
        r"test_a_bad_file_is_one_line_em0: no data; expected pictures, "
        r"\.txt files or a data set saved with Hugging",
    ),
    "no picture": (no_picture, r"2\.png: cannot be read as a picture"),
    "cut picture": (cut_picture, r"2\.png: cannot be read as a picture"),
    "mixed sizes": (mixed_sizes, r"2\.png: 7 x 7 pixels; expected 6 x 5"),
    "empty class": (empty_class, "b: no pictures"),
    "lost picture": (lost_picture, r"labels\.csv, row 3: picture 'b\.png' not found in .*"),
    "empty text": (empty_text, r"b\.txt: the file is empty; expected text"),
}


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_bad_file_is_one_line(what: str, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    make, message = BAD_FILES[what]
    with pytest.raises(DataError, match=message) as caught:
        fleet(make(tmp_path))
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "a.parquet").write_bytes(b"")
    own_picture = tmp_path / "pictures" / "a"
    own_picture.mkdir(parents=True)
    (own_picture / "1.png").write_bytes(b"")
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "state.json").write_text("{}")
    for source, extra in (("a.parquet", "parquet"), ("pictures", "pictures"), ("saved", "huggingface")):
        with pytest.raises(DataError, match=rf"pip install 'sparsona\[{extra}\]'"):
            fleet(tmp_path / source)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"source": "digits", "label": "x"},
            'label: not allowed with the built-in source "digits", only with your own data',
        ),
        ({"source": "a.npz", "args": {}}, r'args: not allowed with source = "a\.npz", only with package\.module:name'),
        (
            {"source": "a.csv", "features": ("a", "a")},
            r"features: \['a', 'a'\] is not allowed; expected at least one name, " r"and each once",
        ),
    ],
)
def test_fields_that_do_not_fit_the_source(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataConfig(**config)
