"""The picture of labels."""

import struct
from pathlib import Path

import pytest

from sparsona.data import DataConfig, build
from sparsona.reports.label_figure import label_picture


@pytest.mark.parametrize("clients", [5, 45])
def test_the_picture_is_a_png_of_the_same_bytes(tmp_path: Path, clients: int) -> None:
    fleet = build(DataConfig(clients=clients, min_samples=2), 0)
    for name in ("a.png", "b.png"):
        label_picture(fleet, tmp_path / name)
    content = (tmp_path / "a.png").read_bytes()
    assert content == (tmp_path / "b.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">2I", content[16:24])
    assert 600 < width < 2000
    assert 300 < height < 1500
    assert b"Software" not in content
