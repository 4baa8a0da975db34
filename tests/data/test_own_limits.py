"""Data of users at the edges: what would be read wrongly, or would need too much memory, is handled or refused."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import own
import pytest
import torch

from sparsona.data import DataConfig, DataError, Fleet, build
from sparsona.data.readers import table_inputs


def fleet(source: Path | str, value: Any = None, **config: Any) -> Fleet:
    return build(DataConfig(str(source), **config), 1, None, value)


@pytest.mark.parametrize("absolute", [False, True])
def test_a_table_names_no_picture_outside_its_folder(absolute: bool, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    outside = own.picture(tmp_path / "x.png", 1)
    own.picture(tmp_path / "in" / "a.png", 1)
    name = str(outside) if absolute else "../x.png"
    own.table(tmp_path / "in" / "t.csv", [{"file": "a.png", "label": 0}, {"file": name, "label": 1}])
    with pytest.raises(
        DataError, match=r"t\.csv, row 3: picture '.*x\.png' is not allowed; " r"expected a path inside .*"
    ):
        fleet(tmp_path / "in")


@pytest.mark.parametrize("label", [10**10, np.uint64(2**63 + 5), 1e300])
def test_a_label_that_is_an_identifier_is_refused(label: Any, tmp_path: Path) -> None:
    y = np.where(np.arange(90) == 7, label, own.arrays()["y"].astype(type(label)))
    message = rf"y of sample 7 is {int(label)}; expected a class in \[0, 99,999\]"
    with pytest.raises(DataError, match=message):
        fleet(own.npz(tmp_path / "a.npz", y=y), target="class")


def test_too_many_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"a\.npz: data\.classes: 10000000000 is not allowed; " r"expected an int <= 100,000"
    ):
        fleet(own.npz(tmp_path / "a.npz"), classes=10**10)


def test_a_class_that_is_too_large_is_named_by_its_row(tmp_path: Path) -> None:
    path = own.table(tmp_path / "a.csv", [{"a": i, "label": 9 if i == 4 else i % 3} for i in range(40)])
    with pytest.raises(DataError, match=r"a\.csv: row 6 of column 'label' is 9; expected a class in \[0, 2\]"):
        fleet(path, classes=3)


@pytest.mark.parametrize("name", ["x", "y"])
def test_numbers_beyond_float32_are_refused(name: str, tmp_path: Path) -> None:
    values = own.arrays()[name].astype(np.float64)
    values[4] = 1e300
    path = own.npz(tmp_path / "a.npz", **{name: values})
    with pytest.raises(DataError, match=rf"{name} has a number outside the range of float32 in sample 4"):
        fleet(path, target="number")


def test_a_column_that_is_constant_in_training_is_zero(tmp_path: Path) -> None:
    content = [{"a": 0.1, "b": i, "label": i % 2} for i in range(40)]
    training = fleet(own.table(tmp_path / "a.csv", content), clients=2).parts
    tested = training[0].test[0]
    content[tested]["a"] = 0.2
    data = fleet(own.table(tmp_path / "b.csv", content), clients=2).dataset
    assert data.x[:, 0].tolist() == [0.0] * 40


BIG = 2**53  # float64 has no 2**53 + 1


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("role", ["label", "client"])
def test_large_whole_numbers_are_not_merged(ending: str, role: str, tmp_path: Path) -> None:
    content = [{"a": i % 7, "label": i % 2, "client": i % 2} | {role: BIG + i // 2 % 2} for i in range(48)]
    path = own.table(tmp_path / "a.csv", content)
    if ending == "parquet":
        pyarrow = pytest.importorskip("pyarrow")
        import pyarrow.parquet as parquet

        path = tmp_path / "a.parquet"
        parquet.write_table(pyarrow.Table.from_pylist(content), path)
    data = fleet(path)
    assert (data.dataset.class_names if role == "label" else data.names) == ("9007199254740992", "9007199254740993")
    if role == "label":
        assert data.dataset.y.tolist() == [i // 2 % 2 for i in range(48)]


@pytest.mark.parametrize("role", ["label", "client"])
def test_leading_zeros_are_part_of_a_name(role: str, tmp_path: Path) -> None:
    content = [{"a": i % 7, "label": i % 2, "client": i % 2} | {role: ("7", "007")[i // 2 % 2]} for i in range(48)]
    data = fleet(own.table(tmp_path / "a.csv", content))
    assert (data.dataset.class_names if role == "label" else data.names) == ("007", "7")


def test_rows_are_lines_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('a,label\n1,0\n\n\n"z",1\n\nx y,\n')
    with pytest.raises(DataError, match=r"a\.csv, row 7: no value in column 'label'"):
        fleet(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("a,label\n1,0\n\n1,2,3\n")
    with pytest.raises(DataError, match=r"b\.csv, row 4: 3 values; expected 2"):
        fleet(tmp_path / "b.csv")


def test_a_missing_column_is_answered_with_all_columns(tmp_path: Path) -> None:
    path = own.table(tmp_path / "a.csv", own.rows())
    with pytest.raises(
        DataError,
        match=r"a\.csv: data\.label: no column 'alive'; expected one of 'age', 'dose', 'ward', 'died', " r"'hospital'",
    ):
        fleet(path, label="alive", features=("age",))


@pytest.mark.parametrize("kind", ["table", "tokens"])
def test_saved_parts_have_the_same_columns(kind: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    x = {"age": [float(i) for i in range(40)]} if kind == "table" else {"input_ids": [[1, i] for i in range(40)]}
    part = datasets.Dataset.from_dict(x | {"label": [i % 2 for i in range(40)], "client": [i % 3 for i in range(40)]})
    datasets.DatasetDict(train=part, test=part.remove_columns("client")).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(DataError, match="d: split 'test' lacks the column 'client' of split 'train'"):
        fleet(tmp_path / "d")


def test_a_saved_label_that_is_missing_is_named(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    form = datasets.Features({"age": datasets.Value("float32"), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = {"age": [1.0] * 9, "label": [0, 1, 0, None, 1, 0, 1, 0, 1]}
    datasets.Dataset.from_dict(rows, features=form).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(DataError, match=r"d \(train\), row 3: no value in column 'label'"):
        fleet(tmp_path / "d")


def test_names_and_sizes_of_an_npz_are_checked_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **own.arrays(), zeros=np.zeros(10_000))
    with pytest.raises(
        DataError,
        match=r"a\.npz: array 'zeros' is not allowed; expected x, y, client, x_test, y_test, client_test, mean, "
        r"std",
    ):
        fleet(path)
    own.npz(path)
    size = len(zipfile.ZipFile(path).read("x.npy"))
    claimed = size.to_bytes(4, "little"), (2**31).to_bytes(4, "little")
    raw = path.read_bytes()
    at = raw.rindex(b"PK\x01\x02", 0, raw.rindex(b"x.npy"))  # the entry of x in the central directory
    path.write_bytes(raw[: at + 24] + raw[at + 24 :].replace(*claimed, 1))
    with pytest.raises(DataError, match=r"a\.npz: array 'x' claims 2,147,483,648 bytes, more than the file can hold"):
        fleet(path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {"split": "label_mix"},
            r'data\.split: "label_mix" is not allowed for <Counting>, '
            r'whose clients have no test sets; expected "ratio"',
        ),
        (
            {"split": "same"},
            r'data\.split: "same" is not allowed for <Counting>, whose clients have no test sets; ' r'expected "ratio"',
        ),
        ({"min_samples": 3}, r"data\.min_samples is not allowed for <Counting>, which is read client by client"),
    ],
)
def test_a_federation_takes_no_fields_that_it_cannot_honour(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fleet("<Counting>", own.Counting(3), **config)


def test_clients_of_a_federation_have_names_of_their_own() -> None:
    with pytest.raises(DataError, match="<Counting>: two clients have the name 'b'; rename one"):
        fleet("<Counting>", own.Counting(("a", "b", "b")))
    with pytest.raises(DataError, match="<Counting>: clients is 'abc'; expected a number or a sequence of names"):
        fleet("<Counting>", own.Counting("abc"))


def test_all_clients_of_a_federation_have_a_test_set_or_none() -> None:
    class Mixed(own.Counting):
        def client(self, k: int) -> dict[str, np.ndarray]:
            one = super().client(k)
            return one if k == 0 else one | {"x_test": one["x"], "y_test": one["y"]}

    data = fleet("<Mixed>", Mixed(2))
    assert len(data.local(0)) == 21
    with pytest.raises(
        DataError,
        match=r"<Mixed>: client 1 has a test set; expected no test set, .*; give x_test and y_test for all clients",
    ):
        data.local(1)


def test_a_federation_is_capped_as_the_same_clients_in_one_file(tmp_path: Path) -> None:
    each = [own.Counting(3).client(k) for k in range(3)]
    arrays = {name: np.concatenate([one[name] for one in each]) for name in ("x", "y")}
    path = own.npz(tmp_path / "a.npz", **arrays, client=np.repeat(np.arange(3), 30))
    whole = fleet(path, samples_per_client=12)
    data = fleet("<Counting>", own.Counting(3), samples_per_client=12)
    for k in range(3):
        part = data.held(k)[1]
        assert sum(map(len, (part.train, part.validation, part.test))) == 12
        for name in ("train", "validation", "test"):
            assert (getattr(part, name) + 30 * k).tolist() == getattr(whole.parts[k], name).tolist()


class Raising(torch.utils.data.Dataset[Any]):
    """A torch Dataset whose third sample cannot be read."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, at: int) -> Any:
        if at == 2:
            raise KeyError("scan-2")
        return np.zeros(3, np.float32), at % 2


class Frame:
    """What looks like a pandas DataFrame."""

    columns = ("a", "label")

    def __getitem__(self, name: str) -> Any:
        raise KeyError(name)

    def __len__(self) -> int:
        return 5


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Raising(), "<value>, sample 2: cannot be read: KeyError: 'scan-2'"),
        (Frame(), r"<value> returns a table, Frame; expected arrays, such as \(df\[features\]\.to_numpy\(\)"),
    ],
)
def test_what_python_code_gives_is_refused_in_one_line(value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        fleet("<value>", value)
    assert "\n" not in str(caught.value)


def test_a_speaker_with_too_little_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("ANN:\nabcdefghijk\n\nBOB:\nx\n\nCAT:\nabcdefghijk\n")
    with pytest.warns(UserWarning, match=r"a\.txt: BOB has fewer than 2 characters of text \(1 left out\)"):
        data = fleet(tmp_path / "a.txt", length=2, min_samples=2)
    assert data.names == ("ANN", "CAT")
    (tmp_path / "b.txt").write_text("x")
    with pytest.raises(DataError, match=r"b\.txt: the text is too short; expected at least 2 characters"):
        fleet(tmp_path / "b.txt")


def test_each_text_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("abcdefghijk" * 9)
    read, plain = [], Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path, **more: (read.append(path.name), plain(path, **more))[1])
    fleet(tmp_path, length=4)
    assert read == ["a.txt", "b.txt"]


def test_too_many_columns_of_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(table_inputs, "_MAX_INPUTS", 2)
    path = own.table(tmp_path / "a.csv", [{"a": i, "b": i, "c": i, "label": i % 2} for i in range(40)])
    with pytest.raises(DataError, match=r"a\.csv: 3 columns; expected at most 2 in data\.features"):
        fleet(path, clients=2)


# --- what Python code gives ---


def of(value: Any, **config: Any) -> Fleet:
    return build(DataConfig("<f>", **config), 1, None, value)


def texts(*items: Any) -> np.ndarray:
    return np.array([items[i % len(items)] for i in range(60)], dtype=object)


X = np.random.default_rng(0).normal(size=(60, 3))


def test_columns_of_pandas_name_clients_and_classes() -> None:
    given = {"x": X, "y": texts("well", "well", "ill"), "client": texts("north", "south")}
    data = of(given)
    assert (data.names, data.dataset.class_names) == (("north", "south"), ("ill", "well"))
    assert data.dataset.y[:3].tolist() == [1, 1, 0]
    assert of(given, classes=("well", "ill")).dataset.y[:3].tolist() == [0, 0, 1]
    assert data.encoding is not None
    assert data.encoding.classes == ("ill", "well")
    tested = of(
        given | {"x_test": X[:9], "y_test": texts("well", "ill")[:9], "client_test": texts("north", "south")[:9]}
    )
    assert tested.dataset.y_test.tolist() == [1, 0] * 4 + [1]


class Words(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, i: int) -> Any:
        return X[i], ("well", "ill")[i % 2], "nb"[i % 2]


def test_texts_of_a_dataset_are_classes() -> None:
    data = of(Words(), min_samples=2)
    assert (data.dataset.class_names, data.names) == (("ill", "well"), ("b", "n"))


class Unequal(Words):
    def __getitem__(self, i: int) -> Any:
        return X[i], [1.0] * (1 + i // 7), 1


class Federated:
    """A federation that describes itself wrongly."""

    def __init__(self, **facts: Any) -> None:
        self.clients: Any = 3
        for name, fact in facts.items():
            setattr(self, name, fact)

    def client(self, k: int) -> Any:
        return own.arrays(30)["x"], own.arrays(30)["y"]


def failing() -> Any:
    raise RuntimeError("first line\nsecond line")


class Failing(Federated):
    def client(self, k: int) -> Any:
        failing()


Y = np.arange(60) % 2
SPARSE = torch.eye(60).to_sparse()


@pytest.mark.parametrize(
    ("value", "config", "message"),
    [
        ((X, texts("ill", "well", None)), {}, r"y of sample 2 is None; expected a string"),
        ((X, texts("ill", "well", float("nan"))), {}, r"y of sample 2 is nan; expected a string"),
        ((X, texts(None, {})), {}, r"y is an array of objects; expected numbers, or strings for clients and"),
        ((texts(1, "a").reshape(30, 2), Y[:30]), {}, "x is an array of objects"),
        (
            (X, texts("ill", "well")),
            {"target": "number"},
            r'y has strings; expected numbers, as data\.target = "number"',
        ),
        (
            (X, texts("ill", "well")),
            {"classes": ("ill", "dead")},
            r"y of sample 1 is well; expected one of data\.classes, ill, dead",
        ),
        ((X, texts("ill", "well")), {"classes": 3}, r"y has 2 different strings, and data\.classes = 3; list"),
        ((X, texts("ill")), {}, r"y has only one class, ill; expected at least two"),
        ((X, texts("ill", "")), {}, r"y of sample 1 is empty"),
        (([[1.0], [1.0, 2.0]], [0, 1]), {}, r"<f>: x is not an array of one shape: setting an array element"),
        ((SPARSE, Y), {}, r"<f>: x is a sparse tensor; expected a dense one, such as x\.to_dense\(\)"),
        (Unequal(), {}, r"<f>, sample 7: y has shape \[2\]; expected \[1\], as sample 0"),
        (Federated(shape=7), {}, r"client 0: inputs of shape \[4\] are not allowed; expected shape = 7"),
        (
            Federated(classes=3.5),
            {},
            r"<f>: classes is 3\.5; expected an int >= 2, or as many different names",
        ),
        (Federated(classes="abc"), {}, r"classes is 'abc'; expected an int >= 2"),
        (Federated(clients=4.5), {}, r"clients is 4\.5; expected a number or a sequence of names"),
        (failing, {}, r"RuntimeError: first line second line"),
        (Failing(), {}, r"client 0: cannot be read: RuntimeError: first line second line"),
    ],
)
def test_what_code_gives_is_one_line(value: Any, config: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        of(value, clients=2, **config)
    assert "\n" not in str(caught.value)


def test_bfloat16_is_read_as_floats() -> None:
    x = torch.from_numpy(X).bfloat16()
    assert torch.equal(of((x, Y), clients=2).dataset.x, x.float())


def test_numbers_of_numpy_describe_a_federation() -> None:
    assert of(Federated(classes=np.int64(3), shape=(4,))).dataset.classes == 3


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([[1, None]] * 9 + [[1, 2]] * 31, r"row 0: no value at place 1 of column 'input_ids'"),
        ([[1, 2]] * 39 + [None], r"row 39: no value in column 'input_ids'"),
        ([[]] + [[1, 2]] * 39, r"row 0: empty list in column 'input_ids'; drop the row"),
    ],
)
def test_bad_token_ids_of_a_saved_data_set_are_one_line(column: Any, message: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"input_ids": column, "label": [0, 1] * 20}).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(DataError, match=message) as caught:
        fleet(tmp_path / "d", clients=2)
    assert "\n" not in str(caught.value)


def test_classes_of_a_saved_data_set_are_known_by_name(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    form = datasets.Features(
        {"input_ids": datasets.List(datasets.Value("int64")), "label": datasets.ClassLabel(names=["well", "ill"])}
    )
    rows = {"input_ids": [[1, 2]] * 40, "label": [0, 1] * 20}
    datasets.Dataset.from_dict(rows, features=form).save_to_disk(str(tmp_path / "d"))
    assert fleet(tmp_path / "d", clients=2).dataset.y[:2].tolist() == [0, 1]
    other = fleet(tmp_path / "d", clients=2, classes=("ill", "well")).dataset
    assert (other.class_names, other.y[:2].tolist()) == (("ill", "well"), [1, 0])
    texts_too = {"input_ids": [[1, 2]] * 40, "label": ["well", "ill"] * 20}
    datasets.Dataset.from_dict(texts_too).save_to_disk(str(tmp_path / "t"))
    assert fleet(tmp_path / "t", clients=2).dataset.class_names == ("ill", "well")


def test_a_column_of_identifiers_is_refused_before_it_fills_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = own.table(tmp_path / "a.csv", [{"a": i, "patient": f"p{i}", "label": i % 2} for i in range(400)])
    assert fleet(path, clients=2).dataset.shape[0] > 200
    monkeypatch.setattr(table_inputs, "MAX_BYTES", 400_000)
    with pytest.raises(DataError, match=r"column 'patient' has 280 different strings, too many to encode .*; leave"):
        fleet(path, clients=2)
