"""Text files: models of characters, each of which predicts the next; a client per speaker, or per file of a folder."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from sparsona.core.samples import Prepare
from sparsona.data.config import DataConfig
from sparsona.data.dataset import CLIENT, DataError, Dataset
from sparsona.data.encoding import Encoding
from sparsona.data.readers.encoding_file import encoding_of

LENGTH = 80  # characters of a sample, as in LEAF's Shakespeare
_SPEAKER = re.compile(r"([^\W\d_][^:\n]{0,39}):[ \t]*")
_IGNORED = -100


def read_text(path: Path, config: DataConfig) -> Dataset:
    """Characters of a file or of a folder's files as token ids from 1, and after each its successor; 0 is padding.

    A client's text is cut into samples of ``length`` characters that do not overlap; a client with fewer than 2
    characters has none, and is left out with a warning. The vocabulary is that of all
    texts, in the order of Unicode.
    """
    length = LENGTH if config.length is None else config.length
    parts = _parts(path)
    if config.target not in (None, "tokens"):
        raise DataError(f'{path}: data.target: "{config.target}" is not allowed for a text file; expected "tokens"')
    alphabet = _alphabet(path, [text for part in parts for text in part.values()], config)
    ids = {character: i for i, character in enumerate(alphabet, start=1)}
    vocabulary = len(alphabet) + 1 if config.vocabulary is None else config.vocabulary
    if len(alphabet) >= vocabulary:
        raise DataError(f"{path}: {len(alphabet)} different characters; expected data.vocabulary > {len(alphabet)}")
    x, y, names = zip(*(_samples(path, part, ids, length) for part in parts), strict=True)
    train = len(x[0])
    keys = {}
    if len(np.unique(names[0])) > 1:
        keys[CLIENT] = np.concatenate(names)
        if (strange := ~np.isin(keys[CLIENT], names[0])).any():
            raise DataError(f"{path}: test/{keys[CLIENT][strange.argmax()]}.txt is of a client without a text in train")
    tensors = torch.from_numpy(np.concatenate(x).astype(np.int32)), torch.from_numpy(np.concatenate(y))
    encoding = Encoding(alphabet="".join(alphabet))
    return Dataset(
        *(str(path), *tensors, train, (), (length,), Prepare(), keys, vocabulary, "tokens"), encoding=encoding
    )


def is_texts(folder: Path) -> bool:
    """Whether a folder holds texts, at its top or below train."""
    return any(folder.glob("*.txt")) or any(folder.glob("train/*.txt"))


def _parts(path: Path) -> list[Mapping[str, str]]:
    """The texts of each client for training, and for tests where a folder has them apart."""
    if not path.is_dir():
        return [_by_speaker(_read(path))]
    if any(path.glob("*.txt")):
        return [_by_file(path)]
    parts = [_by_file(path / name) for name in ("train", "test")]
    if not parts[1]:
        raise DataError(f"{path}: folder 'test' has no texts, and 'train' has; expected texts in both or in neither")
    return parts


def _samples(
    path: Path, texts: Mapping[str, str], ids: Mapping[str, int], length: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The samples of all clients and whose they are; a client with too little text is left out."""
    pairs = {name: _cut(np.array([ids[c] for c in text], np.int64), length) for name, text in texts.items()}
    short = [name for name, (x, _) in pairs.items() if not len(x)]
    if len(short) == len(pairs):
        raise DataError(f"{path}: the text is too short; expected at least 2 characters")
    if short:
        warnings.warn(f"{path}: {short[0]} has fewer than 2 characters of text ({len(short)} left out)", stacklevel=2)
    pairs = {name: pair for name, pair in pairs.items() if len(pair[0])}
    names = np.repeat(np.array(list(pairs)), [len(x) for x, _ in pairs.values()])
    return np.concatenate([x for x, _ in pairs.values()]), np.concatenate([y for _, y in pairs.values()]), names


def _alphabet(path: Path, texts: Sequence[str], config: DataConfig) -> list[str]:
    """The characters of an encoding file, which must know all of the text's; else those of the text."""
    used = sorted(set("".join(texts)))
    encoding = encoding_of(config)
    if encoding is None:
        return used
    if not encoding.alphabet:
        raise DataError(f"{config.encoding}: has no alphabet, which a text such as {path} needs")
    if strange := [character for character in used if character not in encoding.alphabet]:
        raise DataError(
            f"{path}: has the character {strange[0]!r}, which is not in the alphabet of {config.encoding}; drop it, or "
            "add it to the file of every node before a run begins"
        )
    return list(encoding.alphabet)


def _cut(ids: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of a text, and their next characters; the last piece is padded, and what it predicts there is ignored."""
    count = -(-max(len(ids) - 1, 0) // length)
    x = np.zeros(count * length, np.int64)
    y = np.full(count * length, _IGNORED, np.int64)
    used = min(len(ids) - 1, count * length) if count else 0
    x[:used], y[:used] = ids[:used], ids[1 : used + 1]
    return x.reshape(count, length), y.reshape(count, length)


def _by_speaker(text: str) -> Mapping[str, str]:
    """What each speaker says, of a text whose paragraphs begin with a line "NAME:"; else the whole text."""
    paragraphs = re.split(r"\n[ \t]*\n", text.strip("\n"))
    speeches: dict[str, list[str]] = {}
    for paragraph in paragraphs:
        head, _, rest = paragraph.strip("\n").partition("\n")
        name = _SPEAKER.fullmatch(head)
        if name is not None and rest:
            speeches.setdefault(name[1].strip(), []).append(rest)
    heads = sum(map(len, speeches.values()))
    # in a play nearly all paragraphs have a speaker; what has none, such as a stage direction, is left out
    return {name: "\n".join(each) for name, each in speeches.items()} if 2 * heads > len(paragraphs) else {"": text}


def _by_file(folder: Path) -> Mapping[str, str]:
    return {file.stem: _read(file) for file in sorted(folder.glob("*.txt"))}


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from error
    if not text.strip():
        raise DataError(f"{path}: the file is empty; expected text")
    return text
