"""Pages of S3's listings, read past botocore."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers.scripted import Response, scripted
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import RemoteDataError
from torchdata_remote.storage import Entry, Page, Store, open_store
from torchdata_remote.storage.s3.page_parser import _take_contents

SPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
OBJECT = "<Contents><Key>a/%C3%A9&amp;</Key><LastModified>2026-01-01T00:00:00Z</LastModified>{}</Contents>"
MODIFIED_S = 1_767_225_600.0  # of that object, since 1970
SIZE = "<Size>7</Size><ETag>&quot;e&quot;</ETag>"


def page_of(*objects: str, space: str = SPACE, more: str = "<IsTruncated>false</IsTruncated>") -> bytes:
    kind = "<EncodingType>url</EncodingType>"
    return f"<?xml version='1.0'?><ListBucketResult{space}>{kind}{more}{''.join(objects)}</ListBucketResult>".encode()


def listed(body: bytes, status: int = 200) -> Page:
    with scripted(lambda request: Response(status, body, {"Content-Type": "application/xml"})) as server:
        options = StorageOptions({"endpoint_url": server.url, "key": "k", "secret": "s"})
        return open_store("s3://bucket/", options)[0].list_page("", recursive=True, token=None)


@pytest.fixture(scope="module")
def replayed() -> Iterator[tuple[list[bytes], Store]]:
    """The body that a server sends to each request, to be replaced, and a store that it serves."""
    bodies = [page_of()]
    with scripted(lambda request: Response(200, bodies[0], {"Content-Type": "application/xml"})) as server:
        options = StorageOptions({"endpoint_url": server.url, "key": "k", "secret": "s"})
        yield bodies, open_store("s3://bucket/", options)[0]


@pytest.mark.parametrize("space", ["", SPACE])
def test_a_page_equals_botocores(space: str) -> None:
    """Keys, sizes and etags, with or without a namespace."""
    folders = "<CommonPrefixes><Prefix>a%20b/</Prefix></CommonPrefixes>"
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>{folders}"
    page = listed(page_of(OBJECT.format(SIZE), space=space, more=more))
    assert page == Page([Entry("a/é&", 7, '"e"', MODIFIED_S)], "t", ["a b/"])
    assert listed(page_of(OBJECT.format("<Size>7</Size>"), space=space)).entries == [Entry("a/é&", 7, None, MODIFIED_S)]
    assert listed(page_of()) == Page([], None, [])


@pytest.mark.parametrize("body", [b"", b"<html>", b"<html/>", b"\xff", page_of()[:-9], b"not XML"])
def test_an_invalid_page_is_an_error(body: bytes) -> None:
    """Never an empty listing."""
    with pytest.raises(RemoteDataError):
        listed(body)


@pytest.mark.parametrize("fields", ["", "<Size/>", "<Size>x</Size>", "<Size>-1</Size>"])
@pytest.mark.parametrize("status", [200, 500])
def test_an_invalid_object_leaves_the_page_to_botocore(fields: str, status: int) -> None:
    """The whole page."""
    body = page_of(OBJECT.format(SIZE), OBJECT.format(fields if status == 200 else SIZE))
    response, parsed = {"status_code": status, "body": body}, dict[str, Any]()
    _take_contents(response_dict=response, customized_response_dict=parsed)
    assert (response["body"], parsed) == (body, {})


def test_objects_are_removed_before_botocore_parses_the_page() -> None:
    response, parsed = {"status_code": 200, "body": page_of(*[OBJECT.format(SIZE)] * 9)}, dict[str, Any]()
    _take_contents(response_dict=response, customized_response_dict=parsed)
    assert len(parsed["Contents"]) == 9
    body = response["body"]
    assert isinstance(body, bytes)
    assert b"Contents" not in body
    assert b"IsTruncated" in body


@settings(max_examples=40)
@given(
    names=st.sets(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=9), max_size=5)
)
def test_any_text_is_a_key_of_a_listing(replayed: tuple[list[bytes], Store], names: set[str]) -> None:
    """Also one that XML cannot express: S3 percent-encodes it."""
    bodies, store = replayed
    quoted = "".join(f"<Contents><Key>{_quoted(name)}</Key>{SIZE}</Contents>" for name in names)
    bodies[:] = [page_of(quoted)]
    assert [entry.path for entry in store.list_page("", recursive=True, token=None).entries] == list(names)


def _quoted(name: str) -> str:
    return "".join(f"%{byte:02X}" for byte in name.encode())
