"""Files appear whole or not at all, one or many."""

from pathlib import Path

import pytest

from sparsona.engines.atomic_file import write_all


def test_many_files_are_written_and_replaced(tmp_path: Path) -> None:
    files = {tmp_path / f"{k}.bin": bytes([k % 256]) * k for k in range(300)}
    (tmp_path / "5.bin").write_bytes(b"older")
    write_all(iter(files.items()))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_one_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_all((tmp_path / name / "x", b"") for name in ("missing", "too"))
