"""Members that are handed out as files."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.archive_bytes import in_parts, make_header, octal_size, pack_tar
from tests.support.tar_members import read_members
from torchdata_remote.errors import ShardReadError
from torchdata_remote.formats.member_file import BytesFile, MemberFile
from torchdata_remote.formats.tar import TarOptions
from torchdata_remote.formats.tar.lazy_members import SMALL_BYTES, JumpingParts, LazyExtensions, read_lazy_batches

URL = "s3://b/0.tar"
MEMBERS = st.lists(
    st.tuples(
        st.text("abé/", max_size=120),
        st.sampled_from(["mp4", "left.mp4", "json", "mp4.json"]),
        st.sampled_from([0, 5, 512, SMALL_BYTES, SMALL_BYTES + 1, 200_000]),
    ).map(lambda one: (f"k{one[0]}.{one[1]}", bytes([one[2] % 251]) * one[2])),
    max_size=8,
)


class Jumping:
    """An archive that counts the bytes that are read."""

    def __init__(self, data: bytes, window: int) -> None:
        self.data, self.window, self.at, self.expected = data, window, 0, 0
        self.num_read = self.num_windows = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        while self.at < len(self.data):
            piece = self.data[self.at : self.at + max(self.window, self.expected)]
            self.expected = 0
            self.at += len(piece)
            self.num_read += len(piece)
            self.num_windows += 1
            yield piece

    def jump(self, num_bytes: int) -> int:
        skipped = min(num_bytes, len(self.data) - self.at)
        self.at += skipped
        return skipped

    def expect(self, num_bytes: int) -> None:
        self.expected = num_bytes


class At(BytesFile):
    """A file of the archive."""


@given(members=MEMBERS, window=st.integers(1, 100_000), jumps=st.booleans(), cuts=st.lists(st.integers(0, 1 << 20)))
def test_the_members_are_those_of_the_archive(
    members: list[tuple[str, bytes]], window: int, jumps: bool, cuts: list[int]
) -> None:
    """Lazy ones as files of the same bytes; what is passed over is not read."""
    data = pack_tar(members)
    parts = Jumping(data, window) if jumps else in_parts(data, cuts)
    assert isinstance(parts, JumpingParts) is jumps
    batches = read_lazy_batches(
        parts,
        url=URL,
        options=TarOptions(len(data)),
        lazy=LazyExtensions({"mp4"}),
        file_of=lambda name, start, size: At(name, data[start : start + size]),
    )
    found = [(name, value) for names, values in batches for name, value in zip(names, values, strict=True)]
    assert [(name, bytes(value)) for name, value in found] == list(read_members([data], url=URL))
    for name, value in found:
        is_lazy = name.endswith(".mp4")
        assert isinstance(value, MemberFile) is is_lazy
        assert isinstance(value, At) is (is_lazy and len(bytes(value)) > SMALL_BYTES)
    if isinstance(parts, Jumping):
        passed_over = sum(value.size for _, value in found if isinstance(value, At))
        ahead = (1 + sum(isinstance(value, At) for _, value in found)) * (window + SMALL_BYTES * 8 + 10_240)
        assert parts.num_read <= len(data) - passed_over + ahead


def test_a_sample_is_one_window_once_the_first_was_read() -> None:
    """What is read between two lazy members is requested at once, and little more."""
    one = [("a.jpg", bytes(150_000)), ("a.json", b"{}"), ("a.mp4", bytes(500_000))]
    data = pack_tar([(f"{number}{name}", value) for number in range(9) for name, value in one])
    parts = Jumping(data, 4096)
    read: list[tuple[int, int]] = []

    def file_of(name: str, start: int, size: int) -> At:
        read.append((parts.num_windows, parts.num_read))
        return At(name, b"")

    lazy = LazyExtensions({"mp4"})
    batches = read_lazy_batches(parts, url=URL, options=TarOptions(len(data)), lazy=lazy, file_of=file_of)
    assert sum(1 for _ in batches) == 27
    steps = [(later[0] - one[0], later[1] - one[1]) for one, later in pairwise(read)]
    assert {num_windows for num_windows, _ in steps} == {1}
    assert all(150_000 < num_bytes < 153_000 for _, num_bytes in steps)


def test_a_header_that_claims_too_much_is_an_error() -> None:
    """4 GB, of which the object has a few bytes; also where the length of the object is not known."""
    data = pack_tar([("a.json", b"{}")])[:-1024] + make_header(b"a.mp4", octal_size((4 << 30) - 512)) + bytes(2048)

    def read(options: TarOptions) -> None:
        parts = Jumping(data, 4096)
        files = read_lazy_batches(
            parts, url=URL, options=options, lazy=LazyExtensions({"mp4"}), file_of=lambda *_: At("a", b"")
        )
        assert list(files) == []

    with pytest.raises(ShardReadError, match=r"'a\.mp4' claims 4,294,966,784 bytes where the object has 2,048 left"):
        read(TarOptions(len(data)))
    with pytest.raises(ShardReadError, match=r"'a\.mp4' holds 2,048 of 4,294,966,784 bytes"):
        read(TarOptions())
    with pytest.raises(ShardReadError, match="max_member_bytes=1,000"):
        read(TarOptions(max_member_bytes=1000))


def test_an_archive_that_ends_early_is_an_error() -> None:
    data = pack_tar([("a.mp4", bytes(100_000))])
    for length in (50_000, 100_512 + 10):
        files = read_lazy_batches(
            Jumping(data[:length], 4096),
            url=URL,
            options=TarOptions(),
            lazy=LazyExtensions({"mp4"}),
            file_of=lambda *_: At("a", b""),
        )
        with pytest.raises(ShardReadError, match="cut short"):
            list(files)


@pytest.mark.parametrize(
    ("name", "is_lazy"), [("a.mp4", True), ("a.MP4", True), ("a.left.mp4", True), ("a.mp4.json", False), ("mp4", False)]
)
def test_a_lazy_extension_is_complete_or_the_last_part(name: str, is_lazy: bool) -> None:
    assert (name in LazyExtensions({"mp4"})) is is_lazy
    assert ("a.left.mp4" in LazyExtensions({"left.mp4"}), "a.mp4" in LazyExtensions({"left.mp4"})) == (True, False)
