"""Pages of S3's listings, with the dates as text, since botocore spends most of its time on parsing them."""

from __future__ import annotations

import datetime as dt
from typing import Any
from xml.etree import ElementTree as ET


def read_faster(client: Any) -> None:
    """Let a client of botocore read the objects of a page here and only the rest of it by itself."""
    client.meta.events.register("before-parse.s3.ListObjectsV2", _take_contents)


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
