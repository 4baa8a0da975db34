"""The picture and the table of labels."""

import struct
from pathlib import Path

import pytest

from sparsona.data import DataConfig, build
from sparsona.data.picture import label_picture, label_table


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


def test_the_table_counts_what_the_fleet_holds() -> None:
    fleet = build(DataConfig(clients=5), 0)
    rows = label_table(fleet)
    assert [row.client for row in rows] == ["0", "1", "2", "3", "4"]
    assert sum(row.train + row.validation + row.test for row in rows) == 1797
    counts = fleet.label_counts()[0]
    top = int(counts.argmax())
    assert rows[0].labels.startswith(f"{top}: {counts[top]}, ")
    assert "more" not in label_table(fleet, top=10)[0].labels
