"""Parse pages of Azure's listings: at once by one expression, or by an XML parser what it does not match."""

from __future__ import annotations

import email.utils
import re
from typing import NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import unescape

from ..entry_table import EntryTable
from ..errors import unusable_response
from ..protocol import Page, normalized_etag

_BLOB = re.compile(
    r"<Blob><Name>([^<]+)</Name>(?:<(?:VersionId|IsCurrentVersion|Deleted|Snapshot)>[^<]*</\w+>)*<Properties>"
    r"(?:<Creation-Time>[^<]*</Creation-Time>)?<Last-Modified>([^<]*)</Last-Modified><Etag>([^<]*)</Etag>"
    r"((?:<(?:Owner|Group|Permissions|Acl|ResourceType|Placeholder)>[^<]*</\w+>)*)"
    r"<Content-Length>([0-9]{1,19})</Content-Length>"
)
_SIZE = re.compile(r"[0-9]{1,19}")  # Python refuses to convert thousands of digits
_PREFIX = re.compile(r"<BlobPrefix><Name>([^<]+)</Name>")
_MARKER = re.compile(r"<NextMarker>([^<]*)</NextMarker>")
_DIRECTORY = "<ResourceType>directory</ResourceType>"
_QUOTES = {"&quot;": '"', "&apos;": "'"}


class _Blobs(NamedTuple):
    """Columns of the objects of a page."""

    names: list[str]
    modified: list[str]
    etags: list[str]
    are_folders: list[bool]
    sizes: list[int]


def parse_page(body: bytes, url: str) -> Page:
    """Return a page without markers of folders: empty objects whose name ends with a slash, and directories.

    Args:
        body: of the response.
        url: of the listing, for errors.

    Raises:
        TransientStorageError: for a page that is not XML, or incomplete.
    """
    text = body.decode("utf-8-sig", "replace")
    if not text.rstrip().endswith("</EnumerationResults>"):
        raise unusable_response(url, "a page of the listing is incomplete, or no listing of Azure")
    found = _by_expression(text)
    blobs, folders, marker = found if found is not None else _by_parser(text, url)
    table = EntryTable(
        blobs.names, blobs.sizes, [normalized_etag(etag) for etag in blobs.etags], blobs.modified, seconds
    )
    if 0 in blobs.sizes:
        columns = zip(blobs.names, blobs.sizes, blobs.are_folders, strict=True)
        table = table.selected([size > 0 or not (is_folder or name.endswith("/")) for name, size, is_folder in columns])
    return Page(table, marker or None, folders)


def _by_expression(text: str) -> tuple[_Blobs, list[str], str] | None:
    """Parse a page whose objects all look as Azure writes them."""
    if "&#" in text or "<!" in text or ' Encoded="' in text:
        return None
    rows, folders, marker = _BLOB.findall(text), _PREFIX.findall(text), _MARKER.search(text)
    if len(rows) != text.count("<Blob>") or len(folders) != text.count("<BlobPrefix>"):
        return None
    if marker is None and "<NextMarker" not in text:
        return None
    names, modified, etags, more, sizes = map(list, zip(*rows, strict=True)) if rows else ([], [], [], [], [])
    if "&" in text:
        names, folders = [unescape(name, _QUOTES) for name in names], [unescape(name, _QUOTES) for name in folders]
        etags = [unescape(etag, _QUOTES) for etag in etags]
    blobs = _Blobs(names, modified, etags, [_DIRECTORY in one for one in more], list(map(int, sizes)))
    return blobs, folders, unescape(marker[1], _QUOTES) if marker else ""


def _by_parser(text: str, url: str) -> tuple[_Blobs, list[str], str]:
    try:
        root = ET.fromstring(text)  # noqa: S314  # the store's own answer, of a bounded size
    except ET.ParseError as error:
        raise unusable_response(url, f"a page of the listing is no XML: {error}") from error
    marker = root.find("NextMarker")
    if marker is None:
        raise unusable_response(url, "a page of the listing does not say whether it is the last one")
    blobs = _Blobs([], [], [], [], [])
    for one in root.iterfind("Blobs/Blob"):
        size = one.findtext("Properties/Content-Length") or ""
        if _SIZE.fullmatch(size) is None:
            raise unusable_response(url, "an object of the listing has no size")
        blobs.names.append(_name(one))
        blobs.modified.append(one.findtext("Properties/Last-Modified") or "")
        blobs.etags.append(one.findtext("Properties/Etag") or "")
        blobs.are_folders.append(one.findtext("Properties/ResourceType") == "directory")
        blobs.sizes.append(int(size))
    return blobs, [_name(one) for one in root.iterfind("Blobs/BlobPrefix")], marker.text or ""


def _name(one: ET.Element) -> str:
    """The name of an object, which is percent-encoded if XML could not hold it."""
    name = one.find("Name")
    text = "" if name is None else name.text or ""
    return unquote(text) if name is not None and name.get("Encoded") == "true" else text


def seconds(date: str | None) -> float | None:
    """Convert a date of HTTP to seconds since 1970.

    >>> seconds("Thu, 01 Jan 1970 00:01:00 GMT")
    60.0
    """
    try:
        return email.utils.parsedate_to_datetime(date or "").timestamp()
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
