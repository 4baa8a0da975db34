"""The real data sets, where SPARSONA_DATA names their directory."""

from pathlib import Path

import numpy as np
import pytest
import torch

from sparsona.data import DataConfig, DataError, Dataset, build, load


def real(name: str, root: Path) -> Dataset:
    try:
        return load(name, root)
    except DataError as error:
        if f" not found in {root}" in str(error):
            pytest.skip(str(error))
        raise


def normalised(data: Dataset) -> None:
    x = data.prepare(data.x_train[::5])
    assert torch.allclose(x.mean((0, 2, 3)), torch.zeros(x.shape[1]), atol=0.04)
    assert torch.allclose(x.std((0, 2, 3)), torch.ones(x.shape[1]), atol=0.04)


def test_mnist(sparsona_data: Path) -> None:
    mnist = real("mnist", sparsona_data)
    assert mnist.x.shape == (70_000, 28, 28, 1)
    assert torch.bincount(mnist.y_train).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    normalised(mnist)
    if "writer" in mnist.keys:
        train, test = mnist.key("writer")
        assert (len(np.unique(train)), len(np.unique(test))) == (539, 297)
        assert not set(train) & set(test)
        sizes = np.unique(train, return_counts=True)[1]
        assert (sizes.min(), int(np.median(sizes)), sizes.max()) == (19, 116, 131)


def test_fashion_mnist(sparsona_data: Path) -> None:
    fashion = real("fashion-mnist", sparsona_data)
    assert torch.bincount(fashion.y_train).tolist() == [6000] * 10
    assert torch.bincount(fashion.y_test).tolist() == [1000] * 10
    normalised(fashion)


@pytest.mark.parametrize(
    ("name", "train", "classes"), [("emnist-letters", 124_800, 26), ("emnist-byclass", 697_932, 62)]
)
def test_emnist(sparsona_data: Path, name: str, train: int, classes: int) -> None:
    emnist = real(name, sparsona_data)
    assert (emnist.train, len(emnist.y.unique())) == (train, classes)
    normalised(emnist)


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar(sparsona_data: Path, name: str, classes: int) -> None:
    cifar = real(name, sparsona_data)
    assert cifar.x.shape == (60_000, 32, 32, 3)
    assert torch.bincount(cifar.y_train).tolist() == [50_000 // classes] * classes
    assert torch.bincount(cifar.y_test).tolist() == [10_000 // classes] * classes
    normalised(cifar)


def test_imdb(sparsona_data: Path) -> None:
    imdb = real("imdb", sparsona_data)
    assert imdb.x.shape == (50_000, 256)
    for y in (imdb.y_train, imdb.y_test):
        assert torch.bincount(y).tolist() == [12_500, 12_500]
    assert (int(imdb.x.min()), int(imdb.x.max())) == (0, 9999)
    assert not (imdb.x == 3).any()
    train, test = imdb.key("movie")
    assert (len(np.unique(train)), len(np.unique(test)), len(np.intersect1d(train, test))) == (3456, 3581, 1)
    assert np.array_equal(imdb.keys["rating"] > 5, imdb.y.numpy() == 1)


def test_ham10000(sparsona_data: Path) -> None:
    ham = real("ham10000", sparsona_data)
    assert (len(ham), ham.train, ham.shape) == (10_015, 7964, (3, 28, 28))
    assert ham.class_names == ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
    assert torch.bincount(ham.y).tolist() == [327, 514, 1099, 115, 1113, 6705, 142]
    names, counts = np.unique(ham.keys["site"], return_counts=True)
    assert dict(zip(names.tolist(), counts.tolist(), strict=True)) == {
        "rosendahl": 2259,
        "vidir_modern": 3363,
        "vidir_molemax": 3954,
        "vienna_dias": 439,
    }
    normalised(ham)


def test_the_fleet_of_da_dpfl(sparsona_data: Path) -> None:
    """Its code's copies by class give as many samples to a client as its table of operations implies."""
    real("ham10000", sparsona_data)
    config = DataConfig(
        source="ham10000",
        clients=100,
        partition="iid",
        side=64,
        copies=(18, 12, 6, 53, 44, 1, 6),
        split="label_mix",
        train_share=1.0,
        validation_share=0.0,
    )
    fleet = build(config, 1, sparsona_data)
    assert fleet.dataset.shape == (3, 64, 64)
    assert fleet.train_sizes.sum() == 63_838
    assert set(fleet.train_sizes) == {638, 639}


def test_the_fleet_of_fedspa(sparsona_data: Path) -> None:
    real("cifar10", sparsona_data)
    config = DataConfig(source="cifar10", clients=100, balanced=True, split="label_mix", validation_share=0.0)
    fleet = build(config, 0, sparsona_data)
    assert (fleet.train_sizes == 500).all()
    assert (fleet.sizes("test") == 100).all()
    # 500 training samples in the mix of 100 test samples: rounding alone parts them
    assert np.abs(fleet.label_counts("train") / 5 - fleet.label_counts("test")).max() < 1


def test_a_writer_each(sparsona_data: Path) -> None:
    if "writer" not in real("mnist", sparsona_data).keys:
        pytest.skip("this copy of MNIST has no writers.npz")
    fleet = build(DataConfig(source="mnist", clients=539, partition="natural", key="writer"), 0, sparsona_data)
    assert sum(len(p.train) + len(p.validation) + len(p.test) for p in fleet.parts) == 60_000
