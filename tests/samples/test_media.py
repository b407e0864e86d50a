"""Video and audio: frames at their times, sections of sound, and members that are read as files."""

from __future__ import annotations

import copy
import io
import os
import pickle
import random
import socket
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.archive_bytes import pack_tar
from tests.support.like_bytes_io import STEPS, assert_like_bytes_io
from tests.support.videos import AUDIO_CODECS, VIDEO_CODECS, grey_mp4, noise_mp4, sound, variable_video, wav
from torchdata_remote import IterableWrapper, decoders, stream_shards
from torchdata_remote.errors import DecodeError

VIDEOS = [*((ending, "") for ending in VIDEO_CODECS), ("avi", "libx264")]
"""Endings, and a codec that is not the usual one: it stores frames in another order than they are shown."""


def as_file(data: bytes, folder: Any = None) -> Any:
    """A member as a file: in memory, or of an archive in a folder."""
    if folder is None:
        (sample,) = IterableWrapper([("u", io.BytesIO(pack_tar([("a.mp4", data)])))]).shard_tar_reader(lazy={"mp4"})
    else:
        (folder / "a.tar").write_bytes(pack_tar([("a.mp4", data)]))
        (sample,) = stream_shards(f"{folder}/a.tar", lazy={"mp4"})
    return sample["mp4"]


def greys(frames: torch.Tensor) -> list[int]:
    """The numbers of the frames of ``grey_mp4``."""
    assert frames.dtype is torch.uint8
    return [round((float(value) - 16) / 4) for value in frames.float().mean(dim=(-1, -2, -3)).flatten()]


def test_all_frames_of_a_section() -> None:
    """Those that begin in it, of shape (T, 3, H, W)."""
    frames = decoders.video(start_s=1.2, stop_s=3.0)(grey_mp4())
    assert frames.shape == (18, 3, 32, 32)
    assert greys(frames) == list(range(12, 30))
    assert greys(decoders.video()(as_file(grey_mp4()))) == list(range(50))
    assert greys(decoders.video(start_s=4.5, stop_s=99)(grey_mp4())) == list(range(45, 50))
    assert greys(decoders.video(start_s=0.05, stop_s=0.15)(grey_mp4())) == [1]


def test_frames_in_the_middles_of_equal_parts() -> None:
    frames = decoders.video(num_frames=5)(grey_mp4())
    assert greys(frames) == [5, 15, 25, 35, 45]
    assert greys(decoders.video(start_s=2, stop_s=2.4, num_frames=4)(grey_mp4())) == [20, 21, 22, 23]
    assert greys(decoders.video(stop_s=0.2, num_frames=4)(grey_mp4())) == [0, 0, 1, 1]


def test_clips_are_evenly_spaced() -> None:
    """Of shape (clips, frames, 3, H, W); longer than the section, they are the section."""
    clips = decoders.video_clips(2, num_frames=4, clip_s=0.8)(grey_mp4())
    assert clips.shape == (2, 4, 3, 32, 32)
    assert greys(clips) == [9, 11, 13, 15, 34, 36, 38, 40]
    assert greys(decoders.video_clips(2, num_frames=2, clip_s=60)(grey_mp4())) == [12, 37] * 2


@pytest.mark.parametrize(("ending", "codec"), VIDEOS)
def test_a_video_of_a_variable_rate_is_its_frames_at_their_times(ending: str, codec: str) -> None:
    """All of them, those that begin in a section, and those that are shown at evenly spaced times."""
    data, begins = variable_video(ending, codec)
    assert greys(decoders.video()(data)) == list(range(50))
    if begins[-1] > 10:
        assert len(decoders.video(start_s=1, stop_s=3)(data)) == 14
    rng = random.Random(0)
    end = begins[-1] + begins[1]
    sections: list[tuple[float, float | None]] = [(0.5, 1.5), (1.0, None)]
    for _ in range(6):
        first, last = sorted(rng.sample(begins, 2))
        sections.append((first, last))
    for start, stop in sections:
        section = [at for at, begin in enumerate(begins) if start <= begin < (stop or end)]
        assert greys(decoders.video(start_s=start, stop_s=stop)(data)) == section
        length = (stop or end) - start
        times = [start + (part + 0.5) * length / 7 for part in range(7)]
        shown = [max(at for at, begin in enumerate(begins) if begin <= time + 1e-5) for time in times]
        assert greys(decoders.video(start_s=start, stop_s=stop, num_frames=7)(data)) == shown
    assert greys(decoders.video(start_s=begins[-1])(as_file(data))) == [49]


@pytest.mark.parametrize(("ending", "codec"), VIDEOS)
def test_a_video_that_ends_early_is_an_error(ending: str, codec: str) -> None:
    """Or its frames are right where the cut is between two parts of a stream, or only an index is missing."""
    data, _ = variable_video(ending, codec)
    rng, whole = random.Random(ending), decoders.video()(data)
    num_refused = 0
    for stop in [1, len(data) // 2, *(rng.randrange(len(data)) for _ in range(10))]:
        try:
            frames = decoders.video()(data[:stop])
            assert torch.equal(frames, whole[: len(frames)])
        except ValueError:
            num_refused += 1
    assert num_refused >= 5 or ending == "mpg"


def test_a_section_before_the_cut_is_an_error_too() -> None:
    """A fragmented mp4 says in each fragment how long it is."""
    data, begins = variable_video("mp4", movflags="frag_keyframe+empty_moov")
    assert greys(decoders.video(start_s=3, stop_s=6)(data)) == [n for n in range(50) if 3 <= begins[n] < 6]
    for cut in (data[: len(data) * 2 // 3], data[:-1]):
        with pytest.raises(ValueError, match=r"ends early, after [\d,]+ bytes"):
            decoders.video(stop_s=0.5)(cut)


IDENTITY = np.array([1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30], ">i4").tobytes()


@pytest.mark.parametrize(
    ("matrix", "shown"),
    [
        ((0, 1, -1, 0), lambda frames: frames.rot90(-1, (2, 3))),
        ((0, -1, 1, 0), lambda frames: frames.rot90(1, (2, 3))),
        ((-1, 0, 0, 1), lambda frames: frames.flip(3)),
    ],
)
def test_a_rotation_in_the_header_is_applied(matrix: tuple[int, ...], shown: Any) -> None:
    """As phones write it: pixels are shown as a player shows them."""
    data = noise_mp4(30_000, num_frames=3)
    a, b, c, d = (number << 16 for number in matrix)
    rotation = np.array([a, b, 0, c, d, 0, 0, 0, 1 << 30], ">i4").tobytes()
    track = data.index(b"tkhd")
    rotated = data[:track] + data[track:].replace(IDENTITY, rotation, 1)
    assert torch.equal(decoders.video()(rotated), shown(decoders.video()(data)))


def test_a_member_without_pictures_or_sound_says_so() -> None:
    pipe = IterableWrapper([{"__key__": "a", "mp4": sound("flac")}]).decode_sample({"mp4": decoders.video()})
    with pytest.raises(DecodeError, match=r"it has no pictures.*decoders\.audio"):
        list(pipe)
    with pytest.raises(ValueError, match=r"it has no sound.*decoders\.video"):
        decoders.audio()(grey_mp4())


def test_a_section_of_a_lazy_file_costs_its_bytes(tmp_path: Any) -> None:
    """Also frames that are far apart."""
    data = noise_mp4(20_000_000)

    def fetched(decoder: decoders.VideoFrames) -> int:
        file = as_file(data, tmp_path)
        decoder(file)
        return int(file.fetched_bytes)

    assert fetched(decoders.video(start_s=4, stop_s=6)) < 0.2 * len(data) + 1.5e6
    assert fetched(decoders.video_clips(2, num_frames=2, clip_s=0.1)) < 0.25 * len(data)


def test_decode_sample_gives_decoders_the_file() -> None:
    samples = [{"__key__": "a", "mp4": as_file(grey_mp4())}, {"__key__": "b", "mp4": grey_mp4()}]
    decoded = list(IterableWrapper(samples).decode_sample({"mp4": decoders.video(num_frames=2)}))
    assert [greys(sample["mp4"]) for sample in decoded] == [[12, 37]] * 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "cannot be opened as mp4"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "cannot be opened as mp4"),
        (b"", "cannot be opened as mp4"),
        (grey_mp4()[:300], "cannot be decoded"),
        (grey_mp4()[:1000] + bytes(len(grey_mp4())), "cannot be decoded"),
    ],
)
def test_what_is_no_video_is_an_error(data: bytes, message: str) -> None:
    """Playlists too, which would open what they name."""
    pipe = IterableWrapper([{"__key__": "a", "mp4": data}]).decode_sample({"mp4": decoders.video()})
    with pytest.raises(DecodeError, match=message):
        list(pipe)


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
def test_a_playlist_that_begins_as_a_container_is_refused(head: bytes, size: int) -> None:
    """FFmpeg would take the first bytes for a comment, or pass over the line, and connect to what is named after it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a.mp4"
        text = dash(url) if head.startswith(b"<") else SDP
        filling = b"<!--" + b"x" * size + b"-->" if head.startswith(b"<") else b"\n" * size
        for data in (head + filling + text.encode(), head + text.encode() + b" " * size):
            for source in (data, as_file(data)):
                with pytest.raises(ValueError, match=r"cannot be opened as mp4|ends early"):
                    decoders.video()(source)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_section_after_the_end_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no frame begins in this section.*ends at 5\.000 s"):
        decoders.video(start_s=5)(grey_mp4())
    with pytest.raises(ValueError, match=r"start_s=5 is at or after its end, 5\.000 s"):
        decoders.video(start_s=5, num_frames=2)(grey_mp4())


def test_media_that_would_fill_the_memory_are_refused() -> None:
    """What has more than 2 GiB when it is decoded: of frames, or of silence in a gap."""
    with pytest.raises(ValueError, match=r"more than 2,147,483,648 bytes, the limit.*num_frames="):
        decoders.video(num_frames=700_000)(grey_mp4())
    with pytest.raises(ValueError, match=r"more than 2,147,483,648 bytes, the limit"):
        decoders.audio()(sound("mkv", gap=48_000 * 5_600))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"start_s": -1}, ValueError, "video: start_s"),
        ({"start_s": "1"}, TypeError, "video: start_s"),
        ({"start_s": 2, "stop_s": 2}, ValueError, "stop_s=2 is not after start_s=2"),
        ({"num_frames": 0}, ValueError, "num_frames must be an int of at least 1"),
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
    part, _ = decoders.audio(start_s=1, stop_s=1.5)(as_file(data))
    assert torch.equal(part, samples[:, 8000:12_000])
    resampled, rate = decoders.audio(sample_rate=4000)(data)
    assert (resampled.shape[0], rate) == (2, 4000)
    assert abs(resampled.shape[1] - 12_000) < 100
    with pytest.raises(ValueError, match="after its end"):
        decoders.audio(start_s=3)(data)


@pytest.mark.parametrize("ending", AUDIO_CODECS)
def test_a_section_of_sound_is_a_part_of_the_whole(ending: str) -> None:
    """Sample by sample, also where it is resampled."""
    data = sound(ending)
    whole, rate = decoders.audio()(data)
    assert rate == 48_000
    assert whole.shape[0] == 2
    # AAC has 1024 samples in a frame, and in ADTS no word on those that were added
    assert 144_000 <= whole.shape[1] <= 144_000 + 2048
    resampled, _ = decoders.audio(sample_rate=22_050)(data)
    assert abs(resampled.shape[1] - whole.shape[1] * 22_050 / 48_000) <= 1
    for start, stop in ((0, 1), (0.3, 0.7), (1.5, 2.99)):
        section, _ = decoders.audio(start_s=start, stop_s=stop)(as_file(data))
        assert torch.equal(section, whole[:, round(start * 48_000) : round(stop * 48_000)])
        section, rate = decoders.audio(start_s=start, stop_s=stop, sample_rate=22_050)(data)
        wanted = resampled[:, round(start * 22_050) : round(stop * 22_050)]
        assert rate == 22_050
        assert section.shape == wanted.shape
        assert torch.allclose(section, wanted, atol=1e-5)


@pytest.mark.parametrize("ending", AUDIO_CODECS)
def test_sound_that_ends_early_is_an_error(ending: str) -> None:
    data = sound(ending)
    for stop in (1, len(data) // 3, len(data) // 2, len(data) * 9 // 10):
        with pytest.raises(ValueError, match=r"ends early|damaged|Invalid data"):
            decoders.audio()(data[:stop])


def xing(name: bytes, *, with_frames: bool) -> bytes:
    """An mp3 whose header has the number of its bytes, with the number of frames before it or not."""
    data = bytearray(sound("mp3"))
    at = data.index(b"Info")
    data[at : at + 4] = name
    if not with_frames:
        data[at + 4 : at + 16] = b"\0\0\0\2" + data[at + 12 : at + 16] + bytes(4)
    return bytes(data)


def wide_mp4() -> bytes:
    """An mp4 whose data have a length of 64 bits, for which a program has left 8 bytes before."""
    data = sound("mp4")
    at = data.index(b"\0\0\0\x08free")
    length = int.from_bytes(data[at + 8 : at + 12], "big") + 8
    assert data[at + 12 : at + 16] == b"mdat"
    return data[:at] + b"\0\0\0\1mdat" + length.to_bytes(8, "big") + data[at + 16 :]


def riff(kind: str) -> bytes:
    """A wav whose size counts its own 8 bytes, as some writers do, or is in a part of its own, for more than 4 GiB."""
    data = wav((tone(1) * 1000).astype(np.int16), 8000)
    if kind == "RIFF":
        return data[:4] + struct.pack("<I", len(data)) + data[8:]
    sizes = struct.pack("<IQQQI", 28, len(data) + 28, len(data) - 44, 0, 0)
    return b"RF64\xff\xff\xff\xffWAVEds64" + sizes + data[12:40] + b"\xff" * 4 + data[44:]


WITH_A_LENGTH: dict[str, Any] = {
    **{ending: lambda ending=ending: variable_video(ending)[0] for ending in VIDEO_CODECS if ending != "mpg"},
    **{f"{ending} of sound": lambda ending=ending: sound(ending) for ending in ("wav", "mp3", "ogg", "mp4", "mkv")},
    **{f"wav, {kind}": lambda kind=kind: riff(kind) for kind in ("RIFF", "RF64")},
    "mp3, Xing": lambda: xing(b"Xing", with_frames=True),
    "mp3, Info, no frames": lambda: xing(b"Info", with_frames=False),
    "mp4 of 64 bits": wide_mp4,
    "mp4 in fragments": lambda: variable_video("mp4", movflags="frag_keyframe+empty_moov")[0],
}


@pytest.mark.parametrize("name", WITH_A_LENGTH)
def test_a_file_that_says_how_long_it_is_is_whole_or_an_error(name: str) -> None:
    """One byte less is one; also where only the beginning is decoded, and in a member that is read by ranges."""
    data = WITH_A_LENGTH[name]()
    is_video = name in VIDEO_CODECS or "fragments" in name
    decode = decoders.video(stop_s=0.3) if is_video else decoders.audio(stop_s=0.3)
    for make in (bytes, as_file):
        assert len(decode(make(data))[0]) > 0
        for cut in (data[:-1], data[: len(data) // 2]):
            with pytest.raises(ValueError, match=rf"^it ends early, after {len(cut):,} bytes: it was cut"):
                decode(make(cut))


def test_a_gap_in_the_times_of_sound_is_silence() -> None:
    """What follows it is at its time."""
    whole, _ = decoders.audio()(sound("mkv"))
    with_gap, _ = decoders.audio()(sound("mkv", gap=24_000))
    silence = torch.zeros(2, 24_000)
    assert torch.allclose(with_gap, torch.cat([whole[:, :48_000], silence, whole[:, 48_000:]], dim=1), atol=1e-6)


def test_a_wav_of_unknown_length_is_what_it_holds() -> None:
    """As a program writes that streams it."""
    data = bytearray(wav((tone(1) * 1000).astype(np.int16), 8000))
    data[4:8] = data[40:44] = b"\xff" * 4
    assert decoders.audio()(bytes(data))[0].shape == (2, 8000)


def test_reading_a_file_raises_the_error_of_its_store(tmp_path: Any) -> None:
    file = as_file(noise_mp4(300_000, num_frames=3), tmp_path)
    os.remove(tmp_path / "a.tar")
    with pytest.raises(FileNotFoundError, match=r"a\.tar"):
        decoders.video()(file)
    assert isinstance(file, io.BufferedIOBase)


@given(size=st.sampled_from([0, 300, 65_536, 65_537, 300_000]), steps=STEPS)
def test_a_lazy_member_reads_as_a_file_in_memory(
    tmp_path_factory: pytest.TempPathFactory, size: int, steps: list[tuple[Any, ...]]
) -> None:
    """The same results and errors as ``io.BytesIO``, for any sequence of calls; copies have its position."""
    data = random.Random(size).randbytes(size)
    for file in (as_file(data), as_file(data, tmp_path_factory.mktemp("lazy"))):
        assert_like_bytes_io(file, data, steps)
        position = file.tell()
        for other in (pickle.loads(pickle.dumps(file)), copy.copy(file), copy.deepcopy(file)):
            assert (other.name, other.tell(), other.read(3)) == ("a.mp4", position, data[position : position + 3])
        assert file.tell() == position
        with pytest.raises(ValueError, match="whence is 0, 1 or 2, got 3"):
            file.seek(0, 3)
        assert (file.readable(), file.seekable(), file.writable()) == (True, True, False)
        file.close()
        for call in (file.read, file.tell, lambda file=file: file.seek(0), lambda file=file: bytes(file)):
            with pytest.raises(ValueError, match=r"'a\.mp4': read from a closed file"):
                call()
