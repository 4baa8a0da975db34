"""A fleet: a data set divided among clients, determined by a configuration and a seed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sparsona.core.rng import Rng
from sparsona.core.samples import Augment, LocalData, Samples
from sparsona.data import partition, split
from sparsona.data.config import DataConfig
from sparsona.data.dataset import CLIENT, DataError, Dataset
from sparsona.data.encoding import Encoding
from sparsona.data.partition import Part, Parts

Purpose = Literal["train", "validation", "test"]
_CLIENTS = 20  # where neither the recipe nor the data say how many


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
    def named(self) -> bool:
        """Whether the data name their clients."""
        own = self.config.partition == "natural" or not self.config.built_in
        return own and any(name != str(k) for k, name in enumerate(self.names))

    @property
    def lazy(self) -> bool:
        """Whether clients are read when they are needed, so that what all of them have is not known."""
        return False

    def held(self, k: int) -> tuple[Dataset, Part]:
        """The data set that has client k's samples, and which of them are for what."""
        return self.dataset, self.parts[k]

    @property
    def encoding(self) -> Encoding | None:
        """How inputs and classes became numbers; None for built-in data, and for arrays with classes 0, 1, ..."""
        return None if self.config.built_in else self.dataset.known

    @property
    def train_sizes(self) -> np.ndarray:
        """Number of training samples of each client."""
        return self.sizes("train")

    def sizes(self, purpose: Purpose) -> np.ndarray:
        """Number of samples of each client for a purpose."""
        return np.array([len(getattr(self.held(k)[1], purpose)) for k in range(self.clients)])

    def local(self, k: int) -> LocalData:
        """What client k may learn from."""
        dataset, part = self.held(k)
        augment = None if self.config.augment == "none" else Augment(flip=self.config.augment == "crop-flip")
        return LocalData(replace(_samples(dataset, part.train), augment=augment), _samples(dataset, part.validation))

    def test(self, k: int) -> Samples:
        """What client k is tested on."""
        dataset, part = self.held(k)
        return _samples(dataset, part.test)

    def label_counts(self, purpose: Purpose = "train", first: int | None = None) -> np.ndarray:
        """How often each client, or each of the ``first`` ones, has each label (or decile of numbers)."""
        count = len(self.dataset.stratum_names)
        held = (self.held(k) for k in range(self.clients if first is None else min(first, self.clients)))
        return np.stack([np.bincount(data.strata[getattr(p, purpose)], minlength=count) for data, p in held])

    def save(self, path: Path) -> None:
        """Write who holds what to a file that partition 'file' reads; it names each sample once."""
        if self.config.copies:
            raise ValueError(
                "data.copies: not allowed for a partition file, which lists each sample once; leave copies out"
            )
        if self.lazy:
            raise ValueError(
                f"{self.dataset.name}: cannot write a partition file for a source that is read client by client"
            )
        partition.save_partition(path, self.parts, source=self.dataset.name, samples=len(self.dataset))


def _samples(dataset: Dataset, index: np.ndarray) -> Samples:
    numbers: Tensor = torch.from_numpy(index)
    return Samples(dataset.x, dataset.y, numbers, dataset.prepare)


def resized(dataset: Dataset, side: int) -> Dataset:
    """The data set with square pictures of another size, interpolated linearly."""
    if not dataset.prepare.mean:
        raise ValueError(f"data.side: {side} is only for pictures, and {dataset.name} has none; leave it out")
    x = dataset.x.new_empty((len(dataset), side, side, dataset.x.shape[3]))
    for start in range(0, len(x), 1024):  # as floats they are four times as large
        pictures = dataset.x[start : start + 1024].permute(0, 3, 1, 2).float()
        larger = F.interpolate(pictures, (side, side), mode="bilinear", antialias=True)
        x[start : start + 1024] = larger.round_().clamp_(0, 255).permute(0, 2, 3, 1).to(torch.uint8)
    return replace(dataset, x=x, shape=(dataset.shape[0], side, side))


def divide(
    dataset: Dataset, config: DataConfig, seed: int, newcomers: Callable[[int], Collection[int]] | None = None
) -> Fleet:
    """A loaded data set divided among clients; what the configuration leaves open is as the data suggest.

    ``newcomers`` gives those of so many clients that are held out, so that nothing is learnt from them.
    """
    rng = Rng(seed, "data")
    config = _settled(dataset, config, rng)
    fleet = _divided(dataset, config, rng, seed)
    if dataset.encode is not None:
        new = frozenset() if newcomers is None else frozenset(newcomers(fleet.clients))
        members = [part.train for k, part in enumerate(fleet.parts) if k not in new]
        training = np.unique(np.concatenate(members))
        fleet = replace(fleet, dataset=dataset.encode(training))
    if not config.built_in:
        _check_labels(fleet)
    return fleet


def own_part(dataset: Dataset, config: DataConfig, rng: Rng, k: int) -> Part:
    """The samples of a data set that is all client k's, by purpose; a test set that it has stays what it is."""
    held, key = np.arange(dataset.train), rng("cut", k)
    if config.samples_per_client is not None:
        held = _capped(held, config.samples_per_client, rng("cap", k))
    if len(held) < 2:
        raise DataError(f"{dataset.name}: {len(held)} training samples are too few; expected at least 2")
    if dataset.train == len(dataset):
        shares = (config.train_share, config.validation_share, config.test_share)
        return Part(*split.cut(held, shares, key, needed=(0, 2)))
    train, validation = split.cut(held, (config.train_share, config.validation_share), key)
    return Part(train, validation, np.arange(dataset.train, len(dataset)))


def _settled(dataset: Dataset, config: DataConfig, rng: Rng) -> DataConfig:
    """The configuration with what it leaves open, as the data suggest: their own clients and test set, if any."""
    if config.built_in:
        return config
    own = CLIENT in dataset.keys
    name = config.partition or ("natural" if own else "dirichlet")
    key = config.key or (CLIENT if name == "natural" else "")
    if name == "natural" and key not in dataset.keys:
        raise ValueError(
            f'data.partition: "natural" needs clients, and {dataset.name} has none; add a column or array "client", '
            'or set data.partition to "dirichlet" or "iid"'
        )
    tested = dataset.train < len(dataset)
    cut = config.split
    if cut is None:
        shared = name == "natural" and not np.isin(*dataset.key(key)).any()
        cut = "ratio" if not tested or config.pool or name == "file" else "label_mix" if shared else "same"
    config = replace(config, partition=name, key=key, split=cut)
    if config.clients is None:
        config = replace(config, clients=_count(dataset, config, rng))
    return config


def _count(dataset: Dataset, config: DataConfig, rng: Rng) -> int:
    """How many clients there are where the configuration does not say: all that the data or a file name."""
    if config.partition == "file":
        return len(partition.read_partition(Path(config.partition_file), len(dataset), dataset.name))
    if config.partition != "natural" or config.merge_keys:
        return _CLIENTS
    names, counts = np.unique(dataset.keys[config.key][_candidates(dataset, config, rng)], return_counts=True)
    small = names[counts < _floor(config)]
    if len(small) == len(names):
        raise ValueError(
            f"data.min_samples: no client of {dataset.name} has {_floor(config)} samples; set a smaller number"
        )
    if len(small):
        warnings.warn(
            f"{len(small):,} of {len(names):,} clients have fewer than data.min_samples = {_floor(config)} samples and "
            f"are left out: {', '.join(map(str, small[:5]))}{', ...' if len(small) > 5 else ''}",
            stacklevel=2,
        )
    return len(names) - len(small)


def _check_labels(fleet: Fleet) -> None:
    """Refuse a class that is tested, and that nobody trains on."""
    dataset = fleet.dataset
    if dataset.target != "class":
        return
    trained = fleet.label_counts("train").sum(0) > 0
    for k, part in enumerate(fleet.parts):
        strange = ~trained[dataset.strata[part.test]]
        if strange.any():
            at = int(part.test[strange.argmax()])
            where = f"sample {at}" if at < dataset.train else f"test sample {at - dataset.train}"
            raise DataError(
                f"{dataset.name}: {where} of client {fleet.names[k]} has label "
                f"{dataset.class_names[dataset.strata[at]]}, which no training sample has; "
                "remove or merge rare labels, "
                "or choose another data.seed"
            )


def _divided(dataset: Dataset, config: DataConfig, rng: Rng, seed: int) -> Fleet:
    if config.split != "ratio" and dataset.train == len(dataset):
        raise ValueError(
            f'data.split: "{config.split}" needs an official test set, and {dataset.name} has none; expected "ratio"'
        )
    if config.augment != "none" and not dataset.prepare.mean:
        raise ValueError(
            f'data.augment: "{config.augment}" is only for pictures, and {dataset.name} has none; expected "none"'
        )
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
    _check(held, _floor(config), ("samples", "choose fewer clients or a smaller data.min_samples"), names)
    if config.samples_per_client is not None:
        cap = config.samples_per_client
        held = [_capped(h, cap, rng("cap", k)) for k, h in enumerate(held)]
    if config.split == "ratio":
        shares = (config.train_share, config.validation_share, config.test_share)
        parts = [Part(*split.cut(h, shares, rng("cut", k), needed=(0, 2))) for k, h in enumerate(held)]
        return Fleet(dataset, config, seed, tuple(parts), names)
    if config.split == "label_mix":
        strata, count = dataset.strata, len(dataset.stratum_names)
        mixes = np.stack([np.bincount(strata[h], minlength=count) for h in held])
        wanted, key = config.test_samples, rng("label_mix")
        tests = split.label_mix(mixes, strata[dataset.train :], wanted, key, overlap=config.test_overlap)
    assert tests is not None
    _check(tests, 1, ("test samples", 'set data.split to "ratio" or "label_mix"'), names)
    learn = [split.cut(h, (config.train_share, config.validation_share), rng("cut", k)) for k, h in enumerate(held)]
    parts = [Part(a, b, dataset.train + t) for (a, b), t in zip(learn, tests, strict=True)]
    return Fleet(dataset, config, seed, tuple(parts), names)


def _capped(held: np.ndarray, cap: int, rng: Rng) -> np.ndarray:
    """A random choice of at most ``cap`` samples, in their order."""
    return np.sort(rng.numpy().permutation(held)[:cap])


def _floor(config: DataConfig) -> int:
    """A client cut into train and test needs two samples."""
    return max(config.min_samples, 2 if config.split == "ratio" else 1)


def _check(parts: Parts, least: int, what: tuple[str, str], names: Sequence[str]) -> None:
    for name, part in zip(names, parts, strict=True):
        if len(part) < least:
            raise ValueError(
                f"data.clients: client {name} would have {len(part)} {what[0]}; expected at least {least}; {what[1]}"
            )


def _candidates(dataset: Dataset, config: DataConfig, rng: Rng) -> np.ndarray:
    """The numbers of the samples that are divided."""
    count = len(dataset) if config.pool else dataset.train
    chosen = np.arange(count)
    if config.sample_share < 1:
        chosen = np.sort(rng("share").numpy().permutation(count)[: max(1, round(config.sample_share * count))])
    if not config.copies:
        return chosen
    if len(config.copies) != len(dataset.stratum_names):
        raise ValueError(
            f"data.copies: a list of {len(config.copies)} is not allowed; expected {len(dataset.stratum_names)} ints, "
            f"for {', '.join(dataset.stratum_names)} of {dataset.name}"
        )
    return np.repeat(chosen, np.array(config.copies)[dataset.strata[chosen]])


def _by_label(dataset: Dataset, config: DataConfig, rng: Rng) -> tuple[Parts, Parts | None]:
    chosen = _candidates(dataset, config, rng)
    labels = dataset.strata[chosen]
    test_labels = dataset.strata[dataset.train :] if config.split == "same" else None
    key, clients, classes = rng("partition"), config.clients, len(dataset.stratum_names)

    def assign(y: np.ndarray, floor: int) -> Parts:
        match config.partition:
            case "iid":
                return partition.iid(y, clients, key)
            case "dirichlet":
                form = {"balanced": config.balanced, "min_samples": floor, "classes": classes}
                return partition.dirichlet(y, clients, key, alpha=config.alpha, **form)  # type: ignore[arg-type]
            case "pathological":  # a small class has fewer holders, so the holders of the test set are not drawn again
                counts = np.bincount(labels, minlength=classes)
                holders = partition.class_holders(counts, clients, key, config.classes_per_client)
                return partition.deal_classes(y, holders, clients, key)
            case "shards":
                return partition.shards(y, clients, key, shards_per_client=config.shards_per_client)
            case "lambda":
                return partition.lambda_mix(y, clients, key, noniid=config.noniid)
        raise ValueError(f'data.partition: "{config.partition}" not found')

    held = [chosen[part] for part in assign(labels, _floor(config))]
    return held, None if test_labels is None else assign(test_labels, 1)


def _natural(dataset: Dataset, config: DataConfig, rng: Rng) -> tuple[Parts, Parts | None, tuple[str, ...]]:
    if config.key not in dataset.keys:
        if config.key in dataset.missing_keys:
            raise ValueError(f'data.key: "{config.key}" {dataset.missing_keys[config.key]}')
        known = ", ".join(dataset.keys) or "none"
        raise ValueError(f'data.key: "{config.key}" not found in {dataset.name}; allowed: {known}')
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
            f"data.clients: {config.clients:,} is not allowed; expected {len(parts):,}, as in {config.partition_file}"
        )
    for k, part in enumerate(parts):
        if not len(part.test) and not config.pool and part.train[-1] >= dataset.train:
            raise ValueError(
                f"{config.partition_file}: client {k} holds sample {part.train[-1]}, "
                f"but the training set ends at {dataset.train - 1:,}; set data.pool = true to divide the test set too"
            )
    return parts
