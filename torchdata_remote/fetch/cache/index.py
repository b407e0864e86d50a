"""Index of a cache folder, which all processes of a host share: SQLite, one transaction for many objects.

The sum of the packs' sizes is kept by triggers in the transaction that reserves or removes a pack, so it is right
after a kill at any step (:mod:`.index_file`). Data is written after its reservation was committed, and removed before
its row.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .folder import INDEX, make_own_folder
from .index_file import index_transaction
from .object_table import DROPPED, Entry, pack_entries

if TYPE_CHECKING:
    import sqlite3

MAX_SAMPLED = 1 << 32
_MAX_READS = 2_048  # in the sample
_ROWS = 256  # in one statement: each gives Python's lock away, for which many threads wait
_MIN_READS = 16  # of the sample, while as many bytes are read as the cache may hold
_SCHEMA = """
CREATE TABLE state (token TEXT, used INTEGER, clock INTEGER, sampled INTEGER)

CREATE TABLE packs (
  id INTEGER PRIMARY KEY AUTOINCREMENT, open INTEGER, bytes INTEGER, filled INTEGER, live INTEGER, last_use INTEGER)
CREATE INDEX open_packs ON packs (id) WHERE open
CREATE INDEX sparse_packs ON packs (id) WHERE NOT open AND live * 2 < bytes
CREATE INDEX unused_packs ON packs (last_use) WHERE NOT open
CREATE TRIGGER added AFTER INSERT ON packs BEGIN UPDATE state SET used = used + new.bytes; END
CREATE TRIGGER resized AFTER UPDATE OF bytes ON packs BEGIN UPDATE state SET used = used + new.bytes - old.bytes; END
CREATE TRIGGER removed AFTER DELETE ON packs BEGIN
  UPDATE state SET used = used - old.bytes; DELETE FROM batches WHERE pack = old.id; END

CREATE TABLE batches (id INTEGER PRIMARY KEY AUTOINCREMENT, pack INTEGER, entries BLOB, crc32s BLOB)
CREATE INDEX batches_of_pack ON batches (pack)

CREATE TABLE reads (clock INTEGER, name INTEGER)
CREATE INDEX reads_by_clock ON reads (clock)
"""
_TOKEN = re.compile("[0-9a-f]{16}")
_MAX_VALUE = 1 << 62
_MAX_PACK = 1 << 32


class CacheIndex:
    """The rows of a cache, and the folder of its packs. Not thread-safe. Usable after a fork.

    Args:
        folder: created if missing; only this user may write to it.
        user: of this process's files.

    Raises:
        DamagedIndexError: if it was damaged, and was removed.
        OSError: if it cannot be used.
    """

    def __init__(self, folder: str, user: int) -> None:
        make_own_folder(folder, user)
        self._path, self.user = os.path.join(folder, INDEX), user
        self._connection: sqlite3.Connection | None = None
        self._token = self._create()
        self.packs = os.path.join(folder, f"packs-{self._token}")  # an index that was lost takes its packs along
        make_own_folder(self.packs, user)

    def _create(self) -> str:
        with self._connected(create=True):
            if not self.execute("SELECT 1 FROM sqlite_master").fetchone():
                for statement in re.split(r"\n(?=CREATE)", _SCHEMA.strip()):
                    self.execute(statement)
                self.execute("INSERT INTO state VALUES (?, 0, 0, ?)", secrets.token_hex(8), MAX_SAMPLED)
            token, used = self._checked_state()
            if self.execute("SELECT total(bytes) FROM packs").fetchone() != (used,):
                raise ValueError("the packs' sizes are damaged")
            if not 0 <= self.execute("SELECT ifnull(max(seq), 0) FROM sqlite_sequence").fetchone()[0] < _MAX_PACK:
                raise ValueError("the packs' numbers are damaged")
        return token

    def _checked_state(self) -> tuple[str, int]:
        """Return the token, and the bytes of all packs."""
        [(token, used, clock, sampled)] = self.execute("SELECT token, used, clock, sampled FROM state").fetchall()
        if not _TOKEN.fullmatch(token) or not all(
            isinstance(value, int) and 0 <= value <= most
            for value, most in ((used, _MAX_VALUE), (clock, _MAX_VALUE), (sampled, MAX_SAMPLED))
        ):
            raise ValueError("its state is damaged")
        return token, used

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        """Execute one statement, within a transaction."""
        assert self._connection is not None
        return self._connection.execute(statement, values)

    @contextlib.contextmanager
    def _connected(self, *, create: bool) -> Iterator[None]:
        with index_transaction(self._path, self.user, create=create) as self._connection:
            try:
                yield
            finally:
                self._connection = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block that other processes see as one step, or not at all if it raises.

        Raises:
            OSError: if the disk is full, the folder or the index was removed, or another process does not end its
                transaction.
        """
        with self._connected(create=False):
            token, _ = self._checked_state()
            if token != self._token:
                raise FileNotFoundError(f"{self._path} was replaced by another process.")
            yield

    @property
    def num_bytes(self) -> int:
        """Size of its file."""
        return os.stat(self._path).st_size

    def used_and_clock(self) -> tuple[int, int]:
        """Return the bytes of all packs, and the number of bytes that were read so far."""
        used, clock = self.execute("SELECT used, clock FROM state").fetchone()
        return used, clock

    def batches_after(self, last: int) -> list[tuple[int, int, bytes, bytes]]:
        """Return id, pack, entries and further checksums of the batches after one."""
        return self.execute("SELECT id, pack, entries, crc32s FROM batches WHERE id > ? ORDER BY id", last).fetchall()

    def add_batch(self, pack: int, added: list[Entry], crc32s: Sequence[int], *, is_complete: bool) -> int:
        """Add objects of one pack, and the further checksums of the first; return the batch, 0 if it was removed."""
        updated = self.execute(
            "UPDATE packs SET filled = max(filled, ?), live = live + ?, open = open AND NOT ? WHERE id = ?",
            max(entry.offset + entry.size for entry in added),
            sum(entry.size for entry in added),
            is_complete,
            pack,
        )
        if not updated.rowcount:
            return 0
        return self._insert_batch(pack, added, struct.pack(f"<{len(crc32s)}I", *crc32s))

    def add_dropped(self, pack: int, dropped: list[Entry]) -> int:
        """Say that objects of one pack are not valid any more; return the batch, 0 if the pack was removed."""
        if not self.execute("SELECT 1 FROM packs WHERE id = ?", pack).fetchone():
            return 0
        return self._insert_batch(pack, [entry._replace(pack=DROPPED) for entry in dropped], b"")

    def _insert_batch(self, pack: int, entries: list[Entry], rest: bytes) -> int:
        cursor = self.execute(
            "INSERT INTO batches (pack, entries, crc32s) VALUES (?, ?, ?)", pack, pack_entries(entries), rest
        )
        return cursor.lastrowid or 0

    def record_replaced(self, num_bytes: Mapping[int, int]) -> None:
        """Record how many bytes of each pack are not valid any more."""
        for pack, replaced in num_bytes.items():
            self.execute("UPDATE packs SET live = max(0, live - ?) WHERE id = ?", replaced, pack)

    def remove_row(self, pack: int) -> None:
        """Remove what is known of a pack, after its file was removed."""
        self.execute("DELETE FROM packs WHERE id = ?", pack)

    def record_reads(self, num_bytes: int, sample: list[tuple[int, int]], used_packs: set[int]) -> None:
        """Advance the clock; ``sample`` are some of the objects, each after so many bytes."""
        _, clock = self.used_and_clock()
        if num_bytes:  # otherwise nothing may have to be written, which a full disk would refuse
            self.execute("UPDATE state SET clock = ?", clock + num_bytes)
        for first in range(0, len(sample), _ROWS):
            rows = sample[first : first + _ROWS]
            values = (value for after, name in rows for value in (clock + after, name >> 1))
            self.execute(f"INSERT INTO reads VALUES {', '.join(['(?, ?)'] * len(rows))}", *values)  # noqa: S608  # marks
        for pack in used_packs:
            self.execute("UPDATE packs SET last_use = ? WHERE id = ?", clock + num_bytes, pack)

    def reads(self) -> Iterator[tuple[int, int]]:
        """Yield clock and name of the reads in the sample, the last one first."""
        yield from self.execute("SELECT clock, name FROM reads ORDER BY clock DESC, rowid DESC")

    def limit_sample(self, window: int | None, max_bytes: int) -> int:
        """Keep the sample small, and large enough; return the share of objects in it, of 2**32."""
        _, clock = self.used_and_clock()
        (sampled,) = self.execute("SELECT sampled FROM state").fetchone()
        if window is not None:
            self.execute("DELETE FROM reads WHERE clock < ?", clock - 2 * window)
        (num_reads,) = self.execute("SELECT count(*) FROM reads").fetchone()
        (num_new,) = self.execute("SELECT count(*) FROM reads WHERE clock > ?", clock - max_bytes).fetchone()
        if num_reads > _MAX_READS:
            sampled = max(1, sampled // 2)
            self.execute("DELETE FROM reads WHERE name >> 31 >= ?", sampled)
        elif clock > max_bytes and num_new < _MIN_READS:
            sampled = min(MAX_SAMPLED, sampled * 2)
        self.execute("UPDATE state SET sampled = ?", sampled)
        return int(sampled)

    def sampled(self) -> int:
        """Return the share of objects in the sample, of 2**32."""
        return int(self.execute("SELECT sampled FROM state").fetchone()[0])
