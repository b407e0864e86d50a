"""The frames of a video at their times, by PyAV."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ._media import Source, open_container, require_size
from ._orientation import Orientation

if TYPE_CHECKING:
    import torch

_NEAR_S = 2.0  # frames that are closer are reached by decoding, others by a seek
_MAX_ROUNDING_S = 5e-4  # of the times in a container
_MOST_REORDERED = 16  # frames of H.264
_ATTACHED_PICTURE = 0x400

Timed = tuple[float, Any]


class Frames:
    """A video that is decoded. Times are seconds from its first frame.

    Args:
        source: bytes or a file.

    Raises:
        ImportError, ValueError: as ``open_container``, and if it has no pictures.
    """

    def __init__(self, source: Source) -> None:
        self._source, self._begin_s = source, 0.0
        self._open()
        items = self._items(is_decoded=True, is_begin=True)
        first = next(items, None)
        if first is None:
            raise ValueError("none of its frames can be decoded")
        self._begin_s = first[0]
        self._unread: Iterator[Timed] | None = chain([(0.0, first[1])], items)

    def between(self, start_s: float, stop_s: float) -> torch.Tensor:
        """Return the frames that begin in a section, uint8 ``(T, 3, H, W)``."""
        frames: list[np.ndarray[Any, Any]] = []
        for time_s, frame in self._from(start_s):
            if time_s >= stop_s - self._rounding_s:
                break
            if time_s >= start_s - self._rounding_s:
                frames.append(_pixels(frame))
                require_size(len(frames) * frames[0].nbytes)
        if not frames:
            raise ValueError(f"no frame begins in this section. The last one ends at {self.end_s():.3f} s")
        return _stacked(frames)

    def at(self, times_s: list[float]) -> torch.Tensor:
        """Return the frames that are shown at these times, in order, uint8 ``(T, 3, H, W)``."""
        frames: list[np.ndarray[Any, Any]] = []
        ahead: Iterator[Timed] = iter(())
        following: Timed | None = None
        shown: Any = None
        before_s = -math.inf
        for wanted_s in times_s:
            if not 0 <= wanted_s - before_s <= _NEAR_S:
                ahead = self._from(wanted_s)
                following = next(ahead)
                shown = following[1]
            while following is not None and following[0] <= wanted_s + self._rounding_s:
                shown, following = following[1], next(ahead, None)
            frames.append(_pixels(shown))
            require_size(len(times_s) * frames[0].nbytes)
            before_s = wanted_s
        return _stacked(frames)

    def end_s(self, limit_s: float | None = None) -> float:
        """Return the end of the last frame, or the limit if that is earlier."""
        near_s = (self._container.duration or 0) / 1e6 if limit_s is None else limit_s
        end_s = 0.0
        for time_s, item in self._from(near_s, is_decoded=not self._has_times):
            end_s = max(end_s, time_s + (float((item.duration or 0) * self._stream.time_base) or self._frame_s))
            if limit_s is not None and end_s >= limit_s:
                return limit_s
        return end_s

    def close(self) -> None:
        """Free the decoder and its buffers."""
        self._container.close()

    def _open(self) -> None:
        self._container = open_container(self._source)
        streams = self._container.streams.video
        stream = next((stream for stream in streams if not int(stream.disposition) & _ATTACHED_PICTURE), None)
        if stream is None:
            raise ValueError("it has no pictures, only sound: decode it by decoders.audio()")
        self._stream = stream
        # Not all packets of mpg have times: behind a seek FFmpeg guesses them
        self._has_times = self._container.format.name not in ("mpeg", "mpegvideo")
        self._frame_s = float(1 / (stream.average_rate or 1))
        self._rounding_s = min(float(stream.time_base) / 2, _MAX_ROUNDING_S)

    def _from(self, start_s: float, *, is_decoded: bool = True) -> Iterator[Timed]:
        """Return frames or packets with their times, from one that begins at or before ``start_s`` on.

        Some containers seek to a place behind it, or without a key frame: then a place before is looked for.
        """
        if start_s <= self._rounding_s and is_decoded and self._unread is not None:
            items, self._unread = self._unread, None
            return items
        self._unread, before_s = None, 0.0
        while self._has_times and before_s < start_s:
            wanted_s = self._begin_s + start_s - before_s
            self._container.seek(int(wanted_s / self._stream.time_base), stream=self._stream)
            items = self._items(is_decoded=is_decoded)
            first = next(items, None)
            if first is not None and first[0] <= start_s + self._rounding_s:
                return chain([first], items)
            before_s = 2 * before_s or 1.0
        self._container.close()
        self._open()
        return self._items(is_decoded=is_decoded, is_begin=True)

    def _items(self, *, is_decoded: bool, is_begin: bool = False) -> Iterator[Timed]:
        """Yield frames in the order of their times, or packets, from the next key frame on."""
        # AVI has no times of presentation: those that FFmpeg finds are right, but of a frame nearby
        num_ahead = _MOST_REORDERED if self._container.format.name == "avi" else 0
        waiting: deque[Any] = deque()
        times: list[float] = []
        key_s = None
        for packet in self._container.demux(self._stream):
            if key_s is None:
                if not packet.is_keyframe:
                    continue
                key_s = -math.inf if is_begin else self._time_s(packet)
            for item in packet.decode() if is_decoded else [packet] if packet.size else []:
                time_s = self._time_s(item)
                if item.is_corrupt:
                    raise ValueError(f"it is damaged or ends early, at {time_s - self._begin_s:.3f} s")
                # Frames before a key frame that are stored behind it depend on earlier ones
                if time_s >= key_s:
                    waiting.append(item)
                    heappush(times, time_s)
                if len(waiting) > num_ahead:
                    yield heappop(times) - self._begin_s, waiting.popleft()
        while waiting:
            yield heappop(times) - self._begin_s, waiting.popleft()

    def _time_s(self, item: Any) -> float:
        time = item.dts if item.pts is None else item.pts
        if time is None:
            raise ValueError("its frames have no times")
        return float(time * self._stream.time_base)


def _pixels(frame: Any) -> np.ndarray[Any, Any]:
    """Return the RGB of a frame as it is shown, shape ``(H, W, 3)``."""
    pixels: np.ndarray[Any, Any] = frame.to_ndarray(format="rgb24")
    matrix = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return pixels
    # x and y of a pixel become a * x + c * y and b * x + d * y
    a, b, _, c, d, *_ = np.frombuffer(matrix, np.int32)
    if bool(a or d) == bool(b or c):
        raise ValueError("it is rotated by another angle than 90, 180 or 270 degrees")
    return Orientation(bool(b), upside_down=b + d < 0, mirrored=a + c < 0).applied(pixels)


def _stacked(frames: list[np.ndarray[Any, Any]]) -> torch.Tensor:
    import torch

    if len({frame.shape for frame in frames}) > 1:
        raise ValueError("its pictures change their size: decode sections with one size each")
    return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2).contiguous()
