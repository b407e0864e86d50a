"""Places of members, found without their data (``tar/places``)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.formats.tar.test_tar import MEMBERS, URL, Members
from tests.support.archive_bytes import in_parts, make_header, make_member, pack_tar, pax_line
from tests.support.tar_members import read_members
from torchdata_remote.errors import ShardReadError
from torchdata_remote.formats.tar import END_OF_ARCHIVE, TarOptions, first_name, read_member_offsets

CUTS = st.lists(st.integers(0, 20_000), max_size=12)


def by_places(data: bytes, cuts: list[int], options: TarOptions) -> tuple[Members, str | None]:
    """Members cut out of the archive at the offsets, and the error at the end, if there is one."""
    found: Members = []
    try:
        for places in read_member_offsets(in_parts(data, cuts), url=URL, options=options):
            found += [(name, data[start : start + size]) for name, start, size in zip(*places[:3], strict=True)]
    except ShardReadError as error:
        return found, str(error)
    return found, None


def by_members(data: bytes, options: TarOptions) -> tuple[Members, str | None]:
    found: Members = []
    try:
        found.extend(read_members([data], url=URL, options=options))
    except ShardReadError as error:
        return found, str(error)
    return found, None


@given(members=MEMBERS, cuts=CUTS)
@example(members=[("a" * 101, b"x" * 511), ("é.x", b""), ("p/" * 200 + "n", b"y" * 513)], cuts=[0, 0, 511, 512, 1100])
def test_the_bytes_at_the_places_are_those_of_the_members(members: Members, cuts: list[int]) -> None:
    """Names of any length and script, data of any size, parts of any length, empty ones included."""
    assert by_places(pack_tar(members), cuts, TarOptions()) == (members, None)


@given(members=MEMBERS, cuts=CUTS, cut=st.integers(0, 20_000), flip=st.integers(0, 1 << 20))
def test_header_readers_are_as_strict_as_read_members(members: Members, cuts: list[int], cut: int, flip: int) -> None:
    """A truncated or damaged archive yields the same members, and the same error if there is one."""
    data = bytearray(pack_tar(members))
    if cut < len(data):
        del data[cut:]
    elif data:
        data[flip % len(data)] ^= 1 << flip % 8
    options = TarOptions(num_bytes=len(data))
    whole, error = by_members(bytes(data), options)
    found, error_of_entries = by_places(bytes(data), cuts, options)
    assert (found, error_of_entries is None) == (whole, error is None)


def test_the_limit_of_a_member_counts() -> None:
    """Nothing is held in memory, but readers of the same archive would refuse the member."""
    data = pack_tar([("a.x", b"1" * 3000), ("b.x", b"2")])
    options = TarOptions(max_member_bytes=1000)
    found, error = by_places(data, [700, 2000], options)
    assert found == []
    assert error is not None
    assert "claims 3,000 bytes (max_member_bytes=1,000)" in error
    whole = TarOptions(max_member_bytes=3000)
    assert by_places(data, [700, 2000], whole) == ([("a.x", b"1" * 3000), ("b.x", b"2")], None)


def test_a_truncated_member_is_an_error_with_its_name() -> None:
    """The error says which member, and how much there is of it."""
    _, error = by_places(pack_tar([("a.x", b"1" * 3000)])[:2000], [900], TarOptions())
    assert error is not None
    assert "member 'a.x' holds 1,488 of 3,000 bytes" in error


@given(members=MEMBERS, cuts=CUTS)
def test_the_first_name_takes_nothing_away(members: Members, cuts: list[int]) -> None:
    """The archive is whole after it was looked at."""
    data = pack_tar(members)
    name, whole = first_name(in_parts(data, cuts), url=URL)
    assert name == (members[0][0] if members else None)
    assert b"".join(whole) == data


def test_the_first_name_is_that_of_a_file() -> None:
    """Folders are passed over, and a long name is the long one."""
    long = make_member(b"pax", pax_line("path", "l" * 300 + ".x"), b"x") + make_member(b"short", b"1")
    data = make_header(b"d/", kind=b"5") + long + END_OF_ARCHIVE
    assert first_name([data], url=URL)[0] == "l" * 300 + ".x"


def test_the_first_name_of_something_else() -> None:
    """What does not begin as an archive is an error."""
    with pytest.raises(ShardReadError, match=URL):
        first_name([b"\x89PNG" * 300], url=URL)
