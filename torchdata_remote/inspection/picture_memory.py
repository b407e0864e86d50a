"""Bound the memory of pictures that are read and decoded at the same time in one process."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

from PIL import Image

from ..formats.decoders import MAX_PIXELS
from ..formats.decoders._pictures import open_image

T = TypeVar("T")
_JPEG_SCALES = (8, 4, 2)
# Pillow's 4 for the picture and 4 for its copy in RGB, and 4 for a strip of TIFF that is the whole picture
_PIXEL_BYTES = 12
_WEBP_PIXEL_BYTES = 16  # two canvases of 4
_WIDE_PIXEL_BYTES = 24  # more copies, of 4 bytes each, scale 16-bit gray to 8 bits
_COEFFICIENT_BYTES = 6  # of a progressive JPEG, which are all kept whatever the scale


class PictureMemory:
    """Bytes that pictures may take. Those that find too few wait for others, in the order in which they came.

    Args:
        max_bytes: of all pictures together.

    Example:
        >>> memory = PictureMemory(100)
        >>> with memory.reserved(80, timeout_s=0.0) as first, memory.reserved(30, timeout_s=0.0) as second:
        ...     first, second
        (True, False)
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._free_bytes = max_bytes
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[object] = deque()

    @property
    def free_bytes(self) -> int:
        """Bytes that are not reserved."""
        return self._free_bytes

    @contextlib.contextmanager
    def reserved(self, num_bytes: int, *, timeout_s: float) -> Iterator[bool]:
        """Reserve bytes while the block runs; yields whether they are reserved.

        Args:
            num_bytes: more than ``max_bytes`` are refused.
            timeout_s: how long to wait for them.
        """
        if num_bytes > self.max_bytes:
            yield False
            return
        turn = object()
        with self._changed:
            self._queue.append(turn)
            granted = self._changed.wait_for(
                lambda: self._queue[0] is turn and self._free_bytes >= num_bytes, max(0.0, timeout_s)
            )
            self._queue.remove(turn)
            self._free_bytes -= num_bytes if granted else 0
            self._changed.notify_all()
        try:
            yield granted
        finally:
            if granted:
                with self._changed:
                    self._free_bytes += num_bytes
                    self._changed.notify_all()


def decoding_bytes(data: bytes, min_size: int) -> int | None:
    """Return the most memory that decoding a picture takes, known from its header; ``None`` if it is not a picture.

    Args:
        data: a whole file.
        min_size: as for ``decoders.rgb``, which decodes JPEG at a smaller scale.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            opened = open_image(data)
    except Exception:  # noqa: BLE001  # Pillow raises nearly anything for damaged images
        return None
    with opened:
        (width, height), is_jpeg = opened.size, opened.format in ("JPEG", "MPO")
        if width * height > MAX_PIXELS:
            return None
        by = next((by for by in _JPEG_SCALES if is_jpeg and min(width, height) // by >= min_size), 1)
        kept = width * height * _COEFFICIENT_BYTES if is_jpeg and opened.info.get("progressive") else 0
        pixel_bytes = _WEBP_PIXEL_BYTES if opened.format == "WEBP" else _PIXEL_BYTES
        if opened.mode.startswith(("I", "F")):
            pixel_bytes = _WIDE_PIXEL_BYTES
        return -(-width // by) * -(-height // by) * pixel_bytes + kept


READ = PictureMemory(256 << 20)
"""Of files, and members of shards, before they are decoded."""
MAX_DECODING_BYTES = 320 << 20
"""Of one picture while it is decoded: 28 million pixels."""
_DECODER = ThreadPoolExecutor(1, "decode pictures")


def decoded_in_turn(decode: Callable[[], T], *, timeout_s: float) -> T | None:
    """Decode a picture after all others of this process; ``None`` if it does not begin in time.

    One thread decodes all of them: the C library keeps the memory that a thread has freed for that thread.
    """
    decoding = _DECODER.submit(decode)
    wait([decoding], timeout_s)
    return None if decoding.cancel() else decoding.result()
