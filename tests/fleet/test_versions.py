"""What a device keeps of its client."""

import os
import stat

import pytest

from sparsona.engines.atomic_file import write
from sparsona.fleet.versions import VersionedState, VersionLost


def test_a_clock_that_is_set_back_loses_nothing_that_counts(tmp_path):
    keep = VersionedState(tmp_path, depth=2)
    versions, future = [None], 4_000_000_000
    for i in range(12):
        versions.append(keep.put(versions[-1], b"value %d" % i))
        for file in tmp_path.glob("*.value"):
            if file.stem != versions[-1]:
                os.utime(file, (future, future))  # all that was written before seems newer
        for back in range(min(3, i + 1)):
            assert keep.get(versions[-1 - back]) == b"value %d" % (i - back)
    assert len(keep.versions()) <= 4


def test_a_server_that_goes_back_finds_its_versions_again_and_again(tmp_path):
    keep = VersionedState(tmp_path, depth=2)
    chain = [keep.put(None, b"first")]
    for i in range(4):
        chain.append(keep.put(chain[-1], b"%d" % i))
    for attempt in range(50):  # each time from the checkpoint, and never as before
        after = keep.put(chain[2], b"again %d" % attempt)
        keep.put(after, b"and on %d" % attempt)
        assert keep.get(chain[2]) == b"1"
    assert len(keep.versions()) <= 20
    with pytest.raises(
        VersionLost,
        match=r"version 3-0000000000000000 is not on this device, which has 1-\w+, 2-",
    ):
        keep.get("3-" + "0" * 16)


def test_a_file_and_its_name_are_on_the_disk(tmp_path, monkeypatch):
    kinds = []
    monkeypatch.setattr(os, "fsync", lambda fd: kinds.append(stat.S_ISDIR(os.fstat(fd).st_mode)))
    write(tmp_path / "file", b"value")
    assert kinds == [False, True]


def test_what_a_killed_device_left_half_written_is_removed(tmp_path):
    (tmp_path / "7-0123456789abcdef.value.part").write_bytes(b"half")
    (tmp_path / "model.safetensors").write_bytes(b"stays")
    keep = VersionedState(tmp_path)
    version = keep.put(None, b"value")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f"{version}.value", "model.safetensors"])
