"""FEMNIST and Shakespeare in LEAF's JSON: users with their samples, in files of train/ and test/ or of one folder.

Caldas et al., LEAF: A benchmark for federated settings, arXiv:1812.01097.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from sparsona.core.samples import Prepare
from sparsona.data.dataset import DataError, Dataset
from sparsona.data.files import Files, TextOptions
from sparsona.data.readers.checks import MAX_SAMPLES
from sparsona.data.readers.idx import BYCLASS
from sparsona.data.readers.json_stream import JsonStream

ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"  # LEAF's own
VOCABULARY = len(ALPHABET) + 2  # 0 is padding, the last any other character
LENGTH = 80  # characters of a sample
_SIDE = 28
_IGNORED = -100
_IDS = np.full(128, VOCABULARY - 1, np.int32)  # token id of each ASCII character
_IDS[[ord(character) for character in ALPHABET]] = np.arange(1, len(ALPHABET) + 1)

InputOf = Callable[[Any, str], np.ndarray]  # from a value of the file, and what errors name
TargetOf = Callable[[Any, str], int]


class User(NamedTuple):
    """A user of a file, whose samples may be none."""

    name: str
    x: list[np.ndarray]
    y: list[int]


def read_femnist(files: Files, _: TextOptions) -> Dataset:
    """Characters on white paper, as LEAF stores them; the writers are a natural key."""
    names, x, y, train = _read(files, _picture, _class)
    prepare = Prepare((0.9637,), (0.1592,))
    tensors = torch.from_numpy(x.reshape(-1, _SIDE, _SIDE, 1)), torch.from_numpy(y)
    return Dataset(files.name, *tensors, train, BYCLASS, (1, _SIDE, _SIDE), prepare, {"writer": names})


def read_shakespeare(files: Files, options: TextOptions) -> Dataset:
    """The last ``length`` of 80 characters, and the one that follows them; the roles are a natural key.

    Of the next tokens only the last is a target, because LEAF's samples overlap: each character follows in one of them.
    """
    length = options.length
    if length > LENGTH:
        raise DataError(f"data.length: {length} is not allowed; expected an int <= {LENGTH} with {files.name}")
    if options.vocabulary < VOCABULARY:
        raise DataError(
            f"data.vocabulary: {options.vocabulary} is not allowed; expected an int >= {VOCABULARY} with {files.name}"
        )
    names, x, last, train = _read(files, lambda value, where: _tokens(value, LENGTH, where)[-length:], _next_token)
    y = np.full((len(last), length), _IGNORED, np.int64)
    y[:, -1] = last
    tensors = torch.from_numpy(x), torch.from_numpy(y)
    keys = {"role": names}
    return Dataset(*(files.name, *tensors, train, (), (length,), Prepare(), keys, options.vocabulary), target="tokens")


def users(path: Path, input_of: InputOf, target_of: TargetOf) -> Iterator[User]:
    """The users of a file one by one; at its end, what it says of their numbers must be true."""
    head: dict[str, Any] = {}
    counts: dict[str, int] = {}
    with path.open(encoding="utf-8") as file:
        stream = JsonStream(file, str(path))
        for key in stream.members():
            if key != "user_data":
                head[key] = stream.value()
                continue
            for name in stream.members():
                where = stream.where = f"{path}: user {name!r}"
                if name in counts:
                    raise DataError(f"{where} occurs twice; expected each user once")
                if not name or not name.isprintable():
                    raise DataError(f"{where} is not allowed; expected a name of printable characters")
                user = User(name, *_samples(stream, where, input_of, target_of))
                counts[name] = len(user.y)
                yield user
                stream.where = str(path)
        stream.end()
    _check(path, head, counts)


def _samples(
    stream: JsonStream, where: str, input_of: InputOf, target_of: TargetOf
) -> tuple[list[np.ndarray], list[int]]:
    """The inputs and targets of the user that a stream has come to."""
    x: list[np.ndarray] | None = None
    y: list[int] | None = None
    for key in stream.members():
        if (key == "x" and x is not None) or (key == "y" and y is not None):
            raise DataError(f"{where} has {key} twice; expected x and y once each")
        if key == "x":
            x = [input_of(value, f"{where}, x[{i}]") for i, value in enumerate(stream.items())]
        elif key == "y":
            y = [target_of(value, f"{where}, y[{i}]") for i, value in enumerate(stream.items())]
        else:
            stream.value()
    if x is None or y is None:
        raise DataError(f"{where} has no {'x' if x is None else 'y'}; expected x and y")
    if len(x) != len(y):
        raise DataError(f"{where} has {len(x):,} inputs and {len(y):,} targets; expected as many")
    return x, y


def _check(path: Path, head: dict[str, Any], counts: dict[str, int]) -> None:
    """What a file says of its users: their names, and how many samples each has."""
    named, numbers = head.get("users"), head.get("num_samples")
    if not isinstance(named, list) or not isinstance(numbers, list) or len(named) != len(numbers):
        raise DataError(f"{path}: expected the lists users and num_samples, of the same length")
    for name, number in zip(named, numbers, strict=True):
        if not isinstance(name, str) or name not in counts:
            raise DataError(f"{path}: user {name!r} of users is not in user_data; expected all of them")
        if counts[name] != number:
            raise DataError(f"{path}: user {name!r} has {counts[name]:,} samples; expected {number!r} by num_samples")
    if strange := counts.keys() - (listed := set(named)):
        raise DataError(f"{path}: user {min(strange)!r} of user_data is not in users; expected all of them")
    if len(listed) < len(named):
        raise DataError(f"{path}: a user occurs twice in users; expected each once")


def _read(files: Files, input_of: InputOf, target_of: TargetOf) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """The writer or role of each sample, all inputs and targets, and how many samples are for training."""
    parts = [_part(paths, input_of, target_of) for paths in _parts(files)]
    train = sum(len(user.y) for user in parts[0])
    held = [user for part in parts for user in part]
    names = np.repeat(np.array([user.name for user in held], object), [len(user.y) for user in held])
    x = np.empty((len(names), *held[0].x[0].shape), held[0].x[0].dtype)
    y = np.empty(len(names), np.int64)
    start = len(names)
    del parts
    while held:  # from the last on, and each is freed when it is copied: samples are held once
        user = held.pop()
        start -= len(user.y)
        for at, (one, target) in enumerate(zip(user.x, user.y, strict=True), start):
            x[at], y[at] = one, target
    return names, x, y, train


def _part(paths: list[Path], input_of: InputOf, target_of: TargetOf) -> list[User]:
    """All users with samples in files that together are the training or the test set."""
    owners: dict[str, User] = {}
    count = 0
    for path in paths:
        for user in users(path, input_of, target_of):
            if user.name in owners:
                raise DataError(f"{path}: user {user.name!r} is in another file too; expected each user once")
            owners[user.name] = user
            count += len(user.y)
            if count > MAX_SAMPLES:
                raise DataError(
                    f"{path}: user {user.name!r} ends after {count:,} samples; expected at most {MAX_SAMPLES:,}: "
                    "choose fewer with LEAF's --sf"
                )
    if not count:
        raise DataError(f"{paths[0].parent}: no user has samples")
    return [user for user in owners.values() if user.y]


def _parts(files: Files) -> list[list[Path]]:
    """The files of training and test, or those of one folder with all samples."""
    parts = [files.listed(name, "*.json") for name in ("train", "test")]
    if all(parts):
        return parts
    for name, part in zip(("train", "test"), parts, strict=True):
        if part:
            other = "test" if name == "train" else "train"
            raise DataError(f"{part[0].parent}: has files, and {other} beside it has none; expected both")
    everything = files.listed(".", "all_data*.json") or files.listed("all_data", "*.json")
    if not everything:
        raise files.missing("train/*.json, test/*.json or all_data_*.json")
    return [everything]


def _picture(value: Any, where: str) -> np.ndarray:
    """Grey levels from 0 to 1 as bytes [784]."""
    try:
        row = np.asarray(value)
    except (ValueError, OverflowError):  # lists of different lengths
        row = np.empty(0, object)
    if row.shape != (_SIDE**2,) or row.dtype.kind not in "iuf":
        raise DataError(f"{where} is not allowed; expected a list of {_SIDE**2} numbers")
    if not ((row >= 0) & (row <= 1)).all():
        raise DataError(f"{where} has numbers outside [0, 1]; expected grey levels")
    return np.rint(row * 255).astype(np.uint8)


def _class(value: Any, where: str) -> int:
    """A class of the digits, the capital and the small letters."""
    if type(value) is not int or not 0 <= value < len(BYCLASS):
        raise DataError(f"{where} is {value!r:.40}; expected an int in [0, {len(BYCLASS) - 1}]")
    return value


def _tokens(value: Any, length: int, where: str) -> np.ndarray:
    """The token ids of a text of this length."""
    if not isinstance(value, str) or len(value) != length:
        what = f"a text of length {len(value)}" if isinstance(value, str) else f"{value!r:.40}"
        raise DataError(f"{where} is {what}; expected a text of length {length}")
    codes = np.frombuffer(value.encode("utf-32-le", "surrogatepass"), "<u4")
    return np.where(codes < len(_IDS), _IDS[np.minimum(codes, len(_IDS) - 1)], VOCABULARY - 1).astype(np.int32)


def _next_token(value: Any, where: str) -> int:
    """The token id of one character."""
    return int(_tokens(value, 1, where)[0])
