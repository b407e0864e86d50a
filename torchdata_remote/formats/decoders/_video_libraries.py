"""The libraries that decode video, behind one interface."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch

_NEAR_S = 2.0  # frames that are closer are reached by decoding, others by a seek


class OpenVideo(Protocol):
    """A video that is decoded. Times are seconds from the first frame."""

    duration_s: float
    rate: float
    height: int
    width: int

    def between(self, start_s: float, stop_s: float) -> torch.Tensor:
        """Return the frames that begin in a section, uint8 ``(T, 3, H, W)``."""

    def at(self, times_s: list[float]) -> torch.Tensor:
        """Return the frames that are shown at these times, in order."""

    def close(self) -> None:
        """Free what the library holds."""


@lru_cache(1)
def video_library() -> type[ByTorchcodec] | type[ByPyAV]:
    """Return the library to use.

    Raises:
        ImportError: if there is none.
    """
    problems = []
    for made in (ByTorchcodec, ByPyAV):
        try:
            made.library()
        except (ImportError, OSError, RuntimeError) as error:  # noqa: PERF203  # torchcodec: without FFmpeg
            problems.append(f"{made.__name__[2:]}: {str(error).strip().partition(chr(10))[0]:.200}")
        else:
            return made
    raise ImportError(
        "No library decodes video: pip install 'torchdata_remote[media]'. torchcodec needs FFmpeg's libraries "
        f"besides (apt install ffmpeg), PyAV brings its own. ({'; '.join(problems)})"
    )


class ByTorchcodec:
    """A video that torchcodec decodes.

    Args:
        source: bytes or a file.
    """

    def __init__(self, source: Any) -> None:
        # "exact" would read all of the file first
        self._decoder = self.library()(source, seek_mode="approximate")
        found = self._decoder.metadata
        self._begin_s = found.begin_stream_seconds or 0.0
        self.duration_s = float(found.duration_seconds or 0.0)
        self.rate, self.height, self.width = float(found.average_fps or 0.0), found.height or 0, found.width or 0

    @staticmethod
    def library() -> Any:
        """Import it."""
        from torchcodec.decoders import VideoDecoder

        return VideoDecoder

    def between(self, start_s: float, stop_s: float) -> torch.Tensor:
        """Return the frames that begin in a section."""
        end_s = self._begin_s + self.duration_s
        batch = self._decoder.get_frames_played_in_range(self._begin_s + start_s, min(self._begin_s + stop_s, end_s))
        frames: torch.Tensor = batch.data[batch.pts_seconds >= self._begin_s + start_s - 1e-6]
        return frames

    def at(self, times_s: list[float]) -> torch.Tensor:
        """Return the frames that are shown at these times."""
        frames: torch.Tensor = self._decoder.get_frames_played_at([self._begin_s + time_s for time_s in times_s]).data
        return frames

    def close(self) -> None:
        """Leave it to the collector."""


class ByPyAV:
    """A video that PyAV decodes.

    Args:
        source: bytes or a file.
    """

    def __init__(self, source: Any) -> None:
        self._container = self.library().open(io.BytesIO(source) if isinstance(source, bytes) else source)
        if not self._container.streams.video:
            raise ValueError("it has no video stream")
        self._stream = stream = self._container.streams.video[0]
        self._unit_s = float(stream.time_base)
        self._begin_s = (stream.start_time or 0) * self._unit_s
        length_s = self._container.duration / 1e6 if stream.duration is None and self._container.duration else 0.0
        self.duration_s = length_s if stream.duration is None else stream.duration * self._unit_s
        self.rate, self.height, self.width = float(stream.average_rate or 0), stream.height, stream.width

    @staticmethod
    def library() -> Any:
        """Import it."""
        import av

        return av

    def between(self, start_s: float, stop_s: float) -> torch.Tensor:
        """Return the frames that begin in a section."""
        frames = []
        for time_s, frame in self._frames_from(start_s):
            if time_s >= stop_s - 1e-6:
                break
            if time_s >= start_s - 1e-6:
                frames.append(frame.to_ndarray(format="rgb24"))
        return self._stacked(frames)

    def at(self, times_s: list[float]) -> torch.Tensor:
        """Return the frames that are shown at these times."""
        frames: list[np.ndarray[Any, Any]] = []
        decoded: Iterator[tuple[float, Any]] = iter(())
        shown, following, before_s = None, None, -math.inf
        for wanted_s in times_s:
            if not 0 <= wanted_s - before_s <= _NEAR_S:
                decoded = self._frames_from(wanted_s)
                shown, following = None, next(decoded, None)
            while following is not None and (shown is None or following[0] <= wanted_s):
                shown, following = following, next(decoded, None)
            if shown is None:
                raise ValueError(f"it has no frame at {wanted_s:.3f} s")
            frames.append(shown[1].to_ndarray(format="rgb24"))
            before_s = wanted_s
        return self._stacked(frames)

    def _frames_from(self, start_s: float) -> Iterator[tuple[float, Any]]:
        """Yield frames with their times, from the key frame before ``start_s`` on."""
        self._container.seek(int((self._begin_s + start_s) / self._unit_s), stream=self._stream)
        for frame in self._container.decode(self._stream):
            if frame.pts is not None:
                yield frame.pts * self._unit_s - self._begin_s, frame

    @staticmethod
    def _stacked(frames: list[np.ndarray[Any, Any]]) -> torch.Tensor:
        import torch

        if not frames:
            raise ValueError("no frame begins in this section")
        return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2).contiguous()

    def close(self) -> None:
        """Free the decoder and its buffers."""
        self._container.close()
