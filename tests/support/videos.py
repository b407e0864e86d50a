"""Videos and sounds for tests, made by PyAV or by hand."""

from __future__ import annotations

import io
import struct
from fractions import Fraction
from functools import lru_cache

import av
import numpy as np


@lru_cache
def noise_mp4(num_bytes: int, *, num_frames: int = 300, rate: int = 30) -> bytes:
    """An mp4 of noise of about so many bytes, with a key frame each second and its index at the end."""
    side = max(16, int((num_bytes / num_frames * 0.835) ** 0.5) // 16 * 16)
    random, file = np.random.default_rng(0), io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width = stream.height = side
        stream.pix_fmt, stream.bit_rate, stream.gop_size = "yuv420p", 200_000_000, rate
        for _ in range(num_frames):
            pixels = random.integers(0, 255, (side, side, 3), dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


@lru_cache
def grey_mp4(num_frames: int = 50, *, rate: int = 10, side: int = 32) -> bytes:
    """An mp4 whose frame ``n`` is grey, of value ``16 + 4 * n``, with a key frame each second."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=rate)
        stream.width = stream.height = side
        stream.pix_fmt, stream.bit_rate, stream.gop_size = "yuv420p", 10_000_000, rate
        for number in range(num_frames):
            pixels = np.full((side, side, 3), 16 + 4 * number, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


VIDEO_CODECS = {
    "mp4": ("mp4", "libx264"),
    "mov": ("mov", "libx264"),
    "mkv": ("matroska", "libx264"),
    "webm": ("webm", "libvpx"),
    "avi": ("avi", "mpeg4"),
    "mpg": ("mpeg", "mpeg2video"),
    "ts": ("mpegts", "libx264"),
    "flv": ("flv", "flv"),
    "wmv": ("asf", "wmv2"),
}
"""Ending -> FFmpeg's names of the container and of a codec in it."""
VARIABLE_TICKS = [*range(20), *range(20, 110, 3)]
"""Begins of 50 frames: each tick, then each third one."""


@lru_cache
def variable_video(ending: str, codec: str = "", **options: str) -> tuple[bytes, list[float]]:
    """A video of a variable rate, and the begins of its frames in seconds; frame ``n`` is as in ``grey_mp4``.

    The rate is constant in mpg, and in avi where frames are stored in another order, which have no times for it.
    """
    # MPEG knows few rates
    ticks = range(50) if ending == "mpg" or (ending, codec) == ("avi", "libx264") else VARIABLE_TICKS
    rate, file = 25 if ending == "mpg" else 10, io.BytesIO()
    name, usual = VIDEO_CODECS[ending]
    with av.open(file, "w", format=name, options=options) as container:
        stream = container.add_stream(codec or usual, rate=rate, options={"bf": "2"} if codec else {})
        stream.width, stream.height, stream.pix_fmt = 48, 32, "yuv420p"
        stream.bit_rate, stream.gop_size = 20_000_000, 12
        for number, tick in enumerate(ticks):
            pixels = np.full((32, 48, 3), 16 + 4 * number, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = tick, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue(), [tick / rate for tick in ticks]


AUDIO_CODECS = {
    "wav": ("wav", "pcm_s16le"),
    "flac": ("flac", "flac"),
    "mp3": ("mp3", "libmp3lame"),
    "aac": ("adts", "aac"),
    "ogg": ("ogg", "libopus"),
    "mp4": ("mp4", "aac"),
    "mkv": ("matroska", "pcm_s16le"),
}


@lru_cache
def sound(ending: str, *, seconds: int = 3, rate: int = 48_000, gap: int = 0) -> bytes:
    """Two rising tones, with a gap of so many samples in their times after the first second."""
    file, (name, codec) = io.BytesIO(), AUDIO_CODECS[ending]
    times = np.arange(seconds * rate) / rate
    tones = [np.sin(2 * np.pi * (hertz + 50 * times) * times) for hertz in (300, 440)]
    samples = (np.stack(tones) * 20_000).astype(np.int16)
    with av.open(file, "w", format=name) as container:
        stream = container.add_stream(codec, rate=rate, layout="stereo")
        resampler = av.AudioResampler(format=stream.codec_context.format, layout="stereo", rate=rate)
        for at in range(0, samples.shape[1], 960):
            piece = samples[:, at : at + 960].T.reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(piece), format="s16", layout="stereo")
            frame.sample_rate, frame.time_base = rate, Fraction(1, rate)
            frame.pts = at + (gap if at >= rate else 0)
            for made in resampler.resample(frame):
                container.mux(stream.encode(made))
        container.mux(stream.encode(None))
    return file.getvalue()


def wav(samples: np.ndarray[tuple[int, int], np.dtype[np.int16]], rate: int) -> bytes:
    """A wav file of samples of shape (samples, channels)."""
    data, channels = samples.astype("<i2").tobytes(), samples.shape[1]
    layout = struct.pack("<HHIIHH", 1, channels, rate, 2 * channels * rate, 2 * channels, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + layout + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body
