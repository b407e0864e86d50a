"""Parsing what a client sends takes time in proportion to its length.

A regular expression keeps the interpreter's lock, so that one slow header stops all requests, in whatever thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from starlette.requests import Request

from torchdata_remote.service.server.datasets.names import (
    name_in_disposition,
    require_dataset_name,
    require_path,
    require_prefix,
    require_text,
    require_upload_id,
)
from torchdata_remote.service.server.http.preconditions import (
    allows_overwrite,
    byte_range,
    content_range,
    is_not_modified,
    range_applies,
    require_match,
    sha256_of,
    wants_digest,
)
from torchdata_remote.service.server.middleware import (
    MAX_HEADER_BYTES,
    MAX_TARGET_BYTES,
    _has_token,
    _host_name,
    is_loopback,
)
from torchdata_remote.service.server.problems import Problem
from torchdata_remote.service.server.routes.file_routes import _limit, bool_parameter
from torchdata_remote.service.server.uploads.request_body import content_length, require_file_body

if TYPE_CHECKING:
    from starlette.testclient import TestClient

NUM_CHARACTERS = 100_000  # of which a quadratic parser takes 20 s


def _request(text: str, name: str = "", query: str = "") -> Request:
    headers = [(name.encode(), text.encode("latin-1", "replace"))] if name else []
    return Request({"type": "http", "method": "PUT", "headers": headers, "query_string": query.encode()})


def _conditions(text: str) -> None:
    for name in ("if-match", "if-none-match", "if-range"):
        headers = {name: text}
        allows_overwrite(headers)
        range_applies(headers, '"1"')
        for check in (is_not_modified, require_match):
            with contextlib.suppress(Problem):
                check(headers, '"1"')


PARSERS: dict[str, tuple[Callable[[str], Any], tuple[str, ...]]] = {
    "range": (lambda text: byte_range(text, 9), ("bytes=", "bytes", "bytes=1", "bytes=1-", "bytes=1-2")),
    "content-range": (content_range, ("bytes ", "bytes 1-2/")),
    "conditions": (_conditions, ("", '"1",')),
    "digest": (sha256_of, ("", "sha-256=:", ",sha-256=:AAAA:")),
    "want-repr-digest": (wants_digest, ("", "sha-256=")),
    "content-disposition": (name_in_disposition, ("attachment; filename=", 'a; filename="', "a; filename*=utf-8''")),
    "content-type": (lambda text: require_file_body(_request(text, "content-type")), ("", "text/plain;")),
    "content-length": (lambda text: content_length(_request(text, "content-length")), ("", "1")),
    "host": (lambda text: is_loopback(_host_name(text)), ("", "[", "127.0.0.1", "[::")),
    "authorization": (lambda text: _has_token(text.encode(), b"x" * 16), ("Bearer ", "Basic ")),
    "dataset": (require_dataset_name, ("", "a")),
    "path": (require_path, ("", "a/")),
    "prefix": (require_prefix, ("", "a/")),
    "after": (require_text, ("",)),
    "upload": (require_upload_id, ("", "a" * 8)),
    "limit": (_limit, ("", "1")),
    "query": (
        lambda text: bool_parameter(_request("", query="unpack=" + quote(text)), "unpack", False),
        ("", "1&unpack="),
    ),
}
SPECIAL = " \t\n,;:=-\"'\\/*%.[]()<>@&+#?{}|~^`!$_0123a9zAWé\x00\x7f"


def _seconds(parse: Callable[[str], Any], text: str) -> float:
    """CPU time of this thread, which other processes do not change."""
    start_s = time.thread_time()
    with contextlib.suppress(Problem):
        parse(text)
    return time.thread_time() - start_s


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=15, deadline=None)
@given(unit=st.text(SPECIAL, min_size=1, max_size=4), end=st.text(SPECIAL, max_size=2))
@example(unit=" ", end="x")
@example(unit="1", end="x")
@example(unit='"', end="")
@example(unit="; a=", end="")
@example(unit='\\"', end="")
@example(unit=",", end="")
@example(unit="/", end="")
@example(unit="%ff", end="")
def test_time_grows_with_the_length_of_what_is_parsed(name: str, unit: str, end: str) -> None:
    """Four times the length takes at most four times as long, with a margin for the clock."""
    parse, beginnings = PARSERS[name]
    for beginning in beginnings:
        short = beginning + unit * (NUM_CHARACTERS // 4 // len(unit)) + end
        long = beginning + unit * (NUM_CHARACTERS // len(unit)) + end
        short_s = _seconds(parse, short)
        assert short_s < 1.0  # before the long one, which would take minutes
        assert _seconds(parse, long) < 3 * 4 * short_s + 0.1


@pytest.mark.parametrize("name", ["Range", "Content-Disposition", "If-Match", "X-Unknown"])
def test_a_long_header_is_refused(shared: TestClient, dataset: str, name: str) -> None:
    """431, whatever the service makes of it; one at the limit is parsed."""
    for num_bytes, is_refused in ((MAX_HEADER_BYTES, False), (MAX_HEADER_BYTES + 1, True)):
        answer = shared.get(f"/datasets/{dataset}/files", headers={name: "x" * num_bytes})
        assert answer.status_code == (431 if is_refused else 200)
        assert not is_refused or name.lower() in answer.json()["error"]


def test_a_long_target_is_refused(shared: TestClient, dataset: str) -> None:
    """414 for path and query together; the longest names in percent-encoding fit."""
    path = f"/datasets/{dataset}/files"
    longest = "/".join(["é" * 127] * 4)
    assert shared.get(path, params={"prefix": longest, "after": longest}).status_code == 200
    for query in (f"?prefix={'x' * MAX_TARGET_BYTES}", f"/{'x' * MAX_TARGET_BYTES}"):
        assert shared.get(path + query).status_code == 414
