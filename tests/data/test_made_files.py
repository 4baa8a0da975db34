"""The programs of docs/start/install.md make files that our readers read."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from sparsona.data import load

PAGE = Path(__file__).parents[2] / "docs" / "start" / "install.md"


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a program of the page in a folder."""
    found = re.search(rf"<!-- file: {re.escape(name)} -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    Path(name).write_text(found[1])
    runpy.run_path(name)


def test_imdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"neg": "A bad film.<br />Bad!", "pos": "A good, good film"}
    for split in ("train", "test"):
        for kind, text in texts.items():
            folder = tmp_path / "imdb" / "aclImdb" / split / kind
            folder.mkdir(parents=True)
            for number in range(11):
                (folder / f"{number}_{8 if kind == 'pos' else 2}.txt").write_text(f"{text} {split}{number}")
            urls = (f"http://www.imdb.com/title/tt{number:07}/usercomments\n" for number in range(11))
            (folder.parent / f"urls_{kind}.txt").write_text("".join(urls))
    run("make_imdb.py", tmp_path / "imdb", monkeypatch)
    data = load("imdb", tmp_path)
    assert (data.train, len(data)) == (22, 44)
    assert data.y.tolist() == 2 * (11 * [0] + 11 * [1])
    assert data.keys["movie"].tolist() == 4 * list(range(11))
    assert set(data.keys["rating"]) == {2, 8}
    # by falling frequency, ties by the alphabet: a, bad, film and good occur 22 times, br 11 times
    a, bad, film, good, br = 4, 5, 6, 7, 8
    assert data.x[0, -7:-1].tolist() == [1, a, bad, film, br, bad]
    assert data.x[11, -6:-1].tolist() == [1, a, good, good, film]
    assert data.x[22, -1].item() == 2  # a word that only test reviews have


def test_ham10000(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "ham10000-28"
    (folder / "pictures").mkdir(parents=True)
    lines = ["lesion_id,image_id,dx,dx_type,age,sex,localization,dataset"]
    for i in range(40):
        lines.append(f"HAM_{i // 2:07},ISIC_{i:07},{('mel', 'nv')[i // 2 % 2]},histo,50.0,male,back,rosendahl")
        image.new("RGB", (60, 45), (i, 0, 0)).save(folder / "pictures" / f"ISIC_{i:07}.jpg")
    (folder / "HAM10000_metadata").write_text("\n".join(lines) + "\n")
    run("make_ham10000.py", folder, monkeypatch)
    data = load("ham10000", tmp_path)
    assert (len(data), data.train, data.class_names, data.shape) == (40, 32, ("mel", "nv"), (3, 28, 28))
    assert np.bincount(data.y_test).tolist() == [4, 4]
    assert set(data.keys["site"]) == {"rosendahl"}
