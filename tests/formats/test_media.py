"""Decoders of video and audio."""

from __future__ import annotations

import builtins
import io
import os
import socket
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.videos import grey_mp4, noise_mp4, wav
from torchdata_remote import IterableWrapper, decoders
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import DecodeError
from torchdata_remote.fetch.lazy_members.lazy_file import LazyFile
from torchdata_remote.formats.decoders import _media, _video, _video_libraries
from torchdata_remote.formats.decoders._video_libraries import ByPyAV, ByTorchcodec
from torchdata_remote.formats.member_file import BytesFile

LIBRARIES = [ByTorchcodec, ByPyAV]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each test runs with both."""
    monkeypatch.setattr(_video, "video_library", lambda: request.param)
    return request.param


def greys(frames: torch.Tensor) -> list[int]:
    """The numbers of the frames of ``grey_mp4``."""
    assert frames.dtype is torch.uint8
    return [round((float(value) - 16) / 4) for value in frames.float().mean(dim=(-1, -2, -3)).flatten()]


def test_all_frames_of_a_section(library: Any) -> None:
    """Those that begin in it, of shape (T, 3, H, W)."""
    frames = decoders.video(start_s=1.2, stop_s=3.0)(grey_mp4())
    assert frames.shape == (18, 3, 32, 32)
    assert greys(frames) == list(range(12, 30))
    assert greys(decoders.video()(BytesFile("a.mp4", grey_mp4()))) == list(range(50))
    assert greys(decoders.video(start_s=4.5, stop_s=99)(grey_mp4())) == list(range(45, 50))
    assert greys(decoders.video(start_s=0.05, stop_s=0.15)(grey_mp4())) == [1]


def test_frames_in_the_middles_of_equal_parts(library: Any) -> None:
    frames = decoders.video(num_frames=5)(grey_mp4())
    assert greys(frames) == [5, 15, 25, 35, 45]
    assert greys(decoders.video(start_s=2, stop_s=2.4, num_frames=4)(grey_mp4())) == [20, 21, 22, 23]
    assert greys(decoders.video(stop_s=0.2, num_frames=4)(grey_mp4())) == [0, 0, 1, 1]


def test_clips_are_evenly_spaced(library: Any) -> None:
    """Of shape (clips, frames, 3, H, W); longer than the section, they are the section."""
    clips = decoders.video_clips(2, num_frames=4, clip_s=0.8)(grey_mp4())
    assert clips.shape == (2, 4, 3, 32, 32)
    assert greys(clips) == [9, 11, 13, 15, 34, 36, 38, 40]
    assert greys(decoders.video_clips(2, num_frames=2, clip_s=60)(grey_mp4())) == [12, 37] * 2


@settings(max_examples=10, deadline=None)
@given(start=st.integers(0, 48), length=st.integers(1, 20), num_frames=st.none() | st.integers(1, 7))
def test_both_libraries_decode_the_same_frames(start: int, length: int, num_frames: int | None) -> None:
    """Of any section."""
    stop = min(50, start + length)
    decoder, found = decoders.video(start_s=start / 10, stop_s=stop / 10, num_frames=num_frames), []
    for library in LIBRARIES:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_video, "video_library", lambda library=library: library)
            found.append(greys(decoder(grey_mp4())))
    assert found[0] == found[1]
    if num_frames is None:
        assert found[0] == list(range(start, stop))


def test_a_section_of_a_lazy_file_costs_its_bytes(library: Any, tmp_path: Any) -> None:
    """Also frames that are far apart."""
    data = noise_mp4(20_000_000)
    (tmp_path / "a.mp4").write_bytes(data)

    def fetched(decoder: decoders.VideoFrames) -> int:
        file = LazyFile(f"file://{tmp_path}/a.mp4", 0, len(data), StorageOptions())
        decoder(file)
        return file.fetched_bytes

    assert fetched(decoders.video(start_s=4, stop_s=6)) < 0.2 * len(data) + 1.5e6
    assert fetched(decoders.video_clips(2, num_frames=2, clip_s=0.1)) < 0.25 * len(data)


def test_decode_sample_gives_decoders_the_file(library: Any) -> None:
    samples: list[dict[str, Any]] = [
        {"__key__": "a", "mp4": BytesFile("a.mp4", grey_mp4())},
        {"__key__": "b", "mp4": grey_mp4()},
    ]
    decoded = list(IterableWrapper(samples).decode_sample({"mp4": decoders.video(num_frames=2)}))
    assert [greys(sample["mp4"]) for sample in decoded] == [[12, 37]] * 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "which is none of mp4"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "which is none of mp4"),
        (b"", "begins with b''"),
        (grey_mp4()[:300], "cannot be decoded"),
        (grey_mp4()[:1000] + bytes(len(grey_mp4())), "cannot be decoded"),
    ],
)
def test_what_is_no_video_is_an_error(library: Any, data: bytes, message: str) -> None:
    """Playlists too, which would open what they name."""
    pipe = IterableWrapper([{"__key__": "a", "mp4": data}]).decode_sample({"mp4": decoders.video()})
    with pytest.raises(DecodeError, match=message):
        list(pipe)


@given(data=st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
def test_a_text_is_no_container(data: bytes) -> None:
    """A text may begin like one only by the letters of its boxes."""
    for playlist in (b"#EXTM3U\n", b"ffconcat version 1.0\n", b"<?xml version='1.0'?><MPD>", b"v=0\no=- 0 0 IN IP4 "):
        assert not _media._is_container(playlist + data)


def dash(url: str) -> str:
    return (
        '<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" profiles="urn:mpeg:dash:profile:isoff-on-demand:2011" type="static"'
        ' mediaPresentationDuration="PT9S" minBufferTime="PT1S"><Period><AdaptationSet mimeType="video/mp4"><'
        'Representation id="0" bandwidth="1" codecs="avc1.42c00d"><BaseURL>'
        f'{url}</BaseURL><SegmentBase indexRange="0-9"><Initialization range="0-9"/></SegmentBase></Representation>'
        "</AdaptationSet></Period></MPD>"
    )


SDP = "\nv=0\no=- 0 0 IN IP4 127.0.0.1\nc=IN IP4 127.0.0.1\nm=video 45678 RTP/AVP 96\na=rtpmap:96 H264/90000\n"


@pytest.mark.parametrize("size", [0, 3_000, 100_000])
@pytest.mark.parametrize("head", [b"<!--free-->", b"<!--skip-->", b"\xff\xe0", b"ID3\x03", b"AAAAfree", b"FLV\x01"])
def test_a_playlist_that_begins_as_a_container_is_refused(library: Any, head: bytes, size: int) -> None:
    """FFmpeg would take the first bytes for a comment, or pass over the line, and connect to what is named after it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a.mp4"
        text = dash(url) if head.startswith(b"<") else SDP
        filling = b"<!--" + b"x" * size + b"-->" if head.startswith(b"<") else b"\n" * size
        for data in (head + filling + text.encode(), head + text.encode() + b" " * size):
            for source in (data, BytesFile("a.mp4", data)):
                with pytest.raises(ValueError, match="playlist"):
                    decoders.video()(source)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("size", [300, 16 << 10])
def test_a_stream_without_a_zero_byte_is_a_container_if_all_of_it_was_seen(size: int) -> None:
    assert _media.container(b"\xff" * size)


def test_a_section_after_the_end_is_an_error(library: Any) -> None:
    with pytest.raises(ValueError, match=r"start_s=5 is at or after its end, 5\.000 s"):
        decoders.video(start_s=5)(grey_mp4())


def test_a_video_that_would_fill_the_memory_is_refused(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_media, "MAX_BYTES", 100_000)
    with pytest.raises(ValueError, match=r"about 153,600 bytes \(limit 100,000\).*num_frames="):
        decoders.video()(grey_mp4())
    assert len(decoders.video(num_frames=10)(grey_mp4())) == 10


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    imported = builtins.__import__

    def refuse(name: str, *arguments: Any, **more: Any) -> Any:
        if name.partition(".")[0] in missing:
            raise ImportError(f"No module named {name!r}")
        return imported(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    _video_libraries.video_library.cache_clear()


def test_the_library_is_the_first_that_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any, the error says what to install."""
    try:
        with monkeypatch.context() as patch:
            without(patch)
            assert _video_libraries.video_library() is ByTorchcodec
            without(patch, "torchcodec")
            assert _video_libraries.video_library() is ByPyAV
            without(patch, "torchcodec", "av")
            with pytest.raises(ImportError, match=r"pip install 'torchdata_remote\[media\]'.*apt install ffmpeg"):
                decoders.video()(grey_mp4())
            with pytest.raises(ImportError, match=r"pip install 'torchdata_remote\[media\]'"):
                decoders.audio()(wav(np.zeros((8000, 1), np.int16), 8000))
    finally:
        _video_libraries.video_library.cache_clear()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"start_s": -1}, ValueError, "video: start_s"),
        ({"start_s": "1"}, TypeError, "video: start_s"),
        ({"start_s": 2, "stop_s": 2}, ValueError, "stop_s=2 is not after start_s=2"),
        ({"num_frames": 0}, ValueError, "num_frames must be an int of at least 1"),
        ({"frames": 8}, TypeError, "unexpected keyword argument 'frames'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        decoders.video(**options)


def tone(seconds: int, rate: int = 8000) -> np.ndarray[Any, Any]:
    times = np.arange(seconds * rate) / rate
    return np.stack([np.sin(440 * 2 * np.pi * times), times / seconds], axis=1)


def test_audio_is_float32_of_shape_channels_samples() -> None:
    """From -1 to 1, with its rate."""
    wanted = tone(3)
    data = wav((wanted * 32767).round().astype(np.int16), 8000)
    samples, rate = decoders.audio()(data)
    assert (samples.dtype, samples.shape, rate) == (torch.float32, (2, 24_000), 8000)
    assert np.allclose(samples.numpy().T, wanted, atol=1e-3)
    part, _ = decoders.audio(start_s=1, stop_s=1.5)(BytesFile("a.wav", data))
    assert torch.equal(part, samples[:, 8000:12_000])
    resampled, rate = decoders.audio(sample_rate=4000)(data)
    assert (resampled.shape[0], rate) == (2, 4000)
    assert abs(resampled.shape[1] - 12_000) < 100
    with pytest.raises(ValueError, match="after its end"):
        decoders.audio(start_s=3)(data)


def test_a_section_of_a_lazy_wav_costs_the_bytes_up_to_its_end(tmp_path: Any) -> None:
    data = wav(np.zeros((8000 * 600, 1), np.int16), 8000)
    (tmp_path / "a.wav").write_bytes(data)
    file = LazyFile(f"file://{tmp_path}/a.wav", 0, len(data), StorageOptions())
    samples, _ = decoders.audio(start_s=10, stop_s=12)(file)
    assert samples.shape == (1, 16_000)
    assert file.fetched_bytes < len(data) / 4


def test_reading_a_file_raises_the_error_of_its_store(library: Any, tmp_path: Any) -> None:
    """Where the library hands it on: PyAV does."""
    (tmp_path / "a.mp4").write_bytes(grey_mp4())
    file = LazyFile(f"file://{tmp_path}/a.mp4", 0, len(grey_mp4()), StorageOptions())
    os.remove(tmp_path / "a.mp4")
    with pytest.raises(FileNotFoundError, match=r"a\.mp4"):
        decoders.video()(file)
    assert isinstance(file, io.BufferedIOBase)
