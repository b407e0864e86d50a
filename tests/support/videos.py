"""Videos and sounds for tests, made by PyAV or by hand."""

from __future__ import annotations

import io
import struct
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


def wav(samples: np.ndarray[tuple[int, int], np.dtype[np.int16]], rate: int) -> bytes:
    """A wav file of samples of shape (samples, channels)."""
    data, channels = samples.astype("<i2").tobytes(), samples.shape[1]
    layout = struct.pack("<HHIIHH", 1, channels, rate, 2 * channels * rate, 2 * channels, 16)
    body = b"WAVEfmt " + struct.pack("<I", 16) + layout + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body
