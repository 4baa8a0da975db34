"""Files in the formats of the publishers are read exactly, and damaged ones are refused by name."""

import gzip
import struct
import zipfile
from pathlib import Path

import numpy as np
import official
import pytest
import sklearn.datasets
import torch

from sparsona.data import SOURCES, DataConfig, DataError, build, load
from sparsona.data.config import SOURCE_NAMES
from sparsona.data.readers import digits

MNIST_TRAIN = "mnist/train-images-idx3-ubyte.gz"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARSONA_DATA", raising=False)


def test_the_configuration_names_every_source() -> None:
    assert list(SOURCE_NAMES) == list(SOURCES)


def test_digits_are_embedded() -> None:
    digits = load("digits")
    assert digits.x.shape == (1797, 8, 8, 1)
    assert digits.x.dtype == torch.uint8
    assert (int(digits.x.min()), int(digits.x.max())) == (0, 255)
    assert (digits.train, len(digits.x_test), digits.classes, digits.shape) == (1797, 0, 10, (1, 8, 8))
    x = digits.prepare(digits.x)
    assert x.shape == (1797, 1, 8, 8)
    assert abs(float(x.mean())) < 1e-3
    assert abs(float(x.std()) - 1) < 1e-3


def test_digits_are_scikit_learns_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from its file, or through its function where the file is no more."""
    data, target = sklearn.datasets.load_digits(return_X_y=True)
    read = load("digits")
    assert read.x.flatten(1).tolist() == np.rint(data * 255 / 16).astype(int).tolist()
    assert read.y.tolist() == target.tolist()
    with monkeypatch.context() as without:
        without.delattr(sklearn.datasets, "load_digits")  # the function is not asked
        load("digits")
    monkeypatch.setattr(digits.importlib.util, "find_spec", lambda name: None)
    called = load("digits")
    assert torch.equal(called.x, read.x)
    assert torch.equal(called.y, read.y)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files_are_read_exactly(tmp_path: Path, name: str) -> None:
    data = official.mnist(tmp_path, name)
    read = load(name, tmp_path)
    for part in ("x_train", "x_test"):
        assert np.array_equal(getattr(read, part).numpy()[..., 0], data[part])
    for part in ("y_train", "y_test"):
        assert getattr(read, part).dtype == torch.int64
        assert np.array_equal(getattr(read, part).numpy(), data[part])
    assert (read.classes, read.shape, dict(read.keys)) == (10, (1, 28, 28), {})


def test_the_environment_names_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    official.mnist(tmp_path)
    monkeypatch.setenv("SPARSONA_DATA", str(tmp_path))
    assert len(load("mnist")) == 50


def test_unpacked_idx_files_will_do(tmp_path: Path) -> None:
    data = official.mnist(tmp_path)
    path = tmp_path / MNIST_TRAIN
    path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    path.unlink()
    assert np.array_equal(load("mnist", tmp_path).x_train.numpy()[..., 0], data["x_train"])


def test_writers_of_mnist(tmp_path: Path) -> None:
    official.mnist(tmp_path)
    official.writers(tmp_path)
    train, test = load("mnist", tmp_path).key("writer")
    assert train.tolist() == [i // 6 for i in range(30)]
    assert test.tolist() == [i // 5 + 5 for i in range(20)]
    np.savez(tmp_path / "mnist" / "writers.npz", train_writer=np.zeros(30, np.uint16))
    with pytest.raises(DataError, match=r"writers\.npz: array 'train_hsf' is missing"):
        load("mnist", tmp_path)


def test_writers_of_mnist_as_qmnist_publishes_them(tmp_path: Path) -> None:
    tables = official.qmnist(tmp_path, official.mnist(tmp_path))
    data = load("mnist", tmp_path)
    for key, column in (("hsf", 1), ("writer", 2)):
        train, test = data.key(key)
        assert train.tolist() == tables["train"][:, column].tolist()
        assert test.tolist() == tables["test"][:20, column].tolist()
    path = tmp_path / "mnist" / "qmnist-train-labels-idx2-int.gz"
    raw = gzip.decompress(path.read_bytes())
    path.unlink()
    path.with_suffix("").write_bytes(raw)  # unpacked
    assert set(load("mnist", tmp_path).keys) == {"hsf", "writer"}
    path.with_suffix("").write_bytes(raw[:12] + b"\0\0\0\5" + raw[16:])
    with pytest.raises(DataError, match="digit 0 is a 5, in MNIST a 0"):
        load("mnist", tmp_path)
    path.with_suffix("").write_bytes(raw[:-1])
    with pytest.raises(DataError, match="ends after 959 of 960 bytes"):
        load("mnist", tmp_path)
    path.with_suffix("").write_bytes(raw[:4] + b"\0\0\0\2" + raw[8 : 12 + 64])
    with pytest.raises(DataError, match="2 rows; expected 30 or more"):
        load("mnist", tmp_path)


def test_a_key_names_the_files_that_it_needs(tmp_path: Path) -> None:
    official.qmnist(tmp_path, official.mnist(tmp_path))
    config = DataConfig(source="mnist", partition="natural", key="writer", clients=3, min_samples=1)
    assert build(config, 0, tmp_path).clients == 3
    (tmp_path / "mnist" / "qmnist-test-labels-idx2-int.gz").unlink()
    with pytest.raises(ValueError, match=r'data\.key: "writer" needs qmnist-test-labels-idx2-int.gz .*github.com'):
        build(config, 0, tmp_path)


def test_emnist_is_turned_upright(tmp_path: Path) -> None:
    upright, y = official.pictures(52, 28, 28), official.labels(52, 26, first=1)
    for split in ("train", "test"):
        official.write_idx(tmp_path / "emnist", f"emnist-letters-{split}", upright.swapaxes(1, 2).copy(), y)
        official.write_idx(tmp_path / "emnist", f"emnist-byclass-{split}", upright, official.labels(52, 62))
    letters = load("emnist-letters", tmp_path)
    assert np.array_equal(letters.x_train.numpy()[..., 0], upright)
    assert np.array_equal(letters.y_test.numpy(), y - 1)
    assert (letters.classes, load("emnist-byclass", tmp_path).classes) == (26, 62)
    raw = tmp_path / "torchvision" / "EMNIST" / "raw"  # where torchvision unpacks them
    raw.mkdir(parents=True)
    for path in (tmp_path / "emnist").glob("*letters*.gz"):
        (raw / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    assert torch.equal(load("emnist-letters", raw.parents[1]).x, letters.x)
    official.write_idx(tmp_path / "emnist", "emnist-letters-test", upright, official.labels(52, 26))
    with pytest.raises(DataError, match=r"emnist-letters: label 0 of sample 52 is not allowed; expected \[1, 26\]"):
        load("emnist-letters", tmp_path)


def test_cifar_records_are_read_exactly(tmp_path: Path) -> None:
    x, y = official.cifar10(tmp_path)
    ten = load("cifar10", tmp_path)
    assert np.array_equal(ten.x.numpy(), x)
    assert np.array_equal(ten.y.numpy(), y)
    assert (ten.train, len(ten.x_test), ten.shape) == (20, 4, (3, 32, 32))
    x, coarse, fine = official.cifar100(tmp_path)
    hundred = load("cifar100", tmp_path)
    assert np.array_equal(hundred.x.numpy(), x)
    assert np.array_equal(hundred.y.numpy(), fine)
    assert np.array_equal(hundred.keys["superclass"], coarse)
    assert (hundred.classes, hundred.class_names[0], hundred.class_names[99]) == (100, "apple", "worm")
    assert sorted(hundred.class_names) == list(hundred.class_names)


@pytest.mark.parametrize("packed", [False, True])
def test_imdb_keeps_the_end_and_pads_in_front(tmp_path: Path, packed: bool) -> None:
    official.npz(tmp_path / "imdb" / "imdb_tokens.npz", official.imdb_arrays(), packed=packed)
    imdb = load("imdb", tmp_path, vocabulary=30, length=4)
    assert imdb.x_train.tolist() == [[1, 10, 20, 2], [0, 0, 1, 2], [6, 7, 8, 9]]
    assert imdb.x_test.tolist() == [[0, 0, 1, 4], [0, 0, 0, 1]]
    assert imdb.y.tolist() == [0, 1, 1, 1, 0]
    assert (imdb.shape, imdb.vocabulary, imdb.classes) == ((4,), 30, 2)
    assert imdb.keys["movie"].tolist() == [100, 200, 100, 300, 300]
    assert imdb.prepare(imdb.x) is imdb.x
    assert load("imdb", tmp_path).x_train[0, -4:].tolist() == [1, 10, 20, 30]


def test_ham10000_is_sorted_by_its_flag(tmp_path: Path) -> None:
    arrays = official.ham_arrays()
    official.npz(tmp_path / "ham10000-28" / "ham10000_28.npz", arrays)
    ham, test = load("ham10000", tmp_path), arrays["test"]
    assert np.array_equal(ham.x_train.numpy(), arrays["images"][~test])
    assert np.array_equal(ham.x_test.numpy(), arrays["images"][test])
    assert np.array_equal(ham.y_test.numpy(), arrays["label"][test])
    assert ham.key("site")[1].tolist() == arrays["site_names"][arrays["site"][test]].tolist()
    assert set(ham.keys) == {"site", "sex", "localization"}


# --- what is missing or damaged ---


@pytest.mark.parametrize("name", [name for name in SOURCES if name != "digits"])
def test_a_missing_file_is_named_with_its_publisher(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError) as error:
        load(name, tmp_path)
    assert SOURCES[name].url in str(error.value)
    assert str(tmp_path / SOURCES[name].folders[0]) in str(error.value)
    with pytest.raises(DataError, match="SPARSONA_DATA"):
        load(name)


def test_unknown_names_and_options() -> None:
    with pytest.raises(
        ValueError,
        match=r'data\.source: "minst" not found; did you mean "mnist"\?',
    ):
        load("minst")
    with pytest.raises(ValueError, match=r"data\.vocabulary: 2 is not allowed; expected an int >= 3"):
        load("digits", vocabulary=2)
    with pytest.raises(ValueError, match=r"data\.length: 0 is not allowed; expected an int >= 1"):
        load("digits", length=0)


@pytest.mark.parametrize("plain", [False, True])
def test_an_idx_file_cut_anywhere_is_refused(tmp_path: Path, plain: bool) -> None:
    official.mnist(tmp_path)
    for name in ("train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"):
        packed = tmp_path / "mnist" / name
        whole = packed.read_bytes()
        path = packed.with_suffix("") if plain else packed
        if plain:
            packed.unlink()
        content = gzip.decompress(whole) if plain else whole
        offsets = {0, 1, 3, 4, 7, 8, 12, 15, 16, 17, len(content) // 2, len(content) - 9, len(content) - 1}
        for offset in sorted(o for o in offsets if o < len(content)):
            path.write_bytes(content[:offset])
            with pytest.raises(DataError, match=name.removesuffix(".gz")):
                load("mnist", tmp_path)
        path.write_bytes(content)
        load("mnist", tmp_path)


def test_a_flipped_byte_of_a_gzip_file_is_refused(tmp_path: Path) -> None:
    official.mnist(tmp_path)
    path = tmp_path / MNIST_TRAIN
    whole = path.read_bytes()
    for offset in (0, 1, 2, 100, len(whole) // 2, len(whole) - 8, len(whole) - 4):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0xFF]) + whole[offset + 1 :])
        with pytest.raises(DataError, match="train-images"):
            load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (
            (0x801, 30, 28, 28),
            r"train-images-idx3-ubyte\.gz: starts with 0x00000801; " r"expected 0x00000803 of an idx file",
        ),
        (
            (0x03080000, 30, 28, 28),
            r"train-images-idx3-ubyte\.gz: starts with 0x03080000; " r"expected 0x00000803 of an idx file",
        ),
        ((0x803, 29, 28, 28), r"train-images-idx3-ubyte\.gz: 29 pictures; expected 30"),
        ((0x803, 31, 28, 28), r"train-images-idx3-ubyte\.gz: 31 pictures; expected 30"),
        ((0x803, 30, 28, 27), r"items of size \[28, 27\]"),
        ((0x803, 0, 28, 28), "claims 0 items"),
        ((0x803, 1_900_000, 28, 28), "claims 1,900,000 items"),
        ((0x803, 0xFFFFFFFF, 28, 28), "claims 4,294,967,295 items"),
    ],
)
def test_a_wrong_idx_header_is_refused(tmp_path: Path, header: tuple[int, ...], message: str) -> None:
    data = official.mnist(tmp_path)
    content = struct.pack(">4I", *header) + data["x_train"].tobytes()
    (tmp_path / MNIST_TRAIN).write_bytes(gzip.compress(content))
    with pytest.raises(DataError, match=message):
        load("mnist", tmp_path)


def test_an_idx_file_that_goes_on_is_refused(tmp_path: Path) -> None:
    data = official.mnist(tmp_path)
    path = tmp_path / MNIST_TRAIN
    path.write_bytes(gzip.compress(official.idx(data["x_train"]) + b"\0"))
    with pytest.raises(
        DataError, match=r"train-images-idx3-ubyte\.gz: is longer than the 23,520 bytes that its header " r"claims"
    ):
        load("mnist", tmp_path)
    path.write_bytes(gzip.compress(official.idx(data["x_train"])) + b"more")
    with pytest.raises(DataError, match="train-images"):
        load("mnist", tmp_path)


def test_labels_out_of_range_are_refused(tmp_path: Path) -> None:
    data = official.mnist(tmp_path)
    data["y_train"][7] = 10
    official.write_idx(tmp_path / "mnist", "train", data["x_train"], data["y_train"])
    with pytest.raises(DataError, match=r"mnist: label 10 of sample 7 is not allowed; expected \[0, 9\]"):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "write", "file", "record"),
    [
        ("cifar10", official.cifar10, "cifar-10-batches-bin/data_batch_3.bin", 3073),
        ("cifar10", official.cifar10, "cifar-10-batches-bin/test_batch.bin", 3073),
        ("cifar100", official.cifar100, "cifar-100-binary/train.bin", 3074),
        ("cifar100", official.cifar100, "cifar-100-binary/test.bin", 3074),
    ],
)
def test_damaged_cifar_is_refused(tmp_path: Path, name: str, write, file: str, record: int) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path)
    path = tmp_path / file
    whole = path.read_bytes()
    for size in (0, 1, record - 1, record, record + 1, 2 * record, len(whole) - record, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=path.name):
            load(name, tmp_path)
    for more in (b"\0", whole[:record]):
        path.write_bytes(whole + more)
        with pytest.raises(DataError, match=path.name):
            load(name, tmp_path)
    for at in range(record - 3072):
        path.write_bytes(whole[:at] + b"\xc8" + whole[at + 1 :])
        with pytest.raises(DataError, match="label 200"):
            load(name, tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_npz_is_refused(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / "imdb" / "imdb_tokens.npz"
    official.npz(path, official.imdb_arrays(), packed=packed)
    whole, good = path.read_bytes(), load("imdb", tmp_path, length=8)
    for size in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with pytest.raises(DataError, match=r"imdb_tokens\.npz"):
            load("imdb", tmp_path, length=8)
    refused = 0
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            read = load("imdb", tmp_path, length=8)
        except DataError as error:
            assert "imdb_tokens.npz" in str(error)  # noqa: PT017
            refused += 1
        else:  # a byte that says nothing about the arrays, such as a date
            assert torch.equal(read.x, good.x)
            assert torch.equal(read.y, good.y)
    assert refused > 50


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train_tokens": None}, r"imdb_tokens\.npz: array 'train_tokens' is missing"),
        ({"train_label": np.array([0, 1, 2], np.uint8)}, "label 2 of sample 2"),
        ({"train_label": np.array([0, 1], np.uint8)}, r"imdb_tokens\.npz: 3 train_rating; expected 2"),
        ({"train_movie": np.array([1, 2], np.uint32)}, r"imdb_tokens\.npz: 2 train_movie; expected 3"),
        (
            {"train_offsets": np.array([0, 4, 12], np.int64)},
            r"imdb_tokens\.npz: train_offsets are not valid; " r"expected 3 steps from 0 to 12",
        ),
        (
            {"train_offsets": np.array([0, 6, 4, 12], np.int64)},
            r"imdb_tokens\.npz: train_offsets are not valid; " r"expected 3 steps from 0 to 12",
        ),
        (
            {"train_offsets": np.array([0, 4, 6, 13], np.int64)},
            r"imdb_tokens\.npz: train_offsets are not valid; " r"expected 3 steps from 0 to 12",
        ),
        (
            {"train_offsets": np.array([-1, 4, 6, 12], np.int64)},
            r"imdb_tokens\.npz: train_offsets are not valid; " r"expected 3 steps from 0 to 12",
        ),
        ({"train_tokens": np.zeros(12, np.float32)}, "'train_tokens' is float32"),
        ({"train_tokens": np.zeros((12, 1), np.uint16)}, r"'train_tokens' is uint16 \(12, 1\)"),
        ({"train_tokens": np.array([1, "a"], object)}, "'train_tokens' is object"),
        ({"test_label": np.empty(0, np.uint8)}, "0 test reviews"),
    ],
)
def test_wrong_imdb_arrays_are_refused(tmp_path: Path, change: dict[str, np.ndarray | None], message: str) -> None:
    arrays = {name: array for name, array in (official.imdb_arrays() | change).items() if array is not None}
    official.npz(tmp_path / "imdb" / "imdb_tokens.npz", arrays)
    with pytest.raises(DataError, match=message):
        load("imdb", tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": official.pictures(9, 28, 28, 3)}, r"ham10000_28\.npz: 9 images; expected 10"),
        ({"images": official.pictures(10, 28, 28, 1)}, "uint8"),
        ({"images": np.zeros((10, 28, 28, 3), np.uint16)}, "uint16"),
        (
            {"images": official.pictures(10, 28, 28)},
            r"ham10000_28\.npz: array 'images' is uint8 \(10, 28, 28\); " r"expected 4 dimensions and a type of kind u",
        ),
        ({"label": official.labels(10, 3)}, "label 2 of sample"),
        ({"site": official.labels(10, 4)}, "site"),
        ({"test": np.zeros(10, bool)}, "leaves 10 of 10"),
        ({"test": np.ones(10, bool)}, "leaves 0 of 10"),
        ({"class_names": np.array(["a", None], object)}, "'class_names' is object"),
    ],
)
def test_wrong_ham_arrays_are_refused(tmp_path: Path, change: dict[str, np.ndarray], message: str) -> None:
    official.npz(tmp_path / "ham10000-28" / "ham10000_28.npz", official.ham_arrays() | change)
    with pytest.raises(DataError, match=message):
        load("ham10000", tmp_path)


def test_a_shape_that_lies_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "imdb" / "imdb_tokens.npz"
    official.npz(path, official.imdb_arrays())
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for shape in ("(999999999999999999,)", "(-12,)", "(13,)", "((((,", "(1e9,)", "'x'", "(True,)"):
        header = f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        lying = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + b"\0" * 24
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, lying if name == "train_tokens.npy" else content)
        with pytest.raises(DataError, match=r"imdb_tokens\.npz"):
            load("imdb", tmp_path)


def test_data_error_is_a_value_error() -> None:
    assert issubclass(DataError, ValueError)
    assert DataConfig().source == "digits"
