"""Notice a container that ends early: FFmpeg decodes what is left of most, without an error."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Literal

_HEAD_BYTES = 64 << 10
_TAIL_BYTES = 27 + 255 + 255 * 255  # a page of Ogg
_TS_PACKET_BYTES = 188
_UNKNOWN = (1 << 32) - 1
_ISO_BOXES = frozenset(
    b"ftyp moov mdat free skip wide pnot styp sidx moof mfra meta uuid emsg prft ssix udta".split(b" ")
)
_MAX_FRAGMENTS = 64  # of which each is a request for a lazy member
_ASF_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
_SEGMENT = 0x18538067


def require_whole(file: Any) -> None:
    """Check that a file has all that its headers announce.

    Streams of mpg, aac and mp3 announce nothing, unless the last one has Xing's header, nor do mkv, webm, avi and wav
    that were written into a pipe. The parts of ts, flv and ogg announce their own size: that a file ends between two of
    them is not noticed.

    Raises:
        ValueError: if it ends early.
    """
    media = _Media(file)
    if media.end() > media.size:
        raise ValueError(f"it ends early, after {media.size:,} bytes: it was cut, or is written still. Make it again")
    file.seek(0)


class _Media:
    def __init__(self, file: Any) -> None:
        self._file = file
        self.size: int = file.seek(0, io.SEEK_END)
        self._head = self._read(0, _HEAD_BYTES)

    def end(self) -> int:
        """Return where the file ends by its own headers, 0 if they do not say it."""
        if self._head[4:8] in _ISO_BOXES:
            return self._end_of_iso()
        if self._head[:1] == self._head[_TS_PACKET_BYTES : _TS_PACKET_BYTES + 1] == b"\x47":
            return -(-self.size // _TS_PACKET_BYTES) * _TS_PACKET_BYTES
        return next((end(self) for begin, end in _ENDS.items() if self._head.startswith(begin)), 0)

    def _read(self, at: int, length: int) -> bytes:
        self._file.seek(max(0, at))
        found: bytes = self._file.read(length)
        return found

    def _number(self, at: int, length: int = 4, order: Literal["big", "little"] = "big") -> int:
        return int.from_bytes(self._read(at, length), order)

    def _end_of_iso(self) -> int:
        at = num_fragments = 0
        while at < self.size and num_fragments < _MAX_FRAGMENTS:
            kind, length = self._read(at + 4, 4), self._number(at)
            if length == 1:
                length = self._number(at + 8, 8)
            if kind not in _ISO_BOXES or length < 8:  # 0 for the rest of the file
                break
            num_fragments += kind == b"moof"
            at += length
        return at

    def _end_of_riff(self) -> int:
        at = 0
        while self._read(at, 4) == b"RIFF" and (length := self._number(at + 4, order="little")) != _UNKNOWN:
            # Some writers count the 8 bytes before
            at += length if at + length == self.size else 8 + length
        return at

    def _end_of_matroska(self) -> int:
        at = self._end_of_element(4)
        return self._end_of_element(at + 4) if self._number(at) == _SEGMENT else 0

    def _end_of_element(self, at: int) -> int:
        """Return the end of an element whose size is at a place, or where its content begins if that is unknown."""
        num_bytes = 9 - self._number(at, 1).bit_length()
        most = (1 << 7 * num_bytes) - 1
        length = self._number(at, num_bytes) & most
        return at + num_bytes + (0 if length == most else length)

    def _end_of_asf(self) -> int:
        at = self._head.find(_ASF_PROPERTIES)
        is_broadcast = at < 0 or self._number(at + 88, 1) & 1
        return 0 if is_broadcast else self._number(at + 40, 8, "little")

    def _end_of_flv(self) -> int:
        length = self._number(self.size - 4)
        return self.size + (self._number(self.size - 3 - length, 3) + 11 != length)

    def _end_of_ogg(self) -> int:
        tail = self._read(self.size - _TAIL_BYTES, _TAIL_BYTES)
        page = tail[tail.rfind(b"OggS") :]
        num_segments = page[26] if len(page) > 26 else 0
        return self.size - len(page) + 27 + num_segments + sum(page[27 : 27 + num_segments])

    def _end_of_mp3(self) -> int:
        at = max(self._head.find(b"Xing"), self._head.find(b"Info"))
        flags = 0 if at < 0 else self._number(at + 4)
        # In a frame of which at most 36 bytes are before it
        return at - 36 + self._number(at + (12 if flags & 1 else 8)) if flags & 2 else 0


_ENDS: dict[bytes, Callable[[_Media], int]] = {
    b"RIFF": _Media._end_of_riff,
    b"RF64": lambda media: 8 + media._number(20, 8, "little"),
    b"\x1a\x45\xdf\xa3": _Media._end_of_matroska,
    b"\x30\x26\xb2\x75": _Media._end_of_asf,
    b"FLV": _Media._end_of_flv,
    b"OggS": _Media._end_of_ogg,
    b"ID3": _Media._end_of_mp3,
    b"\xff": _Media._end_of_mp3,
}
