"""Parse pages of S3's listings: the objects by regular expressions, and the rest by botocore.

botocore spends most of its time on the dates of objects. A page whose objects the expressions do not match is parsed by
ElementTree, without the dates.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from ..entry_table import EntryTable
from ..protocol import Page, normalized_etag
from .page_text import Objects, take_objects

_ARCHIVED = re.compile(rb"<StorageClass>(GLACIER|DEEP_ARCHIVE)<")
ARCHIVED, _OBJECTS = "TorchdataRemoteArchived", "TorchdataRemoteObjects"  # beside the fields of botocore's response


def install_page_parser(client: Any) -> None:
    """Let a botocore client parse the objects of a page by this module, and the rest of the page by itself."""
    import botocore.handlers

    events = client.meta.events
    # It turns a 200 without XML into a 500, which would be retried until the deadline
    handle_200_error = getattr(botocore.handlers, "_handle_200_error", None)
    if handle_200_error is not None:
        events.unregister("before-parse.s3.*", handle_200_error)
    events.register_first("before-parse.s3.*", partial(_before_parse, handle_200_error))
    events.register("before-parse.s3.ListObjectsV2", _take_contents)


def _before_parse(handler: Callable[..., None] | None, operation_model: Any, **response: Any) -> None:
    """Take the objects out of a page, check what remains, and call botocore's handler for other responses."""
    if operation_model.name == "ListObjectsV2":
        _take_objects(**response)
    if handler is not None:
        _require_page(handler, operation_model=operation_model, **response)


def _take_objects(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Remove the objects from the text of a page, before it is parsed, and note whether some are archived."""
    if (archived := _ARCHIVED.search(response_dict["body"])) is not None:
        customized_response_dict[ARCHIVED] = archived[1].decode()
    taken = take_objects(response_dict["body"]) if response_dict["status_code"] == 200 else None
    if taken is not None:
        customized_response_dict[_OBJECTS], response_dict["body"] = taken


def _require_page(handler: Callable[..., None], response_dict: dict[str, Any], **more: Any) -> None:
    """Call botocore's handler for a response, unless it is a page of a listing that cannot be parsed.

    Raises:
        ResponseParserError: for such a page.
    """
    from botocore.parsers import ResponseParserError

    is_page = more["operation_model"].name == "ListObjectsV2"
    if is_page and response_dict["status_code"] == 200 and response_dict["body"]:
        try:
            tag = ET.fromstring(response_dict["body"]).tag  # noqa: S314  # botocore parses it in the same way
        except ET.ParseError as error:
            raise ResponseParserError(f"a page of the listing is no XML: {error}") from error
        if tag.rpartition("}")[2] == "ListBucketResult":
            return  # the handler looks for <Error> only
        if tag.rpartition("}")[2] != "Error":
            raise ResponseParserError(f"a page of the listing begins with <{tag}>")
    handler(response_dict=response_dict, **more)


def _take_contents(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    """Remove the objects that are left in a response. botocore would parse their dates, by several formats.

    An unexpected page is left to botocore, whose errors are known.
    """
    if response_dict["status_code"] != 200 or b"Contents" not in response_dict["body"]:
        return
    try:
        root = ET.fromstring(response_dict["body"])  # noqa: S314  # botocore parses it in the same way
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
    """Convert a time of botocore, or S3's text, to seconds since 1970, without fractions as in HEAD."""
    if isinstance(when, str):
        try:
            when = dt.datetime.fromisoformat(when.replace("Z", "+00:00"))
        except ValueError:
            return None
    return None if when is None else float(int(when.timestamp()))


def to_page(response: dict[str, Any], paths_of: Callable[[list[str]], list[str]]) -> Page:
    """Make a page from botocore's response, without markers of folders (empty objects whose key ends with a slash).

    Args:
        response: to a request for a page.
        paths_of: returns how URLs name the objects of these keys.
    """
    objects: Objects | None = response.get(_OBJECTS)
    if objects is None:
        found = response.get("Contents", ())
        keys = [one["Key"] for one in found]
        sizes = [int(one["Size"]) for one in found]
        etags = [normalized_etag(one.get("ETag")) for one in found]
        modified: list[Any] = [one.get("LastModified") for one in found]
    else:
        keys, sizes, etags, modified = objects
        if response.get("EncodingType") == "url":
            keys = _decoded(keys)
    table = EntryTable(paths_of(keys), sizes, etags, modified, seconds)
    if 0 in sizes:
        table = table.selected([size > 0 or not key.endswith("/") for key, size in zip(keys, sizes, strict=True)])
    next_token = response["NextContinuationToken"] if response["IsTruncated"] else None
    return Page(table, next_token, [one["Prefix"] for one in response.get("CommonPrefixes", ())])


def _decoded(keys: list[str]) -> list[str]:
    r"""Decode keys as botocore does.

    >>> _decoded(["a+b", "%C3%A9%2B", "%0a"])
    ['a b', 'é+', '\n']
    """
    text = "\n".join(keys)
    if "%" not in text and "+" not in text:
        return keys
    decoded = unquote_plus(text).split("\n")
    return decoded if len(decoded) == len(keys) else list(map(unquote_plus, keys))
