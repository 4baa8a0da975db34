"""What a run knows: client values, the server and the progress, in one SQLite file that survives a kill at any moment.

SQLite gives what a checkpoint needs: a round is one transaction, so the file always holds the end of a whole round;
only the clients that changed are written; and memory does not grow with the number of clients. What peers tell each
other lies there too, or, where a message is large, in a file beside it, which workers read by themselves.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsona.engines.files import write

Letter = bytes | Path  # an encoded message, or the file that holds it
_LARGE = 1 << 22  # bytes from which a message gets a file


def nbytes(letter: Letter) -> int:
    """How many bytes an encoded message has."""
    return letter.stat().st_size if isinstance(letter, Path) else len(letter)


class StoreError(RuntimeError):
    """The state could not be written or read; what was committed before is intact."""


@dataclass(frozen=True)
class Checkpoint:
    """The end of a round."""

    rounds_done: int
    server: bytes  # without the parts that are kept by themselves
    progress: dict[str, Any]  # totals, latest scores, lengths of the result files


class Store:
    """Client values by number, and the last checkpoint; without a path it lives in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._box = None if path is None else path.absolute().with_suffix(".mail")
        try:
            self._db = sqlite3.connect(":memory:" if path is None else path, isolation_level=None, timeout=1)
            self._db.execute("PRAGMA page_size = 32768")  # models are large blobs: four times as fast as small pages
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")  # one run, one process
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = NORMAL")
            self._db.execute("PRAGMA cache_size = -65536")
            self._db.execute("CREATE TABLE IF NOT EXISTS clients (k INTEGER PRIMARY KEY, value BLOB NOT NULL)")
            self._db.execute("CREATE TABLE IF NOT EXISTS parts (name TEXT PRIMARY KEY, value BLOB NOT NULL)")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS mail (k INTEGER, t INTEGER, data BLOB NOT NULL, value_nbytes INTEGER "
                "NOT NULL, PRIMARY KEY (k, t)) WITHOUT ROWID"
            )
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS checkpoint (one INTEGER PRIMARY KEY CHECK (one = 1), "
                "rounds INTEGER NOT NULL, server BLOB NOT NULL, progress TEXT NOT NULL)"
            )
            self._db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            busy = "another process is at work on this run" if "locked" in str(error) else str(error)
            raise StoreError(f"cannot open the state in {path}: {busy}") from error

    def client(self, k: int) -> bytes | None:
        """Client k's value, or None if it has none yet."""
        row = self._do("SELECT value FROM clients WHERE k = ?", (k,)).fetchone()
        return None if row is None else row[0]

    def clients(self) -> list[int]:
        """The clients that have a value."""
        return [row[0] for row in self._do("SELECT k FROM clients ORDER BY k")]

    def begin_round(self) -> None:
        """From here to ``end_round`` is one round, kept whole or not at all."""
        self._do("SAVEPOINT round")

    def put(self, k: int, value: bytes) -> None:
        """Client k's new value, kept with the round."""
        self._do("INSERT OR REPLACE INTO clients VALUES (?, ?)", (k, value))

    def drop(self, k: int) -> None:
        """Client k has no value any more, as before it joined; kept with the round."""
        self._do("DELETE FROM clients WHERE k = ?", (k,))

    def mail(self, k: int, before: int) -> tuple[Letter, int]:
        """What client k last told its peers in a round before this one, encoded, and how many bytes are values."""
        sql = "SELECT data, value_nbytes, t FROM mail WHERE k = ? AND t < ? ORDER BY t DESC LIMIT 1"
        row = self._do(sql, (k, before)).fetchone()
        if row is None:
            raise StoreError(f"the state in {self.path or 'memory'} is damaged: client {k} has no message")
        return bytes(row[0]) or self._file(k, row[2]), int(row[1])

    def put_mail(self, k: int, t: int, data: bytes, value_nbytes: int) -> None:
        """What client k tells its peers in round t, kept with the round."""
        if self._box is not None and len(data) >= _LARGE:
            try:
                self._box.mkdir(exist_ok=True)
                write(self._file(k, t), data)
            except OSError as error:
                raise StoreError(f"cannot write to {self._box}: {error}; the last checkpoint is intact") from error
            data = b""
        self._do("INSERT OR REPLACE INTO mail VALUES (?, ?, ?, ?)", (k, t, data, value_nbytes))

    def forget_mail(self, before: int) -> None:
        """Drop what clients said before a round, unless it is the last that they said."""
        self._do(
            "DELETE FROM mail AS old WHERE t < ? AND EXISTS "
            "(SELECT 1 FROM mail AS new WHERE new.k = old.k AND new.t > old.t)",
            (before,),
        )

    def part(self, name: str) -> bytes:
        """A part of the server's value that is kept by itself."""
        row = self._do("SELECT value FROM parts WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise StoreError(f"the checkpoint in {self.path or 'memory'} is damaged: it has no {name}")
        return bytes(row[0])

    def put_part(self, name: str, value: bytes) -> None:
        """A part of the server's value that changed, kept with the round."""
        self._do("INSERT OR REPLACE INTO parts VALUES (?, ?)", (name, value))

    def end_round(self, checkpoint: Checkpoint) -> None:
        """The round is whole; the checkpoint belongs to it, so that clients and server never come apart."""
        text = json.dumps(checkpoint.progress, separators=(",", ":"))
        row = (checkpoint.rounds_done, checkpoint.server, text)
        self._do("INSERT OR REPLACE INTO checkpoint VALUES (1, ?, ?, ?)", row)
        self._do("RELEASE round")

    def commit(self) -> None:
        """Make the rounds that are whole the state that a crash goes back to."""
        self._do("COMMIT")
        self._do("BEGIN IMMEDIATE")
        if self._box is not None and self._box.exists():  # not before: a crash may go back to older messages
            known = {self._file(*row) for row in self._do("SELECT k, t FROM mail")}
            for file in set(self._box.iterdir()) - known:
                file.unlink()

    def rescue(self) -> None:
        """Commit the rounds that are whole and forget one that is not: for the moment when everything else fails."""
        with suppress(sqlite3.Error):
            self._db.execute("ROLLBACK TO round")  # an error if no round is under way, which is as good
        with suppress(sqlite3.Error):
            self._db.execute("COMMIT")

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
            raise StoreError(
                f"cannot write or read the state in {self.path or 'memory'}: {error}; the last checkpoint is intact"
            ) from error
