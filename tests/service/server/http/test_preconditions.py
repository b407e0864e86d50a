"""Versions, ranges and digests in headers."""

from __future__ import annotations

import contextlib
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from torchdata_remote.service.server.http.preconditions import (
    allows_overwrite,
    byte_range,
    content_range,
    require_match,
    sha256_of,
    wants_digest,
)
from torchdata_remote.service.server.problems import Problem
from torchdata_remote.storage.dataset_service.protocol import digest_field


@given(size=st.integers(0, 50), first=st.none() | st.integers(0, 60), last=st.none() | st.integers(0, 60))
def test_a_range_header_is_a_slice(size: int, first: int | None, last: int | None) -> None:
    """416 if the slice is empty; an invalid range is ignored."""
    data = bytes(range(size))
    header = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    if first is None:
        expected = b"" if last == 0 else data[-last:] if last is not None else None
    else:
        expected = None if last is not None and last < first else data[first : None if last is None else last + 1]
    if expected == b"":
        with pytest.raises(Problem) as caught:
            byte_range(header, size)
        assert caught.value.status == 416
        assert caught.value.headers == {"Content-Range": f"bytes */{size}"}
    else:
        found = byte_range(header, size)
        assert (None if found is None else data[found[0] : found[1]]) == expected


@given(st.text(max_size=20))
def test_any_header_is_parsed_or_refused(text: str) -> None:
    """Never another error, whatever a client sends."""
    for check in (content_range, sha256_of, wants_digest, lambda header: byte_range(header, 9)):
        for beginning in ("", "bytes ", "bytes=", "sha-256="):
            with contextlib.suppress(Problem):
                check(beginning + text)


@given(first=st.integers(0, 99), length=st.integers(1, 99), total=st.none() | st.integers(0, 250))
def test_content_range_of_a_part(first: int, length: int, total: int | None) -> None:
    """First byte, byte after the last one, and total."""
    header = f"bytes {first}-{first + length - 1}/{'*' if total is None else total}"
    if total is not None and total < first + length:
        with pytest.raises(Problem):
            content_range(header)
    else:
        assert content_range(header) == (first, first + length, total)


@given(st.binary(max_size=20))
def test_sha256_is_found_among_other_digests(data: bytes) -> None:
    """With parameters, at any position."""
    sha256 = hashlib.sha256(data).hexdigest()
    field = digest_field(sha256)
    for header in (field, f"md5=:AAAA:, {field}", f"{field}, sha-512=:AAAA:", f"{field};x=1"):
        assert sha256_of(header) == sha256
    assert sha256_of(None) is None
    assert sha256_of("md5=:AAAA:") is None


@pytest.mark.parametrize(
    ("name", "value", "etag", "holds"),
    [
        ("if-match", '"a"', '"a"', True),
        ("if-match", '"b", "a"', '"a"', True),
        ("if-match", "*", '"a"', True),
        ("if-match", "*", None, False),
        ("if-match", '"a"', None, False),
        ("if-match", 'W/"a"', '"a"', False),
        ("if-match", "", '"a"', False),
        ("if-none-match", "*", None, True),
        ("if-none-match", "*", '"a"', False),
        ("if-none-match", 'W/"a"', '"a"', False),
        ("if-none-match", '"b"', '"a"', True),
    ],
)
def test_preconditions_of_writes(name: str, value: str, etag: str | None, holds: bool) -> None:
    """RFC 9110, 13.1: strong comparison for If-Match, weak for If-None-Match."""
    if holds:
        require_match({name: value}, etag)
    else:
        with pytest.raises(Problem, match="If-"):
            require_match({name: value}, etag)


def test_only_a_star_forbids_to_overwrite() -> None:
    """If-None-Match with a tag concerns that version only."""
    assert allows_overwrite({})
    assert allows_overwrite({"if-none-match": '"a"'})
    assert not allows_overwrite({"if-none-match": " * "})
