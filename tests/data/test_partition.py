"""Partitioners: every sample at most once, nobody empty, the promised sizes and label mixes."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsona.core.rng import Rng
from sparsona.data import partition
from sparsona.data.partition import Part, Parts, read_partition, save_partition

Partitioner = Callable[[np.ndarray, int, Rng], Parts]

ALL: dict[str, Partitioner] = {
    "iid": partition.iid,
    "dirichlet": lambda y, k, rng: partition.dirichlet(y, k, rng, alpha=0.3),
    "dirichlet tiny": lambda y, k, rng: partition.dirichlet(y, k, rng, alpha=1e-4),
    "dirichlet huge": lambda y, k, rng: partition.dirichlet(y, k, rng, alpha=1e6),
    "balanced": lambda y, k, rng: partition.dirichlet(y, k, rng, alpha=0.3, balanced=True),
    "balanced tiny": lambda y, k, rng: partition.dirichlet(y, k, rng, alpha=1e-4, balanced=True),
    "shards": lambda y, k, rng: partition.shards(y, k, rng, shards_per_client=1),
    "lambda 0": lambda y, k, rng: partition.lambda_mix(y, k, rng, noniid=0.0),
    "lambda 0.5": lambda y, k, rng: partition.lambda_mix(y, k, rng, noniid=0.5),
    "lambda 1": lambda y, k, rng: partition.lambda_mix(y, k, rng, noniid=1.0),
    "pathological": lambda y, k, rng: partition.pathological(y, k, rng, classes_per_client=1),
    "merged keys": lambda y, k, rng: partition.natural(np.arange(len(y)) // 2, k, rng, merge=True),
}
EQUAL = ("iid", "balanced", "balanced tiny", "shards", "lambda 0", "lambda 0.5", "lambda 1")


def used_once(parts: Parts, samples: int, *, all_of_them: bool = False) -> None:
    numbers = np.concatenate(parts)
    assert len(np.unique(numbers)) == len(numbers)
    assert numbers.min() >= 0
    assert numbers.max() < samples
    assert all(len(part) for part in parts)
    assert all((np.diff(part) > 0).all() for part in parts)
    if all_of_them:
        assert len(numbers) == samples


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_sample_at_most_once_and_nobody_empty(name: str, data: st.DataObject) -> None:
    labels = np.array(data.draw(st.lists(st.integers(0, 6), min_size=4, max_size=120)))
    clients = data.draw(st.integers(1, len(labels) // 2))
    rng = Rng(data.draw(st.integers(0, 1000)))
    parts = ALL[name](labels, clients, rng)
    assert len(parts) == clients
    used_once(parts, len(labels), all_of_them=name != "pathological")
    if name in EQUAL:
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    again = ALL[name](labels, clients, Rng(*rng.key))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("name", ALL)
def test_another_seed_gives_another_partition(name: str) -> None:
    labels = np.arange(200) % 10
    one, two = (ALL[name](labels, 8, Rng(seed)) for seed in (1, 2))
    assert any(not np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("name", ALL)
def test_too_many_clients_is_an_error(name: str) -> None:
    labels = np.arange(6) % 2
    with pytest.raises(ValueError, match="too few for 7 clients"):
        ALL[name](labels, 7, Rng(0))
    with pytest.raises(ValueError, match=r"data\.clients: 0 is not allowed; expected an int >= 1"):
        ALL[name](labels, 0, Rng(0))


@settings(max_examples=60, deadline=None)
@given(
    floor=st.integers(1, 12),
    alpha=st.floats(1e-3, 100),
    clients=st.integers(1, 10),
    seed=st.integers(0, 99),
    more=st.integers(0, 50),
)
def test_dirichlet_holds_the_floor(floor: int, alpha: float, clients: int, seed: int, more: int) -> None:
    labels = np.arange(floor * clients + more) % 5
    parts = partition.dirichlet(labels, clients, Rng(seed), alpha=alpha, min_samples=floor)
    used_once(parts, len(labels), all_of_them=True)
    assert min(map(len, parts)) >= floor


def label_table(labels: np.ndarray, parts: Parts, classes: int = 10) -> np.ndarray:
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


@pytest.mark.parametrize("balanced", [False, True])
def test_alpha_sets_the_skew(balanced: bool) -> None:
    labels = np.arange(10_000) % 10
    top = {}
    for alpha in (0.05, 0.5, 1000.0):
        table = label_table(labels, partition.dirichlet(labels, 50, Rng(0), alpha=alpha, balanced=balanced))
        top[alpha] = (table.max(1) / table.sum(1)).mean()
    assert top[0.05] > 0.6
    assert 0.25 < top[0.5] < 0.6
    assert top[1000.0] < 0.15


def test_balanced_dirichlet_follows_the_drawn_mixes() -> None:
    labels = np.arange(50_000) % 10
    table = label_table(labels, partition.dirichlet(labels, 100, Rng(3), alpha=0.3, balanced=True))
    assert (table.sum(1) == 500).all()
    assert (table.sum(0) == 5000).all()
    mixes = np.stack([Rng(3)("mix", k).numpy().dirichlet(np.full(10, 0.3)) for k in range(100)])
    # classes that run out early push the last places elsewhere, so near, not equal
    assert np.abs(table / 500 - mixes).sum(1).mean() < 0.35
    assert np.corrcoef(table.ravel(), mixes.ravel())[0, 1] > 0.9


def test_balanced_dirichlet_with_a_rare_class() -> None:
    labels = np.repeat([0, 1, 2], [900, 95, 5])
    table = label_table(labels, partition.dirichlet(labels, 20, Rng(0), alpha=0.1, balanced=True), 3)
    assert (table.sum(1) == 50).all()
    assert table.sum(0).tolist() == [900, 95, 5]


def test_the_same_key_gives_the_same_shares_of_another_set() -> None:
    train, test = np.arange(20_000) % 10, np.arange(4000) % 10
    for name in ("dirichlet", "balanced", "lambda 1", "lambda 0.5"):
        a, b = (label_table(y, ALL[name](y, 10, Rng(0))) for y in (train, test))
        mixes = [t / t.sum(1, keepdims=True) for t in (a, b)]
        assert np.abs(mixes[0] - mixes[1]).sum(1).max() < 0.25, name


@settings(max_examples=60, deadline=None)
@given(clients=st.integers(1, 30), each=st.integers(1, 6), seed=st.integers(0, 99))
def test_pathological_gives_exactly_so_many_classes(clients: int, each: int, seed: int) -> None:
    labels = np.arange(6 * 60) % 6
    parts = partition.pathological(labels, clients, Rng(seed), classes_per_client=each)
    used_once(parts, len(labels))
    table = label_table(labels, parts, 6)
    assert ((table > 0).sum(1) == each).all()
    holders = (table > 0).sum(0)
    assert holders.max() - holders.min() <= 1


def test_pathological_divides_equally_as_perfedmask_does() -> None:
    labels = np.arange(60_000) % 10
    table = label_table(labels, partition.pathological(labels, 100, Rng(0), classes_per_client=3))
    assert (table.sum(1) == 600).all()
    assert set(np.unique(table)) == {0, 200}
    pairs = (table > 0).astype(int).T @ (table > 0)
    assert (pairs[~np.eye(10, dtype=bool)] > 0).all()  # any two classes meet somewhere


def test_pathological_spares_small_classes() -> None:
    labels = np.repeat([0, 1, 2], [100, 100, 3])
    table = label_table(labels, partition.pathological(labels, 10, Rng(0), classes_per_client=2), 3)
    assert ((table > 0).sum(1) == 2).all()
    assert (table[:, 2] > 0).sum() == 3
    with pytest.raises(ValueError, match=r"data\.classes_per_client: 4 is not allowed; expected an int in \[1, 3\]"):
        partition.pathological(labels, 10, Rng(0), classes_per_client=4)
    with pytest.raises(
        ValueError, match=r"data\.classes_per_client: the classes are too small for 10 clients with 3 each; set fewer"
    ):
        partition.pathological(labels, 10, Rng(0), classes_per_client=3)


def test_shards_hold_at_most_so_many_labels() -> None:
    labels = np.arange(6000) % 10
    table = label_table(labels, partition.shards(labels, 100, Rng(0), shards_per_client=2))
    assert (table.sum(1) == 60).all()
    assert (table > 0).sum(1).max() == 2
    with pytest.raises(ValueError, match="too few"):
        partition.shards(np.arange(10), 6, Rng(0), shards_per_client=2)


# --- lambda, worked by hand ---


def test_lambda_one_with_as_many_clients_as_classes() -> None:
    labels = Rng(0).numpy().permutation(np.arange(100) % 10)
    table = label_table(labels, partition.lambda_mix(labels, 10, Rng(0), noniid=1.0))
    assert np.array_equal(table, 10 * np.eye(10, dtype=int))


def test_lambda_one_with_two_clients() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1, 2, 2])  # sorted, cut in the middle: 0 0 0 1 | 1 1 2 2
    table = label_table(labels, partition.lambda_mix(labels, 2, Rng(0), noniid=1.0), 3)
    assert table.tolist() == [[3, 1, 0], [0, 2, 2]]


def test_lambda_half() -> None:
    labels = np.arange(1000) % 10
    table = label_table(labels, partition.lambda_mix(labels, 10, Rng(0), noniid=0.5))
    assert (table.sum(1) == 100).all()
    assert (np.diag(table) > 30).all()  # half of 100 sorted, minus what the random choice shifts, plus a tenth of 50
    assert ((table > 0).sum(1) >= 8).all()


def test_lambda_zero_is_random_and_equal() -> None:
    labels = np.arange(10_000) % 10
    table = label_table(labels, partition.lambda_mix(labels, 5, Rng(0), noniid=0.0))
    assert (table.sum(1) == 2000).all()
    assert table.min() > 150
    assert table.max() < 250


@given(samples=st.integers(1, 300), share=st.floats(0, 1), data=st.data())
@settings(max_examples=60, deadline=None)
def test_lambda_sizes_are_equal(samples: int, share: float, data: st.DataObject) -> None:
    clients = data.draw(st.integers(1, samples))
    parts = partition.lambda_mix(np.arange(samples) % 3, clients, Rng(0), noniid=share)
    used_once(parts, samples, all_of_them=True)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda y: partition.lambda_mix(y, 2, Rng(0), noniid=1.5),
            r"data\.noniid: 1\.5 is not allowed; expected a float in \[0, " r"1\]",
        ),
        (
            lambda y: partition.dirichlet(y, 2, Rng(0), alpha=0.0),
            r"data\.alpha: 0\.0 is not allowed; expected a float in \(0, " r"1000000\]",
        ),
        (
            lambda y: partition.dirichlet(y, 2, Rng(0), alpha=float("nan")),
            r"data\.alpha: nan is not allowed; expected a float in \(0, " r"1000000\]",
        ),
        (
            lambda y: partition.dirichlet(y, 2, Rng(0), alpha=1.0, min_samples=0),
            r"data\.min_samples: 0 is not allowed; expected an int >= " r"1",
        ),
        (lambda y: partition.dirichlet(y, 2, Rng(0), alpha=1.0, min_samples=11), "at least 11 each"),
        (
            lambda y: partition.shards(y, 2, Rng(0), shards_per_client=0),
            r"data\.shards_per_client: 0 is not allowed; " r"expected an int >= 1",
        ),
        (
            lambda y: partition.pathological(y, 2, Rng(0), classes_per_client=0),
            r"data\.classes_per_client: 0 is not allowed; expected an int in \[1, " r"4\]",
        ),
    ],
)
def test_wrong_values_are_named(call: Callable[[np.ndarray], Parts], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(np.arange(20) % 4)


# --- natural keys ---


def test_natural_is_one_key_each() -> None:
    keys = np.array(["b", "a", "c", "b", "a", "b"])
    parts = partition.natural(keys, 3, Rng(0))
    assert [part.tolist() for part in parts] == [[1, 4], [0, 3, 5], [2]]
    assert [p.tolist() for p in partition.natural(keys, 2, Rng(0), min_samples=2)] == [[1, 4], [0, 3, 5]]
    with pytest.raises(ValueError, match=r"data\.clients: 3 is not allowed; expected an int in \[1, 2\]"):
        partition.natural(keys, 3, Rng(0), min_samples=2)


def test_natural_chooses_keys_at_random() -> None:
    keys = np.repeat(np.arange(50), 3)
    chosen = {tuple(int(keys[part[0]]) for part in partition.natural(keys, 5, Rng(seed))) for seed in range(5)}
    assert len(chosen) == 5


def test_merged_keys_stay_whole_and_sizes_close() -> None:
    keys = np.repeat(np.arange(40), 1 + np.arange(40) % 7)
    parts = partition.natural(keys, 6, Rng(0), merge=True)
    used_once(parts, len(keys), all_of_them=True)
    owners = [set(keys[part].tolist()) for part in parts]
    assert sum(map(len, owners)) == 40
    assert max(map(len, parts)) - min(map(len, parts)) <= 7
    with pytest.raises(ValueError, match="40 keys are too few for 41 clients"):
        partition.natural(keys, 41, Rng(0), merge=True)
    with pytest.raises(ValueError, match=r"data\.clients: a client of 2 would have 1 samples; expected at least 3"):
        partition.natural(np.repeat([0, 1], [9, 1]), 2, Rng(0), merge=True, min_samples=3)


def test_keys_of_another_set() -> None:
    groups = [np.array([3]), np.array([1, 7])]
    assert [p.tolist() for p in partition.deal_keys(np.array([7, 9, 3, 1, 0]), groups)] == [[2], [0, 3]]
    assert [p.tolist() for p in partition.deal_keys(np.array([9, 9]), groups)] == [[], []]


# --- files ---


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_a_partition_survives_its_file(tmp_path: Path) -> None:
    parts = [Part(*map(np.array, ([0, 2], [1], [8, 9]))), Part(*map(np.array, ([5], [3], [8])))]
    save_partition(tmp_path / "p.json", parts, source="here", samples=10)
    read = read_partition(tmp_path / "p.json", 10, "here")
    for one, two in zip(parts, read, strict=True):
        for name in ("train", "validation", "test"):
            assert np.array_equal(getattr(one, name), getattr(two, name))
    with pytest.raises(ValueError, match=r"p\.json: made for source 'here'; expected 'there'"):
        read_partition(tmp_path / "p.json", 10, "there")
    with pytest.raises(ValueError, match=r"p\.json: made for samples 10; expected 11"):
        read_partition(tmp_path / "p.json", 11, "here")


def test_a_file_of_lists_says_who_holds_what(tmp_path: Path) -> None:
    read = read_partition(write(tmp_path / "p.json", {"clients": [[3, 1], [2]]}), 4)
    assert [part.train.tolist() for part in read] == [[1, 3], [2]]
    assert not any(len(part.test) + len(part.validation) for part in read)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], r"p\.json: expected an object with clients and perhaps source and samples"),
        ({}, r"p\.json: clients is not allowed; expected a list of 1 to 1,000,000 clients"),
        ({"clients": []}, "1 to 1,000,000 clients"),
        (
            {"clients": [[0], [1]], "extra": 1},
            r"p\.json: expected an object with clients and perhaps source and " r"samples",
        ),
        ({"clients": [[0], []]}, "client 1 has no samples"),
        ({"clients": [[0, 0], [1]]}, r"p\.json: sample 0 is listed twice"),
        ({"clients": [[0, 1], [1]]}, r"p\.json: sample 1 is listed twice"),
        ({"clients": [[0], [4]]}, r"p\.json, client 1: expected a list of sample numbers in \[0, 3\]"),
        ({"clients": [[0], [-1]]}, "sample numbers"),
        ({"clients": [[0], [True]]}, "sample numbers"),
        ({"clients": [[0], [1.0]]}, "sample numbers"),
        ({"clients": [[0], ["1"]]}, "sample numbers"),
        ({"clients": [[0], [10**30]]}, "sample numbers"),
        (
            {"clients": [[0], {"train": [1], "test": [2]}]},
            r"p\.json: client 0 has other parts; expected train, " r"test and perhaps validation",
        ),
        (
            {"clients": [{"train": [1]}]},
            r"p\.json: client 0 has other parts; expected train, " r"test and perhaps validation",
        ),
        (
            {"clients": [{"train": [1], "test": [2], "x": [3]}]},
            r"p\.json: client 0 has other parts; expected train, " r"test and perhaps validation",
        ),
        ({"clients": [{"train": [], "test": [2]}]}, "at least one train and one test"),
        ({"clients": [{"train": [1], "test": []}]}, "at least one train and one test"),
        ({"clients": [{"train": [1], "test": [1]}]}, r"p\.json: sample 1 is listed twice"),
        ({"clients": [{"train": [1], "test": [2, 2]}]}, r"p\.json, client 0: sample 2 is listed twice"),
        ({"clients": [{"train": [1], "test": [2]}, {"train": [2], "test": [3]}]}, r"p\.json: sample 2 is listed twice"),
        ({"clients": [{"train": [1], "validation": [1], "test": [2]}]}, r"p\.json: sample 1 is listed twice"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_partition(write(tmp_path / "p.json", content), 4)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"clients": [[' + "1" * 5000 + "]]}", "\xff"])
def test_what_is_not_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(
        ValueError,
        match=r"p\.json: not valid JSON: .",
    ):
        read_partition(tmp_path / "p.json", 4)


def test_missing_and_endless_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        read_partition(tmp_path / "none.json", 4)
    monkeypatch.setattr(partition, "_MAX_FILE", 10)
    with pytest.raises(ValueError, match=r"p\.json: the file is too large; expected at most 10 bytes"):
        read_partition(write(tmp_path / "p.json", {"clients": [[1]]}), 4)
