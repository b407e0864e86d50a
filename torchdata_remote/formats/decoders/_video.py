"""``video`` and ``video_clips``: decode frames of a section of a video, at their times, by PyAV."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.arguments import explained, seconds, whole, whole_or_none
from ._containers import Source, checked_section, open_container, require_size
from ._pictures import Orientation

if TYPE_CHECKING:
    import torch

_NEAR_S = 2.0  # frames that are closer are reached by decoding, others by a seek
_MAX_ROUNDING_S = 5e-4  # of the times in a container
_MOST_REORDERED = 16  # frames of H.264
_ATTACHED_PICTURE = 0x400

Timed = tuple[float, Any]


@dataclass(frozen=True)
class VideoFrames:
    """The decoder that ``video()`` and ``video_clips()`` return.

    Args:
        start_s: begin of the section.
        stop_s: its end; ``None`` for that of the video.
        num_frames: of each clip; ``None`` for all of the section.
        num_clips: of the section; ``None`` for one without a dimension of its own.
        clip_s: length of each clip.
    """

    start_s: float = 0.0
    stop_s: float | None = None
    num_frames: int | None = None
    num_clips: int | None = None
    clip_s: float | None = None

    def __call__(self, source: Source) -> torch.Tensor:
        opened = _Frames(source)
        try:
            if self.num_frames is None:
                return opened.between(self.start_s, math.inf if self.stop_s is None else self.stop_s)
            stop_s = opened.end_s(self.stop_s)
            if stop_s <= self.start_s:
                raise ValueError(f"start_s={self.start_s} is at or after its end, {stop_s:.3f} s")
            frames = opened.at(self._times(stop_s))
        finally:
            opened.close()
        return frames if self.num_clips is None else frames.reshape(self.num_clips, self.num_frames, *frames.shape[1:])

    def _times(self, stop_s: float) -> list[float]:
        """Return the middles of equal parts of each clip; clips are in the middles of equal parts of the section."""
        assert self.num_frames is not None  # the caller has checked it
        length_s = stop_s - self.start_s
        num_clips, clip_s = self.num_clips or 1, min(length_s, self.clip_s or length_s)
        starts = self.start_s + (np.arange(num_clips) + 0.5) * length_s / num_clips - clip_s / 2
        starts = starts.clip(self.start_s, stop_s - clip_s)
        times = starts[:, None] + (np.arange(self.num_frames) + 0.5) * clip_s / self.num_frames
        found: list[float] = times.ravel().tolist()
        return found


@explained
def video(*, start_s: float = 0.0, stop_s: float | None = None, num_frames: int | None = None) -> VideoFrames:
    """Make a decoder of the frames of a video, for ``decode_sample``. It takes bytes or the file of a lazy member.

    Of a lazy member, the header and the bytes of the section are fetched. Decoded by PyAV (extra ``[media]``).
    Containers: mp4, mov, mkv, webm, avi, mpg, ts, flv, wmv. Frames are those that the video holds, at the times at
    which they are shown, with any rate; a rotation that the header asks for is applied.

    Args:
        start_s: begin of the section, in seconds from the first frame.
        stop_s: its end; ``None`` for that of the video, which is the end also where this is larger.
        num_frames: the frames that are shown in the middles of so many equal parts of the section; ``None`` for all
            frames that begin in it.

    Returns:
        A decoder to a ``torch.Tensor``: uint8, shape ``(T, 3, H, W)``, RGB.

    Raises:
        ImportError: when decoding, if PyAV cannot be imported.
        ValueError: when decoding, for another container, one that ends early, a member without pictures, a section
            after the end, or more than 2 GiB of frames.

    Example:
        >>> video(start_s=4, stop_s=6, num_frames=16)
        VideoFrames(start_s=4, stop_s=6, num_frames=16, num_clips=None, clip_s=None)
    """
    start_s, stop_s = checked_section(start_s, stop_s)
    return VideoFrames(start_s, stop_s, whole_or_none("num_frames", num_frames))


@explained
def video_clips(
    num_clips: int, *, num_frames: int, clip_s: float, start_s: float = 0.0, stop_s: float | None = None
) -> VideoFrames:
    """Make a decoder of clips, evenly spaced over a video, as for evaluation. Otherwise as ``video``.

    The clips are the same each time. For random ones, leave the member a file and call ``video(start_s=...)`` in a
    ``map`` with a random number of your own.

    Args:
        num_clips: in the middles of so many equal parts of the section.
        num_frames: of each clip, in the middles of so many equal parts of it.
        clip_s: length of each clip in seconds; clips overlap where they are longer than the parts.
        start_s: begin of the section.
        stop_s: its end; ``None`` for that of the video.

    Returns:
        A decoder to a ``torch.Tensor``: uint8, shape ``(num_clips, num_frames, 3, H, W)``, RGB.

    Raises:
        ImportError, ValueError: when decoding, as ``video``.

    Example:
        >>> video_clips(3, num_frames=8, clip_s=2)
        VideoFrames(start_s=0.0, stop_s=None, num_frames=8, num_clips=3, clip_s=2)
    """
    start_s, stop_s = checked_section(start_s, stop_s)
    return VideoFrames(
        start_s, stop_s, whole("num_frames", num_frames), whole("num_clips", num_clips), seconds("clip_s", clip_s)
    )


class _Frames:
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
