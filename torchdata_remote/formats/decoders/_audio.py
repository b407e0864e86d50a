"""``audio``: decode the samples of a section of an audio stream, by PyAV."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.arguments import explained, whole_or_none
from ._containers import Source, checked_section, open_container, require_size

if TYPE_CHECKING:
    import torch

_LEAST_GAP_S = 0.1  # smaller ones are rounding of the container


@dataclass(frozen=True)
class AudioSection:
    """The decoder that ``audio()`` returns.

    Args:
        start_s: begin of the section.
        stop_s: its end; ``None`` for that of the stream.
        sample_rate: samples per second; ``None`` for those of the stream.
    """

    start_s: float = 0.0
    stop_s: float | None = None
    sample_rate: int | None = None

    def __call__(self, source: Source) -> tuple[torch.Tensor, int]:
        import torch

        kept: list[np.ndarray[Any, Any]] = []
        end = rate = 0
        for rate, samples in self._pieces(source):
            start = round(self.start_s * rate)
            stop = math.inf if self.stop_s is None else round(self.stop_s * rate)
            begin, end = end, end + samples.shape[1]
            if end > start:
                kept.append(samples[:, max(0, start - begin) : int(min(stop, end)) - begin])
                require_size(len(samples) * (end - start) * 4)
            if end >= stop:
                break
        if not kept:
            raise ValueError(f"start_s={self.start_s} is at or after its end, {end / (rate or 1):.3f} s")
        return torch.from_numpy(np.concatenate(kept, axis=1)), rate

    def _pieces(self, source: Source) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        """Yield the rate, and samples in their order, of shape ``(channels, samples)``. Gaps are silence."""
        with closing(open_container(source)) as container:
            from av import AudioResampler

            if not container.streams.audio:
                raise ValueError("it has no sound, only pictures: decode it by decoders.video()")
            name, num_samples, first = container.format.name, 0, None
            resampler = AudioResampler(format="fltp", rate=self.sample_rate)
            for frame in chain(container.decode(container.streams.audio[0]), [None]):
                # A wav file of unknown length ends within what FFmpeg takes for a packet
                if frame is not None and frame.is_corrupt and name != "wav":
                    raise ValueError(f"it is damaged or ends early, at {frame.time} s")
                for piece in filter(None, resampler.resample(frame)):
                    rate, samples = piece.sample_rate, piece.to_ndarray()
                    # AVI has no times: FFmpeg estimates them
                    if piece.pts is not None and name != "avi":
                        at = round(piece.pts * piece.time_base * rate)
                        first = at if first is None else first
                        gap = at - first - num_samples
                        if gap >= _LEAST_GAP_S * rate:
                            require_size(gap * len(samples) * 4)
                            num_samples += gap
                            yield rate, np.zeros((len(samples), gap), np.float32)
                    num_samples += samples.shape[1]
                    yield rate, samples


@explained
def audio(*, start_s: float = 0.0, stop_s: float | None = None, sample_rate: int | None = None) -> AudioSection:
    """Make a decoder of audio, for ``decode_sample``. It takes bytes or the file of a lazy member.

    Of a lazy member, the header and the bytes up to the end of the section are fetched, as formats need. Needs
    PyAV (extra ``[media]``). Formats: wav, flac, mp3, aac, ogg, and the audio of video containers. A section has the
    same samples as that part of the whole; a gap of more than 0.1 s in the times of a container is silence.

    Args:
        start_s: begin of the section, in seconds from the first sample.
        stop_s: its end; ``None`` for that of the stream, which is the end also where this is larger.
        sample_rate: to which the stream is resampled; ``None`` leaves it.

    Returns:
        A decoder to a tuple: the samples, a ``torch.Tensor``, float32 from -1 to 1, shape ``(channels, samples)``; and
        the samples per second, an int.

    Raises:
        ImportError: when decoding, if PyAV cannot be imported.
        ValueError: when decoding, for another format, one that ends early, a member without sound, a section after the
            end, or more than 2 GiB of samples.

    Example:
        >>> audio(start_s=1, sample_rate=16_000)
        AudioSection(start_s=1, stop_s=None, sample_rate=16000)
    """
    start_s, stop_s = checked_section(start_s, stop_s)
    return AudioSection(start_s, stop_s, whole_or_none("sample_rate", sample_rate))
