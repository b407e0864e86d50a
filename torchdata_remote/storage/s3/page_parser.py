"""Pages of S3's listings, with the dates as text, since botocore spends most of its time on parsing them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from functools import partial
from typing import Any
from xml.etree import ElementTree as ET

from ..protocol import Entry, Page, normalized_etag


def install_page_parser(client: Any) -> None:
    """Let a client of botocore read the objects of a page here and only the rest of it by itself."""
    import botocore.handlers

    events = client.meta.events
    events.register("before-parse.s3.ListObjectsV2", _take_contents)
    # It makes 500 of every 200 that is no XML, which would be asked for until the deadline
    makes_500 = getattr(botocore.handlers, "_handle_200_error", None)
    if makes_500 is not None:
        events.unregister("before-parse.s3.*", makes_500)
        events.register_first("before-parse.s3.*", partial(_after_require_page, makes_500))


def _after_require_page(then: Callable[..., None], response_dict: dict[str, Any], **more: Any) -> None:
    """Call a handler for an answer, unless it is a page of a listing that cannot be read.

    Raises:
        ResponseParserError: for such a page.
    """
    from botocore.parsers import ResponseParserError

    is_page = more["operation_model"].name == "ListObjectsV2"
    if is_page and response_dict["status_code"] == 200 and response_dict["body"]:
        try:
            tag = ET.fromstring(response_dict["body"]).tag  # noqa: S314  # botocore does the same with it
        except ET.ParseError as error:
            raise ResponseParserError(f"a page of the listing is no XML: {error}") from error
        if tag.rpartition("}")[2] == "ListBucketResult":
            return  # the handler looks for <Error> only
        if tag.rpartition("}")[2] != "Error":
            raise ResponseParserError(f"a page of the listing begins with <{tag}>")
    then(response_dict=response_dict, **more)


def _take_contents(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Take the objects out of an answer. botocore would parse their dates, for which it tries several formats.

    A page that is not as expected is left to botocore, whose errors are known.
    """
    if response_dict["status_code"] != 200:
        return
    try:
        root = ET.fromstring(response_dict["body"])  # noqa: S314  # botocore does the same with it
    except ET.ParseError:
        return
    space = root.tag[: root.tag.find("}") + 1]
    found = root.findall(f"{space}Contents")
    contents = [_object(one, space) for one in found]
    if not contents or None in contents:
        return
    for one in found:
        root.remove(one)
    response_dict["body"] = ET.tostring(root)
    customized_response_dict["Contents"] = contents


def _object(one: ET.Element, space: str) -> dict[str, Any] | None:
    key, size, etag = (one.findtext(space + name) for name in ("Key", "Size", "ETag"))
    if not key or not size or not size.isdecimal():
        return None
    return {"Key": key, "Size": int(size), "ETag": etag, "LastModified": one.findtext(space + "LastModified")}


def seconds(when: dt.datetime | str | None) -> float | None:
    """Since 1970, whole ones as HEAD tells them, of what botocore parsed or of S3's own text."""
    if isinstance(when, str):
        try:
            when = dt.datetime.fromisoformat(when.replace("Z", "+00:00"))
        except ValueError:
            return None
    return None if when is None else float(int(when.timestamp()))


def to_page(answer: dict[str, Any]) -> Page:
    """A page of a listing from botocore's response, without folders' markers (empty objects that end with a slash)."""
    entries = [
        Entry(found["Key"], int(found["Size"]), normalized_etag(found.get("ETag")), seconds(found.get("LastModified")))
        for found in answer.get("Contents", ())
        if not (found["Key"].endswith("/") and found["Size"] == 0)  # a folder's marker
    ]
    next_token = answer["NextContinuationToken"] if answer["IsTruncated"] else None
    return Page(entries, next_token, [found["Prefix"] for found in answer.get("CommonPrefixes", ())])
