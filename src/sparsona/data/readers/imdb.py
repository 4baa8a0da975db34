"""IMDB reviews: token ids in an npz file."""

from __future__ import annotations

import numpy as np
import torch

from sparsona.core.samples import Prepare
from sparsona.data.dataset import DataError, Dataset
from sparsona.data.files import Files, TextOptions
from sparsona.data.readers.checks import CHUNK, MAX_SAMPLES, checked_labels
from sparsona.data.readers.npz import read_npz


def read_imdb(files: Files, options: TextOptions) -> Dataset:
    """All reviews, each cut to the last words or padded in front; movies and ratings are natural keys."""
    path = files.find("imdb_tokens.npz")
    forms = {"tokens": "u", "offsets": "iu", "label": "u", "rating": "u", "movie": "u"}
    arrays = read_npz(path, {f"{s}_{name}": (kinds, 1) for s in ("train", "test") for name, kinds in forms.items()})
    counts = [len(arrays[f"{s}_label"]) for s in ("train", "test")]
    if min(counts) < 1 or sum(counts) > MAX_SAMPLES:
        raise DataError(f"{path}: {counts[0]:,} training and {counts[1]:,} test reviews are not those of IMDB")
    x = np.zeros((sum(counts), options.length), np.int32)
    start = 0
    for split, count in zip(("train", "test"), counts, strict=True):
        for name in ("rating", "movie"):
            if len(arrays[f"{split}_{name}"]) != count:
                raise DataError(
                    f"{path}: {len(arrays[f'{split}_{name}']):,} {split}_{name}; expected {count:,}, one per label"
                )
        tokens, offsets = arrays[f"{split}_tokens"], arrays[f"{split}_offsets"].astype(np.int64)
        if len(offsets) != count + 1 or offsets[0] != 0 or offsets[-1] != len(tokens) or (np.diff(offsets) < 0).any():
            raise DataError(
                f"{path}: {split}_offsets are not valid; expected {count:,} steps from 0 to {len(tokens):,}"
            )
        _pad(tokens, offsets, options, x[start : start + count])
        start += count
    y = np.concatenate([arrays["train_label"], arrays["test_label"]])
    keys = {
        k: np.concatenate([arrays[f"{s}_{k}"] for s in ("train", "test")]).astype(np.int64) for k in ("movie", "rating")
    }
    labels = checked_labels(y, 2, str(path))
    names, shape = ("negative", "positive"), (options.length,)
    return Dataset(
        files.name, torch.from_numpy(x), labels, counts[0], names, shape, Prepare(), keys, options.vocabulary
    )


def _pad(tokens: np.ndarray, offsets: np.ndarray, options: TextOptions, out: np.ndarray) -> None:
    """The last tokens of each review, at the right end of a row of zeros."""
    back = np.arange(-options.length, 0)
    for start in range(0, len(out), CHUNK):
        rows = out[start : start + CHUNK]
        first, last = offsets[start : start + len(rows), None], offsets[start + 1 : start + len(rows) + 1, None]
        places = last + back
        held = places >= first
        words = tokens[places[held]].astype(np.int32)
        rows[held] = np.where(words < options.vocabulary, words, 2)
