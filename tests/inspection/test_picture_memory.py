"""The memory that pictures take together."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from torchdata_remote.formats.decoders import MAX_PIXELS
from torchdata_remote.inspection import draw_sheet, picture_sheet
from torchdata_remote.inspection.contact_sheet import thumbnail
from torchdata_remote.inspection.picture_memory import (
    MAX_DECODING_BYTES,
    READ,
    PictureMemory,
    decoded_in_turn,
    decoding_bytes,
)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 12), min_size=1, max_size=30), num_threads=st.integers(1, 8))
def test_no_more_is_reserved_than_allowed(sizes: list[int], num_threads: int) -> None:
    """By any threads; all that fits alone is granted at last, and returned, also after an error."""
    memory, lock, held = PictureMemory(10), threading.RLock(), [0]

    def use(num_bytes: int) -> bool:
        try:
            with memory.reserved(num_bytes, timeout_s=60.0) as granted:
                with lock:
                    held[0] += num_bytes if granted else 0
                    assert held[0] <= 10
                with lock:
                    held[0] -= num_bytes if granted else 0
                if num_bytes % 2:
                    raise KeyError
        except KeyError:
            pass
        return granted

    with ThreadPoolExecutor(num_threads) as pool:
        assert list(pool.map(use, sizes)) == [size <= 10 for size in sizes]
    assert memory.free_bytes == 10


def test_a_large_picture_is_not_overtaken_for_ever() -> None:
    """Those that come later wait behind it; one that gives up lets them pass."""
    memory, waits = PictureMemory(10), threading.Barrier(2)

    def large() -> bool:
        waits.wait()
        with memory.reserved(10, timeout_s=60.0) as granted:
            return granted

    with ThreadPoolExecutor(1) as pool:
        with memory.reserved(1, timeout_s=0.0):
            waiting = pool.submit(large)
            waits.wait()
            while not memory._queue:
                pass
            with memory.reserved(1, timeout_s=0.0) as granted:
                assert not granted
        assert waiting.result()
    with memory.reserved(1, timeout_s=0.0), memory.reserved(10, timeout_s=0.0) as granted:
        assert not granted
        with memory.reserved(9, timeout_s=0.0) as granted:
            assert granted


def encoded(size: tuple[int, int], kind: str = "PNG", mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("data", [b"", b"no picture", encoded((9, 9))[:30], b"\x89PNG\r\n\x1a\n"])
def test_what_is_not_a_picture_has_no_size(data: bytes) -> None:
    """Nothing of it is decoded."""
    assert decoding_bytes(data, 160) is None


def test_a_picture_beyond_all_limits_has_no_size() -> None:
    """Without a warning of Pillow's."""
    assert decoding_bytes(encoded((MAX_PIXELS // 4096 + 1, 4096), mode="1"), 160) is None


CASES: dict[str, dict[str, Any]] = {
    **{mode: {"mode": mode} for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")},
    "transparent palette": {"mode": "P", "transparency": 0},
    "JPEG": {"kind": "JPEG"},
    "progressive JPEG": {"kind": "JPEG", "progressive": True, "subsampling": 0},
    "CMYK JPEG": {"kind": "JPEG", "mode": "CMYK"},
    "WebP": {"kind": "WEBP"},
    "lossless WebP": {"kind": "WEBP", "mode": "RGBA", "lossless": True},
    "GIF": {"kind": "GIF", "mode": "P"},
    "TIFF": {"kind": "TIFF", "compression": "tiff_deflate"},
    "TIFF of one strip": {"kind": "TIFF", "mode": "RGBA", "compression": "tiff_lzw", "strip_size": 1 << 30},
    "BMP": {"kind": "BMP"},
    "PPM": {"kind": "PPM"},
    "16-bit PPM": {"kind": "PPM", "mode": "I"},
}
MEASURE = """
import sys
import numpy
from PIL import Image
from torchdata_remote.inspection.contact_sheet import thumbnail
from torchdata_remote.inspection.picture_memory import decoding_bytes

def most_bytes():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))

data = open(sys.argv[1], "rb").read()
Image.init()
expected = decoding_bytes(data, 160)
before = most_bytes()
assert thumbnail(data, 160) is not None
print((most_bytes() - before) / expected)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
@pytest.mark.parametrize("case", CASES)
def test_decoding_takes_no_more_memory_than_was_expected(tmp_path: Path, case: str) -> None:
    """In a process of its own, for 9 million pixels."""
    (tmp_path / "picture").write_bytes(encoded((3000, 3000), **CASES[case]))
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "picture")]
    used = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    # JPEG is decoded to a few MiB, in which the libraries themselves count
    assert used < 10 if case.endswith("JPEG") and "progressive" not in case else 0.1 < used < 1.1


@pytest.mark.parametrize("in_shard", [False, True])
def test_sheets_at_once_share_one_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_shard: bool) -> None:
    """Of what is read; one picture at a time is decoded. One that is too large is a crossed cell."""
    from tests.support.archive_bytes import pack_tar

    small, large = encoded((400, 400)), encoded((900, 900))
    files = {f"{number}.png": large if number == 3 else small for number in range(6)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    if in_shard:
        for name in files:
            (tmp_path / name).unlink()
        for number in range(3):
            (tmp_path / f"{number}.tar").write_bytes(pack_tar(list(files.items())))
    per_picture = decoding_bytes(small, 160)
    assert per_picture is not None
    read = PictureMemory(READ.max_bytes)
    monkeypatch.setattr(picture_sheet, "MAX_DECODING_BYTES", per_picture)
    monkeypatch.setattr(picture_sheet, "READ", read)
    at_once, most, sizes, lock = [0], [0], list[int](), threading.RLock()

    def counted(data: bytes, cell_pixels: int) -> Any:
        with lock:
            sizes.append(Image.open(io.BytesIO(data)).width)
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
            assert read.free_bytes < read.max_bytes
        try:
            return thumbnail(data, cell_pixels)
        finally:
            with lock:
                at_once[0] -= 1

    monkeypatch.setattr(picture_sheet, "thumbnail", counted)
    with ThreadPoolExecutor(4) as pool:
        sheets = list(pool.map(lambda _: draw_sheet(f"file://{tmp_path}/", None), range(4)))
    assert len(set(sheets)) == 1
    assert set(sizes) == {400}
    assert most[0] == 1
    assert read.free_bytes == read.max_bytes


def test_a_picture_whose_turn_does_not_come_is_not_decoded() -> None:
    """One that has begun is waited for, and its error is raised."""
    begun, may_end = threading.Event(), threading.Event()

    def slow() -> int:
        begun.set()
        may_end.wait(60)
        raise KeyError

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(decoded_in_turn, slow, timeout_s=60.0)
        assert begun.wait(60)
        assert decoded_in_turn(lambda: 1, timeout_s=0.0) is None
        may_end.set()
        assert isinstance(first.exception(), KeyError)
    assert decoded_in_turn(lambda: 1, timeout_s=60.0) == 1


def test_a_photograph_of_24_million_pixels_is_drawn() -> None:
    """In each format that cameras and editors write."""
    for kind in ("JPEG", "PNG", "TIFF"):
        expected = decoding_bytes(encoded((6000, 4000), kind), 160)
        assert expected is not None
        assert expected <= MAX_DECODING_BYTES
