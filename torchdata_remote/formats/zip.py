"""Read zip archives by ``zipfile``: the directory by ranges of the object, then the members as their bytes arrive."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from stat import S_IFMT, S_ISLNK, S_ISREG, S_IXUSR
from typing import NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from ..errors import RemoteDataError, ShardReadError
from .byte_reader import ByteReader, join_chunks
from .limits import FREE_BYTES, MAX_MEMBER_BYTES, MAX_RATIO
from .positioned_file import PositionedFile
from .text_instead import text_instead

_TAIL_BYTES = 66 << 10  # room for the longest comment (65,535 bytes) and the three end records (98)
_MAX_DIRECTORY_BYTES = 256 << 20
_PIECE_BYTES = 256 << 10
_END = struct.Struct("<4s6xH2LH")  # PKWARE's APPNOTE.TXT 6.3.10
_END64, _LOCATOR_BYTES = struct.Struct("<4s28x3Q"), 20
_UTF8 = 1 << 11
_ERRORS = (BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, zlib.error, struct.error)


class ZipMember(NamedTuple):
    """A member whose data are read next.

    Args:
        path: its name. UTF-8 if its flag says so or its bytes are valid UTF-8, else cp437.
        kind: ``"file"``, ``"directory"`` or ``"link"``.
        num_bytes: of its data.
        start: byte at which its header begins.
        pieces: its data, of at most 256 KiB each; raises after the last one if they are not those of the directory.
    """

    path: str
    kind: str
    num_bytes: int
    start: int
    pieces: Iterator[bytes]

    def read(self) -> bytes:
        """Return the data, which take their length of memory once."""
        # One piece is not copied
        return b"".join(self.pieces) if self.num_bytes <= _PIECE_BYTES else join_chunks(self.pieces, self.num_bytes)


class ZipArchive:
    """A zip archive. Its directory is read by one range of the last 66 KiB, and a second one if it is larger.

    Args:
        read_range: called with start and end byte (exclusive); returns exactly those bytes.
        num_bytes: length of the object.
        url: for error messages.

    Raises:
        ShardReadError: for an archive that is incomplete, or surrounded by bytes that its end record does not count.
    """

    def __init__(self, read_range: Callable[[int, int], bytes], num_bytes: int, url: str) -> None:
        self._url, self._file = url, _ArchiveFile(read_range, num_bytes)
        with self._errors(num_bytes):
            count = self._file.expected_members()
            self._zip = ZipFile(self._file)
            if len(self._zip.infolist()) != count:
                raise BadZipFile(f"the directory holds {len(self._zip.infolist()):,} members, its end counts {count:,}")

    def members(
        self,
        parts: Iterable[bytes | memoryview],
        *,
        start: int = 0,
        max_member_bytes: int = MAX_MEMBER_BYTES,
        max_ratio: int = MAX_RATIO,
    ) -> Iterator[ZipMember]:
        """Yield each member, in the order of their offsets. What of its data is not read is passed over, and compared.

        Members must not overlap, which refuses the bombs of Fifield, "A better zip bomb" (2019).

        Args:
            parts: the archive's bytes from ``start`` on, of any length. Those from the directory on are not requested.
            start: byte at which a member begins; those before it are left out.
            max_member_bytes: a member that claims more is an error, before memory is allocated for it.
            max_ratio: a member that claims more than 16 MiB and this many times its compressed length is an error.

        Raises:
            ShardReadError: for a member that is encrypted, of another method than 0 and 8, differs from the directory,
                or ends early. The message has the offset.
        """
        self._file.open(parts, start)
        for info in sorted(self._zip.infolist(), key=attrgetter("header_offset")):
            if info.header_offset < start:
                continue
            with self._errors(info.header_offset):
                if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
                    raise BadZipFile(f"member {info.filename!r:.200} has method {info.compress_type}, not 0 or 8")
                path, limit = _path(info), min(max_member_bytes, FREE_BYTES + max_ratio * info.compress_size)
                if info.file_size > limit:
                    raise BadZipFile(
                        f"member {path!r:.200} claims {info.file_size:,} bytes for {info.compress_size:,} compressed "
                        f"ones (at most {limit:,}: max_member_bytes={max_member_bytes:,}, max_ratio={max_ratio:,})"
                    )
                kind = _kind(info)
            pieces = self._pieces(info, path)
            yield ZipMember(path, kind, info.file_size, info.header_offset, pieces)
            for _ in pieces:
                pass

    def _pieces(self, info: ZipInfo, path: str) -> Iterator[bytes]:
        num_bytes = 0
        with self._errors(info.header_offset, f"member {path!r:.200}: "), self._zip.open(info) as file:
            while piece := file.read(_PIECE_BYTES):
                num_bytes += len(piece)
                yield piece
            if num_bytes != info.file_size:
                raise BadZipFile(f"{num_bytes:,} of {info.file_size:,} bytes")

    @contextmanager
    def _errors(self, offset: int, what: str = "") -> Iterator[None]:
        try:
            yield
        except RemoteDataError:
            raise
        except _ERRORS as error:
            raise ShardReadError(
                f"{self._url}: at byte {offset:,}: {what}{str(error) or 'it ends early'}. It was cut short, is damaged "
                "or no zip: write the archive again.",
                url=self._url,
            ) from error


class _ArchiveFile(PositionedFile):
    """The archive as a file: its directory by ranges; then, forward only, what arrives."""

    def __init__(self, read_range: Callable[[int, int], bytes], num_bytes: int) -> None:
        super().__init__(num_bytes)
        self._read_range, self._tail_start = read_range, max(0, num_bytes - _TAIL_BYTES)
        self._tail = read_range(self._tail_start, num_bytes) if num_bytes else b""
        self._reader: ByteReader | None = None

    def open(self, parts: Iterable[bytes | memoryview], start: int) -> None:
        """Read on from the bytes that arrive."""
        self._tail, self._reader = b"", ByteReader(parts, start)

    def read(self, size: int | None = -1) -> bytes:
        start, reader = self._at, self._reader
        self._at = end = self._num_bytes if size is None or size < 0 else min(start + size, self._num_bytes)
        if reader is None:
            at = start - self._tail_start
            return self._tail[at : at + end - start] if at >= 0 else self._read_range(start, end)
        if start < reader.offset:
            raise BadZipFile("it overlaps the member before it")
        reader.skip(start - reader.offset)
        data = reader.take(end - start)
        if len(data) < end - start:
            raise EOFError(f"the bytes end at byte {reader.offset:,}, before the end of the archive")
        return data

    def expected_members(self) -> int:
        """Return the number of members by the end record, and require that it belongs to this archive as a whole.

        ``zipfile`` takes the last of several records, ignores the number, and guesses where the directory is.
        """
        tail, at = self._tail, self._tail.rfind(b"PK\5\6")
        if at < 0 or at + _END.size > len(tail):
            what = text_instead(tail[:512]) if not self._tail_start else ""
            raise BadZipFile(f"the object ends with no end record (PK\\5\\6){what}")
        _, count, size, start, comment_bytes = _END.unpack_from(tail, at)
        stops = at
        if tail[:at][-_LOCATOR_BYTES:].startswith(b"PK\6\7"):
            stops = at - _LOCATOR_BYTES - _END64.size
            _, count, size, start = _END64.unpack_from(tail, stops)
        if at + _END.size + comment_bytes != len(tail) or start + size != self._tail_start + stops:
            raise BadZipFile(
                f"the end record is of another archive: the directory is {size:,} bytes at byte {start:,}, and should "
                f"end at byte {self._tail_start + stops:,}; zip -A mends what was put before an archive"
            )
        if size > _MAX_DIRECTORY_BYTES:
            raise BadZipFile(f"a directory of {size:,} bytes (at most {_MAX_DIRECTORY_BYTES:,})")
        return int(count)


def _path(info: ZipInfo) -> str:
    name = info.orig_filename
    if info.flag_bits & _UTF8:
        return name
    try:
        return name.encode("cp437").decode()
    except UnicodeDecodeError:
        return name


def _kind(info: ZipInfo) -> str:
    """Return the kind of a member. No checksum covers a mode: a link that has a file's may have a flipped bit."""
    mode = info.external_attr >> 16
    if info.is_dir() and not info.file_size:
        return "directory"
    if info.is_dir() or not (S_ISREG(mode) or not S_IFMT(mode) or (S_ISLNK(mode) and mode & S_IXUSR)):
        raise BadZipFile(f"member {info.filename!r:.200} of {info.file_size:,} bytes with the mode {mode:#o}")
    return "link" if S_ISLNK(mode) else "file"
