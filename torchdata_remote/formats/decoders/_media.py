"""What the decoders of video and audio share: the files that they open, by PyAV, and the sections that they decode."""

from __future__ import annotations

import io
from typing import Any

from ...core import arguments as check
from ...core.arguments import seconds
from ..member_file import MemberFile
from ._media_end import require_whole

MAX_BYTES = 2 << 30
"""Limit of what one call decodes."""

# FFmpeg's names. Others are playlists, which name further files and addresses to open, or are no containers.
_FORMATS = "aac,asf,avi,flac,flv,matroska,mov,mp3,mpeg,mpegts,mpegvideo,ogg,wav"
_ENDINGS = "mp4, mov, mkv, webm, avi, mpg, ts, flv, wmv, ogg, wav, flac, mp3, aac"

Source = bytes | MemberFile | io.BufferedIOBase


def open_container(source: Source) -> Any:
    """Return PyAV's container of bytes or a file.

    FFmpeg guesses formats by content. Those that name files or addresses are refused before they are read, because
    others may have written the members.

    Raises:
        ImportError: without PyAV.
        ValueError: for another format, or a member that ends early.
    """
    try:
        import av
    except ImportError as error:
        raise ImportError(
            f"PyAV, which decodes video and audio, cannot be imported: pip install 'torchdata_remote[media]'. ({error})"
        ) from error
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    require_whole(file)
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
    if num_bytes > MAX_BYTES:
        raise ValueError(
            f"decoded it would have more than {MAX_BYTES:,} bytes, the limit. Decode a section of it: start_s=, "
            "stop_s=, or for video num_frames="
        )
