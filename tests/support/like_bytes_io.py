"""Files that read as ``io.BytesIO`` does."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import strategies as st

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.none() | st.integers(-1, 300_000)),
        st.tuples(st.just("readinto"), st.integers(0, 300_000)),
        st.tuples(st.just("seek"), st.integers(-300_000, 600_000), st.integers(0, 2)),
        st.tuples(st.just("readline")),
    ),
    max_size=12,
)


def assert_like_bytes_io(file: Any, data: bytes, steps: list[tuple[Any, ...]]) -> None:
    """The same results and errors, for any sequence of calls."""
    expected = io.BytesIO(data)
    for name, *arguments in steps:
        if name == "readinto":
            found, wanted = bytearray(arguments[0]), bytearray(arguments[0])
            assert file.readinto(found) == expected.readinto(wanted)
            assert found == wanted
        elif name == "seek" and arguments[0] + (0, expected.tell(), len(data))[arguments[1]] < 0:  # BytesIO stops at 0
            with pytest.raises(ValueError, match="before the beginning"):
                file.seek(*arguments)
        else:
            assert getattr(file, name)(*arguments) == getattr(expected, name)(*arguments)
        assert file.tell() == expected.tell()
    position = file.tell()
    assert (bytes(file), file.tell(), file.size) == (data, position, len(data))
