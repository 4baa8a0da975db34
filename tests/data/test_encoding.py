"""Encodings: how tables and texts become numbers, from a file and by the training rows of members alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import own
import pytest
import torch

from sparsona.data import DataConfig, DataError, Fleet, build, read_encoding, write_encoding
from sparsona.data.encoding import PARTS, Encoding, Scale

ROLES = {"label": "died", "client": "hospital"}


def fleet(source: Path, **config: Any) -> Fleet:
    return build(DataConfig(str(source), **{**ROLES, **config}), 1)


def rows(**changes: Any) -> list[dict[str, Any]]:
    return [row | changes if i == 5 else row for i, row in enumerate(own.rows())]


def test_an_encoding_is_written_and_read_again(tmp_path: Path) -> None:
    known = fleet(own.table(tmp_path / "a.csv", own.rows())).encoding
    assert known is not None
    assert list(known.columns) == ["age", "dose", "ward"]
    assert (known.columns["ward"], known.classes, known.width) == (("a", "b", "c"), ("no", "yes"), 5)
    write_encoding(known, tmp_path / "e.json")
    assert read_encoding(tmp_path / "e.json") == known


def test_a_table_with_its_own_encoding_is_the_same_to_the_bit(tmp_path: Path) -> None:
    path = own.table(tmp_path / "a.csv", own.rows())
    plain = fleet(path)
    assert plain.encoding is not None
    write_encoding(plain.encoding, tmp_path / "e.json")
    again = fleet(path, encoding=str(tmp_path / "e.json"))
    assert torch.equal(again.dataset.x, plain.dataset.x)
    assert again.encoding == plain.encoding
    some = fleet(own.table(tmp_path / "b.csv", own.rows()[:30]), encoding=str(tmp_path / "e.json"))
    assert torch.equal(some.dataset.x, plain.dataset.x[:30])


def test_order_and_other_columns_do_not_matter(tmp_path: Path) -> None:
    whole = fleet(own.table(tmp_path / "a.csv", own.rows()))
    assert whole.encoding is not None
    write_encoding(whole.encoding, tmp_path / "e.json")
    turned = [dict(reversed(list((row | {"note": "x"}).items()))) for row in own.rows()]
    other = fleet(own.table(tmp_path / "b.csv", turned), encoding=str(tmp_path / "e.json"))
    assert torch.equal(other.dataset.x, whole.dataset.x)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_numbers_are_texts_where_the_file_has_categories(ending: str, tmp_path: Path) -> None:
    known = Encoding({"code": ("1", "2", "A7")}, ("no", "yes"))
    write_encoding(known, tmp_path / "e.json")
    content = [{"code": 1 + i % 2, "died": ("no", "yes")[i // 2 % 2], "hospital": i % 2} for i in range(60)]
    path = own.table(tmp_path / "a.csv", content)
    if ending == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        import pyarrow.parquet as parquet

        path = tmp_path / "a.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(content), path)
    data = fleet(path, encoding=str(tmp_path / "e.json")).dataset
    assert data.x[:2].tolist() == [[1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("changes", "config", "message"),
    [
        (
            {"ward": "z"},
            {},
            r"b\.csv, row 7: z in column 'ward'; .*e\.json knows a, b, c: drop the row, or add the text",
        ),
        ({"age": "old"}, {}, r"b\.csv, row 7: old in column 'age'; expected a number, as .*e\.json has"),
        ({"died": "maybe"}, {}, r"b\.csv, row 7: maybe in column 'died'; expected one of data\.classes, no, yes"),
        ({}, {"classes": ("yes", "no")}, r"e\.json: has the classes no, yes; data\.classes is yes, no; leave"),
        ({}, {"features": ("age",)}, r"e\.json: has the columns age, dose, ward, data\.features has age; leave"),
    ],
)
def test_what_an_encoding_does_not_know_is_one_line(
    changes: dict[str, Any], config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    known = fleet(own.table(tmp_path / "a.csv", own.rows())).encoding
    assert known is not None
    write_encoding(known, tmp_path / "e.json")
    with pytest.raises(DataError, match=message) as caught:
        fleet(own.table(tmp_path / "b.csv", rows(**changes)), encoding=str(tmp_path / "e.json"), **config)
    assert "\n" not in str(caught.value)


def test_a_column_that_is_missing_is_named(tmp_path: Path) -> None:
    write_encoding(Encoding({"height": Scale(1, 2)}), tmp_path / "e.json")
    with pytest.raises(DataError, match=r"a\.csv: no column 'height', which .*e\.json has"):
        fleet(own.table(tmp_path / "a.csv", own.rows()), encoding=str(tmp_path / "e.json"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not an encoding in JSON"),
        ("[]", "is not an encoding; expected a table of columns, classes and alphabet"),
        ('{"columns": {"a": {"mean": 1}}}', r"columns\.a is not valid; expected finite mean and std"),
        ('{"columns": {"a": {"mean": 1, "std": -1}}}', "expected finite mean and std >= 0"),
        ('{"columns": {"a": {"mean": NaN, "std": 1}}}', r"columns\.a is not valid; expected finite"),
        ('{"columns": {"a": {"categories": ["x", "x"]}}}', "different strings as categories"),
        ('{"classes": ["a"]}', "classes is not valid; expected a list of at least two different names"),
        ('{"alphabet": "aa"}', "alphabet is not valid; expected a string that has each character once"),
    ],
)
def test_a_bad_file_is_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "e.json").write_text(content)
    with pytest.raises(DataError, match=rf"e\.json: .*{message}|e\.json: {message}"):
        read_encoding(tmp_path / "e.json")
    with pytest.raises(DataError, match=r"none\.json: cannot be read as an encoding: No such file"):
        read_encoding(tmp_path / "none.json")


def test_digests_say_which_part_differs() -> None:
    one = Encoding({"a": Scale(0, 1), "b": ("x", "y")}, ("ill", "well"))
    assert set(one.digests()) == set(PARTS) - {"alphabet"}
    for other, part in (
        (Encoding({"a": Scale(0.1, 1), "b": ("x", "y")}, ("ill", "well")), "scales"),
        (Encoding({"a": Scale(0, 1), "b": ("y", "x")}, ("ill", "well")), "categories"),
        (Encoding({"b": ("x", "y"), "a": Scale(0, 1)}, ("ill", "well")), "columns"),
        (Encoding({"a": Scale(0, 1), "b": ("x", "y")}, ("well", "ill")), "class names"),
    ):
        differing = [name for name, digest in one.digests().items() if other.digests()[name] != digest]
        assert differing == [part]


def test_a_text_has_the_alphabet_of_its_encoding(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("abcabc " * 400)
    write_encoding(Encoding(alphabet=" abcd"), tmp_path / "e.json")
    config = DataConfig(str(text), partition="iid", clients=2, encoding=str(tmp_path / "e.json"))
    data = build(config, 1)
    assert data.dataset.vocabulary == 6
    assert data.encoding == Encoding(alphabet=" abcd")
    text.write_text("abcé " * 400)
    with pytest.raises(DataError, match=r"a\.txt: has the character 'é', which is not in the alphabet of .*e\.json"):
        build(config, 1)


def test_newcomers_have_no_influence_on_scales(tmp_path: Path) -> None:
    content = own.rows()
    plain = build(DataConfig(str(own.table(tmp_path / "a.csv", content)), **ROLES), 1, newcomers=lambda _: [1])
    at = int(plain.parts[1].train[0])
    changed = [row | {"age": 10**6, "ward": "new"} if i == at else row for i, row in enumerate(content)]
    config = DataConfig(str(own.table(tmp_path / "b.csv", changed)), **ROLES)
    assert build(config, 1, newcomers=lambda _: [1]).encoding == plain.encoding
    assert build(config, 1).encoding != plain.encoding


# --- test rows ---


def marked(path: Path, column: str = "test", words: tuple[str, str] = ("false", "true")) -> Path:
    return own.table(path, [row | {column: words[i % 10 in (0, 4, 8)]} for i, row in enumerate(own.rows())])


@pytest.mark.parametrize(
    ("column", "words", "config"),
    [("test", ("false", "true"), {}), ("held", ("0", "1"), {"test": "held"}), ("test", ("0", "1"), {"test": "test"})],
)
def test_a_column_marks_test_rows(column: str, words: tuple[str, str], config: dict[str, Any], tmp_path: Path) -> None:
    data = fleet(marked(tmp_path / "a.csv", column, words), **config)
    assert (data.config.split, data.dataset.train, len(data.dataset), data.dataset.shape) == ("same", 42, 60, (5,))
    tested = [i for i in range(60) if i % 10 in (0, 4, 8)]
    for k, name in enumerate(own.HOSPITALS):
        mine = [own.rows()[i] for i in tested if own.rows()[i]["hospital"] == name]
        y = next(data.test(k).all(99))[1]
        assert [data.dataset.class_names[c] for c in y] == [row["died"] for row in mine]
    training = np.concatenate([part.train for part in data.parts])
    assert training.max() < 42
    ages = np.array([row["age"] for i, row in enumerate(own.rows()) if i not in tested], float)[training]
    assert data.encoding is not None
    scale = data.encoding.columns["age"]
    assert isinstance(scale, Scale)
    assert np.allclose(scale, (ages.mean(), ages.std()))


def test_a_column_called_test_of_numbers_is_an_input(tmp_path: Path) -> None:
    data = fleet(marked(tmp_path / "a.csv", words=("0", "1")))
    assert (data.config.split, data.dataset.shape) == ("ratio", (6,))
    assert fleet(marked(tmp_path / "b.csv"), features=("age", "test")).dataset.shape == (2,)


@pytest.mark.parametrize(
    ("words", "config", "message"),
    [
        (("0", "2"), {"test": "held"}, r"a\.csv, row 2: 2 in column 'held'; expected 0, or 1 for a test row"),
        (("no", "yes"), {"test": "held"}, r"a\.csv, row 2: yes in column 'held'; expected 0, or 1"),
        (("maybe", "1"), {"test": "held"}, r"a\.csv, row 3: maybe in column 'held'; expected 0, or 1"),
        (("1", "1"), {"test": "held"}, r"column 'held' marks every row as a test row; expected rows to train on"),
        (("0", "1"), {"test": "none"}, r"a\.csv: data\.test: no column 'none'; expected one of"),
        (("0", "1"), {"test": "died"}, r"column 'died' marks test rows; it cannot be a label"),
    ],
)
def test_bad_marks_are_named(words: tuple[str, str], config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        fleet(marked(tmp_path / "a.csv", "held", words), **config)


def test_a_test_row_of_nobody_is_named(tmp_path: Path) -> None:
    content = [row | {"test": "false"} for row in own.rows()]
    content.append(content[0] | {"test": "true", "hospital": "east"})
    with pytest.raises(DataError, match=r"a\.csv, row 62: a test row of east, who has no training rows"):
        fleet(own.table(tmp_path / "a.csv", content))


def test_pictures_of_a_table_may_be_test_rows(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    content = []
    for i in range(40):
        own.picture(tmp_path / f"{i}.png", i)
        content.append({"file": f"{i}.png", "label": i // 2 % 2, "client": i % 2, "test": str(i % 8 > 5).lower()})
    own.table(tmp_path / "t.csv", content)
    data = build(DataConfig(str(tmp_path)), 1)
    assert (data.config.split, data.dataset.train) == ("same", 30)
    assert data.dataset.x[30:, 0, 0, 0].tolist() == [i for i in range(40) if i % 8 > 5]


def test_texts_may_have_a_folder_of_tests(tmp_path: Path) -> None:
    for part, size in (("train", 40), ("test", 10)):
        (tmp_path / part).mkdir()
        for name in ("emma", "ivanhoe"):
            (tmp_path / part / f"{name}.txt").write_text("It is a truth. " * size)
    data = build(DataConfig(str(tmp_path), length=20), 1)
    assert (data.names, data.config.split) == (("emma", "ivanhoe"), "same")
    assert data.sizes("test").tolist() == [8, 8]
    (tmp_path / "test" / "other.txt").write_text("It is a truth. ")
    with pytest.raises(DataError, match=r"test/other\.txt is of a client without a text in train"):
        build(DataConfig(str(tmp_path), length=20), 1)


def test_an_encoding_is_an_input_file_of_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = own.table(tmp_path / "a.csv", own.rows())
    assert DataConfig(str(path), encoding="e.json").located().encoding == str(tmp_path / "e.json")
    with pytest.raises(ValueError, match='encoding: not allowed with the built-in source "digits"'):
        DataConfig("digits", encoding="e.json")
    (tmp_path / "e.json").write_text(json.dumps({"classes": ["yes", "no"]}))
    numbers = own.npz(tmp_path / "a.npz", y=np.arange(90) // 3 % 2)
    assert build(DataConfig(str(numbers), encoding="e.json"), 1).dataset.class_names == ("yes", "no")
