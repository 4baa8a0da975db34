"""Fleets: deterministic, disjoint, with test sets that fit, and clear refusals."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import official
import pydantic
import pytest
import torch

from sparsona.core.samples import Prepare
from sparsona.data import DataConfig, Dataset, Fleet, build, divide
from sparsona.data.federated import resized

SMALL = DataConfig(clients=6, min_samples=2)


def made_up(train: int = 2000, test: int = 1000, classes: int = 10) -> Dataset:
    """A data set whose picture is its number."""
    total = train + test
    x = torch.arange(total, dtype=torch.int32)[:, None]
    y = torch.cat([torch.arange(train) % classes, torch.arange(test) % classes])
    names = tuple(f"class {c}" for c in range(classes))
    keys = {"site": np.arange(total) // 7 % 4}
    return Dataset("made up", x, y, train, names, (1,), Prepare(), keys)


def fingerprint(fleet: Fleet) -> str:
    digest = hashlib.sha256()
    for part in fleet.parts:
        for numbers in (part.train, part.validation, part.test):
            digest.update(numbers.astype("<i8").tobytes() + b"|")
    return digest.hexdigest()


def disjoint(fleet: Fleet, *, tests_shared: bool = False) -> None:
    learned = np.concatenate([np.concatenate([p.train, p.validation]) for p in fleet.parts])
    tested = np.concatenate([p.test for p in fleet.parts])
    if tests_shared:
        tested = np.unique(tested)
    together = np.concatenate([learned, tested])
    assert len(np.unique(together)) == len(together)
    assert all(len(p.train) and len(p.test) for p in fleet.parts)


CONFIGS = [
    SMALL,
    replace(SMALL, pool=True),
    replace(SMALL, balanced=True, split="label_mix"),
    replace(SMALL, split="same"),
    replace(SMALL, partition="iid", sample_share=0.1),
    replace(SMALL, partition="iid", split="same"),
    replace(SMALL, partition="pathological", classes_per_client=3, split="same"),
    replace(SMALL, partition="pathological", split="label_mix", test_samples=30),
    replace(SMALL, partition="shards", split="same"),
    replace(SMALL, partition="lambda", split="same"),
    replace(SMALL, partition="lambda", noniid=0.5, samples_per_client=20),
    replace(SMALL, partition="natural", key="site", clients=4, split="same"),
    replace(SMALL, partition="natural", key="site", clients=2, merge_keys=True, pool=True),
]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: f"{c.partition}-{c.split}")
def test_every_fleet_is_disjoint_and_repeatable(config: DataConfig) -> None:
    fleet = divide(made_up(), config, 5)
    disjoint(fleet, tests_shared=config.split == "label_mix")
    assert fleet.clients == config.clients == len(fleet.names)
    assert fingerprint(divide(made_up(), config, 5)) == fingerprint(fleet)
    assert fingerprint(divide(made_up(), config, 6)) != fingerprint(fleet)
    if config.split != "ratio":
        assert min(p.test.min() for p in fleet.parts) >= 2000
    if not config.pool:
        assert max(p.train.max() for p in fleet.parts) < 2000
    assert np.array_equal(fleet.label_counts().sum(1), fleet.train_sizes)


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.split != "ratio"], ids=lambda c: f"{c.partition}-{c.split}")
def test_a_client_is_tested_on_the_labels_it_learns(config: DataConfig) -> None:
    fleet = divide(made_up(), replace(config, validation_share=0.0), 1)
    train, test = (fleet.label_counts(p) for p in ("train", "test"))  # type: ignore[arg-type]
    mixes = train / train.sum(1, keepdims=True) - test / test.sum(1, keepdims=True)
    assert np.abs(mixes).sum(1).max() < 0.45
    assert np.abs(mixes).sum(1).mean() < 0.3


def test_the_samples_are_those_of_the_index() -> None:
    fleet = divide(made_up(), SMALL, 0)
    local, test = fleet.local(2), fleet.test(2)
    assert local.train.x is fleet.dataset.x
    x, y = local.train.at(torch.arange(len(local.train)))
    assert np.array_equal(x[:, 0].numpy(), fleet.parts[2].train)
    assert torch.equal(y, fleet.dataset.y[x[:, 0]])
    assert len(local) == fleet.train_sizes[2]
    assert (len(local.validation), len(test)) == (len(fleet.parts[2].validation), len(fleet.parts[2].test))


def test_shares_of_a_pooled_set_as_perfedmask() -> None:
    config = DataConfig(
        clients=5, partition="pathological", pool=True, train_share=450, validation_share=50, test_share=100
    )
    fleet = divide(made_up(), config, 0)
    for purpose, size in (("train", 450), ("validation", 50), ("test", 100)):
        assert (fleet.sizes(purpose) == size).all()  # type: ignore[arg-type]


def test_caps() -> None:
    config = replace(SMALL, samples_per_client=10, train_share=6, validation_share=2, test_share=2)
    fleet = divide(made_up(), config, 0)
    assert [tuple(len(n) for n in (p.train, p.validation, p.test)) for p in fleet.parts] == [(6, 2, 2)] * 6
    half = divide(made_up(), replace(SMALL, sample_share=0.5), 0)
    assert sum(len(p.train) + len(p.validation) + len(p.test) for p in half.parts) == 1000


def test_copies_count_before_samples_are_divided(tmp_path: Path) -> None:
    """Three classes of 20: once, twice and three times are 120, dealt to six clients."""
    data = made_up(60, 60, classes=3)
    config = replace(SMALL, partition="iid", split="label_mix", train_share=1.0, validation_share=0.0, test_samples=6)
    fleet = divide(data, replace(config, copies=(1, 2, 3)), 0)
    assert fleet.train_sizes.tolist() == [20] * 6
    held, counts = np.unique(np.concatenate([part.train for part in fleet.parts]), return_counts=True)
    assert held.tolist() == list(range(60))
    assert counts.tolist() == [1, 2, 3] * 20
    assert divide(data, replace(config, copies=(1, 1, 1)), 0).parts[0].train.tolist() == (
        divide(data, config, 0).parts[0].train.tolist()
    )
    with pytest.raises(
        ValueError,
        match=r"data\.copies: a list of 2 is not allowed; expected 3 ints, for class 0, class 1, "
        r"class 2 of made up",
    ):
        divide(data, replace(config, copies=(1, 2)), 0)
    with pytest.raises(
        ValueError,
        match=r"data\.copies: not allowed for a partition file, which lists each sample once; leave copies out",
    ):
        fleet.save(tmp_path / "parts.json")


def test_pictures_are_resized() -> None:
    """Twice the size keeps an even picture; linear between two halves; text is refused."""
    x = torch.zeros(3, 2, 2, 1, dtype=torch.uint8)
    x[1] = 200
    x[2, :, 1] = 100
    data = replace(made_up(2, 1, classes=2), x=x, shape=(1, 2, 2), prepare=Prepare((0.5,), (0.5,)))
    larger = resized(data, 4)
    assert larger.shape == (1, 4, 4)
    assert larger.x.dtype == torch.uint8
    assert larger.x[1].unique().tolist() == [200]
    assert larger.x[2, 0, :, 0].tolist() == [0, 25, 75, 100]
    with pytest.raises(ValueError, match=r"data\.side: 4 is only for pictures, and made up has none"):
        resized(made_up(), 4)


def test_label_mix_has_the_asked_size() -> None:
    fleet = divide(made_up(), replace(SMALL, clients=10, balanced=True, split="label_mix", test_samples=100), 0)
    assert (fleet.sizes("test") == 100).all()


def test_the_default_is_the_same_in_another_process() -> None:
    code = (
        "import hashlib; from sparsona.data import DataConfig, build\n"
        "d = hashlib.sha256()\n"
        "for p in build(DataConfig(), 3).parts:\n"
        "    for n in (p.train, p.validation, p.test): d.update(n.astype('<i8').tobytes() + b'|')\n"
        "print(d.hexdigest())"
    )
    fleet = build(DataConfig(), 3)
    assert (fleet.clients, fleet.dataset.name, fleet.dataset.shape) == (20, "digits", (1, 8, 8))
    disjoint(fleet)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == fingerprint(fleet)


def test_a_saved_fleet_comes_back(tmp_path: Path) -> None:
    fleet = divide(made_up(), replace(SMALL, split="label_mix", test_samples=400), 0)
    path = tmp_path / "fleet.json"
    fleet.save(path)
    config = replace(SMALL, partition="file", partition_file=str(path))
    assert fingerprint(divide(made_up(), config, 9)) == fingerprint(fleet)
    with pytest.raises(ValueError, match=r"data\.clients: 7 is not allowed; expected 6"):
        divide(made_up(), replace(config, clients=7), 0)


def test_a_file_of_lists_is_cut_by_the_split(tmp_path: Path) -> None:
    path = tmp_path / "lists.json"
    path.write_text('{"clients": [[0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [2000, 2001, 2002, 2003]]}')
    config = DataConfig(clients=2, partition="file", partition_file=str(path), min_samples=1, pool=True)
    fleet = divide(made_up(), config, 0)
    assert fleet.train_sizes.tolist() == [7, 3]
    disjoint(fleet)
    with pytest.raises(ValueError, match="client 1 holds sample 2003, but the training set ends at 1,999"):
        divide(made_up(), replace(config, pool=False), 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"pool": True, "split": "same"},
            'split: "same" is not allowed with pool = true, which leaves no test set; expected "ratio"',
        ),
        ({"partition": "natural"}, "needs a key"),
        ({"partition": "file"}, "partition_file: missing"),
        (
            {"partition": "file", "partition_file": "x", "split": "same"},
            'split: "same" is not allowed with partition = "file"',
        ),
        ({"samples_per_client": 1}, 'samples_per_client: 1 is not allowed; expected an int >= 2 with split = "ratio"'),
        ({"copies": (1, 2)}, 'copies: not allowed with split = "ratio", which might test on a copy'),
        (
            {"copies": (1, 2), "split": "same", "partition": "file", "partition_file": "x"},
            'split: "same" is not allowed with partition = "file"',
        ),
    ],
)
def test_fields_that_do_not_fit_together(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataConfig(**change)  # type: ignore[arg-type]
    with pytest.raises(pydantic.ValidationError, match=message):
        pydantic.TypeAdapter(DataConfig).validate_python(change)


@pytest.mark.parametrize(
    "change",
    [
        {"clients": 0},
        {"alpha": 0},
        {"noniid": 1.1},
        {"train_share": 0},
        {"test_samples": 0},
        {"vocabulary": 2},
        {"samples_per_client": 0},
        {"sample_share": 0},
        {"partition": "none"},
    ],
)
def test_pydantic_checks_the_fields(change: dict[str, object]) -> None:
    with pytest.raises(pydantic.ValidationError):
        pydantic.TypeAdapter(DataConfig).validate_python(change)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DataConfig(partition="natural", key="writer"), r'data\.key: "writer" not found in made up; allowed: site'),
        (
            DataConfig(partition="natural", key="site", clients=5),
            r"data\.clients: 5 is not allowed; expected an int in \[1, " r"4\]",
        ),
        (DataConfig(clients=1500), "2,000 samples are too few for 1,500 clients with at least 10 each"),
        (
            DataConfig(clients=500, partition="iid"),
            r"data\.clients: client 0 would have 4 samples; " r"expected at least 10",
        ),
        (
            DataConfig(clients=2000, partition="iid", min_samples=1),
            r"data\.clients: client 0 would have 1 samples; " r"expected at least 2",
        ),
        (
            DataConfig(partition="pathological", classes_per_client=11),
            r"data\.classes_per_client: 11 is not allowed; expected an int in \[1, " r"10\]",
        ),
    ],
)
def test_what_the_data_cannot_give(config: DataConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        divide(made_up(), config, 0)


@pytest.mark.parametrize("split", ["label_mix", "same"])
def test_digits_have_no_test_set(split: str) -> None:
    with pytest.raises(
        ValueError,
        match=r'data\.split: ".*" needs an official test set, and digits has none; ' r'expected "ratio"',
    ):
        build(DataConfig(split=split), 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r'data\.key: "writer" not found in digits; allowed: none'):
        build(DataConfig(partition="natural", key="writer"), 0)


def test_writers_without_test_samples_are_named(tmp_path: Path) -> None:
    official.mnist(tmp_path)
    official.writers(tmp_path)
    config = DataConfig(source="mnist", clients=5, partition="natural", key="writer", min_samples=2, split="same")
    with pytest.raises(ValueError, match=r"data\.clients: client 0 would have 0 test samples; expected at least 1"):
        build(config, 0, tmp_path)
    fleet = build(replace(config, split="ratio", pool=True, clients=9), 0, tmp_path)
    assert fleet.names == tuple("012345678")
    disjoint(fleet)
