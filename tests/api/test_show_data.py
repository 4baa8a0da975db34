"""`sparsona data` needs only what data need: a source, or a recipe without model and method."""

import json
import sys
from pathlib import Path

import pytest

from command import ok, refused

sys.path.append(str(Path(__file__).parent.parent / "data"))

import own


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def shown(*words: str) -> list[dict[str, object]]:
    clients: list[dict[str, object]] = json.loads(ok("data", *words, "--json").stdout)["clients"]
    return clients


def test_a_source_is_enough(tmp_path: Path) -> None:
    own.table(tmp_path / "mine.csv", own.rows())
    rows = shown("mine.csv", "data.label=died", "data.client=hospital")
    assert [row["client"] for row in rows] == list(own.HOSPITALS)
    assert [row["train"] for row in rows] == [14] * 3
    assert (tmp_path / "labels.png").read_bytes().startswith(b"\x89PNG")
    own.npz(tmp_path / "mine.npz")
    assert len(shown("mine.npz", "data.partition=iid", "data.clients=5", "seed=3")) == 5
    assert "data.clients: 4 is not allowed; expected an int in [1, 3]" in refused("data", "mine.npz", "data.clients=4")


def test_a_recipe_needs_no_model_and_no_method(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[data]\nclients = 3\n[variants.x.data]\nalpha = 1.0\n[variants.y]\nseed = 2\n")
    assert len(shown("a.toml")) == 3
    assert "variant x; other variants use different data" in ok("data", "a.toml").stdout
    assert "data.clients: 0 is not allowed; expected" in refused("data", "a.toml", "data.clients=0")
    assert 'data.source: "nonsense" not found; allowed: cifar10, ' in refused("data", "nonsense")


def test_a_federation_shows_its_first_clients() -> None:
    text = ok("data", "own:federation", 'data.args={"clients"=25}').stdout
    assert "own:federation, 25 clients, natural" in text
    assert "only the first 20 clients" in text
    assert len(shown("own:federation", 'data.args={"clients"=25}')) == 20
