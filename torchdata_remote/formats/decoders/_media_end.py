"""Notice a container that ends early: FFmpeg decodes what is left of most, without an error."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

_HEAD_BYTES = 64 << 10
_TAIL_BYTES = 27 + 255 + 255 * 255  # a page of Ogg
_TS_PACKET_BYTES = 188
_UNKNOWN = (1 << 32) - 1
_ISO_BOXES = frozenset(
    b"ftyp moov mdat free skip wide pnot styp sidx moof mfra meta uuid emsg prft ssix udta".split(b" ")
)
_MAX_FRAGMENTS = 64  # of which each is a request for a lazy member
_ASF_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
_EBML, _SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"

Read = Callable[[int, int], bytes]


def require_whole(file: Any) -> None:
    """Check that a file has all that its headers announce.

    Streams of mpg, aac and mp3 announce nothing, unless the last one has Xing's header. The parts of ts, flv and ogg
    announce their own size: that a file ends between two of them is not noticed.

    Raises:
        ValueError: if it ends early.
    """

    def read(at: int, length: int) -> bytes:
        file.seek(at)
        found: bytes = file.read(length)
        return found

    size = file.seek(0, io.SEEK_END)
    head = read(0, _HEAD_BYTES)
    try:
        end = _end_of(head)(read, head, size)
    except IndexError:  # within the headers
        end = size + 1
    if end > size:
        raise ValueError(f"it ends early, after {size:,} bytes: it was cut, or is written still. Make it again")
    file.seek(0)


def _end_of(head: bytes) -> Callable[[Read, bytes, int], int]:
    if head[4:8] in _ISO_BOXES:
        return _end_of_iso
    if head[:1] == head[_TS_PACKET_BYTES : _TS_PACKET_BYTES + 1] == b"\x47":
        return _end_of_ts
    return next((found for begin, found in _ENDS.items() if head.startswith(begin)), lambda *_: 0)


def _end_of_iso(read: Read, head: bytes, size: int) -> int:
    at = num_fragments = 0
    while at < size and num_fragments < _MAX_FRAGMENTS:
        box = read(at, 16)
        length = int.from_bytes(box[8:16] if box[:4] == b"\0\0\0\1" else box[:4], "big")
        if box[4:8] not in _ISO_BOXES or length < 8:  # 0 for the rest of the file
            break
        num_fragments += box[4:8] == b"moof"
        at += length
    return at


def _end_of_ts(read: Read, head: bytes, size: int) -> int:
    return -(-size // _TS_PACKET_BYTES) * _TS_PACKET_BYTES


def _end_of_riff(read: Read, head: bytes, size: int) -> int:
    at = 0
    while head[:4] == b"RIFF" and (length := int.from_bytes(head[4:8], "little")) != _UNKNOWN:
        # Some writers count the 8 bytes before
        at += length if at + length == size else 8 + length
        head = read(at, 8)
    return at


def _end_of_matroska(read: Read, head: bytes, size: int) -> int:
    length, at = _ebml_size(head, 4)
    if head[at + length : at + length + 4] != _SEGMENT:
        return 0
    length, at = _ebml_size(head, at + length + 4)
    return at + length


def _ebml_size(head: bytes, at: int) -> tuple[int, int]:
    """Return the size of an element, 0 if unknown, and where its content begins."""
    num_bytes = 9 - head[at].bit_length()
    size = int.from_bytes(head[at : at + num_bytes], "big") - (1 << 7 * num_bytes)
    return 0 if size == (1 << 7 * num_bytes) - 1 else size, at + num_bytes


def _end_of_asf(read: Read, head: bytes, size: int) -> int:
    at = head.find(_ASF_PROPERTIES)
    is_broadcast = at < 0 or head[at + 88] & 1
    return 0 if is_broadcast else int.from_bytes(head[at + 40 : at + 48], "little")


def _end_of_flv(read: Read, head: bytes, size: int) -> int:
    length = int.from_bytes(read(size - 4, 4), "big")
    tag = read(max(0, size - 4 - length), 4)
    return size + (int.from_bytes(tag[1:4], "big") + 11 != length)


def _end_of_ogg(read: Read, head: bytes, size: int) -> int:
    tail = read(max(0, size - _TAIL_BYTES), _TAIL_BYTES)
    page = tail[tail.rfind(b"OggS") :]
    return size - len(page) + 27 + page[26] + sum(page[27 : 27 + page[26]])


def _end_of_mp3(read: Read, head: bytes, size: int) -> int:
    at = max(head.find(b"Xing"), head.find(b"Info"))
    if at < 0 or not head[at + 7] & 2:
        return 0
    first = at + (12 if head[at + 7] & 1 else 8)
    # In a frame of which at most 36 bytes are before it
    return at - 36 + int.from_bytes(head[first : first + 4], "big")


_ENDS = {
    b"RIFF": _end_of_riff,
    _EBML: _end_of_matroska,
    b"\x30\x26\xb2\x75": _end_of_asf,
    b"FLV": _end_of_flv,
    b"OggS": _end_of_ogg,
    b"ID3": _end_of_mp3,
    b"\xff": _end_of_mp3,
}
