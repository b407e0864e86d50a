"""Members as files."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.formats.member_file import BytesFile, MemberFile
from torchdata_remote.formats.sample_size import sample_bytes

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.none() | st.integers(-1, 300_000)),
        st.tuples(st.just("readinto"), st.integers(0, 300_000)),
        st.tuples(st.just("seek"), st.integers(-300_000, 600_000), st.integers(0, 2)),
        st.tuples(st.just("readline")),
    ),
    max_size=12,
)


def assert_like_bytes_io(file: MemberFile, data: bytes, steps: list[tuple[object, ...]]) -> None:
    """The same results and errors as ``io.BytesIO``, for any sequence of calls."""
    expected = io.BytesIO(data)
    for name, *arguments in steps:
        if name == "readinto":
            got, wanted = bytearray(arguments[0]), bytearray(arguments[0])  # type: ignore[call-overload]
            assert file.readinto(got) == expected.readinto(wanted)
            assert got == wanted
        elif name == "seek" and arguments[1] != 0 and _target(expected, *arguments) < 0:  # BytesIO stops at 0
            with pytest.raises(ValueError, match="before the beginning"):
                file.seek(*arguments)  # type: ignore[arg-type]
        else:
            try:
                wanted_result = getattr(expected, str(name))(*arguments)
            except ValueError:
                with pytest.raises(ValueError, match="before the beginning"):
                    getattr(file, str(name))(*arguments)
            else:
                assert getattr(file, str(name))(*arguments) == wanted_result
        assert file.tell() == expected.tell()
    position = file.tell()
    assert bytes(file) == data
    assert (file.tell(), file.size) == (position, len(data))


def _target(file: io.BytesIO, offset: object, whence: object) -> int:
    assert isinstance(offset, int)
    return offset + (0, file.tell(), len(file.getbuffer()))[whence]  # type: ignore[call-overload]


@given(data=st.binary(max_size=300), steps=STEPS)
def test_a_file_in_memory_reads_as_bytes_io(data: bytes, steps: list[tuple[object, ...]]) -> None:
    assert_like_bytes_io(BytesFile("a.bin", data), data, steps)


def test_a_copy_has_the_position_and_reads_on_its_own() -> None:
    file = BytesFile("a.bin", b"0123456789")
    file.seek(4)
    for other in (pickle.loads(pickle.dumps(file)), copy.copy(file), copy.deepcopy(file)):
        assert (other.name, other.tell(), other.read(3)) == ("a.bin", 4, b"456")
    assert file.tell() == 4


def test_a_closed_file_is_not_read() -> None:
    with BytesFile("a.bin", b"01") as file:
        assert file.readable()
        assert file.seekable()
        assert not file.writable()
    for call in (file.read, file.tell, lambda: file.seek(0), lambda: bytes(file), lambda: pickle.dumps(file)):
        with pytest.raises(ValueError, match=r"'a\.bin': read from a closed file"):
            call()
    assert repr(file) == "<BytesFile 'a.bin', closed>"


def test_a_file_in_memory_counts_with_its_bytes() -> None:
    """``shuffle_samples(max_buffer_bytes=)`` bounds the memory."""
    assert sample_bytes({"a": BytesFile("a", bytes(1000))}) == sample_bytes({"a": bytes(1000)})


def test_a_wrong_whence_is_an_error() -> None:
    with pytest.raises(ValueError, match="whence is 0, 1 or 2, got 3"):
        BytesFile("a", b"").seek(0, 3)
