"""``audio``: decode the samples of a section of an audio stream, by torchcodec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.arguments.amounts import whole_or_none
from ...core.arguments.calls import explained
from ._media import Source, checked_section, container, require_size

if TYPE_CHECKING:
    import torch


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
        try:
            from torchcodec.decoders import AudioDecoder
        except (ImportError, OSError, RuntimeError) as error:
            raise ImportError(
                "torchcodec, which decodes audio, cannot be imported: pip install 'torchdata_remote[media]', and "
                f"install FFmpeg's libraries (apt install ffmpeg). ({str(error).strip().partition(chr(10))[0]:.200})"
            ) from error
        decoder = AudioDecoder(container(source), sample_rate=self.sample_rate)
        found = decoder.metadata
        duration_s = found.duration_seconds_from_header
        rate = self.sample_rate or found.sample_rate or 0
        if duration_s is not None:
            if self.start_s >= duration_s:
                raise ValueError(f"start_s={self.start_s} is at or after its end, {duration_s:.3f} s")
            length_s = (duration_s if self.stop_s is None else min(self.stop_s, duration_s)) - self.start_s
            require_size(length_s * rate * (found.num_channels or 1) * 4)
        begin_s = found.begin_stream_seconds_from_header or 0.0
        stop_s = None if self.stop_s is None else begin_s + self.stop_s
        samples = decoder.get_samples_played_in_range(begin_s + self.start_s, stop_s)
        return samples.data, int(samples.sample_rate)


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
