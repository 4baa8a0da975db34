"""Writers of tiny data sets in the formats of the publishers."""

import gzip
import json
import struct
from pathlib import Path

import numpy as np


def idx(array: np.ndarray) -> bytes:
    """An idx file of bytes."""
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, prefix: str, x: np.ndarray, y: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(x), mtime=0))
    (folder / f"{prefix}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(y), mtime=0))


def pictures(count: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *shape), np.uint8)


def labels(count: int, classes: int, first: int = 0) -> np.ndarray:
    return (np.arange(count) % classes + first).astype(np.uint8)


def mnist(root: Path, folder: str = "mnist") -> dict[str, np.ndarray]:
    data = {
        "x_train": pictures(30, 28, 28),
        "y_train": labels(30, 10),
        "x_test": pictures(20, 28, 28, seed=1),
        "y_test": labels(20, 10),
    }
    write_idx(root / folder, "train", data["x_train"], data["y_train"])
    write_idx(root / folder, "t10k", data["x_test"], data["y_test"])
    return data


def writers(root: Path) -> None:
    np.savez(
        root / "mnist" / "writers.npz",
        train_writer=(np.arange(30) // 6).astype(np.uint16),
        train_hsf=np.zeros(30, np.uint8),
        test_writer=(np.arange(20) // 5 + 5).astype(np.uint16),
        test_hsf=np.ones(20, np.uint8),
    )


def qmnist(root: Path, digits: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """QMNIST's labels of digits, of more test digits than MNIST has."""
    tables = {}
    for split, first in (("train", 0), ("test", 2100)):
        y = np.concatenate([digits[f"y_{split}"], labels(7 if split == "test" else 0, 10)])
        table = np.zeros((len(y), 8), ">i4")
        table[:, 0], table[:, 1], table[:, 2] = y, 4 * (split == "test"), first + np.arange(len(y)) // 6
        raw = struct.pack(">3I", 0xC02, *table.shape) + table.tobytes()
        (root / "mnist" / f"qmnist-{split}-labels-idx2-int.gz").write_bytes(gzip.compress(raw, mtime=0))
        tables[split] = table
    return tables


def cifar10(root: Path, each: int = 4) -> tuple[np.ndarray, np.ndarray]:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    x, y = pictures(6 * each, 32, 32, 3), labels(6 * each, 10)
    records = np.concatenate([y[:, None], x.transpose(0, 3, 1, 2).reshape(-1, 3072)], 1)
    for i, part in enumerate(np.split(records, 6)):
        (folder / ("test_batch.bin" if i == 5 else f"data_batch_{i + 1}.bin")).write_bytes(part.tobytes())
    return x, y


def cifar100(root: Path, test: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    folder = root / "cifar-100-binary"
    folder.mkdir(parents=True)
    x, coarse, fine = pictures(6 * test, 32, 32, 3), labels(6 * test, 20), labels(6 * test, 100)
    records = np.concatenate([coarse[:, None], fine[:, None], x.transpose(0, 3, 1, 2).reshape(-1, 3072)], 1)
    (folder / "train.bin").write_bytes(records[: 5 * test].tobytes())
    (folder / "test.bin").write_bytes(records[5 * test :].tobytes())
    return x, coarse, fine


def imdb_arrays() -> dict[str, np.ndarray]:
    return {
        "train_tokens": np.array([1, 10, 20, 30, 1, 99, 1, 5, 6, 7, 8, 9], np.uint16),
        "train_offsets": np.array([0, 4, 6, 12], np.int64),
        "train_label": np.array([0, 1, 1], np.uint8),
        "train_rating": np.array([2, 8, 9], np.uint8),
        "train_movie": np.array([100, 200, 100], np.uint32),
        "test_tokens": np.array([1, 4, 1], np.uint16),
        "test_offsets": np.array([0, 2, 3], np.int64),
        "test_label": np.array([1, 0], np.uint8),
        "test_rating": np.array([7, 1], np.uint8),
        "test_movie": np.array([300, 300], np.uint32),
    }


def ham_arrays() -> dict[str, np.ndarray]:
    return {
        "images": pictures(10, 28, 28, 3),
        "label": labels(10, 2),
        "test": np.arange(10) % 3 == 1,
        "site": labels(10, 3),
        "sex": labels(10, 2),
        "localization": labels(10, 4),
        "class_names": np.array(["mel", "nv"]),
        "site_names": np.array(["here", "there", "elsewhere"]),
        "sex_names": np.array(["female", "male"]),
        "localization_names": np.array(["back", "ear", "face", "hand"]),
    }


def npz(path: Path, arrays: dict[str, np.ndarray], *, packed: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    (np.savez_compressed if packed else np.savez)(path, **arrays)  # type: ignore[arg-type]


def leaf(path: Path, users: dict[str, tuple[list[object], list[object]]]) -> None:
    """A file of LEAF's: users with their inputs and targets."""
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(y) for _, y in users.values()]
    data = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
    path.write_text(json.dumps({"users": list(users), "num_samples": counts, "user_data": data}))


def femnist_users(names: str, each: int, seed: int = 0) -> dict[str, tuple[list[object], list[object]]]:
    """Writers with pictures of 28 x 28 grey levels from 0 to 1, as LEAF divides bytes by 255."""
    x = pictures(each * len(names), 784, seed=seed)
    rows = [(row / 255).tolist() for row in x]
    return {
        f"f{i:04}_{name}": (rows[i * each : (i + 1) * each], [(i + j) % 62 for j in range(each)])
        for i, name in enumerate(names)
    }


def shakespeare_users(lines: dict[str, str]) -> dict[str, tuple[list[object], list[object]]]:
    """Roles with each 80 characters of their text, and the character that follows."""
    return {role: ([text[i : i + 80] for i in range(len(text) - 80)], list(text[80:])) for role, text in lines.items()}
