"""Members without their data."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.formats.tar.test_tar import MEMBERS, ONE, URL, Members
from tests.formats.test_byte_reader import JumpingParts
from tests.support.archive_bytes import in_parts, make_header, make_member, octal_size, pack_tar, pax_line
from tests.support.tar_members import read_members
from torchdata_remote.errors import ShardReadError
from torchdata_remote.formats.tar import BLOCK, END_OF_ARCHIVE, TarOptions, read_member_headers


def outcome(read: Any, *arguments: Any, **options: Any) -> Any:
    """What is read, and the error that it ends with."""
    found = []
    try:
        found.extend(read(*arguments, url=URL, **options))
    except ShardReadError as error:
        return found, str(error)
    return found, None


@given(members=MEMBERS, part_bytes=st.integers(1, 5000), wanted=st.integers(0, 3))
def test_member_headers_are_those_of_the_members(members: Members, part_bytes: int, wanted: int) -> None:
    """Names, sizes and offsets are right for any names; only requested data are read."""
    data = pack_tar(members)
    parts = JumpingParts(data, part_bytes)
    heads = list(
        read_member_headers(parts, url=URL, options=TarOptions(), wanted=lambda name, size: size % 4 == wanted)
    )
    assert [(head.name, head.num_bytes) for head in heads] == [(name, len(content)) for name, content in members]
    assert [head.data for head in heads] == [content if len(content) % 4 == wanted else None for _, content in members]
    for head, name_and_content in zip(heads, members, strict=True):
        tail = data[head.start :]
        assert next(iter(read_members([tail], url=URL))) == name_and_content


@given(members=MEMBERS, cut=st.integers(0, 20_000), flip=st.integers(0, 1 << 20), part_bytes=st.integers(1, 3000))
@example(members=[("a.x", b"1" * 3000)], cut=600, flip=0, part_bytes=512)
def test_header_readers_are_as_strict_as_read_members(members: Members, cut: int, flip: int, part_bytes: int) -> None:
    """Of an archive that is cut short or damaged, jumping finds the same members, and the same error."""
    data = bytearray(pack_tar(members))
    if cut < len(data):
        del data[cut:]
    elif data:
        data[flip % len(data)] ^= 1 << flip % 8
    options = TarOptions(num_bytes=len(data))
    whole, error = outcome(read_members, in_parts(bytes(data), []), options=options)
    heads, error_of_heads = outcome(read_member_headers, JumpingParts(bytes(data), part_bytes), options=options)
    assert error_of_heads == error
    assert [(head.name, head.num_bytes) for head in heads] == [(name, len(content)) for name, content in whole]


def test_skipping_over_the_end_of_an_archive_is_an_error() -> None:
    """A jump over the end is noticed, and the error says how much there was of the member."""
    data = pack_tar([("a.x", b"1" * 3000)])[:2000]
    _, error = outcome(read_member_headers, JumpingParts(data, 700), options=TarOptions())
    assert error is not None
    assert f"{URL}: at byte 0: member 'a.x' holds 1,488 of 3,000 bytes" in error


def test_members_that_belong_to_no_sample_are_counted() -> None:
    """Directories and links are passed over; a member's place is that of its extended header."""
    long = pax_line("path", "l" * 300 + ".x")
    data = make_header(b"d/", kind=b"5") + make_header(b"l", kind=b"2") + make_member(b"pax", long, b"x") + ONE
    skipped: list[str] = []
    (head,) = read_member_headers([data + END_OF_ARCHIVE], url=URL, options=TarOptions(on_skip=skipped.append))
    assert skipped == ["directory", "link"]
    assert (head.name, head.start, head.num_bytes) == ("l" * 300 + ".x", 2 * BLOCK, 3)


@pytest.mark.parametrize("size", [1 << 40, (8 << 30) - 1])
def test_a_false_size_takes_no_memory(size: int) -> None:
    """A member that claims more than there is: an error, whether its data are wanted or not."""
    field = octal_size(size) if size < 8 << 30 else b"\x80" + size.to_bytes(11, "big")
    data = make_header(size=field) + bytes(1024)
    for always in (lambda *_: True, lambda *_: False):
        parts, options = JumpingParts(data, 512), TarOptions(max_member_bytes=1 << 50)
        _, error = outcome(read_member_headers, parts, options=options, wanted=always)
        assert error is not None
        assert "holds 1,024 of" in error
