"""Pages of Azure's listings."""

from __future__ import annotations

import string
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.errors import TransientStorageError
from torchdata_remote.storage.azure import pages
from torchdata_remote.storage.azure.pages import parse_page
from torchdata_remote.storage.entry_table import EntryTable

URL = "az://box/"
DATE = "Mon, 27 Jan 2025 10:00:00 GMT"


def blob(name: str, size: int = 3, more: str = "", etag: str = "0x8D1") -> str:
    return (
        f"<Blob><Name>{name}</Name><Properties><Creation-Time>{DATE}</Creation-Time><Last-Modified>{DATE}"
        f"</Last-Modified><Etag>{etag}</Etag>{more}<Content-Length>{size}</Content-Length><Content-Type>a/b"
        "</Content-Type><BlobType>BlockBlob</BlobType></Properties><OrMetadata /></Blob>"
    )


def page(*parts: str, marker: str = "<NextMarker />") -> bytes:
    head = '\ufeff<?xml version="1.0" encoding="utf-8"?><EnumerationResults ContainerName="box">'
    return f"{head}<Prefix>a</Prefix><Blobs>{''.join(parts)}</Blobs>{marker}</EnumerationResults>".encode()


def test_objects_folders_and_the_next_page_are_found() -> None:
    """With sizes, etags in quotes, and times."""
    found = parse_page(
        page(blob("a/1", 5), "<BlobPrefix><Name>a/b/</Name></BlobPrefix>", marker="<NextMarker>2!x</NextMarker>"), URL
    )
    assert [(entry.path, entry.size, entry.etag, entry.modified_s) for entry in found.entries] == [
        ("a/1", 5, '"0x8D1"', 1737972000.0)
    ]
    assert (found.folders, found.next_token) == (["a/b/"], "2!x")


def test_markers_of_folders_are_no_objects() -> None:
    """Those of consoles, and directories of a hierarchical namespace; pages still know their names."""
    directory = "<Owner>me</Owner><ResourceType>directory</ResourceType>"
    file = "<ResourceType>file</ResourceType>"
    found = parse_page(page(blob("a/", 0), blob("b", 0, directory), blob("c", 0, file), blob("d/", 1)), URL)
    assert [entry.path for entry in found.entries] == ["c", "d/"]
    assert EntryTable.of(found.entries).keys == ["a/", "b", "c", "d/"]


names = st.text(st.characters(exclude_categories=("C", "Z")) | st.sampled_from(string.printable[:95]), min_size=1)


@given(st.lists(st.tuples(names, st.integers(1, 10**15)), max_size=5))
def test_the_expression_finds_what_the_parser_finds(objects: list[tuple[str, int]]) -> None:
    """For all names that XML can hold."""
    text = page(*(blob(escape(name, {'"': "&quot;"}), size) for name, size in objects)).decode("utf-8-sig")
    assert pages._by_expression(text) == pages._by_parser(text, URL)
    assert [entry.path for entry in parse_page(text.encode(), URL).entries] == [name for name, _ in objects]


@pytest.mark.parametrize(
    "part",
    [
        '<Blob><Name Encoded="true">a%01</Name><Properties><Content-Length>1</Content-Length></Properties></Blob>',
        "<Blob><Name>a&#1234;</Name><Properties><Content-Length>1</Content-Length></Properties></Blob>",
        "<Blob><Properties><Content-Length>1</Content-Length></Properties><Name>b</Name></Blob>",
    ],
    ids=["encoded", "number", "order"],
)
def test_other_forms_are_parsed_too(part: str) -> None:
    """Names that XML cannot hold are percent-encoded by Azure."""
    assert [entry.path for entry in parse_page(page(part), URL).entries] in (["a\x01"], ["a\u04d2"], ["b"])


@pytest.mark.parametrize(
    "body", [b"", b"<html>busy</html>", page(blob("a"))[:-30], page(marker=""), page(blob("a").replace(">3<", "><"))]
)
def test_an_incomplete_page_is_an_error_that_is_repeated(body: bytes) -> None:
    """A proxy may cut it, or answer itself: an end that is missing must not look like the end of the listing."""
    with pytest.raises(TransientStorageError, match="listing"):
        parse_page(body, URL)


def test_a_size_of_thousands_of_digits_is_an_error_that_is_repeated() -> None:
    """Python refuses to convert it."""
    with pytest.raises(TransientStorageError, match="has no size"):
        parse_page(page(blob("a").replace(">3<", f">{'9' * 5000}<")), URL)


def test_a_date_that_is_none_is_unknown() -> None:
    """Also one whose year no calendar has."""
    [entry] = parse_page(page(blob("a").replace("2025", "99999999999")), URL).entries
    assert entry.modified_s is None
