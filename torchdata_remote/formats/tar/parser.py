"""Tar parser: one member at a time, with every field checked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ...errors import MissingEndError, ShardReadError
from ..byte_reader import ByteReader
from ..limits import MAX_MEMBER_BYTES
from ..text_instead import text_instead
from .extended_headers import EXTENDED_TYPES, MAX_RECORD_BYTES, SPARSE, Extended
from .header import BLOCK, CUT_SHORT, checksum_fits, fault, name_field, number_field, padding, text_field

_ZERO_BLOCK = bytes(BLOCK)
_FILE_TYPES = frozenset(b"0\x007")
_SKIPPED_TYPES = {**dict.fromkeys(b"12", "link"), **dict.fromkeys(b"346", "device"), ord("5"): "directory"}
_SYMBOLIC_TYPE = ord("2")
_SPARSE_TYPE = ord("S")
_ZEROS_BYTES = 1 << 20


@dataclass(frozen=True)
class TarOptions:
    """Options for reading an archive.

    Args:
        num_bytes: length of the archive, if it is known.
        first_byte: offset in the archive of the first byte that is read, which begins a header.
        last_byte: offset in the archive after the last byte that is read, if that is between two members.
        max_member_bytes: a member that claims more is an error, before memory is allocated for it.
        copy: whether data are ``bytes``; otherwise they are slices, which keep the parts in memory.
        on_skip: called with ``"directory"``, ``"link"`` or ``"device"`` for each member that is not a regular file.
        on_link: called for each link with its name, the path in it, and whether that is a symbolic link's: below the
            link's folder; a hard link's is the name of a member.
        on_missing_end: called with the error if the archive ends after a member, without its end-of-archive blocks;
            returns whether it is accepted.
    """

    num_bytes: int | None = None
    first_byte: int = 0
    last_byte: int | None = None
    max_member_bytes: int = MAX_MEMBER_BYTES
    copy: bool = True
    on_skip: Callable[[str], object] = lambda kind: None
    on_link: Callable[[str, str, bool], object] = lambda name, path, is_symbolic: None
    on_missing_end: Callable[[ShardReadError], object] = lambda error: False


class TarParser:
    """Parser of one archive. The caller reads or skips the data of each member before it asks for the next.

    Args:
        parts: the archive's bytes, in consecutive parts of any length.
        url: for error messages.
        options: limits.
    """

    def __init__(self, parts: Iterable[bytes | memoryview], url: str, options: TarOptions) -> None:
        self.cursor = ByteReader(parts, options.first_byte)
        self._url, self._options = url, options
        self._extended = Extended(url)
        # First byte of the current header
        self._start = 0
        # First byte of the current member, extended headers included
        self.member_start = 0

    def next_member(self) -> tuple[str, int] | None:
        """Return name and size of the next regular file; ``None`` at the archive's end.

        Raises:
            ShardReadError: if the archive is damaged or incomplete.
        """
        cursor, url = self.cursor, self._url
        while True:
            self._start = start = cursor.offset
            if not self._extended:
                self.member_start = start
            header = cursor.take(BLOCK)
            if header == _ZERO_BLOCK:
                self._expect_end()
                return None
            if len(header) < BLOCK:
                self._end_early(header)
                return None
            if not checksum_fits(header):
                what = f"a header whose checksum field says {header[148:156]!r}, which does not fit its bytes"
                raise fault(url, start, what if start else what + text_instead(header))
            kind, size = header[156], number_field(header[124:136], url, start)
            if kind in EXTENDED_TYPES:
                if size > MAX_RECORD_BYTES:
                    raise fault(url, start, f"a {size:,} byte extended header (limit {MAX_RECORD_BYTES:,})")
                self._extended.add(kind, self.take(size, "an extended header"), start)
                continue
            name = name_field(header)
            if self._extended or self._extended.records:
                name, size = self._extended.applied(name, size)
            if kind in _FILE_TYPES and not (kind == 0 and name.endswith("/")):
                self._check_size(name, size)
                return name, size
            if kind not in _SKIPPED_TYPES and kind != 0:
                what = SPARSE if kind == _SPARSE_TYPE else "which cannot be read as a stream"
                raise fault(url, start, f"member {name!r:.200} of type {chr(kind)!r}, {what}")
            # Links and directories have no data: their size field may be that of the target, or a quota
            skipped = _SKIPPED_TYPES.get(kind, "directory")
            if skipped == "link":
                path = self.records.get("linkpath") or text_field(header[157:257].partition(b"\0")[0])
                self._options.on_link(name, path, kind == _SYMBOLIC_TYPE)
            self._options.on_skip(skipped)

    @property
    def records(self) -> dict[str, str]:
        """The pax records of the current member, keyword -> value."""
        return self._extended.records

    def _check_size(self, name: str, size: int) -> None:
        limit, num_bytes = self._options.max_member_bytes, self._options.num_bytes
        if size > limit:
            what = f"member {name!r:.200} claims {size:,} bytes (max_member_bytes={limit:,})"
            raise fault(self._url, self._start, what, advice="Raise that limit, or write smaller members into")
        if num_bytes is not None and self.cursor.offset + size > num_bytes:
            left = f"{num_bytes - self.cursor.offset:,}"
            what = f"member {name!r:.200} claims {size:,} bytes where the object has {left} left"
            raise fault(self._url, self._start, what, advice=CUT_SHORT)

    def take(self, size: int, what: str) -> bytes:
        """Return the data of the current member, and skip its padding.

        Raises:
            ShardReadError: if the archive ends within them. The message names ``what`` was read.
        """
        data = self.cursor.take(size)
        self._finish(size, size - len(data), what)
        return data

    def pass_over(self, size: int, what: str) -> None:
        """Skip the data of the current member, and its padding.

        Raises:
            ShardReadError: as :meth:`take`.
        """
        self._finish(size, size - self.cursor.skip(size), what)

    def pieces(self, size: int, what: str, *, taken: int = 0) -> Iterator[memoryview]:
        """Yield the data of the current member as they arrive, from byte ``taken`` on; then skip its padding."""
        left = size - taken
        for piece in self.cursor.pieces(left):
            left -= len(piece)
            yield piece
        self._finish(size, left, what)

    def _finish(self, size: int, missing: int, what: str) -> None:
        if missing:
            message = f"{what} holds {size - missing:,} of {size:,} bytes"
            raise fault(self._url, self._start, message, advice=CUT_SHORT)
        if self.cursor.skip(padding(size)) < padding(size):
            raise fault(self._url, self._start, f"the archive ends in the padding of {what}", advice=CUT_SHORT)

    def _end_early(self, rest: bytes) -> None:
        if self._start == self._options.last_byte and not self._extended:
            return
        if rest or self._extended:
            where = "in a header" if rest else "after an extended header, without its member"
            advice = CUT_SHORT if self._start else f"It is not a tar, or {CUT_SHORT[0].lower()}{CUT_SHORT[1:]}"
            what = f"the archive ends {where}" + ("" if self._start else text_instead(rest))
            raise fault(self._url, self._start, what, advice=advice)
        if not self._start:
            raise fault(self._url, 0, "the file has no byte", advice=CUT_SHORT)
        error = MissingEndError(
            f"{self._url}: at byte {self._start:,}: the archive ends without its end-of-archive blocks. The upload "
            "was cut short: write the shard again; or, if its writer leaves them out, pass "
            "on_bad_shard=accept_missing_end.",
            url=self._url,
        )
        try:
            if not self._options.on_missing_end(error):
                raise error
        finally:
            del error  # or error and frame would keep each other

    def _expect_end(self) -> None:
        """After the first zero block, expect another one, and nothing but zeros after it."""
        url, start = self._url, self.cursor.offset
        if self._extended:
            raise fault(url, start, "an extended header without a member")
        second = self.cursor.take(BLOCK)
        if len(second) < BLOCK:
            raise fault(url, start, "the archive ends between its two end-of-archive blocks", advice=CUT_SHORT)
        while second:
            if second.strip(b"\0"):
                raise fault(url, start, "data after the end of the archive; tars cannot be put together by appending")
            start = self.cursor.offset
            second = self.cursor.take(_ZEROS_BYTES)
        # Without a member, an archive is its two end-of-archive blocks, or a record of 20 blocks
        if not self._start and start not in (1_024, 10_240):
            what = f"{start:,} zero bytes, as a crashed disk leaves them; a tar without a member has 1,024 or 10,240"
            raise fault(url, 0, what, advice="Remove it, or write")
