"""FEMNIST and Shakespeare in LEAF's JSON: read exactly, divided by writer and role, and damage is named."""

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import official
import pytest

import sparsona
from sparsona.data import DataConfig, DataError, build, load
from sparsona.data.readers import json_stream
from sparsona.data.readers.leaf import ALPHABET, VOCABULARY

TRAIN, TEST = "femnist/train/all_data_0_niid_train_9.json", "femnist/test/all_data_0_niid_test_9.json"
PLAY = {
    "HENRY_V_KING HENRY V": "Once more unto the breach, dear friends, once more; " * 3,
    "HAMLET_HAMLET": "To be, or not to be, that is the question: whether 'tis nobler in the mind " * 2,
}


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARSONA_DATA", raising=False)


def picture(*dark: int) -> list[float]:
    """White paper with ink at these places."""
    return [0.0 if i in dark else 1.0 for i in range(784)]


def test_pictures_are_the_bytes_that_leaf_divided(tmp_path: Path) -> None:
    levels = [i / 255 for i in range(256)] + [1.0] * (784 - 256)
    official.leaf(tmp_path / TRAIN, {"f0001_41": ([levels, picture(1)], [61, 0]), "f0002_07": ([picture(29)], [10])})
    official.leaf(tmp_path / TEST, {"f0001_41": ([picture(783)], [36])})
    data = load("femnist", tmp_path)
    assert data.x.shape == (4, 28, 28, 1)
    assert data.x[0].flatten().tolist() == [*range(256), *[255] * (784 - 256)]
    assert [int((255 - row.flatten().int()).argmax()) for row in data.x[1:]] == [1, 29, 783]
    assert (data.x[2, 1, 1, 0], data.x[3, 27, 27, 0]) == (0, 0)  # rows of 28
    assert data.y.tolist() == [61, 0, 10, 36]
    assert [data.class_names[y] for y in data.y] == ["z", "0", "A", "a"]
    assert (data.train, data.shape, data.classes) == (3, (1, 28, 28), 62)
    train, test = data.key("writer")
    assert (train.tolist(), test.tolist()) == (["f0001_41", "f0001_41", "f0002_07"], ["f0001_41"])


@pytest.mark.parametrize("folder", ["femnist", "femnist/all_data", "femnist/data/all_data"])
def test_a_folder_of_all_data_has_no_test_set(tmp_path: Path, folder: str) -> None:
    both = official.femnist_users("abc", 4), official.femnist_users("de", 3, seed=1)
    for number, users in enumerate(both):
        renamed = {f"{name}{number}": samples for name, samples in users.items()}
        official.leaf(tmp_path / folder / f"all_data_{number}.json", renamed)
    data = load("femnist", tmp_path)
    assert (len(data), data.train) == (18, 18)
    assert data.keys["writer"][[0, 4, 17]].tolist() == ["f0000_a0", "f0001_b0", "f0001_e1"]
    assert np.array_equal(data.x[12:].reshape(6, 784).numpy(), official.pictures(6, 784, seed=1))


def test_writers_are_clients_by_name(tmp_path: Path) -> None:
    official.leaf(tmp_path / TRAIN, official.femnist_users("abcd", 10))
    official.leaf(tmp_path / TEST, official.femnist_users("abcd", 5, seed=1))
    config = DataConfig(source="femnist", clients=4, split="same")
    assert (config.partition, config.key) == ("natural", "writer")
    fleet = build(config, 0, tmp_path)
    assert sorted(fleet.names) == ["f0000_a", "f0001_b", "f0002_c", "f0003_d"]
    assert fleet.named
    for k, name in enumerate(fleet.names):
        writer = fleet.dataset.keys["writer"]
        assert all((writer[index] == name).all() for index in (fleet.parts[k].train, fleet.parts[k].test))
        assert len(fleet.parts[k].test) == 5
    assert DataConfig(source="femnist", partition="iid").key == ""
    own = config.with_object("<object>")
    assert (own.partition, own.key, own.clients) == (None, "", 4)


def test_the_next_character_is_the_last_target(tmp_path: Path) -> None:
    text = "ab" * 40 + "c~d"
    official.leaf(tmp_path / "shakespeare/train/a.json", official.shakespeare_users({"ROLE": text}))
    official.leaf(tmp_path / "shakespeare/test/a.json", {"ROLE": (["\n" * 79 + "é"], ["}"])})
    assert (len(ALPHABET), VOCABULARY) == (80, 82)
    a, b, c, d = (ALPHABET.index(character) + 1 for character in "abcd")
    data = load("shakespeare", tmp_path)
    assert data.x.tolist() == [[a, b] * 40, [b, *[a, b] * 39, c], [*[a, b] * 39, c, 81], [1] * 79 + [81]]
    assert (data.y[:, :-1] == -100).all()
    assert data.y[:, -1].tolist() == [c, 81, d, 80]
    assert (data.target, data.outputs, data.shape, data.train) == ("tokens", 82, (80,), 3)
    short = load("shakespeare", tmp_path, length=3)
    assert short.x.tolist() == [[b, a, b], [a, b, c], [b, c, 81], [1, 1, 81]]
    assert short.y.tolist() == [[-100, -100, y] for y in (c, 81, d, 80)]
    with pytest.raises(DataError, match=r"data\.length: 81 is not allowed; expected an int <= 80"):
        load("shakespeare", tmp_path, length=81)
    with pytest.raises(DataError, match=r"data\.vocabulary: 81 is not allowed; expected an int >= 82"):
        load("shakespeare", tmp_path, vocabulary=81)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_file_is_read_in_pieces_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    path = tmp_path / "shakespeare" / "all_data_0.json"
    official.leaf(path, official.shakespeare_users(PLAY))
    whole = load("shakespeare", tmp_path)
    text = json.loads(path.read_text())
    text = {"user_data": text["user_data"], "hierarchies": [1, -2.5e3, None], **text}  # in another order, and more
    text["user_data"]["HAMLET_HAMLET"]["raw"] = {"deep": ["]", "}"]}
    text["user_data"]["HAMLET_HAMLET"]["share"] = 0.25
    text["share"] = -1.5e-3
    path.write_text("\n " + json.dumps(text, indent=1, ensure_ascii=False) + "\r\n\t")
    monkeypatch.setattr(json_stream, "STEP", step)
    again = load("shakespeare", tmp_path)
    assert np.array_equal(again.x, whole.x)
    assert np.array_equal(again.y, whole.y)
    assert again.keys["role"].tolist() == whole.keys["role"].tolist()


def test_memory_is_that_of_the_samples(tmp_path: Path) -> None:
    path = tmp_path / "femnist" / "all_data_0.json"
    official.leaf(path, official.femnist_users("abcdefgh", 60))
    tracemalloc.start()
    try:
        data = load("femnist", tmp_path)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert data.x.nbytes == 480 * 784
    assert path.stat().st_size > 6_000_000
    assert most < 3 * data.x.nbytes + 6 * json_stream.STEP  # as Python's numbers they would take 12 MB and the text 7


def test_leaf_data_train_end_to_end(tmp_path: Path) -> None:
    for split, each in (("train", 12), ("test", 4)):
        official.leaf(tmp_path / f"femnist/{split}/a.json", official.femnist_users("abcd", each))
    official.leaf(tmp_path / "shakespeare/all_data_0.json", official.shakespeare_users(PLAY))
    raw: dict[str, Any] = {
        "rounds": 1,
        "engine": {"name": "local"},
        "method": {"name": "fedspa", "lr": 0.05},
        "data": {"source": "femnist", "clients": 3, "split": "same"},
        "model": {"name": "lenet"},
    }
    run = sparsona.run(sparsona.check_recipe(raw), tmp_path / "writers", data_dir=tmp_path)
    assert run.rounds[-1]["round"] == 1
    assert all(name.startswith("f000") for name in run.client_names)
    raw |= {"data": {"source": "shakespeare", "clients": 2}, "model": {"name": "char-cnn"}}
    raw |= {"task": {"metrics": ["perplexity", "accuracy"]}}
    run = sparsona.run(sparsona.check_recipe(raw), tmp_path / "roles", data_dir=tmp_path)
    assert sorted(run.client_names) == sorted(PLAY)
    assert 1 < run.rounds[-1]["before"]["perplexity"] < 200


# --- what is missing or damaged ---


def file(change: dict[str, Any] | None = None, /, **user: Any) -> str:
    """A file of one writer, some of whose parts are replaced; None removes one."""
    data = {"x": [picture(0), picture(1)], "y": [3, 4]} | user
    content = {"users": ["f1"], "num_samples": [2], "user_data": {"f1": data}} | (change or {})
    kept = {key: value for key, value in content.items() if value is not None}
    return json.dumps(kept).replace("twice", "f1")


GOOD = {"x": [picture(0), picture(1)], "y": [3, 4]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (file(x=[picture(0)]), "user 'f1' has 1 inputs and 2 targets; expected as many"),
        (file(x=[picture(0), picture(1)[:-1]]), r"user 'f1', x\[1\] is not allowed; expected a list of 784 numbers"),
        (file(x=[picture(0), ["a"] * 784]), r"user 'f1', x\[1\] is not allowed; expected a list of 784 numbers"),
        (file(x=[picture(0), [[1], [2, 3]]]), r"user 'f1', x\[1\] is not allowed"),
        (file(x=[[1.5] * 784, picture(1)]), r"user 'f1', x\[0\] has numbers outside \[0, 1\]"),
        (file(x=[[float("nan")] * 784, picture(1)]), r"user 'f1', x\[0\] has numbers outside \[0, 1\]"),
        (file(x=[[10**400] * 784, picture(1)]), r"user 'f1', x\[0\] is not allowed"),
        (file(x=7), r"user 'f1': not valid JSON at character \d+: expected \["),
        (file(y=[3, 62]), r"user 'f1', y\[1\] is 62; expected an int in \[0, 61\]"),
        (file(y=[3, 4.0]), r"user 'f1', y\[1\] is 4\.0; expected an int"),
        (file(y=[True, 4]), r"user 'f1', y\[0\] is True; expected an int"),
        (file(y=None).replace('"y": null', '"z": 0'), "user 'f1' has no y; expected x and y"),
        (file().replace('"y"', '"x": [], "y"'), "user 'f1' has x twice"),
        (file({"num_samples": [3]}), "user 'f1' has 2 samples; expected 3 by num_samples"),
        (file({"num_samples": [2, 1]}), "expected the lists users and num_samples, of the same length"),
        (file({"users": None}), "expected the lists users and num_samples"),
        (file({"users": ["f2"]}), "user 'f2' of users is not in user_data"),
        (file({"user_data": {"f1": GOOD, "f2": GOOD}}), "user 'f2' of user_data is not in users"),
        (file({"user_data": {"f1": GOOD, "twice": GOOD}}), "user 'f1' occurs twice"),
        (file({"user_data": {"": GOOD}}), "user '' is not allowed"),
        (file({"user_data": {"f1": {"x": [], "y": []}}, "num_samples": [0]}), "no user has samples"),
        (file() + "x", r"not valid JSON at character 7,924: expected the end of the file"),
        (file().replace("}", ",}"), "not valid JSON"),
        ("[" * 100_000, "expected {"),
        ('{"users": ' + "[" * 100_000, "not valid JSON at character 10: the file ends early"),
        ("{1: 2}", "expected a key"),
        ("", "the file ends early"),
    ],
)
def test_damage_is_one_error_that_names_file_and_user(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "femnist" / "all_data_3.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(DataError, match=message) as error:
        load("femnist", tmp_path)
    assert str(tmp_path / "femnist") in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shakespeare" / "all_data_0.json"
    official.leaf(path, official.shakespeare_users(PLAY))
    whole = path.read_text()
    for size in range(0, len(whole), 97):
        path.write_text(whole[:size])
        with pytest.raises(DataError, match=r"all_data_0\.json"):
            load("shakespeare", tmp_path)
    path.write_bytes(whole[:500].encode() + b"\xff" + whole[500:].encode())
    with pytest.raises(DataError, match="cannot be read as UTF-8 text"):
        load("shakespeare", tmp_path)


def test_what_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "STEP", 1000)
    monkeypatch.setattr(json_stream, "LARGEST", 10_000)
    path = tmp_path / "femnist" / "all_data_0.json"
    path.parent.mkdir()
    path.write_text('{"users": "' + "x" * 1_000_000)
    with pytest.raises(DataError, match="not valid JSON at character 10: expected a value"):
        load("femnist", tmp_path)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ("a" * 79, "b", r"user 'R', x\[0\] is a text of length 79; expected a text of length 80"),
        ("a" * 80, "bc", r"user 'R', y\[0\] is a text of length 2; expected a text of length 1"),
        ("a" * 80, 5, r"user 'R', y\[0\] is 5; expected a text of length 1"),
    ],
)
def test_damaged_texts_are_refused(tmp_path: Path, x: object, y: object, message: str) -> None:
    official.leaf(tmp_path / "shakespeare/all_data_0.json", {"R": ([x], [y])})
    with pytest.raises(DataError, match=message):
        load("shakespeare", tmp_path)


def test_parts_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    official.leaf(tmp_path / TRAIN, official.femnist_users("ab", 3))
    with pytest.raises(DataError, match="has files, and test beside it has none; expected both"):
        load("femnist", tmp_path)
    official.leaf(tmp_path / TEST, official.femnist_users("ab", 1))
    official.leaf(tmp_path / "femnist/train/b.json", official.femnist_users("a", 3))
    with pytest.raises(DataError, match=r"b\.json: user 'f0000_a' is in another file too"):
        load("femnist", tmp_path)


def test_other_partitions_work_too(tmp_path: Path) -> None:
    official.leaf(tmp_path / "femnist/all_data_0.json", official.femnist_users("abcd", 20))
    config = DataConfig(source="femnist", clients=2, partition="iid")
    assert build(config, 0, tmp_path).names == ("0", "1")
    with pytest.raises(ValueError, match=r'data\.key: "role" not found in femnist; allowed: writer'):
        build(replace(config, partition="natural", key="role"), 0, tmp_path)
