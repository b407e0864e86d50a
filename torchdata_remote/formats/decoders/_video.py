"""``video`` and ``video_clips``: decode frames of a section of a video, by PyAV."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...core.arguments import explained, seconds, whole, whole_or_none
from ._frames import Frames
from ._media import Source, checked_section

if TYPE_CHECKING:
    import torch


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
        opened = Frames(source)
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
