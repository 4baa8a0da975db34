"""What a run knows, clients, server and progress, in one SQLite file that survives a kill at any moment.

SQLite gives what a checkpoint needs: a round is one transaction, so the file always holds the end of a whole round;
only the clients that changed are written; and memory does not grow with the number of clients. Messages
between peers lie there too, or, if they are large, in files beside it, which workers read directly.

An engine may leave what its workers made where they made it (``Elsewhere``). Such values and messages are handed on
without being looked at, and are fetched only for a checkpoint: the last of each.
"""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsona.engines.atomic_file import write


class Elsewhere(ABC):
    """Bytes that lie where they were made, and are fetched when they are needed here."""

    nbytes: int

    @abstractmethod
    def fetch(self) -> bytes:
        """The bytes."""


Blob = bytes | Elsewhere
Letter = Blob | Path  # an encoded message, or the file that holds it
_LARGE = 1 << 22  # bytes from which a message gets a file


def here(letter: Letter) -> bytes:
    """Bytes, wherever they lie."""
    if isinstance(letter, Elsewhere):
        return letter.fetch()
    return letter.read_bytes() if isinstance(letter, Path) else letter


def nbytes(letter: Letter) -> int:
    """How many bytes an encoded message has."""
    if isinstance(letter, Elsewhere):
        return letter.nbytes
    return letter.stat().st_size if isinstance(letter, Path) else len(letter)


class StoreError(RuntimeError):
    """The state could not be written or read; what was committed before is intact."""


@dataclass(frozen=True)
class Checkpoint:
    """The end of a round."""

    rounds_done: int
    server: bytes  # without the parts that are stored separately
    progress: dict[str, Any]  # the best model's round, votes, lengths of the result files


_Name = int | tuple[int, int]  # a client's value, or its message of a round


@dataclass
class _Unfetched:
    """What lies elsewhere, and which of it is not in the file yet."""

    values: dict[int, Elsewhere] = field(default_factory=dict)
    letters: dict[tuple[int, int], Elsewhere] = field(default_factory=dict)
    unwritten: set[_Name] = field(default_factory=set)

    def copy(self) -> _Unfetched:
        """As it is now, whatever becomes of it."""
        return _Unfetched(dict(self.values), dict(self.letters), set(self.unwritten))

    def forget(self, name: _Name) -> None:
        """It is not there, or of no use any more."""
        if isinstance(name, tuple):
            self.letters.pop(name, None)
        else:
            self.values.pop(name, None)
        self.unwritten.discard(name)


class Store:
    """Client values by number, and the last checkpoint; without a path it lives in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._away = _Unfetched()
        self._before = _Unfetched()  # as it was when the last round began
        self._box = None if path is None else path.absolute().with_suffix(".mail")
        try:
            self._db = sqlite3.connect(":memory:" if path is None else path, isolation_level=None, timeout=1)
            self._db.execute("PRAGMA page_size = 32768")  # models are large blobs: four times as fast as small pages
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")  # one run, one process
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("PRAGMA cache_size = -65536")
            self._db.execute("BEGIN IMMEDIATE")  # all tables at once: each would write its pages to the log again
            self._db.execute("CREATE TABLE IF NOT EXISTS clients (k INTEGER PRIMARY KEY, value BLOB NOT NULL)")
            self._db.execute("CREATE TABLE IF NOT EXISTS versions (k INTEGER PRIMARY KEY, version TEXT NOT NULL)")
            self._db.execute("CREATE TABLE IF NOT EXISTS parts (name TEXT PRIMARY KEY, value BLOB NOT NULL)")
            self._db.execute("CREATE TABLE IF NOT EXISTS scores (k INTEGER PRIMARY KEY, score TEXT NOT NULL)")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS mail (k INTEGER, t INTEGER, data BLOB NOT NULL, value_nbytes INTEGER "
                "NOT NULL, PRIMARY KEY (k, t)) WITHOUT ROWID"
            )
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS checkpoint (one INTEGER PRIMARY KEY CHECK (one = 1), "
                "rounds INTEGER NOT NULL, server BLOB NOT NULL, progress TEXT NOT NULL)"
            )
            self._db.execute("COMMIT")
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            busy = (
                "another process is using this run; wait until it ends, or stop it"
                if "locked" in str(error)
                else str(error)
            )
            raise StoreError(f"cannot open the state in {path}: {busy}") from error

    def client(self, k: int) -> Blob | None:
        """Client k's value, or None if it has none yet."""
        if k in self._away.values:
            return self._away.values[k]
        row = self._do("SELECT value FROM clients WHERE k = ?", (k,)).fetchone()
        return None if row is None else row[0]

    def clients(self) -> list[int]:
        """The clients that have a value."""
        return sorted({row[0] for row in self._do("SELECT k FROM clients")} | self._away.values.keys())

    def begin_round(self) -> None:
        """From here to ``end_round`` is one round, kept whole or not at all."""
        self._before = self._away.copy()
        self._do("SAVEPOINT round")

    def back(self) -> None:
        """Roll back what was put since the round began; the round continues."""
        self._away = self._before.copy()
        self._do("ROLLBACK TO round")

    def put(self, k: int, value: Blob) -> None:
        """Client k's new value, kept with the round."""
        if isinstance(value, Elsewhere):
            self._away.values[k] = value
            self._away.unwritten.add(k)
            return
        self._away.forget(k)
        self._do("INSERT OR REPLACE INTO clients VALUES (?, ?)", (k, value))

    def drop(self, k: int) -> None:
        """Client k has no value any more, as before it joined; kept with the round."""
        self._away.forget(k)
        self._do("DELETE FROM clients WHERE k = ?", (k,))
        self._do("DELETE FROM versions WHERE k = ?", (k,))

    def version(self, k: int) -> str | None:
        """On a fleet, the version of client k's value, which stays on its device; None if it has none yet."""
        row = self._do("SELECT version FROM versions WHERE k = ?", (k,)).fetchone()
        return None if row is None else row[0]

    def versions(self) -> dict[int, str]:
        """On a fleet, the versions of all clients that have a value."""
        return dict(self._do("SELECT k, version FROM versions ORDER BY k").fetchall())

    def put_version(self, k: int, version: str) -> None:
        """The version of client k's new value, kept with the round."""
        self._do("INSERT OR REPLACE INTO versions VALUES (?, ?)", (k, version))

    def mail(self, k: int, before: int) -> tuple[Letter, int]:
        """Client k's last message to its peers before this round, encoded, and how many of its bytes are values."""
        sql = "SELECT data, value_nbytes, t FROM mail WHERE k = ? AND t < ? ORDER BY t DESC LIMIT 1"
        row = self._do(sql, (k, before)).fetchone()
        if row is None:
            raise StoreError(f"the state in {self.path or 'memory'} is damaged: client {k} has no message")
        letter = self._away.letters.get((k, row[2]))
        return letter or bytes(row[0]) or self._file(k, row[2]), int(row[1])

    def mailed(self, k: int) -> int:
        """The round of client k's last message."""
        return int(self._do("SELECT max(t) FROM mail WHERE k = ?", (k,)).fetchone()[0])

    def put_mail(self, k: int, t: int, data: Blob, value_nbytes: int) -> None:
        """Keep client k's message to its peers in round t."""
        self._away.forget((k, t))
        if isinstance(data, Elsewhere):
            self._away.letters[k, t] = data
            self._away.unwritten.add((k, t))
        data = b"" if isinstance(data, Elsewhere) else self._laid(k, t, data)
        self._do("INSERT OR REPLACE INTO mail VALUES (?, ?, ?, ?)", (k, t, data, value_nbytes))

    def _laid(self, k: int, t: int, data: bytes) -> bytes:
        """What to write of a message: all, or nothing if it is large and lies in a file now."""
        if self._box is not None and len(data) >= _LARGE and not self._file(k, t).exists():  # a crash may go back to it
            try:
                self._box.mkdir(exist_ok=True)
                write(self._file(k, t), data)
            except OSError as error:
                raise StoreError(f"cannot write to {self._box}: {error}; the last checkpoint is intact") from error
            return b""
        return data

    def forget_mail(self, before: int) -> None:
        """Drop messages from before a round, except each client's last."""
        self._do(
            "DELETE FROM mail AS old WHERE t < ? AND EXISTS "
            "(SELECT 1 FROM mail AS new WHERE new.k = old.k AND new.t > old.t)",
            (before,),
        )
        if self._away.letters:
            known = {(k, t) for k, t in self._do("SELECT k, t FROM mail")}
            for name in self._away.letters.keys() - known:
                self._away.forget(name)

    def part(self, name: str) -> bytes:
        """A part of the server's value that is stored separately."""
        row = self._do("SELECT value FROM parts WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise StoreError(f"the checkpoint in {self.path or 'memory'} is damaged: it has no {name}")
        return bytes(row[0])

    def put_part(self, name: str, value: bytes) -> None:
        """A part of the server's value that changed, kept with the round."""
        self._do("INSERT OR REPLACE INTO parts VALUES (?, ?)", (name, value))

    def scores(self) -> dict[int, str]:
        """Each client's last score after training, as text, in the order of clients."""
        return dict(self._do("SELECT k, score FROM scores ORDER BY k").fetchall())

    def put_scores(self, scores: Mapping[int, str]) -> None:
        """Clients' new scores, kept with the round; those of all others stay, and are not written again."""
        self._do_all("INSERT OR REPLACE INTO scores VALUES (?, ?)", scores.items())

    def end_round(self, checkpoint: Checkpoint) -> None:
        """The round is whole; the checkpoint belongs to it, so that clients and server never come apart."""
        text = json.dumps(checkpoint.progress, separators=(",", ":"))
        row = (checkpoint.rounds_done, checkpoint.server, text)
        self._do("INSERT OR REPLACE INTO checkpoint VALUES (1, ?, ?, ?)", row)
        self._do("RELEASE round")

    def commit(self) -> None:
        """Make the rounds that are whole the state that a crash goes back to."""
        self._fetch()
        self._do("COMMIT")
        self._do("BEGIN IMMEDIATE")
        if self._box is not None and self._box.exists():  # not before: a crash may go back to older messages
            known = {self._file(*row) for row in self._do("SELECT k, t FROM mail")}
            for file in set(self._box.iterdir()) - known:
                file.unlink()

    def rescue(self) -> None:
        """Commit the rounds that are whole and forget one that is not: for the moment when everything else fails."""
        try:
            whole = self._db.in_transaction  # or SQLite rolled back: a write now would be outside of the transaction
        except sqlite3.ProgrammingError:  # it is closed: the run was over
            whole = False
        if not whole:
            return
        with suppress(sqlite3.Error):
            self._db.execute("ROLLBACK TO round")  # an error if no round is under way, which is as good
            self._away = self._before
        try:
            self._fetch()
            self._db.execute("COMMIT")
        except (sqlite3.Error, RuntimeError):  # what lay elsewhere may be lost; half a checkpoint would be none
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")

    def _fetch(self) -> None:
        """Write what lies elsewhere and is not written yet, one after the other; it stays where it is all the same."""
        if self.path is None:
            return
        for name in sorted(self._away.unwritten, key=str):
            if isinstance(name, tuple):
                data = self._laid(*name, self._away.letters[name].fetch())
                self._do("UPDATE mail SET data = ? WHERE k = ? AND t = ?", (data, *name))
            else:
                value = self._away.values[name].fetch()
                self._do("INSERT OR REPLACE INTO clients VALUES (?, ?)", (name, value))
            self._away.unwritten.discard(name)

    def checkpoint(self) -> Checkpoint | None:
        """The last checkpoint."""
        row = self._do("SELECT rounds, server, progress FROM checkpoint").fetchone()
        try:
            return None if row is None else Checkpoint(row[0], row[1], json.loads(row[2]))
        except ValueError as error:
            raise StoreError(f"the checkpoint in {self.path or 'memory'} is damaged: {error}") from error

    def close(self) -> None:
        """Leave; what was not committed is forgotten."""
        self._db.close()

    def _file(self, k: int, t: int) -> Path:
        assert self._box is not None
        return self._box / f"client-{k:05d}-round-{t + 1}.message"

    def _do(self, sql: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(sql, values)
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _do_all(self, sql: str, rows: Iterable[tuple[object, ...]]) -> None:
        try:
            self._db.executemany(sql, rows)
        except sqlite3.Error as error:
            raise self._failure(error) from error

    def _failure(self, error: sqlite3.Error) -> StoreError:
        where = self.path or "memory"
        return StoreError(f"cannot write or read the state in {where}: {error}; the last checkpoint is intact")
