"""URLs to streams, from the first one or from where a state tells; and the bytes of any file."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_fetch import options, store_of
from torchdata_remote.engine import Engine
from torchdata_remote.errors import RemoteDataError
from torchdata_remote.options import StorageOptions
from torchdata_remote.streams import parts_of, streams_of


def test_bare_urls_and_pairs() -> None:
    """A reader's source may be URLs or pairs, not both."""
    with store_of({"a": b"1", "b": b"2"}):
        got = [(url, stream.read()) for url, stream in streams_of(["a", "b"], Engine(options(), StorageOptions()))]
        assert got == [("a", b"1"), ("b", b"2")]
        pairs = [("x", io.BytesIO(b"3")), ("y", io.BytesIO(b"4"))]
        assert list(streams_of(iter(pairs), Engine(options(), StorageOptions()))) == pairs
        assert list(streams_of([], Engine(options(), StorageOptions()))) == []
        with pytest.raises(RemoteDataError, match="Expected a URL, as before, got tuple"):
            list(streams_of(["a", pairs[0]], Engine(options(), StorageOptions())))
        for wrong in (1, None, ("x", b"bytes"), ("x",), b"bytes", {"__key__": "1"}):
            with pytest.raises(RemoteDataError, match=r"Expected a URL or a \(url, file_like\) pair"):
                list(streams_of([wrong], Engine(options(), StorageOptions())))


@given(data=st.binary(max_size=100), piece_bytes=st.integers(1, 30))
def test_parts_of_any_file(data: bytes, piece_bytes: int) -> None:
    """Files of others come in pieces too."""
    assert b"".join(parts_of("x", io.BytesIO(data), piece_bytes)) == data


def test_parts_of_a_text_file() -> None:
    """A file that was opened as text is named as such."""
    with pytest.raises(RemoteDataError, match="mode='rb'"):
        list(parts_of("x", io.StringIO("text")))
