"""The store keeps whole rounds, and nothing else."""

import subprocess
import sys

import pytest

from sparsona.engines.store import Checkpoint, Elsewhere, Store, StoreError, here, nbytes


def test_a_round_is_kept_whole_or_not_at_all(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    store.begin_round()
    store.put(3, b"three")
    store.put_part("masks[3]", b"mask")
    store.end_round(Checkpoint(1, b"server", {"a": 1}))
    store.commit()
    store.begin_round()
    store.put(3, b"changed")
    store.put_part("masks[3]", b"changed")
    store.put(4, b"four")
    assert store.client(3) == b"changed"
    store.rescue()
    store.close()
    again = Store(tmp_path / "s.sqlite")
    assert again.client(3) == b"three"
    assert again.clients() == [3]
    assert again.checkpoint() == Checkpoint(1, b"server", {"a": 1})
    assert again.client(9) is None
    assert again.part("masks[3]") == b"mask"
    with pytest.raises(StoreError, match="damaged: it has no nothing"):
        again.part("nothing")


def test_what_is_not_committed_is_forgotten_unless_rescued(tmp_path):
    for rescued in (False, True):
        store = Store(tmp_path / f"{rescued}.sqlite")
        store.begin_round()
        store.put(1, b"one")
        store.end_round(Checkpoint(1, b"s1", {}))
        store.begin_round()
        store.put(2, b"two")
        if rescued:
            store.rescue()
        store.close()
        again = Store(tmp_path / f"{rescued}.sqlite")
        assert again.clients() == ([1] if rescued else [])
        assert again.checkpoint() == (Checkpoint(1, b"s1", {}) if rescued else None)


def test_rescue_between_two_rounds(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    store.rescue()
    store.close()
    assert Store(tmp_path / "s.sqlite").checkpoint() is None


def test_memory_store_behaves_alike():
    store = Store()
    assert store.checkpoint() is None
    store.begin_round()
    store.put(0, b"x")
    store.end_round(Checkpoint(1, b"", {}))
    store.commit()
    assert store.client(0) == b"x"


def test_one_run_one_process(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    code = "import sys, pathlib, sparsona.engines.store as s; s.Store(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(tmp_path / "s.sqlite")]
    other = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert "another process is using this run" in other.stderr
    store.close()


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path):
    # a limit on the size of files, as a full disk would set
    code = f"""
import resource, signal
from pathlib import Path
from sparsona.engines.store import Checkpoint, Elsewhere, Store, StoreError, here, nbytes
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = Store(Path({str(tmp_path / "s.sqlite")!r}))
store.begin_round(); store.put(1, b"good"); store.end_round(Checkpoint(1, b"s", {{}})); store.commit()
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
try:
    for t in range(2, 50):
        store.begin_round(); store.put(t, bytes(400_000)); store.end_round(Checkpoint(t, b"s", {{}})); store.commit()
except StoreError as error:
    print("told:", error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "told: cannot write or read the state" in done.stdout, done.stderr
    assert "the last checkpoint is intact" in done.stdout
    store = Store(tmp_path / "s.sqlite")
    checkpoint = store.checkpoint()
    assert checkpoint is not None
    assert store.clients() == list(range(1, checkpoint.rounds_done + 1))
    assert store.client(1) == b"good"


def test_not_a_database(tmp_path):
    (tmp_path / "s.sqlite").write_bytes(b"something else entirely" * 1000)
    with pytest.raises(StoreError, match="cannot open the state"):
        Store(tmp_path / "s.sqlite")


def test_large_mail_lies_in_files_that_live_as_long_as_a_crash_may_need_them(tmp_path, monkeypatch):
    monkeypatch.setattr("sparsona.engines.store._LARGE", 4)
    store = Store(tmp_path / "s.sqlite")

    def files():
        return sorted(p.name for p in (tmp_path / "s.mail").iterdir())

    def a_round(t, *told, commit=True):
        store.begin_round()
        for k, data in told:
            store.put_mail(k, t, data, 2)
        store.forget_mail(t)
        store.end_round(Checkpoint(t + 1, b"", {}))
        if commit:
            store.commit()

    a_round(0, (0, b"short"[:3]), (1, b"at first"))
    assert store.mail(0, 1) == (b"sho", 2)
    letter, values = store.mail(1, 1)
    assert (letter.read_bytes(), nbytes(letter), values, nbytes(b"sho")) == (b"at first", 8, 2, 3)
    a_round(1, (1, b"then"), commit=False)
    a_round(2, (1, b"later on"), commit=False)
    assert len(files()) == 3  # a crash now would go back to the first
    store.close()
    store = Store(tmp_path / "s.sqlite")
    assert store.mail(1, 9)[0].read_bytes() == b"at first"
    a_round(1, (1, b"then"))
    assert files() == ["client-00001-round-2.message"]  # what the crash left is gone too
    a_round(2, (1, b"later on"))
    assert files() == ["client-00001-round-3.message"]
    assert store.mail(1, 3)[0].read_bytes() == b"later on"
    assert store.mail(0, 3) == (b"sho", 2)


class Far(Elsewhere):
    """Bytes that somebody else has; they say who asked for them, and may be lost."""

    def __init__(self, data, asked, lost=False):
        self.data, self.nbytes, self.asked, self.lost = data, len(data), asked, lost

    def fetch(self):
        if self.lost:
            raise RuntimeError("lost")
        self.asked.append(self.data)
        return self.data


def a_round_elsewhere(store, t, asked, lost=False):
    store.begin_round()
    store.put(1, Far(b"value %d" % t, asked, lost))
    store.put_mail(1, t, Far(b"said %d" % t, asked), 2)
    store.forget_mail(t)
    store.end_round(Checkpoint(t + 1, b"", {}))


@pytest.mark.parametrize("large", [4, 1 << 22])
def test_what_lies_elsewhere_is_fetched_for_a_checkpoint_alone_and_only_the_last_of_it(tmp_path, monkeypatch, large):
    monkeypatch.setattr("sparsona.engines.store._LARGE", large)
    store, asked = Store(tmp_path / "s.sqlite"), []
    for t in range(4):
        a_round_elsewhere(store, t, asked)
    value, (letter, values) = store.client(1), store.mail(1, 4)
    assert (value.data, letter.data, nbytes(letter), values) == (b"value 3", b"said 3", 6, 2)
    assert (store.clients(), asked) == ([1], [])  # it is handed on as it is
    store.commit()
    assert sorted(asked) == [b"said 3", b"value 3"]
    store.commit()
    assert len(asked) == 2
    assert store.client(1) is value  # and it stays where it is
    store.begin_round()
    store.put(1, b"here")
    assert store.client(1) == b"here"
    store.rescue()
    store.close()
    again = Store(tmp_path / "s.sqlite")
    assert (again.client(1), again.checkpoint().rounds_done) == (b"value 3", 4)
    assert here(again.mail(1, 4)[0]) == b"said 3"


def test_a_rescue_fetches_what_the_last_whole_round_left_elsewhere(tmp_path):
    store, asked = Store(tmp_path / "s.sqlite"), []
    a_round_elsewhere(store, 0, asked)
    store.begin_round()
    store.put(1, Far(b"half a round", asked))
    store.put(2, Far(b"half a round", asked))
    store.drop(1)
    assert store.clients() == [2]
    store.rescue()
    store.close()
    again = Store(tmp_path / "s.sqlite")
    assert ({k: again.client(k) for k in again.clients()}, again.checkpoint().rounds_done) == ({1: b"value 0"}, 1)
    assert again.mail(1, 1)[0] == b"said 0"


def test_what_is_lost_elsewhere_costs_the_rounds_since_the_last_checkpoint_and_no_more(tmp_path):
    store, asked = Store(tmp_path / "s.sqlite"), []
    a_round_elsewhere(store, 0, asked)
    store.commit()
    a_round_elsewhere(store, 1, asked, lost=True)
    with pytest.raises(RuntimeError, match="lost"):
        store.commit()
    store.rescue()
    store.close()
    again = Store(tmp_path / "s.sqlite")
    assert (again.client(1), again.checkpoint().rounds_done) == (b"value 0", 1)
    assert again.mail(1, 2)[0] == b"said 0"


def test_a_store_in_memory_leaves_everything_where_it_is():
    store, asked = Store(), []
    for t in range(3):
        a_round_elsewhere(store, t, asked)
        store.commit()
    assert asked == []
    assert (here(store.client(1)), here(store.mail(1, 3)[0])) == (b"value 2", b"said 2")


def test_a_message_that_a_crash_may_go_back_to_is_not_overwritten(tmp_path, monkeypatch):
    """A peer that begins anew says its first message again, for a round that is in the checkpoint."""
    monkeypatch.setattr("sparsona.engines.store._LARGE", 4)
    store = Store(tmp_path / "state.sqlite")
    store.begin_round()
    store.put_mail(0, 0, b"as it was", 1)
    store.end_round(Checkpoint(1, b"", {}))
    store.commit()
    store.begin_round()
    store.put_mail(0, 0, b"begun anew", 1)
    assert here(store.mail(0, 1)[0]) == b"begun anew"
    store.back()
    assert here(store.mail(0, 1)[0]) == b"as it was"
    store.put_mail(0, 0, b"begun anew", 1)
    store.close()  # as if killed
    assert here(Store(tmp_path / "state.sqlite").mail(0, 1)[0]) == b"as it was"


def test_only_new_scores_are_written_and_a_round_rolled_back_takes_its_own_along(tmp_path):
    store = Store(tmp_path / "s.sqlite")
    store.begin_round()
    store.put_scores({7: "[1,2,0.5]", 3: "[0,2,NaN]"})
    store.end_round(Checkpoint(1, b"", {}))
    store.commit()
    store.begin_round()
    store.put_scores({3: "[2,2,0.25]"})
    assert store.scores() == {3: "[2,2,0.25]", 7: "[1,2,0.5]"}
    store.back()
    assert list(store.scores().items()) == [(3, "[0,2,NaN]"), (7, "[1,2,0.5]")]
    store.close()
