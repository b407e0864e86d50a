"""``audio``: decode the samples of a section of an audio stream, by PyAV."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.arguments.amounts import whole_or_none
from ...core.arguments.calls import explained
from ._media import Source, checked_section, open_container, require_size

if TYPE_CHECKING:
    import torch

Samples = np.ndarray[Any, np.dtype[np.float32]]
_LEAST_GAP_S = 0.1  # smaller ones are rounding of the container
_MARGIN_S = 0.1  # resampled beside a section, so that its samples are those of the whole


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

        kept: list[Samples] = []
        start = end = rate = made = 0
        stop: float = math.inf
        with closing(open_container(source)) as container:
            for rate, piece in _pieces(container):
                if made == 0:
                    made = self.sample_rate or rate
                    margin = 0 if made == rate else round(_MARGIN_S * rate)
                    # A sample that is one after resampling, too
                    step = rate // math.gcd(rate, made)
                    start = max(0, round(self.start_s * rate) - margin) // step * step
                    stop = math.inf if self.stop_s is None else round(self.stop_s * rate) + margin
                begin, end = end, end + piece.shape[1]
                if end > start:
                    kept.append(piece[:, max(0, start - begin) : int(min(stop, end)) - begin])
                    require_size(kept[0].shape[0] * (end - start) * 4)
                if end >= stop:
                    break
        if end <= self.start_s * rate:
            raise ValueError(f"start_s={self.start_s} is at or after its end, {end / (rate or 1):.3f} s")
        samples = np.concatenate(kept, axis=1)
        if made != rate:
            samples = _resampled(samples, rate, made)
        first = start * made // rate
        last = None if self.stop_s is None else round(self.stop_s * made) - first
        return torch.from_numpy(samples[:, round(self.start_s * made) - first : last].copy()), made


def _pieces(container: Any) -> Iterator[tuple[int, Samples]]:
    """Yield samples per second, and samples, float32 of shape ``(channels, samples)``. A gap between them is silence.

    Raises:
        ValueError: if there is no sound, or it is damaged.
    """
    import av

    if not container.streams.audio:
        raise ValueError("it has no sound, only pictures: decode it by decoders.video()")
    name = container.format.name
    converter = av.AudioResampler(format="fltp")
    num_samples, begin_s = 0, None
    for frame in container.decode(container.streams.audio[0]):
        rate = frame.sample_rate
        # A wav file of unknown length ends within what FFmpeg takes for a packet
        if frame.is_corrupt and name != "wav":
            raise ValueError(f"it is damaged or ends early, at {num_samples / rate:.3f} s")
        # AVI has no times: FFmpeg estimates them
        if frame.pts is not None and name != "avi":
            time_s = float(frame.pts * frame.time_base)
            begin_s = time_s if begin_s is None else begin_s
            gap = round((time_s - begin_s) * rate) - num_samples
            if gap >= _LEAST_GAP_S * rate:
                require_size(gap * frame.layout.nb_channels * 4)
                num_samples += gap
                yield rate, np.zeros((frame.layout.nb_channels, gap), np.float32)
        for converted in converter.resample(frame):
            num_samples += converted.samples
            yield rate, converted.to_ndarray()


def _resampled(samples: Samples, rate: int, made: int) -> Samples:
    import av

    # The layout has no influence: no channel is made of others
    layout = f"{len(samples)}c"
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=layout)
    frame.sample_rate = rate
    resampler = av.AudioResampler(format="fltp", layout=layout, rate=made)
    frames = resampler.resample(frame) + resampler.resample(None)
    return np.concatenate([frame.to_ndarray() for frame in frames], axis=1)


@explained
def audio(*, start_s: float = 0.0, stop_s: float | None = None, sample_rate: int | None = None) -> AudioSection:
    """Make a decoder of audio, for ``decode_sample``. It takes bytes or the file of a lazy member.

    Of a lazy member, the header and the bytes up to the end of the section are fetched, as formats need. Needs
    torchcodec (extra ``[media]``). Formats: wav, flac, mp3, aac, ogg, and the audio of video containers.

    Args:
        start_s: begin of the section, in seconds from the first sample.
        stop_s: its end; ``None`` for that of the stream, which is the end also where this is larger.
        sample_rate: to which the stream is resampled; ``None`` leaves it.

    Returns:
        A decoder to a tuple: the samples, a ``torch.Tensor``, float32 from -1 to 1, shape ``(channels, samples)``; and
        the samples per second, an int.

    Raises:
        ImportError: when decoding, if torchcodec cannot be imported.
        ValueError: when decoding, for another format, a section after the end, or more than 2 GiB of samples.

    Example:
        >>> audio(start_s=1, sample_rate=16_000)
        AudioSection(start_s=1, stop_s=None, sample_rate=16000)
    """
    start_s, stop_s = checked_section(start_s, stop_s)
    return AudioSection(start_s, stop_s, whole_or_none("sample_rate", sample_rate))
