"""What the decoders of video and audio share: containers, which PyAV opens if they are whole, and sections of them."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Literal

from ...core import arguments as check
from ...core.arguments import seconds
from ..member_file import MemberFile

_MAX_BYTES = 2 << 30  # of what one call decodes

# FFmpeg's names. Others are playlists, which name further files and addresses to open, or are no containers.
_FORMATS = "aac,asf,avi,flac,flv,matroska,mov,mp3,mpeg,mpegts,mpegvideo,ogg,wav"
_ENDINGS = "mp4, mov, mkv, webm, avi, mpg, ts, flv, wmv, ogg, wav, flac, mp3, aac"

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

Source = bytes | MemberFile | io.BufferedIOBase


def import_av(what: str) -> Any:
    """Return PyAV.

    Raises:
        ImportError: without it.
    """
    try:
        import av
    except ImportError as error:
        raise ImportError(
            f"PyAV, which decodes {what}, cannot be imported: pip install 'torchdata_remote[media]'. ({error})"
        ) from error
    return av


def open_container(source: Source) -> Any:
    """Return PyAV's container of bytes or a file.

    FFmpeg guesses formats by content. Those that name files or addresses are refused before they are read, because
    others may have written the members.

    Raises:
        ImportError: without PyAV.
        ValueError: for another format, or a member that ends early.
    """
    av = import_av("video and audio")
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    _require_whole(file)
    try:
        return av.open(file, options={"format_whitelist": _FORMATS})
    except av.FFmpegError as error:
        raise ValueError(
            f"it cannot be opened as {_ENDINGS}: it is damaged, ends early, or has another format, for which "
            f"you can pass a decoder of your own ({error})"
        ) from error


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


def require_size(num_bytes: int) -> None:
    """Refuse to decode too much at once.

    Raises:
        ValueError: beyond 2 GiB.
    """
    if num_bytes > _MAX_BYTES:
        raise ValueError(
            f"decoded it would have more than {_MAX_BYTES:,} bytes, the limit. Decode a section of it: start_s=, "
            "stop_s=, or for video num_frames="
        )


def _require_whole(file: Any) -> None:
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
