"""Batches, and training pictures that are moved and mirrored."""

import torch

from sparsona.core.rng import Rng
from sparsona.core.samples import Augment, Prepare, Samples


def picture(height: int = 5, width: int = 5) -> torch.Tensor:
    return torch.arange(1, height * width + 1, dtype=torch.uint8).view(1, height, width, 1)


def shifted(x: torch.Tensor, down: int, right: int, mirrored: bool) -> torch.Tensor:
    """By hand: a picture seen through a window that lies ``down`` and ``right`` of its padded corner."""
    _, height, width, _ = x.shape
    out = torch.zeros_like(x)
    for i in range(height):
        for j in range(width):
            a, b = i + down - 2, j + right - 2
            if 0 <= a < height and 0 <= b < width:
                out[0, i, width - 1 - j if mirrored else j] = x[0, a, b]
    return out


def changed(augment, x):
    return augment(x, augment.draw(len(x), Rng(1)))


def test_every_crop_is_one_of_those_there_are_and_all_turn_up():
    x = picture()
    options = {
        tuple(shifted(x, d, r, m).flatten().tolist()): (d, r, m)
        for d in range(5)
        for r in range(5)
        for m in (False, True)
    }
    assert len(options) == 50
    seen = [options[tuple(y.flatten().tolist())] for y in changed(Augment(pad=2), x.expand(2000, -1, -1, -1))]
    assert set(seen) == set(options.values())
    assert 0.4 < sum(m for _, _, m in seen) / 2000 < 0.6


def test_crops_without_mirrors():
    x = picture()
    plain = {tuple(shifted(x, d, r, False).flatten().tolist()) for d in range(5) for r in range(5)}
    found = {tuple(y.flatten().tolist()) for y in changed(Augment(pad=2, flip=False), x.expand(500, -1, -1, -1))}
    assert found == plain


def test_training_batches_are_augmented_by_key_and_others_never():
    x = torch.randint(1, 255, (12, 6, 6, 3), dtype=torch.uint8)
    plain = Samples(x, torch.arange(12), torch.arange(12), Prepare((0.5,) * 3, (0.25,) * 3))
    moved = Samples(x, torch.arange(12), torch.arange(12), plain.prepare, Augment())
    one, again = ([b[0] for b in moved.epochs(Rng(3), 2, 4)] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    assert not any(torch.equal(a, b[0]) for a, b in zip(one, plain.epochs(Rng(3), 2, 4), strict=True))
    labels = zip(moved.epochs(Rng(3), 1, 4), plain.epochs(Rng(3), 1, 4), strict=True)
    assert all(torch.equal(a[1], b[1]) for a, b in labels)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(moved.all(5), plain.all(5), strict=True))
    assert torch.equal(moved.batch(Rng(1), 5)[0], plain.batch(Rng(1), 5)[0])
