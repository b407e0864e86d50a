"""Notice a container that ends early: FFmpeg decodes what is left of most, without an error."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

_HEAD_BYTES = 64 << 10
_TAIL_BYTES = 27 + 255 + 255 * 255  # a page of Ogg; more than a pack of MPEG
_TS_PACKET_BYTES = 188
_UNKNOWN = (1 << 32) - 1
_ISO_BOXES = frozenset(
    b"ftyp moov mdat free skip wide pnot styp sidx moof mfra meta uuid emsg prft ssix udta".split(b" ")
)
_MAX_FRAGMENTS = 64  # of which each is a request for a lazy member
_ASF_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
_PACK, _PROGRAM_END = b"\0\0\1\xba", 0xB9
_EBML, _SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"


def require_whole(file: Any) -> None:
    """Check that a file has all that its headers announce.

    Streams of aac and mp3 announce nothing, unless the latter has Xing's header. The parts of mpg, ts, flv and ogg
    announce their own size: that a file ends between two of them is not noticed.

    Raises:
        ValueError: if it ends early.
    """
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(_HEAD_BYTES)
    try:
        end = max(_announced_ends(file, head, size), default=0)
    except IndexError:  # within the headers
        end = size + 1
    if end > size:
        raise ValueError(f"it ends early, after {size:,} bytes: it was cut, or is written still. Make it again")
    file.seek(0)


def _announced_ends(file: Any, head: bytes, size: int) -> Iterator[int]:
    def read(at: int, length: int) -> bytes:
        file.seek(at)
        found: bytes = file.read(length)
        return found

    if head[4:8] in _ISO_BOXES:
        at = num_fragments = 0
        while at < size and num_fragments < _MAX_FRAGMENTS:
            box = read(at, 16)
            length = int.from_bytes(box[8:16] if box[:4] == b"\0\0\0\1" else box[:4], "big")
            if box[4:8] not in _ISO_BOXES or length < 8:  # 0 for the rest of the file
                return
            num_fragments += box[4:8] == b"moof"
            at += length
            yield at
    elif head.startswith(b"RIFF"):
        at = 0
        while head[:4] == b"RIFF" and (length := int.from_bytes(head[4:8], "little")) != _UNKNOWN:
            # Some writers count the 8 bytes before
            at += length if at + length == size else 8 + length
            yield at
            head = read(at, 8)
    elif head.startswith(_EBML):
        at = 4
        length, at = _ebml_size(head, at)
        if head[at + length : at + length + 4] == _SEGMENT:
            length, at = _ebml_size(head, at + length + 4)
            yield at + length
    elif (at := head.find(_ASF_PROPERTIES)) > 0:
        is_broadcast = head[at + 88] & 1
        yield 0 if is_broadcast else int.from_bytes(head[at + 40 : at + 48], "little")
    elif head.startswith(b"FLV"):
        length = int.from_bytes(read(size - 4, 4), "big")
        tag = read(max(0, size - 4 - length), 4)
        yield size + (int.from_bytes(tag[1:4], "big") + 11 != length)
    elif head.startswith(b"OggS"):
        tail = read(max(0, size - _TAIL_BYTES), _TAIL_BYTES)
        page = tail[tail.rfind(b"OggS") :]
        num_segments = page[26] if len(page) > 26 else 255
        yield size - len(page) + 27 + num_segments + sum(page[27 : 27 + num_segments])
    elif head.startswith(_PACK):
        tail = read(max(0, size - _TAIL_BYTES), _TAIL_BYTES)
        at = tail.rfind(_PACK)
        # MPEG-2, with stuffing, or MPEG-1
        at += 14 + (tail[at + 13] & 7) if tail[at + 4] >> 6 == 1 else 12
        while tail[at : at + 3] == _PACK[:3]:
            at += 4 if tail[at + 3] == _PROGRAM_END else 6 + int.from_bytes(tail[at + 4 : at + 6], "big")
        yield size - len(tail) + at
    elif head[:1] == head[_TS_PACKET_BYTES : _TS_PACKET_BYTES + 1] == b"\x47":
        yield -(-size // _TS_PACKET_BYTES) * _TS_PACKET_BYTES
    elif (at := max(head.find(b"Xing"), head.find(b"Info"))) > 0 and head.startswith((b"ID3", b"\xff")):
        flags = head[at + 7]
        first = at + (12 if flags & 1 else 8)
        yield at - 36 + int.from_bytes(head[first : first + 4], "big") if flags & 2 else 0


def _ebml_size(head: bytes, at: int) -> tuple[int, int]:
    """Return the size of an element, 0 if unknown, and where its content begins."""
    num_bytes = 9 - head[at].bit_length()
    size = int.from_bytes(head[at : at + num_bytes], "big") - (1 << 7 * num_bytes)
    return 0 if size == (1 << 7 * num_bytes) - 1 else size, at + num_bytes
