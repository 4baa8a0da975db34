"""Small data sets as users have them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HOSPITALS = ("north", "south", "west")


def arrays(n: int = 90, clients: Sequence[str] = HOSPITALS, features: int = 4) -> dict[str, np.ndarray]:
    """Features that say the class, and a client for each sample in turn."""
    rng = np.random.default_rng(0)
    y = np.arange(n) // len(clients) % 3
    x = rng.normal(size=(n, features)) + y[:, None]
    return {"x": x.astype(np.float32), "y": y, "client": np.array([clients[i % len(clients)] for i in range(n)])}


def npz(path: Path, **changes: Any) -> Path:
    """An .npz file of such arrays, some changed, or left out if they are None."""
    content = {name: value for name, value in (arrays() | changes).items() if value is not None}
    np.savez(path, **content)
    return path


def rows(n: int = 60) -> list[dict[str, Any]]:
    """Patients: two numbers, a category, an outcome and a hospital."""
    return [
        {
            "age": 20 + i % 50,
            "dose": round(0.5 + (i * 7 % 13) / 10, 1),
            "ward": "abc"[i % 3],
            "died": "yes" if i // 3 % 2 else "no",
            "hospital": HOSPITALS[i % 3],
        }
        for i in range(n)
    ]


def table(path: Path, content: Iterable[Mapping[str, Any]]) -> Path:
    """A CSV file of rows."""
    content = list(content)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(content[0]))
        writer.writeheader()
        writer.writerows(content)
    return path


def picture(path: Path, shade: int, size: tuple[int, int] = (6, 5), mode: str = "RGB") -> Path:
    """A picture of one shade."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode == "L" else (shade, 0, 255 - shade)).save(path)
    return path


class Counting:
    """A federation that knows which of its clients were read."""

    def __init__(self, clients: int | Sequence[str] = 100_000, classes: int | None = 3) -> None:
        self.clients = clients
        self.read: list[int] = []
        if classes is not None:
            self.classes = classes

    def client(self, k: int) -> dict[str, np.ndarray]:
        self.read.append(k)
        one = arrays(30, clients=("all",))
        return {"x": one["x"] + k, "y": one["y"]}


def federation(clients: int = 3) -> Counting:
    """What a recipe can name: own:federation."""
    return Counting(clients)


def samples(n: int = 90) -> dict[str, np.ndarray]:
    """What a recipe can name: own:samples."""
    return arrays(n)


def needy(n: int, seed: int) -> dict[str, np.ndarray]:
    """What a recipe can name with an argument: own:needy."""
    return arrays(n + seed)


def seeded(seed: int) -> dict[str, np.ndarray]:
    """What a recipe can name: own:seeded, whose inputs are all the seed."""
    return {"x": np.full((30, 4), seed, np.float32), "y": np.arange(30) % 3}
