"""What the decoders of video and audio share: which files they open, and the sections that they decode."""

from __future__ import annotations

import io
import re
from typing import Any

from ...core.arguments import check
from ...core.arguments.amounts import seconds
from ..member_file import MemberFile

MAX_BYTES = 2 << 30
"""Limit of what one call decodes."""

_ISO_BOXES = frozenset({b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp", b"sidx", b"moof"})
_MAGIC = (
    b"\x1a\x45\xdf\xa3",  # Matroska, WebM
    b"\x00\x00\x01\xba",  # MPEG program stream
    b"\x00\x00\x01\xb3",  # MPEG video
    b"\x30\x26\xb2\x75",  # ASF: wmv, wma
    b"FLV\x01",
    b"OggS\x00",
    b"fLaC\x00",
    b"ID3\x02",
    b"ID3\x03",
    b"ID3\x04",
)
_HEAD_BYTES = 16 << 10
# What FFmpeg looks for beyond the first bytes, up to the first zero byte: DASH and IMF, which may begin with a comment,
# and SDP, which may begin with any line. Other formats that name files or addresses begin with their mark.
_PLAYLISTS = re.compile(rb"<MPD|<CompositionPlaylist|c=IN IP", re.IGNORECASE)
_RIFF = {b"RIFF": (b"WAVE", b"AVI "), b"RF64": (b"WAVE",)}

Source = bytes | MemberFile | io.BufferedIOBase


def container(source: Source) -> Any:
    """Return bytes or a file for a library of media, if its beginning is that of a container.

    FFmpeg guesses formats by content, and some are playlists, which name further files and addresses to open. Those
    are refused, because others may have written the members: also those that begin as a container does.

    Raises:
        ValueError: for another beginning.
    """
    if isinstance(source, bytes):
        head, size = source[:_HEAD_BYTES], len(source)
    else:
        source.seek(0)
        head = source.read(_HEAD_BYTES)
        size = source.seek(0, io.SEEK_END)
        source.seek(0)
    text, zero, _ = head.partition(b"\0")
    if _PLAYLISTS.search(text) or (not zero and size > len(head)):
        raise ValueError(f"it begins with {head[:12]!r}, but the text of a playlist may follow, which is not opened")
    if not _is_container(head):
        raise ValueError(
            f"it begins with {head[:12]!r}, which is none of mp4, mov, mkv, webm, avi, mpg, ts, flv, wmv, ogg, wav, "
            "flac, mp3, aac. Pass a decoder of your own for another format"
        )
    return source


def _is_container(head: bytes) -> bool:
    if head[4:8] in _ISO_BOXES or head.startswith(_MAGIC):
        return True
    if head[8:12] in _RIFF.get(head[:4], ()):
        return True
    is_stream = len(head) >= 377 and head[0] == head[188] == head[376] == 0x47  # MPEG transport stream
    # MP3, and AAC in ADTS: eleven bits of synchronisation
    return is_stream or (head[:1] == b"\xff" and len(head) > 1 and head[1] & 0xE0 == 0xE0)


def checked_section(start_s: Any, stop_s: Any) -> tuple[float, float | None]:
    """Return the limits of a section, in seconds from the beginning.

    Raises:
        TypeError, ValueError: if they are no such limits.
    """
    start_s = seconds("start_s", start_s, positive=False)
    if stop_s is None:
        return start_s, None
    stop_s = seconds("stop_s", stop_s)
    if stop_s <= start_s:
        raise check.marked(ValueError(f"stop_s={stop_s} is not after start_s={start_s}."))
    return start_s, stop_s


def require_size(num_bytes: float) -> None:
    """Refuse to decode too much at once.

    Raises:
        ValueError: beyond 2 GiB.
    """
    if num_bytes > MAX_BYTES:
        raise ValueError(
            f"decoded it would have about {int(num_bytes):,} bytes (limit {MAX_BYTES:,}). Decode a section of it: "
            "start_s=, stop_s=, or for video num_frames="
        )
