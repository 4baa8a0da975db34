"""A fleet: a data set, divided among clients, from a configuration and a seed alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from sparsona.core.rng import Rng
from sparsona.core.samples import Augment, LocalData, Samples
from sparsona.data import partition, split
from sparsona.data.partition import Part, Parts
from sparsona.data.sources import Dataset, load

SourceName = Literal[
    "digits", "mnist", "fashion-mnist", "emnist-letters", "emnist-byclass", "cifar10", "cifar100", "imdb", "ham10000"
]
PartitionName = Literal["iid", "dirichlet", "pathological", "shards", "lambda", "natural", "file"]
SplitName = Literal["ratio", "label_mix", "same"]
Purpose = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class DataConfig:
    """Which data, who holds what of it, and what each client is tested on."""

    source: SourceName = "digits"  # the data set
    clients: Annotated[int, Ge(1)] = 20  # how many it is divided among
    partition: PartitionName = "dirichlet"  # who holds what: by label, by a natural key, or as a file says
    alpha: Annotated[float, Interval(gt=0, le=1e6)] = 0.3  # dirichlet: smaller is more skewed
    balanced: bool = False  # dirichlet: equal sizes
    classes_per_client: Annotated[int, Ge(1)] = 2  # pathological: exactly so many classes each
    shards_per_client: Annotated[int, Ge(1)] = 2  # shards: pieces of the data sorted by label
    noniid: Annotated[float, Interval(ge=0, le=1)] = 1.0  # lambda: 0 is random, 1 is sorted by label
    key: str = ""  # natural: writer, site, movie, ...
    merge_keys: bool = False  # natural: all keys, several to a client, instead of a choice of them
    partition_file: str = ""  # file: its path
    min_samples: Annotated[int, Ge(1)] = 10  # dirichlet sees to it, natural leaves smaller keys out, others fail
    sample_share: Annotated[float, Interval(gt=0, le=1)] = 1.0  # divide a random share of the samples only
    samples_per_client: Annotated[int, Ge(1)] | None = None  # at most so many, a random choice
    split: SplitName = "ratio"  # cut what a client holds; or its label mix, or the same partition, of the test set
    pool: bool = False  # ratio: divide training and official test set together
    train_share: Annotated[float, Gt(0)] = 0.7  # relative to each other: 450, 50, 100 will do
    validation_share: Annotated[float, Ge(0)] = 0.1  # held back from training
    test_share: Annotated[float, Gt(0)] = 0.2  # ratio only
    test_samples: Annotated[int, Ge(1)] = 100  # label_mix
    test_overlap: bool = True  # label_mix: where a class runs out, two clients may be tested on one sample
    augment: Literal["none", "crop", "crop-flip"] = "none"  # pictures, in training: moved by up to 4 pixels; mirrored
    side: Annotated[int, Interval(ge=1, le=4096)] | None = None  # pictures: resized to so many pixels a side
    copies: tuple[Annotated[int, Ge(1)], ...] = ()  # how often each class's training samples count; empty: once
    vocabulary: Annotated[int, Interval(ge=3, le=1_000_000)] = 10_000  # text: so many of the most frequent words
    length: Annotated[int, Interval(ge=1, le=10_000)] = 256  # text: so many words of each, the last ones

    def __post_init__(self) -> None:
        if self.pool and self.split != "ratio":
            raise ValueError(f"pool = true leaves no test set for split {self.split!r}; use split 'ratio'")
        if self.partition == "natural" and not self.key:
            raise ValueError("partition 'natural' needs a key, such as 'writer', 'site' or 'movie'")
        if self.partition == "file" and not self.partition_file:
            raise ValueError("partition 'file' needs a partition_file")
        if self.partition == "file" and self.split == "same":
            raise ValueError(
                "split 'same' cannot divide the test set like a file; name test samples in the file instead"
            )
        if self.copies and (self.split == "ratio" or self.partition == "file"):
            raise ValueError(
                "copies: with split 'ratio' a copy might be tested on, and a partition file names each sample once; "
                "use split 'label_mix' or 'same', and another partition"
            )
        least = 2 if self.split == "ratio" else 1
        if self.samples_per_client is not None and self.samples_per_client < least:
            raise ValueError(
                f"samples_per_client {self.samples_per_client} must be at least {least} to cut off a test set"
            )


@dataclass(frozen=True, eq=False)
class Fleet:
    """The clients' samples, all of them numbers into the tensors of one data set."""

    dataset: Dataset
    config: DataConfig
    seed: int
    parts: tuple[Part, ...]
    names: tuple[str, ...]  # of the clients: the natural key, or a number

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.parts)

    @property
    def train_sizes(self) -> np.ndarray:
        """Number of training samples of each client."""
        return self.sizes("train")

    def sizes(self, purpose: Purpose) -> np.ndarray:
        """Number of samples of each client for a purpose."""
        return np.array([len(getattr(part, purpose)) for part in self.parts])

    def local(self, k: int) -> LocalData:
        """What client k may learn from."""
        part = self.parts[k]
        how = None if self.config.augment == "none" else Augment(flip=self.config.augment == "crop-flip")
        return LocalData(replace(self._samples(part.train), augment=how), self._samples(part.validation))

    def test(self, k: int) -> Samples:
        """What client k is tested on."""
        return self._samples(self.parts[k].test)

    def label_counts(self, purpose: Purpose = "train") -> np.ndarray:
        """How often each client has each label, [clients, classes]."""
        y = self.dataset.y.numpy()
        return np.stack([np.bincount(y[getattr(p, purpose)], minlength=self.dataset.classes) for p in self.parts])

    def save(self, path: Path) -> None:
        """Write who holds what to a file that partition 'file' reads; it names each sample once."""
        if self.config.copies:
            raise ValueError("copies: a partition file names each sample once; divide without copies to write one")
        partition.save_partition(path, self.parts, source=self.dataset.name, samples=len(self.dataset))

    def _samples(self, index: np.ndarray) -> Samples:
        numbers: Tensor = torch.from_numpy(index)
        return Samples(self.dataset.x, self.dataset.y, numbers, self.dataset.prepare)


def build(config: DataConfig, seed: int, root: Path | None = None) -> Fleet:
    """The fleet of a configuration and a seed, the same in any process."""
    dataset = load(config.source, root, vocabulary=config.vocabulary, length=config.length)
    return divide(dataset if config.side is None else resized(dataset, config.side), config, seed)


def resized(dataset: Dataset, side: int) -> Dataset:
    """The data set with square pictures of another size, interpolated linearly."""
    if not dataset.prepare.mean:
        raise ValueError(f"side {side} is for pictures, which {dataset.name} does not hold; leave it out")
    x = dataset.x.new_empty((len(dataset), side, side, dataset.x.shape[3]))
    for start in range(0, len(x), 1024):  # as floats they are four times as large
        pictures = dataset.x[start : start + 1024].permute(0, 3, 1, 2).float()
        larger = F.interpolate(pictures, (side, side), mode="bilinear", antialias=True)
        x[start : start + 1024] = larger.round_().clamp_(0, 255).permute(0, 2, 3, 1).to(torch.uint8)
    return replace(dataset, x=x, shape=(dataset.shape[0], side, side))


def divide(dataset: Dataset, config: DataConfig, seed: int) -> Fleet:
    """A loaded data set divided among clients."""
    rng = Rng(seed, "data")
    if config.split != "ratio" and dataset.train == len(dataset):
        raise ValueError(
            f"split {config.split!r} needs an official test set, which {dataset.name} has not; use 'ratio'"
        )
    if config.augment != "none" and not dataset.prepare.mean:
        raise ValueError(f"augment {config.augment!r} is for pictures, which {dataset.name} does not hold; use 'none'")
    names = tuple(str(k) for k in range(config.clients))
    held: Parts
    tests: Parts | None = None
    if config.partition == "file":
        parts = _from_file(dataset, config)
        if all(len(part.test) for part in parts):
            return Fleet(dataset, config, seed, tuple(parts), names)
        held = [part.train for part in parts]
    elif config.partition == "natural":
        held, tests, names = _natural(dataset, config, rng)
    else:
        held, tests = _by_label(dataset, config, rng)
    _check(held, _floor(config), "samples; choose fewer clients or a smaller min_samples", names)
    if config.samples_per_client is not None:
        cap = config.samples_per_client
        held = [np.sort(rng("cap", k).numpy().permutation(h)[:cap]) for k, h in enumerate(held)]
    if config.split == "ratio":
        shares = (config.train_share, config.validation_share, config.test_share)
        parts = [Part(*split.cut(h, shares, rng("cut", k), needed=(0, 2))) for k, h in enumerate(held)]
        return Fleet(dataset, config, seed, tuple(parts), names)
    if config.split == "label_mix":
        y, y_test = dataset.y.numpy(), dataset.y_test.numpy()
        mixes = np.stack([np.bincount(y[h], minlength=dataset.classes) for h in held])
        tests = split.label_mix(mixes, y_test, config.test_samples, rng("label_mix"), overlap=config.test_overlap)
    assert tests is not None
    _check(tests, 1, "test samples; use split 'ratio' or 'label_mix'", names)
    learn = [split.cut(h, (config.train_share, config.validation_share), rng("cut", k)) for k, h in enumerate(held)]
    parts = [Part(a, b, dataset.train + t) for (a, b), t in zip(learn, tests, strict=True)]
    return Fleet(dataset, config, seed, tuple(parts), names)


def _floor(config: DataConfig) -> int:
    """A client cut into train and test needs two samples."""
    return max(config.min_samples, 2 if config.split == "ratio" else 1)


def _check(parts: Parts, least: int, what: str, names: Sequence[str]) -> None:
    for name, part in zip(names, parts, strict=True):
        if len(part) < least:
            raise ValueError(f"client {name} would have {len(part)} of at least {least} {what}")


def _candidates(dataset: Dataset, config: DataConfig, rng: Rng) -> np.ndarray:
    """The numbers of the samples that are divided."""
    count = len(dataset) if config.pool else dataset.train
    chosen = np.arange(count)
    if config.sample_share < 1:
        chosen = np.sort(rng("share").numpy().permutation(count)[: max(1, round(config.sample_share * count))])
    if not config.copies:
        return chosen
    if len(config.copies) != dataset.classes:
        raise ValueError(
            f"copies: {len(config.copies)} numbers; {dataset.name} needs {dataset.classes}, "
            f"for {', '.join(dataset.class_names)}"
        )
    return np.repeat(chosen, np.array(config.copies)[dataset.y.numpy()[chosen]])


def _by_label(dataset: Dataset, config: DataConfig, rng: Rng) -> tuple[Parts, Parts | None]:
    chosen = _candidates(dataset, config, rng)
    labels = dataset.y.numpy()[chosen]
    test_labels = dataset.y_test.numpy() if config.split == "same" else None
    key, clients, classes = rng("partition"), config.clients, dataset.classes

    def assign(y: np.ndarray, floor: int) -> Parts:
        match config.partition:
            case "iid":
                return partition.iid(y, clients, key)
            case "dirichlet":
                form = {"balanced": config.balanced, "min_samples": floor, "classes": classes}
                return partition.dirichlet(y, clients, key, alpha=config.alpha, **form)  # type: ignore[arg-type]
            case "pathological":  # a small class has fewer holders, so the holders of the test set are not drawn anew
                counts = np.bincount(labels, minlength=classes)
                holders = partition.class_holders(counts, clients, key, config.classes_per_client)
                return partition.deal_classes(y, holders, clients, key)
            case "shards":
                return partition.shards(y, clients, key, shards_per_client=config.shards_per_client)
            case "lambda":
                return partition.lambda_mix(y, clients, key, noniid=config.noniid)
        raise ValueError(f"partition {config.partition!r} is unknown")

    held = [chosen[part] for part in assign(labels, _floor(config))]
    return held, None if test_labels is None else assign(test_labels, 1)


def _natural(dataset: Dataset, config: DataConfig, rng: Rng) -> tuple[Parts, Parts | None, tuple[str, ...]]:
    if config.key not in dataset.keys:
        known = ", ".join(dataset.keys) or "no keys at all"
        raise ValueError(f"key {config.key!r} is unknown: {dataset.name} has {known}")
    keys = dataset.keys[config.key]
    chosen = _candidates(dataset, config, rng)
    groups = partition.key_groups(
        keys[chosen], config.clients, rng("partition"), min_samples=_floor(config), merge=config.merge_keys
    )
    held = [chosen[part] for part in partition.deal_keys(keys[chosen], groups)]
    tests = partition.deal_keys(keys[dataset.train :], groups) if config.split == "same" else None
    names = tuple(f"{g[0]}" if len(g) == 1 else f"{g[0]} and {len(g) - 1} more" for g in groups)
    return held, tests, names


def _from_file(dataset: Dataset, config: DataConfig) -> list[Part]:
    parts = partition.read_partition(Path(config.partition_file), len(dataset), dataset.name)
    if len(parts) != config.clients:
        raise ValueError(
            f"clients is {config.clients:,}, but partition_file {config.partition_file} has {len(parts):,}"
        )
    for k, part in enumerate(parts):
        if not len(part.test) and not config.pool and part.train[-1] >= dataset.train:
            raise ValueError(
                f"partition_file {config.partition_file}: client {k} holds sample {part.train[-1]}, "
                f"but the training set ends at {dataset.train - 1:,}; set pool = true to divide the test set too"
            )
    return parts
