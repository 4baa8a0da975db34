"""HAM10000: small pictures of skin lesions in an npz file."""

from __future__ import annotations

import numpy as np
import torch

from sparsona.core.samples import Prepare
from sparsona.data.dataset import DataError, Dataset
from sparsona.data.files import Files, TextOptions
from sparsona.data.readers.checks import checked_labels
from sparsona.data.readers.npz import read_npz

_MAX_SIDE = 512


def read_ham10000(files: Files, _: TextOptions) -> Dataset:
    """All pictures, training samples first by the flag ``test``; site, sex and localization are natural keys."""
    path = files.find("ham10000_28.npz")
    keys = ("site", "sex", "localization")
    forms = {"images": ("u", 4), "label": ("u", 1), "test": ("b", 1), "class_names": ("U", 1)}
    arrays = read_npz(path, forms | dict.fromkeys(keys, ("u", 1)) | {f"{k}_names": ("U", 1) for k in keys})
    images, count = arrays["images"], len(arrays["label"])
    _, height, width, channels = images.shape
    if images.dtype != np.uint8 or channels != 3 or not (0 < height <= _MAX_SIDE and 0 < width <= _MAX_SIDE):
        raise DataError(f"{path}: images are {images.dtype} {images.shape}; expected uint8 [n, height, width, 3]")
    for name in ("images", "test", *keys):
        if len(arrays[name]) != count:
            raise DataError(f"{path}: {len(arrays[name]):,} {name}; expected {count:,}, one per label")
    train = int((~arrays["test"]).sum())
    if not 0 < train < count:
        raise DataError(f"{path}: the flag test leaves {train:,} of {count:,} samples to train on")
    order = np.argsort(arrays["test"], kind="stable")
    named = {}
    for key in keys:
        codes, names = arrays[key], arrays[f"{key}_names"]
        checked_labels(codes, len(names), f"{path} ({key})")
        named[key] = names[codes[order]]
    class_names = tuple(str(name) for name in arrays["class_names"])
    y = checked_labels(arrays["label"][order], len(class_names), str(path))
    prepare = Prepare((0.7640, 0.5460, 0.5704), (0.1387, 0.1498, 0.1665))
    x = torch.from_numpy(images[order])
    return Dataset(files.name, x, y, train, class_names, (3, height, width), prepare, named)
